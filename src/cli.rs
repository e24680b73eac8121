//! The command line: arguments, exit codes, daemon, control socket.
//!
//! Every command is a function from its arguments to an `Outcome` or a `Failure`; only [`run`] turns
//! those into exit codes and text on standard error.

mod args;
mod bench;
mod check;
mod control;
mod create;
mod daemon;
mod directories;
mod extract;
mod failure;
mod logging;
mod mount;
mod options;
mod report;
mod size;
mod status;
mod unmount;
mod volume;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Arguments, Command};
use failure::{Failure, Outcome};

/// Commands by name, to tell them from the source in `cauchyfs SOURCE MOUNTPOINT -o OPTIONS`.
const COMMANDS: [&str; 10] = [
    "create", "mount", "unmount", "status", "check", "extract", "scrub", "rebuild", "member",
    "bench",
];

/// Runs the program with the arguments that it was started with.
#[must_use]
pub fn run() -> ExitCode {
    let arguments = match Arguments::try_parse_from(canonical(std::env::args_os().collect())) {
        Ok(arguments) => arguments,
        Err(error) => return explain(&error),
    };
    match dispatch(arguments) {
        Ok(outcome) => outcome.into(),
        Err(failure) => {
            failure.print();
            failure.fault.into()
        }
    }
}

fn dispatch(arguments: Arguments) -> Result<Outcome, Failure> {
    let verbosity = arguments.verbose;
    match arguments.command {
        Command::Mount(mount) => mount::run(&mount, verbosity),
        command => {
            logging::to_stderr(verbosity);
            match command {
                Command::Create(create) => create::run(&create),
                Command::Unmount(unmount) => unmount::run(&unmount),
                Command::Status(status) => status::run(&status),
                Command::Check(check) => check::run(&check),
                Command::Extract(extract) => extract::run(&extract),
                Command::Scrub(_) => Err(later("scrub")),
                Command::Rebuild(_) => Err(later("rebuild")),
                Command::Member(_) => Err(later("member")),
                Command::Bench(bench) => bench::run(&bench),
                Command::Mount(_) => unreachable!("handled above"),
            }
        }
    }
}

fn later(command: &str) -> Failure {
    Failure::usage(format!("`cauchyfs {command}` comes with a later release"))
        .advise("this one has create, mount, unmount, status, check, extract and bench")
}

/// Turns what mount(8) calls us with into a `mount` command.
///
/// It runs `mount.fuse.cauchyfs SOURCE MOUNTPOINT [-sfnv] [-o OPTIONS] [-t TYPE]`, or by way of
/// `mount.fuse3` `cauchyfs SOURCE MOUNTPOINT -o OPTIONS`. The source is `DIR:DIR:...`, a colon in a
/// name written as `\:`.
fn canonical(given: Vec<OsString>) -> Vec<OsString> {
    let called_as_helper = given
        .first()
        .and_then(|program| Path::new(program).file_name())
        .is_some_and(|name| name == "mount.fuse.cauchyfs" || name == "mount.cauchyfs");
    let names_no_command = given.len() > 2
        && given[1].to_str().is_none_or(|first| {
            !first.starts_with('-') && first.contains('/') && !COMMANDS.contains(&first)
        });
    if !called_as_helper && !names_no_command {
        return given;
    }
    let mut arguments: Vec<OsString> = ["cauchyfs", "mount", "--fstab"].map(Into::into).into();
    let mut rest = given.into_iter().skip(1);
    let mut paths = Vec::new();
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            Some("-o") => {
                arguments.push(argument);
                arguments.extend(rest.next());
            }
            Some("-t" | "-N") => {
                rest.next();
            }
            Some("-v") => arguments.push(argument),
            // Sloppy, no mtab: neither means anything here.
            Some("-s" | "-n") => {}
            Some(flag) if flag.starts_with('-') => arguments.push(argument),
            _ => paths.push(argument),
        }
    }
    arguments.push("--".into());
    arguments.extend(paths);
    arguments
}

/// Prints help and versions as clap has them, and its complaints in our form.
fn explain(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            print!("{error}");
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            let given = given_command().map_or_else(String::new, |name| format!(" after `{name}`"));
            Failure::usage(format!("no command given{given}"))
                .advise(format!("`{}` lists the commands", help_command()))
                .print();
            failure::Fault::Usage.into()
        }
        _ => {
            complaint(&error.to_string()).print();
            failure::Fault::Usage.into()
        }
    }
}

/// Condenses clap's paragraphs: what it says first, on one line.
fn complaint(text: &str) -> Failure {
    let said = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    Failure::usage(said.trim_start_matches("error: ")).advise(format!(
        "`{}` shows how it is used, with examples",
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
    use clap::CommandFactory;

    use super::*;

    fn canonical_text(given: &str) -> String {
        let given = given.split(' ').map(OsString::from).collect();
        canonical(given)
            .iter()
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn the_definition_of_the_arguments_is_sound() {
        Arguments::command().debug_assert();
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

    #[test]
    fn both_ways_in_which_mount_calls_become_a_mount_command() {
        assert_eq!(
            canonical_text(
                "/sbin/mount.fuse.cauchyfs /a:/b /mnt -n -o rw,noatime -t fuse.cauchyfs"
            ),
            "cauchyfs mount --fstab -o rw,noatime -- /a:/b /mnt"
        );
        assert_eq!(
            canonical_text("cauchyfs /a:/b /mnt -o rw,dev,suid"),
            "cauchyfs mount --fstab -o rw,dev,suid -- /a:/b /mnt"
        );
    }

    #[test]
    fn commands_are_left_alone() {
        for given in [
            "cauchyfs status /mnt /mnt",
            "cauchyfs",
            "cauchyfs -v create /a",
            "cauchyfs /a",
        ] {
            assert_eq!(canonical_text(given), given);
        }
    }
}
