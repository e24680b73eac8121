//! Counts of the requests of one mount, by kind, with the time that they took.
//!
//! A request adds to counters that its thread alone changes: no threads share a cache line, and no addition locks one. A
//! reader adds these up. It may see a part of a request's numbers before the others, but each number only grows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thread_local::ThreadLocal;

use super::protocol::OperationKind;

/// The upper bounds of the buckets of times, inclusive. One bucket more has all longer times.
pub const BUCKETS: [Duration; 13] = [
    Duration::from_micros(10),
    Duration::from_micros(30),
    Duration::from_micros(100),
    Duration::from_micros(300),
    Duration::from_millis(1),
    Duration::from_millis(3),
    Duration::from_millis(10),
    Duration::from_millis(30),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
];

/// The same in nanoseconds.
const BOUNDS_NS: [u64; BUCKETS.len()] = {
    let mut bounds = [0; BUCKETS.len()];
    let mut index = 0;
    while index < bounds.len() {
        let bound = BUCKETS[index];
        bounds[index] = bound.as_secs() * 1_000_000_000 + bound.subsec_nanos() as u64;
        index += 1;
    }
    bounds
};

const KINDS: usize = OperationKind::ALL.len();

/// The requests of one mount that were answered.
#[derive(Debug, Default)]
pub struct OperationCounts {
    by_thread: ThreadLocal<Counters>,
    /// The requests that had to wait for the volume.
    waited: AtomicU64,
}

/// The counters of a thread, on cache lines of their own. A thread that starts later may go on with those of one that
/// ended. Processors fetch lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Counters {
    kinds: [KindCounters; KINDS],
    failed: [AtomicU64; KINDS],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            kinds: std::array::from_fn(|_| KindCounters::default()),
            failed: std::array::from_fn(|_| AtomicU64::default()),
        }
    }
}

/// The counters of one kind, in a pair of cache lines. The first line has all that a fast request changes.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct KindCounters {
    nanoseconds: AtomicU64,
    bytes: AtomicU64,
    buckets: [AtomicU64; BUCKETS.len() + 1],
}

const _: () = assert!(size_of::<KindCounters>() == 128, "one pair of lines each");

/// The requests of one kind that were answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationCount {
    /// The name of the kind.
    pub name: &'static str,
    /// The number of requests in each bucket, and beyond the last.
    pub buckets: [u64; BUCKETS.len() + 1],
    /// The sum of their times.
    pub time: Duration,
    /// The number of those that were answered with an error.
    pub failed: u64,
}

impl OperationCount {
    /// Returns the number of requests.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

impl OperationCounts {
    /// Counts a request that was answered, with the bytes of a file that it moved.
    pub(super) fn count(&self, kind: OperationKind, time: Duration, bytes: u64, has_failed: bool) {
        let counters = self.by_thread.get_or_default();
        let of_kind = &counters.kinds[kind as usize];
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let is_beyond = |bound: &&u64| **bound < nanoseconds;
        let bucket = BOUNDS_NS.iter().take_while(is_beyond).count();
        add(&of_kind.buckets[bucket], 1);
        add(&of_kind.nanoseconds, nanoseconds);
        if bytes > 0 {
            add(&of_kind.bytes, bytes);
        }
        if has_failed {
            add(&counters.failed[kind as usize], 1);
        }
    }

    pub(super) fn count_wait(&self) {
        self.waited.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how often a request had to wait for a volume that was away. It counts once more when it is answered.
    #[must_use]
    pub fn waited(&self) -> u64 {
        self.waited.load(Ordering::Relaxed)
    }

    /// Returns the counts of all kinds.
    #[must_use]
    pub fn all(&self) -> Vec<OperationCount> {
        let kinds = OperationKind::ALL.into_iter();
        kinds.map(|kind| self.of(kind)).collect()
    }

    fn of(&self, kind: OperationKind) -> OperationCount {
        let of_kind = |counter: &dyn Fn(&KindCounters) -> &AtomicU64| {
            self.sum(|it| counter(&it.kinds[kind as usize]))
        };
        OperationCount {
            name: kind.name(),
            buckets: std::array::from_fn(|bucket| of_kind(&move |it| &it.buckets[bucket])),
            time: Duration::from_nanos(of_kind(&|it| &it.nanoseconds)),
            failed: self.sum(|it| &it.failed[kind as usize]),
        }
    }

    /// Returns the bytes of files that were read.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.sum(|it| &it.kinds[OperationKind::Read as usize].bytes)
    }

    /// Returns the bytes of files that were written.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.sum(|it| &it.kinds[OperationKind::Write as usize].bytes)
    }

    fn sum(&self, counter: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        let all = self.by_thread.iter();
        all.map(|it| counter(it).load(Ordering::Relaxed)).sum()
    }
}

/// Adds to a counter that no other thread changes.
fn add(counter: &AtomicU64, amount: u64) {
    let sum = counter.load(Ordering::Relaxed).wrapping_add(amount);
    counter.store(sum, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let counts = OperationCounts::default();
        let bounds: Vec<Duration> = BUCKETS.to_vec();
        for bound in &bounds {
            counts.count(OperationKind::Read, *bound, 0, false);
            counts.count(
                OperationKind::Read,
                *bound + Duration::from_nanos(1),
                0,
                true,
            );
        }
        counts.count(OperationKind::Read, Duration::ZERO, 0, false);
        let read = counts.of(OperationKind::Read);
        let mut expected = [2; BUCKETS.len() + 1];
        expected[BUCKETS.len()] = 1;
        assert_eq!(read.buckets, expected);
        assert_eq!(read.failed, bounds.len() as u64);
        let sum: Duration = bounds.iter().map(|bound| *bound * 2).sum();
        let extra = Duration::from_nanos(bounds.len() as u64);
        assert_eq!(read.time, sum + extra);
        assert_eq!(counts.of(OperationKind::Write).count(), 0);
    }

    #[test]
    fn what_all_threads_count_adds_up() {
        let counts = OperationCounts::default();
        std::thread::scope(|scope| {
            for _ in 0..40 {
                scope.spawn(|| {
                    let time = Duration::from_micros(20);
                    counts.count(OperationKind::Write, time, 4096, false);
                    counts.count(OperationKind::Read, time, 1, false);
                });
            }
        });
        assert_eq!(counts.of(OperationKind::Write).count(), 40);
        assert_eq!(
            (counts.bytes_written(), counts.bytes_read()),
            (40 * 4096, 40)
        );
    }
}
