//! Members that return or are lost during work on their shards.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use super::*;
use crate::maintenance::RebuildProgress;

fn fill(fs: &TestFs, model: &mut Model) {
    for file in 0..30 {
        let bytes = pattern(file, [50_000, 63, 5_000, 70_000][file as usize % 4]);
        fs.write(file, &bytes).unwrap();
        model.insert(file, bytes);
        if file % 5 == 4 {
            fs.sync().unwrap();
        }
    }
}

/// Opens a volume with some files.
fn filled(rig: &Rig) -> (TestFs, Model) {
    let fs = rig.open(&[]);
    let mut model = Model::new();
    fill(&fs, &mut model);
    (fs, model)
}

fn rebuild_while(fs: &TestFs, between: &dyn Fn()) -> RebuildProgress {
    let wait = |_| {
        between();
        true
    };
    fs.rebuild_while(&wait).unwrap()
}

/// Returns the shards that are written, as the records say.
fn written(fs: &TestFs) -> BTreeSet<(StripeId, ShardIndex)> {
    let shards = fs.written_shards().into_iter();
    shards.map(|shard| (shard.stripe, shard.shard)).collect()
}

#[test]
fn shards_of_a_member_that_returns_during_a_rebuild_still_count() {
    for with_loss in [false, true] {
        for after in 1..4 {
            let context = format!("back after {after} steps, another lost: {with_loss}");
            let rig = Rig::new(2, 1, 4);
            let fs = rig.open(&[]);
            let mut model = Model::new();
            fill(&fs, &mut model);
            fs.transactions.checkpoint().unwrap();
            fs.lose(&rig, 3);
            let steps = Cell::new(0);
            let had = RefCell::new(BTreeSet::new());
            rebuild_while(&fs, &|| {
                steps.set(steps.get() + 1);
                let now = written(&fs);
                assert!(had.borrow().is_subset(&now), "{context}");
                if steps.get() == after {
                    if with_loss {
                        fs.lose(&rig, 2);
                    }
                    fs.take_back(&rig, 3);
                    assert_holds(&fs, &model, &context);
                }
                *had.borrow_mut() = written(&fs);
            });
            if with_loss {
                // The shards that went with the other.
                rebuild_while(&fs, &|| ());
            } else {
                assert_eq!(steps.get(), after, "{context}: it lacks nothing");
            }
            let lost: &[usize] = if with_loss { &[2] } else { &[] };
            fs.assert_shards_lie_on(&rig, lost, &context);
            assert_eq!(fs.redundancy()[0].0, 1, "{context}");
            assert_holds(&fs, &model, &context);
        }
    }
}

#[test]
fn a_returned_member_gets_its_missed_shards_and_those_of_absent_members_wait() {
    let rig = Rig::new(2, 2, 7);
    let (fs, mut model) = filled(&rig);
    fs.transactions.checkpoint().unwrap();
    let before = fs.transactions.stripes.segments().records();
    fs.lose(&rig, 5);
    fs.lose(&rig, 6);
    // Their shards on both members go elsewhere or wait.
    for file in 100..110 {
        let bytes = pattern(file, 50_000);
        fs.write(file, &bytes).unwrap();
        model.insert(file, bytes);
    }
    fs.sync().unwrap();
    fs.take_back(&rig, 5);
    // It has lost a file, too.
    let store = rig.disks[5].open();
    let (name, _) = store.list(files::SEGMENTS).unwrap().swap_remove(0);
    store.remove(&name).unwrap();
    let progress = fs
        .maintenance
        .rebuild()
        .run(RebuildScope::Online, &NoLocks, &at_once())
        .unwrap();
    assert!(progress.bytes_done > 0 && progress.bytes_waiting == 0);
    fs.assert_shards_lie_on(&rig, &[6], "caught up");
    for (id, segment) in before {
        let now = fs.transactions.stripes.segments().record(id).unwrap();
        assert_eq!(now.slots, segment.slots, "segment {id}");
    }
    assert_eq!(fs.redundancy()[0].0, 1, "{:?}", fs.redundancy());
    fs.take_back(&rig, 6);
    rebuild_while(&fs, &|| ());
    assert_eq!(fs.redundancy()[0].0, 2, "{:?}", fs.redundancy());
    assert_holds(&fs, &model, "all are back");
}

/// The member is lost again while it gets its missed shards. Its other shards wait for it.
#[test]
fn a_member_lost_again_while_it_gets_its_shards_keeps_its_slots() {
    let rig = Rig::new(2, 1, 5);
    let (fs, model) = filled(&rig);
    fs.transactions.checkpoint().unwrap();
    let before = fs.transactions.stripes.segments().records();
    fs.lose(&rig, 4);
    fs.take_back(&rig, 4);
    let store = rig.disks[4].open();
    for (name, _) in store.list(files::SEGMENTS).unwrap() {
        store.remove(&name).unwrap();
    }
    let goes = |_| {
        fs.lose(&rig, 4);
        true
    };
    let progress = fs
        .maintenance
        .rebuild()
        .run(RebuildScope::Online, &NoLocks, &unlimited(&goes))
        .unwrap();
    assert!(progress.bytes_done > 0, "{progress:?}");
    assert!(
        !fs.transactions
            .members()
            .membership()
            .live()
            .contains(&crate::format::MemberIndex(4))
    );
    for (id, segment) in before {
        let now = fs.transactions.stripes.segments().record(id).unwrap();
        assert_eq!(now.slots, segment.slots, "segment {id}");
    }
    assert_holds(&fs, &model, "gone again");
}

/// Moves shards to members that have fewer.
fn balance(fs: &TestFs) {
    let before = RebuildProgress::default();
    let moved = fs
        .maintenance
        .rebuild()
        .balance(&at_once(), &|| false, &before)
        .unwrap();
    assert!(moved.bytes_done > 0, "{moved:?}");
}

/// Frees all dead stripes.
fn reap_all(fs: &TestFs) {
    for _ in 0..6 {
        fs.sync().unwrap();
        fs.maintenance.reaper.reap().unwrap();
    }
}

/// Files of segments that were rebuilt elsewhere go, and those of segments that moved back stay.
#[test]
fn a_returned_member_keeps_no_file_of_a_segment_that_moved() {
    for moves_back in [false, true] {
        let rig = Rig::new(2, 1, 4);
        let (fs, model) = filled(&rig);
        fs.transactions.checkpoint().unwrap();
        fs.lose(&rig, 3);
        rebuild_while(&fs, &|| ());
        let kept = || rig.disks[3].open().list(files::SEGMENTS).unwrap();
        fs.take_back(&rig, 3);
        assert!(
            kept().len() > 3,
            "its return does not wait for their removal"
        );
        if moves_back {
            balance(&fs);
        }
        reap_all(&fs);
        let is_named = |(name, _): &(String, u64)| {
            let record = files::parse_segment(name)
                .and_then(|id| fs.transactions.stripes.segments().record(id));
            let index = Some(crate::format::MemberIndex(3));
            record.is_some_and(|record| record.slots.contains(&index))
        };
        assert!(kept().iter().all(is_named), "{:?}", kept());
        assert_eq!(kept().is_empty(), !moves_back);
        fs.assert_shards_lie_on(&rig, &[], "back");
        assert_eq!(fs.redundancy()[0].0, 1);
        assert_holds(&fs, &model, "back");
    }
}

/// Returns how many blocks of the files cannot be read.
fn unreadable_blocks(fs: &TestFs, model: &Model) -> usize {
    let mut unreadable = 0;
    for file in model.keys() {
        for (_, extent) in fs.extents(*file).unwrap() {
            let end = u64::from(extent.stripe_offset) + extent.len;
            let mut block = vec![0; BLOCK_SIZE];
            for from in (u64::from(extent.stripe_offset)..end).step_by(BLOCK_SIZE) {
                let len = (end - from).min(BLOCK_SIZE as u64) as usize;
                let read = fs
                    .transactions
                    .read(extent.stripe, from as u32, &mut block[..len]);
                unreadable += usize::from(read.is_err());
            }
        }
    }
    unreadable
}

#[test]
fn a_draining_member_keeps_the_shards_that_only_it_can_provide() {
    const REMOVED: usize = 0;
    let rig = Rig::new(2, 1, 4);
    let (fs, mut model) = filled(&rig);
    fs.close();
    let fs = rig.open(&[]);
    let shards = fs.written_shards();
    let is_spoilt = |shard: &&WrittenShard| {
        shard.disk == REMOVED && shard.shard.0 == 0 && shard.height > BLOCK_SIZE
    };
    let spoilt = shards.iter().find(is_spoilt).unwrap();
    let others = shards
        .iter()
        .filter(|s| s.stripe == spoilt.stripe && s.disk != REMOVED);
    let others: Vec<&WrittenShard> = others.collect();
    let spoil = |shard: &WrittenShard, block: usize| {
        let at = shard.offset + (block * BLOCK_SIZE) as u64;
        assert!(rig.disks[shard.disk].corrupt(&shard.name, at, |b| b.fill(0xee), 64));
    };
    spoil(spoilt, 0);
    spoil(others[0], 0);
    // This one can be had from the member alone.
    spoil(others[0], 1);
    spoil(others[1], 1);
    let before = unreadable_blocks(&fs, &model);
    assert!(before > 0);
    let removed = crate::format::MemberIndex(REMOVED as u16);
    fs.maintenance.draining().drain(removed).unwrap();
    let progress = rebuild_while(&fs, &|| ());
    // It is not for want of room.
    assert!(progress.bytes_unreadable > 0, "{progress:?}");
    assert_eq!((progress.bytes_waiting, progress.bytes_left), (0, 0));
    fs.close();
    let fs = rig.open(&[]);
    assert_eq!(unreadable_blocks(&fs, &model), before);
    assert_eq!(fs.transactions.members().membership().draining(), [removed]);
    // Once nothing needs that stripe any more, the member can go.
    for file in model.keys().copied().collect::<Vec<_>>() {
        let extents = fs.extents(file).unwrap();
        if extents
            .iter()
            .any(|(_, extent)| extent.stripe == spoilt.stripe)
        {
            fs.remove(file).unwrap();
            model.remove(&file);
        }
    }
    let progress = rebuild_while(&fs, &|| ());
    assert_eq!(progress.bytes_unreadable, 0, "{progress:?}");
    assert_eq!(fs.transactions.members().membership().draining(), []);
    assert_holds(&fs, &model, "removed");
}

#[test]
fn a_segment_that_moves_back_before_its_old_file_was_removed_keeps_its_new_one() {
    let mut rig = Rig::new(2, 1, 3);
    let (fs, _) = filled(&rig);
    rig.disks.push(MemDisk::new("new", DISK));
    let store: StoreRef = Arc::new(rig.disks[3].open());
    fs.maintenance.joining().join(JoinAs::New, &store).unwrap();
    balance(&fs);
    fs.lose(&rig, 3);
    rebuild_while(&fs, &|| ());
    reap_all(&fs);
    fs.assert_shards_lie_on(&rig, &[3], "moved there and back");
    assert_eq!(fs.redundancy()[0].0, 1);
}

#[test]
fn a_rebuild_ends_with_all_copies_of_the_index() {
    let rig = Rig::new(2, 1, 4);
    let (fs, model) = filled(&rig);
    fs.transactions.checkpoint().unwrap();
    let holder = fs.transactions.index_copies().members[0];
    fs.lose(&rig, usize::from(holder.0));
    rebuild_while(&fs, &|| ());
    let copies = fs.transactions.index_copies();
    assert!(!copies.are_too_few(), "{copies:?}");
    assert!(!copies.members.contains(&holder));
    assert_holds(&fs, &model, "all copies");
}

/// Shards that a scrub has not written yet do not count, however it ends.
#[test]
fn a_stopped_scrub_leaves_no_file_that_counts_for_shards_it_lacks() {
    for steps in 1..12 {
        let rig = Rig::new(2, 1, 3);
        let (fs, _) = filled(&rig);
        fs.close();
        let fs = rig.open(&[]);
        let disk = rig.disks[1].open();
        for (name, _) in disk.list(files::SEGMENTS).unwrap() {
            disk.remove(&name).unwrap();
        }
        let left = Cell::new(steps);
        let stop = |_: &crate::maintenance::ScrubStatus| {
            left.set(left.get() - 1);
            if left.get() == 0 {
                return std::ops::ControlFlow::Break(());
            }
            std::ops::ControlFlow::Continue(())
        };
        fs.maintenance.scrubber.scrub(&NoLocks, None, stop).unwrap();
        rebuild_while(&fs, &|| ());
        fs.assert_shards_lie_on(&rig, &[], &format!("stopped after {steps} steps"));
        assert_eq!(fs.redundancy()[0].0, 1, "stopped after {steps} steps");
    }
}

/// The scheduler retries a member that cannot join, for example because its disk is full.
#[test]
fn a_member_that_fails_to_return_does_not_stop_a_rebuild() {
    let rig = Rig::new(2, 1, 4);
    let plan = FaultPlan::new();
    let stores = FaultStore::wrap_all(rig.stores(&[]), &plan);
    let returning = Arc::clone(&stores[3]);
    let fs = TestFs::open(stores, Access::ReadWrite).unwrap();
    let mut model = Model::new();
    fill(&fs, &mut model);
    fs.transactions.checkpoint().unwrap();
    fs.lose(&rig, 3);
    rig.disks[3].fail(None);
    let full = Fault::at(1, Effect::NoSpace);
    let full = full.of(Scope::MemberKind(3, CallKind::Create));
    plan.add(full.lasting());
    let tries = Cell::new(0);
    rebuild_while(&fs, &|| {
        tries.set(tries.get() + 1);
        assert!(tries.get() < 200, "the rebuild comes to no end");
        fs.maintenance
            .joining()
            .join(JoinAs::Returning, &returning)
            .unwrap_err();
    });
    assert!(tries.get() > 2, "{}", tries.get());
    fs.assert_shards_lie_on(&rig, &[3], "rebuilt without it");
    assert_eq!(fs.redundancy()[0].0, 1);
    assert_holds(&fs, &model, "rebuilt without it");
}
