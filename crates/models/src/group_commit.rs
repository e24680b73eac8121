//! Callers that share commits.

use std::sync::Arc;

use shuttle::thread;

use crate::Mutex;
use crate::transaction::CommitError;
use crate::transaction::group::Group;

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
}

/// A volume with nothing but its commits.
struct Volume {
    group: Group,
    ledger: Mutex<Ledger>,
}

impl Volume {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            group: Group::new(),
            ledger: Mutex::default(),
        })
    }

    /// Makes changes and waits until they are durable. Each answer must be that of a commit that contains the change.
    fn call(&self, changes: impl Iterator<Item = Changes>) {
        for change in changes {
            self.ledger.lock().made |= change;
            let number = self.group.next();
            let answer = self.group.join(|| self.commit());
            let ledger = self.ledger.lock();
            let gave_it = |commit: &Commit| {
                commit.changes & change != 0 && commit.outcome.as_ref() == Some(&answer)
            };
            assert!(
                ledger.commits.iter().any(gave_it),
                "change {change:#b} was answered with {answer:?}: {ledger:?}"
            );
            drop(ledger);
            assert!(answer.is_err() || self.group.has_ended(number));
        }
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
/// If a commit that lacks its change answers a caller, if an error does not reach a caller, or if two commits run at a
/// time. A caller that waits forever makes the scheduler panic.
pub fn callers_share_commits() {
    let volume = Volume::new();
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
}
