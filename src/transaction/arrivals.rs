//! A count of the members that joined while the volume was open.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the members that came, so that work on several members can tell that one came meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(AtomicU64);

impl Arrivals {
    /// Notes that a member is about to take part.
    pub(crate) fn note(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns how many came so far.
    pub(crate) fn so_far(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}
