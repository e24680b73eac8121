use super::*;
use crate::store::{CallKind, Effect, Fault, Scope};

#[test]
fn released_directories_can_be_used_by_others_and_nothing_reaches_them_any_more() {
    let disks = Disks::volume(2, 1, 3);
    let plan = FaultPlan::new();
    let members = open(disks.faulty(0..3, &plan)).expect("all members are there");
    assert!(matches!(disks.open(0..3), Err(MembersError::InUse { .. })));
    assert!(members.release().is_empty());
    let next = disks.open(0..3).expect("nobody uses them");
    plan.record();
    members.probe();
    members.fail(MemberIndex(1), &io_error());
    let outcome = members.run(vec![(MemberIndex(0), sync_op())]).remove(0);
    assert_eq!(outcome.expect_err("released").kind(), StoreErrorKind::Gone);
    assert_eq!(plan.take_log(), []);
    assert_eq!(next.epoch(), Epoch(1));
}

#[test]
fn a_directory_on_which_an_operation_hangs_stays_locked_when_the_others_are_released() {
    let disks = Disks::volume(2, 1, 3);
    let plan = FaultPlan::new();
    let stores = disks.faulty(0..3, &plan);
    let executor = Executor::new(ExecutorKind::Threads, Duration::from_millis(200));
    let members = Members::open(stores, Access::ReadWrite, Arc::new(executor));
    let members = members.expect("all members are there");
    members.begin().expect("all members are there");
    plan.add(Fault::at(1, Effect::Hang).of(Scope::MemberKind(1, CallKind::Probe)));
    members.probe();
    assert_eq!(members.live(), indices([0, 2]));
    assert_eq!(members.release(), ["/d1"]);
    drop(disks.open([0, 2]).expect("nobody uses these"));
    assert!(matches!(disks.open(0..3), Err(MembersError::InUse { .. })));
    plan.release();
    // It answers in its own time.
    while !members.release().is_empty() {
        std::thread::yield_now();
    }
    let all = disks.open(0..3).expect("nobody uses any of them");
    assert_eq!(all.stale(), indices([1]));
}
