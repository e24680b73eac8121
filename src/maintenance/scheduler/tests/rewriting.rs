//! Orders to rewrite files while members are away.

use super::*;

/// Makes a volume of four members with data, whose last one is away. Its files are to be rewritten.
pub(super) fn without_one() -> (Vec<MemDisk>, Arc<Maintenance>) {
    let mut options = CreateOptions::new(Geometry::new(1, 1).unwrap());
    options.unit_bytes = 64 << 10;
    let (disks, maintenance) = volume_of(4, &options, |stores| stores);
    write(&maintenance, &vec![7; 1 << 20]);
    order_two_one(&maintenance);
    disks[3].fail(Some(StoreErrorKind::Gone));
    maintenance.transactions().members().probe();
    (disks, maintenance)
}

fn has_slot(maintenance: &Maintenance, member: MemberIndex) -> bool {
    let segments = maintenance.transactions().stripes.segments().records();
    let mut segments = segments.iter();
    segments.any(|(_, record)| record.slots.contains(&Some(member)))
}

/// The command that gives files another code waits for a member that is away for a night.
#[test]
fn an_order_that_gives_no_member_up_leaves_the_shards_of_an_absent_one_and_files_wait_for_it() {
    let (disks, maintenance) = without_one();
    let absent = MemberIndex(3);
    let files = |disk: usize| disks[disk].open().list(files::SEGMENTS).unwrap();
    let before: Vec<_> = (0..3).map(files).collect();
    assert!(has_slot(&maintenance, absent));
    let rebuilds = Rebuilds::new(&maintenance, None);
    let start = Instant::now();
    let run = |seconds| {
        let now = start + Duration::from_secs(seconds);
        rebuilds.scheduler.run_by(&|| now).unwrap();
    };
    let order = rebuilds.orders.order_for_online(None, false).unwrap();
    for seconds in [0, 1, 2000] {
        run(seconds);
        let outcome = rebuilds.outcome(order);
        assert!(matches!(outcome, Some(Ok(()))), "{outcome:?}");
    }
    let membership = maintenance.transactions().members().membership();
    assert_eq!(membership.given_up(), BTreeSet::new());
    assert_eq!((0..3).map(files).collect::<Vec<_>>(), before);
    assert!(has_slot(&maintenance, absent));
    let status = maintenance.rebuild().rewrite_status().unwrap();
    assert!(status.is_ordered, "{status:?}");
    assert_eq!(status.awaited, [absent]);
    disks[3].fail(None);
    let store: StoreRef = Arc::new(disks[3].open());
    let joined = maintenance.joining().join(JoinAs::Returning, &store);
    joined.unwrap();
    run(2001);
    assert!(!maintenance.rebuild().awaits_rewrite().unwrap());
}

/// One order that gives absent members up counts for all that are open.
#[test]
fn a_rebuild_that_was_ordered_gives_members_up_beside_an_order_that_gives_none_up() {
    let (_disks, maintenance) = without_one();
    let rebuilds = Rebuilds::new(&maintenance, None);
    let absent = BTreeSet::from([MemberIndex(3)]);
    rebuilds.orders.order_giving_up(None, absent).unwrap();
    rebuilds.orders.order_for_online(None, false).unwrap();
    rebuilds.scheduler.run().unwrap();
    assert!(!has_slot(&maintenance, MemberIndex(3)));
    assert!(!maintenance.rebuild().awaits_rewrite().unwrap());
}

/// Nothing is left but the order, which must not end while another command adds a member.
#[test]
fn an_order_that_could_not_end_goes_on_without_the_members_that_its_rebuild_gave_up() {
    let (_disks, maintenance) = without_one();
    let rebuilds = Rebuilds::new(&maintenance, None);
    let absent = BTreeSet::from([MemberIndex(3)]);
    rebuilds.orders.order_giving_up(None, absent).unwrap();
    let kept = maintenance.transactions().catalog.keep_rewrite_orders();
    let start = Instant::now();
    rebuilds.scheduler.run_by(&|| start).unwrap();
    drop(kept);
    assert!(maintenance.rebuild().awaits_rewrite().unwrap());
    let later = start + Duration::from_secs(2000);
    rebuilds.scheduler.run_by(&|| later).unwrap();
    assert!(!maintenance.rebuild().awaits_rewrite().unwrap());
    let membership = maintenance.transactions().members().membership();
    assert_eq!(membership.given_up(), BTreeSet::new());
}
