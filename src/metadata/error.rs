//! The failures of operations on the metadata.

use crate::format::{FormatError, Lsn, MemberIndex};
use crate::membership::{DirectoryChoice, MembersError, Remedy, VolumeStep};
use crate::store::StoreError;

/// The failure of an operation on the metadata.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetaError {
    /// Journal or index can no longer be trusted, so nothing is written any more. Mounting the
    /// volume again recovers everything that was acknowledged.
    #[error("metadata is read-only since a failure: {reason}")]
    Poisoned {
        /// The first failure.
        reason: String,
    },

    /// The members have no room for more metadata. Nothing is lost; deleting files helps.
    #[error("no space for metadata")]
    NoSpace,

    /// The journal's files have no room for a record until a checkpoint, or never. Nothing is lost; the
    /// index can take the changes at once.
    #[error("the journal is full")]
    JournalFull,

    /// The volume was opened for reading only.
    #[error("the volume is open for reading only")]
    ReadOnly,

    /// [`Meta::close`](super::Meta::close) was called.
    #[error("the metadata is closed")]
    Closed,

    /// The making of the volume was cut off, so that nothing was ever written to it.
    #[error("the volume was never finished: what made it was cut off")]
    Unfinished,

    /// No copy of the index is sound: their checksums are right, and their content is not what a database writes.
    #[error("no copy of the index is sound: {reason}")]
    DamagedIndex {
        /// Each copy that was tried, and what is wrong with it.
        reason: String,
    },

    /// No member that may be trusted holds a copy of the index.
    #[error("no up-to-date member of {members} holds a copy of the index")]
    NoIndex {
        /// Members that were asked.
        members: usize,
    },

    /// Every copy of the index that is left is older than the journal: the newer ones are lost.
    #[error(
        "the newest index left is of journal generation {index}, the journal is of generation {journal}"
    )]
    OldIndex {
        /// The journal generation that the index names.
        index: u64,
        /// The generation of the journal's records.
        journal: u64,
    },

    /// Records are missing in the middle of the journal on all members.
    #[error("journal record {missing} is lost on all members, {found} is there")]
    LostRecords {
        /// The first record that is missing.
        missing: Lsn,
        /// A later one that was found.
        found: Lsn,
    },

    /// A journal record of this generation has a right checksum and does not decode, and no member holds a copy
    /// that does. Leaving it out would lose what it acknowledged.
    #[error(
        "member {member}: journal record {lsn} has a right checksum and does not decode: {reason}"
    )]
    RefusedRecord {
        /// The member that holds it.
        member: MemberIndex,
        /// The record.
        lsn: Lsn,
        /// The first fault that the decoder met.
        reason: FormatError,
    },

    /// The journal holds more than its files take on any member.
    #[error(
        "the journal has {bytes} bytes of records, more than the files of any member take on disk"
    )]
    TooLarge {
        /// Bytes of records that would have to be read at once.
        bytes: u64,
    },

    /// The membership does not allow the operation.
    #[error(transparent)]
    Members(#[from] MembersError),

    /// A member failed while the metadata was being created.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl MetaError {
    /// Returns the remedy, where there is one.
    #[must_use]
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::Unfinished => Some(VolumeStep::CreateAgain.into()),
            Self::NoIndex { .. } | Self::OldIndex { .. } | Self::LostRecords { .. } => {
                Some(DirectoryChoice::Latest.into())
            }
            Self::RefusedRecord { member, .. } => {
                let member = member.0;
                Some(DirectoryChoice::WithRecord { member }.into())
            }
            Self::TooLarge { .. } => Some(VolumeStep::EmptyJournal.into()),
            Self::Members(error) => error.remedy(),
            Self::DamagedIndex { .. } => Some(DirectoryChoice::WithSoundIndex.into()),
            Self::Poisoned { .. } => Some(VolumeStep::CheckAndRemount.into()),
            Self::NoSpace | Self::JournalFull | Self::ReadOnly | Self::Closed | Self::Store(_) => {
                None
            }
        }
    }

    /// Returns the error for everything after `reason`.
    pub(super) fn poisoned(reason: impl std::fmt::Display) -> Self {
        Self::Poisoned {
            reason: reason.to_string(),
        }
    }
}
