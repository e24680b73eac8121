use std::sync::Weak;

use super::*;
use crate::store::{CallKind, Effect, Fault, Hold, Scope};

#[test]
fn released_directories_can_be_used_by_others_and_nothing_reaches_them_any_more() {
    let disks = Disks::volume(2, 1, 3);
    let plan = FaultPlan::new();
    let members = open(disks.faulty(0..3, &plan)).expect("all members are there");
    assert!(matches!(disks.open(0..3), Err(MembersError::InUse { .. })));
    assert!(members.release().is_empty());
    let next = disks.open(0..3).expect("no other process uses them");
    plan.record();
    members.probe();
    members.io().fail(MemberIndex(1), &io_error());
    let outcome = members
        .io()
        .run(vec![(MemberIndex(0), sync_op())])
        .remove(0);
    assert_eq!(outcome.expect_err("released").kind(), StoreErrorKind::Gone);
    assert_eq!(plan.take_log(), []);
    assert_eq!(next.membership().epoch(), Epoch(1));
}

/// An unmount may release the directories while a command still changes the members.
#[test]
fn a_change_of_members_after_the_release_ends_and_is_refused() {
    let disks = Disks::volume(2, 1, 4);
    let members = open(disks.stores(0..4)).expect("all members are there");
    assert!(members.release().is_empty());
    let epoch = members.membership().epoch();
    let refused = members.changes().set_draining(MemberIndex(3), true);
    assert!(matches!(refused, Err(MembersError::NotNow)), "{refused:?}");
    assert_eq!(members.membership().epoch(), epoch);
    let again = open(disks.stores(0..4)).expect("no other process uses them");
    assert_eq!(again.membership().draining(), []);
}

#[test]
fn a_directory_on_which_an_operation_hangs_stays_locked_when_the_others_are_released() {
    let disks = Disks::volume(2, 1, 3);
    let plan = FaultPlan::new();
    let stores = disks.faulty(0..3, &plan);
    let executor = Executor::new(ExecutorKind::Threads, Duration::from_secs(1));
    let members = Members::open(stores, Access::ReadWrite, Arc::new(executor));
    let members = members.expect("all members are there");
    members.epochs().begin().expect("all members are there");
    plan.add(Fault::at(1, Effect::Hang).of(Scope::MemberKind(1, CallKind::Probe)));
    members.probe();
    assert_eq!(members.membership().live(), indices([0, 2]));
    assert_eq!(members.release(), ["/d1"]);
    drop(disks.open([0, 2]).expect("no other process uses these"));
    // The others can be opened, if the caller says so.
    assert!(matches!(
        disks.open(0..3),
        Err(MembersError::PartlyInUse { held }) if held.len() == 1 && held[0].path == "/d1"
    ));
    plan.release();
    // It answers in its own time.
    while !members.release().is_empty() {
        std::thread::yield_now();
    }
    let all = disks.open(0..3).expect("no other process uses any of them");
    assert_eq!(all.epochs().stale(), indices([1]));
}

/// The directories of a volume of three members, to be asked whether anything holds them still.
fn watched(disks: &Disks, plan: &FaultPlan) -> (Vec<StoreRef>, Vec<Weak<dyn Store>>) {
    let stores = disks.faulty(0..3, plan);
    let watches = stores.iter().map(Arc::downgrade).collect();
    (stores, watches)
}

#[test]
fn a_failed_directory_is_released_while_the_volume_stays_open() {
    let disks = Disks::volume(2, 1, 3);
    let plan = FaultPlan::new();
    let (stores, watches) = watched(&disks, &plan);
    let members = open(stores).expect("all members are there");
    disks.directories[1].fail(Some(StoreErrorKind::Io));
    members.probe();
    assert_eq!(members.membership().live(), indices([0, 2]));
    let held: Vec<_> = watches.iter().map(Weak::strong_count).collect();
    assert!(held[0] > 0 && held[1] == 0 && held[2] > 0, "{held:?}");
    disks.directories[1].fail(None);
    let lock = |index: usize| disks.directories[index].open().lock(Hold::Exclusive);
    drop(lock(1).expect("no other process uses it"));
    assert!(lock(0).is_err() && lock(2).is_err());
}

#[test]
fn a_directory_that_failed_stays_locked_until_an_epoch_without_it_is_durable() {
    let disks = Disks::volume(2, 1, 3);
    let plan = FaultPlan::new();
    let (stores, watches) = watched(&disks, &plan);
    let members = open(stores).expect("all members are there");
    let lock = || disks.directories[1].open().lock(Hold::Exclusive);
    // As while another thread is about to begin that epoch.
    members
        .membership()
        .mark_failed(MemberIndex(1), &io_error());
    members.release_absent();
    assert!(lock().is_err(), "the others do not know yet");
    members.epochs().publish_failures();
    members.release_absent();
    drop(lock().expect("no other process uses it"));
    assert_eq!(watches[1].strong_count(), 0);
}

#[test]
fn a_hung_directory_is_released_as_soon_as_its_last_call_returns() {
    let disks = Disks::volume(2, 1, 3);
    let plan = FaultPlan::new();
    let (stores, watches) = watched(&disks, &plan);
    let executor = Executor::new(ExecutorKind::Threads, Duration::from_secs(1));
    let members = Members::open(stores, Access::ReadWrite, Arc::new(executor));
    let members = members.expect("all members are there");
    members.epochs().begin().expect("all members are there");
    plan.add(Fault::at(1, Effect::Hang).of(Scope::MemberKind(1, CallKind::Probe)));
    members.probe();
    members.probe();
    assert_eq!(members.membership().live(), indices([0, 2]));
    let lock = || disks.directories[1].open().lock(Hold::Exclusive);
    assert!(lock().is_err(), "what hangs there may still take effect");
    plan.release();
    // It answers in its own time.
    while watches[1].strong_count() > 0 {
        members.probe();
        std::thread::yield_now();
    }
    drop(lock().expect("no other process uses it"));
}

#[test]
fn a_returned_directory_is_locked_and_its_former_handle_is_released() {
    let disks = Disks::volume(2, 1, 3);
    let plan = FaultPlan::new();
    let (stores, watches) = watched(&disks, &plan);
    let members = open(stores).expect("all members are there");
    for is_let_go in [false, true] {
        members.io().fail(MemberIndex(1), &io_error());
        if is_let_go {
            members.probe();
        }
        let again = Arc::new(disks.directories[1].open()) as StoreRef;
        let joined =
            members
                .changes()
                .join(JoinAs::Returning, &again, &Belongings::default(), |_, _| {
                    Ok::<_, MembersError>(())
                });
        assert_eq!(joined.expect("it was a member"), MemberIndex(1));
        members.probe();
        let lock = disks.directories[1].open().lock(Hold::Exclusive);
        assert!(lock.is_err(), "it is in use: {is_let_go}");
    }
    assert_eq!(watches[1].strong_count(), 0);
    assert!(members.release().is_empty());
    drop(disks.open(0..3).expect("no other process uses them"));
}
