//! The members that data goes to.

use std::cell::Cell;
use std::fs::create_dir;
use std::sync::atomic::AtomicU64;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng};

use super::*;
use crate::maintenance::{Pace, RebuildState};
use crate::membership::directory;

impl Rig {
    /// Fills a disk except for so many bytes.
    fn leave(&self, disk: usize, bytes: u64) {
        let space = self.disks[disk].open().space().unwrap();
        self.disks[disk].set_capacity(space.total_bytes - space.free_bytes + bytes);
    }
}

/// They all have the same room, which each segment takes from all of them.
#[test]
fn members_on_one_filesystem_all_get_data() {
    let top = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..7).map(|i| top.path().join(format!("d{i}"))).collect();
    for path in &paths {
        create_dir(path).unwrap();
    }
    let stores = || -> Vec<StoreRef> {
        let open = |path| Arc::new(directory::open(path).unwrap()) as StoreRef;
        paths.iter().map(open).collect()
    };
    let mut options = CreateOptions::new(Geometry::new(2, 1).unwrap());
    options.unit_bytes = UNIT as u32;
    options.segment_bytes = 8 * UNIT as u64;
    Transactions::create(&stores(), &options, executor()).unwrap();
    let fs = TestFs::open(stores(), Access::ReadWrite).unwrap();
    for file in 0..50 {
        fs.write(file, &pattern(file, 60_000)).unwrap();
    }
    fs.sync().unwrap();
    fs.close();
    let of_member = |store: &StoreRef| {
        let listed = store.list(files::SEGMENTS).unwrap();
        listed.iter().map(|(_, len)| len).sum::<u64>()
    };
    let taken: Vec<u64> = stores().iter().map(of_member).collect();
    let (least, most) = (taken.iter().min(), taken.iter().max());
    assert!(
        most.unwrap() - least.unwrap() <= 2 * options.segment_bytes,
        "bytes on each member: {taken:?}"
    );
}

/// Where a member is to go by the share of its room that is taken, and is not by the bytes that it has left.
#[test]
fn members_that_were_made_alike_are_left_alone_however_unequal_they_are() {
    let sizes: [&[u64]; 4] = [
        &[DISK, DISK, DISK, DISK / 4, DISK / 4],
        &[4 * DISK, 4 * DISK, DISK, DISK / 2, DISK / 4],
        &[8 * DISK, DISK / 4, DISK / 4, DISK / 4, DISK / 4],
        &[16 * DISK, 16 * DISK, 16 * DISK, DISK / 2, DISK / 2],
    ];
    let mut moved = 0;
    for sizes in sizes {
        let rig = Rig::with_disks(2, 1, sizes);
        let fs = rig.open(&[]);
        let mut model = Model::new();
        for file in 0..40 {
            model.insert(file, pattern(file, 200_000));
            fs.write(file, &model[&file]).unwrap();
        }
        fs.sync().unwrap();
        let first = fs
            .maintenance
            .rebuild()
            .balance(&at_once(), &|| false, &RebuildProgress::default())
            .unwrap();
        let second = fs
            .maintenance
            .rebuild()
            .balance(&at_once(), &|| false, &RebuildProgress::default())
            .unwrap();
        assert_eq!(second.bytes_done, 0, "{sizes:?}, after {first:?}");
        assert_eq!((first.bytes_waiting, second.bytes_waiting), (0, 0));
        moved += first.bytes_done;
        fs.assert_shards_lie_on(&rig, &[], "balanced");
        assert_holds(&fs, &model, "balanced");
    }
    assert!(moved > 0);
}

/// A member is lost, or another piece of work has come: both are more urgent.
#[test]
fn balancing_stops_for_more_urgent_work_and_goes_on_afterwards() {
    for is_lost in [true, false] {
        let mut rig = Rig::new(2, 1, 5);
        let fs = rig.open(&[]);
        let mut model = Model::new();
        for file in 0..40 {
            model.insert(file, pattern(file, 60_000));
            fs.write(file, &model[&file]).unwrap();
        }
        fs.sync().unwrap();
        rig.disks.push(MemDisk::new("new", DISK));
        let store: StoreRef = Arc::new(rig.disks[5].open());
        fs.maintenance.joining().join(JoinAs::New, &store).unwrap();
        let lost: &[usize] = if is_lost { &[4] } else { &[] };
        let has_begun = Cell::new(false);
        let wait = |_| {
            if !has_begun.replace(true) {
                for disk in lost {
                    fs.lose(&rig, *disk);
                }
            }
            true
        };
        let gives_way = || !is_lost && has_begun.get();
        let first = fs
            .maintenance
            .rebuild()
            .balance(&unlimited(&wait), &gives_way, &RebuildProgress::default())
            .unwrap();
        assert_eq!(first.state, RebuildState::Stopped, "{first:?}");
        assert!(first.bytes_done > 0 && first.bytes_left > 0, "{first:?}");
        let rebuilt = fs.rebuild().unwrap();
        assert_eq!(rebuilt.bytes_done > 0, is_lost, "{rebuilt:?}");
        assert_eq!(fs.redundancy()[0].0, 1);
        let rest = fs
            .maintenance
            .rebuild()
            .balance(&at_once(), &|| false, &RebuildProgress::default())
            .unwrap();
        assert_eq!(rest.state, RebuildState::Finished, "{rest:?}");
        assert!(rest.bytes_done > 0, "{rest:?}");
        let again = fs
            .maintenance
            .rebuild()
            .balance(&at_once(), &|| false, &RebuildProgress::default())
            .unwrap();
        assert_eq!(again.bytes_done, 0, "{again:?}");
        fs.assert_shards_lie_on(&rig, lost, "balanced");
        assert_eq!(fs.redundancy()[0].0, 1);
        assert_holds(&fs, &model, "balanced");
    }
}

/// Shards that wait are tried again and again.
#[test]
fn shards_that_find_no_room_cause_no_endless_moves() {
    let mut waited = 0;
    for seed in 0..48 {
        let mut random = StdRng::seed_from_u64(seed);
        let sizes: Vec<u64> = (0..5).map(|_| DISK << random.random_range(0..4)).collect();
        let rig = Rig::with_disks(2, 1, &sizes);
        let fs = rig.open(&[]);
        let mut model = Model::new();
        for file in 0..40 {
            if file % 8 == 0 {
                // So that segments are on all kinds of members.
                let disk = random.random_range(0..5);
                rig.leave(disk, random.random_range(2..8) << 20);
                fs.transactions.stripes.writer().retire_segments().unwrap();
            }
            model.insert(file, pattern(file, 200_000));
            fs.write(file, &model[&file]).unwrap();
            fs.sync().unwrap();
        }
        let dead = random.random_range(0..5);
        fs.lose(&rig, dead);
        for disk in (0..5).filter(|disk| *disk != dead) {
            rig.leave(disk, random.random_range(0..1 << 20));
        }
        let first = fs.rebuild().unwrap();
        let second = fs.rebuild().unwrap();
        let case = format!("seed {seed}: {first:?}, then {second:?}");
        waited += u64::from(second.bytes_waiting > 0);
        if second.bytes_waiting == first.bytes_waiting && second.bytes_done > 0 {
            // The last moves of the first round can leave room for another one, but not for one after that.
            assert!(second.bytes_done < first.bytes_done / 10, "{case}");
            let third = fs.rebuild().unwrap();
            assert_eq!(third.bytes_done, 0, "{case}, then {third:?}");
        }
        assert_holds(&fs, &model, &case);
    }
    assert!(waited > 12, "something waited in {waited} cases");
}

/// Members with room have shards of the stripes that lack one, and a member without such shards is full.
#[test]
fn full_members_give_shards_to_emptier_ones_if_that_makes_room_for_missing_shards() {
    let rig = Rig::new(2, 1, 5);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    let write = |files: std::ops::Range<u64>, model: &mut Model| {
        for file in files {
            let bytes = pattern(file, 250_000);
            fs.write(file, &bytes).unwrap();
            model.insert(file, bytes);
        }
        fs.sync().unwrap();
    };
    // The first files are on the first three, the later ones on the last two and one of these.
    (3..5).for_each(|disk| rig.leave(disk, 0));
    write(0..20, &mut model);
    (3..5).for_each(|disk: usize| rig.disks[disk].set_capacity(2 * DISK));
    fs.transactions.stripes.writer().retire_segments().unwrap();
    write(20..28, &mut model);
    fs.lose(&rig, 4);
    (0..3).for_each(|disk| rig.leave(disk, 0));
    let pace = Pace {
        bytes_per_second: &AtomicU64::new(0),
        wait: &|_| true,
    };
    let progress = fs
        .maintenance
        .rebuild()
        .run(RebuildScope::Everything, &NoLocks, &pace)
        .unwrap();
    assert_eq!(progress.bytes_waiting, 0, "{progress:?}");
    fs.assert_shards_lie_on(&rig, &[4], "rebuilt");
    assert_eq!(fs.redundancy(), [(1, fs.stripes().len() as u64)]);
    assert_holds(&fs, &model, "rebuilt");
}
