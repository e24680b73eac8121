//! The members that a rebuild gives up, and those that keep their time.

use super::*;

/// Makes a volume of 1+1 on four disks with a file. Returns also the members that have shards of it.
pub(super) fn one_file(plan: &FaultPlan) -> (Vec<MemDisk>, Arc<Maintenance>, Vec<u16>) {
    let (disks, maintenance) = without_files(plan, 1, 4);
    write(&maintenance, &vec![7; 1 << 20]);
    let holds = |member: &u16| !held_by(&maintenance, *member).is_empty();
    let holders = (0..4).filter(holds).collect();
    (disks, maintenance, holders)
}

pub(super) fn given_up(maintenance: &Maintenance) -> BTreeSet<MemberIndex> {
    let members = maintenance.transactions().members();
    members.membership().given_up()
}

/// Makes an empty volume with one data shard.
fn without_files(
    plan: &FaultPlan,
    parity: usize,
    members: usize,
) -> (Vec<MemDisk>, Arc<Maintenance>) {
    let mut options = CreateOptions::new(Geometry::new(1, parity).unwrap());
    options.unit_bytes = 64 << 10;
    let wrap = |stores| FaultStore::wrap_all(stores, plan);
    volume_of(members, &options, wrap)
}

pub(super) fn lose(disks: &[MemDisk], maintenance: &Maintenance, member: u16) {
    disks[usize::from(member)].fail(Some(StoreErrorKind::Gone));
    maintenance.transactions().members().probe();
}

fn take_back(disks: &[MemDisk], maintenance: &Maintenance, member: u16) {
    let disk = &disks[usize::from(member)];
    disk.fail(None);
    let store: StoreRef = Arc::new(disk.open());
    let joining = maintenance.joining();
    joining.join(JoinAs::Returning, &store).unwrap();
}

/// Has the next rebuild begin with a second look at a stripe, which can take long. Returns the members that have its shards.
fn look_again_first(maintenance: &Maintenance) -> Vec<u16> {
    let stripes = &maintenance.transactions().stripes;
    let (from, end) = key::stripes();
    let found = maintenance.transactions().scan(&from, &end, 1).unwrap();
    let stripe = key::parse_stripe(&found[0].0).unwrap();
    let unrecoverable = stripes.damage().unrecoverable();
    unrecoverable.set(stripe, std::slice::from_ref(&(0..4096)));
    maintenance.recheck().make_due();
    let record = maintenance.transactions().stripe(stripe).unwrap().unwrap();
    let segment = stripes.segments().record(record.segment).unwrap();
    segment.slots.iter().flatten().map(|it| it.0).collect()
}

/// Runs the scheduler, and takes a member away while it reads shards of another one again.
fn run_losing(
    rebuilds: &Rebuilds,
    plan: &FaultPlan,
    (disks, maintenance): (&[MemDisk], &Maintenance),
    (read, gone): (u16, u16),
) {
    let fault = Fault::at(1, Effect::Hang).of(Scope::MemberKind(read.into(), CallKind::Read));
    run_meanwhile(rebuilds, plan, fault, Instant::now(), &|| {
        lose(disks, maintenance, gone);
    });
    let membership = maintenance.transactions().members().membership();
    assert!(!membership.is_live(MemberIndex(gone)));
}

/// Returns the members that segments name, in all their slots.
fn holders_of_slots(maintenance: &Maintenance) -> BTreeSet<Option<MemberIndex>> {
    let segments = maintenance.transactions().stripes.segments().records();
    let slots = segments.into_iter().flat_map(|(_, record)| record.slots);
    slots.collect()
}

/// The order was given with all members there. It begins with a second look at unrecoverable ranges, which can take long.
#[test]
fn a_member_that_goes_away_after_a_rebuild_was_decided_keeps_its_time() {
    let plan = FaultPlan::new();
    let (disks, maintenance, _) = one_file(&plan);
    let holding = look_again_first(&maintenance);
    let rebuilds = Rebuilds::new(&maintenance, None);
    rebuilds
        .orders
        .order_giving_up(None, BTreeSet::new())
        .unwrap();
    let volume = (&disks[..], &*maintenance);
    run_losing(&rebuilds, &plan, volume, (holding[0], holding[1]));
    assert_eq!(given_up(&maintenance), BTreeSet::new());
    assert_eq!(tolerated(&maintenance), Some(0), "its shards are its own");
}

/// Only the shards of the first one are moved.
#[test]
fn a_member_that_goes_away_after_a_rebuild_was_decided_for_another_one_keeps_its_shards() {
    for gives_up in [false, true] {
        let plan = FaultPlan::new();
        let (disks, maintenance) = without_files(&plan, 2, 5);
        write(&maintenance, &vec![7; 1 << 20]);
        let holding = look_again_first(&maintenance);
        let (gone_before, gone) = (MemberIndex(holding[2]), MemberIndex(holding[1]));
        lose(&disks, &maintenance, gone_before.0);
        let rebuilds = Rebuilds::new(&maintenance, None);
        if gives_up {
            let absent = BTreeSet::from([gone_before]);
            rebuilds.orders.order_giving_up(None, absent).unwrap();
        } else {
            rebuilds.orders.order(None, false).unwrap();
        }
        let volume = (&disks[..], &*maintenance);
        run_losing(&rebuilds, &plan, volume, (holding[0], gone.0));
        let holders = holders_of_slots(&maintenance);
        assert!(!holders.contains(&Some(gone_before)), "{gives_up}");
        assert!(holders.contains(&Some(gone)), "{gives_up}");
        assert_eq!(tolerated(&maintenance), Some(1), "{gives_up}");
        assert_eq!(given_up(&maintenance), BTreeSet::new());
        take_back(&disks, &maintenance, gone.0);
        rebuilds.orders.order(None, false).unwrap();
        rebuilds.scheduler.run().unwrap();
        assert_eq!(tolerated(&maintenance), Some(2), "{gives_up}");
    }
}

/// Makes a volume of 1+2 with a file that was written while the last of three members was away.
fn with_vacant_slots(plan: &FaultPlan) -> (Vec<MemDisk>, Arc<Maintenance>) {
    let (disks, maintenance) = without_files(plan, 2, 3);
    lose(&disks, &maintenance, 2);
    write(&maintenance, &vec![7; 1 << 20]);
    maintenance.transactions().sync().unwrap();
    assert!(holders_of_slots(&maintenance).contains(&None));
    (disks, maintenance)
}

#[test]
fn slots_without_a_holder_are_filled_although_a_member_went_away_after_the_rebuild_was_decided() {
    let plan = FaultPlan::new();
    let (disks, maintenance) = with_vacant_slots(&plan);
    take_back(&disks, &maintenance, 2);
    look_again_first(&maintenance);
    let rebuilds = Rebuilds::new(&maintenance, None);
    rebuilds.orders.order(None, false).unwrap();
    let volume = (&disks[..], &*maintenance);
    run_losing(&rebuilds, &plan, volume, (0, 1));
    let all = [0, 1, 2].map(|member| Some(MemberIndex(member)));
    assert_eq!(holders_of_slots(&maintenance), BTreeSet::from(all));
    assert_eq!(tolerated(&maintenance), Some(1));
}

/// It may stay away for ever.
#[test]
fn a_returned_member_fills_slots_without_a_holder_while_another_one_is_away() {
    let plan = FaultPlan::new();
    let (disks, maintenance) = with_vacant_slots(&plan);
    lose(&disks, &maintenance, 1);
    let rebuilds = Rebuilds::new(&maintenance, None);
    let start = Instant::now();
    let run = |seconds| {
        let now = start + Duration::from_secs(seconds);
        rebuilds.scheduler.run_by(&|| now).unwrap();
        tolerated(&maintenance)
    };
    assert_eq!((run(0), run(10)), (Some(0), Some(0)));
    assert!(
        holders_of_slots(&maintenance).contains(&None),
        "no member can take them"
    );
    take_back(&disks, &maintenance, 2);
    assert_eq!((run(11), run(20)), (Some(0), Some(1)));
    let all = [0, 1, 2].map(|member| Some(MemberIndex(member)));
    assert_eq!(holders_of_slots(&maintenance), BTreeSet::from(all));
}

/// Opens forks of some disks, as after the death of the daemon or an unmount.
pub(super) fn reopen(disks: &[MemDisk], without: u16) -> (Vec<MemDisk>, Arc<Maintenance>) {
    reopen_with(disks, without, &FaultPlan::new())
}

/// Does the same, with faults.
pub(super) fn reopen_with(
    disks: &[MemDisk],
    without: u16,
    plan: &FaultPlan,
) -> (Vec<MemDisk>, Arc<Maintenance>) {
    let disks: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
    let there = (0..).zip(&disks).filter(|(index, _)| *index != without);
    let there: Vec<MemDisk> = there.map(|(_, disk)| disk.clone()).collect();
    for disk in &there {
        disk.fail(None);
    }
    let options = OpenOptions {
        threads: 0,
        ..OpenOptions::default()
    };
    let executor = executor(Duration::from_secs(5));
    let stores = FaultStore::wrap_all(stores(&there), plan);
    let maintenance = Maintenance::open(stores, &options, executor).unwrap();
    (disks, maintenance)
}

/// As the order that comes with a new member. It gives up no member.
#[test]
fn a_rebuild_on_others_for_an_absent_member_goes_on_when_the_volume_is_opened_again_without_it() {
    for is_closed in [false, true] {
        let plan = FaultPlan::new();
        let (disks, maintenance, holders) = one_file(&plan);
        let (gone, other) = (holders[0], holders[1]);
        lose(&disks, &maintenance, gone);
        let rebuilds = Rebuilds::new(&maintenance, None);
        rebuilds.orders.order(None, false).unwrap();
        let fault = Fault::at(1, Effect::Hang).of(Scope::Kind(CallKind::Create));
        run_meanwhile(&rebuilds, &plan, fault, Instant::now(), &|| {
            rebuilds.stop.set();
        });
        assert_eq!(tolerated(&maintenance), Some(0), "it was interrupted");
        if is_closed {
            maintenance.close().unwrap();
        }
        let open = |without| {
            let (disks, maintenance) = reopen(&disks, without);
            let rebuilds = Rebuilds::new(&maintenance, None);
            rebuilds.scheduler.run().unwrap();
            assert_eq!(given_up(&maintenance), BTreeSet::new());
            let noted = maintenance.transactions().catalog.rebuilt_elsewhere();
            assert_eq!(noted.unwrap(), BTreeSet::new(), "closed: {is_closed}");
            (disks, tolerated(&maintenance))
        };
        let (_, whole) = open(gone);
        assert_eq!(whole, Some(1), "closed: {is_closed}");
        // Another one is away then.
        let (_, endangered) = open(other);
        assert_eq!(endangered, Some(0), "closed: {is_closed}");
    }
}

/// The shards are rebuilt on others either way.
#[test]
fn only_an_order_that_says_so_gives_up_the_absent_members() {
    for gives_up in [false, true] {
        let plan = FaultPlan::new();
        let (disks, maintenance, holders) = one_file(&plan);
        let gone = holders[0];
        disks[usize::from(gone)].fail(Some(StoreErrorKind::Gone));
        maintenance.transactions().members().probe();
        let rebuilds = Rebuilds::new(&maintenance, None);
        let absent = BTreeSet::from([MemberIndex(gone)]);
        if gives_up {
            rebuilds
                .orders
                .order_giving_up(None, absent.clone())
                .unwrap();
        } else {
            rebuilds.orders.order(None, false).unwrap();
        }
        let expected = if gives_up { absent } else { BTreeSet::new() };
        let fault = Fault::at(1, Effect::Hang).of(Scope::Kind(CallKind::Create));
        // A test that fails with the call hung would never end.
        let meanwhile = Mutex::new(None);
        run_meanwhile(&rebuilds, &plan, fault, Instant::now(), &|| {
            *meanwhile.lock() = Some(given_up(&maintenance));
        });
        assert_eq!(meanwhile.into_inner(), Some(expected), "{gives_up}");
        assert_eq!(tolerated(&maintenance), Some(1), "{gives_up}");
    }
}

/// A change to the code that the volume has already gives such an order.
#[test]
fn an_order_for_online_members_leaves_absent_members_their_shards() {
    let plan = FaultPlan::new();
    let (disks, maintenance, holders) = one_file(&plan);
    disks[usize::from(holders[0])].fail(Some(StoreErrorKind::Gone));
    maintenance.transactions().members().probe();
    let rebuilds = Rebuilds::new(&maintenance, None);
    let order = rebuilds.orders.order_for_online(None, false).unwrap();
    rebuilds.scheduler.run().unwrap();
    assert!(matches!(rebuilds.outcome(order), Some(Ok(()))));
    assert_eq!(given_up(&maintenance), BTreeSet::new());
    assert_eq!(tolerated(&maintenance), Some(0));
    rebuilds.orders.order(None, false).unwrap();
    rebuilds.scheduler.run().unwrap();
    assert_eq!(tolerated(&maintenance), Some(1));
}

/// The program that gave it waits for its end. A member went away since, which the index cannot remember any more.
#[test]
fn an_order_for_everything_ends_with_the_reason_on_a_volume_that_takes_no_more_writes() {
    let plan = FaultPlan::new();
    let (disks, maintenance, holders) = one_file(&plan);
    let rebuilds = Rebuilds::new(&maintenance, None);
    let order = rebuilds.orders.order(None, true).unwrap();
    lose(&disks, &maintenance, holders[0]);
    let stop = Arc::new(StopSignal::default());
    let until = Arc::clone(&stop);
    let job = BackgroundJob::new("bug", Duration::from_millis(1), move || {
        until.set();
        panic!("as a bug would");
    });
    job.repeat(maintenance.transactions().commits(), &stop);
    let now = Instant::now();
    for _ in 0..2 {
        // The second run has no order to carry out.
        let _ = rebuilds.scheduler.run_by(&|| now);
        let outcome = rebuilds.outcome(order);
        assert!(matches!(outcome, Some(Err(_))), "{outcome:?}");
    }
    let refused = rebuilds.orders.order(None, true);
    assert!(
        matches!(refused, Err(CommitError::Poisoned { .. })),
        "{refused:?}"
    );
    assert_eq!(rebuilds.orders.newest(), order, "nothing was ordered");
}
