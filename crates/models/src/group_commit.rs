//! Callers that share commits.

use std::sync::Arc;

use shuttle::thread;

use crate::transaction::CommitError;
pub use crate::transaction::group::CommitCounts;
use crate::transaction::group::Group;
use crate::{Condvar, Mutex};

/// Threads that make changes durable.
const CALLERS: usize = 3;

/// Changes of each of them.
const CALLS: usize = 2;

/// Of so many commits, one fails.
const FAILING: usize = 2;

/// A set of changes, one bit for each.
type Changes = u64;

/// A commit that began.
#[derive(Debug)]
struct Commit {
    /// The changes that it contains.
    changes: Changes,
    /// Its end, once it ended.
    outcome: Option<Result<(), CommitError>>,
}

/// The changes and commits so far.
#[derive(Debug, Default)]
struct Ledger {
    made: Changes,
    commits: Vec<Commit>,
    is_running: bool,
    /// The changes of callers that left an answer and were told the outcome.
    told: Changes,
}

/// A volume with nothing but its commits.
struct CommitsModel {
    group: Group,
    ledger: Mutex<Ledger>,
    /// Wakes the thread that waits until all are told.
    was_told: Condvar,
}

impl CommitsModel {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            group: Group::new(),
            ledger: Mutex::default(),
            was_told: Condvar::new(),
        })
    }

    /// Makes changes and waits until they are durable. Each answer must be that of a commit that contains the change.
    fn call(&self, changes: impl Iterator<Item = Changes>) {
        for change in changes {
            self.ledger.lock().made |= change;
            let number = self.group.next();
            let answer = self.group.join(|| self.commit());
            self.check(change, &answer);
            assert!(answer.is_err() || self.group.has_ended(number));
        }
    }

    /// Makes changes, and leaves answers in place of waiting.
    fn leave(self: &Arc<Self>, changes: impl Iterator<Item = Changes>) {
        for change in changes {
            self.ledger.lock().made |= change;
            let volume = Arc::clone(self);
            let answer = Box::new(move |answer| {
                volume.check(change, &answer);
                let mut ledger = volume.ledger.lock();
                assert!(ledger.told & change == 0, "{change:#b} is told twice");
                ledger.told |= change;
                volume.was_told.notify_all();
            });
            // A thread that must not commit leaves the answer alone.
            let may_commit = change.trailing_zeros().is_multiple_of(2);
            let commit = may_commit.then_some(|| self.commit());
            self.group.leave(answer, commit);
        }
    }

    fn check(&self, change: Changes, answer: &Result<(), CommitError>) {
        let ledger = self.ledger.lock();
        let gave_it = |commit: &Commit| {
            commit.changes & change != 0 && commit.outcome.as_ref() == Some(answer)
        };
        assert!(
            ledger.commits.iter().any(gave_it),
            "change {change:#b} was answered with {answer:?}: {ledger:?}"
        );
    }

    /// Commits all changes made so far. Every [`FAILING`]th commit fails, with its number.
    fn commit(&self) -> Result<(), CommitError> {
        let mut ledger = self.ledger.lock();
        assert!(!ledger.is_running, "two commits at a time");
        ledger.is_running = true;
        let changes = ledger.made;
        ledger.commits.push(Commit {
            changes,
            outcome: None,
        });
        let number = ledger.commits.len();
        drop(ledger);
        // Here the members write.
        thread::yield_now();
        let outcome = if number.is_multiple_of(FAILING) {
            let reason = number.to_string().into();
            Err(CommitError::Poisoned { reason })
        } else {
            Ok(())
        };
        let mut ledger = self.ledger.lock();
        ledger.is_running = false;
        ledger.commits[number - 1].outcome = Some(outcome.clone());
        outcome
    }
}

/// Callers make changes durable at once, and commits fail now and then.
///
/// # Panics
///
/// If a commit that lacks its change answers a caller, or if two commits run at a time. If an error does not reach a
/// caller. A caller that waits forever makes the scheduler panic.
pub fn callers_share_commits() {
    let volume = CommitsModel::new();
    let caller = |index: usize| {
        let volume = Arc::clone(&volume);
        let first = index * CALLS;
        thread::spawn(move || volume.call((first..first + CALLS).map(|change| 1 << change)))
    };
    let callers: Vec<_> = (0..CALLERS).map(caller).collect();
    for caller in callers {
        caller.join().expect("the caller returns");
    }
    let ledger = volume.ledger.lock();
    assert_eq!(volume.group.count(), ledger.commits.len() as u64);
    let counts = volume.group.counts();
    assert_eq!(counts.commits, ledger.commits.len() as u64);
    assert_eq!(counts.callers, (CALLERS * CALLS) as u64);
}

/// Callers leave answers, beside one that waits, and one thread commits for them.
///
/// # Panics
///
/// If a commit that lacks its change answers a caller, or if one is never told the outcome. A thread that waits forever
/// makes the scheduler panic.
pub fn callers_leave_answers() {
    let volume = CommitsModel::new();
    let leader = {
        let volume = Arc::clone(&volume);
        thread::spawn(move || while volume.group.lead(|| volume.commit()) {})
    };
    let caller = |index: usize| {
        let volume = Arc::clone(&volume);
        let first = index * CALLS;
        let changes = (first..first + CALLS).map(|change| 1 << change);
        thread::spawn(move || match index {
            0 => volume.call(changes),
            _ => volume.leave(changes),
        })
    };
    let callers: Vec<_> = (0..CALLERS).map(caller).collect();
    for caller in callers {
        caller.join().expect("the caller returns");
    }
    // Before the end of the group, which wakes the leader as well.
    let left: Changes = (CALLS..CALLERS * CALLS).map(|change| 1 << change).sum();
    let mut ledger = volume.ledger.lock();
    while ledger.told != left {
        volume.was_told.wait(&mut ledger);
    }
    drop(ledger);
    volume.group.close();
    leader.join().expect("the leader ends");
    let ledger = volume.ledger.lock();
    assert_eq!(volume.group.count(), ledger.commits.len() as u64);
}
