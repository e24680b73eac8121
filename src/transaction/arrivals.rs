//! Members that came, and that wait for a checkpoint before an epoch takes them in.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the members that came, and how many of them an epoch may take in.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    came: AtomicU64,
    covered: AtomicU64,
}

impl Arrivals {
    /// Notes that a member came.
    pub(crate) fn note(&self) {
        self.came.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns how many came so far; to be asked before a checkpoint begins.
    pub(crate) fn so_far(&self) -> u64 {
        self.came.load(Ordering::SeqCst)
    }

    /// Notes that a checkpoint ended well that began when so many had come.
    pub(crate) fn cover(&self, came: u64) {
        self.covered.fetch_max(came, Ordering::SeqCst);
    }

    /// Returns whether a member waits for a checkpoint.
    pub(crate) fn wait(&self) -> bool {
        self.covered.load(Ordering::SeqCst) < self.so_far()
    }
}
