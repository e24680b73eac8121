//! Counts of the operations of one store, with the time that they took.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The operations of one store that an [`Executor`](crate::Executor) has run. Any thread adds to them.
#[derive(Debug, Default)]
pub struct Traffic {
    reads: Counter,
    writes: Counter,
}

#[derive(Debug, Default)]
struct Counter {
    operations: AtomicU64,
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
}

/// Operations of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    /// The number of operations that have answered, those included that failed or for which no caller waited any more.
    pub count: u64,
    /// The bytes that were moved. Operations that failed have moved none.
    pub bytes: u64,
    /// The sum of the times from a request to its answer. If an answer comes late, it is the time until the executor notices
    /// that.
    pub time: Duration,
}

impl Traffic {
    /// Counts a read of so many bytes.
    pub(crate) fn count_read(&self, bytes: usize, time: Duration) {
        self.reads.add(bytes, time);
    }

    /// Counts a write of so many bytes, or a sync of none.
    pub(crate) fn count_write(&self, bytes: usize, time: Duration) {
        self.writes.add(bytes, time);
    }

    /// Returns the reads so far.
    #[must_use]
    pub fn reads(&self) -> Operations {
        self.reads.get()
    }

    /// Returns the writes and syncs so far.
    #[must_use]
    pub fn writes(&self) -> Operations {
        self.writes.get()
    }
}

impl Counter {
    fn add(&self, bytes: usize, time: Duration) {
        self.operations.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    fn get(&self) -> Operations {
        Operations {
            count: self.operations.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            time: Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)),
        }
    }
}
