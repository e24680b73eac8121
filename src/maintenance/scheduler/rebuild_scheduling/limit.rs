//! Limit of the bytes that a rebuild writes in a second.

use std::sync::atomic::{AtomicU64, Ordering};

/// Limit in force, and the one for rebuilds without an order; 0 is none.
#[derive(Debug)]
pub(super) struct Limit {
    unordered: u64,
    bytes_per_second: AtomicU64,
}

impl Limit {
    pub(super) fn new(unordered: Option<u64>) -> Self {
        let unordered = unordered.unwrap_or(0);
        Self {
            unordered,
            bytes_per_second: AtomicU64::new(unordered),
        }
    }

    /// Returns the limit in force, as it changes.
    pub(super) fn in_force(&self) -> &AtomicU64 {
        &self.bytes_per_second
    }

    /// Notes an order, with a limit or without. The newest limit counts for all orders; an order without one does not
    /// lift that of others.
    pub(super) fn ask(&self, limit: Option<u64>, is_first: bool) {
        match limit {
            Some(limit) => self.set(limit),
            None if is_first => self.set(0),
            None => {}
        }
    }

    /// Sets the limit of an order that ended, or that an earlier opening of the volume took, for the work that it left.
    pub(super) fn resume(&self, limit: u64) {
        self.set(limit);
    }

    /// Restores the limit for rebuilds without an order, once no order is open.
    pub(super) fn reset(&self) {
        self.set(self.unordered);
    }

    /// Lifts a limit whose order was given up.
    pub(super) fn lift(&self, is_ordered: bool) {
        self.set(if is_ordered { 0 } else { self.unordered });
    }

    fn set(&self, limit: u64) {
        self.bytes_per_second.store(limit, Ordering::Relaxed);
    }
}
