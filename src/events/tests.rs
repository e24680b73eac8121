use std::collections::BTreeSet;

use cauchyfs_testkit::{disks, eventually, stores};

use super::queue::Queue;
use super::*;
use crate::codec::Geometry;
use crate::format::event::{FILE_MAX, FirstNames};
use crate::format::files::{EVENTS, OLD_EVENTS};
use crate::membership::CreateOptions;
use crate::store::{
    CallKind, Effect, Executor, ExecutorKind, Fault, FaultPlan, FaultStore, MemDisk, Scope, Store,
    StoreRef,
};

mod rotation;

const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a volume of 2+1 in memory.
fn volume() -> Vec<MemDisk> {
    let disks = disks(3, 64 << 20);
    let options = CreateOptions::new(Geometry::new(2, 1).unwrap());
    Members::create(&stores(&disks), &options).unwrap();
    disks
}

fn open_over(stores: Vec<StoreRef>, access: Access) -> Arc<Members> {
    let executor = Arc::new(Executor::new(ExecutorKind::Threads, PATIENCE));
    Members::open(stores, access, executor).unwrap()
}

/// Opens some of the disks, as after a restart.
fn open(disks: &[MemDisk]) -> Arc<Members> {
    let forks: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
    open_over(stores(&forks), Access::ReadWrite)
}

fn stopped() -> EventKind {
    EventKind::DaemonStopped { durable: true }
}

fn started() -> EventKind {
    EventKind::DaemonStarted {
        members: 3,
        online: 3,
        read_only: false,
    }
}

fn numbered(number: u64) -> EventKind {
    EventKind::RangesLost {
        files: number,
        bytes: 0,
        first_files: FirstNames::default(),
    }
}

/// Records events in one life of a daemon.
fn record(members: &Arc<Members>, kinds: impl IntoIterator<Item = EventKind>) {
    let log = EventLog::open(members);
    log.start(Access::ReadWrite).unwrap();
    for kind in kinds {
        log.record(None, kind);
    }
    log.close(PATIENCE);
}

fn kinds_on(store: &dyn Store) -> Vec<EventKind> {
    let read = read_store(store).unwrap();
    assert_eq!(read.damaged, 0);
    read.events.into_iter().map(|event| event.kind).collect()
}

fn all(log: &EventLog) -> Vec<Event> {
    log.newer_than(None, None, usize::MAX).events
}

#[test]
fn every_member_has_all_events_and_the_next_daemon_goes_on_behind_them() {
    let disks = volume();
    let first = open_over(stores(&disks), Access::ReadWrite);
    record(&first, [started(), numbered(1), stopped()]);
    drop(first);
    let second = open_over(stores(&disks), Access::ReadWrite);
    record(&second, [started()]);
    for disk in &disks {
        let events = read_store(&disk.open()).unwrap().events;
        let sequences: Vec<u64> = events.iter().map(|event| event.sequence).collect();
        assert_eq!(sequences, [0, 1, 2, 3]);
        assert_eq!(events[1].kind, numbered(1));
        assert_eq!(events[3].kind, started());
        assert!(
            events
                .iter()
                .all(|event| event.volume == second.shape().volume_id())
        );
    }
    assert_eq!(all(&EventLog::open(&second)).len(), 4, "each counts once");
}

#[test]
fn a_daemon_that_did_not_say_that_it_stopped_has_crashed() {
    let disks = volume();
    let members = open_over(stores(&disks), Access::ReadWrite);
    let crashed_at = || EventLog::open(&members).crashed_at();
    assert_eq!(crashed_at(), None, "there was none");
    record(&members, [started(), numbered(1)]);
    let last = all(&EventLog::open(&members)).last().unwrap().time_ms;
    assert_eq!(crashed_at(), Some(last));
    record(&members, [stopped()]);
    assert_eq!(crashed_at(), None);
    record(&members, [numbered(2)]);
    assert_eq!(
        crashed_at(),
        None,
        "a look that was under way recorded more"
    );
    record(&members, [started()]);
    assert!(crashed_at().is_some());
}

#[test]
fn a_member_that_takes_no_events_stays_online_and_the_others_have_them() {
    let disks = volume();
    let plan = FaultPlan::new();
    let members = open_over(
        FaultStore::wrap_all(stores(&disks), &plan),
        Access::ReadWrite,
    );
    for kind in [CallKind::Create, CallKind::Write] {
        plan.add(
            Fault::at(1, Effect::Eio)
                .of(Scope::MemberKind(1, kind))
                .lasting(),
        );
    }
    record(&members, [started(), stopped()]);
    assert!(plan.triggered() > 0, "it was asked");
    assert_eq!(members.membership().live().len(), 3);
    assert!(members.absentees().is_empty());
    for (disk, expected) in disks.iter().zip([2, 0, 2]) {
        assert_eq!(kinds_on(&disk.open()).len(), expected);
    }
}

#[test]
fn a_full_member_is_left_out_until_it_has_room() {
    let disks = volume();
    let members = open_over(stores(&disks), Access::ReadWrite);
    let log = EventLog::open(&members);
    log.set_full(BTreeSet::from([MemberIndex(2)]));
    log.start(Access::ReadWrite).unwrap();
    log.record(None, started());
    eventually("it is written", PATIENCE, || {
        kinds_on(&disks[0].open()).len() == 1
    });
    log.set_full(BTreeSet::new());
    log.record(None, stopped());
    log.close(PATIENCE);
    assert_eq!(kinds_on(&disks[1].open()), [started(), stopped()]);
    assert_eq!(kinds_on(&disks[2].open()), [stopped()]);
}

#[test]
fn files_are_bounded_and_the_newest_events_are_kept() {
    let disks = volume();
    let members = open_over(stores(&disks), Access::ReadWrite);
    let long = |number: u64| EventKind::FileLost {
        file: format!("{number:04000}"),
    };
    for round in 0..6 {
        record(&members, (0..50).map(|it| long(50 * round + it)));
    }
    for disk in &disks {
        let store = disk.open();
        for name in [EVENTS, OLD_EVENTS] {
            let len = store.open_len(name).unwrap();
            assert!(len <= FILE_MAX, "{name}: {len} bytes");
        }
        let kinds = kinds_on(&store);
        let newest: Vec<EventKind> = (300 - kinds.len() as u64..300).map(long).collect();
        assert_eq!(kinds, newest);
        assert!(kinds.len() > 30, "{} events", kinds.len());
    }
}

#[test]
fn a_kind_that_comes_again_and_again_pushes_out_no_event_of_others() {
    let disks = volume();
    let members = open_over(stores(&disks), Access::ReadWrite);
    record(&members, [started(), numbered(1)]);
    let long = |number: u64| EventKind::FileLost {
        file: format!("{number:04000}"),
    };
    for round in 0..12 {
        record(&members, (0..50).map(|it| long(50 * round + it)));
    }
    let kinds = kinds_on(&disks[0].open());
    assert_eq!(kinds[..2], [started(), numbered(1)]);
    assert_eq!(kinds.last(), Some(&long(599)));
    for name in [EVENTS, OLD_EVENTS] {
        let len = disks[0].open().open_len(name).unwrap();
        assert!(len <= FILE_MAX, "{name}: {len} bytes");
    }
    let queue = Queue::new(VolumeId(uuid::Uuid::from_u128(3)));
    queue.push(0, None, started());
    for number in 0..MOST_REMEMBERED + 100 {
        queue.push(1, None, numbered(number as u64));
    }
    let remembered = queue.newer_than(None, None, usize::MAX).events;
    assert_eq!(remembered.len(), MOST_REMEMBERED);
    assert_eq!(remembered[0].kind, started());
    let first_kept = numbered(101);
    assert_eq!(
        remembered[1].kind, first_kept,
        "the oldest of the many went"
    );
}

#[test]
fn events_wait_while_there_are_no_members_and_surplus_ones_are_counted() {
    let disks = volume();
    let members = open_over(stores(&disks), Access::ReadWrite);
    let log = EventLog::open(&members);
    log.detach();
    log.start(Access::ReadWrite).unwrap();
    for number in 0..3000 {
        log.record(None, numbered(number));
    }
    assert_eq!(kinds_on(&disks[0].open()), []);
    log.attach(&members);
    eventually("they are written", PATIENCE, || {
        !kinds_on(&disks[0].open()).is_empty()
    });
    // The queue is empty by then, or the next event is dropped as well and counted.
    std::thread::sleep(Duration::from_millis(200));
    log.record(None, stopped());
    log.close(PATIENCE);
    let kinds = kinds_on(&disks[2].open());
    let written = kinds
        .iter()
        .filter(|it| matches!(it, EventKind::RangesLost { .. }));
    let written = written.count() as u64;
    let dropped = EventKind::EventsDropped {
        events: 3000 - written,
    };
    assert!((1000..3000).contains(&written), "{written}");
    assert_eq!(kinds[kinds.len() - 2..], [dropped, stopped()]);
}

#[test]
fn a_member_that_hangs_keeps_no_event_off_the_others_and_gets_what_it_missed() {
    for kind in [CallKind::Create, CallKind::Write] {
        let disks = volume();
        let plan = FaultPlan::new();
        let stores = FaultStore::wrap_all(stores(&disks), &plan);
        let members = open_over(stores, Access::ReadWrite);
        let hanging = Fault::at(1, Effect::Hang).of(Scope::MemberKind(0, kind));
        plan.add(hanging.lasting());
        let log = EventLog::open(&members);
        log.start(Access::ReadWrite).unwrap();
        // The member is given up after twice the time.
        for number in 0..2 {
            log.record(None, numbered(number));
            assert!(log.flush(PATIENCE / 2), "{kind:?}, event {number}");
        }
        assert!(plan.triggered() > 0, "{kind:?}: it was asked");
        assert_eq!(kinds_on(&disks[0].open()), [], "{kind:?}: it hangs");
        plan.clear();
        plan.release();
        eventually("it takes events again", PATIENCE, || {
            log.record(None, started());
            kinds_on(&disks[0].open()).len() >= 3
        });
        log.close(PATIENCE);
        let kinds = kinds_on(&disks[0].open());
        let expected = [numbered(0), numbered(1), started()];
        assert_eq!(kinds[..3], expected, "{kind:?}");
    }
}

#[test]
fn a_flush_waits_until_a_member_has_all_events() {
    let disks = volume();
    let plan = FaultPlan::new();
    let members = open_over(
        FaultStore::wrap_all(stores(&disks), &plan),
        Access::ReadWrite,
    );
    let log = EventLog::open(&members);
    assert!(log.flush(PATIENCE), "there is nothing to write");
    log.start(Access::ReadWrite).unwrap();
    log.record(None, started());
    assert!(log.flush(PATIENCE));
    // One member has them then, and the others soon.
    let on_some = |kinds: &[EventKind]| {
        let mut all = disks.iter().map(|disk| kinds_on(&disk.open()));
        all.any(|found| found.ends_with(kinds))
    };
    assert!(on_some(&[started()]));
    let hanging = Fault::at(1, Effect::Hang).of(Scope::Kind(CallKind::Write));
    plan.add(hanging.lasting());
    log.record(None, numbered(1));
    assert!(!log.flush(Duration::from_millis(100)), "no member has it");
    plan.clear();
    plan.release();
    log.record(None, numbered(2));
    assert!(log.flush(PATIENCE));
    let expected = [started(), numbered(1), numbered(2)];
    assert!(on_some(&expected));
    log.detach();
    for number in 0..3000 {
        log.record(None, numbered(number));
    }
    let refused = EventKind::RemovalsRefused {
        removed: 25,
        files: 100,
        percent: 25,
    };
    log.record(None, refused.clone());
    log.record(None, numbered(3000));
    log.attach(&members);
    assert!(log.flush(PATIENCE));
    assert!(on_some(&[refused]), "it found a place");
    log.close(PATIENCE);
}

#[test]
fn a_volume_that_is_only_read_gets_no_file_and_its_events_are_remembered() {
    let disks = volume();
    record(
        &open_over(stores(&disks), Access::ReadWrite),
        [started(), stopped()],
    );
    let before: Vec<_> = disks
        .iter()
        .map(|disk| disk.open().list("").unwrap())
        .collect();
    let members = open_over(stores(&disks), Access::ReadOnly);
    let log = EventLog::open(&members);
    log.start(Access::ReadOnly).unwrap();
    assert!(log.flush(PATIENCE), "there is nothing to write");
    log.record(None, numbered(1));
    assert!(!log.flush(PATIENCE), "nothing writes it");
    log.close(PATIENCE);
    let after: Vec<_> = disks
        .iter()
        .map(|disk| disk.open().list("").unwrap())
        .collect();
    assert_eq!(before, after);
    assert_eq!(all(&log).last().unwrap().kind, numbered(1));
}

#[test]
fn a_member_that_was_away_adds_its_older_events_and_damage_costs_only_what_it_hits() {
    let disks = volume();
    record(&open(&disks), []);
    let members = open_over(stores(&disks), Access::ReadWrite);
    record(&members, [started(), numbered(1), numbered(2)]);
    // Member 0 loses an event in the middle, and member 1 ends in a torn frame. Member 2 has no file.
    let store = disks[0].open();
    let events = read_store(&store).unwrap().events;
    let middle = events[0].encode().len() + events[1].encode().len() / 2;
    let mut byte = [0];
    store.read_at(EVENTS, middle as u64, &mut byte).unwrap();
    let flipped = [!byte[0]];
    store.write_at(EVENTS, middle as u64, &flipped).unwrap();
    let store = disks[1].open();
    let len = store.open_len(EVENTS).unwrap();
    store.truncate(EVENTS, len - 3).unwrap();
    disks[2].open().remove(EVENTS).unwrap();
    assert_eq!(read_store(&disks[0].open()).unwrap().damaged, 1);
    assert_eq!(read_store(&disks[1].open()).unwrap().events.len(), 2);
    let kinds: Vec<EventKind> = all(&EventLog::open(&members))
        .into_iter()
        .map(|event| event.kind)
        .collect();
    assert_eq!(kinds, [started(), numbered(1), numbered(2)]);
    record(&members, [stopped()]);
    for disk in &disks {
        let events = read_store(&disk.open()).unwrap().events;
        assert_eq!(
            events.last().unwrap().kind,
            stopped(),
            "it goes on behind the damage"
        );
        assert_eq!(events.last().unwrap().sequence, 3);
    }
}

#[test]
fn readers_get_what_is_newer_in_parts() {
    let queue = Queue::new(VolumeId(uuid::Uuid::from_u128(3)));
    for number in 0..10 {
        queue.push(1000 + number, None, numbered(7));
    }
    let newer = queue.newer_than(Some(3), None, 4);
    let sequences: Vec<u64> = newer.events.iter().map(|event| event.sequence).collect();
    assert_eq!((sequences, newer.has_more), (vec![4, 5, 6, 7], true));
    let newer = queue.newer_than(Some(7), None, 4);
    assert_eq!((newer.events.len(), newer.has_more), (2, false));
    let newer = queue.newer_than(None, Some(1008), 4);
    assert_eq!((newer.events.len(), newer.has_more), (2, false));
    assert_eq!(queue.newer_than(Some(9), None, 4), Newer::default());
    for number in 0..2 * MOST_REMEMBERED {
        queue.push(i64::try_from(number).unwrap(), None, numbered(8));
    }
    let remembered = queue.newer_than(None, None, usize::MAX).events;
    assert_eq!(remembered.len(), MOST_REMEMBERED);
}

#[test]
fn a_file_that_another_program_deleted_is_made_again() {
    let disks = volume();
    let members = open_over(stores(&disks), Access::ReadWrite);
    let log = EventLog::open(&members);
    log.start(Access::ReadWrite).unwrap();
    let is_written = |kind: &EventKind| {
        log.record(None, kind.clone());
        let store = disks[1].open();
        let read = read_store(&store).unwrap();
        read.events.iter().any(|event| event.kind == *kind)
    };
    eventually("there is a file", PATIENCE, || is_written(&numbered(1)));
    disks[1].open().remove(EVENTS).unwrap();
    eventually("there is one again", PATIENCE, || is_written(&numbered(2)));
    log.close(PATIENCE);
}

#[test]
fn forged_numbers_and_events_of_other_volumes_are_left_out() {
    let volume = VolumeId(uuid::Uuid::from_u128(3));
    let event = |sequence, volume| Event {
        time_ms: 0,
        sequence,
        volume,
        member: None,
        severity: started().severity(),
        kind: started(),
    };
    let queue = Queue::new(volume);
    let other = VolumeId(uuid::Uuid::from_u128(4));
    queue.remember(vec![
        event(u64::MAX >> 2, volume),
        event(9, other),
        event(5, volume),
    ]);
    queue.push(0, None, stopped());
    let events = queue.newer_than(None, None, usize::MAX).events;
    let sequences: Vec<u64> = events.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, [5, 6]);
}
