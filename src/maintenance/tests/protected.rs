//! Bytes that compaction moves: they survive as many losses afterwards as before, or stay where they are.

use super::full_disks::fill_disk;
use super::*;
use crate::maintenance::compaction::{Compacted, Effort, Floor, Moves};
use crate::transaction::FullMembers;

/// The length of each file: two of them fill a stripe of 4+2.
const LEN: usize = 2 * UNIT;

fn open_degrading(rig: &Rig) -> TestFs {
    open_degrading_on(rig.stores(&[]))
}

fn open_degrading_on(stores: Vec<StoreRef>) -> TestFs {
    let options = OpenOptions {
        cache_bytes: 1 << 20,
        index_cache_bytes: 1 << 20,
        threads: 0,
        count_limits: LIMITS,
        full_members: FullMembers::Degrade,
        ..OpenOptions::default()
    };
    TestFs::over(Maintenance::open(stores, &options, executor()).unwrap())
}

/// Writes files into segments of their own.
fn write(fs: &TestFs, files: impl Iterator<Item = u64>) {
    for file in files {
        fs.write(file, &pattern(file, LEN)).unwrap();
    }
    retire(fs);
}

fn retire(fs: &TestFs) {
    fs.transactions.stripes.writer().retire_segments().unwrap();
    fs.sync().unwrap();
}

/// Removes every other file, so that stripes are half dead. Returns those that are left.
fn halve(fs: &TestFs, files: std::ops::Range<u64>) -> Vec<u64> {
    let (gone, left): (Vec<u64>, Vec<u64>) = files.partition(|file| file % 2 != 0);
    for file in gone {
        fs.remove(file).unwrap();
    }
    fs.sync().unwrap();
    left
}

fn stripes_of(fs: &TestFs, files: &[u64]) -> Vec<StripeId> {
    let extents = files.iter().flat_map(|file| fs.extents(*file).unwrap());
    let mut stripes: Vec<_> = extents.map(|(_, extent)| extent.stripe).collect();
    stripes.dedup();
    stripes
}

/// Moves the stripes of some files, as often as something moves.
fn move_all(fs: &TestFs, files: &[u64]) -> Moves {
    let compaction = &fs.maintenance.room.compaction;
    let stripes = stripes_of(fs, files);
    for _ in 0..100 {
        let left: Vec<_> = stripes_of(fs, files)
            .into_iter()
            .filter(|stripe| stripes.contains(stripe))
            .collect();
        let moves = compaction
            .move_stripes(left, &NoLocks, Floor::Written, &|_| true)
            .unwrap();
        fs.sync().unwrap();
        fs.maintenance.reaper.free_dead().unwrap();
        fs.sync().unwrap();
        if !moves.any {
            return moves;
        }
    }
    panic!("stripes move for ever");
}

/// Asserts that files can be read without any `losses` of the disks.
fn assert_survives(rig: &Rig, files: &[u64], losses: usize, context: &str) {
    for lost in subsets(rig.disks.len(), losses) {
        let fs = TestFs::open(rig.fork().stores(&lost), Access::ReadOnly).unwrap();
        for file in files {
            let read = fs.read(*file);
            let read = read.unwrap_or_else(|error| panic!("{context}, without {lost:?}: {error}"));
            assert!(read == pattern(*file, LEN), "{context}, without {lost:?}");
        }
    }
}

/// The current segment was opened while the member was full, and does without it.
#[test]
fn bytes_with_all_shards_are_not_moved_into_a_segment_that_does_without_a_full_member() {
    let rig = Rig::new(4, 2, 6);
    let fs = open_degrading(&rig);
    write(&fs, 0..24);
    let whole = halve(&fs, 0..24);
    let before = stripes_of(&fs, &whole);
    fill_disk(&rig.disks[1]);
    fs.write(100, &pattern(100, LEN)).unwrap();
    fs.sync().unwrap();
    assert!(!fs.transactions.stripes.segments().left_out().is_empty());
    let moves = move_all(&fs, &whole);
    assert!(!moves.waiting.is_empty() && moves.lack_room(), "{moves:?}");
    assert_eq!(stripes_of(&fs, &whole), before);
    assert_survives(&rig, &whole, 2, "a member is full");
    rig.disks[1].set_capacity(DISK);
    let moves = move_all(&fs, &whole);
    assert!(moves.waiting.is_empty(), "{moves:?}");
    assert!(stripes_of(&fs, &whole).len() < before.len());
    fs.sync().unwrap();
    assert_survives(&rig, &whole, 2, "with room");
}

/// They have no fewer shards afterwards, and room comes free.
#[test]
fn bytes_that_were_written_without_a_full_member_are_moved_without_it() {
    let rig = Rig::new(4, 2, 6);
    let fs = open_degrading(&rig);
    fill_disk(&rig.disks[1]);
    write(&fs, 0..24);
    let left = halve(&fs, 0..24);
    let before = stripes_of(&fs, &left);
    let moves = move_all(&fs, &left);
    assert!(moves.waiting.is_empty(), "{moves:?}");
    let after = stripes_of(&fs, &left);
    assert!(after.len() * 3 <= before.len() * 2, "{after:?}, {before:?}");
    assert_survives(&rig, &left, 1, "moved");
}

/// The place was chosen, and the member fills up before the shards are written. All others have them.
#[test]
fn bytes_whose_new_stripe_lost_a_shard_on_the_way_stay_where_they_are() {
    for degrades in [false, true] {
        let rig = Rig::new(4, 2, 6);
        let plan = FaultPlan::new();
        let stores = FaultStore::wrap_all(rig.stores(&[]), &plan);
        let fs = if degrades {
            open_degrading_on(stores)
        } else {
            TestFs::open(stores, Access::ReadWrite).unwrap()
        };
        write(&fs, 0..4);
        let left = halve(&fs, 0..4);
        let before = stripes_of(&fs, &left);
        plan.add(
            Fault::at(1, Effect::NoSpace)
                .of(Scope::MemberKind(1, CallKind::Write))
                .lasting(),
        );
        let compaction = &fs.maintenance.room.compaction;
        let outcome = compaction.move_stripes(before.clone(), &NoLocks, Floor::Written, &|_| true);
        assert!(plan.triggered() > 0);
        plan.clear();
        let moves = outcome.unwrap();
        assert!(!moves.any && moves.lack_room(), "{degrades}: {moves:?}");
        assert_eq!(stripes_of(&fs, &left), before, "{degrades}");
        fs.sync().unwrap();
        assert_survives(&rig, &left, 2, "the shards found no room");
    }
}

const EFFORT: Effort = Effort {
    max_live: 900,
    counts: 100,
    turns: 2,
    floor: Floor::Written,
};

/// Compacts ahead of need until nothing moves.
fn compact(fs: &TestFs) {
    compact_with(fs, EFFORT);
}

fn compact_with(fs: &TestFs, effort: Effort) {
    let compaction = &fs.maintenance.room.compaction;
    for _ in 0..100 {
        if compaction.compact(&NoLocks, effort).unwrap() == Compacted::Nothing {
            return;
        }
        fs.sync().unwrap();
        fs.maintenance.reaper.free_dead().unwrap();
        fs.sync().unwrap();
    }
    panic!("compaction finds no end");
}

/// Returns a volume with half-dead stripes that has lost a member, the files that are left, and their stripes.
fn half_dead_without_a_member() -> (Rig, TestFs, Vec<u64>, Vec<StripeId>) {
    let rig = Rig::new(4, 2, 6);
    let fs = rig.open(&[]);
    write(&fs, 0..24);
    let left = halve(&fs, 0..24);
    let before = stripes_of(&fs, &left);
    fs.lose(&rig, 0);
    (rig, fs, left, before)
}

/// A member that is gone for good would keep the space of dead bytes in use otherwise, on a volume without a spare one.
#[test]
fn room_is_made_with_stripes_whose_absent_member_was_given_up() {
    let (rig, fs, left, before) = half_dead_without_a_member();
    compact(&fs);
    assert_eq!(stripes_of(&fs, &left), before, "the member is waited for");
    fs.transactions.members().epochs().give_up_absentees();
    compact(&fs);
    let after = stripes_of(&fs, &left);
    assert!(after.len() * 3 <= before.len() * 2, "{after:?}, {before:?}");
    fs.take_back(&rig, 0);
    fs.rebuild().unwrap();
    assert_survives(&rig, &left, 2, "the member came back after all");
}

/// The members that are left are too few for all shards. The old stripes have theirs once the absent one is back.
#[test]
fn room_ahead_of_need_is_not_made_with_stripes_that_have_shards_on_absent_members() {
    let rig = Rig::new(4, 2, 6);
    let fs = rig.open(&[]);
    write(&fs, 0..24);
    let whole = halve(&fs, 0..24);
    let before = stripes_of(&fs, &whole);
    fs.lose(&rig, 0);
    // These lack the shards of the absent member, wherever they are.
    write(&fs, 100..124);
    let lacking = halve(&fs, 100..124);
    let dead = stripes_of(&fs, &lacking);
    compact(&fs);
    assert_eq!(stripes_of(&fs, &whole), before, "a member is away");
    let after = stripes_of(&fs, &lacking);
    assert!(after.len() < dead.len(), "{after:?}, {dead:?}");
    let compaction = &fs.maintenance.room.compaction;
    assert!(!compaction.take_back(Floor::Written), "they wait still");
    fs.take_back(&rig, 0);
    fs.sync().unwrap();
    assert_survives(&rig, &whole, 2, "the member is back");
    assert!(
        compaction.take_back(Floor::Written),
        "nothing is waited for"
    );
    compact(&fs);
    assert!(stripes_of(&fs, &whole).len() < before.len());
    fs.rebuild().unwrap();
    let all: Vec<u64> = whole.into_iter().chain(lacking).collect();
    assert_survives(&rig, &all, 2, "compacted");
}

/// A volume that lost a member takes new data without its shards. It makes room for that in the same way, after others
/// set the stripes aside.
#[test]
fn room_that_is_needed_at_once_is_made_although_a_member_is_away() {
    let (rig, fs, left, before) = half_dead_without_a_member();
    compact(&fs);
    let compaction = &fs.maintenance.room.compaction;
    assert_eq!(compaction.count_aside(), before.len());
    let in_need = Effort {
        floor: Floor::Online,
        ..EFFORT
    };
    compact_with(&fs, in_need);
    let after = stripes_of(&fs, &left);
    assert!(after.len() * 3 <= before.len() * 2, "{after:?}, {before:?}");
    for other in 1..6 {
        let fs = TestFs::open(rig.fork().stores(&[0, other]), Access::ReadOnly).unwrap();
        for file in &left {
            assert!(fs.read(*file).unwrap() == pattern(*file, LEN), "{other}");
        }
    }
}

/// An order to rewrite counts the absent members, and leaves the stripes where they are.
#[test]
fn room_that_is_needed_at_once_is_made_with_stripes_that_an_order_left() {
    let (_rig, fs, left, before) = half_dead_without_a_member();
    let in_need = Effort {
        floor: Floor::Online,
        max_live: 0,
        ..EFFORT
    };
    // It ranks them, and none of them is dead enough.
    compact_with(&fs, in_need);
    assert_eq!(stripes_of(&fs, &left), before);
    let compaction = &fs.maintenance.room.compaction;
    let moves = compaction.move_stripes(before.clone(), &NoLocks, Floor::Written, &|_| true);
    assert_eq!(moves.unwrap().waiting.len(), before.len());
    assert_eq!(compaction.count_aside(), before.len());
    let in_need = Effort {
        max_live: 900,
        ..in_need
    };
    compact_with(&fs, in_need);
    assert!(stripes_of(&fs, &left).len() < before.len());
}

/// Members suffice for all shards of new stripes, so these survive more losses than the old ones.
#[test]
fn stripes_with_shards_on_absent_members_move_where_others_suffice() {
    let rig = Rig::new(4, 2, 7);
    let fs = rig.open(&[]);
    write(&fs, 0..24);
    let left = halve(&fs, 0..24);
    fs.lose(&rig, 0);
    let moves = move_all(&fs, &left);
    assert!(moves.waiting.is_empty(), "{moves:?}");
    fs.sync().unwrap();
    fs.close();
    for also in subsets(7, 2) {
        if also.contains(&0) {
            continue;
        }
        let lost: Vec<usize> = [0].into_iter().chain(also).collect();
        let fs = TestFs::open(rig.fork().stores(&lost), Access::ReadOnly).unwrap();
        for file in &left {
            assert!(fs.read(*file).unwrap() == pattern(*file, LEN), "{lost:?}");
        }
    }
}

/// Others than compaction try them meanwhile, as a rebuild does, which may refuse their code.
#[test]
fn stripes_that_others_left_where_they_are_stay_candidates() {
    for may_write in [true, false] {
        let (rig, fs, left, before) = half_dead_without_a_member();
        compact(&fs);
        let compaction = &fs.maintenance.room.compaction;
        assert_eq!(compaction.count_aside(), before.len());
        let may = |_: &_| may_write;
        let moves = compaction.move_stripes(before.clone(), &NoLocks, Floor::Written, &may);
        let moves = moves.unwrap();
        assert!(!moves.any && moves.waiting.len() == before.len());
        if may_write {
            assert_eq!(compaction.count_aside(), before.len());
        }
        fs.take_back(&rig, 0);
        fs.sync().unwrap();
        compact(&fs);
        assert!(stripes_of(&fs, &left).len() < before.len(), "{may_write}");
        assert_survives(&rig, &left, 2, "the member is back");
    }
}

/// Files may have got a code that survives fewer losses.
#[test]
fn stripes_that_wait_are_tried_again_once_files_got_other_codes() {
    let rig = Rig::new(4, 2, 6);
    let fs = rig.open(&[]);
    write(&fs, 0..24);
    halve(&fs, 0..24);
    fs.lose(&rig, 0);
    compact(&fs);
    let compaction = &fs.maintenance.room.compaction;
    assert!(!compaction.take_back(Floor::Written));
    fs.transactions.order_rewrite().unwrap();
    assert!(compaction.take_back(Floor::Written));
    assert_eq!(compaction.count_aside(), 0);
    compact(&fs);
    assert!(compaction.count_aside() > 0 && !compaction.take_back(Floor::Written));
}

/// Those that lack a shard need no more than the members with room. Yet no member may be left out.
#[test]
fn stripes_that_wait_for_room_are_not_tried_again_while_a_member_is_full() {
    let rig = Rig::new(4, 2, 6);
    let fs = rig.open(&[]);
    fs.lose(&rig, 0);
    write(&fs, 0..24);
    let left = halve(&fs, 0..24);
    let before = stripes_of(&fs, &left);
    fs.take_back(&rig, 0);
    fs.sync().unwrap();
    fill_disk(&rig.disks[1]);
    compact(&fs);
    let compaction = &fs.maintenance.room.compaction;
    assert_eq!(compaction.count_aside(), before.len());
    assert!(
        !compaction.take_back(Floor::Written),
        "there is no more room"
    );
    rig.disks[1].set_capacity(DISK);
    assert!(compaction.take_back(Floor::Written), "there is room");
    compact(&fs);
    assert!(stripes_of(&fs, &left).len() < before.len());
    assert_survives(&rig, &left, 2, "compacted");
}

#[test]
fn one_compaction_tries_some_stripes_and_reads_those_of_one_new_stripe_in_vain() {
    let rig = Rig::new(4, 2, 6);
    let plan = FaultPlan::new();
    let stores = FaultStore::wrap_all(rig.stores(&[]), &plan);
    let fs = TestFs::open(stores, Access::ReadWrite).unwrap();
    write(&fs, 0..400);
    let left = halve(&fs, 0..400);
    let before = stripes_of(&fs, &left);
    fill_disk(&rig.disks[1]);
    let compaction = &fs.maintenance.room.compaction;
    let reads = |turns| {
        let effort = Effort { turns, ..EFFORT };
        plan.record();
        let compacted = compaction.compact(&NoLocks, effort).unwrap();
        let log = plan.take_log();
        assert_eq!(compacted, Compacted::Unfinished, "{turns} turns");
        let is_read = |call: &&Call| call.kind == CallKind::Read && call.name != files::INDEX;
        log.iter().filter(is_read).count()
    };
    let once = reads(1);
    assert!(once > 0);
    assert_eq!(compaction.count_aside(), 64);
    assert_eq!(reads(2), once, "no place was found in the first turn");
    assert_eq!(compaction.count_aside(), 192);
    assert_eq!(stripes_of(&fs, &left), before);
}

/// It has a record before the first backref names it, and an error may come in between.
#[test]
fn a_new_stripe_is_marked_before_it_is_written() {
    let rig = Rig::new(4, 2, 6);
    let plan = FaultPlan::new();
    let stores = FaultStore::wrap_all(rig.stores(&[]), &plan);
    let fs = TestFs::open(stores, Access::ReadWrite).unwrap();
    write(&fs, 0..4);
    let left = halve(&fs, 0..4);
    let before = stripes_of(&fs, &left);
    plan.add(
        Fault::at(1, Effect::Eio)
            .of(Scope::Kind(CallKind::Write))
            .lasting(),
    );
    let compaction = &fs.maintenance.room.compaction;
    let moved = compaction.move_stripes(before.clone(), &NoLocks, Floor::Written, &|_| true);
    assert!(moved.is_err(), "{moved:?}");
    let (from, end) = key::all_perhaps_dead();
    let marks = fs.transactions.scan(&from, &end, usize::MAX).unwrap();
    let marked = marks.iter().map(|(key, _)| key::parse_perhaps_dead(key));
    let marked: Vec<StripeId> = marked.map(Result::unwrap).collect();
    assert!(marked.last() > before.last(), "{marked:?}");
}
