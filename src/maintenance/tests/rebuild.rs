//! Rebuild of missing shards, asserted on the bytes on the disks afterwards.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::maintenance::{Pace, RebuildState};
use crate::store::{Effect, Fault};

/// Files of every kind of length, in an order that leaves short stripes between full ones.
pub(super) fn fill(fs: &TestFs, first: u64, model: &mut Model) {
    let lens = [1, 63, 4_096, 5_000, 100, 70_000, 3, 16_384, 120_001];
    for (file, len) in (first..).zip(lens) {
        let data = pattern(file, len);
        fs.write(file, &data).unwrap();
        model.insert(file, data);
        if file % 3 == 2 {
            fs.sync().unwrap();
        }
    }
    fs.sync().unwrap();
}

/// Files enough for segments on every disk.
fn fill_amply(fs: &TestFs, model: &mut Model) {
    (0..5).for_each(|round| fill(fs, 100 * round, model));
}

/// Asserts that every stripe bears the loss of any `parity` members, by counting and by losing them.
pub(super) fn assert_whole(
    fs: TestFs,
    rig: &Rig,
    gone: &[usize],
    parity: usize,
    model: &Model,
    context: &str,
) {
    fs.assert_shards_lie_on(rig, gone, context);
    let rows = fs.redundancy();
    let worst = rows.iter().map(|row| row.0).min();
    assert_eq!(worst, Some(parity as i16), "{context}: {rows:?}");
    assert!(
        !fs.maintenance.redundancy.may_lack_shards().unwrap(),
        "{context}"
    );
    assert_eq!(
        fs.maintenance.redundancy.missing_shards().unwrap(),
        [],
        "{context}"
    );
    assert_holds(&fs, model, context);
    fs.close();
    for lost in subsets(rig.disks.len(), parity) {
        let lost: Vec<usize> = lost.into_iter().filter(|l| !gone.contains(l)).collect();
        let away: Vec<usize> = lost.iter().chain(gone).copied().collect();
        let stores = rig.fork().stores(&away);
        if stores.len() + parity < rig.disks.len() {
            // Too few to begin an epoch; to be read they are enough.
            let fs = TestFs::open(stores, Access::ReadOnly).unwrap();
            assert_holds(&fs, model, &format!("{context}, then lost {lost:?}"));
        } else {
            let fs = TestFs::open(stores, Access::ReadWrite).unwrap();
            assert_holds(&fs, model, &format!("{context}, then lost {lost:?}"));
        }
    }
}

#[test]
fn shards_of_lost_members_are_rebuilt_onto_the_others() {
    for (data, parity, count) in [(2, 1, 5), (2, 2, 6), (4, 2, 8), (1, 2, 5)] {
        let base = Rig::new(data, parity, count);
        let fs = base.open(&[]);
        let mut model = Model::new();
        fill_amply(&fs, &mut model);
        fs.close();
        let spare = count - data - parity;
        let mut most_done = 0;
        for gone in subsets(count, parity.min(spare)) {
            let rig = base.fork();
            let context = format!("{data}+{parity} of {count}, gone {gone:?}");
            let fs = rig.open(&gone);
            fill(&fs, 1000, &mut model);
            let progress = fs.rebuild().unwrap();
            assert_eq!(progress.state, RebuildState::Finished, "{context}");
            assert_eq!(progress.bytes_waiting, 0, "{context}");
            assert_eq!(progress.bytes_left, 0, "{context}");
            most_done = most_done.max(progress.bytes_done);
            assert!(progress.bytes_done == 0 || !gone.is_empty(), "{context}");
            assert_whole(fs, &rig, &gone, parity, &model, &context);
        }
        assert!(most_done > 100_000, "{data}+{parity}: {most_done}");
    }
}

#[test]
fn missing_or_short_files_are_rebuilt_with_the_same_bytes() {
    let rig = Rig::new(3, 2, 5);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    fill(&fs, 0, &mut model);
    fs.close();
    let fs = rig.open(&[]);
    let shards = fs.written_shards();
    let before: Vec<Vec<u8>> = shards.iter().map(|shard| rig.bytes_of(shard)).collect();
    let names: std::collections::BTreeSet<_> = shards.iter().map(|s| s.name.clone()).collect();
    for (at, name) in names.iter().enumerate() {
        rig.disks[at % 5].open().remove(name).unwrap();
        let cut = rig.disks[(at + 1) % 5].open();
        let len = cut.open_len(name).unwrap();
        cut.truncate(name, len / 2 / BLOCK_SIZE as u64 * BLOCK_SIZE as u64)
            .unwrap();
    }
    assert!(fs.redundancy()[0].0 <= 1);
    fs.rebuild().unwrap();
    for (shard, before) in shards.iter().zip(before) {
        assert!(
            rig.bytes_of(shard) == before,
            "{} on {}",
            shard.name,
            shard.disk
        );
    }
    assert_whole(fs, &rig, &[], 2, &model, "files were gone");
}

#[test]
fn a_returned_member_gets_only_the_shards_it_missed() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    fill(&fs, 0, &mut model);
    fs.close();
    let fs = rig.open(&[1]);
    fill(&fs, 100, &mut model);
    fs.close();
    let plan = FaultPlan::new();
    let fs = rig.open_with_faults(&plan).unwrap();
    let missed: u64 = {
        let stripes = fs.stripes().into_iter();
        let records = stripes.map(|stripe| fs.transactions.stripe(stripe).unwrap().unwrap());
        let short = records.filter(|record| {
            let existing = 3
                - (0..2)
                    .filter(|s| record.is_implied(ShardIndex(*s), 2))
                    .count();
            record.written.len() < existing
        });
        short.map(|record| u64::from(record.height)).sum()
    };
    assert!(missed > 0);
    plan.record();
    let progress = fs.rebuild().unwrap();
    assert_eq!(progress.bytes_done, missed);
    let log = plan.take_log().into_iter();
    let written =
        log.filter(|call| call.kind == CallKind::Write && call.name.starts_with("segments/"));
    let written: Vec<Call> = written.collect();
    assert!(written.iter().all(|call| call.member == 1), "{written:?}");
    assert_eq!(written.iter().map(|call| call.len).sum::<u64>(), missed);
    assert_whole(fs, &rig, &[], 1, &model, "back again");
}

#[test]
fn shards_without_a_free_member_wait_and_are_not_reported_as_rebuilt() {
    let rig = Rig::new(2, 2, 4);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    fill(&fs, 0, &mut model);
    fs.close();
    let fs = rig.open(&[3]);
    let progress = fs.rebuild().unwrap();
    assert!(progress.bytes_waiting > 0, "{progress:?}");
    assert_eq!((progress.bytes_done, progress.bytes_left), (0, 0));
    // The online members lack nothing, which changes nothing for the others.
    let waiting = fs
        .maintenance
        .rebuild()
        .run(RebuildScope::Online, &NoLocks, &at_once())
        .unwrap()
        .bytes_waiting;
    assert_eq!(waiting, progress.bytes_waiting);
    assert_eq!(fs.redundancy()[0].0, 1);
    fs.close();
    // It is back with all it had.
    let fs = rig.open(&[]);
    assert_eq!(fs.rebuild().unwrap().bytes_done, 0);
    assert_whole(fs, &rig, &[], 2, &model, "back again");
}

#[test]
fn unrecoverable_stripes_are_kept_and_do_not_stop_the_rebuild_of_others() {
    let rig = Rig::new(2, 1, 4);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    fill_amply(&fs, &mut model);
    fs.close();
    let fs = rig.open(&[3]);
    let shards = fs.written_shards();
    // Of one segment two files are gone, of another all shards of a stripe are wrong.
    let lost = &shards[0].name;
    let wrong = shards.iter().rfind(|shard| shard.disk != 3).unwrap();
    assert_ne!(*lost, wrong.name);
    let holders = |shard: &&WrittenShard| shard.name == *lost && shard.disk != 3;
    let mut holders: Vec<usize> = shards.iter().filter(holders).map(|s| s.disk).collect();
    holders.sort_unstable();
    holders.dedup();
    for &disk in &holders[..2] {
        rig.disks[disk].open().remove(lost).unwrap();
    }
    for shard in shards
        .iter()
        .filter(|shard| shard.stripe == wrong.stripe && shard.disk != 3)
    {
        assert!(rig.disks[shard.disk].corrupt(&shard.name, shard.offset, |b| b.fill(0xee), 64));
    }
    let progress = fs.rebuild().unwrap();
    assert_eq!(progress.state, RebuildState::Finished);
    assert!(
        progress.bytes_done > 0 && progress.bytes_unreadable > 0,
        "{progress:?}"
    );
    let rows = fs.redundancy();
    assert!(rows[0].0 < 0 && rows.last().unwrap().0 == 1, "{rows:?}");
    for &disk in &holders[..2] {
        let found = rig.disks[disk].open().open_len(lost);
        assert!(found.is_err(), "{lost} was recreated on {disk}");
    }
}

#[test]
fn stripes_with_the_least_redundancy_are_rebuilt_first() {
    let rig = Rig::new(2, 2, 7);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    fill_amply(&fs, &mut model);
    fs.close();
    // The first ones hold the index, and so get segments last.
    let fs = rig.open(&[5, 6]);
    let worst = Cell::new(fs.redundancy()[0].0);
    assert_eq!(worst.get(), 0);
    let wait = |_| {
        // Once one stripe improved, no stripe with less redundancy is left.
        let rows = fs.redundancy();
        assert!(rows[0].0 >= worst.get(), "{rows:?}");
        worst.set(rows[0].0);
        true
    };
    let seen = RefCell::new(Vec::new());
    let watched = |time| {
        let rows = fs.redundancy();
        seen.borrow_mut().push((
            rows[0].0,
            rows.iter().find(|row| row.0 == 1).map_or(0, |r| r.1),
        ));
        wait(time)
    };
    fs.rebuild_while(&watched).unwrap();
    let seen = seen.into_inner();
    let of_one_loss: Vec<u64> = seen
        .iter()
        .filter(|(worst, _)| *worst == 0)
        .map(|s| s.1)
        .collect();
    assert!(of_one_loss.len() > 1, "{seen:?}");
    assert!(
        of_one_loss.is_sorted(),
        "a stripe that lacks one shard came before one that lacks two: {seen:?}"
    );
    assert_whole(fs, &rig, &[5, 6], 2, &model, "both rebuilt");
}

#[test]
fn stripes_endangered_by_a_loss_during_a_rebuild_are_rebuilt_next() {
    const FIRST: usize = 7;
    let rig = Rig::new(2, 2, 8);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    (0..10).for_each(|round| fill(&fs, 100 * round, &mut model));
    fs.close();
    let fs = rig.open(&[FIRST]);
    // A member with some of the segments that lack shards, and without the others.
    let segments = fs.transactions.stripes.segments().records();
    let holds = |segment: &crate::format::record::Segment, disk: usize| {
        let index = crate::format::MemberIndex(disk as u16);
        segment.slots.contains(&Some(index))
    };
    let mix = |second: &usize| {
        let lacking = segments.iter().filter(|(_, segment)| holds(segment, FIRST));
        let (both, one): (Vec<_>, Vec<_>) =
            lacking.partition(|(_, segment)| holds(segment, *second));
        both.len().min(one.len())
    };
    let second = (0..FIRST).max_by_key(mix).unwrap();
    assert!(mix(&second) > 2, "{segments:?}");
    let rows = || {
        let rows = fs.redundancy();
        let bearing = |losses| {
            rows.iter()
                .find(|row| row.0 == losses)
                .map_or(0, |row| row.1)
        };
        (bearing(0), bearing(1))
    };
    let seen = RefCell::new(Vec::new());
    let wait = |_| {
        if seen.borrow().is_empty() {
            assert_eq!(rows().0, 0);
            fs.lose(&rig, second);
        }
        seen.borrow_mut().push(rows());
        true
    };
    fs.rebuild_while(&wait).unwrap();
    let mut seen = seen.into_inner();
    seen.dedup();
    assert!(seen[0].0 > 0 && seen[0].1 > 0, "{seen:?}");
    // Segments that were being written then are finished first.
    let worst: Vec<_> = seen[1..].iter().take_while(|(none, _)| *none > 0).collect();
    assert!(worst.len() > 1, "{seen:?}");
    assert!(
        worst.is_sorted_by_key(|(_, one)| one),
        "a stripe that lacks one shard came before one that lacks two: {seen:?}"
    );
    assert_whole(fs, &rig, &[second, FIRST], 2, &model, "both rebuilt");
}

/// Nothing was written, and the shards of an absent member are still missing.
#[test]
fn an_idle_rebuild_of_online_members_does_not_change_the_reported_progress() {
    let rig = Rig::new(2, 2, 4);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    fill(&fs, 0, &mut model);
    fs.lose(&rig, 3);
    fill(&fs, 100, &mut model);
    let found = fs
        .maintenance
        .rebuild()
        .run(RebuildScope::Online, &NoLocks, &at_once())
        .unwrap();
    assert_eq!((found.state, found.bytes_done), (RebuildState::Finished, 0));
    assert_eq!(
        fs.maintenance.rebuild().status().progress().state,
        RebuildState::Idle
    );
    let waiting = fs.rebuild().unwrap();
    assert!(waiting.bytes_waiting > 0, "{waiting:?}");
    fs.maintenance
        .rebuild()
        .run(RebuildScope::Online, &NoLocks, &at_once())
        .unwrap();
    assert_eq!(fs.maintenance.rebuild().status().progress(), waiting);
    fs.take_back(&rig, 3);
    let found = fs
        .maintenance
        .rebuild()
        .run(RebuildScope::Online, &NoLocks, &at_once())
        .unwrap();
    assert!(found.bytes_done > 0, "{found:?}");
    assert_eq!(fs.maintenance.rebuild().status().progress(), found);
    // Bytes that no file held at all are for all of them.
    fs.rebuild().unwrap();
    assert_whole(fs, &rig, &[], 2, &model, "it is back");
}

#[test]
fn a_limit_is_kept_by_short_steps_and_a_new_one_applies_at_once() {
    /// Bytes that one stripe lacks at most.
    const STRIPE: u64 = UNIT as u64;
    let rig = Rig::new(2, 1, 5);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    fill_amply(&fs, &mut model);
    fs.close();
    let pieces_with = |limit: &AtomicU64, after: u64| {
        let fs = TestFs::open(rig.fork().stores(&[4]), Access::ReadWrite).unwrap();
        let (done, pieces) = (Cell::new(0), RefCell::new(Vec::new()));
        let wait = |_| {
            let now = fs.maintenance.rebuild().status().progress().bytes_done;
            let before = done.replace(now);
            if now > before {
                pieces.borrow_mut().push(now - before);
            }
            if now >= after {
                limit.store(0, Ordering::Relaxed);
            }
            true
        };
        let pace = Pace {
            bytes_per_second: limit,
            wait: &wait,
        };
        fs.maintenance
            .rebuild()
            .run(RebuildScope::Everything, &NoLocks, &pace)
            .unwrap();
        pieces.into_inner()
    };
    let unlimited = pieces_with(&AtomicU64::new(0), u64::MAX);
    assert!(
        unlimited.iter().any(|piece| *piece > 2 * STRIPE),
        "{unlimited:?}"
    );
    let limited = pieces_with(&AtomicU64::new(8 * STRIPE), u64::MAX);
    assert!(
        limited.iter().all(|piece| *piece <= 2 * STRIPE),
        "{limited:?}"
    );
    let whole: u64 = unlimited.iter().sum();
    assert_eq!(limited.iter().sum::<u64>(), whole);
    // One step began before the limit was lifted.
    let lifted = pieces_with(&AtomicU64::new(4 * STRIPE), 1);
    assert!(
        lifted[..2].iter().all(|piece| *piece <= STRIPE),
        "{lifted:?}"
    );
    assert!(lifted.iter().any(|piece| *piece > 2 * STRIPE), "{lifted:?}");
    assert_eq!(lifted.iter().sum::<u64>(), whole);
}

#[test]
fn a_stopped_rebuild_continues_from_where_it_stopped() {
    let base = Rig::new(2, 1, 5);
    let fs = base.open(&[]);
    let mut model = Model::new();
    fill_amply(&fs, &mut model);
    fs.close();
    let fs = base.open(&[]);
    let segments = fs.transactions.stripes.segments().records();
    let longest = segments.iter().map(|(_, segment)| segment.len).max();
    let longest = longest.expect("there are some");
    drop(fs);
    let whole = base.fork().open(&[4]).rebuild().unwrap().bytes_done;
    assert!(whole > 2 * longest, "{whole} {longest}");
    for steps in 1.. {
        let rig = base.fork();
        let fs = rig.open(&[4]);
        let left = Cell::new(steps);
        let wait = |_| {
            left.set(left.get() - 1);
            left.get() > 0
        };
        let first = fs.rebuild_while(&wait).unwrap();
        if first.state == RebuildState::Finished {
            assert!(steps > 4, "only {steps} steps");
            break;
        }
        assert_eq!(first.state, RebuildState::Stopped);
        // As after a kill: nothing is closed.
        drop(fs);
        rig.cut(CutPolicy::Drop);
        let fs = rig.open(&[4]);
        let second = fs.rebuild().unwrap();
        // At most one segment of the work done is done again.
        let again = (first.bytes_done + second.bytes_done).saturating_sub(whole);
        assert!(again <= longest, "stopped at {steps}: {again} bytes again");
        assert_eq!(steps > 1, second.bytes_done < whole, "step {steps}");
        assert_whole(fs, &rig, &[4], 1, &model, &format!("stopped at {steps}"));
    }
}

#[test]
fn a_power_cut_at_any_call_of_a_rebuild_loses_nothing_and_the_rebuild_can_be_repeated() {
    for (gone, wiped) in [(Some(4), None), (None, Some(3_usize))] {
        let base = Rig::new(2, 1, 5);
        let fs = base.open(&[]);
        let mut model = Model::new();
        (0..3).for_each(|round| fill(&fs, 100 * round, &mut model));
        fs.close();
        if let Some(wiped) = wiped {
            let disk = base.disks[wiped].open();
            for (name, _) in disk.list(files::SEGMENTS).unwrap() {
                disk.remove(&name).unwrap();
            }
        }
        let away: Vec<usize> = gone.into_iter().collect();
        // The next steps begin with a durable epoch.
        base.open(&away).close();
        for call in 1.. {
            let rig = base.fork();
            let plan = FaultPlan::new();
            let stores = FaultStore::wrap_all(rig.stores(&away), &plan);
            let fs = TestFs::open(stores, Access::ReadWrite).unwrap();
            plan.add(power_cut_at(call));
            let outcome = fs.rebuild();
            if plan.triggered() == 0 {
                outcome.unwrap();
                assert!(call > 20, "only {call} calls");
                break;
            }
            drop(fs);
            for policy in ways_to_cut(call) {
                let rig = rig.fork();
                rig.cut(policy);
                let context = format!("gone {gone:?}, wiped {wiped:?}, cut {call}, {policy:?}");
                let fs = rig.open(&away);
                if wiped.is_none() {
                    fs.assert_shards_lie_on(&rig, &away, &context);
                }
                assert_holds(&fs, &model, &context);
                fs.rebuild()
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                fs.assert_shards_lie_on(&rig, &away, &context);
                assert_eq!(fs.redundancy()[0].0, 1, "{context}");
                assert_holds(&fs, &model, &context);
                fs.close();
                assert_no_strays(&rig, &away, &context);
            }
        }
    }
}

/// Asserts that every segment file is named by its segment.
fn assert_no_strays(rig: &Rig, away: &[usize], context: &str) {
    let fs = rig.open(away);
    let segments: BTreeMap<_, _> = fs
        .transactions
        .stripes
        .segments()
        .records()
        .into_iter()
        .collect();
    for (index, disk) in rig
        .disks
        .iter()
        .enumerate()
        .filter(|(i, _)| !away.contains(i))
    {
        for (name, _) in disk.open().list(files::SEGMENTS).unwrap() {
            let id = files::parse_segment(&name).unwrap();
            let holds = segments.get(&id).is_some_and(|segment| {
                segment
                    .slots
                    .contains(&Some(crate::format::MemberIndex(index as u16)))
            });
            assert!(holds, "{context}: {name} on disk {index}");
        }
    }
}

#[test]
fn a_failure_of_any_call_of_a_rebuild_loses_nothing() {
    let base = Rig::new(2, 2, 7);
    let fs = base.open(&[]);
    let mut model = Model::new();
    (0..3).for_each(|round| fill(&fs, 100 * round, &mut model));
    fs.close();
    for effect in [Effect::Eio, Effect::NoSpace, Effect::ShortWrite] {
        for call in 1.. {
            let rig = base.fork();
            let plan = FaultPlan::new();
            let stores = FaultStore::wrap_all(rig.stores(&[6]), &plan);
            let fs = TestFs::open(stores, Access::ReadWrite).unwrap();
            plan.add(Fault::at(call, effect));
            let context = format!("{effect:?} at call {call}");
            fs.rebuild()
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            let struck = plan.triggered() > 0;
            let live = fs.transactions.members().membership().live();
            let down: Vec<usize> = (0..7)
                .filter(|i| !live.iter().any(|member| usize::from(member.0) == *i))
                .collect();
            assert!(down.len() <= 2, "{context}: {down:?}");
            assert_holds(&fs, &model, &context);
            // Shards that went with the failed member are rebuilt, too.
            fs.rebuild()
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            fs.assert_shards_lie_on(&rig, &down, &context);
            assert_eq!(fs.redundancy()[0].0, 2, "{context}");
            if !struck {
                assert!(call > 20, "only {call} calls");
                break;
            }
        }
    }
}

#[test]
fn files_written_and_removed_during_a_rebuild_are_right_afterwards() {
    for seed in 0..12_u64 {
        let rig = Rig::new(2, 2, 6);
        let fs = rig.open(&[]);
        let mut model = Model::new();
        fill_amply(&fs, &mut model);
        fs.close();
        let gone = vec![3 + seed as usize % 3];
        let fs = rig.open(&gone);
        let model = RefCell::new(model);
        let turn = Cell::new(seed);
        let wait = |_| {
            let mut model = model.borrow_mut();
            turn.set(turn.get() + 1);
            let random = turn.get().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            let files: Vec<u64> = model.keys().copied().collect();
            let file = files[random as usize % files.len()];
            fs.remove(file).unwrap();
            model.insert(file, Vec::new());
            let bytes = pattern(random, random as usize % 40_000);
            fs.write(file + 1, &bytes).unwrap();
            model.insert(file + 1, bytes);
            for _ in 0..random % 4 {
                fs.sync().unwrap();
                fs.maintenance.reaper.reap().unwrap();
            }
            if random.is_multiple_of(5) {
                fs.transactions.checkpoint().unwrap();
            }
            true
        };
        fs.rebuild_while(&wait).unwrap();
        let model = model.into_inner();
        let context = format!("seed {seed}");
        for _ in 0..6 {
            fs.sync().unwrap();
            fs.maintenance.reaper.reap().unwrap();
        }
        assert!(turn.get() > seed + 4, "{context}");
        assert_gaps_are_free(&fs, &rig, &gone, &context);
        assert_whole(fs, &rig, &gone, 2, &model, &context);
    }
}

/// Asserts that no segment file takes more space than its stripes do.
fn assert_gaps_are_free(fs: &TestFs, rig: &Rig, gone: &[usize], context: &str) {
    let mut taken = vec![0; rig.disks.len()];
    let mut writing = vec![false; rig.disks.len()];
    for (id, segment) in fs.transactions.stripes.segments().records() {
        let stripes = fs.transactions.catalog.stripes_in(id).unwrap().unwrap();
        for member in segment.slots.iter().flatten() {
            let member = usize::from(member.0);
            taken[member] += stripes
                .iter()
                .map(|(_, s)| u64::from(s.height))
                .sum::<u64>();
            writing[member] |= fs.transactions.stripes.segments().is_writing(id);
        }
    }
    for (disk, expected) in taken.into_iter().enumerate() {
        if !gone.contains(&disk) && !writing[disk] {
            let found = rig.disks[disk].open().taken(files::SEGMENTS).unwrap();
            assert!(
                found <= expected,
                "{context}: disk {disk} has {found} of {expected}"
            );
        }
    }
}

#[test]
fn a_rebuild_does_not_spread_wrong_bytes_that_it_reads() {
    let base = Rig::new(2, 2, 6);
    let fs = base.open(&[]);
    let mut model = Model::new();
    fill_amply(&fs, &mut model);
    fs.close();
    let fs = base.open(&[]);
    let shards = fs.written_shards();
    fs.close();
    for gone in 0..6 {
        let rig = base.fork();
        for shard in shards.iter().filter(|shard| shard.disk == (gone + 1) % 6) {
            assert!(rig.disks[shard.disk].corrupt(&shard.name, shard.offset + 7, |b| b[0] ^= 1, 1));
        }
        let fs = rig.open(&[gone]);
        fs.rebuild().unwrap();
        let context = format!("gone {gone}");
        assert_eq!(fs.redundancy()[0].0, 2, "{context}");
        let rebuilt: Vec<_> = fs.written_shards();
        for shard in rebuilt.iter().filter(|shard| shard.disk != (gone + 1) % 6) {
            let sums = fs.transactions.records.sums(shard.stripe, shard.shard);
            let found = rig.bytes_of(shard);
            let found = found.chunks(BLOCK_SIZE).map(crc32c::crc32c);
            assert!(found.eq(sums.unwrap().unwrap().0), "{context}");
        }
        assert_holds(&fs, &model, &context);
    }
}
