//! The members that a rebuild gives up, and those that keep their time.

use super::*;

/// Makes a volume of 1+1 on four disks with a file. Returns also the members that have shards of it.
fn one_file(plan: &FaultPlan) -> (Vec<MemDisk>, Arc<Maintenance>, Vec<u16>) {
    let mut options = CreateOptions::new(Geometry::new(1, 1).unwrap());
    options.unit_bytes = 64 << 10;
    let wrap = |stores| FaultStore::wrap_all(stores, plan);
    let (disks, maintenance) = volume_of(4, &options, wrap);
    write(&maintenance, &vec![7; 1 << 20]);
    let holds = |member: &u16| !held_by(&maintenance, *member).is_empty();
    let holders = (0..4).filter(holds).collect();
    (disks, maintenance, holders)
}

fn given_up(maintenance: &Maintenance) -> BTreeSet<MemberIndex> {
    let members = maintenance.transactions().members();
    members.membership().given_up()
}

/// The order was given with all members there. It begins with a second look at unrecoverable ranges, which can take long.
#[test]
fn a_member_that_goes_away_after_a_rebuild_was_decided_keeps_its_time() {
    let plan = FaultPlan::new();
    let (disks, maintenance, holders) = one_file(&plan);
    let stripes = &maintenance.transactions().stripes;
    let (from, end) = key::stripes();
    let found = maintenance.transactions().scan(&from, &end, 1).unwrap();
    let stripe = key::parse_stripe(&found[0].0).unwrap();
    let unrecoverable = stripes.damage().unrecoverable();
    unrecoverable.set(stripe, std::slice::from_ref(&(0..4096)));
    maintenance.recheck().make_due();
    let rebuilds = Rebuilds::new(&maintenance, None);
    rebuilds.orders.order_giving_up(None, BTreeSet::new());
    let record = maintenance.transactions().stripe(stripe).unwrap().unwrap();
    let segment = stripes.segments().record(record.segment).unwrap();
    let holding: Vec<u16> = segment.slots.iter().flatten().map(|it| it.0).collect();
    let gone = holding[1];
    let fault = Fault::at(1, Effect::Hang).of(Scope::MemberKind(holding[0].into(), CallKind::Read));
    run_meanwhile(&rebuilds, &plan, fault, Instant::now(), &|| {
        disks[usize::from(gone)].fail(Some(StoreErrorKind::Gone));
        maintenance.transactions().members().probe();
    });
    assert!(holders.contains(&gone));
    assert_eq!(
        maintenance
            .transactions()
            .members()
            .membership()
            .live()
            .len(),
        3
    );
    assert_eq!(given_up(&maintenance), BTreeSet::new());
    assert_eq!(tolerated(&maintenance), Some(0), "its shards are its own");
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
            rebuilds.orders.order_giving_up(None, absent.clone());
        } else {
            rebuilds.orders.order(None, false);
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
    let order = rebuilds.orders.order_for_online(None, false);
    rebuilds.scheduler.run().unwrap();
    assert!(matches!(rebuilds.outcome(order), Some(Ok(()))));
    assert_eq!(given_up(&maintenance), BTreeSet::new());
    assert_eq!(tolerated(&maintenance), Some(0));
    rebuilds.orders.order(None, false);
    rebuilds.scheduler.run().unwrap();
    assert_eq!(tolerated(&maintenance), Some(1));
}
