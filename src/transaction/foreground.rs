//! Use of the volume by others than background work, to which that gives way.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::workers::ByThread;

/// Counts the uses of stripes by others than background work.
#[derive(Debug, Default)]
pub(crate) struct Foreground(ByThread<AtomicU64>);

impl Foreground {
    /// Notes a use.
    pub(crate) fn note(&self) {
        self.0.own().fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of uses so far.
    pub(crate) fn count(&self) -> u64 {
        let counts = self.0.all();
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }
}
