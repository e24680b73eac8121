//! The signal that ends background work.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Signal that ends all background work of a volume.
#[derive(Debug, Default)]
pub(super) struct StopSignal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl StopSignal {
    /// Returns whether background work has to end.
    pub(super) fn is_set(&self) -> bool {
        *self.is_set.lock()
    }

    /// Waits for `time`; returns whether to go on.
    pub(super) fn sleep(&self, time: Duration) -> bool {
        self.sleep_until(time, || false)
    }

    /// Waits for `time`, but no longer than until `is_so` holds; returns whether to go on. The thread that makes
    /// `is_so` hold calls [`Self::wake`].
    pub(super) fn sleep_until(&self, time: Duration, is_so: impl Fn() -> bool) -> bool {
        let mut is_set = self.is_set.lock();
        let goes_on = |is_set: &mut bool| !*is_set && !is_so();
        self.changed.wait_while_for(&mut is_set, goes_on, time);
        !*is_set
    }

    /// Ends all background work, and all waiting.
    pub(super) fn set(&self) {
        *self.is_set.lock() = true;
        self.changed.notify_all();
    }

    /// Wakes all waiting threads, so that they check whether they still have to wait.
    pub(super) fn wake(&self) {
        let _is_set = self.is_set.lock();
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn a_set_signal_ends_every_wait() {
        let stop = StopSignal::default();
        assert!(stop.sleep_until(FOR_EVER, || true), "there is work");
        stop.set();
        assert!(!stop.sleep(FOR_EVER) && !stop.sleep_until(FOR_EVER, || true));
    }

    #[test]
    fn a_woken_thread_goes_on_once_it_has_a_reason() {
        let stop = Arc::new(StopSignal::default());
        let has_work = Arc::new(AtomicBool::new(false));
        let (until, work) = (Arc::clone(&stop), Arc::clone(&has_work));
        let thread =
            std::thread::spawn(move || until.sleep_until(FOR_EVER, || work.load(Ordering::SeqCst)));
        stop.wake();
        has_work.store(true, Ordering::SeqCst);
        stop.wake();
        assert!(thread.join().unwrap());
    }
}
