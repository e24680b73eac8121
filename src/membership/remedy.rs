//! The remedies for failures of a volume: words with fields, which commands put into sentences.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The step with which the owner of a volume can help.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// A step with one directory.
    Directory {
        /// The directory.
        path: String,
        /// The step.
        step: DirectoryStep,
    },
    /// Another choice of directories for the command.
    Choice(DirectoryChoice),
    /// A step with the volume as a whole.
    Volume(VolumeStep),
}

/// A step with one directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirectoryStep {
    /// Make the volume in an empty directory instead.
    UseEmptyOne,
    /// Find out which volume it belongs to, or empty it.
    IdentifyVolume,
    /// Leave it as it is, and replace the member or recover its superblock.
    KeepUnreadable,
    /// Empty it: its member was removed.
    EmptyFormerMember,
    /// Find the mount that uses it, or the name that was given twice.
    FindOtherUse,
    /// Leave it out: it is not of a volume.
    LeaveOut,
    /// Copy out what is needed of it, and empty it: it was mounted apart.
    ExtractAndEmpty,
    /// Recover its superblock, which is newer than those that remain.
    RecoverNewerSuperblock,
    /// Give it to root alone.
    GiveToRoot,
}

/// A choice of directories for a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirectoryChoice {
    /// Those of the volume, of which none was named.
    OfVolume,
    /// More directories, or fewer shards.
    More {
        /// Shards of a stripe.
        shards: usize,
        /// Directories that are missing for that.
        missing: usize,
    },
    /// Fewer directories.
    AtMost {
        /// The most that a volume can have.
        most: usize,
    },
    /// One that is no member.
    NoMember,
    /// Those that answer.
    Answering,
    /// Those that lie at the given paths once their disks are mounted.
    Mounted,
    /// One of the volume that has its superblock.
    WithSuperblock,
    /// Those of one volume only.
    OneVolume {
        /// One of the volumes.
        volume: Uuid,
        /// The other.
        other_volume: Uuid,
    },
    /// One of two that are the same member.
    OneOf {
        /// One directory.
        path: String,
        /// The other.
        other_path: String,
    },
    /// All of the volume.
    All {
        /// True if superblocks are missing.
        recovers_superblocks: bool,
        /// True if the members that are left are enough to read what is on them.
        readable: bool,
        /// True if the creation of the volume was interrupted.
        unfinished: bool,
    },
    /// All of the volume, as they were last.
    Latest,
    /// All of the volume: one of them may have a sound copy of the index.
    WithSoundIndex,
    /// All of the volume, or those without the damaged record of a member.
    WithRecord {
        /// The member.
        member: u16,
    },
    /// One of the parts of the volume that were mounted apart.
    OnePart {
        /// The directories of that part.
        kept: Vec<String>,
        /// The directories of the others.
        others: Vec<String>,
    },
    /// Also those that went on without the given ones.
    Superseding {
        /// Their paths.
        paths: Vec<String>,
    },
}

/// A step with the volume as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeStep {
    /// Wait until a killed process can end.
    WaitForHolder,
    /// See that all disks answer, since nothing tells whether one of them is ahead.
    MakeDisksAnswer,
    /// Bring the failed members back, and mount again.
    BringBackAndRemount,
    /// Check the directories, and mount again.
    CheckAndRemount,
    /// Mount so that the volume may be written to.
    MountWritable,
    /// Mount read-only, or use the version of the program that wrote the volume.
    ReadOnlyOrNewerVersion,
    /// Use the version of the program that wrote the volume.
    UseNewerVersion,
    /// Empty the journal with the version of the program that wrote it.
    EmptyJournal,
    /// Empty the directories, and create the volume again.
    CreateAgain,
    /// Add the new directory before the old one is removed.
    AddBeforeRemove,
    /// Add or replace a directory first.
    AddFirst,
    /// Add a directory first, or give the directories of the volume that need so many members a code with fewer shards.
    AddOrNarrowDirectories,
    /// The same, where a member is away: a directory can be put in its place.
    ReplaceOrNarrowDirectories {
        /// The member.
        away: u16,
    },
    /// Add directories for a wider code, or choose fewer shards.
    AddForCode,
    /// Bring the absent members back for a wider code, or do the same.
    BringBackForCode,
    /// Bring the absent members back, or replace them.
    CompleteMembers,
    /// List the members.
    ListMembers,
    /// Delete something, or add a directory.
    MakeRoom,
}

impl Remedy {
    /// Returns a step with one directory.
    #[must_use]
    pub fn directory(path: impl Into<String>, step: DirectoryStep) -> Self {
        let path = path.into();
        Self::Directory { path, step }
    }
}

impl From<DirectoryChoice> for Remedy {
    fn from(choice: DirectoryChoice) -> Self {
        Self::Choice(choice)
    }
}

impl From<VolumeStep> for Remedy {
    fn from(step: VolumeStep) -> Self {
        Self::Volume(step)
    }
}
