//! Group commit: one runs at a time, and many callers share it. A call during a commit is served by the next.

use parking_lot::{Condvar, Mutex};
use scopeguard::{ScopeGuard, guard_on_unwind};

use super::CommitError;

#[derive(Debug)]
struct CommitState {
    /// Commits begun so far.
    begun: u64,
    /// The last commit that ended.
    ended: u64,
    /// The last that ended well.
    ended_well: u64,
    running: bool,
    outcome: Result<(), CommitError>,
}

/// Lets callers that want the same work share one run of it.
#[derive(Debug)]
pub(crate) struct Group {
    state: Mutex<CommitState>,
    ended: Condvar,
}

/// A commit, by the order in which they begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CommitNumber(u64);

impl Group {
    pub(crate) fn new() -> Self {
        let state = CommitState {
            begun: 0,
            ended: 0,
            ended_well: 0,
            running: false,
            outcome: Ok(()),
        };
        Self {
            state: Mutex::new(state),
            ended: Condvar::new(),
        }
    }

    /// Returns once a commit that began after this call has ended, with its outcome or that of a later one. A caller
    /// that finds none running leads: it runs `commit` without a lock.
    pub(crate) fn join(
        &self,
        commit: impl FnOnce() -> Result<(), CommitError>,
    ) -> Result<(), CommitError> {
        let mut state = self.state.lock();
        let mine = state.begun + 1;
        loop {
            if state.ended >= mine {
                return state.outcome.clone();
            }
            if !state.running {
                break;
            }
            self.ended.wait(&mut state);
        }
        state.running = true;
        state.begun += 1;
        let number = state.begun;
        drop(state);
        let unwinding = guard_on_unwind((), |()| {
            let reason = "a commit panicked".into();
            self.end(number, Err(CommitError::Poisoned { reason }));
        });
        let outcome = commit();
        ScopeGuard::into_inner(unwinding);
        self.end(number, outcome.clone());
        outcome
    }

    fn end(&self, number: u64, outcome: Result<(), CommitError>) {
        let mut state = self.state.lock();
        state.running = false;
        state.ended = number;
        if outcome.is_ok() {
            state.ended_well = number;
        }
        state.outcome = outcome;
        self.ended.notify_all();
    }

    /// Returns the first commit that will cover all changes before this call.
    pub(crate) fn next(&self) -> CommitNumber {
        CommitNumber(self.state.lock().begun + 1)
    }

    /// Returns whether a commit, or a later one, ended well.
    pub(crate) fn has_ended(&self, number: CommitNumber) -> bool {
        self.state.lock().ended_well >= number.0
    }

    /// Returns how many commits ended.
    pub(crate) fn count(&self) -> u64 {
        self.state.lock().ended
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn everything_done_before_joining_is_covered_by_the_commit_that_is_waited_for() {
        let group = Arc::new(Group::new());
        let done = Arc::new(AtomicU64::new(0));
        let covered = Arc::new(AtomicU64::new(0));
        let commits = Arc::new(AtomicU64::new(0));
        let worker = |_| {
            let (group, done) = (Arc::clone(&group), Arc::clone(&done));
            let (covered, commits) = (Arc::clone(&covered), Arc::clone(&commits));
            thread::spawn(move || {
                for _ in 0..200 {
                    let mine = done.fetch_add(1, Ordering::SeqCst) + 1;
                    let commit = || {
                        let seen = done.load(Ordering::SeqCst);
                        thread::yield_now();
                        covered.store(seen, Ordering::SeqCst);
                        commits.fetch_add(1, Ordering::SeqCst);
                        Ok(())
                    };
                    group.join(commit).unwrap();
                    assert!(covered.load(Ordering::SeqCst) >= mine);
                }
            })
        };
        let workers: Vec<_> = (0..8).map(worker).collect();
        for worker in workers {
            worker.join().unwrap();
        }
        assert!(commits.load(Ordering::SeqCst) <= 1600);
        assert_eq!(group.count(), commits.load(Ordering::SeqCst));
    }

    #[test]
    fn callers_that_wait_for_a_commit_that_panics_get_an_error() {
        let group = Arc::new(Group::new());
        let waiter = {
            let group = Arc::clone(&group);
            move || group.join(|| Err(CommitError::NoSpace))
        };
        let (begun, is_waiting) = (group.count(), std::sync::mpsc::channel());
        let leader = {
            let group = Arc::clone(&group);
            thread::spawn(move || {
                let commit = || {
                    is_waiting.1.recv().unwrap();
                    panic!("as a bug would");
                };
                drop(group.join(commit));
            })
        };
        while group.next() == CommitNumber(begun + 1) {
            thread::yield_now();
        }
        let waiter = thread::spawn(waiter);
        is_waiting.0.send(()).unwrap();
        assert!(leader.join().is_err());
        // It leads the next, whether it came before or after.
        assert!(matches!(waiter.join().unwrap(), Err(CommitError::NoSpace)));
        assert!(!group.has_ended(CommitNumber(begun + 1)));
    }

    #[test]
    fn a_failed_commit_does_not_count_as_ended_well_but_a_later_one_does() {
        let group = Group::new();
        let number = group.next();
        assert!(group.join(|| Err(CommitError::NoSpace)).is_err());
        assert!(!group.has_ended(number));
        group.join(|| Ok(())).unwrap();
        assert!(group.has_ended(number));
        assert!(group.join(|| Err(CommitError::NoSpace)).is_err());
        assert!(group.has_ended(number));
    }
}
