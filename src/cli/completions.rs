//! `cauchyfs completions`, and the completion of a command line.
//!
//! The script of a shell asks the program itself, with the variable [`VARIABLE`] set. So the words come from the
//! definition of the arguments, and the mountpoints, members and codes are those of this moment.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Arg, Args, Command, CommandFactory, ValueEnum, ValueHint};
use clap_complete::CompleteEnv;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::Shells;

use super::args::Arguments;
use super::client::{self, Peer};
use super::failure::{Failure, Outcome};
use super::terminal;
use crate::codec::{self, CodeId};
use crate::control::exchange::{BRIEF_TIMEOUT, Limits};
use crate::control::protocol::{Answer, Request};
use crate::control::report::StatusReport;
use crate::fuse::mountinfo::{self, MountEntry};

/// The variable with which a shell asks for completion; it names the shell.
const VARIABLE: &str = "CAUCHYFS_COMPLETE";

/// The name of the program in the scripts.
const PROGRAM: &str = "cauchyfs";

/// The addition to the script for zsh. zsh loads the file at the first completion, and runs it for that.
const FIRST_OF_ZSH: &str = r#"
if [[ "$funcstack[1]" == "_cauchyfs" ]]; then
    _clap_dynamic_completer_cauchyfs "$@"
fi
"#;

/// The addition to the script for bash. Readline passes a word as it was typed, and inserts names as they are given. So this
/// takes quotes off before, and puts them on after.
const QUOTES_OF_BASH: &str = r#"
# Sets REPLY to a word without its quotes.
_cauchyfs_unquote() {
    local rest=$1 plain=
    case $rest in
        \'*) rest=${rest#\'}; REPLY=${rest%\'} ;;
        \"*) rest=${rest#\"}; REPLY=${rest%\"} ;;
        *)
            while [[ $rest == *\\* ]]; do
                plain+=${rest%%\\*} rest=${rest#*\\}
                plain+=${rest:0:1} rest=${rest:1}
            done
            REPLY=$plain$rest
            ;;
    esac
}
_cauchyfs() {
    local REPLY index current=$2
    local -a typed=("${COMP_WORDS[@]}")
    for index in "${!COMP_WORDS[@]}"; do
        _cauchyfs_unquote "${COMP_WORDS[index]}"
        typed[index]=$REPLY
    done
    _cauchyfs_unquote "$current"
    local -a COMP_WORDS=("${typed[@]}")
    _clap_complete_cauchyfs "$1" "$REPLY" "$3"
    # Readline closes a quote that is open.
    case $current in
        [\'\"]*) return ;;
    esac
    for index in "${!COMPREPLY[@]}"; do
        printf -v "COMPREPLY[index]" %q "${COMPREPLY[index]}"
    done
}
"#;

/// Print the completion of a shell, which completes commands, options, mountpoints, members, codes and engines.
/// Packages install it; by hand, put the line of your shell below into its start-up file.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  source <(cauchyfs completions bash)                 # in ~/.bashrc
  source <(cauchyfs completions zsh)  # in ~/.zshrc, after compinit
  cauchyfs completions fish | source  # in ~/.config/fish/config.fish")]
pub(super) struct CompletionsArguments {
    /// The shell.
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// A shell with completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Zsh => "zsh",
            Self::Fish => "fish",
        }
    }
}

/// Prints the script of a shell.
///
/// # Errors
///
/// If there is no such script.
pub(super) fn run(arguments: &CompletionsArguments) -> Result<Outcome, Failure> {
    let script = script(arguments.shell).map_err(Failure::environment)?;
    terminal::report(&script);
    Ok(Outcome::Done)
}

fn script(shell: Shell) -> std::io::Result<String> {
    let shells = Shells::builtins();
    let completer = shells
        .completer(shell.name())
        .ok_or_else(|| std::io::Error::other(format!("no completion for {}", shell.name())))?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)?;
    if shell == Shell::Zsh {
        script.extend(FIRST_OF_ZSH.as_bytes());
    }
    let script = String::from_utf8(script).map_err(std::io::Error::other)?;
    if shell == Shell::Bash {
        let register = "-F _clap_complete_cauchyfs cauchyfs";
        return Ok(QUOTES_OF_BASH.to_owned() + &script.replace(register, "-F _cauchyfs cauchyfs"));
    }
    Ok(script)
}

/// Completes the command line that a shell passes, and prints that. Returns whether a shell asked.
///
/// # Errors
///
/// If the shell is unknown.
pub(super) fn complete() -> Result<bool, clap::Error> {
    let here = env::current_dir().ok();
    CompleteEnv::with_factory(definition)
        .var(VARIABLE)
        .try_complete(env::args_os(), here.as_deref())
}

/// Returns the definition of the arguments, with what completes their values.
fn definition() -> Command {
    with_completers(Arguments::command())
}

fn with_completers(command: Command) -> Command {
    command
        .mut_args(with_completer)
        .mut_subcommands(with_completers)
}

/// Adds what completes the values of an argument. The name of a value says what it is; clap completes paths by itself.
fn with_completer(argument: Arg) -> Arg {
    let names = argument.get_value_names().unwrap_or_default();
    let name = names.first().map_or("", |name| name.as_str());
    let id = argument.get_id().as_str();
    match (id, name) {
        ("member" | "old", _) => argument.add(ArgValueCompleter::new(members)),
        (_, "CODE") => argument.add(ArgValueCompleter::new(codes)),
        (_, "ENGINE") => argument.add(ArgValueCompleter::new(engines)),
        (_, name) if name.starts_with("MOUNTPOINT") => {
            argument.add(ArgValueCompleter::new(mountpoints))
        }
        (_, name) if name.starts_with("DIR") || ["NEW", "OUT"].contains(&name) => {
            argument.add(ArgValueCompleter::new(directories))
        }
        // clap would offer files by itself, whatever their names.
        _ if matches!(
            argument.get_value_hint(),
            ValueHint::Unknown | ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath
        ) && argument.get_action().takes_values()
            && argument.get_possible_values().is_empty() =>
        {
            argument.add(ArgValueCompleter::new(files))
        }
        _ => argument,
    }
}

/// Returns the mounts of volumes on this machine.
fn mounts() -> impl Iterator<Item = MountEntry> {
    let mounts = mountinfo::mounts().unwrap_or_default();
    mounts.into_iter().filter(MountEntry::is_ours)
}

/// Returns mountpoints of volumes, and the directories that are meant if it is none of them.
fn mountpoints(current: &OsStr) -> Vec<CompletionCandidate> {
    let places = mounts().map(|mount| (mount.mountpoint.into_os_string(), None));
    let found = matching(current, places);
    if !found.is_empty() {
        return found;
    }
    directories(current)
}

/// Returns the names of erasure codes.
fn codes(current: &OsStr) -> Vec<CompletionCandidate> {
    let names = CodeId::all().filter_map(|code| Some((code.name().ok()?.into(), None)));
    matching(current, names)
}

/// Returns the names of coding engines that `--engine` takes on this machine.
fn engines(current: &OsStr) -> Vec<CompletionCandidate> {
    let of_cpu = codec::engines().map(codec::Engine::name);
    let names = ["auto", "cpu", "cuda"].into_iter().chain(of_cpu);
    matching(current, names.map(|name| (name.into(), None)))
}

/// Returns the members of the mounts that the command line names, by number and by path; none if it names no mount.
fn members(current: &OsStr) -> Vec<CompletionCandidate> {
    let words: Vec<PathBuf> = env::args_os()
        .filter_map(|word| std::path::absolute(word).ok())
        .collect();
    let asked: Vec<_> = mounts()
        .filter(|mount| words.contains(&mount.mountpoint))
        .collect();
    let reports = asked.iter().filter_map(status);
    let found: Vec<_> = reports
        .flat_map(|report| names_of_members(&report))
        .collect();
    matching(current, found.into_iter())
}

/// Returns numbers and paths of members, with an explanation each.
fn names_of_members(report: &StatusReport) -> Vec<(OsString, Option<String>)> {
    let of_member = report.members.iter().flat_map(|member| {
        let path = member.path.clone();
        let shown = path.as_deref().unwrap_or("its directory is unknown");
        let number = (
            OsString::from(member.index.to_string()),
            Some(shown.to_owned()),
        );
        let path = path.map(|path| (path.into(), Some(format!("member {}", member.index))));
        [Some(number), path]
    });
    of_member.flatten().collect()
}

/// Asks the daemon of a mount for its members. One that does not answer soon has none here.
fn status(mount: &MountEntry) -> Option<StatusReport> {
    let found = client::find_peer(&mount.mountpoint, Some(mount), BRIEF_TIMEOUT);
    let Ok(Peer::Daemon(daemon)) = found else {
        return None;
    };
    let limits = Limits {
        line: Some(BRIEF_TIMEOUT),
        answer: Some(BRIEF_TIMEOUT),
        ..Limits::of(&Request::Status, false)
    };
    match client::ask_within(daemon, &Request::Status, &limits, |_| {}) {
        Ok(Answer::Status(report)) => Some(*report),
        _ => None,
    }
}

/// Says that a name has no meaning of its own to a shell that inserts it, at worst several words. The scripts quote spaces,
/// but a shell may still have an older one. Anyone may choose the name of a mountpoint, or of a directory.
fn is_harmless(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    bytes
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || b"_./:@%+,=- ".contains(byte))
}

/// Returns directories that begin with what is typed.
fn directories(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut found = PathCompleter::dir().complete(current);
    found.retain(|candidate| is_harmless(candidate.get_value()));
    found
}

/// Returns files and directories that begin with what is typed.
fn files(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut found = PathCompleter::any().complete(current);
    found.retain(|candidate| is_harmless(candidate.get_value()));
    found
}

/// Returns those names that begin with what is typed, and that are harmless.
fn matching(
    current: &OsStr,
    names: impl Iterator<Item = (OsString, Option<String>)>,
) -> Vec<CompletionCandidate> {
    let typed = current.as_encoded_bytes();
    names
        .filter(|(name, _)| name.as_encoded_bytes().starts_with(typed))
        .filter(|(name, _)| is_harmless(name))
        .map(|(name, help)| {
            let help = help.map(|help| terminal::Escaped(help).to_string().into());
            CompletionCandidate::new(name).help(help)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the completions of the last of `words`.
    fn completed(words: &[&str]) -> Vec<String> {
        let mut definition = definition();
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let last = words.len() - 1;
        let found = clap_complete::engine::complete(&mut definition, words, last, None).unwrap();
        let values = found.iter().map(CompletionCandidate::get_value);
        values
            .map(|value| value.to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn codes_and_engines_are_completed_for_every_command_that_takes_them() {
        for words in [
            &["cauchyfs", "create", "--code", "rs-"][..],
            &["cauchyfs", "set", "--code", "rs-"],
        ] {
            assert_eq!(completed(words), ["rs-cauchy", "rs-fft"], "{words:?}");
        }
        let engines = completed(&["cauchyfs", "mount", "--engine", "s"]);
        assert!(engines.contains(&"scalar".to_owned()), "{engines:?}");
        assert_eq!(
            completed(&["cauchyfs", "mount", "--engine", "cu"]),
            ["cuda"]
        );
    }

    #[test]
    fn commands_and_options_are_completed_and_hidden_ones_are_not() {
        let commands = completed(&["cauchyfs", "re"]);
        assert_eq!(commands, ["rebuild", "resume"]);
        let changes = completed(&["cauchyfs", "member", "re"]);
        assert_eq!(changes, ["replace", "remove"]);
        let options = completed(&["cauchyfs", "mount", "--re"]);
        assert_eq!(options, ["--rebuild-after"], "and not --report");
        assert!(
            completed(&["cauchyfs", "mount", "--member-t"])
                .contains(&"--member-timeout".to_owned())
        );
    }

    #[test]
    fn every_value_that_names_a_place_or_a_member_has_a_completer() {
        fn check(command: &Command, seen: &mut usize) {
            for argument in command.get_arguments() {
                let name = argument.get_value_names().unwrap_or_default();
                let name = name.first().map_or("", |name| name.as_str());
                if ["MOUNTPOINT", "DIR", "OLD", "CODE", "ENGINE"]
                    .iter()
                    .any(|known| name.starts_with(known))
                {
                    let id = argument.get_id();
                    let has = argument.get::<ArgValueCompleter>().is_some();
                    assert!(has, "{} {id}: {name}", command.get_name());
                    *seen += 1;
                }
            }
            command
                .get_subcommands()
                .for_each(|command| check(command, seen));
        }
        let mut seen = 0;
        check(&definition(), &mut seen);
        assert!(seen > 25, "{seen}");
    }

    #[test]
    fn a_name_that_acts_on_a_terminal_or_a_shell_is_not_offered() {
        let names = [
            "/mnt/a",
            "/mnt/\u{1b}[2J",
            "/srv",
            "/mnt/a b$(touch x)*",
            "/mnt/`x`",
            "/mnt/a;b",
            "/mnt/~",
            "/mnt/a\\b",
            "/mnt/'",
        ];
        let names = names.map(|name| (name.into(), None));
        let found = matching(OsStr::new("/mnt"), names.into_iter());
        let found: Vec<_> = found.iter().map(CompletionCandidate::get_value).collect();
        assert_eq!(found, ["/mnt/a"]);
    }

    #[test]
    fn a_directory_whose_name_is_a_command_is_not_offered_for_any_argument() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("a b$(touch x)*")).unwrap();
        std::fs::create_dir(home.path().join("ab")).unwrap();
        let typed = format!("{}/a", home.path().display());
        for before in [
            &["status"][..],
            &["mount"],
            &["unmount"],
            &["create"],
            &["mount", "--log-file"],
            &["mount", "--volume"],
            &["man", "--to"],
        ] {
            let words = [&["cauchyfs"], before, &[&typed]].concat();
            let found = completed(&words);
            assert!(
                found.iter().all(|name| !name.contains('$')),
                "{words:?}: {found:?}"
            );
        }
        let found = completed(&["cauchyfs", "status", &typed]);
        assert!(found.iter().any(|name| name.contains("/ab")), "{found:?}");
    }

    #[test]
    fn the_script_of_each_shell_calls_the_program_with_the_variable() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell).unwrap();
            assert!(script.contains(VARIABLE), "{script}");
        }
        // Both registrations of the script for bash, for its older and newer versions.
        let script = script(Shell::Bash).unwrap();
        assert_eq!(
            script.matches("-F _cauchyfs cauchyfs").count(),
            2,
            "{script}"
        );
        assert!(!script.contains("-F _clap"), "{script}");
    }
}
