//! Which members data goes to.

use std::fs::create_dir;
use std::sync::atomic::AtomicU64;

use super::*;
use crate::commit::Pace;
use crate::store::{DirStore, StoreErrorKind};

/// They all have the same room, which each segment takes from all of them.
#[test]
fn members_on_one_filesystem_all_get_data() {
    let top = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..7).map(|i| top.path().join(format!("d{i}"))).collect();
    for path in &paths {
        create_dir(path).unwrap();
    }
    let stores = || -> Vec<StoreRef> {
        let open = |path| Arc::new(DirStore::open(path).unwrap()) as StoreRef;
        paths.iter().map(open).collect()
    };
    let mut options = CreateOptions::new(Geometry::new(2, 1).unwrap());
    options.unit_bytes = UNIT as u32;
    options.segment_bytes = 8 * UNIT as u64;
    Pipeline::create(&stores(), &options, executor()).unwrap();
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

/// What has room has shards of the stripes that lack one, and what has none of these is full.
#[test]
fn full_members_give_shards_to_emptier_ones_where_that_makes_room_for_what_is_missing() {
    let rig = Rig::new(2, 1, 5);
    let leave = |disk: usize, bytes: u64| {
        let space = rig.disks[disk].open().space().unwrap();
        rig.disks[disk].set_capacity(space.total_bytes - space.free_bytes + bytes);
    };
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
    // What comes first is on the first three, what follows on the last two and one of these.
    (3..5).for_each(|disk| leave(disk, 0));
    write(0..20, &mut model);
    (3..5).for_each(|disk: usize| rig.disks[disk].set_capacity(2 * DISK));
    fs.pipeline.volume.retire_segments().unwrap();
    write(20..28, &mut model);
    rig.disks[4].fail(Some(StoreErrorKind::Gone));
    fs.pipeline.members().probe();
    (0..3).for_each(|disk| leave(disk, 0));
    let pace = Pace {
        bytes_per_second: &AtomicU64::new(0),
        wait: &|_| true,
    };
    let progress = fs.pipeline.rebuild(&NoLocks, &pace).unwrap();
    assert_eq!(progress.bytes_waiting, 0, "{progress:?}");
    fs.assert_shards_lie_on(&rig, &[4], "rebuilt");
    assert_eq!(fs.redundancy(), [(1, fs.stripes().len() as u64)]);
    assert_holds(&fs, &model, "rebuilt");
}
