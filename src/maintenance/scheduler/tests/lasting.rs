//! Orders that outlast the daemon, and work that is tried again.

use std::cell::Cell;

use super::giving_up::{given_up, lose, one_file, reopen, reopen_with};
use super::*;
use crate::store::CutPolicy;

/// A limit that slows nothing down here.
const LIMIT: Option<u64> = Some(1 << 40);

/// Stands for no member.
const NONE: u16 = u16::MAX;

/// Opens disks as after the death of the daemon, or after a power cut.
fn reopen_after_death(
    disks: &[MemDisk],
    without: u16,
    is_power_cut: bool,
) -> (Vec<MemDisk>, Arc<Maintenance>) {
    let disks: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
    if is_power_cut {
        for disk in &disks {
            disk.cut(CutPolicy::Drop);
        }
    }
    reopen(&disks, without)
}

fn segments_on(disk: &MemDisk) -> usize {
    let listed = disk.open().list(files::SEGMENTS);
    listed.map_or(0, |listed| listed.len())
}

/// Runs the scheduler once.
fn run(maintenance: &Arc<Maintenance>) {
    let rebuilds = Rebuilds::new(maintenance, None);
    rebuilds.scheduler.run().unwrap();
    assert!(!rebuilds.orders.has_open());
}

/// The thread that carries it out has not even looked at it.
#[test]
fn an_order_goes_on_if_the_daemon_dies_right_after_its_answer() {
    for is_power_cut in [false, true] {
        let plan = FaultPlan::new();
        let (disks, maintenance, holders) = one_file(&plan);
        let gone = holders[0];
        lose(&disks, &maintenance, gone);
        let rebuilds = Rebuilds::new(&maintenance, None);
        rebuilds.orders.order(None, false).unwrap();
        let (disks, maintenance) = reopen_after_death(&disks, gone, is_power_cut);
        let empty = (0..4).filter(|member| !holders.contains(member));
        let empty: Vec<u16> = empty.collect();
        let on_others = || -> usize {
            let others = empty.iter().map(|member| &disks[usize::from(*member)]);
            others.map(segments_on).sum()
        };
        assert_eq!(tolerated(&maintenance), Some(0), "{is_power_cut}");
        assert_eq!(on_others(), 0, "{is_power_cut}");
        run(&maintenance);
        assert_eq!(tolerated(&maintenance), Some(1), "{is_power_cut}");
        assert!(on_others() > 0, "{is_power_cut}");
    }
}

#[test]
fn the_end_of_a_rebuild_does_not_end_an_order_that_came_meanwhile() {
    let plan = FaultPlan::new();
    let (disks, maintenance, holders) = one_file(&plan);
    let gone = MemberIndex(holders[0]);
    lose(&disks, &maintenance, gone.0);
    let rebuilds = Rebuilds::new(&maintenance, None);
    let first = rebuilds.orders.order(None, false).unwrap();
    let later = Mutex::new(None);
    let fault = Fault::at(1, Effect::Hang).of(Scope::Kind(CallKind::Create));
    run_meanwhile(&rebuilds, &plan, fault, Instant::now(), &|| {
        *later.lock() = Some(rebuilds.orders.order(None, false).unwrap());
    });
    let later = later.into_inner().unwrap();
    assert!(matches!(rebuilds.outcome(first), Some(Ok(()))));
    assert!(rebuilds.outcome(later).is_none());
    let noted = || maintenance.transactions().catalog.rebuilt_elsewhere();
    assert_eq!(noted().unwrap(), BTreeSet::from([gone]));
    rebuilds.scheduler.run().unwrap();
    assert!(matches!(rebuilds.outcome(later), Some(Ok(()))));
    assert_eq!(noted().unwrap(), BTreeSet::new());
}

#[test]
fn the_end_of_a_rebuild_does_not_end_one_that_gives_up_another_member_meanwhile() {
    let plan = FaultPlan::new();
    let (disks, maintenance, holders) = one_file(&plan);
    let gone = MemberIndex(holders[0]);
    let later = (0..4).find(|member| !holders.contains(member));
    let later = MemberIndex(later.unwrap());
    let epochs = maintenance.transactions().members().epochs();
    let rebuilds = Rebuilds::new(&maintenance, None);
    let order = |member: MemberIndex| {
        lose(&disks, &maintenance, member.0);
        let absent = epochs.give_up_absentees();
        rebuilds.orders.order_giving_up(None, absent).unwrap();
    };
    order(gone);
    let fault = Fault::at(1, Effect::Hang).of(Scope::Kind(CallKind::Create));
    run_meanwhile(&rebuilds, &plan, fault, Instant::now(), &|| order(later));
    assert!(given_up(&maintenance).contains(&later));
    rebuilds.scheduler.run().unwrap();
    assert_eq!(given_up(&maintenance), BTreeSet::new());
}

/// The daemon dies or the volume is closed, right after the order or while shards move.
#[test]
fn balancing_goes_on_when_the_volume_is_opened_again() {
    for (has_begun, is_closed, is_power_cut) in [
        (false, false, false),
        (false, false, true),
        (false, true, false),
        (true, false, true),
        (true, true, false),
    ] {
        let context = format!("begun {has_begun}, closed {is_closed}, cut {is_power_cut}");
        let plan = FaultPlan::new();
        let (disks, maintenance) = disks_to_be_balanced(&plan);
        let rebuilds = Rebuilds::new(&maintenance, None);
        rebuilds.orders.order(None, true).unwrap();
        if has_begun {
            let fault = Fault::at(2, Effect::Hang).of(Scope::MemberKind(3, CallKind::Read));
            run_meanwhile(&rebuilds, &plan, fault, Instant::now(), &|| {
                rebuilds.stop.set();
            });
        }
        let before = segments_on(&disks[4]);
        assert_eq!(before > 0, has_begun, "{context}");
        if is_closed {
            maintenance.close().unwrap();
        }
        let (disks, maintenance) = reopen_after_death(&disks, NONE, is_power_cut);
        let awaits = || maintenance.rebuild().awaits_balance().unwrap();
        assert!(awaits(), "{context}");
        run(&maintenance);
        assert!(segments_on(&disks[4]) > before, "{context}");
        assert!(is_balanced(&maintenance), "{context}");
        assert!(!awaits(), "{context}");
        maintenance.close().unwrap();
        let (_, maintenance) = reopen(&disks, NONE);
        assert!(
            !maintenance.rebuild().awaits_balance().unwrap(),
            "{context}"
        );
    }
}

/// Asserts that work which `open` leaves to do is tried again after a lack of space. Tries each `step`th call as the first that
/// finds none. The work fails after `took` seconds.
fn assert_tried_again(
    open: &dyn Fn(&FaultPlan) -> Arc<Maintenance>,
    is_done: &dyn Fn(&Arc<Maintenance>) -> bool,
    (step, took): (usize, u64),
) {
    let mut failures = 0;
    for call in (1..).step_by(step) {
        let plan = FaultPlan::new();
        let maintenance = open(&plan);
        let membership = maintenance.transactions().members().membership();
        let live = membership.live();
        let rebuilds = Rebuilds::new(&maintenance, None);
        let start = Instant::now();
        let run = |seconds| {
            let now = start + Duration::from_secs(seconds);
            rebuilds.scheduler.run_by(&|| now)
        };
        let reason = || maintenance.rebuild().status().failure();
        plan.add(
            Fault::at(call, Effect::NoSpace)
                .of(Scope::Changing)
                .lasting(),
        );
        // The pause begins when the work fails.
        let has_begun = Cell::new(false);
        let outcome = rebuilds.scheduler.run_by(&|| {
            let seconds = if has_begun.replace(true) { took } else { 0 };
            start + Duration::from_secs(seconds)
        });
        if plan.triggered() == 0 {
            outcome.unwrap();
            break;
        }
        plan.clear();
        // Shards that find no room wait for it, and members that lack space for a part of a commit are lost.
        if !matches!(outcome, Err(CommitError::NoSpace)) || membership.live() != live {
            continue;
        }
        // All shards may be written when the copies of the index find no space.
        let is_left = !is_done(&maintenance);
        failures += u64::from(is_left);
        assert_eq!(reason(), Some(CommitError::NoSpace.to_string()), "{call}");
        run(took + 4).unwrap();
        assert_eq!(is_done(&maintenance), !is_left, "call {call}: a pause");
        assert!(reason().is_some(), "call {call}");
        if is_left {
            assert_eq!(rebuilds.orders.bytes_per_second(), LIMIT, "call {call}");
        }
        // Moves of shards begin with the second run.
        run(took + 5).unwrap();
        run(took + 5).unwrap();
        assert!(is_done(&maintenance), "call {call}");
        assert_eq!(reason(), None, "call {call}");
        if is_left {
            assert_eq!(rebuilds.orders.bytes_per_second(), None, "call {call}");
        }
    }
    assert!(failures > 0);
}

#[test]
fn a_rebuild_that_goes_on_after_a_mount_and_fails_is_tried_again() {
    for gives_up in [false, true] {
        let (disks, maintenance, holders) = one_file(&FaultPlan::new());
        let gone = holders[0];
        lose(&disks, &maintenance, gone);
        let rebuilds = Rebuilds::new(&maintenance, None);
        if gives_up {
            let epochs = maintenance.transactions().members().epochs();
            let absent = epochs.give_up_absentees();
            rebuilds.orders.order_giving_up(LIMIT, absent).unwrap();
        } else {
            rebuilds.orders.order(LIMIT, false).unwrap();
        }
        let open = |plan: &FaultPlan| {
            let (_, maintenance) = reopen_with(&disks, gone, plan);
            assert_eq!(given_up(&maintenance).is_empty(), !gives_up);
            assert_eq!(tolerated(&maintenance), Some(0));
            maintenance
        };
        let is_done = |maintenance: &Arc<Maintenance>| tolerated(maintenance) == Some(1);
        assert_tried_again(&open, &is_done, (1, 6));
    }
}

#[test]
fn balancing_that_goes_on_after_a_mount_and_fails_is_tried_again() {
    let (disks, maintenance) = disks_to_be_balanced(&FaultPlan::new());
    let rebuilds = Rebuilds::new(&maintenance, None);
    rebuilds.orders.order(LIMIT, true).unwrap();
    let open = |plan: &FaultPlan| reopen_with(&disks, NONE, plan).1;
    let awaits = |maintenance: &Arc<Maintenance>| maintenance.rebuild().awaits_balance().unwrap();
    let is_done = |maintenance: &Arc<Maintenance>| !awaits(maintenance) && is_balanced(maintenance);
    // Moves give way to a check, which is due after 5 seconds.
    assert_tried_again(&open, &is_done, (11, 0));
}
