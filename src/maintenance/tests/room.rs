//! Making room: when it is tried, and what it costs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::full::fill_up;
use super::*;
use crate::maintenance::compaction::{Effort, Floor};

fn counted(fs: &TestFs) -> u64 {
    fs.maintenance.room.compaction.candidates_counted()
}

fn make_room(fs: &TestFs) -> bool {
    fs.maintenance.room.make_room(40_000, &NoLocks).unwrap()
}

fn assert_full(fs: &TestFs, context: &str) {
    let written = fs.write(1 << 40, &pattern(1, 40_000));
    assert!(matches!(written, Err(CommitError::NoSpace)), "{context}");
}

/// Fills a volume of 2+1 with files of `len` bytes.
fn full(disk: u64, len: usize) -> (Rig, TestFs, u64) {
    let rig = Rig::with_disks(2, 1, &[disk; 3]);
    let fs = rig.open(&[]);
    let count = fill_up(&fs, &mut Model::new(), 0, len);
    (rig, fs, count)
}

#[test]
fn a_vain_search_for_room_is_not_repeated_before_something_dies() {
    let (rig, fs, count) = full(8 << 20, 60_000);
    // The first call frees what the last write had placed before it found no room.
    while make_room(&fs) {
        assert_full(&fs, "a stripe or two for much more");
    }
    let before = counted(&fs);
    assert!(before > 100, "only {before} stripes were looked at");
    let stripes = fs.stripes();
    for _ in 0..100 {
        assert_full(&fs, "nothing died");
        assert!(!make_room(&fs));
    }
    assert_eq!(counted(&fs), before);
    assert_eq!(
        fs.stripes(),
        stripes,
        "what was refused left something behind"
    );
    for file in 0..count / 4 {
        fs.remove(file).unwrap();
    }
    assert!(make_room(&fs));
    fs.write(1 << 40, &pattern(1, 40_000)).unwrap();
    assert!(counted(&fs) < before + 50, "what lives was looked at again");
    fill_up(&fs, &mut Model::new(), 1 << 32, 60_000);
    while make_room(&fs) {}
    assert_full(&fs, "full again");
    rig.disks
        .iter()
        .for_each(|disk| disk.set_capacity(12 << 20));
    assert!(make_room(&fs), "others freed something");
    fs.write(1 << 40, &pattern(1, 40_000)).unwrap();
}

/// Every file takes two blocks, of which it fills little more than one; it would so anywhere.
#[test]
fn bytes_wasted_by_alignment_cause_no_moves() {
    let (_rig, fs, _) = full(8 << 20, 4_160);
    fs.maintenance.room.make_room(40_000, &NoLocks).unwrap();
    let stripes = fs.stripes();
    fs.remove(0).unwrap();
    fs.maintenance.room.make_room(1 << 20, &NoLocks).unwrap();
    let moved = fs.stripes();
    let moved = moved.iter().filter(|stripe| !stripes.contains(stripe));
    assert!(moved.count() <= 1);
}

/// Returns a volume that is full of stripes of which every other file is gone.
fn half_dead() -> (Rig, TestFs) {
    let (rig, fs, count) = full(16 << 20, 8_192);
    for file in (0..count).filter(|file| file % 2 != 0) {
        fs.remove(file).unwrap();
    }
    (rig, fs)
}

#[test]
fn room_is_made_in_pieces_before_it_is_needed() {
    let (_rig, fs) = half_dead();
    let total = fs.transactions.space().usable_total;
    let mut steps = Vec::new();
    loop {
        let before = fs.transactions.space().usable_free;
        fs.maintenance.room.make_room_ahead(&NoLocks, None).unwrap();
        let gained = fs.transactions.space().usable_free.saturating_sub(before);
        if gained == 0 {
            break;
        }
        steps.push(gained);
    }
    let free = fs.transactions.space().usable_free;
    assert!(
        steps.len() > 1 && free >= total / 16,
        "{free} of {total} free after {steps:?}"
    );
    assert!(free < total / 4, "no need was near: {free} of {total} free");
    let before = counted(&fs);
    fs.maintenance.room.make_room_ahead(&NoLocks, None).unwrap();
    assert_eq!(counted(&fs), before, "there is no need");
}

#[test]
fn room_is_made_ahead_no_faster_than_it_may_be_unless_there_is_need() {
    let (_rig, fs) = half_dead();
    let free = || fs.transactions.space().usable_free;
    let ahead = |rate| {
        let before = (free(), fs.stripes());
        fs.maintenance.room.make_room_ahead(&NoLocks, rate).unwrap();
        (free(), fs.stripes()) != before
    };
    // A piece is done in any case; at a byte a second it is the only one for a while.
    assert!(ahead(Some(1)));
    assert!(!ahead(Some(1)) && !ahead(None));
    let before = free();
    fs.maintenance.room.make_room(1 << 20, &NoLocks).unwrap();
    assert!(free() > before);

    let (_rig, fs) = half_dead();
    let free = || fs.transactions.space().usable_free;
    let steps = (0..).take_while(|_| {
        let before = free();
        let rate = Some(u64::MAX);
        fs.maintenance.room.make_room_ahead(&NoLocks, rate).unwrap();
        free() > before
    });
    assert!(steps.count() > 1);
}

/// A volume that was full when it was mounted, where nothing is known of any stripe.
#[test]
fn room_is_made_ahead_after_a_mount_and_given_up_where_all_lives() {
    let (rig, fs, count) = full(16 << 20, 8_192);
    fs.sync().unwrap();
    for file in (0..count).filter(|file| file % 2 != 0) {
        fs.remove(file).unwrap();
    }
    fs.close();
    let fs = rig.open(&[]);
    let before = fs.transactions.space().usable_free;
    for _ in 0..4 {
        fs.maintenance.room.make_room_ahead(&NoLocks, None).unwrap();
    }
    assert!(fs.transactions.space().usable_free > before + (100 << 10));

    let (_rig, fs, _) = full(8 << 20, 60_000);
    while make_room(&fs) {}
    fs.maintenance.room.make_room_ahead(&NoLocks, None).unwrap();
    let before = counted(&fs);
    for _ in 0..10 {
        fs.maintenance.room.make_room_ahead(&NoLocks, None).unwrap();
    }
    assert_eq!(counted(&fs), before);
}

#[test]
fn dead_stripes_take_no_space_on_a_read_only_mount_either() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    for file in 0..40 {
        fs.write(file, &pattern(file, 60_000)).unwrap();
    }
    fs.sync().unwrap();
    for file in (0..40).step_by(2) {
        fs.remove(file).unwrap();
    }
    fs.close();
    let fs = TestFs::open(rig.stores(&[]), Access::ReadOnly).unwrap();
    let used = || fs.transactions.space().usable_used;
    let before = used();
    fs.maintenance.reaper.measure_segments().unwrap();
    let live = 20 * 60_000;
    assert!(
        before > live * 3 / 2 && (live..live * 5 / 4).contains(&used()),
        "{before} before, {} now, {live} live",
        used()
    );
}

/// A checkpoint makes the measured room out of date at any time, also between its measuring and its use.
#[test]
fn a_checkpoint_at_any_time_has_no_addition_refused_on_a_volume_with_room() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    let is_done = AtomicBool::new(false);
    let checkpoints = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                fs.transactions.checkpoint().unwrap();
                checkpoints.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _end = scopeguard::guard((), |()| is_done.store(true, Ordering::Relaxed));
        while checkpoints.load(Ordering::Relaxed) < 20_000 {
            fs.transactions.growth().check_growth().unwrap();
        }
    });
    fs.close();
}

#[test]
fn additions_meet_no_lack_of_space_where_all_copies_of_the_index_went_away() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    for disk in &rig.disks {
        disk.delete();
    }
    let checked = fs.transactions.growth().check_growth();
    assert!(!matches!(checked, Err(CommitError::NoSpace)), "{checked:?}");
}

/// Their bytes cannot be read, and one compaction tries no more of them. Those that can be moved come later.
#[test]
fn room_is_made_with_stripes_that_come_after_many_that_cannot_be_moved() {
    let rig = Rig::new(4, 2, 6);
    let fs = rig.open(&[]);
    let files = 0..400_u64;
    for file in files.clone() {
        fs.write(file, &pattern(file, 2 * UNIT)).unwrap();
    }
    fs.transactions.stripes.writer().retire_segments().unwrap();
    fs.sync().unwrap();
    for file in files.filter(|file| file % 2 != 0) {
        fs.remove(file).unwrap();
    }
    fs.sync().unwrap();
    let stripes = fs.stripes();
    assert!(stripes.len() >= 200);
    let spoil = |count: usize| {
        let some = &stripes[..count];
        for shard in fs.written_shards() {
            if shard.shard.0 < 3 && some.contains(&shard.stripe) {
                let disk = &rig.disks[shard.disk];
                disk.corrupt(&shard.name, shard.offset, |b| b.fill(0x5a), shard.height);
            }
        }
    };
    let effort = Effort {
        max_live: 900,
        counts: usize::MAX,
        turns: 1,
        floor: Floor::Online,
    };
    let room = &fs.maintenance.room;
    let needed = u64::MAX / 4;
    spoil(150);
    assert!(room.make_room_by(needed, &NoLocks, effort).unwrap());
    let left = fs.stripes();
    let are_there = |stripe: &&StripeId| left.contains(stripe);
    assert_eq!(stripes[..150].iter().filter(are_there).count(), 150);
    assert!(stripes[150..].iter().filter(are_there).count() < 50);
}
