//! Records that do not agree on where stripes lie, as no build writes them.

use super::*;
use crate::format::record::{SegmentStripe, Stripe};
use crate::maintenance::compaction::Floor;

fn with_stripes() -> (Rig, TestFs) {
    let rig = Rig::new(2, 1, 4);
    let fs = rig.open(&[]);
    for file in 0..8 {
        fs.write(file, &pattern(file, 2 * UNIT)).unwrap();
    }
    fs.transactions.checkpoint().unwrap();
    (rig, fs)
}

fn record_of(fs: &TestFs, stripe: StripeId) -> Stripe {
    fs.transactions.records.stripe(stripe).unwrap().unwrap()
}

/// Moves the record of a stripe so that it overlaps another one in its segment. Returns both.
fn overlap(fs: &TestFs) -> [StripeId; 2] {
    let stripes = fs.stripes();
    let all = stripes
        .iter()
        .map(|stripe| (*stripe, record_of(fs, *stripe)));
    let all: Vec<(StripeId, Stripe)> = all.collect();
    let (first, of_first) = all[0];
    let in_segment = |(id, record): &&(StripeId, Stripe)| {
        *id != first && record.segment == of_first.segment && record.offset > of_first.offset
    };
    let &(second, mut record) = all.iter().rev().find(in_segment).unwrap();
    let mut batch = Batch::default();
    batch.delete(key::segment_stripe(record.segment, record.offset));
    record.offset = of_first.offset + BLOCK_SIZE as u64;
    batch.put(key::stripe(second), record.encode());
    let place = key::segment_stripe(record.segment, record.offset);
    batch.put(place, SegmentStripe(second).encode());
    fs.transactions.meta.apply_stripes(batch).unwrap();
    [first, second]
}

#[test]
fn overlapping_stripes_neither_stop_a_rebuild_nor_free_bytes_of_others() {
    let (rig, fs) = with_stripes();
    let damaged = overlap(&fs);
    fs.transactions.checkpoint().unwrap();
    drop(fs);
    let rig = rig.fork();
    for lost in [&[][..], &[0]] {
        let fs = rig.open(lost);
        drop(fs.rebuild());
        for _ in 0..20 {
            fs.maintenance.reaper.reap().unwrap();
            fs.sync().unwrap();
        }
        for file in 0..8 {
            let extents = fs.extents(file).unwrap();
            if extents
                .iter()
                .all(|(_, extent)| !damaged.contains(&extent.stripe))
            {
                assert_eq!(
                    fs.read(file).unwrap(),
                    pattern(file, 2 * UNIT),
                    "file {file}"
                );
            }
        }
    }
}

/// Gives the record of a segment's first stripe a height that reaches over those behind it. Returns that stripe.
fn raise(fs: &TestFs) -> StripeId {
    let stripes = fs.stripes();
    let has_next = |(first, next): &(StripeId, StripeId)| {
        let (first, next) = (record_of(fs, *first), record_of(fs, *next));
        first.segment == next.segment && first.offset == 0
    };
    let pairs = stripes.iter().copied().zip(stripes.iter().copied().skip(1));
    let (first, _) = pairs.into_iter().find(has_next).unwrap();
    let mut record = record_of(fs, first);
    record.height *= 4;
    let mut batch = Batch::default();
    batch.put(key::stripe(first), record.encode());
    fs.transactions.meta.apply_stripes(batch).unwrap();
    first
}

/// Each disk is away once, and the volume is rebuilt without it.
#[test]
fn a_record_with_a_wrong_height_takes_no_redundancy_of_its_neighbours() {
    let (rig, fs) = with_stripes();
    let damaged = raise(&fs);
    let segment = record_of(&fs, damaged).segment;
    fs.transactions.checkpoint().unwrap();
    let of_others = |file: &u64| {
        let extents = fs.extents(*file).unwrap();
        extents.iter().all(|(_, extent)| extent.stripe != damaged)
    };
    let files: Vec<u64> = (0..8).filter(of_others).collect();
    assert!(files.len() > 4, "{files:?}");
    let slots = fs
        .transactions
        .stripes
        .segments()
        .record(segment)
        .unwrap()
        .slots;
    drop(fs);
    let away = usize::from(slots[0].unwrap().0);
    let rig = rig.fork();
    let fs = rig.open(&[away]);
    let progress = fs.rebuild().unwrap();
    assert!(progress.bytes_unreadable > 0, "{progress:?}");
    let after = fs
        .transactions
        .stripes
        .segments()
        .record(segment)
        .unwrap()
        .slots;
    assert_eq!(after, slots, "nothing of it moves");
    fs.close();
    for lost in (0..4).filter(|lost| *lost != away) {
        let fs = TestFs::open(rig.fork().stores(&[away, lost]), Access::ReadOnly).unwrap();
        for &file in &files {
            let read = fs
                .read(file)
                .unwrap_or_else(|error| panic!("{lost}: {error}"));
            assert!(
                read == pattern(file, 2 * UNIT),
                "file {file} without {lost}"
            );
        }
    }
}

#[test]
fn a_place_at_the_end_of_all_numbers_does_not_keep_a_volume_from_opening() {
    let (rig, fs) = with_stripes();
    let segment = record_of(&fs, fs.stripes()[0]).segment;
    let mut batch = Batch::default();
    let place = key::segment_stripe(segment, u64::MAX);
    batch.put(place, SegmentStripe(StripeId(1 << 40)).encode());
    fs.transactions.meta.apply_stripes(batch).unwrap();
    fs.transactions.checkpoint().unwrap();
    drop(fs);
    let rig = rig.fork();
    let fs = rig.open(&[]);
    for file in 0..8 {
        assert_eq!(fs.read(file).unwrap(), pattern(file, 2 * UNIT));
    }
}

/// It would be copied into memory that long.
#[test]
fn compaction_demands_no_memory_for_a_backref_that_is_too_long() {
    for len in [1 << 50, u64::MAX, 3 * UNIT as u64] {
        let (_rig, fs) = with_stripes();
        let stripe = fs.stripes()[0];
        let mut batch = Batch::default();
        let backref = Backref {
            len,
            stripe_offset: 0,
        };
        batch.put(key::backref(stripe, Ino(77), 1 << 60), backref.encode());
        fs.transactions.meta.apply(batch).unwrap();
        // An error or not: nothing is moved.
        drop(fs.maintenance.room.compaction.move_stripes(
            vec![stripe],
            &NoLocks,
            Floor::Written,
            &|_| true,
        ));
        for file in 0..8 {
            assert_eq!(fs.read(file).unwrap(), pattern(file, 2 * UNIT));
        }
    }
}
