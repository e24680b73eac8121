//! Files that say how a volume is mounted: `/etc/cauchyfs/volumes/NAME.conf`.
//!
//! Each line is a key, `=` and a value, up to the end of the line. The keys are [`DIRECTORY`], [`MOUNTPOINT`],
//! [`OPTIONS`], and the long options of `cauchyfs mount`. So [`page`] makes the manual page of the file from these.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Arg;
use clap_mangen::roff::{Roff, bold, italic, roman};

use super::manual::{MANUAL, Page, SOURCE, add_verbatim};
use super::options::{flags, mount_command};

/// The directory of the files.
pub(super) const HOME: &str = "/etc/cauchyfs/volumes";

/// The end of their names.
pub(super) const END: &str = "conf";

/// The key of a directory of the volume; once for each.
const DIRECTORY: &str = "directory";

/// The key of the place to mount at.
const MOUNTPOINT: &str = "mountpoint";

/// The key of options as for `-o`.
const OPTIONS: &str = "options";

/// A file, as the manual page shows it.
const EXAMPLE: &str = "# /etc/cauchyfs/volumes/photos.conf
directory = /srv/d0
directory = /srv/d1
directory = /srv/d2
directory = /srv/d3
mountpoint = /mnt/photos
options = noatime,allow_other
cache-size = 1GiB
wait-for-members = forever";

/// The way in which a volume is mounted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct VolumeFile {
    /// Its directories.
    pub(super) directories: Vec<PathBuf>,
    pub(super) mountpoint: PathBuf,
    /// Lists of options for `-o`.
    pub(super) options: Vec<String>,
    /// Further options of `cauchyfs mount`, as arguments.
    pub(super) flags: Vec<OsString>,
}

/// Returns the file of a volume. A name with a slash is a path.
pub(super) fn path_of(name: &str) -> PathBuf {
    if name.contains('/') {
        return PathBuf::from(name);
    }
    Path::new(HOME).join(format!("{name}.{END}"))
}

/// Reads a file.
///
/// # Errors
///
/// A sentence, if the file cannot be read, or a line of it is wrong.
pub(super) fn read(path: &Path) -> Result<VolumeFile, String> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    parse(&text).map_err(|(line, problem)| match line {
        Some(line) => format!("{shown}, line {line}: {problem}"),
        None => format!("{shown}: {problem}"),
    })
}

/// Parses the text of a file. Returns the number of a wrong line, and what is wrong with it.
fn parse(text: &str) -> Result<VolumeFile, (Option<usize>, String)> {
    let command = mount_command();
    let mut file = VolumeFile::default();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        file.add(line, &command)
            .map_err(|problem| (Some(number + 1), problem))?;
    }
    if file.directories.is_empty() {
        return Err((None, format!("it names no `{DIRECTORY}`")));
    }
    if file.mountpoint.as_os_str().is_empty() {
        return Err((None, format!("it names no `{MOUNTPOINT}`")));
    }
    Ok(file)
}

impl VolumeFile {
    fn add(&mut self, line: &str, command: &clap::Command) -> Result<(), String> {
        let pair = line.split_once('=');
        let (key, value) = pair.ok_or_else(|| format!("`{line}` is no `key = value`"))?;
        self.set(key.trim(), value.trim(), command)
    }

    fn set(&mut self, key: &str, value: &str, command: &clap::Command) -> Result<(), String> {
        if value.is_empty() {
            return Err(format!("`{key}` has no value"));
        }
        match key {
            DIRECTORY => self.directories.push(absolute(key, value)?),
            MOUNTPOINT if !self.mountpoint.as_os_str().is_empty() => {
                return Err(format!("`{key}` is given twice"));
            }
            MOUNTPOINT => self.mountpoint = absolute(key, value)?,
            OPTIONS => self.options.push(value.to_owned()),
            _ => self.set_flag(key, value, command)?,
        }
        Ok(())
    }

    fn set_flag(&mut self, key: &str, value: &str, command: &clap::Command) -> Result<(), String> {
        let mut known = keys(command);
        let flag = known
            .find(|flag| flag.get_long() == Some(key))
            .ok_or_else(|| format!("unknown key `{key}`; cauchyfs-volumes(5) lists all"))?;
        if flag.get_action().takes_values() {
            self.flags.push(format!("--{key}={value}").into());
            return Ok(());
        }
        match value {
            "yes" => self.flags.push(format!("--{key}").into()),
            "no" => {}
            _ => return Err(format!("`{key}` is yes or no, and not `{value}`")),
        }
        Ok(())
    }
}

/// Returns an absolute path. A service has no directory of its own that others would be relative to.
fn absolute(key: &str, value: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(value);
    if path.is_absolute() {
        return Ok(path);
    }
    Err(format!(
        "`{key}` must be an absolute path, and `{value}` is none"
    ))
}

/// Returns the options of `cauchyfs mount` that are keys.
fn keys(command: &clap::Command) -> impl Iterator<Item = &Arg> {
    let is_key = |flag: &&Arg| !["foreground", "verbose"].contains(&flag.get_id().as_str());
    flags(command).filter(is_key)
}

/// Returns the manual page of the files.
///
/// # Errors
///
/// If it cannot be written to memory.
pub(super) fn page() -> io::Result<Page> {
    let mut roff = Roff::new();
    roff.control("TH", ["CAUCHYFS-VOLUMES", "5", "", SOURCE, MANUAL]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(
        "cauchyfs-volumes - files that say how a CauchyFS volume is mounted",
    )]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([bold(format!("{HOME}/NAME.{END}"))]);
    roff.control("SH", ["DESCRIPTION"]);
    for text in [
        "The file NAME.conf says how `cauchyfs mount --volume NAME` and the service cauchyfs@NAME mount a volume.",
        "A line is a key, an equals sign and a value. The value ends with the line and is taken as it stands, without \
         quotes. Space around it does not count. Lines that begin with # or ; are comments, and empty lines do not count.",
        "Options that the command is given by itself override those of the file.",
    ] {
        roff.control("PP", []);
        roff.text([roman(text)]);
    }
    roff.control("SH", ["KEYS"]);
    let own = [
        (
            DIRECTORY,
            "DIR",
            "A directory of the volume, as an absolute path. One line for each.",
        ),
        (
            MOUNTPOINT,
            "DIR",
            "The place to mount at, as an absolute path.",
        ),
        (
            OPTIONS,
            "LIST",
            "Mount options separated by commas, as for -o; see cauchyfs-mount(1).",
        ),
    ];
    for (key, value, help) in own {
        add_key(&mut roff, key, value, help);
    }
    let command = mount_command();
    for flag in keys(&command) {
        let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
        let names = flag.get_value_names().unwrap_or_default();
        let value = match names.first() {
            Some(name) if flag.get_action().takes_values() => name.as_str(),
            _ => "yes|no",
        };
        add_key(&mut roff, flag.get_long().unwrap_or_default(), value, &help);
    }
    roff.control("SH", ["EXAMPLES"]);
    add_verbatim(&mut roff, EXAMPLE);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([
        bold("cauchyfs-mount"),
        roman("(1), "),
        bold("cauchyfs@.service"),
        roman("(8)"),
    ]);
    let mut text = Vec::new();
    roff.to_writer(&mut text)?;
    Ok(Page {
        name: "cauchyfs-volumes".to_owned(),
        section: 5,
        text,
    })
}

fn add_key(roff: &mut Roff, key: &str, value: &str, help: &str) {
    roff.control("TP", []);
    roff.text([bold(key), roman(" = "), italic(value)]);
    roff.text([roman(help.replace('\n', " "))]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_manual_page_is_a_file_that_can_be_read() {
        let file = parse(EXAMPLE).unwrap();
        assert_eq!(file.directories.len(), 4);
        assert_eq!(file.mountpoint, Path::new("/mnt/photos"));
        assert_eq!(file.options, ["noatime,allow_other"]);
        assert_eq!(
            file.flags,
            ["--cache-size=1GiB", "--wait-for-members=forever"]
        );
    }

    #[test]
    fn values_are_taken_as_they_stand_and_switches_are_yes_or_no() {
        let text =
            "; comment\n\n directory=/srv/a b = c # d \nmountpoint = /m\ntrust-members = yes\n";
        let file = parse(text).unwrap();
        assert_eq!(file.directories, [PathBuf::from("/srv/a b = c # d")]);
        assert_eq!(file.flags, ["--trust-members"]);
        assert!(parse(&text.replace("yes", "no")).unwrap().flags.is_empty());
    }

    #[test]
    fn a_wrong_line_is_refused_with_its_number() {
        for (line, words) in [
            ("directory", "no `key = value`"),
            ("directory = srv", "absolute"),
            ("directory =", "has no value"),
            ("cache_size = 1GiB", "unknown key `cache_size`"),
            ("foreground = yes", "unknown key"),
            ("report = yes", "unknown key"),
            ("volume = other", "unknown key"),
            ("trust-members = true", "yes or no"),
            ("mountpoint = /n", "given twice"),
        ] {
            let text = format!("directory = /a\nmountpoint = /m\n{line}\n");
            let (number, problem) = parse(&text).unwrap_err();
            assert_eq!(number, Some(3), "{line}");
            assert!(problem.contains(words), "{line}: {problem}");
        }
        assert!(
            parse("directory = /a")
                .unwrap_err()
                .1
                .contains("no `mountpoint`")
        );
        assert!(
            parse("mountpoint = /a")
                .unwrap_err()
                .1
                .contains("no `directory`")
        );
    }

    #[test]
    fn a_name_is_a_file_of_the_system_unless_it_has_a_slash() {
        assert_eq!(
            path_of("photos"),
            Path::new("/etc/cauchyfs/volumes/photos.conf")
        );
        assert_eq!(path_of("./photos"), Path::new("./photos"));
    }

    #[test]
    fn every_option_of_mount_that_a_file_can_have_is_on_the_page() {
        let text = String::from_utf8(page().unwrap().text).unwrap();
        let command = mount_command();
        let mut seen = 0;
        for long in keys(&command).filter_map(Arg::get_long) {
            assert!(text.contains(&long.replace('-', "\\-")), "{long}");
            seen += 1;
        }
        assert!(seen > 10, "{seen}");
    }
}
