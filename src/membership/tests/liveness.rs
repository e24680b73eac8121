use std::sync::Barrier;

use super::*;
use crate::store::{CallKind, Effect, Fault, Scope};

fn probe(member: u16) -> (MemberIndex, Op) {
    (MemberIndex(member), Op::Probe)
}

#[test]
fn a_member_that_fails_an_operation_is_faulted_and_the_others_go_on() {
    let disks = Disks::volume(2, 1, 3);
    let plan = FaultPlan::new();
    let members = open(disks.faulty(0..3, &plan)).expect("all members are there");
    let fault = Fault::at(1, Effect::Eio).of(Scope::MemberKind(1, CallKind::Probe));
    plan.add(fault);
    let outcomes = members.io().run(vec![probe(0), probe(1), probe(2)]);
    let good: Vec<_> = outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(good, [true, false, true]);
    assert_eq!(members.membership().epoch(), Epoch(2));
    assert_eq!(members.membership().live(), indices([0, 2]));
    assert!(members.membership().store(MemberIndex(1)).is_none());
    assert!(!members.membership().is_failed());

    plan.record();
    let outcomes = members.io().run(vec![probe(1), probe(2)]);
    let error = outcomes[0].as_ref().expect_err("it is not asked again");
    assert_eq!(error.kind(), StoreErrorKind::Gone);
    assert!(outcomes[1].is_ok());
    let answer = members
        .io()
        .call(MemberIndex(1), "measure", |store| store.space());
    assert_eq!(answer.expect_err("nor here").kind(), StoreErrorKind::Gone);
    assert!(plan.take_log().iter().all(|call| call.member == 2));

    let status = members.status();
    assert_eq!(status[1].state, MemberState::Faulted);
    assert!(status[1].reason.is_some());
    assert_eq!((status[1].bytes_used, status[1].bytes_free), (0, 0));
    assert_eq!(status[0].state, MemberState::Online);
    assert!(status[0].bytes_used > 0 && status[0].bytes_free > 0);
}

#[test]
fn an_error_that_a_healthy_member_may_return_leaves_it_online() {
    let disks = Disks::volume(1, 1, 2);
    let members = disks.open(0..2).expect("all members are there");
    let outcomes = members.io().run(vec![
        (MemberIndex(0), sync_op()),
        (MemberIndex(1), sync_op()),
    ]);
    for outcome in outcomes {
        assert_eq!(
            outcome.expect_err("no such file").kind(),
            StoreErrorKind::NotFound
        );
    }
    assert_eq!(members.membership().live(), indices(0..2));
    assert_eq!(members.membership().epoch(), Epoch(1));
}

#[test]
fn outcomes_are_in_the_order_of_the_operations_whichever_member_is_absent() {
    let disks = Disks::volume(1, 3, 4);
    let members = disks.open([0, 1, 3]).expect("enough members");
    let store = members
        .membership()
        .store(MemberIndex(3))
        .expect("it is up");
    store.create("f", 4096).expect("there is room");
    let outcomes = members.io().run(vec![
        (MemberIndex(2), sync_op()),
        (MemberIndex(3), sync_op()),
        (MemberIndex(0), sync_op()),
        (MemberIndex(77), sync_op()),
        (MemberIndex(3), sync_op()),
    ]);
    let kinds: Vec<_> = outcomes
        .into_iter()
        .map(|outcome| outcome.err().map(|error| error.kind()))
        .collect();
    let (gone, absent) = (Some(StoreErrorKind::Gone), Some(StoreErrorKind::NotFound));
    assert_eq!(kinds, [gone, None, absent, gone, None]);
}

#[test]
fn errors_are_counted_by_kind() {
    let disks = Disks::volume(1, 1, 2);
    let members = disks.open(0..2).expect("all members are there");
    let pool = crate::store::Pool::new(0);
    let read = Op::Read {
        name: "f".into(),
        offset: 0,
        buf: pool.buffer(4096),
    };
    let outcomes = members
        .io()
        .run(vec![(MemberIndex(1), read), (MemberIndex(1), sync_op())]);
    assert!(outcomes.iter().all(Result::is_err));
    members
        .io()
        .count_error(MemberIndex(1), ErrorClass::Checksum);
    let errors = members.status().remove(1).errors;
    assert_eq!(
        errors,
        ErrorCounts {
            read: 1,
            write: 1,
            checksum: 1
        }
    );
}

#[test]
fn probe_and_hedged_probe_find_deleted_and_replaced_directories_missing() {
    let ways: [fn(&Members); 2] = [Members::probe, |members| members.io().probe_hedged()];
    for (replace, ask) in ways.map(|way| [(false, way), (true, way)]).concat() {
        let disks = Disks::volume(2, 1, 3);
        let members = disks.open(0..3).expect("all members are there");
        ask(&members);
        assert_eq!(
            members.membership().epoch(),
            Epoch(1),
            "nothing is wrong yet"
        );
        if replace {
            disks.directories[2].wipe();
        } else {
            disks.directories[2].delete();
        }
        ask(&members);
        assert_eq!(members.membership().live(), indices([0, 1]));
        assert_eq!(members.membership().epoch(), Epoch(2));
        assert_eq!(members.status()[2].state, MemberState::Missing);
    }
}

#[test]
fn with_fewer_than_data_shards_left_the_volume_has_failed() {
    let disks = Disks::volume(2, 1, 4);
    let members = disks.open(0..4).expect("all members are there");
    for (failed, gone) in [(false, 0), (false, 1), (true, 2), (true, 3)] {
        members.io().fail(MemberIndex(gone), &io_error());
        assert_eq!(
            members.membership().is_failed(),
            failed,
            "after member {gone}"
        );
    }
    assert_eq!(
        members.membership().epoch(),
        Epoch(3),
        "an epoch too few could carry is not begun"
    );
    assert_eq!(members.membership().live(), []);
    let error = members
        .epochs()
        .check_alive(&members.epochs().lock(), &BTreeSet::new())
        .expect_err("it has failed");
    assert!(error.remedy().is_some(), "{error}");
    drop(members);
    let members = disks.open(0..4).expect("they have come back");
    assert_eq!(members.current_at_open(), indices([2, 3]));
}

#[test]
fn all_members_failing_at_once_end_in_a_failed_volume() {
    let disks = Disks::volume(2, 2, 4);
    let members = disks.open(0..4).expect("all members are there");
    for disk in &disks.directories {
        disk.fail(Some(StoreErrorKind::Io));
    }
    members.probe();
    assert!(members.membership().is_failed());
    assert_eq!(members.membership().live(), []);
}

#[test]
fn a_stale_member_that_fails_begins_no_epoch() {
    let disks = Disks::volume(2, 1, 3);
    drop(disks.open([0, 1]).expect("enough members"));
    let members = disks.open(0..3).expect("all members are there");
    members.io().fail(MemberIndex(2), &io_error());
    assert_eq!(members.membership().epoch(), Epoch(2));
    assert_eq!(members.membership().live(), indices([0, 1]));
    members
        .epochs()
        .admit_stale()
        .expect("no member is left to admit");
    assert_eq!(members.membership().epoch(), Epoch(2));
}

#[test]
fn a_failure_seen_by_many_begins_one_epoch_and_all_of_them_wait_for_it() {
    let disks = Disks::volume(2, 1, 4);
    let members = disks.open(0..4).expect("all members are there");
    disks.directories[3].fail(Some(StoreErrorKind::Io));
    let barrier = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                barrier.wait();
                let outcome = members.io().run(vec![probe(3)]).remove(0);
                assert!(outcome.is_err());
                assert_eq!(
                    members.membership().epoch(),
                    Epoch(2),
                    "it was durable before run returned"
                );
            });
        }
    });
    assert_eq!(members.membership().epoch(), Epoch(2));
}

#[test]
fn an_operation_on_a_failed_member_waits_until_the_epoch_is_durable() {
    let disks = Disks::volume(2, 1, 3);
    let plan = FaultPlan::new();
    let members = open(disks.faulty(0..3, &plan)).expect("all members are there");
    plan.add(Fault::at(1, Effect::Hang).of(Scope::MemberKind(1, CallKind::Sync)));
    std::thread::scope(|scope| {
        scope.spawn(|| members.io().fail(MemberIndex(0), &io_error()));
        while plan.triggered() == 0 {
            std::thread::yield_now();
        }
        // The epoch hangs half way; member 0 takes no more operations already.
        let met = scope.spawn(|| {
            let outcome = members.io().run(vec![probe(0)]).remove(0);
            (outcome.is_err(), members.membership().epoch())
        });
        // Time for a wrong implementation to return too early; a right one passes without it.
        std::thread::sleep(Duration::from_millis(50));
        plan.release();
        assert_eq!(met.join().expect("it returns"), (true, Epoch(2)));
    });
}

#[test]
fn read_only_changes_nothing_and_keeps_writers_out_alone() {
    let disks = Disks::volume(2, 1, 3);
    drop(disks.open([0, 1]).expect("enough members"));
    let writer = disks.open([1, 2, 0]).expect("all members are there");
    let plan = FaultPlan::new();
    plan.record();
    let look = || Members::open(disks.faulty(0..3, &plan), Access::ReadOnly, inline());
    // The writes of a writer meanwhile would look like damage.
    assert!(matches!(look(), Err(MembersError::InUse { .. })));
    drop(writer);
    let members = look().expect("the writer is gone");
    let other = look().expect("readers go together");
    assert!(matches!(
        disks.open([1, 2, 0]),
        Err(MembersError::InUse { .. })
    ));
    drop(other);
    assert_eq!(members.epochs().stale(), indices([2]));
    members.epochs().admit_stale().expect("nothing to be done");
    members.io().fail(MemberIndex(0), &io_error());
    assert_eq!(members.membership().live(), indices([1, 2]));
    members.io().fail(MemberIndex(1), &io_error());
    assert!(members.membership().is_failed());
    let log = plan.take_log();
    assert!(!log.is_empty());
    assert!(log.iter().all(|call| !call.kind.changes()), "{log:?}");
}

#[test]
fn a_torn_slot_costs_nothing_and_two_cost_the_member() {
    let fresh = Disks::volume(2, 1, 3);
    let used = fresh.fork();
    drop(used.open([0, 1]).expect("enough members"));
    let damage = |disks: &Disks, slot: usize| {
        let offset = (slot * SLOT_BYTES) as u64;
        assert!(disks.directories[0].corrupt(
            files::SUPERBLOCK,
            offset + 40,
            |byte| byte[0] ^= 1,
            1
        ));
    };
    for (age, disks) in [("fresh", &fresh), ("used", &used)] {
        for slot in [0, 1] {
            let disks = disks.fork();
            damage(&disks, slot);
            let members = disks.open([0, 1]).expect("the other slot is whole");
            let current = members.current_at_open();
            assert_eq!(current, indices([0, 1]), "{age}, slot {slot}");
        }
    }
    damage(&used, 0);
    damage(&used, 1);
    let error = used
        .open(0..3)
        .expect_err("stripes of epoch 2 lie on members 0 and 1 alone");
    assert!(
        error
            .to_string()
            .starts_with("1 member up to date, 2 needed to mount"),
        "{error}"
    );
    assert!(can_be_read(&error), "{error}");
    let members = Members::open(used.stores(0..3), Access::ReadOnly, inline());
    let members = members.expect("older stripes are on members 1 and 2 too");
    assert_eq!(members.current_at_open(), indices([1]));
    assert_eq!(members.epochs().stale(), indices([2]));
}

#[test]
fn empty_damaged_and_unreadable_directories_count_as_missing_for_that_reason() {
    type Harm = fn(&MemDisk);
    let harms: [(Harm, &str); 5] = [
        (MemDisk::wipe, "is its disk mounted?"),
        (MemDisk::delete, "cannot"),
        (|disk| disk.fail(Some(StoreErrorKind::Io)), "cannot"),
        (
            |disk| {
                let store = disk.open();
                store.truncate(files::SUPERBLOCK, 10).expect("it works");
            },
            "superblock is damaged",
        ),
        (
            |disk| {
                let store = disk.open();
                store.create(files::JOURNALS[0], 1).expect("there is room");
                store.remove(files::SUPERBLOCK).expect("it works");
            },
            "superblock is gone",
        ),
    ];
    for (harm, reason) in harms {
        let disks = Disks::volume(2, 1, 3);
        harm(&disks.directories[1]);
        let members = disks
            .open(0..3)
            .unwrap_or_else(|error| panic!("{reason}: {error}"));
        assert_eq!(members.membership().live(), indices([0, 2]), "{reason}");
        let unusable = members.unusable();
        assert_eq!(unusable.len(), 1);
        assert_eq!(unusable[0].path, "/d1");
        assert!(
            unusable[0].reason.to_string().contains(reason),
            "{unusable:?}"
        );
        let status = &members.status()[1];
        assert_eq!(status.state, MemberState::Missing);
        assert_eq!(
            status.reason.as_ref(),
            Some(&unusable[0].reason),
            "the place is known"
        );
    }
}
