//! Values of which each thread uses its own, so that threads do not wait for one another's cache lines.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of values; threads beyond it share them.
const SLOTS: usize = 16;

/// The next slot to give to a thread.
static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SLOT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A value on cache lines of its own. Processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

/// A value for each of a number of threads.
#[derive(Debug, Default)]
pub struct ByThread<T>([Padded<T>; SLOTS]);

impl<T> ByThread<T> {
    /// Returns the value of the calling thread, which is always the same.
    #[must_use]
    pub fn own(&self) -> &T {
        &self.0[slot()].0
    }

    /// Returns all values.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|padded| &padded.0)
    }
}

/// Returns the slot of the calling thread.
fn slot() -> usize {
    SLOT.with(|slot| {
        slot.get().unwrap_or_else(|| {
            let next = NEXT.fetch_add(1, Ordering::Relaxed) % SLOTS;
            slot.set(Some(next));
            next
        })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn all_that_threads_count_adds_up() {
        let counts = ByThread::<AtomicU64>::default();
        std::thread::scope(|scope| {
            for _ in 0..=2 * SLOTS {
                scope.spawn(|| {
                    assert!(std::ptr::eq(counts.own(), counts.own()));
                    counts.own().fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        let sum: u64 = counts.all().map(|it| it.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, 2 * SLOTS as u64 + 1);
    }
}
