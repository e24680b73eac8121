//! Rotation of the event files of one directory.

use cauchyfs_testkit::power_cut_at;

use super::*;
use crate::events::files::{FULL, MOST_READ, make_room};
use crate::format::event::EventMember;
use crate::store::{CutPolicy, StoreError};

/// Returns the frame of an event of some kind.
fn frame(sequence: u64, kind: EventKind) -> Vec<u8> {
    let event = Event {
        time_ms: 1000,
        sequence,
        volume: VolumeId(uuid::Uuid::from_u128(3)),
        member: None,
        severity: kind.severity(),
        kind,
    };
    event.encode()
}

/// Appends a frame as the writer does, and makes room for it before.
fn append(store: &dyn Store, frame: &[u8]) -> Result<(), StoreError> {
    let offset = make_room(store, frame.len() as u64)?;
    store.write_durably(EVENTS, offset, frame)
}

/// Returns a directory whose old file has two rare events and its full length. The new file is about to be full.
fn about_to_be_full() -> (MemDisk, Vec<Event>) {
    let disk = MemDisk::new("d", 4 << 20);
    let store = disk.open();
    for (sequence, kind) in [started(), numbered(1)].into_iter().enumerate() {
        append(&store, &frame(sequence as u64, kind)).unwrap();
    }
    let mut sequence = 2;
    let long = |sequence| {
        let file = format!("{sequence:04000}");
        frame(sequence, EventKind::FileLost { file })
    };
    let needed = long(0).len() as u64;
    let is_full = || store.open_len(EVENTS).unwrap() + needed > FULL;
    let has_old = || {
        let len = store.open_len(OLD_EVENTS);
        len.is_ok_and(|len| len + needed > FILE_MAX)
    };
    while !(has_old() && is_full()) {
        append(&store, &long(sequence)).unwrap();
        sequence += 1;
    }
    let events = read_store(&store).unwrap().events;
    assert_eq!(events[0].kind, started());
    (disk, events)
}

/// Returns the events that even a rotation without space must not lose: the rare ones, and all of the file that is full.
fn to_be_kept(disk: &MemDisk, events: &[Event]) -> Vec<Event> {
    let store = disk.open();
    let mut bytes = vec![0; usize::try_from(store.open_len(EVENTS).unwrap()).unwrap()];
    store.read_at(EVENTS, 0, &mut bytes).unwrap();
    let newest = crate::format::event::read_file(&bytes).events;
    assert!(newest.len() > 12, "{}", newest.len());
    [&events[..2], &newest].concat()
}

#[test]
fn a_power_cut_or_a_lack_of_space_at_any_call_of_a_rotation_loses_no_event() {
    let (full, before) = about_to_be_full();
    let spared = to_be_kept(&full, &before);
    let last = EventKind::FileLost {
        file: "z".repeat(4000),
    };
    let next = frame(9999, last.clone());
    // Where nothing fails, the old file is full again.
    let whole = full.fork();
    append(&whole.open(), &next).unwrap();
    let mut kept = read_store(&whole.open()).unwrap().events;
    kept.pop();
    assert!(kept.len() > 3 * (spared.len() - 2), "{}", kept.len());
    let policies = [
        CutPolicy::Keep,
        CutPolicy::Drop,
        CutPolicy::Reorder(1),
        CutPolicy::Reorder(2),
    ];
    let no_space = |call| Fault::at(call, Effect::NoSpace).of(Scope::Changing);
    let mut tried = 0;
    for call in 1.. {
        let mut is_beyond = false;
        for (fault, policy) in policies
            .map(|policy| (power_cut_at(call), policy))
            .into_iter()
            .chain([(no_space(call), CutPolicy::Keep)])
        {
            let disk = full.fork();
            let plan = FaultPlan::new();
            plan.add(fault);
            let failing = FaultStore::new(Arc::new(disk.open()), 0, &plan);
            let outcome = append(&failing, &next);
            is_beyond = plan.triggered() == 0;
            // Where there is no space for both rare events, the newer one stays.
            let (is_cut, kept) = if plan.is_power_off() {
                (true, &kept[..])
            } else {
                (false, &spared[1..])
            };
            assert!(
                is_beyond || !is_cut || outcome.is_err(),
                "call {call}: {policy:?}"
            );
            if plan.is_power_off() {
                disk.cut(policy);
            }
            let check = |when: &str| {
                let found = read_store(&disk.open()).unwrap().events;
                let absent: Vec<&Event> = kept.iter().filter(|it| !found.contains(it)).collect();
                assert!(
                    absent.is_empty(),
                    "call {call}, {fault:?}, {policy:?}, {when}: {} events are lost",
                    absent.len()
                );
                let mut once = found.clone();
                once.dedup();
                assert_eq!(once, found, "{when}: each is there once");
            };
            check("at once");
            append(&disk.open(), &next).unwrap();
            check("after the next event");
            let found = read_store(&disk.open()).unwrap().events;
            assert_eq!(found.last().unwrap().kind, last);
            let len = disk.open().open_len(OLD_EVENTS).unwrap();
            assert!(len <= FILE_MAX, "{len}");
            tried += 1;
        }
        if is_beyond {
            break;
        }
    }
    assert!(tried >= 4 * 5, "{tried}");
}

/// Returns the frame of a long event, of which a file about to be full has no room.
fn long_frame(sequence: u64) -> Vec<u8> {
    let file = "z".repeat(4000);
    frame(sequence, EventKind::FileLost { file })
}

#[test]
fn a_log_turns_over_on_a_disk_that_has_no_space_for_what_stays() {
    let (disk, before) = about_to_be_full();
    let kept = to_be_kept(&disk, &before);
    let next = long_frame(9999);
    let plan = FaultPlan::new();
    let no_space = Fault::at(1, Effect::NoSpace).of(Scope::Kind(CallKind::Write));
    plan.add(no_space.lasting());
    let failing = FaultStore::new(Arc::new(disk.open()), 0, &plan);
    assert_eq!(make_room(&failing, next.len() as u64).unwrap(), 0);
    assert!(plan.triggered() >= 2, "{}: it tried less", plan.triggered());
    let store = disk.open();
    assert_eq!(store.open_len(EVENTS).unwrap(), 0);
    let found = read_store(&store).unwrap();
    assert_eq!((found.events, found.damaged), (kept[2..].to_vec(), 0));
    append(&store, &next).unwrap();
    assert_eq!(kinds_on(&store).len(), kept.len() - 1);
}

#[test]
fn what_a_failed_try_left_behind_takes_no_room_from_the_events_that_stay() {
    let disk = MemDisk::new("d", 4 << 20);
    let store = disk.open();
    let kinds = [
        started(),
        stopped(),
        numbered(1),
        EventKind::MemberBack { seconds_away: 9 },
    ];
    let rare: Vec<Event> = (0..28)
        .zip(kinds.iter().cycle())
        .map(|(sequence, kind)| Event {
            time_ms: 1000,
            sequence,
            volume: VolumeId(uuid::Uuid::from_u128(3)),
            member: Some(EventMember {
                index: MemberIndex(1),
                path: "p".repeat(4000),
            }),
            severity: kind.severity(),
            kind: kind.clone(),
        })
        .collect();
    for event in &rare {
        append(&store, &event.encode()).unwrap();
    }
    let mut sequence = 28;
    let needed = long_frame(0).len() as u64;
    let is_full = || store.open_len(EVENTS).unwrap() + needed > FULL;
    while sequence < 100 || !is_full() {
        append(&store, &long_frame(sequence)).unwrap();
        sequence += 1;
    }
    let len = store.open_len(EVENTS).unwrap();
    let stay = |disk: &MemDisk, when: &str| {
        append(&disk.open(), &long_frame(sequence)).unwrap();
        let found = read_store(&disk.open()).unwrap().events;
        let stayed = rare.iter().filter(|event| found.contains(event)).count();
        assert_eq!(stayed, rare.len(), "{when}");
        let len = disk.open().open_len(OLD_EVENTS).unwrap();
        assert!(len <= FILE_MAX, "{when}: {len}");
    };
    stay(&disk.fork(), "without a failure");
    // The length became durable, and the bytes did not.
    let cut = disk.fork();
    cut.open()
        .write_at(EVENTS, len, &vec![0; 100 << 10])
        .unwrap();
    stay(&cut, "after a power cut");
    let failed = disk.fork();
    let plan = FaultPlan::new();
    plan.add(Fault::at(1, Effect::ShortWrite).of(Scope::Kind(CallKind::Write)));
    plan.add(Fault::at(1, Effect::Eio).of(Scope::Kind(CallKind::Truncate)));
    let failing = FaultStore::new(Arc::new(failed.open()), 0, &plan);
    append(&failing, &long_frame(sequence)).unwrap_err();
    assert!(failed.open().open_len(EVENTS).unwrap() > len + (50 << 10));
    stay(&failed, "after half a write");
}

#[test]
fn rare_events_keep_the_fields_and_kinds_of_later_builds() {
    let later = |sequence, kind_number: Option<u8>| {
        let mut frame = frame(sequence, numbered(7));
        frame.extend(b"a field of a later build");
        if let Some(number) = kind_number {
            frame[11] = number;
        }
        let len = u16::try_from(frame.len()).unwrap();
        frame[8..10].copy_from_slice(&len.to_le_bytes());
        let checksum = crc32c::crc32c(&frame[8..]);
        frame[4..8].copy_from_slice(&checksum.to_le_bytes());
        frame
    };
    let rare = [later(0, None), later(1, Some(250))];
    let disk = MemDisk::new("d", 4 << 20);
    let store = disk.open();
    for frame in &rare {
        append(&store, frame).unwrap();
    }
    for sequence in 2..400 {
        let file = format!("{sequence:04000}");
        append(&store, &frame(sequence, EventKind::FileLost { file })).unwrap();
    }
    let mut bytes = vec![0; usize::try_from(store.open_len(OLD_EVENTS).unwrap()).unwrap()];
    store.read_at(OLD_EVENTS, 0, &mut bytes).unwrap();
    for frame in &rare {
        let has_frame = bytes.windows(frame.len()).any(|window| window == frame);
        assert!(has_frame, "{frame:?}");
    }
    let events = read_store(&store).unwrap().events;
    assert_eq!(events[0].kind, numbered(7));
    assert_eq!(events[1].kind, EventKind::Unknown);
}

/// Returns the bytes of both event files of a directory.
fn log_bytes(store: &dyn Store) -> u64 {
    let len = |name| store.open_len(name).unwrap_or(0);
    len(EVENTS) + len(OLD_EVENTS)
}

/// Returns the number of an event of [`numbered_text`].
fn number_of(event: &Event) -> Option<u64> {
    match &event.kind {
        EventKind::FileLost { file } => file.trim_start_matches('z').parse().ok(),
        _ => None,
    }
}

/// Returns the frame of an event with a text of some length that ends with its number.
fn numbered_text(number: u64, len: usize) -> Vec<u8> {
    let file = "z".repeat(len) + &number.to_string();
    frame(number, EventKind::FileLost { file })
}

#[test]
fn events_of_one_kind_have_three_quarters_of_the_log_at_any_time() {
    const MOST: u64 = FILE_MAX + FULL;
    for text in [20, 1000, 4000] {
        let disk = MemDisk::new("d", 4 << 20);
        let store = disk.open();
        append(&store, &frame(0, started())).unwrap();
        let (mut number, mut written) = (0, 0);
        while written < 4 * MOST {
            // As many as come at once.
            let batch: Vec<u8> = (1..=7)
                .flat_map(|it| numbered_text(number + it, text))
                .collect();
            let offset = make_room(&store, batch.len() as u64).unwrap();
            let least = log_bytes(&store);
            store.write_durably(EVENTS, offset, &batch).unwrap();
            (number, written) = (number + 7, written + batch.len() as u64);
            assert!(log_bytes(&store) <= MOST, "{text}: {written}");
            let is_full = written > 2 * MOST;
            if offset > 0 && !is_full {
                continue;
            }
            let read = read_store(&store).unwrap();
            let numbers: Vec<u64> = read.events.iter().filter_map(number_of).collect();
            let first = number + 1 - numbers.len() as u64;
            let expected: Vec<u64> = (first..=number).collect();
            assert_eq!(numbers, expected, "{text}: the newest, without a gap");
            assert_eq!(read.events[0].kind, started(), "{text}: a rare one");
            assert!(!is_full || least >= 3 * MOST / 4, "{text}: {least} bytes");
        }
    }
}

#[test]
fn a_full_log_of_an_earlier_build_goes_on_within_the_limit() {
    for len in [128 << 10, FILE_MAX] {
        let disk = MemDisk::new("d", 4 << 20);
        let store = disk.open();
        let mut number = 0;
        for (name, len) in [(OLD_EVENTS, FILE_MAX), (EVENTS, len)] {
            store.create(name, 0).unwrap();
            let mut bytes = Vec::new();
            while bytes.len() + 4096 <= usize::try_from(len).unwrap() {
                number += 1;
                bytes.extend(numbered_text(number, 4000));
            }
            store.write_durably(name, 0, &bytes).unwrap();
        }
        append(&store, &numbered_text(number + 1, 4000)).unwrap();
        let read = read_store(&store).unwrap();
        let numbers: Vec<u64> = read.events.iter().filter_map(number_of).collect();
        let first = number + 2 - numbers.len() as u64;
        let expected: Vec<u64> = (first..=number + 1).collect();
        assert_eq!((numbers, read.damaged), (expected, 0), "{len}");
        let old = store.open_len(OLD_EVENTS).unwrap();
        assert!(old <= MOST_READ && old + 4096 > FILE_MAX, "{old}");
    }
}

#[test]
fn rotations_that_fail_again_and_again_let_no_file_grow() {
    let (full, before) = about_to_be_full();
    let kept = to_be_kept(&full, &before);
    for kind in [CallKind::Rename, CallKind::Create] {
        let disk = full.fork();
        let plan = FaultPlan::new();
        plan.add(
            Fault::at(1, Effect::NoSpace)
                .of(Scope::Kind(kind))
                .lasting(),
        );
        // Half of what stays finds space at each try.
        let failing = FaultStore::new(Arc::new(disk.open()), 0, &plan);
        let mut most = 0;
        for tried in 0..20 {
            let no_space = Fault::at(1, Effect::NoSpace).of(Scope::Kind(CallKind::Write));
            plan.add(no_space);
            append(&failing, &long_frame(9999)).unwrap_err();
            most = most.max(log_bytes(&disk.open()));
            assert!(most <= 2 * FILE_MAX, "{kind:?}, try {tried}: {most}");
        }
        assert!(plan.triggered() >= 20, "{}", plan.triggered());
        append(&disk.open(), &long_frame(9999)).unwrap();
        let found = read_store(&disk.open()).unwrap().events;
        assert!(kept.iter().all(|event| found.contains(event)), "{kind:?}");
        assert!(log_bytes(&disk.open()) <= FILE_MAX + FULL, "{kind:?}");
    }
}

#[test]
fn kinds_that_fill_the_log_together_do_not_push_out_the_last_event_of_another() {
    let refusal = EventKind::RemovalsRefused {
        removed: 25,
        files: 100,
        percent: 25,
    };
    let others = [
        stopped(),
        EventKind::MemberBack { seconds_away: 9 },
        EventKind::EventsDropped { events: 9 },
        EventKind::RemovalsAllowed { seconds: 9 },
        EventKind::DaemonCrashed { last_seen_ms: 9 },
    ];
    // Kinds of a later build, so that there are many.
    let renumbered = |sequence: u64, kind: &EventKind, number: Option<u8>| {
        let mut frame = frame(sequence, kind.clone());
        if let Some(number) = number {
            frame[11] = number;
            let checksum = crc32c::crc32c(&frame[8..]);
            frame[4..8].copy_from_slice(&checksum.to_le_bytes());
        }
        frame
    };
    let first = frame(0, refusal.clone());
    for len in [FULL, FILE_MAX] {
        let disk = MemDisk::new("d", 4 << 20);
        let store = disk.open();
        let mut bytes = first.clone();
        let mut sequence = 0;
        for kinds in (0..10_u8).cycle() {
            let kind = &others[usize::from(kinds) % others.len()];
            let number = (usize::from(kinds) >= others.len()).then_some(200 + kinds);
            sequence += 1;
            let next = renumbered(sequence, kind, number);
            // The room that one of these leaves is too small for the refusal.
            assert!(next.len() <= first.len(), "{kind:?}");
            if bytes.len() + next.len() > usize::try_from(FILE_MAX).unwrap() {
                break;
            }
            bytes.extend(next);
        }
        store.create(OLD_EVENTS, 0).unwrap();
        store.write_durably(OLD_EVENTS, 0, &bytes).unwrap();
        let mut bytes = Vec::new();
        while bytes.len() + 4096 <= usize::try_from(len).unwrap() {
            sequence += 1;
            bytes.extend(numbered_text(sequence, 4000));
        }
        store.create(EVENTS, 0).unwrap();
        store.write_durably(EVENTS, 0, &bytes).unwrap();
        append(&store, &long_frame(sequence + 1)).unwrap();
        let read = read_store(&store).unwrap();
        assert_eq!(read.events[0].kind, refusal, "{len}");
        for kind in &others {
            let stays = read.events.iter().any(|event| event.kind == *kind);
            assert!(stays, "{len}: {kind:?}");
        }
        let old = store.open_len(OLD_EVENTS).unwrap();
        assert!(old <= MOST_READ, "{len}: {old}");
    }
}
