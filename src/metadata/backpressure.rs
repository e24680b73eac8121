//! The limit of the memory for changes that the index does not have yet.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Longest time that a change waits for a checkpoint to make room.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Memory limit of the overlay. Changes beyond it wait while a checkpoint makes room.
#[derive(Debug)]
pub(super) struct Backpressure {
    limit_bytes: usize,
    /// True while a checkpoint makes room in the overlay.
    making_room: Mutex<bool>,
    room_made: Condvar,
}

impl Backpressure {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            making_room: Mutex::default(),
            room_made: Condvar::new(),
        }
    }

    /// Returns how many bytes of changes are meant to wait in memory at most.
    pub(super) fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// Waits for a checkpoint to make room, at most some seconds. Returns at once while `overlay_bytes` are
    /// within the limit, and while no checkpoint is under way.
    pub(super) fn wait(&self, overlay_bytes: usize) {
        if overlay_bytes <= self.limit_bytes {
            return;
        }
        let mut making_room = self.making_room.lock();
        if *making_room {
            self.room_made.wait_for(&mut making_room, LONGEST_WAIT);
        }
    }

    /// Runs a checkpoint, for which changes beyond the limit wait.
    pub(super) fn while_making_room<T>(&self, checkpoint: impl FnOnce() -> T) -> T {
        *self.making_room.lock() = true;
        let done = checkpoint();
        *self.making_room.lock() = false;
        self.room_made.notify_all();
        done
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use super::*;

    #[test]
    fn changes_beyond_the_limit_wait_for_the_checkpoint_and_others_never() {
        let (backpressure, is_made) = (Backpressure::new(10), AtomicBool::new(false));
        let begun = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                backpressure.while_making_room(|| {
                    begun.wait();
                    std::thread::sleep(Duration::from_millis(50));
                    is_made.store(true, Ordering::SeqCst);
                });
            });
            begun.wait();
            backpressure.wait(10);
            backpressure.wait(11);
            assert!(is_made.load(Ordering::SeqCst));
        });
        let start = Instant::now();
        backpressure.wait(11);
        assert!(start.elapsed() < LONGEST_WAIT, "no checkpoint is under way");
    }
}
