//! The bytes of changes that may wait for the index, as shared by its measuring and by commits.

use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes of changes that may wait for the index.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    /// The bytes as last measured.
    measured: AtomicU64,
    /// The bytes while copies of the index are on their way to members with room; 0 if none are.
    while_moving: AtomicU64,
}

impl Allowance {
    /// Drops the measured allowance, because it is out of date.
    pub(crate) fn forget(&self) {
        self.measured.store(0, Ordering::Release);
    }

    /// Returns the bytes as last measured.
    pub(crate) fn measured(&self) -> u64 {
        self.measured.load(Ordering::Acquire)
    }

    /// Returns the bytes while copies of the index move; 0 if none do.
    pub(crate) fn while_moving(&self) -> u64 {
        self.while_moving.load(Ordering::Acquire)
    }

    /// Sets the measured allowance.
    pub(crate) fn set_measured(&self, bytes: u64) {
        self.measured.store(bytes, Ordering::Release);
    }

    /// Sets the allowance while copies of the index move.
    pub(crate) fn set_while_moving(&self, bytes: u64) {
        self.while_moving.store(bytes, Ordering::Release);
    }
}
