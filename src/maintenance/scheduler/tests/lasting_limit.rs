//! The limit of orders whose work goes on after them.

use super::giving_up::reopen;
use super::rewriting::without_one;
use super::*;

const LIMIT: u64 = 5 << 20;

/// An unmount or a crash must not lift what its user chose, and the work may take days.
#[test]
fn work_that_waits_or_goes_on_at_the_next_open_keeps_the_limit_of_its_order_until_it_is_done() {
    for is_closed in [false, true] {
        let (disks, maintenance) = without_one();
        let rebuilds = Rebuilds::new(&maintenance, None);
        let order = rebuilds
            .orders
            .order_for_online(Some(LIMIT), false)
            .unwrap();
        rebuilds.scheduler.run().unwrap();
        assert!(matches!(rebuilds.outcome(order), Some(Ok(()))));
        assert!(maintenance.rebuild().awaits_rewrite().unwrap());
        assert_eq!(rebuilds.orders.bytes_per_second(), Some(LIMIT), "it waits");
        if is_closed {
            maintenance.close().unwrap();
        }
        let (disks, maintenance) = reopen(&disks, 3);
        let rebuilds = Rebuilds::new(&maintenance, None);
        let start = Instant::now();
        let run = |seconds| {
            let now = start + Duration::from_secs(seconds);
            rebuilds.scheduler.run_by(&|| now).unwrap();
            rebuilds.orders.bytes_per_second()
        };
        let limit = || maintenance.transactions().catalog.rebuild_limit().unwrap();
        assert_eq!((run(0), run(10)), (Some(LIMIT), Some(LIMIT)), "{is_closed}");
        assert_eq!(limit(), Some(LIMIT));
        disks[3].fail(None);
        let store: StoreRef = Arc::new(disks[3].open());
        maintenance
            .joining()
            .join(JoinAs::Returning, &store)
            .unwrap();
        assert_eq!(run(20), None, "closed: {is_closed}");
        assert!(!maintenance.rebuild().awaits_rewrite().unwrap());
        assert_eq!(limit(), None);
    }
}

/// A daemon may die after the limit was noted and before the order is.
#[test]
fn a_limit_without_work_ends_with_the_first_check() {
    let maintenance = two_members();
    let transactions = maintenance.transactions();
    transactions.note_rebuild_limit(Some(LIMIT)).unwrap();
    let rebuilds = Rebuilds::new(&maintenance, None);
    let start = Instant::now();
    let run = |seconds| {
        let now = start + Duration::from_secs(seconds);
        rebuilds.scheduler.run_by(&|| now).unwrap();
        rebuilds.orders.bytes_per_second()
    };
    assert_eq!((run(0), run(10)), (Some(LIMIT), None));
    assert_eq!(transactions.catalog.rebuild_limit().unwrap(), None);
}

#[test]
fn an_order_without_a_limit_lifts_that_of_work_that_an_earlier_one_left() {
    let maintenance = two_members();
    let transactions = maintenance.transactions();
    transactions.note_rebuild_limit(Some(LIMIT)).unwrap();
    let rebuilds = Rebuilds::new(&maintenance, None);
    rebuilds.scheduler.run().unwrap();
    rebuilds.orders.order(None, false).unwrap();
    assert_eq!(rebuilds.orders.bytes_per_second(), None);
    rebuilds.scheduler.run().unwrap();
    assert_eq!(transactions.catalog.rebuild_limit().unwrap(), None);
}
