//! The command line: arguments, exit codes, daemon, control socket.
//!
//! Every command is a function from its arguments to an `Outcome` or a `Failure`; only [`run`] turns
//! those into exit codes and text on standard error. Only `terminal` prints.

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod abandoned;
mod alerts;
mod args;
mod balance;
mod bench;
mod check;
mod client;
mod completions;
mod create;
mod daemon;
mod dashboard;
mod devices;
mod directories;
mod events;
mod extract;
mod failure;
mod generator;
mod held;
mod helper;
mod logging;
mod manual;
mod member;
mod mount;
mod mounts;
mod options;
mod outage;
mod pause;
mod progress;
mod quota;
mod rebuild;
mod remount;
mod report;
mod sandbox;
mod scrub;
mod sentences;
mod service;
mod set;
mod shell;
mod size;
mod status;
mod superseded;
mod survey;
mod terminal;
mod time;
mod trust;
mod unmount;
mod usage;
mod version;
mod volume;
mod volume_file;
mod warnings;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use args::{Arguments, Command};
use failure::{Failure, Outcome};
use volume_file::VolumeFile;

use crate::control::alerts::delivery::mail;
use crate::control::alerts::entry as alerts_entry;
use crate::control::fault::Fault;
use crate::control::{mounter, process};

/// Commands by name, to tell them from the source in `cauchyfs SOURCE MOUNTPOINT -o OPTIONS`.
const COMMANDS: [&str; 21] = [
    "create",
    "mount",
    "unmount",
    "status",
    "usage",
    "events",
    "alerts",
    "dashboard",
    "check",
    "extract",
    "scrub",
    "rebuild",
    "balance",
    "pause",
    "resume",
    "set",
    "quota",
    "member",
    "bench",
    "completions",
    "man",
];

/// Runs the program with the arguments that it was started with.
#[must_use]
pub fn run() -> ExitCode {
    let given: Vec<OsString> = std::env::args_os().collect();
    if let Some(places) = mounter::asked_for(&given) {
        // Without the daemon's end there is nothing to be reported to.
        return match mounter::run(places) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => Fault::Environment.into(),
        };
    }
    if let Some(part) = alerts_entry::asked_for(&given) {
        return match alerts_entry::run(&part, alerts::wording) {
            Ok(code) => code.into(),
            Err(_) => Fault::Environment.into(),
        };
    }
    if mail::is_asked_for(&given) {
        return mail::run().into();
    }
    if let Some(code) = generator::run_if_asked(&given) {
        return code;
    }
    match completions::complete() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return explain(&error),
    }
    let arguments = match parse(&helper::canonical(given)) {
        Ok(arguments) => arguments,
        Err(error) => return explain(&error),
    };
    let is_daemon = matches!(&arguments.command, Command::Mount(mount) if mount.is_daemon());
    let code = match dispatch(arguments) {
        Ok(outcome) => outcome.exit_code(),
        Err(failure) => {
            failure.print();
            Failure::exit_code(failure.fault)
        }
    };
    let code = terminal::end(code);
    if is_daemon {
        process::end_process(code);
    }
    code.into()
}

/// Parses the command line. Flags of `mount` may stand among the options of `-o`, and in the file of a volume. They are put
/// in front of the other flags, each of which replaces an earlier one of its name.
fn parse(given: &[OsString]) -> Result<Arguments, clap::Error> {
    let arguments = Arguments::try_parse_from(given)?;
    let Command::Mount(mount) = &arguments.command else {
        return Ok(arguments);
    };
    let file = match &mount.service.volume {
        Some(name) => volume_file::read(&volume_file::path_of(name))
            .map_err(|problem| Arguments::command().error(ErrorKind::InvalidValue, problem))?,
        None => VolumeFile::default(),
    };
    let (flags, options) = options::take_flags(&[file.options, mount.options.clone()].concat())?;
    let flags = [file.flags, flags].concat();
    let command = given.iter().position(|word| word == "mount");
    let mut arguments = match command.filter(|_| !flags.is_empty()) {
        Some(command) => {
            let (before, after) = given.split_at(command + 1);
            Arguments::try_parse_from([before, &flags, after].concat())?
        }
        None => arguments,
    };
    if let Command::Mount(mount) = &mut arguments.command {
        mount.options = options;
        if !file.directories.is_empty() {
            mount.paths = [file.directories, vec![file.mountpoint]].concat();
        }
    }
    Ok(arguments)
}

fn dispatch(arguments: Arguments) -> Result<Outcome, Failure> {
    let verbosity = arguments.verbose;
    match arguments.command {
        // The options of a mount decide where it logs.
        Command::Mount(_) => {}
        Command::Check(_)
        | Command::Create(_)
        | Command::Events(_)
        | Command::Extract(_)
        | Command::Status(_) => {
            logging::to_stderr_if_asked(verbosity);
        }
        _ => logging::to_stderr(verbosity),
    }
    match arguments.command {
        Command::Mount(mount) => mount::run(&mount, verbosity),
        Command::Create(create) => create::run(&create),
        Command::Unmount(unmount) => unmount::run(&unmount),
        Command::Status(status) => status::run(&status),
        Command::Usage(usage) => usage::run(&usage),
        Command::Events(events) => events::run(&events),
        Command::Alerts(alerts) => alerts::run(&alerts),
        Command::Dashboard(dashboard) => dashboard::run(&dashboard),
        Command::Check(check) => check::run(&check),
        Command::Extract(extract) => extract::run(&extract),
        Command::Scrub(scrub) => scrub::run(&scrub),
        Command::Rebuild(rebuild) => rebuild::run(&rebuild),
        Command::Balance(balance) => balance::run(&balance),
        Command::Pause(pause) => pause::pause(&pause),
        Command::Resume(resume) => pause::resume(&resume),
        Command::Set(set) => set::run(&set),
        Command::Quota(quota) => quota::run(&quota),
        Command::Member(member) => member::run(&member),
        Command::Bench(bench) => bench::run(&bench),
        Command::Completions(completions) => completions::run(&completions),
        Command::Man(man) => manual::run(&man),
    }
}

/// Prints help and versions as clap has them, and its complaints in our form.
fn explain(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            terminal::report(&error.to_string());
            terminal::end(Outcome::Done.exit_code()).into()
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            let given = given_command().map_or_else(String::new, |name| format!(" after `{name}`"));
            Failure::usage(format!("no command given{given}"))
                .advise(format!("`{}` lists the commands", help_command()))
                .print();
            Fault::Usage.into()
        }
        _ => {
            complaint(&error.to_string()).print();
            Fault::Usage.into()
        }
    }
}

/// Condenses clap's paragraphs: what it says first, on one line, and the names that it proposes.
fn complaint(text: &str) -> Failure {
    let said = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    let tips = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("tip: "))
        .filter(|tip| tip.contains("similar"));
    let tips = tips.fold(String::new(), |tips, tip| tips + tip + "; ");
    Failure::usage(said.trim_start_matches("error: ")).advise(format!(
        "{tips}`{}` shows how it is used, with examples",
        help_command()
    ))
}

/// Returns the command that we were called with, if it is one.
fn given_command() -> Option<String> {
    let first = std::env::args().nth(1);
    first.filter(|first| COMMANDS.contains(&first.as_str()))
}

/// Returns what to type for help on the command that we were called with.
fn help_command() -> String {
    given_command().map_or_else(
        || "cauchyfs --help".to_owned(),
        |command| format!("cauchyfs {command} --help"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::CodeId;

    #[test]
    fn the_definition_of_the_arguments_is_sound() {
        Arguments::command().debug_assert();
    }

    /// A paragraph is wrapped to the width of the terminal, so it has no line breaks of its own. Examples and tables keep
    /// theirs.
    #[test]
    fn help_is_wrapped_once_and_its_examples_and_tables_fit_on_80_columns() {
        fn check(command: &clap::Command, seen: &mut usize) {
            let name = command.get_name();
            let help = command.get_after_help().map(ToString::to_string);
            for paragraph in help.unwrap_or_default().split("\n\n") {
                let is_kept = paragraph.lines().any(|line| line.starts_with("  "));
                let is_one_line = paragraph.lines().count() <= 1;
                assert!(is_kept || is_one_line, "{name}: {paragraph}");
                let mut lines = paragraph.lines().filter(|_| is_kept);
                let is_narrow = lines.all(|line| line.chars().count() <= 80);
                assert!(is_narrow, "{name}: {paragraph}");
                *seen += 1;
            }
            let below = command.get_subcommands();
            below.for_each(|command| check(command, seen));
        }
        let mut seen = 0;
        check(&Arguments::command(), &mut seen);
        assert!(seen > 40, "{seen}");
        let mut narrow = Arguments::command().term_width(80);
        narrow.build();
        let usage = narrow.find_subcommand_mut("usage").unwrap();
        let help = usage.render_long_help().to_string();
        assert!(
            help.lines().all(|line| line.chars().count() <= 80),
            "{help}"
        );
        let words = "counts them, but for the directories themselves.";
        assert!(help.replace('\n', " ").contains(words), "{help}");
    }

    #[test]
    fn the_nearest_names_are_proposed() {
        for (given, nearest) in [
            (["cauchyfs", "moutn"].as_slice(), "'mount'"),
            (
                &["cauchyfs", "mount", "--cache-siz", "1MiB"],
                "'--cache-size'",
            ),
        ] {
            let error = Arguments::try_parse_from(given).unwrap_err();
            let proposed = complaint(&error.to_string()).advice.unwrap_or_default();
            assert!(proposed.contains(nearest), "{proposed}");
        }
        let error = Arguments::try_parse_from(["cauchyfs", "mount", "--zzyzx"]).unwrap_err();
        let proposed = complaint(&error.to_string()).advice.unwrap_or_default();
        assert!(proposed.starts_with("`cauchyfs "), "{proposed}");
    }

    fn mount_arguments(given: &str) -> args::MountArguments {
        let given: Vec<OsString> = given.split(' ').map(OsString::from).collect();
        match parse(&helper::canonical(given)).unwrap().command {
            Command::Mount(mount) => *mount,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_of_a_mount_are_taken_from_the_options_unless_they_are_given_by_themselves() {
        let mount = mount_arguments(
            "mount.cauchyfs /a:/b /mnt -o rw,cache_size=1.5GiB,noatime,threads=3,rebuild-after=never,foreground",
        );
        assert_eq!((mount.cache_size, mount.threads), (3 << 29, 3));
        assert_eq!(mount.rebuild_after.0, None);
        assert!(mount.foreground && mount.fstab);
        assert_eq!(mount.options, ["rw,noatime"]);
        let mount =
            mount_arguments("cauchyfs -v mount --threads 2 -o threads=3,engine=cpu a b /mnt");
        assert_eq!((mount.threads, mount.engine.as_str()), (2, "cpu"));
        let wrong = ["cauchyfs", "mount", "-o", "threads=x", "a", "/mnt"].map(OsString::from);
        assert!(parse(&wrong).is_err());
    }

    #[test]
    fn the_file_of_a_volume_has_what_the_command_line_does_not_override() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("photos.conf");
        let text = "directory = /a\ndirectory = /b\nmountpoint = /mnt\noptions = ro,threads=5\n\
                    cache-size = 1GiB\nengine = cpu\n";
        std::fs::write(&path, text).unwrap();
        let given = format!("cauchyfs mount --engine scalar --volume {}", path.display());
        let mount = mount_arguments(&given);
        assert_eq!((mount.cache_size, mount.threads), (1 << 30, 5));
        assert_eq!(mount.engine, "scalar");
        assert_eq!(mount.options, ["ro"]);
        assert_eq!(
            mount.paths,
            ["/a", "/b", "/mnt"].map(std::path::PathBuf::from)
        );
        for wrong in [
            "cauchyfs mount --volume /none.conf",
            "cauchyfs mount --volume a /b /mnt",
        ] {
            let words: Vec<OsString> = wrong.split(' ').map(OsString::from).collect();
            assert!(parse(&words).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_help_of_create_lists_all_codes_with_their_limits() {
        let definition = Arguments::command();
        let create = definition.find_subcommand("create").unwrap();
        let code = create.get_arguments().find(|it| it.get_id() == "code");
        let help = code.and_then(clap::Arg::get_help).unwrap().to_string();
        for code in CodeId::all() {
            let (name, limit) = (code.name().unwrap(), code.max_shards().unwrap());
            assert!(help.contains(name), "{name}: {help}");
            assert!(help.contains(&format!(" {limit}")), "{limit}: {help}");
        }
    }

    #[test]
    fn every_command_is_listed_and_has_examples() {
        let definition = Arguments::command();
        let names: Vec<&str> = definition
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        assert_eq!(names, COMMANDS);
        for command in definition.get_subcommands() {
            let examples = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            let name = command.get_name();
            assert!(
                examples.starts_with("Examples:\n"),
                "{name} shows no examples"
            );
            assert!(
                examples.contains(&format!("cauchyfs {name}")),
                "{name}'s show another"
            );
        }
    }
}
