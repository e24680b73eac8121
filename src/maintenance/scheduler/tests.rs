//! Background work on volumes in memory.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cauchyfs_testkit::{disks, executor, stores};
use parking_lot::Mutex;

use super::job::BackgroundJob;
use super::rebuild_scheduling::RebuildScheduler;
use super::scrub::ScrubScheduler;
use super::*;
use crate::codec::{CodeId, Geometry};
use crate::format::record::{Backref, Extent, FileKind, Inline, Inode, Timestamp};
use crate::format::{Cookie, Ino, QuotaId, Record, StripeClass, files, key};
use crate::maintenance::{Pace, RebuildProgress, RebuildState, ScrubState};
use crate::membership::{Access, JoinAs};
use crate::metadata::Batch;
use crate::store::{
    CallKind, Effect, Fault, FaultPlan, FaultStore, MemDisk, Scope, Store, StoreErrorKind, StoreRef,
};
use crate::transaction::{CommitError, CreateOptions, OpenOptions, Transactions};

/// The time within which a vanished directory has to be marked missing.
const PROMISED: Duration = Duration::from_secs(3);

struct NoLocks;

impl InodeLocks for NoLocks {
    fn with_locked(&self, _: Ino, work: &mut dyn FnMut()) {
        work();
    }
}

/// Makes a volume of two members in memory.
pub(super) fn two_members() -> Arc<Maintenance> {
    volume(2).1
}

/// Makes a volume of 1+1 on disks in memory.
fn volume(count: usize) -> (Vec<MemDisk>, Arc<Maintenance>) {
    let options = CreateOptions::new(Geometry::new(1, 1).unwrap());
    volume_of(count, &options, |stores| stores)
}

fn volume_of(
    count: usize,
    options: &CreateOptions,
    wrap: impl FnOnce(Vec<StoreRef>) -> Vec<StoreRef>,
) -> (Vec<MemDisk>, Arc<Maintenance>) {
    let disks = disks(count, 32 << 20);
    let executor = executor(Duration::from_secs(5));
    Transactions::create(&stores(&disks), options, Arc::clone(&executor)).unwrap();
    let disks: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
    let options = OpenOptions {
        threads: 0,
        ..OpenOptions::default()
    };
    let maintenance = Maintenance::open(wrap(stores(&disks)), &options, executor).unwrap();
    (disks, maintenance)
}

/// The same of two disks, closed again and opened for reading only.
fn volume_to_read() -> (Vec<MemDisk>, Arc<Maintenance>) {
    let (disks, maintenance) = volume(2);
    maintenance.close().unwrap();
    let disks: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
    let executor = executor(Duration::from_secs(5));
    let options = OpenOptions {
        access: Access::ReadOnly,
        threads: 0,
        ..OpenOptions::default()
    };
    let maintenance = Maintenance::open(stores(&disks), &options, executor).unwrap();
    (disks, maintenance)
}

/// Makes a volume of 1+1 on four disks, the last of which has no copy of the index. It has a file in many segments, and
/// another member that is empty. All calls are counted.
fn to_be_balanced(plan: &FaultPlan) -> Arc<Maintenance> {
    disks_to_be_balanced(plan).1
}

fn disks_to_be_balanced(plan: &FaultPlan) -> (Vec<MemDisk>, Arc<Maintenance>) {
    let mut options = CreateOptions::new(Geometry::new(1, 1).unwrap());
    options.unit_bytes = 64 << 10;
    options.segment_bytes = 256 << 10;
    let wrap = |stores| FaultStore::wrap_all(stores, plan);
    let (mut disks, maintenance) = volume_of(4, &options, wrap);
    write(&maintenance, &vec![7; 6 << 20]);
    disks.push(MemDisk::new("new", 32 << 20));
    let new: StoreRef = Arc::new(disks[4].open());
    let new: StoreRef = Arc::new(FaultStore::new(new, 4, plan));
    maintenance.joining().join(JoinAs::New, &new).unwrap();
    (disks, maintenance)
}

fn is_balanced(maintenance: &Maintenance) -> bool {
    let wait = |_| true;
    let pace = Pace {
        bytes_per_second: &AtomicU64::new(0),
        wait: &wait,
    };
    maintenance
        .rebuild()
        .balance(&pace, &|| false, &RebuildProgress::default())
        .unwrap()
        .bytes_done
        == 0
}

/// Scheduler of rebuilds, and the orders that it carries out.
struct Rebuilds {
    orders: Arc<RebuildOrders>,
    scheduler: RebuildScheduler,
    stop: Arc<StopSignal>,
}

impl Rebuilds {
    /// Gives absent members so much time.
    fn new(maintenance: &Arc<Maintenance>, rebuild_after: Option<Duration>) -> Self {
        let stop = Arc::new(StopSignal::default());
        let orders = Arc::new(RebuildOrders::new(maintenance, None, 0, Arc::clone(&stop)));
        let scheduler = RebuildScheduler::new(
            maintenance,
            Arc::new(NoLocks),
            rebuild_after,
            Arc::clone(&orders),
            Arc::clone(&stop),
        );
        Self {
            orders,
            scheduler,
            stop,
        }
    }

    /// Returns the outcome of an order, if it was carried out.
    fn outcome(&self, order: OrderNumber) -> Option<Result<(), CommitError>> {
        self.orders.outcome(order, Duration::ZERO)
    }
}

/// Moves shards until one of the members that have them is lost.
fn lose_one_while_moving(rebuilds: &Rebuilds, plan: &FaultPlan, now: Instant) {
    plan.add(Fault::at(2, Effect::Eio).of(Scope::MemberKind(3, CallKind::Read)));
    let looks = AtomicU64::new(0);
    // It is lost later than the order was begun.
    let clock = || now + Duration::from_millis(looks.fetch_add(1, Ordering::Relaxed));
    rebuilds.scheduler.run_by(&clock).unwrap();
    assert_eq!(plan.triggered(), 1);
}

/// Moves shards until one of the members that have them is lost, which is given so much time from now on.
fn one_lost_while_moving(
    given: Duration,
    now: Instant,
) -> (Arc<Maintenance>, Rebuilds, OrderNumber) {
    let plan = FaultPlan::new();
    let maintenance = to_be_balanced(&plan);
    let rebuilds = Rebuilds::new(&maintenance, Some(given));
    let order = rebuilds.orders.order(None, true).unwrap();
    lose_one_while_moving(&rebuilds, &plan, now);
    (maintenance, rebuilds, order)
}

/// Returns how many losses the worst stripe bears.
fn tolerated(maintenance: &Maintenance) -> Option<i16> {
    let rows = maintenance.redundancy().redundancy().unwrap().rows.clone();
    rows.first().map(|row| row.losses_tolerated)
}

/// Returns the segments that have shards on a disk, by what the disk says.
fn held_by(maintenance: &Maintenance, member: u16) -> BTreeSet<String> {
    let store = maintenance
        .transactions()
        .members()
        .membership()
        .store(MemberIndex(member))
        .unwrap();
    let listed = store.list(files::SEGMENTS).unwrap();
    listed.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn shards_lost_during_balancing_are_rebuilt_before_more_shards_move() {
    let plan = FaultPlan::new();
    let maintenance = to_be_balanced(&plan);
    let lost = held_by(&maintenance, 3);
    let rebuilds = Rebuilds::new(&maintenance, Some(Duration::ZERO));
    let order = rebuilds.orders.order(None, true).unwrap();
    let now = Instant::now();
    lose_one_while_moving(&rebuilds, &plan, now);
    let stopped = maintenance.rebuild().status().progress();
    assert_eq!(stopped.state, RebuildState::Stopped, "{stopped:?}");
    assert!(stopped.bytes_left > 0, "{stopped:?}");
    assert!(rebuilds.outcome(order).is_none());
    let moved = held_by(&maintenance, 4);
    plan.record();
    let later = now + Duration::from_secs(1);
    rebuilds.scheduler.run_by(&|| later).unwrap();
    let outcome = rebuilds.outcome(order);
    assert!(matches!(outcome, Some(Ok(()))), "{outcome:?}");
    let made = plan.take_log().into_iter();
    let made = made.filter(|call| call.kind == CallKind::Create);
    let made: Vec<String> = made.map(|call| call.name).collect();
    let is_lost = |name: &String| lost.contains(name) && !moved.contains(name);
    let count = lost.iter().filter(|name| is_lost(name)).count();
    assert!(count > 2 && made.len() > count, "{lost:?} {made:?}");
    assert!(made[..count].iter().all(is_lost), "{lost:?} {made:?}");
    let rows = maintenance.redundancy().redundancy().unwrap().rows.clone();
    assert_eq!((rows.len(), rows[0].losses_tolerated), (1, 1));
    // The moves before, and the rebuild then, count with the moves after that.
    let done = maintenance.rebuild().status().progress();
    assert!(stopped.bytes_done > 0 && done.bytes_before > stopped.bytes_done);
    assert!(is_balanced(&maintenance));
}

/// All that was missing is rebuilt before shards are moved: there is nothing to look for meanwhile.
#[test]
fn balancing_is_not_interrupted_while_the_membership_stays_the_same() {
    let plan = FaultPlan::new();
    let maintenance = to_be_balanced(&plan);
    let rebuilds = Rebuilds::new(&maintenance, Some(Duration::from_secs(600)));
    let order = rebuilds.orders.order(None, true).unwrap();
    let (start, looks) = (Instant::now(), AtomicU64::new(0));
    let clock = || start + Duration::from_secs(looks.fetch_add(1, Ordering::Relaxed));
    rebuilds.scheduler.run_by(&clock).unwrap();
    assert!(
        looks.into_inner() > 10,
        "that is longer than nothing changed"
    );
    let outcome = rebuilds.outcome(order);
    assert!(matches!(outcome, Some(Ok(()))), "{outcome:?}");
}

#[test]
fn a_member_lost_during_balancing_has_all_the_time_to_return() {
    let given = Duration::from_secs(600);
    let start = Instant::now();
    let (maintenance, rebuilds, order) = one_lost_while_moving(given, start);
    let work_by = |clock: &dyn Fn() -> Instant| {
        rebuilds.scheduler.run_by(clock).unwrap();
        tolerated(&maintenance)
    };
    let just_before = start + Duration::from_secs(599);
    assert_eq!(work_by(&|| just_before), Some(0));
    let outcome = rebuilds.outcome(order);
    assert!(matches!(outcome, Some(Ok(()))), "{outcome:?}");
    let over = start + given + Duration::from_secs(1);
    assert_eq!(work_by(&|| over), Some(1));
}

#[test]
fn balancing_gives_way_once_the_time_of_an_absent_member_is_over() {
    let given = Duration::from_secs(600);
    let start = Instant::now();
    let (maintenance, rebuilds, order) = one_lost_while_moving(given, start);
    let moved = held_by(&maintenance, 4);
    let looks = AtomicU64::new(0);
    let clock = || match looks.fetch_add(1, Ordering::Relaxed) {
        0 => start + Duration::from_secs(1),
        _ => start + given + Duration::from_secs(1),
    };
    rebuilds.scheduler.run_by(&clock).unwrap();
    assert!(rebuilds.outcome(order).is_none());
    assert_eq!(held_by(&maintenance, 4), moved);
    assert_eq!(tolerated(&maintenance), Some(0));
    rebuilds.scheduler.run_by(&clock).unwrap();
    let outcome = rebuilds.outcome(order);
    assert!(matches!(outcome, Some(Ok(()))), "{outcome:?}");
    assert_eq!(tolerated(&maintenance), Some(1));
    assert!(is_balanced(&maintenance));
}

/// Runs the scheduler at a time until a fault has hung a call, and `meanwhile`. Then lets the call go on.
fn run_meanwhile(
    rebuilds: &Rebuilds,
    plan: &FaultPlan,
    fault: Fault,
    now: Instant,
    meanwhile: &dyn Fn(),
) {
    let before = plan.triggered();
    plan.add(fault);
    std::thread::scope(|scope| {
        let work = scope.spawn(|| rebuilds.scheduler.run_by(&|| now));
        while plan.triggered() == before && !work.is_finished() {
            std::thread::yield_now();
        }
        meanwhile();
        plan.release();
        work.join().unwrap().unwrap();
    });
    assert_eq!(plan.triggered(), before + 1);
}

#[test]
fn an_order_to_rebuild_does_not_wait_for_the_end_of_balancing() {
    let plan = FaultPlan::new();
    let maintenance = to_be_balanced(&plan);
    let rebuilds = Rebuilds::new(&maintenance, None);
    let is_open = |order| rebuilds.outcome(order).is_none();
    let now = Instant::now();
    // Runs `meanwhile` while the second of the shards to move is read.
    let work_meanwhile = |meanwhile: &dyn Fn()| {
        let fault = Fault::at(2, Effect::Hang).of(Scope::MemberKind(3, CallKind::Read));
        run_meanwhile(&rebuilds, &plan, fault, now, meanwhile);
    };
    let balance = rebuilds.orders.order(None, true).unwrap();
    let rebuild = Mutex::new(None);
    work_meanwhile(&|| *rebuild.lock() = Some(rebuilds.orders.order(None, false).unwrap()));
    let rebuild = rebuild.into_inner().unwrap();
    assert!(is_open(balance) && is_open(rebuild));
    work_meanwhile(&|| assert!(is_open(balance) && !is_open(rebuild)));
    assert!(!is_open(balance) && !is_open(rebuild));
    assert!(is_balanced(&maintenance));
}

/// Writes a file that is there once.
fn write(maintenance: &Maintenance, bytes: &[u8]) {
    let written = maintenance.transactions().write(bytes).unwrap();
    let mut batch = Batch::default();
    let mut end = 0;
    for placed in &written.placed {
        let (len, stripe_offset) = (u64::from(placed.len), placed.offset);
        let stripe = placed.stripe;
        end += len;
        let extent = Extent {
            len,
            stripe,
            stripe_offset,
        };
        let backref = Backref { len, stripe_offset };
        batch.put(key::extent(Ino(1), end), extent.encode());
        batch.put(key::backref(stripe, Ino(1), end), backref.encode());
    }
    maintenance.transactions().apply(batch).unwrap();
    maintenance.transactions().sync().unwrap();
}

#[test]
fn no_shard_waits_once_the_absent_member_returns_with_all_its_shards() {
    let (disks, maintenance) = volume(2);
    write(&maintenance, &vec![7; 2 << 20]);
    let away = MemberIndex(1);
    let store = maintenance
        .transactions()
        .members()
        .membership()
        .store(away)
        .unwrap();
    let error = store.open_len("nothing").unwrap_err();
    maintenance.transactions().members().io().fail(away, &error);
    let rebuilds = Rebuilds::new(&maintenance, None);
    rebuilds.orders.order(None, false).unwrap();
    rebuilds.scheduler.run().unwrap();
    let waiting = || maintenance.rebuild().status().progress().bytes_waiting;
    assert!(waiting() > 0);
    maintenance
        .joining()
        .join(JoinAs::Returning, &store)
        .unwrap();
    for disk in &disks {
        let space = disk.open().space().unwrap();
        disk.set_capacity(space.total_bytes - space.free_bytes);
    }
    // First it is noted that members are others now.
    for seconds in [60, 120] {
        let now = Instant::now() + Duration::from_secs(seconds);
        rebuilds.scheduler.run_by(&|| now).unwrap();
    }
    assert_eq!(waiting(), 0);
}

#[test]
fn shards_that_wait_for_room_are_rebuilt_soon_after_a_member_got_some() {
    let (disks, maintenance) = volume(3);
    write(&maintenance, &vec![7; 2 << 20]);
    let holds = |disk: &usize| {
        let segments = disks[*disk].open().list(files::SEGMENTS).unwrap();
        !segments.is_empty()
    };
    let lost = (0..3).find(holds).unwrap();
    let roomy = (0..3).find(|disk| !holds(disk)).unwrap();
    disks[lost].fail(Some(StoreErrorKind::Gone));
    maintenance.transactions().members().probe();
    let space = disks[roomy].open().space().unwrap();
    disks[roomy].set_capacity(space.total_bytes - space.free_bytes);
    let rebuilds = Rebuilds::new(&maintenance, None);
    rebuilds.orders.order(None, false).unwrap();
    rebuilds.scheduler.run().unwrap();
    let waiting = maintenance.rebuild().status().progress();
    assert!(waiting.bytes_waiting > 0, "{waiting:?}");
    let work_after = |seconds| {
        let now = Instant::now() + Duration::from_secs(seconds);
        rebuilds.scheduler.run_by(&|| now).unwrap();
        tolerated(&maintenance)
    };
    assert_eq!(work_after(60), Some(0));
    disks[roomy].set_capacity(64 << 20);
    assert_eq!(work_after(120), Some(1));
    assert!(holds(&roomy));
    assert_eq!(maintenance.rebuild().status().progress().bytes_waiting, 0);
}

/// The volume is idle, and no caller asks for its status.
#[test]
fn a_vanished_directory_is_marked_missing_without_a_request_even_on_a_read_only_volume() {
    for (disks, maintenance) in [volume(2), volume_to_read()] {
        let access = maintenance.transactions().members().access();
        let locks: Arc<dyn InodeLocks> = Arc::new(NoLocks);
        let scheduler = Scheduler::start(&maintenance, &locks, Schedule::default(), Vec::new())
            .expect("the system gives threads");
        disks[1].delete();
        let start = Instant::now();
        while maintenance.transactions().members().membership().live() != [MemberIndex(0)] {
            let waited = start.elapsed();
            assert!(
                waited < 10 * PROMISED,
                "{access:?}: still there after {waited:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        scheduler.stop();
    }
}

#[test]
fn an_order_to_rebuild_is_carried_out_before_the_next_check_is_due() {
    const FOR_EVER: Duration = Duration::from_secs(24 * 3600);
    let maintenance = two_members();
    let Rebuilds {
        orders,
        scheduler,
        stop,
    } = Rebuilds::new(&maintenance, None);
    let ordered = Arc::clone(&orders);
    let job = BackgroundJob::new("rebuild", FOR_EVER, move || scheduler.run());
    let job = job.or_once(move || ordered.has_open());
    let (commits, until) = (
        Arc::clone(maintenance.transactions().commits()),
        Arc::clone(&stop),
    );
    std::thread::scope(|scope| {
        scope.spawn(move || job.repeat(&commits, &until));
        for _ in 0..3 {
            let order = orders.order(None, false).unwrap();
            let outcome = orders.outcome(order, FOR_EVER);
            assert!(matches!(outcome, Some(Ok(()))), "{outcome:?}");
        }
        let next = OrderNumber(4);
        let outcome = orders.outcome(next, Duration::ZERO);
        assert!(outcome.is_none(), "{outcome:?}");
        stop.set();
    });
}

/// It would verify nothing of the member, again and again.
#[test]
fn a_scrub_without_an_order_begins_for_an_online_stale_copy() {
    let maintenance = two_members();
    let back = MemberIndex(1);
    let scheduler =
        ScrubScheduler::new(&maintenance, Arc::new(NoLocks), None, None, Arc::default());
    let scrub = || {
        scheduler.run_if_due().unwrap();
        maintenance.scrubber().scrub_status().unwrap().state
    };
    assert_eq!(scrub(), ScrubState::Never, "no member waits for one");
    maintenance
        .transactions()
        .members()
        .stale_copies()
        .note(back);
    let store = maintenance
        .transactions()
        .members()
        .membership()
        .store(back)
        .unwrap();
    let error = store.open_len("nothing").unwrap_err();
    maintenance.transactions().members().io().fail(back, &error);
    assert_eq!(scrub(), ScrubState::Never, "it is away");
    maintenance
        .joining()
        .join(JoinAs::Returning, &store)
        .unwrap();
    assert_eq!(scrub(), ScrubState::Finished);
    assert!(
        maintenance
            .transactions()
            .members()
            .stale_copies()
            .unverified()
            .is_empty()
    );
}

#[test]
fn a_step_that_panics_makes_the_volume_read_only_and_does_not_end_its_thread() {
    let maintenance = two_members();
    let stop = Arc::new(StopSignal::default());
    let steps = Arc::new(AtomicU64::new(0));
    let (until, count) = (Arc::clone(&stop), Arc::clone(&steps));
    let job = BackgroundJob::new("bug", Duration::from_millis(1), move || {
        if count.fetch_add(1, Ordering::Relaxed) == 2 {
            until.set();
        }
        panic!("as a bug would");
    });
    job.repeat(maintenance.transactions().commits(), &stop);
    assert_eq!(steps.load(Ordering::Relaxed), 3);
    let refused = maintenance.transactions().sync();
    assert!(
        matches!(&refused, Err(CommitError::Poisoned { reason }) if reason.contains("panicked")),
        "{refused:?}"
    );
}

/// No work waits for an absent member, no matter what was ordered or done before.
#[test]
fn an_ordered_rebuild_goes_on_when_the_volume_is_opened_again() {
    let (disks, maintenance) = volume(3);
    write(&maintenance, &vec![7; 2 << 20]);
    let holds = |disk: &usize| {
        let segments = disks[*disk].open().list(files::SEGMENTS).unwrap();
        !segments.is_empty()
    };
    let lost = (0..3).find(holds).unwrap();
    disks[lost].fail(Some(StoreErrorKind::Gone));
    maintenance.transactions().members().probe();
    for is_ordered in [false, true] {
        if is_ordered {
            maintenance
                .transactions()
                .members()
                .epochs()
                .give_up_absentees();
        }
        let left: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
        let left = left.iter().enumerate().filter(|(disk, _)| *disk != lost);
        let stores = stores(left.map(|(_, disk)| disk));
        let executor = executor(Duration::from_secs(5));
        let options = OpenOptions {
            threads: 0,
            ..OpenOptions::default()
        };
        let maintenance = Maintenance::open(stores, &options, executor).unwrap();
        let rebuilds = Rebuilds::new(&maintenance, None);
        rebuilds.scheduler.run().unwrap();
        let whole = i16::from(is_ordered);
        assert_eq!(
            tolerated(&maintenance),
            Some(whole),
            "ordered: {is_ordered}"
        );
        assert!(
            maintenance
                .transactions()
                .members()
                .membership()
                .given_up()
                .is_empty(),
            "it is done"
        );
    }
}

/// Gives the file a class of 2+1, and orders that its bytes get it.
fn order_two_one(maintenance: &Maintenance) {
    let transactions = maintenance.transactions();
    let geometry = Geometry::new(2, 1).unwrap();
    let class = transactions.class_for(geometry, CodeId::RS_CAUCHY).unwrap();
    let time = Timestamp::default();
    let inode = Inode {
        kind: FileKind::Regular,
        permissions: 0o600,
        uid: 0,
        gid: 0,
        links: 1,
        rdev: 0,
        size: 0,
        allocated_bytes: 0,
        unwritten_bytes: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        parent: Ino(0),
        next_cookie: Cookie(0),
        quota: QuotaId::NONE,
        class,
        inline: Inline::None,
    };
    let ordered = transactions.ordering_rewrite(|| {
        let mut batch = Batch::default();
        batch.put(key::inode(Ino(1)), inode.encode());
        transactions.apply(batch)
    });
    ordered.unwrap();
}

/// No run of the scheduler may see that the member is away.
#[test]
fn files_are_rewritten_as_soon_as_a_member_is_back_that_was_away() {
    for is_seen in [true, false] {
        let mut options = CreateOptions::new(Geometry::new(1, 1).unwrap());
        options.unit_bytes = 64 << 10;
        let (disks, maintenance) = volume_of(3, &options, |stores| stores);
        write(&maintenance, &vec![7; 1 << 20]);
        let rebuilds = Rebuilds::new(&maintenance, None);
        let start = Instant::now();
        let run = |millis| {
            let now = start + Duration::from_millis(millis);
            rebuilds.scheduler.run_by(&|| now).unwrap();
        };
        run(0);
        run(1);
        order_two_one(&maintenance);
        disks[2].fail(Some(StoreErrorKind::Gone));
        maintenance.transactions().members().probe();
        let awaits = || maintenance.rebuild().awaits_rewrite().unwrap();
        if is_seen {
            run(2);
        }
        assert!(awaits());
        disks[2].fail(None);
        let store: StoreRef = Arc::new(disks[2].open());
        let joined = maintenance.joining().join(JoinAs::Returning, &store);
        joined.unwrap();
        run(3);
        assert!(!awaits(), "{is_seen}");
        let mut segments = maintenance.transactions().stripes.segments().records();
        segments.retain(|(_, record)| record.class != StripeClass::VOLUME);
        assert!(!segments.is_empty(), "{is_seen}");
    }
}

/// Locks that others hold until they are told not to.
struct HeldLocks(AtomicBool);

impl InodeLocks for HeldLocks {
    fn with_locked(&self, _: Ino, work: &mut dyn FnMut()) {
        if !self.0.load(Ordering::SeqCst) {
            work();
        }
    }
}

/// A rebuild gave the absent member up, and could not move the files that others changed. Nothing else is due.
#[test]
fn the_rewriting_goes_on_by_itself_without_members_that_a_rebuild_gave_up() {
    let mut options = CreateOptions::new(Geometry::new(1, 1).unwrap());
    options.unit_bytes = 64 << 10;
    let (disks, maintenance) = volume_of(4, &options, |stores| stores);
    write(&maintenance, &vec![7; 1 << 20]);
    let stop = Arc::new(StopSignal::default());
    let orders = Arc::new(RebuildOrders::new(&maintenance, None, 0, Arc::clone(&stop)));
    let locks = Arc::new(HeldLocks(AtomicBool::new(true)));
    let scheduler = RebuildScheduler::new(
        &maintenance,
        Arc::clone(&locks) as _,
        None,
        Arc::clone(&orders),
        stop,
    );
    let start = Instant::now();
    let run = |seconds| {
        let now = start + Duration::from_secs(seconds);
        scheduler.run_by(&|| now).unwrap();
    };
    order_two_one(&maintenance);
    disks[3].fail(Some(StoreErrorKind::Gone));
    maintenance.transactions().members().probe();
    let absent = BTreeSet::from([MemberIndex(3)]);
    orders.order_giving_up(None, absent).unwrap();
    run(0);
    run(1);
    let rebuild = maintenance.rebuild();
    let membership = maintenance.transactions().members().membership();
    assert_eq!(membership.given_up().len(), 1);
    let status = rebuild.rewrite_status().unwrap();
    assert!(status.is_ordered && status.awaited.is_empty(), "{status:?}");
    locks.0.store(false, Ordering::SeqCst);
    run(2000);
    assert!(!rebuild.awaits_rewrite().unwrap());
}

mod giving_up;
mod lasting;
mod lasting_limit;
mod rewriting;
