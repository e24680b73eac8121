//! The sentences about failures of a volume and of its daemon, and the advice for each.
//!
//! The daemon sends failures as words with fields, and commands put them into sentences here. Advice is a command that
//! can be pasted: it has the real paths, quoted for a shell.

use std::io;
use std::path::Path;

use super::failure::Failure;
use super::shell::quoted_path;
use super::size::format_size;
use crate::control::failure::{CodeStep, DaemonFailure};
use crate::control::fault::Fault;
use crate::control::volume_failure::VolumeFailure;
use crate::fuse::mount::MountError;

mod device;
pub(super) mod event;
mod remedy;

pub(super) use remedy::{UNLESS, give_to_root};

/// The word for a mountpoint in advice where it is not known.
const ANY_MOUNTPOINT: &str = "MOUNTPOINT";

/// Returns the mountpoint as a word of a command, or a word that stands for it.
pub(super) fn mountpoint_word(mountpoint: Option<&Path>) -> String {
    mountpoint.map_or_else(|| ANY_MOUNTPOINT.to_owned(), quoted_path)
}

impl VolumeFailure {
    /// Puts the failure into sentences; `mountpoint` is where the volume is mounted.
    pub(super) fn at(self, mountpoint: Option<&Path>) -> Failure {
        let advice = self
            .remedy
            .map(|remedy| remedy::advice(&remedy, mountpoint));
        Failure {
            fault: self.fault,
            message: self.error,
            advice,
        }
    }
}

impl From<VolumeFailure> for Failure {
    fn from(failure: VolumeFailure) -> Self {
        failure.at(None)
    }
}

impl DaemonFailure {
    /// Puts the failure of the daemon of a mount into sentences.
    pub(super) fn at(self, mountpoint: &Path) -> Failure {
        let place = quoted_path(mountpoint);
        match self {
            Self::TooManyCommands => too_many_commands(),
            Self::MountedReadOnly => Failure::environment("the volume is mounted to be read only")
                .advise(format!(
                    "`cauchyfs unmount {place}`, and mount it without `-o ro`"
                )),
            Self::Paused => Failure::environment("background work is paused")
                .advise(format!("`cauchyfs resume {place}` goes on with it; then try again")),
            Self::NoSuchMember { name } => {
                Failure::usage(format!("{name} is no member of the volume")).advise(format!(
                    "`cauchyfs status {place}` lists the members and their numbers"
                ))
            }
            Self::AlreadyDraining { member } => {
                Failure::usage(format!("member {member} is being drained already")).advise(format!(
                    "`cauchyfs rebuild {place}` shows how far that is; `cauchyfs member add {place} DIR` takes in another \
                     directory"
                ))
            }
            Self::OutOfReach { failure } => Failure::environment(format!(
                "{}: a member belongs to another user, so the daemon opens only the directories that it was mounted with",
                failure.error
            ))
            .advise("unmount, give all members to the user who mounts, and mount without `--trust-members`"),
            Self::ReplacedInPart {
                directory,
                member,
                old,
                is_draining,
                failure,
            } => {
                let what = if is_draining {
                    "is being drained"
                } else {
                    "stays"
                };
                let why = &failure.error;
                let message =
                    format!("{directory} is member {member} now, and member {old} {what}: {why}");
                Failure {
                    message,
                    ..failure.at(Some(mountpoint))
                }
                .advise(format!(
                    "make room, and `cauchyfs member remove {place} {old}`; or `cauchyfs member remove {place} {member}` \
                     takes the new one out again"
                ))
            }
            Self::ClosedInPart { failure } => {
                let why = &failure.error;
                let message = format!("it is unmounted, perhaps without its last changes: {why}");
                Failure {
                    message,
                    ..failure.at(Some(mountpoint))
                }
                .advise(
                    "see that its directories are there, and mount it again: what was synced is on them",
                )
            }
            Self::VolumeAway => {
                Failure::environment("too many members of the volume are away").advise(format!(
                    "bring them back: the volume then goes on by itself; `cauchyfs status {place}` names them"
                ))
            }
            Self::Busy => Failure::environment(
                "another command works on the volume, and nothing is changed",
            )
            .advise("end it first if it is a scrub, which takes long, or try again"),
            Self::NotReopened { failure } => {
                let why = failure.map_or_else(String::new, |failure| format!(": {}", failure.error));
                Failure::environment(format!(
                    "the volume was closed to change its code, and is not open again yet{why}"
                ))
                .advise(format!(
                    "the daemon goes on trying; `cauchyfs status {place}` shows the code, and what the volume lacks"
                ))
            }
            Self::TooLittleRoom { lacking } => Failure::environment(format!(
                "there is too little room: {} of shards would find none",
                format_size(lacking)
            ))
            .advise(format!(
                "delete something, or add another directory with `cauchyfs member add {place} DIR`"
            )),
            Self::CodeOrderUnderWay => code_order_under_way(&place),
            Self::UnknownDirectoryCode { class } => unknown_code(class, &place),
            Self::DirectoryCode { problem, step } => {
                Failure::usage(problem).advise(code_advice(&step, &place))
            }
            Self::TooLittleRoomToRewrite { lacking, away } => {
                too_little_room_to_rewrite(lacking, &away, &place)
            }
            Self::BadCode { problem } => Failure::usage(problem).advise(
                "`cauchyfs create --help` lists the codes, and how many shards each can have",
            ),
            Self::NotUnmounted { refusal } => mount_failure(&refusal.at(mountpoint)),
            Self::Volume { failure } => failure.at(Some(mountpoint)),
        }
    }
}

/// Says that files find no room in another code. Members that are away may have some.
fn too_little_room_to_rewrite(lacking: u64, away: &[u16], place: &str) -> Failure {
    let absent: Vec<String> = away.iter().map(|it| format!("member {it}")).collect();
    let (without, bring_back) = if absent.is_empty() {
        (String::new(), "")
    } else {
        let without = format!(" without {}, which may have room", absent.join(", "));
        (without, "bring back what is away, ")
    };
    Failure::environment(format!(
        "there is too little room to rewrite the files: {} of shards would find none{without}",
        format_size(lacking)
    ))
    .advise(format!(
        "{bring_back}delete something, add another directory with `cauchyfs member add {place} DIR`, or leave --rewrite out: then only \
         new files have the code"
    ))
}

fn code_order_under_way(place: &str) -> Failure {
    Failure::environment("another command changes a code of the volume, and nothing is changed")
        .advise(format!(
            "try again once it has ended; `cauchyfs set --show {place}` shows the codes"
        ))
}

fn unknown_code(class: u8, place: &str) -> Failure {
    let message = format!(
        "the code of the directory is not known: the record of class {class} of stripes is missing or damaged"
    );
    Failure {
        fault: Fault::Unreadable,
        ..Failure::environment(message)
    }
    .advise(format!(
        "`cauchyfs set --path DIR --data K --parity M {place}` gives the directory another code; `cauchyfs check` of the \
         unmounted volume says more"
    ))
}

/// Puts the step that helps with the code of a directory into one line.
fn code_advice(step: &CodeStep, place: &str) -> String {
    match step {
        CodeStep::RaiseVolume { losses, most } => format!(
            "raise the parity of the volume first, with `cauchyfs set --parity {losses} --code rs-cauchy {place}`, or choose \
             a code that survives at most {most}"
        ),
        CodeStep::MoreParity => {
            "give it more parity shards, or --code rs-cauchy, which survives a loss for each"
                .to_owned()
        }
        CodeStep::FewerDataShards { most } => format!(
            "choose at most {most} data shards, or lengthen the stripes of the volume first, with `cauchyfs set \
             --stripe-unit SIZE {place}`, which rewrites all data"
        ),
        CodeStep::KnownCode { codes } => {
            format!(
                "choose one that the volume or its directories had: {}",
                codes.join(", ")
            )
        }
        CodeStep::ChangeDirectories => format!(
            "change them first, each with `cauchyfs set --path DIR --data K --parity M --rewrite {place}`: those that \
             `cauchyfs set --show {place}` names, and any that files with that code were moved to or left in"
        ),
        CodeStep::OtherDirectory => "name a directory of the volume that is there".to_owned(),
    }
}

/// Says that a daemon answers as many commands as it can.
pub(super) fn too_many_commands() -> Failure {
    Failure::environment("the daemon is answering too many commands").advise("try again")
}

/// Puts an error of mounting or unmounting into sentences.
pub(super) fn mount_failure(error: &MountError) -> Failure {
    let failure = Failure::environment(error);
    match error {
        MountError::Device(cause) if cause.kind() == io::ErrorKind::PermissionDenied => {
            failure.advise(device::on_access())
        }
        MountError::Device(_) => failure.advise(device::LOAD_MODULE),
        MountError::NoHelper(_) => {
            failure.advise("install the package fuse3, or mount as the superuser")
        }
        // The helper is a program of the system, and has no other way to say it.
        MountError::Helper(said) => match device::on_helper(said) {
            Some(advice) => failure.advise(advice),
            None => failure,
        },
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::mount_refusal::MountRefusal;
    use crate::membership::{Remedy, VolumeStep};

    fn no_space() -> VolumeFailure {
        VolumeFailure {
            error: "no space left on the members".to_owned(),
            fault: Fault::Environment,
            remedy: Some(Remedy::from(VolumeStep::MakeRoom)),
        }
    }

    /// Failures, and the exit code of a command that meets each.
    fn failures() -> Vec<(DaemonFailure, u8)> {
        let name = "/srv/d9".to_owned();
        let directory = "/srv/e2".to_owned();
        let replaced = |is_draining| DaemonFailure::ReplacedInPart {
            directory: directory.clone(),
            member: 6,
            old: 2,
            is_draining,
            failure: no_space(),
        };
        let failure = no_space();
        let refusal = MountRefusal::NotOurs;
        vec![
            (DaemonFailure::TooManyCommands, 2),
            (DaemonFailure::MountedReadOnly, 2),
            (DaemonFailure::Paused, 2),
            (DaemonFailure::NoSuchMember { name }, 1),
            (DaemonFailure::AlreadyDraining { member: 2 }, 1),
            (
                DaemonFailure::OutOfReach {
                    failure: failure.clone(),
                },
                2,
            ),
            (replaced(true), 2),
            (replaced(false), 2),
            (
                DaemonFailure::ClosedInPart {
                    failure: failure.clone(),
                },
                2,
            ),
            (DaemonFailure::NotUnmounted { refusal }, 2),
            (
                DaemonFailure::NotReopened {
                    failure: Some(failure.clone()),
                },
                2,
            ),
            (DaemonFailure::Busy, 2),
            (DaemonFailure::TooLittleRoom { lacking: 5 << 20 }, 2),
            (
                DaemonFailure::TooLittleRoomToRewrite {
                    lacking: 5 << 20,
                    away: vec![3, 5],
                },
                2,
            ),
            (
                DaemonFailure::BadCode {
                    problem: "unknown code".to_owned(),
                },
                1,
            ),
            (DaemonFailure::CodeOrderUnderWay, 2),
            (DaemonFailure::UnknownDirectoryCode { class: 9 }, 2),
            (DaemonFailure::Volume { failure }, 2),
        ]
    }

    #[test]
    fn the_room_that_a_rewriting_lacks_is_told_with_the_members_that_may_have_it() {
        let said = |away: &[u16]| {
            let failure = too_little_room_to_rewrite(5 << 20, away, "/mnt");
            (failure.message, failure.advice.unwrap_or_default())
        };
        let (message, advice) = said(&[]);
        assert!(message.ends_with("5.0 MiB of shards would find none"));
        assert!(advice.starts_with("delete something"), "{advice}");
        let (message, advice) = said(&[3, 5]);
        let without =
            "5.0 MiB of shards would find none without member 3, member 5, which may have room";
        assert!(message.ends_with(without), "{message}");
        assert!(advice.starts_with("bring back what is away, "), "{advice}");
        assert!(advice.contains("or leave --rewrite out"), "{advice}");
    }

    #[test]
    fn each_failure_of_a_daemon_crosses_the_socket_and_gets_one_line_and_one_of_advice() {
        for (failure, code) in failures() {
            let line = serde_json::to_string(&failure).unwrap();
            let read: DaemonFailure = serde_json::from_str(&line).unwrap();
            assert_eq!(read, failure, "{line}");
            let failure = failure.at(Path::new("/mnt/my photos"));
            assert_eq!(Failure::exit_code(failure.fault), code, "{failure:?}");
            let advice = failure.advice.unwrap_or_default();
            for text in [&failure.message, &advice] {
                assert!(
                    !text.contains('\n') && !text.contains("MOUNTPOINT"),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn each_refusal_of_a_code_has_advice_of_its_own() {
        let codes = vec!["5+1 rs-cauchy".to_owned(), "1+1 rs-cauchy".to_owned()];
        let steps = [
            (
                CodeStep::RaiseVolume { losses: 3, most: 2 },
                "`cauchyfs set --parity 3 --code rs-cauchy '/mnt/my photos'`",
            ),
            (CodeStep::MoreParity, "more parity shards"),
            (
                CodeStep::FewerDataShards { most: 8 },
                "at most 8 data shards",
            ),
            (
                CodeStep::KnownCode { codes },
                "5+1 rs-cauchy, 1+1 rs-cauchy",
            ),
            (
                CodeStep::ChangeDirectories,
                "`cauchyfs set --show '/mnt/my photos'` names, and",
            ),
            (CodeStep::OtherDirectory, "a directory of the volume"),
        ];
        let mut all = std::collections::BTreeSet::new();
        for (step, expected) in steps {
            let failure = DaemonFailure::DirectoryCode {
                problem: "a problem".to_owned(),
                step,
            };
            let line = serde_json::to_string(&failure).unwrap();
            assert_eq!(
                serde_json::from_str::<DaemonFailure>(&line).unwrap(),
                failure
            );
            let failure = failure.at(Path::new("/mnt/my photos"));
            assert_eq!(Failure::exit_code(failure.fault), 1);
            let advice = failure.advice.unwrap();
            assert!(
                advice.contains(expected) && !advice.contains('\n'),
                "{advice}"
            );
            all.insert(advice);
        }
        assert_eq!(all.len(), 6);
    }

    #[test]
    fn a_volume_without_room_is_said_to_need_a_directory_at_its_mountpoint() {
        let failure = DaemonFailure::from(no_space()).at(Path::new("/mnt/my photos"));
        assert_eq!(failure.message, "no space left on the members");
        assert_eq!(
            failure.advice.as_deref(),
            Some(
                "delete something, or add another directory with `cauchyfs member add '/mnt/my photos' DIR`"
            )
        );
    }
}
