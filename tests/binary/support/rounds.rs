//! Work that is done again and again beside a test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use super::eventually;

/// Does rounds of some work, each with its number, until it is ended.
pub(crate) struct Rounds {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Rounds {
    /// Begins with round 0; one that panics is the last.
    pub(crate) fn start(round: impl Fn(u64) + Send + 'static) -> Self {
        let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let thread = std::thread::spawn({
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
            move || {
                while !stop.load(Ordering::Relaxed) {
                    round(done.load(Ordering::Relaxed));
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self { stop, done, thread }
    }

    /// Waits until `count` more rounds went well.
    #[track_caller]
    pub(crate) fn go_on(&self, count: u64) {
        let wanted = self.done.load(Ordering::Relaxed) + count;
        eventually("the work beside the test goes on", || {
            self.done.load(Ordering::Relaxed) >= wanted || self.thread.is_finished()
        });
        assert!(!self.thread.is_finished(), "a round failed");
    }

    /// Ends them after the round that is being done; returns how many there were. Fails if one did.
    #[track_caller]
    pub(crate) fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no round failed");
        self.done.load(Ordering::Relaxed)
    }
}
