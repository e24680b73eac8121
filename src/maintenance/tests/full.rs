//! Disks that fill up, and room that comes back.

use super::*;
use crate::store::{Effect, Fault, Scope};

/// Writes files of `len` bytes until there is no room; returns how many fitted.
pub(super) fn fill_up(fs: &TestFs, model: &mut Model, first: u64, len: usize) -> u64 {
    for file in first.. {
        let bytes = pattern(file, len);
        match fs.write(file, &bytes) {
            Ok(()) => model.insert(file, bytes),
            Err(CommitError::NoSpace) => return file - first,
            Err(error) => panic!("file {file}: {error}"),
        };
        if file % 16 == 0 {
            fs.sync().unwrap();
        }
    }
    unreachable!("no volume takes that many files");
}

#[test]
fn a_full_volume_keeps_everything_and_takes_files_again_after_deleting() {
    let rig = Rig::with_disks(2, 1, &[8 << 20; 3]);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    let count = fill_up(&fs, &mut model, 0, 60_000);
    fs.sync().unwrap();
    assert_holds(&fs, &model, "full");
    let space = fs.transactions.space();
    assert!(
        space.usable_free < space.usable_total / 10,
        "{space:?} after {count} files"
    );
    for file in 0..count / 2 {
        fs.remove(file).unwrap();
        model.insert(file, Vec::new());
    }
    assert!(fs.maintenance.room.make_room(60_000, &NoLocks).unwrap());
    let again = fill_up(&fs, &mut model, 10_000, 60_000);
    assert!(
        again * 10 >= count / 2 * 8,
        "{again} files fitted where {} were deleted",
        count / 2
    );
    fs.sync().unwrap();
    assert_holds(&fs, &model, "full again");
    fs.close();
    assert_holds(&rig.open(&[0]), &model, "reopened with a member missing");
}

#[test]
fn compaction_makes_room_where_every_stripe_is_half_dead() {
    let rig = Rig::with_disks(2, 1, &[8 << 20; 3]);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    let count = fill_up(&fs, &mut model, 0, 4_096);
    fs.sync().unwrap();
    for file in (0..count).filter(|file| file % 4 != 0) {
        fs.remove(file).unwrap();
        model.insert(file, Vec::new());
    }
    let mut again = 0;
    for round in 0..200 {
        again += fill_up(&fs, &mut model, 100_000 + again, 4_096);
        if !fs.maintenance.room.make_room(4_096, &NoLocks).unwrap() {
            assert!(round > 0);
            break;
        }
    }
    assert!(
        again * 10 >= count * 6,
        "{again} files fitted where {} of {count} were deleted",
        count * 3 / 4
    );
    fs.sync().unwrap();
    assert_holds(&fs, &model, "after compaction");
    fs.close();
    assert_holds(&rig.open(&[2]), &model, "reopened");
}

/// Length of files that use up what longer ones leave.
const LITTLE: usize = 50_000;

/// The space reported as free at the start can be written, and the space that was reported as full is.
#[test]
fn members_of_any_sizes_take_the_bytes_that_they_promise() {
    let shapes: [(usize, usize, &[u64]); 6] = [
        (1, 1, &[12, 12]),
        (2, 1, &[16, 16, 16]),
        (2, 1, &[9, 16, 12, 9, 24]),
        (4, 2, &[10, 10, 10, 10, 10, 10]),
        (4, 2, &[8, 12, 9, 30, 8, 11, 16, 8]),
        (2, 2, &[20, 9, 9, 9, 40]),
    ];
    for (data, parity, sizes) in shapes {
        for len in [LITTLE, 700_000] {
            let context = format!("{data}+{parity} of {sizes:?} MiB, files of {len} bytes");
            let sizes: Vec<u64> = sizes.iter().map(|mib| mib << 20).collect();
            let rig = Rig::with_disks(data, parity, &sizes);
            let fs = rig.open(&[]);
            let promised = fs.transactions.space();
            assert_eq!(promised.usable_used, 0, "{context}: {promised:?}");
            let mut model = Model::new();
            // The next file starts at a block.
            let taken = |count: u64, len: usize| count * len.next_multiple_of(BLOCK_SIZE) as u64;
            let mut stored = taken(fill_up(&fs, &mut model, 0, len), len);
            // There may be room left for less than one more of these, once what was placed of it is freed.
            fs.maintenance
                .room
                .make_room(LITTLE as u64, &NoLocks)
                .unwrap();
            stored += taken(fill_up(&fs, &mut model, 1 << 32, LITTLE), LITTLE);
            fs.sync().unwrap();
            assert!(
                stored * 100 >= promised.usable_free * 95,
                "{context}: {stored} bytes stored of {promised:?}"
            );
            assert!(
                stored <= promised.usable_total * 102 / 100,
                "{context}: {stored} of {promised:?}"
            );
            let full = fs.transactions.space();
            assert!(
                full.usable_free <= promised.usable_free / 20,
                "{context}: {full:?}, full"
            );
            assert_holds(&fs, &model, &context);
            assert_eq!(fs.redundancy().len(), 1, "{context}");
            fs.close();
            for lost in subsets(sizes.len(), 1) {
                assert_holds(
                    &rig.fork().open(&lost),
                    &model,
                    &format!("{context}, lost {lost:?}"),
                );
            }
        }
    }
}

/// Returns how much data disks of these sizes hold, by the formula in README.md; `holders` have copies of
/// the index.
fn room_by_formula(data: u64, parity: u64, sizes: &[u64], unit: u64, holders: &[usize]) -> u64 {
    let shards = data + parity;
    let part_of = |size: &u64, most: u64| (size / 64).clamp(1 << 20, most);
    let smallest = sizes.iter().min().expect("there are disks");
    let journal = 2 * part_of(smallest, 32 << 20);
    let room = |(disk, size): (usize, &u64)| {
        let is_holder = u64::from(holders.contains(&disk));
        let kept = part_of(size, 1 << 30) + is_holder * part_of(size, 64 << 20) + 4 * unit;
        let left = size - journal - kept;
        left - left * shards / 820
    };
    let rooms: Vec<u64> = sizes.iter().enumerate().map(room).collect();
    let fits = |t: u64| rooms.iter().map(|room| t.min(*room)).sum::<u64>() >= shards * t;
    // So much fits, and so much does not.
    let (mut most, mut too_much) = (0, rooms.iter().sum::<u64>());
    while most + 1 < too_much {
        let middle = u64::midpoint(most, too_much);
        if fits(middle) {
            most = middle;
        } else {
            too_much = middle;
        }
    }
    data * most
}

#[test]
fn large_disks_take_the_bytes_of_the_formula_within_two_percent() {
    // Small against the disks, as real ones are.
    let unit = 64 << 10;
    let shapes: [(u64, u64, &[u64]); 3] = [
        (4, 2, &[256, 256, 256, 256, 256, 256]),
        (2, 1, &[192, 320, 640, 192, 256]),
        (1, 1, &[256, 1024]),
    ];
    for (data, parity, mebibytes) in shapes {
        let sizes: Vec<u64> = mebibytes.iter().map(|mib| mib << 20).collect();
        let rig = Rig::with_unit(data as usize, parity as usize, &sizes, unit);
        let fs = rig.open(&[]);
        let formula = room_by_formula(data, parity, &sizes, unit as u64, &rig.holders());
        let context = format!("{data}+{parity} over {mebibytes:?} MiB");
        let mut lens = Vec::new();
        // Short ones take what long ones leave.
        for len in [1 << 20, LITTLE.next_multiple_of(BLOCK_SIZE)] {
            let bytes = pattern(len as u64, len);
            let refused = loop {
                if let Err(error) = fs.write(lens.len() as u64, &bytes) {
                    break error;
                }
                lens.push(len);
                if lens.len().is_multiple_of(16) {
                    fs.sync().unwrap();
                }
            };
            assert!(
                matches!(refused, CommitError::NoSpace),
                "{context}: {refused}"
            );
            fs.maintenance
                .room
                .make_room(LITTLE as u64, &NoLocks)
                .unwrap();
        }
        fs.sync().unwrap();
        let stored = lens.iter().sum::<usize>() as u64;
        println!("{context}: {stored} of {formula}");
        assert!(
            (formula * 98..=formula * 102).contains(&(stored * 100)),
            "{context}: {stored} stored, {formula} by the formula"
        );
        for (file, len) in (0..).zip(lens).step_by(29) {
            let expected = pattern(len as u64, len);
            assert!(fs.read(file).unwrap() == expected, "{context}: file {file}");
        }
        fs.close();
    }
}

/// Neither what segments reserved nor what dead stripes took counts as used.
#[test]
fn the_used_space_is_that_of_the_files_written_and_not_removed() {
    let rig = Rig::with_disks(4, 2, &[64 << 20; 6]);
    let fs = rig.open(&[]);
    let whole = fs.transactions.space();
    let stripe = 4 * UNIT as u64;
    let assert_used = |fs: &TestFs, files: u64, when: &str| {
        let space = fs.transactions.space();
        let expected = files * 10 * stripe;
        // A stripe that is being filled has its place already.
        assert!(
            (expected..=expected + 2 * stripe).contains(&space.usable_used),
            "{when}: {space:?}, {expected} bytes written"
        );
        assert_eq!(space.usable_used + space.usable_free, space.usable_total);
        // The index takes some, and gives none back; what it will take is a guess.
        assert!(
            space.usable_total * 100 <= whole.usable_total * 101,
            "{when}: {space:?}, {whole:?}"
        );
        assert!(
            space.usable_total * 100 >= whole.usable_total * 95,
            "{when}: {space:?}, {whole:?}"
        );
    };
    for file in 0..40 {
        fs.write(file, &pattern(file, 10 * stripe as usize))
            .unwrap();
        assert_used(&fs, file + 1, "writing");
    }
    fs.sync().unwrap();
    for file in (0..40).step_by(2) {
        fs.remove(file).unwrap();
    }
    for _ in 0..4 {
        fs.sync().unwrap();
        fs.maintenance.reaper.reap().unwrap();
    }
    assert_used(&fs, 20, "every other file removed");
    fs.close();
    let fs = rig.open(&[]);
    for _ in 0..10 {
        fs.maintenance.reaper.reap().unwrap();
    }
    assert_used(&fs, 20, "reopened");
}

#[test]
fn a_deleted_file_gives_its_room_back_to_the_disks() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    let free = |fs: &TestFs| {
        fs.transactions
            .members()
            .io()
            .spaces()
            .iter()
            .map(|s| s.1.free_bytes)
            .sum::<u64>()
    };
    fs.write(1, &pattern(1, 600)).unwrap();
    fs.transactions.checkpoint().unwrap();
    let before = free(&fs);
    fs.write(2, &pattern(2, 2_000_000)).unwrap();
    fs.sync().unwrap();
    assert!(free(&fs) + 2_500_000 < before);
    fs.remove(2).unwrap();
    for _ in 0..4 {
        fs.sync().unwrap();
        fs.maintenance.reaper.reap().unwrap();
    }
    // The rest is a segment or two that are still being written.
    assert!(
        free(&fs) + 600_000 > before,
        "{} of {before} free",
        free(&fs)
    );
    assert!(fs.stripes().len() < 4);
}

#[test]
fn stripes_whose_extents_a_crash_swallowed_are_found_and_freed() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    // Taken, flushed and recorded, but never named by an extent.
    let written = fs.transactions.write(&pattern(1, 200_000)).unwrap();
    fs.sync().unwrap();
    let stripes = fs.stripes().len();
    assert!(stripes > 5);
    drop(written);
    rig.cut(CutPolicy::Keep);
    let fs = rig.open(&[]);
    for _ in 0..5 {
        fs.maintenance.reaper.reap().unwrap();
        fs.sync().unwrap();
    }
    assert_eq!(fs.stripes(), []);
}

#[test]
fn a_stripe_lives_while_its_writer_has_not_applied_its_extents() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    let written = fs.transactions.write(&pattern(1, 16_384)).unwrap();
    let stripe = written.placed[0].stripe;
    let mut batch = Batch::default();
    batch.put(key::perhaps_dead(stripe), Marker.encode());
    fs.transactions.apply(batch).unwrap();
    for _ in 0..5 {
        fs.sync().unwrap();
        fs.maintenance.reaper.reap().unwrap();
    }
    assert!(fs.transactions.stripe(stripe).unwrap().is_some());
    drop(written);
    for _ in 0..5 {
        fs.sync().unwrap();
        fs.maintenance.reaper.reap().unwrap();
    }
    assert!(fs.transactions.stripe(stripe).unwrap().is_none());
}

#[test]
fn a_reader_with_a_pin_can_read_a_file_that_was_deleted_meanwhile() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    let bytes = pattern(1, 100_000);
    fs.write(1, &bytes).unwrap();
    fs.sync().unwrap();
    let pin = fs.transactions.pin();
    let extents = fs.extents(1).unwrap();
    fs.remove(1).unwrap();
    let go_round = || {
        for _ in 0..5 {
            fs.sync().unwrap();
            fs.maintenance.reaper.reap().unwrap();
        }
    };
    go_round();
    for (end, extent) in &extents {
        let mut out = vec![0; extent.len as usize];
        fs.transactions
            .read(extent.stripe, extent.stripe_offset, &mut out)
            .unwrap();
        assert!(out == bytes[(end - extent.len) as usize..*end as usize]);
    }
    drop(pin);
    go_round();
    let mut out = [0];
    assert!(
        fs.transactions
            .read(extents[0].1.stripe, 0, &mut out)
            .is_err()
    );
}

/// The member has a copy of the index, and others have room for it.
#[test]
fn a_full_member_does_not_keep_the_journal_from_being_emptied() {
    let rig = Rig::new(2, 1, 5);
    let fs = rig.open(&[]);
    let holder = |disk: &usize| rig.disks[*disk].open().open_len(files::INDEX).is_ok();
    let full = (0..5).find(holder).unwrap();
    rig.disks[full].set_capacity(0);
    let mut file = 0;
    while fs.transactions.meta.journal_fill() < 0.6 {
        let mut batch = Batch::default();
        batch.put(key::xattr(Ino(file), b"user.large"), pattern(file, 3000));
        fs.transactions.apply(batch).unwrap();
        file += 1;
        if file.is_multiple_of(50) {
            fs.sync().unwrap();
        }
    }
    let mut refused = 0;
    while fs.transactions.meta.journal_fill() >= 0.5 {
        refused += u32::from(fs.transactions.clock().tick().is_err());
        assert!(refused < 100, "the journal is never emptied");
    }
    assert!(refused > 0, "the full member was not in the way");
    // Small pieces may fit where the whole did not; the copy is moved nevertheless.
    fs.transactions.commits.refill_index(100).unwrap();
    assert!(!holder(&full));
    assert_eq!(fs.transactions.members().membership().live().len(), 5);
    drop(fs);
    rig.cut(CutPolicy::Drop);
    let fs = rig.open(&[]);
    for file in 0..file {
        let found = fs.transactions.get(&key::xattr(Ino(file), b"user.large"));
        assert!(
            found
                .unwrap()
                .is_some_and(|value| *value == pattern(file, 3000))
        );
    }
}

/// Neither the journal can grow on it nor its copy of the index, and both can elsewhere.
#[test]
fn no_commit_waits_for_space_on_one_full_member() {
    let rig = Rig::new(2, 1, 5);
    let fs = rig.open(&[]);
    let holder = |disk: &usize| rig.disks[*disk].open().open_len(files::INDEX).is_ok();
    let full = (0..5).find(holder).unwrap();
    rig.disks[full].set_capacity(0);
    let mut fullest: f32 = 0.0;
    for number in 0..2500 {
        let mut batch = Batch::default();
        batch.put(attribute(number), pattern(number, 2000));
        fs.transactions.apply(batch).unwrap();
        if number % 50 == 0 {
            fullest = fullest.max(fs.transactions.meta.journal_fill());
            fs.sync()
                .unwrap_or_else(|error| panic!("{number}, journal {fullest}: {error}"));
        }
    }
    fs.sync().unwrap();
    assert!(fullest > 0.9, "the journal was full at {fullest}");
    assert!(!holder(&full));
    assert_eq!(fs.transactions.members().membership().live().len(), 5);
    drop(fs);
    rig.cut(CutPolicy::Drop);
    for lost in 0..5 {
        assert_records(&rig.fork().open(&[lost]), 0..2500);
    }
}

/// Bytes of a stripe are in the journal, so that it cannot just be forgotten.
#[test]
fn a_full_journal_that_cannot_grow_gives_way_to_the_index() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    let bytes = pattern(1, 700);
    fs.write(1, &bytes).unwrap();
    fs.sync().unwrap();
    for disk in &rig.disks {
        disk.set_capacity(0);
    }
    let attribute = key::xattr(Ino(1), b"user.counter");
    let put = |fs: &TestFs, round| {
        let mut batch = Batch::default();
        batch.put(attribute.clone(), pattern(round, 3000));
        fs.transactions.apply(batch).unwrap();
    };
    let (mut fullest, mut round) = (0.0, 0);
    while fs.transactions.meta.journal_fill() >= fullest {
        fullest = fs.transactions.meta.journal_fill();
        round += 1;
        put(&fs, round);
        fs.sync()
            .unwrap_or_else(|error| panic!("round {round}, journal {fullest}: {error}"));
        assert!(round < 2000);
    }
    assert!(fullest > 0.98, "emptied at {fullest}");
    put(&fs, round + 1);
    fs.sync().unwrap();
    drop(fs);
    rig.cut(CutPolicy::Drop);
    for disk in &rig.disks {
        disk.set_capacity(DISK);
    }
    for lost in 0..3 {
        let fs = rig.fork().open(&[lost]);
        assert_eq!(fs.read(1).unwrap(), bytes, "lost {lost}");
        let found = fs.transactions.get(&attribute).unwrap();
        assert!(
            found.is_some_and(|value| *value == pattern(round + 1, 3000)),
            "lost {lost}"
        );
    }
}

#[test]
fn additions_are_refused_while_nothing_can_be_made_durable_and_deletions_are_not() {
    let rig = Rig::new(2, 1, 3);
    let plan = FaultPlan::new();
    let fs = rig.open_with_faults(&plan).unwrap();
    let mut model = Model::new();
    for file in 1..4 {
        model.insert(file, pattern(file, 5000));
        fs.write(file, &model[&file]).unwrap();
    }
    fs.transactions.checkpoint().unwrap();
    fs.transactions.growth().check_growth().unwrap();
    plan.add(Fault::at(1, Effect::NoSpace).of(Scope::Changing).lasting());
    let mut batch = Batch::default();
    batch.put(key::xattr(Ino(1), b"user.late"), "value");
    fs.transactions.apply(batch).unwrap();
    let synced = fs.sync();
    assert!(matches!(synced, Err(CommitError::NoSpace)), "{synced:?}");
    assert!(matches!(
        fs.transactions.growth().check_growth(),
        Err(CommitError::NoSpace)
    ));
    assert!(matches!(
        fs.transactions.write(b"more"),
        Err(CommitError::NoSpace)
    ));
    fs.remove(2).unwrap();
    model.insert(2, Vec::new());
    assert_holds(&fs, &model, "full");
    plan.clear();
    fs.transactions.growth().check_growth().unwrap();
    drop(fs);
    rig.cut(CutPolicy::Drop);
    let fs = rig.open(&[]);
    assert_holds(&fs, &model, "after the cut");
    let late = fs
        .transactions
        .get(&key::xattr(Ino(1), b"user.late"))
        .unwrap();
    assert_eq!(late.as_deref(), Some(&b"value"[..]));
}

/// A record in the index, as big as that of a small file.
fn attribute(number: u64) -> Key {
    key::xattr(Ino(number), b"user.small")
}

pub(super) fn add(fs: &TestFs, number: u64) -> Result<(), CommitError> {
    fs.transactions.growth().check_growth()?;
    let mut batch = Batch::default();
    batch.put(attribute(number), pattern(number, 2000));
    fs.transactions.apply(batch)
}

/// Adds records until there is no room; returns where they end. Accepted records must be durable after a sync.
pub(super) fn fill_index(fs: &TestFs, first: u64) -> u64 {
    for number in first.. {
        while let Err(error) = add(fs, number) {
            assert!(matches!(error, CommitError::NoSpace), "{number}: {error}");
            if !fs.maintenance.room.make_room(0, &NoLocks).unwrap() {
                fs.sync().unwrap();
                return number;
            }
        }
        if number % 20 == 0 {
            fs.sync().unwrap();
        }
    }
    unreachable!("no volume takes that many records");
}

pub(super) fn drop_records(fs: &TestFs, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        let mut batch = Batch::default();
        batch.delete(attribute(number));
        fs.transactions.apply(batch).unwrap();
    }
    fs.sync().unwrap();
}

#[track_caller]
pub(super) fn assert_records(fs: &TestFs, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        let found = fs.transactions.get(&attribute(number)).unwrap();
        assert!(
            found.is_some_and(|value| *value == pattern(number, 2000)),
            "record {number}"
        );
    }
}

#[test]
fn a_volume_full_of_records_alone_can_be_opened_emptied_and_filled_again() {
    let rig = Rig::with_disks(1, 1, &[12 << 20; 2]);
    let fs = rig.open(&[]);
    let end = fill_index(&fs, 0);
    assert!(end > 600, "only {end} records fitted");
    assert_records(&fs, 0..end);
    drop(fs);
    rig.cut(CutPolicy::Drop);
    let fs = rig.open(&[]);
    assert_records(&fs, 0..end);
    let (gone, left) = (end / 4..end * 3 / 4, || {
        (0..end / 4).chain(end * 3 / 4..end)
    });
    drop_records(&fs, gone.clone());
    let again = fill_index(&fs, end);
    let (fitted, gone) = (again - end, gone.end - gone.start);
    assert!(
        fitted * 10 > gone * 8,
        "{fitted} fitted where {gone} were deleted"
    );
    assert_records(&fs, left().chain(end..again));
    drop_records(&fs, 0..again);
    fs.maintenance.room.make_room(3 << 20, &NoLocks).unwrap();
    fs.write(1, &pattern(1, 3 << 20)).unwrap();
    fs.close();
    let fs = rig.open(&[1]);
    assert!(fs.read(1).unwrap() == pattern(1, 3 << 20));
}

/// Others fill the disks before the next mount, which has much to bring into the index.
#[test]
fn recovery_has_the_reserve_on_disks_that_others_filled_meanwhile() {
    let rig = Rig::with_disks(1, 1, &[16 << 20; 2]);
    let fs = rig.open(&[]);
    let (early, end) = (400, 600);
    for number in 0..end {
        add(&fs, number).unwrap();
        if number == early {
            fs.transactions.checkpoint().unwrap();
        }
    }
    fs.sync().unwrap();
    drop(fs);
    rig.cut(CutPolicy::Drop);
    for disk in &rig.disks {
        let space = disk.open().space().unwrap();
        disk.set_capacity(space.total_bytes - space.free_bytes);
    }
    let fs = rig.open(&[]);
    assert_records(&fs, 0..end);
    drop_records(&fs, 0..end);
    fs.close();
}

/// Others use the same filesystems, and leave nothing.
#[test]
fn deleting_works_on_disks_that_others_have_filled() {
    let rig = Rig::with_disks(1, 1, &[16 << 20; 2]);
    let fs = rig.open(&[]);
    let end = 800;
    for number in 0..end {
        add(&fs, number).unwrap();
        if number == end * 3 / 4 {
            fs.transactions.checkpoint().unwrap();
        }
    }
    fs.sync().unwrap();
    for disk in &rig.disks {
        let space = disk.open().space().unwrap();
        disk.set_capacity(space.total_bytes - space.free_bytes);
    }
    fs.transactions.growth.measure_growth();
    assert!(matches!(add(&fs, end), Err(CommitError::NoSpace)));
    drop_records(&fs, (0..end).filter(|number| number % 2 == 0));
    let left = || (0..end).filter(|number| number % 2 == 1);
    fs.transactions.checkpoint().unwrap();
    assert_records(&fs, left());
    drop(fs);
    rig.cut(CutPolicy::Drop);
    let fs = rig.open(&[]);
    assert_records(&fs, left());
    drop_records(&fs, left());
    fs.close();
    let fs = rig.open(&[]);
    let (from, end) = (attribute(0), attribute(end));
    assert_eq!(fs.transactions.scan(&from, &end, 10).unwrap(), []);
}
