//! One member as a snapshot of the membership holds it, and the observations of it that all snapshots share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::health::{ErrorClass, ErrorCounts, MemberState};
use super::reason::AbsenceReason;
use crate::format::MemberId;
use crate::format::superblock::MemberEntry;
use crate::store::{DirectoryIdentity, Space, StoreError, StoreRef};

/// The state of a member and the reasons for it.
#[derive(Clone, Debug)]
pub(super) struct Health {
    pub(super) state: MemberState,
    pub(super) reason: Option<AbsenceReason>,
    pub(super) refusal: Option<AbsenceReason>,
}

/// One member at one moment. It never changes: a change makes another value.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) id: MemberId,
    pub(super) path: String,
    /// Set if it was online since the volume was opened.
    pub(super) was_online: bool,
    /// Its directory; none unless it is online.
    store: Option<StoreRef>,
    /// The identity that tells the directory that it lost from a copy; none while it is online, or if none was online yet.
    lost: Option<DirectoryIdentity>,
    health: Health,
    observed: Arc<Observations>,
}

impl Member {
    /// Returns a member that is online.
    pub(super) fn present(id: MemberId, store: StoreRef) -> Self {
        Self::new(id, store.label(), Some(store), MemberState::Online, None)
    }

    /// Returns a member that is absent for this reason.
    pub(super) fn missing(id: MemberId, path: String, reason: AbsenceReason) -> Self {
        Self::new(id, path, None, MemberState::Missing, Some(reason))
    }

    fn new(
        id: MemberId,
        path: String,
        store: Option<StoreRef>,
        state: MemberState,
        reason: Option<AbsenceReason>,
    ) -> Self {
        let refusal = None;
        Self {
            id,
            path,
            was_online: store.is_some(),
            store,
            lost: None,
            health: Health {
                state,
                reason,
                refusal,
            },
            observed: Arc::default(),
        }
    }

    /// Returns the mark of an index that no member has.
    pub(super) fn vacant() -> Self {
        let id = MemberEntry::vacant().id;
        Self::missing(id, String::new(), AbsenceReason::Removed)
    }

    pub(super) fn is_vacant(&self) -> bool {
        self.id.0.is_nil()
    }

    pub(super) fn is_online(&self) -> bool {
        self.store.is_some()
    }

    pub(super) fn health(&self) -> &Health {
        &self.health
    }

    /// Returns the directory of a member that is online.
    pub(super) fn store(&self) -> Option<&StoreRef> {
        self.store.as_ref()
    }

    /// Returns what tells the directory that the member lost from a copy, if that is known.
    pub(super) fn lost(&self) -> Option<&DirectoryIdentity> {
        self.lost.as_ref()
    }

    /// Returns the observations of the member since it was opened.
    pub(super) fn observed(&self) -> &Arc<Observations> {
        &self.observed
    }

    /// Returns the member after it failed: absent, and without its directory.
    pub(super) fn failed(&self, error: &StoreError) -> Self {
        let lost = self.store.as_ref().and_then(|it| it.directory_identity());
        Self {
            store: None,
            lost,
            health: Health {
                state: MemberState::after(error),
                reason: Some(AbsenceReason::of_failure(error)),
                refusal: None,
            },
            ..self.clone()
        }
    }

    /// Returns the absent member with the reason why its directory is not taken back, and its state now, if that is
    /// known.
    pub(super) fn refused(&self, state: Option<MemberState>, refusal: AbsenceReason) -> Self {
        Self {
            health: Health {
                state: state.unwrap_or(self.health.state),
                reason: self.health.reason.clone(),
                refusal: Some(refusal),
            },
            ..self.clone()
        }
    }
}

/// Measurements of a member's directory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    /// The room on its filesystem.
    pub(super) space: Option<Space>,
    /// Bytes that its files take.
    pub(super) taken: Option<u64>,
}

/// Observations of one member since it was opened. A member that returns begins with none.
#[derive(Debug, Default)]
pub(super) struct Observations {
    read_errors: AtomicU64,
    write_errors: AtomicU64,
    checksum_errors: AtomicU64,
    /// In seconds since 1970; 0 if there was none.
    last_checksum_error: AtomicU64,
    lacks_superblock: AtomicBool,
    /// The last measurements.
    pub(super) measured: Mutex<Measured>,
}

impl Observations {
    /// Notes whether the superblock is gone; returns whether that is new.
    pub(super) fn note_superblock(&self, is_gone: bool) -> bool {
        let was_gone = self.lacks_superblock.swap(is_gone, Ordering::Relaxed);
        is_gone && !was_gone
    }

    /// Returns whether the superblock was gone when it was last looked for.
    pub(super) fn lacks_superblock(&self) -> bool {
        self.lacks_superblock.load(Ordering::Relaxed)
    }

    /// Counts errors of one kind.
    pub(super) fn count_errors(&self, class: ErrorClass, errors: u64) {
        let counter = match class {
            ErrorClass::Read => &self.read_errors,
            ErrorClass::Write => &self.write_errors,
            ErrorClass::Checksum => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                let now = now.map_or(0, |now| now.as_secs());
                self.last_checksum_error.store(now, Ordering::Relaxed);
                &self.checksum_errors
            }
        };
        counter.fetch_add(errors, Ordering::Relaxed);
    }

    /// Returns the time of the last checksum error, in seconds since 1970.
    pub(super) fn wrong_at(&self) -> Option<u64> {
        Some(self.last_checksum_error.load(Ordering::Relaxed)).filter(|time| *time > 0)
    }

    /// Returns the number of errors of each kind.
    pub(super) fn errors(&self) -> ErrorCounts {
        ErrorCounts {
            read: self.read_errors.load(Ordering::Relaxed),
            write: self.write_errors.load(Ordering::Relaxed),
            checksum: self.checksum_errors.load(Ordering::Relaxed),
        }
    }
}
