//! `cauchyfs man`: manual pages, made from the definition of the arguments.
//!
//! So a page and `--help` say the same. [`volume_file`] has the page of a configuration file, whose keys are options.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::args::Arguments;
use super::failure::{Failure, Outcome};
use super::{service, terminal, volume_file};

/// The name of the whole manual, at the head of its pages.
pub(super) const MANUAL: &str = "CauchyFS";

/// The program and its version, at the foot of the pages.
pub(super) const SOURCE: &str = concat!("cauchyfs ", env!("CARGO_PKG_VERSION"));

/// The heading of a help text that becomes a section of its own.
const EXAMPLES: &str = "Examples:";

/// Print a manual page in the language of man(7), or write all pages below a directory as `man1/cauchyfs-create.1`.
/// Every command has a page, with the same text as its `--help`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs man cauchyfs-mount | man -l -
  cauchyfs man --to /usr/local/share/man")]
pub(super) struct ManArguments {
    /// Write all pages below this directory.
    #[arg(long, value_name = "DIR", conflicts_with = "page")]
    to: Option<PathBuf>,
    /// The page to print, such as cauchyfs-member-add.
    #[arg(value_name = "PAGE", default_value = "cauchyfs")]
    page: String,
}

/// A manual page.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) name: String,
    pub(super) section: u8,
    pub(super) text: Vec<u8>,
}

/// Prints a page, or writes all of them.
///
/// # Errors
///
/// If there is no such page, or a file cannot be written.
pub(super) fn run(arguments: &ManArguments) -> Result<Outcome, Failure> {
    let pages = pages().map_err(Failure::environment)?;
    if let Some(directory) = &arguments.to {
        for page in &pages {
            write(directory, page).map_err(|error| {
                let shown = directory.display();
                Failure::environment(format!("cannot write {} below {shown}: {error}", page.name))
            })?;
        }
        return Ok(Outcome::Done);
    }
    let wanted = pages.iter().find(|page| page.name == arguments.page);
    let page = wanted.ok_or_else(|| {
        let names: Vec<&str> = pages.iter().map(|page| page.name.as_str()).collect();
        Failure::usage(format!("there is no page `{}`", arguments.page))
            .advise(format!("the pages are {}", names.join(", ")))
    })?;
    terminal::report(&String::from_utf8_lossy(&page.text));
    Ok(Outcome::Done)
}

fn write(directory: &Path, page: &Page) -> io::Result<()> {
    let section = directory.join(format!("man{}", page.section));
    fs::create_dir_all(&section)?;
    fs::write(
        section.join(format!("{}.{}", page.name, page.section)),
        &page.text,
    )
}

/// Returns all pages.
fn pages() -> io::Result<Vec<Page>> {
    let mut definition = Arguments::command();
    definition.build();
    let mut pages = Vec::new();
    add_pages(&definition, &mut pages)?;
    pages.push(volume_file::page()?);
    pages.push(service::page()?);
    // The names by which mount(8) and umount(8) find the program.
    for (name, target) in [("mount.cauchyfs", "mount"), ("umount.cauchyfs", "unmount")] {
        pages.push(Page {
            name: name.to_owned(),
            section: 8,
            text: format!(".so man1/cauchyfs-{target}.1\n").into_bytes(),
        });
    }
    Ok(pages)
}

/// Adds the page of a command, and of all commands below.
fn add_pages(command: &Command, pages: &mut Vec<Page>) -> io::Result<()> {
    pages.push(page(command)?);
    let below = command.get_subcommands();
    // clap adds a command `help` to those that have commands.
    below
        .filter(|command| !command.is_hide_set() && command.get_name() != "help")
        .try_for_each(|command| add_pages(command, pages))
}

fn page(command: &Command) -> io::Result<Page> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .source(SOURCE)
        .manual(MANUAL);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command
        .get_subcommands()
        .any(|command| command.get_name() != "help")
    {
        man.render_subcommands_section(&mut text)?;
    }
    let mut rest = Roff::new();
    if let Some(help) = command.get_after_help() {
        add_notes(&mut rest, &help.to_string());
    }
    if name != "cauchyfs" {
        rest.control("SH", ["SEE ALSO"]);
        rest.text([bold("cauchyfs"), roman("(1)")]);
    }
    rest.to_writer(&mut text)?;
    Ok(Page {
        name: name.to_owned(),
        section: 1,
        text,
    })
}

/// Adds what stands below the options in a help text: examples and notes, one section each.
fn add_notes(roff: &mut Roff, help: &str) {
    let (examples, notes): (Vec<&str>, Vec<&str>) = help
        .split("\n\n")
        .partition(|paragraph| paragraph.starts_with(EXAMPLES));
    if !examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
        for paragraph in examples {
            add_verbatim(
                roff,
                paragraph
                    .trim_start_matches(EXAMPLES)
                    .trim_start_matches('\n'),
            );
        }
    }
    if !notes.is_empty() {
        roff.control("SH", ["NOTES"]);
        for paragraph in notes {
            roff.control("PP", []);
            add_paragraph(roff, paragraph);
        }
    }
}

/// Adds a paragraph. Its lines stay as they are if some are indented, as those of a table.
fn add_paragraph(roff: &mut Roff, paragraph: &str) {
    if paragraph.lines().any(|line| line.starts_with("  ")) {
        add_verbatim(roff, paragraph);
        return;
    }
    roff.text([roman(paragraph.replace('\n', " "))]);
}

/// Adds lines that are not filled.
pub(super) fn add_verbatim(roff: &mut Roff, lines: &str) {
    roff.control("nf", []);
    for line in lines.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(name: &str) -> String {
        let pages = pages().unwrap();
        let page = pages.into_iter().find(|page| page.name == name);
        let page = page.unwrap_or_else(|| panic!("there is no page {name}"));
        String::from_utf8(page.text).unwrap()
    }

    #[test]
    fn every_command_has_a_page_and_every_page_all_visible_options_of_the_command() {
        fn check(command: &Command, prefix: &str, seen: &mut usize) {
            let name = format!("{prefix}{}", command.get_name());
            let text = text_of(&name);
            let longs = command.get_arguments().filter(|it| !it.is_hide_set());
            for long in longs.filter_map(clap::Arg::get_long) {
                let shown = format!("\\-\\-{}", long.replace('-', "\\-"));
                assert!(text.contains(&shown), "{name}: {long}\n{text}");
                *seen += 1;
            }
            let below = command.get_subcommands();
            below.for_each(|command| check(command, &format!("{name}-"), seen));
        }
        let mut seen = 0;
        check(&Arguments::command(), "", &mut seen);
        assert!(seen > 60, "{seen}");
    }

    #[test]
    fn hidden_options_and_commands_are_on_no_page() {
        let text = text_of("cauchyfs-mount");
        assert!(!text.contains("\\-\\-silent"), "{text}");
        assert!(!text.contains("\\-\\-report"), "{text}");
        assert!(
            pages()
                .unwrap()
                .iter()
                .all(|page| !page.name.ends_with("help"))
        );
    }

    #[test]
    fn examples_stand_as_they_were_typed_one_a_line() {
        let text = text_of("cauchyfs-unmount");
        let section = text.split(".SH EXAMPLES\n.nf\n").nth(1).unwrap();
        let lines: Vec<&str> = section.lines().take(2).collect();
        assert_eq!(lines[0], "  cauchyfs unmount /mnt/photos");
        assert!(
            lines[1].starts_with("  cauchyfs unmount \\-\\-lazy"),
            "{lines:?}"
        );
    }
}
