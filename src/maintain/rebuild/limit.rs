//! How much a rebuild may write in a second.

use std::sync::atomic::{AtomicU64, Ordering};

/// The limit that is in force, and the one for what nobody asked for. 0 is none.
#[derive(Debug)]
pub(super) struct Limit {
    unasked: u64,
    bytes_per_second: AtomicU64,
}

impl Limit {
    pub(super) fn new(unasked: Option<u64>) -> Self {
        let unasked = unasked.unwrap_or(0);
        Self {
            unasked,
            bytes_per_second: AtomicU64::new(unasked),
        }
    }

    /// Returns the one in force, as it changes.
    pub(super) fn in_force(&self) -> &AtomicU64 {
        &self.bytes_per_second
    }

    /// Somebody asks, with a limit or without. The newest one counts for all that is asked for; who asks for
    /// none does not lift that of others.
    pub(super) fn ask(&self, limit: Option<u64>, is_first: bool) {
        match limit {
            Some(limit) => self.set(limit),
            None if is_first => self.set(0),
            None => {}
        }
    }

    /// Nothing is asked for any more.
    pub(super) fn reset(&self) {
        self.set(self.unasked);
    }

    /// What was to be done slowly has been given up.
    pub(super) fn lift(&self, is_asked_for: bool) {
        self.set(if is_asked_for { 0 } else { self.unasked });
    }

    fn set(&self, limit: u64) {
        self.bytes_per_second.store(limit, Ordering::Relaxed);
    }
}
