//! The reasons why a member is absent, and why a directory does not serve as a member.
//!
//! Each reason is a word with fields: it decides what happens, and crosses the control socket. [`fmt::Display`] is the
//! one place that puts a reason into a sentence.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::store::{Holder, StoreError, StoreErrorKind};

/// The reason why a member is absent, why an online member does not count yet, or why a directory is not usable as a
/// member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AbsenceReason {
    /// The member's directory was not given.
    NotGiven,
    /// There is no directory at its path.
    NoDirectory,
    /// Something hangs that was asked of the directory.
    Silent,
    /// The directory has nothing in it: its disk may not be mounted.
    Empty,
    /// The member was removed from the volume.
    Removed,
    /// The directory is no member of the volume any more.
    FormerMember,
    /// The directory has something in it, but nothing of a volume.
    ForeignContent {
        /// Something in it.
        found: String,
    },
    /// The directory is a member of another volume.
    OtherVolume {
        /// That volume.
        volume: Uuid,
    },
    /// The directory lacks its superblock, and its journal or index names another volume.
    ContentOfOtherVolume,
    /// The directory went on without the others, or has been away for too long to tell.
    MountedApart,
    /// The directory has been away for too long to be told from one that went on without the others.
    AwayTooLong,
    /// The directory came and went too often.
    Flapping,
    /// Another process has the directory.
    InUse {
        /// The process, if it is known.
        holder: Option<Holder>,
    },
    /// Something of a member is in the directory, but no superblock.
    SuperblockGone,
    /// The directory has a superblock that cannot be read.
    SuperblockDamaged {
        /// The damage, in words.
        detail: String,
    },
    /// The superblock is missing, and cannot be recovered.
    SuperblockUnrecoverable {
        /// The obstacle.
        obstacle: RecoveryObstacle,
    },
    /// The directory is a stale copy that is not verified yet.
    Unverified,
    /// The member was absent while the volume was written to.
    Stale {
        /// True if it stays so, because nothing may be written.
        read_only: bool,
    },
    /// An operation on the directory failed.
    Failed {
        /// The class of the failure.
        error: StoreErrorKind,
        /// The operation: a verb.
        action: String,
        /// The file inside the directory, or `"directory"`.
        file: String,
        /// The causes, in words.
        detail: String,
    },
    /// The volume does not take the directory, for a reason that has no word of its own.
    Refused {
        /// The reason, in words.
        detail: String,
    },
}

/// The obstacle to the recovery of a missing superblock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RecoveryObstacle {
    /// The contents of the directory cannot be read.
    Unreadable {
        /// The failure, in words.
        detail: String,
    },
    /// The volume may have gone on in the directory without the others.
    MayHaveGoneOn,
    /// The volume went on in the directory without the others, which suffice without it.
    WentOn,
    /// A member that is online holds the same shards.
    SameAsOnline {
        /// That member.
        member: u16,
    },
    /// Another directory without a superblock holds shards of the same member.
    Rival {
        /// That member.
        member: u16,
    },
    /// Nothing in the directory tells which member it is.
    Unidentified,
}

impl AbsenceReason {
    /// Returns the reason that a failed operation is.
    #[must_use]
    pub fn of_failure(error: &StoreError) -> Self {
        Self::Failed {
            error: error.kind(),
            action: error.action().to_owned(),
            file: error.name().to_owned(),
            detail: causes(error),
        }
    }

    /// Returns whether something of a member is there, but no superblock that can be read.
    #[must_use]
    pub fn is_missing_superblock(&self) -> bool {
        matches!(
            self,
            Self::SuperblockGone
                | Self::SuperblockDamaged { .. }
                | Self::SuperblockUnrecoverable { .. }
        )
    }
}

/// Returns the causes of a failure in one line, without the operation.
fn causes(error: &StoreError) -> String {
    let mut causes = Vec::new();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        causes.push(error.to_string());
        source = error.source();
    }
    causes.join(": ")
}

impl fmt::Display for AbsenceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::NotGiven => "not among the directories given",
            Self::NoDirectory => "does not exist",
            Self::Silent => "it does not answer",
            Self::Empty => "it is empty; is its disk mounted?",
            Self::Removed => "it was removed from the volume",
            Self::FormerMember => "what is there is no longer a member of the volume",
            Self::ContentOfOtherVolume => "what it holds is of another volume",
            Self::MountedApart => {
                "it was mounted apart from the others, or has been away for too long to tell; it is left as it is"
            }
            Self::AwayTooLong => {
                "it has been away for too long to be told from one mounted apart; empty it and replace it"
            }
            Self::Flapping => "it came and went, again and again",
            Self::SuperblockGone => "its superblock is gone",
            Self::Unverified => {
                "its directory is from an earlier time; what it holds counts once a scrub has verified it"
            }
            Self::Stale { read_only: false } => {
                "it was away while the volume was written to; it is being brought up to date"
            }
            Self::Stale { read_only: true } => {
                "it was away while the volume was written to; a mount that may write brings it up to date"
            }
            Self::InUse { holder: None } => "it is in use by another process",
            Self::Refused { detail } => detail,
            Self::InUse {
                holder: Some(holder),
            } => return write!(f, "it is in use by {holder}"),
            Self::ForeignContent { found } => {
                return write!(
                    f,
                    "what is there is no member of the volume: it has {found}"
                );
            }
            Self::OtherVolume { volume } => {
                return write!(f, "what is there is a member of another volume, {volume}");
            }
            Self::SuperblockDamaged { detail } => {
                return write!(f, "its superblock is damaged: {detail}");
            }
            Self::SuperblockUnrecoverable { obstacle } => {
                return write!(f, "its superblock is lost, and {obstacle}");
            }
            Self::Failed {
                action,
                file,
                detail,
                ..
            } => return write!(f, "cannot {action} {file}: {detail}"),
        };
        f.write_str(text)
    }
}

impl fmt::Display for RecoveryObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leave_it = "leave it as it is, and put another directory in its place with `cauchyfs member replace`";
        match self {
            Self::Unreadable { detail } => f.write_str(detail),
            Self::MayHaveGoneOn => write!(
                f,
                "it is unknown whether the volume went on there without the others; {leave_it}"
            ),
            Self::WentOn => write!(
                f,
                "it went on without those that have theirs, which are enough without it; {leave_it}"
            ),
            Self::SameAsOnline { member } => {
                write!(f, "it holds what member {member} does, which is there")
            }
            Self::Rival { member } => {
                write!(
                    f,
                    "another directory has what member {member} holds as well"
                )
            }
            Self::Unidentified => f.write_str("what it holds does not tell which member it is"),
        }
    }
}

/// A directory that was given, but is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// The directory.
    pub path: String,
    /// The reason.
    pub reason: AbsenceReason,
}

impl Unusable {
    /// Describes a directory without a superblock that cannot be recovered.
    #[must_use]
    pub fn without_recovery(path: String, obstacle: RecoveryObstacle) -> Self {
        let reason = AbsenceReason::SuperblockUnrecoverable { obstacle };
        Self { path, reason }
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Reasons with the words and fields that `status --json` and the control socket show.
    fn shown() -> Vec<(AbsenceReason, Value)> {
        let plain = [
            (AbsenceReason::NotGiven, "not_given"),
            (AbsenceReason::NoDirectory, "no_directory"),
            (AbsenceReason::Silent, "silent"),
            (AbsenceReason::Empty, "empty"),
            (AbsenceReason::Removed, "removed"),
            (AbsenceReason::FormerMember, "former_member"),
            (
                AbsenceReason::ContentOfOtherVolume,
                "content_of_other_volume",
            ),
            (AbsenceReason::MountedApart, "mounted_apart"),
            (AbsenceReason::AwayTooLong, "away_too_long"),
            (AbsenceReason::Flapping, "flapping"),
            (AbsenceReason::SuperblockGone, "superblock_gone"),
            (AbsenceReason::Unverified, "unverified"),
        ];
        let plain = plain.map(|(reason, word)| (reason, json!({ "kind": word })));
        let holder = Holder {
            pid: 9,
            program: "cauchyfs".to_owned(),
            is_held_up: true,
        };
        let source = std::io::Error::other("Input/output error");
        let failure = StoreError::new(StoreErrorKind::Io, "/srv/d2", "read", "index", source);
        let with_fields = [
            (
                AbsenceReason::ForeignContent {
                    found: "photo".to_owned(),
                },
                json!({"kind": "foreign_content", "found": "photo"}),
            ),
            (
                AbsenceReason::OtherVolume {
                    volume: Uuid::nil(),
                },
                json!({"kind": "other_volume", "volume": Uuid::nil().to_string()}),
            ),
            (
                AbsenceReason::InUse {
                    holder: Some(holder),
                },
                json!({"kind": "in_use",
                       "holder": {"pid": 9, "program": "cauchyfs", "is_held_up": true}}),
            ),
            (
                AbsenceReason::SuperblockDamaged {
                    detail: "no magic".to_owned(),
                },
                json!({"kind": "superblock_damaged", "detail": "no magic"}),
            ),
            (
                AbsenceReason::SuperblockUnrecoverable {
                    obstacle: RecoveryObstacle::Rival { member: 3 },
                },
                json!({"kind": "superblock_unrecoverable", "obstacle": {"kind": "rival", "member": 3}}),
            ),
            (
                AbsenceReason::Stale { read_only: true },
                json!({"kind": "stale", "read_only": true}),
            ),
            (
                AbsenceReason::of_failure(&failure),
                json!({"kind": "failed", "error": "io", "action": "read", "file": "index",
                       "detail": "Input/output error"}),
            ),
            (
                AbsenceReason::Refused {
                    detail: "why".to_owned(),
                },
                json!({"kind": "refused", "detail": "why"}),
            ),
        ];
        plain.into_iter().chain(with_fields).collect()
    }

    #[test]
    fn each_reason_has_a_stable_word_and_is_read_back_as_itself() {
        for (reason, value) in shown() {
            assert_eq!(serde_json::to_value(&reason).unwrap(), value, "{reason}");
            let read: AbsenceReason = serde_json::from_value(value).unwrap();
            assert_eq!(read, reason);
        }
    }

    #[test]
    fn a_failure_names_the_operation_the_file_and_the_cause_but_not_the_directory() {
        let source = std::io::Error::other("Input/output error");
        let failure = StoreError::new(StoreErrorKind::Io, "/srv/d2", "read", "index", source);
        let sentence = AbsenceReason::of_failure(&failure).to_string();
        assert_eq!(sentence, "cannot read index: Input/output error");
    }
}
