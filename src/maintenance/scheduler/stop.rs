//! The signal that ends background work, or has it pause.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Signal that ends all background work of a volume, or has most of it pause.
#[derive(Debug, Default)]
pub(super) struct StopSignal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_set: bool,
    is_paused: bool,
}

/// Switch that has the rebuilds, scrubs and compaction of a volume pause.
#[derive(Clone, Debug)]
pub struct PauseSwitch(pub(super) Arc<StopSignal>);

impl PauseSwitch {
    /// Has the work pause, or go on. Work that is under way pauses after its current step.
    pub fn set(&self, is_paused: bool) {
        self.0.state.lock().is_paused = is_paused;
        self.0.changed.notify_all();
    }

    /// Waits while the work is to pause, and no longer than `time`. Returns whether it is still to pause.
    #[must_use]
    pub fn holds_for(&self, time: Duration) -> bool {
        let mut state = self.0.state.lock();
        let is_paused = |state: &mut State| state.is_paused && !state.is_set;
        self.0.changed.wait_while_for(&mut state, is_paused, time);
        is_paused(&mut state)
    }
}

impl StopSignal {
    /// Returns whether background work has to end.
    pub(super) fn is_set(&self) -> bool {
        self.state.lock().is_set
    }

    /// Waits for `time`; returns whether to go on.
    pub(super) fn sleep(&self, time: Duration) -> bool {
        self.sleep_until(time, || false)
    }

    /// Waits for `time`, but no longer than until `is_so` holds; returns whether to go on. The thread that makes
    /// `is_so` hold calls [`Self::wake`].
    pub(super) fn sleep_until(&self, time: Duration, is_so: impl Fn() -> bool) -> bool {
        let mut state = self.state.lock();
        let goes_on = |state: &mut State| !state.is_set && !is_so();
        self.changed.wait_while_for(&mut state, goes_on, time);
        !state.is_set
    }

    /// Waits while background work is to pause; returns whether to go on.
    pub(super) fn wait_out_pause(&self) -> bool {
        let mut state = self.state.lock();
        let is_paused = |state: &mut State| state.is_paused && !state.is_set;
        self.changed.wait_while(&mut state, is_paused);
        !state.is_set
    }

    /// Ends all background work, and all waiting.
    pub(super) fn set(&self) {
        self.state.lock().is_set = true;
        self.changed.notify_all();
    }

    /// Wakes all waiting threads, so that they check whether they still have to wait.
    pub(super) fn wake(&self) {
        let _state = self.state.lock();
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

    #[test]
    fn work_pauses_until_it_is_to_go_on_or_to_end() {
        let stop = Arc::new(StopSignal::default());
        let switch = PauseSwitch(Arc::clone(&stop));
        assert!(stop.wait_out_pause(), "nothing pauses yet");
        assert!(!switch.holds_for(FOR_EVER));
        for ends in [false, true] {
            switch.set(true);
            assert!(switch.holds_for(Duration::ZERO));
            let (has_gone_on, waited) = (Arc::new(AtomicBool::new(false)), Arc::clone(&stop));
            let gone_on = Arc::clone(&has_gone_on);
            let thread = std::thread::spawn(move || {
                let goes_on = waited.wait_out_pause();
                gone_on.store(true, Ordering::SeqCst);
                goes_on
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!has_gone_on.load(Ordering::SeqCst));
            assert!(stop.sleep(Duration::ZERO), "other work goes on");
            if ends {
                stop.set();
            } else {
                switch.set(false);
            }
            assert_eq!(thread.join().unwrap(), !ends);
        }
    }
}
