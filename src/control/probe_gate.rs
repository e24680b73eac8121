//! The gate between questions to the mount and its unmount.
//!
//! A question that is under way holds the mount, so the kernel refuses to unmount it. An unmount therefore closes the gate
//! first: no question begins from then on, and those under way end. An unmount that takes long is no reason not to ask any
//! more: after [`MOST_CLOSED`], questions pass the closed gate.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// The time after its last closing for which the gate keeps questions out.
const MOST_CLOSED: Duration = Duration::from_secs(60);

/// Gate that questions to the mount pass. A leaf.
#[derive(Debug, Default)]
pub(crate) struct ProbeGate {
    passage: Mutex<Passage>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Passage {
    /// The questions under way.
    under_way: usize,
    /// The unmounts under way.
    closed_by: usize,
    /// The time since which it is closed, by the last of them.
    closed_since: Option<Instant>,
}

/// Permission to ask the mount. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Probe<'a>(&'a ProbeGate);

/// Hold on a closed gate. It opens when this is dropped.
#[derive(Debug)]
pub(crate) struct Closed<'a>(&'a ProbeGate);

impl ProbeGate {
    /// Returns the permission to ask the mount; none while it is unmounted, but for an unmount that takes long.
    pub(crate) fn enter(&self) -> Option<Probe<'_>> {
        self.enter_at(Instant::now())
    }

    fn enter_at(&self, now: Instant) -> Option<Probe<'_>> {
        let mut passage = self.passage.lock();
        let is_over = |since| now.saturating_duration_since(since) >= MOST_CLOSED;
        (passage.closed_by == 0 || passage.closed_since.is_none_or(is_over)).then(|| {
            passage.under_way += 1;
            Probe(self)
        })
    }

    /// Closes the gate, and waits for the questions under way, but no longer than `patience`: a mount that hangs answers
    /// none.
    pub(crate) fn close(&self, patience: Duration) -> Closed<'_> {
        let mut passage = self.passage.lock();
        passage.closed_by += 1;
        passage.closed_since = Some(Instant::now());
        let is_busy = |passage: &mut Passage| passage.under_way > 0;
        let waited = self.changed.wait_while_for(&mut passage, is_busy, patience);
        if waited.timed_out() {
            tracing::debug!("a question to the mount is under way at its unmount");
        }
        drop(passage);
        Closed(self)
    }
}

impl ProbeGate {
    /// Takes a mount away after its pages were written back, and keeps questions out of both. `patience` is as for
    /// [`Self::close`].
    pub(crate) fn unmount<R>(
        &self,
        patience: Duration,
        write_back: impl FnOnce(),
        take_away: impl FnOnce() -> R,
    ) -> R {
        let _closed = self.close(patience);
        write_back();
        // It counts as closed for a while only, which may be over.
        let _again = self.close(patience);
        take_away()
    }
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        self.0.passage.lock().under_way -= 1;
        self.0.changed.notify_all();
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.passage.lock().closed_by -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn no_question_begins_while_the_gate_is_closed() {
        let gate = ProbeGate::default();
        drop(gate.enter().expect("it is open"));
        let closed = gate.close(LONG);
        let again = gate.close(LONG);
        assert!(gate.enter().is_none());
        drop(closed);
        assert!(gate.enter().is_none(), "another unmount is under way");
        drop(again);
        assert!(gate.enter().is_some());
    }

    #[test]
    fn a_gate_that_stays_closed_lets_questions_pass_until_it_is_closed_again() {
        let gate = ProbeGate::default();
        let closed = gate.close(LONG);
        let soon = Instant::now() + MOST_CLOSED / 2;
        let later = Instant::now() + MOST_CLOSED;
        assert!(gate.enter_at(soon).is_none());
        assert!(
            gate.enter_at(later).is_some(),
            "it hides a daemon that hangs"
        );
        let again = gate.close(LONG);
        assert!(gate.enter_at(soon).is_none());
        drop((closed, again));
        assert!(gate.enter_at(soon).is_some());
    }

    #[test]
    fn an_unmount_keeps_questions_out_while_it_writes_back_and_once_more_until_its_end() {
        let gate = ProbeGate::default();
        let probe = gate.enter().expect("it is open");
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                cauchyfs_testkit::eventually("it closes", LONG, || gate.enter().is_none());
                has_ended.store(true, Ordering::SeqCst);
                drop(probe);
            });
            let write_back = || {
                assert!(has_ended.load(Ordering::SeqCst), "it did not wait");
                assert!(gate.enter().is_none(), "a question may hold the mount");
            };
            let is_closed = gate.unmount(LONG, write_back, || gate.enter().is_none());
            assert!(is_closed, "a question may hold the mount");
        });
        assert!(gate.enter().is_some(), "the unmount is over");
        // However long the writing takes.
        let written_back = Cell::new(Instant::now());
        let write_back = || {
            written_back.set(Instant::now());
            std::thread::sleep(Duration::from_millis(2));
        };
        let is_closed = gate.unmount(LONG, write_back, || {
            let late = written_back.get() + MOST_CLOSED;
            gate.enter_at(late).is_none()
        });
        assert!(is_closed, "the first closing is over by then");
    }

    #[test]
    fn the_gate_waits_for_a_question_under_way_but_not_for_ever() {
        let gate = ProbeGate::default();
        let probe = gate.enter().expect("it is open");
        drop(gate.close(Duration::from_millis(1)));
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| {
                let closed = gate.close(LONG);
                assert!(has_ended.load(Ordering::SeqCst), "it did not wait");
                drop(closed);
            });
            cauchyfs_testkit::eventually("it closes", LONG, || gate.enter().is_none());
            has_ended.store(true, Ordering::SeqCst);
            drop(probe);
            closing.join().expect("it waited");
        });
    }
}
