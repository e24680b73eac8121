//! A lock that is held for a few instructions at a time.

use std::hint;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The attempts before a thread sleeps, with a pause of the processor between two: some microseconds, which is less than
/// a wake takes.
const ATTEMPTS: usize = 200;

/// A lock for readers or one writer. A thread that finds it taken tries again for some microseconds before it sleeps.
#[derive(Debug, Default)]
pub(super) struct BriefLock<T>(RwLock<T>);

impl<T> BriefLock<T> {
    /// Waits until no writer has the lock.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.attempt(RwLock::is_locked_exclusive, RwLock::try_read)
            .unwrap_or_else(|| self.0.read())
    }

    /// Waits until no other has the lock.
    pub(super) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.attempt(RwLock::is_locked, RwLock::try_write)
            .unwrap_or_else(|| self.0.write())
    }

    /// Only looks while another has the lock: an attempt would take the cache line from it.
    fn attempt<'l, G>(
        &'l self,
        is_taken: impl Fn(&RwLock<T>) -> bool,
        lock: impl Fn(&'l RwLock<T>) -> Option<G>,
    ) -> Option<G> {
        for _ in 0..ATTEMPTS {
            if !is_taken(&self.0)
                && let Some(guard) = lock(&self.0)
            {
                return Some(guard);
            }
            hint::spin_loop();
        }
        None
    }

    /// Returns whether no thread has the lock.
    #[cfg(test)]
    pub(super) fn is_free(&self) -> bool {
        self.0.try_write().is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// However long a hold takes, those who wait get the lock afterwards.
    #[test]
    fn a_thread_that_tried_in_vain_gets_the_lock_after_a_long_hold() {
        let lock = BriefLock(RwLock::new(0));
        let (is_held, held) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = lock.write();
                is_held.send(()).unwrap();
                thread::sleep(Duration::from_millis(50));
                *number += 1;
            });
            held.recv().unwrap();
            let reader = scope.spawn(|| *lock.read());
            *lock.write() += 1;
            assert!(reader.join().unwrap() > 0);
        });
        assert_eq!(*lock.read(), 2);
        assert!(lock.is_free());
    }
}
