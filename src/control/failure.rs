//! The failures that a daemon answers with: words with fields, which the command puts into sentences.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::mount_refusal::MountRefusal;
use super::volume_failure::VolumeFailure;
use crate::fuse::one_line;

/// The reason why a daemon did not do what a command asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum DaemonFailure {
    /// The daemon answers as many commands as it can.
    TooManyCommands,
    /// The volume is mounted read-only.
    MountedReadOnly,
    /// Background work pauses on order, and so would the work that was asked for.
    Paused,
    /// The volume has no such member.
    NoSuchMember {
        /// The path or number that was given.
        name: String,
    },
    /// The member is being drained already.
    AlreadyDraining {
        /// Its number.
        member: u16,
    },
    /// The daemon cannot open a directory, because it opens only those that it was mounted with.
    OutOfReach {
        /// The failure to open it.
        failure: VolumeFailure,
    },
    /// A directory became a member, and the one that it replaces does not leave as it was to.
    ReplacedInPart {
        /// The directory.
        directory: String,
        /// The member that it is now.
        member: u16,
        /// The member that it replaces.
        old: u16,
        /// True if that one is being drained.
        is_draining: bool,
        /// The failure.
        failure: VolumeFailure,
    },
    /// The volume is unmounted, and was not closed in good order.
    ClosedInPart {
        /// The failure.
        failure: VolumeFailure,
    },
    /// The volume could not be unmounted.
    NotUnmounted {
        /// The refusal of the kernel or of the helper.
        refusal: MountRefusal,
    },
    /// Too many members are away. The volume goes on once enough are back.
    VolumeAway,
    /// The volume cannot be stopped for a moment, because another command works on it, such as a scrub.
    Busy,
    /// The volume was closed to change its code, and is not open again yet.
    NotReopened {
        /// The failure, if it is known.
        failure: Option<VolumeFailure>,
    },
    /// The members have too little room for the shards of another code.
    TooLittleRoom {
        /// The bytes of shards that find no room.
        lacking: u64,
    },
    /// A directory cannot have a code, or the volume cannot have one beside those of its directories.
    DirectoryCode {
        /// The problem.
        problem: String,
        /// The step that helps.
        step: CodeStep,
    },
    /// The code of a directory is not known, because its record is missing or damaged.
    UnknownDirectoryCode {
        /// The class of stripes that the directory names.
        class: u8,
    },
    /// Another command changes a code of the volume.
    CodeOrderUnderWay,
    /// The members have too little room for files in another code.
    TooLittleRoomToRewrite {
        /// The bytes of shards that find no room.
        lacking: u64,
        /// The members that are away, and may have room.
        #[serde(default)]
        away: Vec<u16>,
    },
    /// A code, or a number of shards, that makes no sense.
    BadCode {
        /// The problem.
        problem: String,
    },
    /// An operation on the volume failed.
    Volume {
        /// The failure.
        failure: VolumeFailure,
    },
}

impl From<VolumeFailure> for DaemonFailure {
    fn from(failure: VolumeFailure) -> Self {
        Self::Volume { failure }
    }
}

/// The step that helps with the code of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CodeStep {
    /// Raise the parity of the volume first, or choose a code that survives less.
    RaiseVolume {
        /// The losses that the wanted code survives.
        losses: usize,
        /// The losses that a code of a directory may survive at present.
        most: usize,
    },
    /// Choose a code that survives a loss.
    MoreParity,
    /// Choose fewer data shards, or longer stripes of the volume.
    FewerDataShards {
        /// The most that fit.
        most: usize,
    },
    /// Choose the code of the volume, or one that its directories had before.
    KnownCode {
        /// Their names.
        codes: Vec<String>,
    },
    /// Give the directories that have such a code another one first.
    ChangeDirectories,
    /// Name a directory that is there.
    OtherDirectory,
}

/// The reason why the last changes of a mount that was taken away may not be durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum NotDurable {
    /// The daemon did not unmount: no program has synced the writes that the kernel holds.
    TakenAway,
    /// Syncing failed.
    Failed {
        /// The error and its causes, in one line.
        error: String,
    },
}

impl NotDurable {
    /// Returns the reason that a failed sync is.
    pub(crate) fn of(error: &dyn std::error::Error) -> Self {
        Self::Failed {
            error: one_line(error),
        }
    }
}

impl fmt::Display for NotDurable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TakenAway => {
                "another program took the mount away, and the kernel may hold writes that no program has synced"
            }
            Self::Failed { error } => error,
        })
    }
}
