//! The health of each member: up or down, the reason, and the number of its errors.

use crate::format::{MemberId, MemberIndex};
use crate::store::{PageCacheUse, StoreError, StoreErrorKind};

use super::reason::AbsenceReason;

/// The state of a member: whether it takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It takes part.
    Online,
    /// Its directory is not there, or is not the one it was.
    Missing,
    /// Its directory is there, but answered with an error, or not at all.
    Faulted,
}

impl MemberState {
    /// Returns how a member is whose directory answered with an error.
    pub(super) fn after(error: &StoreError) -> Self {
        match error.kind() {
            StoreErrorKind::Gone | StoreErrorKind::Displaced | StoreErrorKind::NotFound => {
                Self::Missing
            }
            _ => Self::Faulted,
        }
    }
}

/// The kind of error to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Reading failed.
    Read,
    /// Writing, syncing or any other change failed.
    Write,
    /// Bytes were read, but are wrong or missing.
    Checksum,
}

/// Errors of a member since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorCounts {
    /// Reads that failed.
    pub read: u64,
    /// Writes, syncs and other changes that failed.
    pub write: u64,
    /// Blocks whose checksum was wrong, and shards, superblocks and pieces of the index that were, or were gone.
    pub checksum: u64,
}

/// One member, as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its place in the volume.
    pub index: MemberIndex,
    /// Its identity.
    pub id: MemberId,
    /// Its directory, or where it was last seen; empty if that is not known.
    pub path: String,
    /// Its state.
    pub state: MemberState,
    /// The reason why it does not take part, or not yet fully.
    pub reason: Option<AbsenceReason>,
    /// The reason why its directory, which is there again, is not taken back.
    pub refusal: Option<AbsenceReason>,
    /// Set if it is being drained for removal.
    pub draining: bool,
    /// Bytes that its files take on its filesystem; 0 if it is not online.
    pub bytes_used: u64,
    /// Bytes that its filesystem has left; 0 if it is not online.
    pub bytes_free: u64,
    /// The way from its large files to their device, if it is online.
    pub page_cache: Option<PageCacheUse>,
    /// The same number for members on one filesystem, if it is online.
    pub filesystem: Option<u64>,
    /// Errors since it was opened.
    pub errors: ErrorCounts,
    /// When bytes of it were wrong last, in seconds since 1970, if they were since it was opened.
    pub wrong_at: Option<u64>,
}
