//! Group commit: one runs at a time, and many callers share it. A call during a commit is served by the next.
//!
//! A caller waits on its thread, or leaves an [`Answer`]. The thread that makes a commit gives all answers itself, because
//! to wake a thread for each takes longer than most commits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use scopeguard::{ScopeGuard, guard_on_unwind};

use super::CommitError;

/// Tells a caller the outcome of its commit. It neither waits nor commits.
pub(crate) type Answer = Box<dyn FnOnce(Result<(), CommitError>) + Send>;

struct CommitState {
    /// Commits begun so far.
    begun: u64,
    /// The last commit that ended.
    ended: u64,
    /// The last that ended well.
    ended_well: u64,
    counts: CommitCounts,
    running: bool,
    outcome: Result<(), CommitError>,
    /// The answers that the next commit gives.
    answers: Vec<Answer>,
    /// The number of answers that the last commit gives, or gave.
    last_answered: usize,
    /// Set once no more answers are left here.
    closed: bool,
}

/// The commits since the volume was opened, and their callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitCounts {
    /// Commits that ended.
    pub commits: u64,
    /// Those of them that failed.
    pub failed: u64,
    /// Calls that wanted a commit. Each commit serves all that came before it.
    pub callers: u64,
    /// The time that all commits took.
    pub time: Duration,
}

/// Lets callers that want the same work share one run of it.
pub(crate) struct Group {
    state: Mutex<CommitState>,
    ended: Condvar,
    /// Wakes the thread that leads for answers.
    wanted: Condvar,
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
            counts: CommitCounts::default(),
            running: false,
            outcome: Ok(()),
            answers: Vec::new(),
            last_answered: 0,
            closed: false,
        };
        Self {
            state: Mutex::new(state),
            ended: Condvar::new(),
            wanted: Condvar::new(),
        }
    }

    /// Returns once a commit that began after this call has ended, with its outcome or that of a later one. A caller
    /// that finds none running leads: it runs `commit` without a lock.
    pub(crate) fn join(
        &self,
        commit: impl FnOnce() -> Result<(), CommitError>,
    ) -> Result<(), CommitError> {
        let mut state = self.state.lock();
        state.counts.callers += 1;
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
        self.run(state, commit)
    }

    /// Leaves an answer, which is given once a commit that began after this call has ended. Some thread must
    /// [lead](Self::lead). A caller that seems to be the only one runs its `commit` itself, if it has one: waking the thread
    /// that leads takes as long as a short commit. Of several callers none does, because the others would miss its commit.
    pub(crate) fn leave(
        &self,
        answer: Answer,
        commit: Option<impl FnOnce() -> Result<(), CommitError>>,
    ) {
        let mut state = self.state.lock();
        state.answers.push(answer);
        state.counts.callers += 1;
        if state.running {
            return;
        }
        let is_alone = state.answers.len() == 1 && state.last_answered <= 1;
        match commit.filter(|_| is_alone) {
            Some(commit) => self.run_contained(state, commit),
            None => {
                self.wanted.notify_one();
            }
        }
    }

    /// Waits until answers are wanted and no commit runs, and runs `commit`. Returns false, without a commit, once the
    /// group is closed and no answer is wanted. One thread does this.
    pub(crate) fn lead(&self, commit: impl FnOnce() -> Result<(), CommitError>) -> bool {
        let mut state = self.state.lock();
        while state.running || state.answers.is_empty() {
            if state.closed && state.answers.is_empty() {
                return false;
            }
            self.wanted.wait(&mut state);
        }
        self.run_contained(state, commit);
        true
    }

    /// Lets the thread that leads end once it has given all answers.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.wanted.notify_all();
    }

    /// Runs `commit`, of which only the answers tell the outcome. A panic ends no thread, because more callers may come.
    fn run_contained(
        &self,
        state: MutexGuard<'_, CommitState>,
        commit: impl FnOnce() -> Result<(), CommitError>,
    ) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.run(state, commit)));
    }

    fn run(
        &self,
        mut state: MutexGuard<'_, CommitState>,
        commit: impl FnOnce() -> Result<(), CommitError>,
    ) -> Result<(), CommitError> {
        state.running = true;
        state.begun += 1;
        let number = state.begun;
        let answers = std::mem::take(&mut state.answers);
        state.last_answered = answers.len();
        drop(state);
        let began = Instant::now();
        let unwinding = guard_on_unwind(answers, |answers| {
            let reason = "a commit panicked".into();
            let outcome = Err(CommitError::Poisoned { reason });
            self.end(number, began, answers, &outcome);
        });
        let outcome = commit();
        self.end(number, began, ScopeGuard::into_inner(unwinding), &outcome);
        outcome
    }

    fn end(
        &self,
        number: u64,
        began: Instant,
        answers: Vec<Answer>,
        outcome: &Result<(), CommitError>,
    ) {
        let mut state = self.state.lock();
        state.counts.commits += 1;
        state.counts.failed += u64::from(outcome.is_err());
        state.counts.time += began.elapsed();
        state.running = false;
        state.ended = number;
        if outcome.is_ok() {
            state.ended_well = number;
        }
        state.outcome.clone_from(outcome);
        self.ended.notify_all();
        if !state.answers.is_empty() {
            self.wanted.notify_one();
        }
        drop(state);
        for answer in answers {
            answer(outcome.clone());
        }
    }

    /// Returns the first commit that will cover all changes before this call.
    pub(crate) fn next(&self) -> CommitNumber {
        CommitNumber(self.state.lock().begun + 1)
    }

    /// Returns whether a commit, or a later one, ended well.
    pub(crate) fn has_ended(&self, number: CommitNumber) -> bool {
        self.state.lock().ended_well >= number.0
    }

    /// Returns the counts of commits and callers.
    pub(crate) fn counts(&self) -> CommitCounts {
        self.state.lock().counts
    }

    /// Returns how many commits ended.
    pub(crate) fn count(&self) -> u64 {
        self.state.lock().ended
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Group")
            .field("begun", &state.begun)
            .field("ended", &state.ended)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

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

    /// A wake-up for each caller takes longer than most commits.
    #[test]
    fn the_thread_that_commits_answers_all_that_called_before_its_commit_and_no_others() {
        let group = Arc::new(Group::new());
        let (answered, answers) = channel();
        let leave = |caller: u64| {
            let answered = answered.clone();
            let answer = move |outcome: Result<(), CommitError>| {
                let told = (caller, thread::current().id(), outcome.is_ok());
                answered.send(told).unwrap();
            };
            group.leave(
                Box::new(answer),
                Some(|| panic!("there are several callers")),
            );
        };
        let first = || {
            (0..3).for_each(leave);
            Ok(())
        };
        group.join(first).unwrap();
        let me = thread::current().id();
        for (commit, expected) in [(0..3), (3..6), (6..9)].into_iter().enumerate() {
            // These come while the commit runs.
            let run = || {
                assert!(answers.try_recv().is_err(), "answered before the end");
                (expected.end..expected.end + 3).for_each(leave);
                Ok(())
            };
            // A caller that waits on its thread answers as well.
            if commit == 1 {
                group.join(run).unwrap();
            } else {
                assert!(group.lead(run));
            }
            let told: Vec<_> = answers.try_iter().collect();
            let expected: Vec<_> = expected.map(|caller| (caller, me, true)).collect();
            assert_eq!(told, expected, "commit {commit}");
        }
        group.close();
        assert!(group.lead(|| Err(CommitError::NoSpace)), "three are left");
        let told: Vec<_> = answers.try_iter().collect();
        assert_eq!(told, [9, 10, 11].map(|caller| (caller, me, false)));
        let counts = group.counts();
        assert_eq!((counts.commits, counts.failed), (5, 1));
        // 12 left an answer, and two waited on their threads.
        assert_eq!(counts.callers, 14);
        assert!(!group.lead(|| Ok(())), "none is left");
    }

    #[test]
    fn a_caller_commits_by_itself_only_if_it_is_alone() {
        let group = Group::new();
        let (answered, answers) = channel();
        let answer = |caller: u64| -> Answer {
            let answered = answered.clone();
            Box::new(move |outcome| answered.send((caller, outcome.is_ok())).unwrap())
        };
        let told = || answers.try_iter().collect::<Vec<_>>();
        // Two come during the commit of the first, which gives them no answer.
        let first = || {
            for caller in [1, 2] {
                group.leave(answer(caller), Some(|| panic!("one commit runs at a time")));
            }
            Ok(())
        };
        group.leave(answer(0), Some(first));
        assert_eq!(told(), [(0, true)]);
        group.leave(
            answer(3),
            Some(|| panic!("others wait for the thread that leads")),
        );
        assert_eq!(told(), []);
        assert!(group.lead(|| Err(CommitError::NoSpace)));
        assert_eq!(told(), [(1, false), (2, false), (3, false)]);
        group.leave(
            answer(4),
            Some(|| panic!("there were several callers just now")),
        );
        assert!(group.lead(|| Ok(())));
        assert_eq!(told(), [(4, true)]);
        group.leave(answer(5), Some(|| panic!("as a bug would")));
        assert_eq!(told(), [(5, false)]);
        group.leave(answer(6), Some(|| Ok(())));
        assert_eq!(told(), [(6, true)]);
        group.leave(answer(7), None::<fn() -> Result<(), CommitError>>);
        assert_eq!(told(), []);
        assert!(group.lead(|| Ok(())));
        assert_eq!(told(), [(7, true)]);
    }

    #[test]
    fn callers_of_a_commit_that_panics_are_answered_and_so_are_those_after_them() {
        let group = Group::new();
        let (answered, answers) = channel();
        let leave = || {
            let answered = answered.clone();
            let answer: Answer = Box::new(move |outcome| answered.send(outcome).unwrap());
            let during = || {
                group.leave(answer, Some(|| panic!("a commit runs")));
                Ok(())
            };
            group.join(during).unwrap();
        };
        leave();
        assert!(group.lead(|| panic!("as a bug would")));
        let told = answers.try_recv().unwrap();
        assert!(
            matches!(told, Err(CommitError::Poisoned { .. })),
            "{told:?}"
        );
        leave();
        assert!(group.lead(|| Ok(())));
        assert!(answers.try_recv().unwrap().is_ok());
    }

    #[test]
    fn an_answer_is_given_by_the_caller_or_by_a_thread_that_waits_for_callers() {
        let group = Arc::new(Group::new());
        let leader = {
            let group = Arc::clone(&group);
            thread::spawn(move || while group.lead(|| Ok(())) {})
        };
        for round in 0..200 {
            let (answered, answers) = channel();
            let answer: Answer = Box::new(move |outcome| answered.send(outcome).unwrap());
            group.leave(answer, Some(|| Ok(())));
            // A commit of another thread may run meanwhile, or answer.
            if round % 2 == 0 {
                group.join(|| Ok(())).unwrap();
            }
            let told = answers.recv_timeout(Duration::from_secs(60));
            assert!(told.unwrap().is_ok(), "round {round}");
        }
        group.close();
        leader.join().unwrap();
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
