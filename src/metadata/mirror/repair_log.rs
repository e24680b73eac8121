//! The account of pages that were repaired.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::format::MemberIndex;

/// Account of the pages of copies that were rewritten because they were damaged or out of date.
#[derive(Debug, Default)]
pub(super) struct RepairLog {
    /// Members whose copies were repaired since they have them, or since the mount.
    logged: Mutex<BTreeSet<MemberIndex>>,
    /// Pages that were rewritten, besides those that a scrub repaired.
    pages: AtomicU64,
}

impl RepairLog {
    /// Logs once for each member that its copy is being repaired: there may be millions of pages.
    pub(super) fn log_once(&self, member: MemberIndex, page: u64) {
        if self.logged.lock().insert(member) {
            tracing::warn!(
                %member,
                page,
                "repairing pages of its copy of the index, of which this is the first"
            );
        }
    }

    /// Notes that a member has a new copy, whose repair is worth another message.
    pub(super) fn forget(&self, member: MemberIndex) {
        self.logged.lock().remove(&member);
    }

    /// Counts pages that were rewritten.
    pub(super) fn count(&self, pages: usize) {
        self.pages.fetch_add(pages as u64, Ordering::Relaxed);
    }

    /// Returns how many pages were rewritten since the mount, besides those that a scrub repaired.
    pub(super) fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }
}
