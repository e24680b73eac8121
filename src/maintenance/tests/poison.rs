//! The state after a failed commit.

use super::*;
use crate::store::{CallKind, Effect, Fault, Scope};

/// Returns a volume in which a commit failed although its journal still works: two of the three
/// members that a stripe lies on failed when it was to be made durable.
fn with_a_failed_commit(rig: &Rig) -> TestFs {
    let plan = FaultPlan::new();
    let fs = rig.open_with_faults(&plan).unwrap();
    fs.write(1, &pattern(1, 2 * UNIT)).unwrap();
    for nth in 1..=2 {
        plan.add(Fault::at(nth, Effect::Eio).of(Scope::Kind(CallKind::Sync)));
    }
    let failed = fs.sync();
    assert!(
        matches!(failed, Err(CommitError::Poisoned { .. })),
        "{failed:?}"
    );
    assert!(!fs.transactions.members().membership().is_failed());
    fs
}

/// Callers that wait for a commit do not ask again whether the volume is poisoned: the one that is woken first leads
/// the next commit at once.
#[test]
fn no_commit_succeeds_after_one_that_failed() {
    let rig = Rig::new(2, 1, 5);
    let fs = with_a_failed_commit(&rig);
    let next = fs.transactions.commits.commit();
    assert!(
        matches!(next, Err(CommitError::Poisoned { .. })),
        "{next:?}"
    );
}
