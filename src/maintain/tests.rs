//! Background work on volumes in memory.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::*;
use crate::codec::Geometry;
use crate::commit::{CreateOptions, OpenOptions, Pace, RebuildProgress, RebuildState, ScrubState};
use crate::format::record::{Backref, Extent};
use crate::format::{Ino, Record, files, key};
use crate::members::Seat;
use crate::meta::Batch;
use crate::store::{
    CallKind, Effect, Executor, ExecutorKind, Fault, FaultPlan, FaultStore, MemDisk, Scope, Store,
    StoreErrorKind, StoreRef,
};

/// The time within which a vanished directory has to be marked missing.
const PROMISED: Duration = Duration::from_secs(3);

struct NoLocks;

impl InodeLocks for NoLocks {
    fn with_locked(&self, _: Ino, work: &mut dyn FnMut()) {
        work();
    }
}

/// Makes a volume of two members in memory.
fn pipeline() -> Arc<Pipeline> {
    volume(2).1
}

/// Makes a volume of 1+1 on disks in memory.
fn volume(count: usize) -> (Vec<MemDisk>, Arc<Pipeline>) {
    let options = CreateOptions::new(Geometry::new(1, 1).unwrap());
    volume_of(count, &options, |stores| stores)
}

fn volume_of(
    count: usize,
    options: &CreateOptions,
    wrap: impl FnOnce(Vec<StoreRef>) -> Vec<StoreRef>,
) -> (Vec<MemDisk>, Arc<Pipeline>) {
    let disks: Vec<MemDisk> = (0..count)
        .map(|index| MemDisk::new(&format!("disk{index}"), 32 << 20))
        .collect();
    let stores = |disks: &[MemDisk]| -> Vec<StoreRef> {
        let open = |disk: &MemDisk| Arc::new(disk.open()) as StoreRef;
        disks.iter().map(open).collect()
    };
    let executor = Arc::new(Executor::new(ExecutorKind::Inline, Duration::from_secs(5)));
    Pipeline::create(&stores(&disks), options, Arc::clone(&executor)).unwrap();
    let disks: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
    let options = OpenOptions {
        threads: 0,
        ..OpenOptions::default()
    };
    let pipeline = Pipeline::open(wrap(stores(&disks)), &options, executor).unwrap();
    (disks, pipeline)
}

/// The same of two disks, closed again and opened for reading only.
fn volume_to_read() -> (Vec<MemDisk>, Arc<Pipeline>) {
    let (disks, pipeline) = volume(2);
    pipeline.close().unwrap();
    let disks: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
    let stores = disks.iter().map(|disk| Arc::new(disk.open()) as StoreRef);
    let executor = Arc::new(Executor::new(ExecutorKind::Inline, Duration::from_secs(5)));
    let options = OpenOptions {
        access: Access::ReadOnly,
        threads: 0,
        ..OpenOptions::default()
    };
    let pipeline = Pipeline::open(stores.collect(), &options, executor).unwrap();
    (disks, pipeline)
}

/// Makes a volume of 1+1 on four disks, the last of which has no copy of the index. It has a file in many segments, and
/// another member that is empty. All calls are counted.
fn to_be_balanced(plan: &FaultPlan) -> Arc<Pipeline> {
    let mut options = CreateOptions::new(Geometry::new(1, 1).unwrap());
    options.unit_bytes = 64 << 10;
    options.segment_bytes = 256 << 10;
    let wrap = |stores| FaultStore::wrap_all(stores, plan);
    let (_, pipeline) = volume_of(4, &options, wrap);
    write(&pipeline, &vec![7; 6 << 20]);
    let new: StoreRef = Arc::new(MemDisk::new("new", 32 << 20).open());
    let new: StoreRef = Arc::new(FaultStore::new(new, 4, plan));
    pipeline.join(Seat::New, &new).unwrap();
    pipeline
}

fn is_balanced(pipeline: &Pipeline) -> bool {
    let wait = |_| true;
    let pace = Pace {
        bytes_per_second: &AtomicU64::new(0),
        wait: &wait,
    };
    pipeline
        .balance(&pace, &|| false, &RebuildProgress::default())
        .unwrap()
        .bytes_done
        == 0
}

/// Gives absent members so much time.
fn rebuilder_after(time: Duration) -> Rebuilder {
    let schedule = Schedule {
        rebuild_after: Some(time),
        ..Schedule::default()
    };
    Rebuilder::new(schedule, Arc::new(Stop::default()))
}

/// Moves shards until one of the members that have them is lost.
fn lose_one_while_moving(
    rebuilder: &Rebuilder,
    plan: &FaultPlan,
    pipeline: &Pipeline,
    now: Instant,
) {
    plan.add(Fault::at(2, Effect::Eio).of(Scope::MemberKind(3, CallKind::Read)));
    let looks = AtomicU64::new(0);
    // It is lost later than the order was begun.
    let clock = || now + Duration::from_millis(looks.fetch_add(1, Ordering::Relaxed));
    rebuilder.work_by(&clock, pipeline, &NoLocks).unwrap();
    assert_eq!(plan.triggered(), 1);
}

/// Moves shards until one of the members that have them is lost, which is given so much time from now on.
fn one_lost_while_moving(given: Duration, now: Instant) -> (Arc<Pipeline>, Rebuilder, OrderNumber) {
    let plan = FaultPlan::new();
    let pipeline = to_be_balanced(&plan);
    let rebuilder = rebuilder_after(given);
    let order = rebuilder.order(None, true);
    lose_one_while_moving(&rebuilder, &plan, &pipeline, now);
    (pipeline, rebuilder, order)
}

/// Returns how many losses the worst stripe bears.
fn tolerated(pipeline: &Pipeline) -> Option<i16> {
    let rows = pipeline
        .redundancy_counter()
        .redundancy()
        .unwrap()
        .rows
        .clone();
    rows.first().map(|row| row.losses_tolerated)
}

/// Returns the segments that have shards on a disk, by what the disk says.
fn held_by(pipeline: &Pipeline, member: u16) -> BTreeSet<String> {
    let store = pipeline.members().store(MemberIndex(member)).unwrap();
    let listed = store.list(files::SEGMENTS).unwrap();
    listed.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn what_is_lost_while_shards_are_moved_is_rebuilt_before_more_are() {
    let plan = FaultPlan::new();
    let pipeline = to_be_balanced(&plan);
    let lost = held_by(&pipeline, 3);
    let rebuilder = rebuilder_after(Duration::ZERO);
    let order = rebuilder.order(None, true);
    let now = Instant::now();
    lose_one_while_moving(&rebuilder, &plan, &pipeline, now);
    let stopped = pipeline.rebuild_progress();
    assert_eq!(stopped.state, RebuildState::Stopped, "{stopped:?}");
    assert!(stopped.bytes_left > 0, "{stopped:?}");
    assert!(rebuilder.outcome(order, Duration::ZERO).is_none());
    let moved = held_by(&pipeline, 4);
    plan.record();
    let later = now + Duration::from_secs(1);
    rebuilder.work_by(&|| later, &pipeline, &NoLocks).unwrap();
    let outcome = rebuilder.outcome(order, Duration::ZERO);
    assert!(matches!(outcome, Some(Ok(()))), "{outcome:?}");
    let made = plan.take_log().into_iter();
    let made = made.filter(|call| call.kind == CallKind::Create);
    let made: Vec<String> = made.map(|call| call.name).collect();
    let is_lost = |name: &String| lost.contains(name) && !moved.contains(name);
    let count = lost.iter().filter(|name| is_lost(name)).count();
    assert!(count > 2 && made.len() > count, "{lost:?} {made:?}");
    assert!(made[..count].iter().all(is_lost), "{lost:?} {made:?}");
    let rows = pipeline
        .redundancy_counter()
        .redundancy()
        .unwrap()
        .rows
        .clone();
    assert_eq!((rows.len(), rows[0].losses_tolerated), (1, 1));
    // The moves before, and the rebuild then, count with the moves after that.
    let done = pipeline.rebuild_progress();
    assert!(stopped.bytes_done > 0 && done.bytes_before > stopped.bytes_done);
    assert!(is_balanced(&pipeline));
}

/// All that was missing is rebuilt before shards are moved: there is nothing to look for meanwhile.
#[test]
fn the_moving_of_shards_is_not_interrupted_if_nobody_goes() {
    let plan = FaultPlan::new();
    let pipeline = to_be_balanced(&plan);
    let rebuilder = rebuilder_after(Duration::from_secs(600));
    let order = rebuilder.order(None, true);
    let (start, looks) = (Instant::now(), AtomicU64::new(0));
    let clock = || start + Duration::from_secs(looks.fetch_add(1, Ordering::Relaxed));
    rebuilder.work_by(&clock, &pipeline, &NoLocks).unwrap();
    assert!(
        looks.into_inner() > 10,
        "that is longer than nothing changed"
    );
    let outcome = rebuilder.outcome(order, Duration::ZERO);
    assert!(matches!(outcome, Some(Ok(()))), "{outcome:?}");
}

#[test]
fn who_goes_while_shards_are_moved_has_all_the_time_to_come_back() {
    let given = Duration::from_secs(600);
    let start = Instant::now();
    let (pipeline, rebuilder, order) = one_lost_while_moving(given, start);
    let work_by = |clock: &dyn Fn() -> Instant| {
        rebuilder.work_by(clock, &pipeline, &NoLocks).unwrap();
        tolerated(&pipeline)
    };
    let just_before = start + Duration::from_secs(599);
    assert_eq!(work_by(&|| just_before), Some(0));
    let outcome = rebuilder.outcome(order, Duration::ZERO);
    assert!(matches!(outcome, Some(Ok(()))), "{outcome:?}");
    let over = start + given + Duration::from_secs(1);
    assert_eq!(work_by(&|| over), Some(1));
}

#[test]
fn the_moving_of_shards_gives_way_once_the_time_is_over_of_who_is_away() {
    let given = Duration::from_secs(600);
    let start = Instant::now();
    let (pipeline, rebuilder, order) = one_lost_while_moving(given, start);
    let moved = held_by(&pipeline, 4);
    let looks = AtomicU64::new(0);
    let clock = || match looks.fetch_add(1, Ordering::Relaxed) {
        0 => start + Duration::from_secs(1),
        _ => start + given + Duration::from_secs(1),
    };
    rebuilder.work_by(&clock, &pipeline, &NoLocks).unwrap();
    assert!(rebuilder.outcome(order, Duration::ZERO).is_none());
    assert_eq!(held_by(&pipeline, 4), moved);
    assert_eq!(tolerated(&pipeline), Some(0));
    rebuilder.work_by(&clock, &pipeline, &NoLocks).unwrap();
    let outcome = rebuilder.outcome(order, Duration::ZERO);
    assert!(matches!(outcome, Some(Ok(()))), "{outcome:?}");
    assert_eq!(tolerated(&pipeline), Some(1));
    assert!(is_balanced(&pipeline));
}

#[test]
fn an_order_to_rebuild_does_not_wait_until_all_is_moved() {
    let plan = FaultPlan::new();
    let pipeline = to_be_balanced(&plan);
    let rebuilder = Rebuilder::new(Schedule::default(), Arc::new(Stop::default()));
    let is_open = |order| rebuilder.outcome(order, Duration::ZERO).is_none();
    let now = Instant::now();
    // Runs `meanwhile` while the second of the shards to move is read.
    let work_meanwhile = |meanwhile: &dyn Fn()| {
        let before = plan.triggered();
        plan.add(Fault::at(2, Effect::Hang).of(Scope::MemberKind(3, CallKind::Read)));
        std::thread::scope(|scope| {
            let work = scope.spawn(|| rebuilder.work_by(&|| now, &pipeline, &NoLocks));
            while plan.triggered() == before && !work.is_finished() {
                std::thread::yield_now();
            }
            meanwhile();
            plan.release();
            work.join().unwrap().unwrap();
        });
        assert_eq!(plan.triggered(), before + 1);
    };
    let balance = rebuilder.order(None, true);
    let rebuild = Mutex::new(None);
    work_meanwhile(&|| *rebuild.lock() = Some(rebuilder.order(None, false)));
    let rebuild = rebuild.into_inner().unwrap();
    assert!(is_open(balance) && is_open(rebuild));
    work_meanwhile(&|| assert!(is_open(balance) && !is_open(rebuild)));
    assert!(!is_open(balance) && !is_open(rebuild));
    assert!(is_balanced(&pipeline));
}

/// Writes a file that is there once.
fn write(pipeline: &Pipeline, bytes: &[u8]) {
    let written = pipeline.write(bytes).unwrap();
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
    pipeline.apply(batch).unwrap();
    pipeline.sync().unwrap();
}

#[test]
fn nothing_waits_once_who_was_away_is_back_with_all_that_it_had() {
    let (disks, pipeline) = volume(2);
    write(&pipeline, &vec![7; 2 << 20]);
    let away = MemberIndex(1);
    let store = pipeline.members().store(away).unwrap();
    let error = store.open_len("nothing").unwrap_err();
    pipeline.members().fail(away, &error);
    let rebuilder = Rebuilder::new(Schedule::default(), Arc::new(Stop::default()));
    rebuilder.order(None, false);
    rebuilder.work(&pipeline, &NoLocks).unwrap();
    let waiting = || pipeline.rebuild_progress().bytes_waiting;
    assert!(waiting() > 0);
    pipeline.join(Seat::Own, &store).unwrap();
    for disk in &disks {
        let space = disk.open().space().unwrap();
        disk.set_capacity(space.total_bytes - space.free_bytes);
    }
    // First it is noted that members are others now.
    for seconds in [60, 120] {
        let now = Instant::now() + Duration::from_secs(seconds);
        rebuilder.work_by(&|| now, &pipeline, &NoLocks).unwrap();
    }
    assert_eq!(waiting(), 0);
}

#[test]
fn what_waits_for_room_is_rebuilt_soon_after_some_came() {
    let (disks, pipeline) = volume(3);
    write(&pipeline, &vec![7; 2 << 20]);
    let holds = |disk: &usize| {
        let segments = disks[*disk].open().list(files::SEGMENTS).unwrap();
        !segments.is_empty()
    };
    let lost = (0..3).find(holds).unwrap();
    let roomy = (0..3).find(|disk| !holds(disk)).unwrap();
    disks[lost].fail(Some(StoreErrorKind::Gone));
    pipeline.members().probe();
    let space = disks[roomy].open().space().unwrap();
    disks[roomy].set_capacity(space.total_bytes - space.free_bytes);
    let rebuilder = Rebuilder::new(Schedule::default(), Arc::new(Stop::default()));
    rebuilder.order(None, false);
    rebuilder.work(&pipeline, &NoLocks).unwrap();
    let waiting = pipeline.rebuild_progress();
    assert!(waiting.bytes_waiting > 0, "{waiting:?}");
    let work_after = |seconds| {
        let now = Instant::now() + Duration::from_secs(seconds);
        rebuilder.work_by(&|| now, &pipeline, &NoLocks).unwrap();
        tolerated(&pipeline)
    };
    assert_eq!(work_after(60), Some(0));
    disks[roomy].set_capacity(64 << 20);
    assert_eq!(work_after(120), Some(1));
    assert!(holds(&roomy));
    assert_eq!(pipeline.rebuild_progress().bytes_waiting, 0);
}

/// The volume is idle, and no caller asks for its status.
#[test]
fn a_directory_that_vanishes_is_left_behind_by_itself_also_where_nothing_may_be_written() {
    for (disks, pipeline) in [volume(2), volume_to_read()] {
        let access = pipeline.members().access();
        let locks = Arc::new(NoLocks);
        let maintain = Maintain::start(&pipeline, locks, Schedule::default(), Vec::new())
            .expect("the system gives threads");
        disks[1].delete();
        let start = Instant::now();
        while pipeline.members().live() != [MemberIndex(0)] {
            let waited = start.elapsed();
            assert!(
                waited < 10 * PROMISED,
                "{access:?}: still there after {waited:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        maintain.stop();
    }
}

#[test]
fn an_order_to_rebuild_is_taken_and_answered_without_waiting_for_the_time_to_look() {
    const FOR_EVER: Duration = Duration::from_secs(24 * 3600);
    let pipeline = pipeline();
    let stop = Arc::new(Stop::default());
    let rebuilder = Rebuilder::new(Schedule::default(), Arc::clone(&stop));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            repeat(
                &pipeline,
                &|| rebuilder.wait_for_order(FOR_EVER),
                &|pipeline| rebuilder.work(pipeline, &NoLocks),
            );
        });
        for _ in 0..3 {
            let order = rebuilder.order(None, false);
            let outcome = rebuilder.outcome(order, FOR_EVER);
            assert!(matches!(outcome, Some(Ok(()))), "{outcome:?}");
        }
        let next = OrderNumber(4);
        let outcome = rebuilder.outcome(next, Duration::ZERO);
        assert!(outcome.is_none(), "{outcome:?}");
        stop.stop();
    });
}

/// It would verify nothing of the member, again and again.
#[test]
fn a_scrub_begins_by_itself_for_a_member_that_was_put_back_while_that_takes_part() {
    let pipeline = pipeline();
    let back = MemberIndex(1);
    let stop = Stop::default();
    let scrub = || {
        scrub_if_due(&pipeline, &NoLocks, &stop, Schedule::default()).unwrap();
        pipeline.scrub_status().unwrap().state
    };
    assert_eq!(scrub(), ScrubState::Never, "nobody waits for one");
    pipeline.members().note_put_back(back);
    let store = pipeline.members().store(back).unwrap();
    let error = store.open_len("nothing").unwrap_err();
    pipeline.members().fail(back, &error);
    assert_eq!(scrub(), ScrubState::Never, "it is away");
    pipeline.join(Seat::Own, &store).unwrap();
    assert_eq!(scrub(), ScrubState::Finished);
    assert!(pipeline.members().put_back().is_empty());
}

#[test]
fn work_that_panics_makes_the_volume_read_only_and_does_not_end_its_thread() {
    let pipeline = pipeline();
    let stop = Stop::default();
    let rounds = Mutex::new(0);
    let work = |_: &Pipeline| {
        *rounds.lock() += 1;
        if *rounds.lock() == 3 {
            *stop.stopped.lock() = true;
        }
        panic!("as a bug would");
    };
    repeat(&pipeline, &|| stop.sleep(Duration::from_millis(1)), &work);
    assert_eq!(*rounds.lock(), 3);
    let refused = pipeline.sync();
    assert!(
        matches!(&refused, Err(CommitError::Poisoned { reason }) if reason.contains("panicked")),
        "{refused:?}"
    );
}

/// No work waits for an absent member, no matter what was ordered or done before.
#[test]
fn a_rebuild_that_was_ordered_goes_on_when_the_volume_is_opened_again() {
    let (disks, pipeline) = volume(3);
    write(&pipeline, &vec![7; 2 << 20]);
    let holds = |disk: &usize| {
        let segments = disks[*disk].open().list(files::SEGMENTS).unwrap();
        !segments.is_empty()
    };
    let lost = (0..3).find(holds).unwrap();
    disks[lost].fail(Some(StoreErrorKind::Gone));
    pipeline.members().probe();
    for is_ordered in [false, true] {
        if is_ordered {
            pipeline.members().give_up_absentees();
        }
        let left: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
        let left = left.iter().enumerate().filter(|(disk, _)| *disk != lost);
        let stores = left.map(|(_, disk)| Arc::new(disk.open()) as StoreRef);
        let executor = Arc::new(Executor::new(ExecutorKind::Inline, Duration::from_secs(5)));
        let options = OpenOptions {
            threads: 0,
            ..OpenOptions::default()
        };
        let pipeline = Pipeline::open(stores.collect(), &options, executor).unwrap();
        let rebuilder = Rebuilder::new(Schedule::default(), Arc::new(Stop::default()));
        rebuilder.work(&pipeline, &NoLocks).unwrap();
        let whole = i16::from(is_ordered);
        assert_eq!(tolerated(&pipeline), Some(whole), "ordered: {is_ordered}");
        assert!(pipeline.members().given_up().is_empty(), "it is done");
    }
}
