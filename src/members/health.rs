//! The health of each member: up or down, the reason, and the number of its errors.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::RwLock;

use crate::format::superblock::MemberEntry;
use crate::format::{MemberId, MemberIndex};
use crate::store::{StoreError, StoreErrorKind, StoreRef};

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
            StoreErrorKind::Gone | StoreErrorKind::NotFound => Self::Missing,
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
    pub leaving: bool,
    /// Bytes that its files take on its filesystem; 0 if it is not online.
    pub bytes_used: u64,
    /// Bytes that its filesystem has left; 0 if it is not online.
    pub bytes_free: u64,
    /// Errors since it was opened.
    pub errors: ErrorCounts,
    /// When bytes of it were wrong last, in seconds since 1970, if they were since it was opened.
    pub wrong_at: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Health {
    pub(super) state: MemberState,
    pub(super) reason: Option<AbsenceReason>,
    pub(super) refusal: Option<AbsenceReason>,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: MemberId,
    pub(super) path: String,
    /// Set if it was up since the volume was opened.
    pub(super) was_here: bool,
    /// Until it is down.
    store: RwLock<Option<StoreRef>>,
    health: RwLock<Health>,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
    checksum_errors: AtomicU64,
    /// In seconds since 1970; 0 if there was none.
    last_checksum_error: AtomicU64,
    lacks_superblock: AtomicBool,
}

impl Member {
    pub(super) fn present(id: MemberId, store: StoreRef) -> Self {
        let health = Health {
            state: MemberState::Online,
            reason: None,
            refusal: None,
        };
        Self::new(id, store.label(), Some(store), health)
    }

    pub(super) fn missing(id: MemberId, path: String, reason: AbsenceReason) -> Self {
        let health = Health {
            state: MemberState::Missing,
            reason: Some(reason),
            refusal: None,
        };
        Self::new(id, path, None, health)
    }

    fn new(id: MemberId, path: String, store: Option<StoreRef>, health: Health) -> Self {
        Self {
            id,
            path,
            was_here: store.is_some(),
            store: RwLock::new(store),
            health: RwLock::new(health),
            read_errors: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            checksum_errors: AtomicU64::new(0),
            last_checksum_error: AtomicU64::new(0),
            lacks_superblock: AtomicBool::new(false),
        }
    }

    /// A place that no member has.
    pub(super) fn vacant() -> Self {
        let id = MemberEntry::vacant().id;
        Self::missing(id, String::new(), AbsenceReason::Removed)
    }

    pub(super) fn is_vacant(&self) -> bool {
        self.id.0.is_nil()
    }

    pub(super) fn is_up(&self) -> bool {
        self.health.read().state == MemberState::Online
    }

    pub(super) fn health(&self) -> Health {
        self.health.read().clone()
    }

    /// Returns the store, as long as the member is up.
    pub(super) fn store(&self) -> Option<StoreRef> {
        self.store.read().clone().filter(|_| self.is_up())
    }

    /// Takes the member down; returns false if it was down.
    pub(super) fn mark_down(&self, error: &StoreError) -> bool {
        let mut health = self.health.write();
        if health.state != MemberState::Online {
            return false;
        }
        health.state = MemberState::after(error);
        health.reason = Some(AbsenceReason::of_failure(error));
        drop(health);
        self.store.write().take();
        true
    }

    /// Notes why its directory is not taken back, and how it is there, if that is known; says whether that is
    /// new. Does nothing if the member is up.
    pub(super) fn refuse(&self, state: Option<MemberState>, refusal: AbsenceReason) -> bool {
        let mut health = self.health.write();
        if health.state == MemberState::Online {
            return false;
        }
        health.state = state.unwrap_or(health.state);
        health.refusal.replace(refusal.clone()) != Some(refusal)
    }

    /// Notes whether its superblock is gone; says whether that is new.
    pub(super) fn note_superblock(&self, is_gone: bool) -> bool {
        let was_gone = self.lacks_superblock.swap(is_gone, Ordering::Relaxed);
        is_gone && !was_gone
    }

    pub(super) fn lacks_superblock(&self) -> bool {
        self.lacks_superblock.load(Ordering::Relaxed)
    }

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

    pub(super) fn wrong_at(&self) -> Option<u64> {
        Some(self.last_checksum_error.load(Ordering::Relaxed)).filter(|time| *time > 0)
    }

    pub(super) fn errors(&self) -> ErrorCounts {
        ErrorCounts {
            read: self.read_errors.load(Ordering::Relaxed),
            write: self.write_errors.load(Ordering::Relaxed),
            checksum: self.checksum_errors.load(Ordering::Relaxed),
        }
    }
}
