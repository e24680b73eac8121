//! Orders to rewrite files for which members have too little room.

use super::*;

/// Makes the disks of a volume so small that it has nearly no room. Some are fuller than others, by a few units.
fn shrink(fs: &TestFs, rig: &Rig) {
    let mut capacity = DISK;
    while fs.transactions.space().usable_free > 1 << 20 {
        capacity -= 16 << 10;
        rig.disks
            .iter()
            .for_each(|disk| disk.set_capacity(capacity));
    }
}

/// Returns the code of the volume of all tests here.
fn rig_code() -> Geometry {
    Geometry::new(2, 2).unwrap()
}

/// Returns how many files lie in segments of a class.
fn count_in(fs: &TestFs, files: &Classed, class: StripeClass) -> usize {
    let all = files.classes.keys();
    all.filter(|file| fs.segments_of(**file).iter().all(|it| it.class == class))
        .count()
}

#[test]
fn an_order_that_finds_no_room_says_so_and_goes_on_once_there_is_some() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    let thick = fs.class_for(1, 2);
    let mut files = Classed::default();
    for file in 0..120 {
        files.write(&fs, file, volume(), 64 << 10).unwrap();
    }
    fs.flush();
    let thrice = Geometry::new(1, 2).unwrap();
    let rebuild = fs.maintenance.rebuild();
    let all: BTreeSet<Ino> = (0..120).map(Ino).collect();
    let lacking = |files: &BTreeSet<Ino>, class, code| {
        let lacking = rebuild.lacking_room_to_rewrite(files, class, code);
        lacking.unwrap()
    };
    assert_eq!(lacking(&all, Some(thick), thrice), 0);
    shrink(&fs, &rig);
    let lacks = lacking(&all, Some(thick), thrice);
    assert!((4 << 20..8 << 20).contains(&lacks), "{lacks}");
    // A code that takes less needs room for one stripe. Without files, no room is needed.
    let less = Geometry::new(5, 1).unwrap();
    assert_eq!(lacking(&all, None, less), 0);
    assert_eq!(lacking(&BTreeSet::new(), Some(thick), thrice), 0);
    let given = fs
        .transactions
        .ordering_rewrite(|| (0..120).try_for_each(|file| fs.set_class(file, thick)));
    given.unwrap();
    files.classes = (0..120).map(|file| (file, thick)).collect();
    // Nothing has moved, so that a class with more again frees no more than the first would.
    let again = lacking(&all, None, Geometry::new(1, 3).unwrap());
    assert!((12 << 20..17 << 20).contains(&again), "{again}");
    assert_eq!(lacking(&all, Some(volume()), rig_code()), 0, "back");
    let stuck = fs.rebuild().unwrap();
    let status = rebuild.rewrite_status().unwrap();
    assert!(
        status.is_ordered && status.waits_for_room,
        "{status:?}, {stuck:?}"
    );
    assert!(
        status.awaited.is_empty() && status.stripes_left == 0,
        "{status:?}"
    );
    assert!(
        stuck.bytes_waiting > 0 && stuck.least_waiting <= 64 << 10,
        "{stuck:?}"
    );
    assert_eq!(
        fs.rebuild().unwrap().bytes_waiting,
        stuck.bytes_waiting,
        "it waits still"
    );
    let moved = count_in(&fs, &files, thick);
    assert!(moved < 120, "{moved}");
    assert_holds(&fs, &files.model, "full");
    fs.sync().unwrap();
    drop(fs);
    rig.cut(CutPolicy::Drop);
    let fs = rig.open(&[]);
    assert_holds(&fs, &files.model, "full, after a power cut");
    fs.rebuild().unwrap();
    assert!(
        fs.maintenance
            .rebuild()
            .rewrite_status()
            .unwrap()
            .waits_for_room
    );
    rig.disks.iter().for_each(|disk| disk.set_capacity(DISK));
    fs.rebuild().unwrap();
    let status = fs.maintenance.rebuild().rewrite_status().unwrap();
    assert!(!status.is_ordered && !status.waits_for_room, "{status:?}");
    files.assert_in_place(&fs, "with room");
    fs.assert_shards_lie_on(&rig, &[], "with room");
    fs.close();
    files.assert_survives(&rig, thick, 2, "with room");
}

/// Files that share bytes get different classes. Those stay that a file of the old class has.
#[test]
fn the_room_of_bytes_that_files_share_counts_for_each_of_them() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    let thick = fs.class_for(1, 2);
    let data = pattern(1, 64 << 10);
    fs.set_class(1, volume()).unwrap();
    let written = fs.transactions.write_within(volume(), None, &data).unwrap();
    fs.put_extents(1, &written).unwrap();
    fs.set_class(2, volume()).unwrap();
    fs.put_extents(2, &written).unwrap();
    fs.flush();
    for disk in &rig.disks {
        let space = disk.open().space().unwrap();
        disk.set_capacity(space.total_bytes - space.free_bytes);
    }
    let rebuild = fs.maintenance.rebuild();
    let lacking = |files: &[u64]| {
        let files = files.iter().map(|file| Ino(*file)).collect();
        let thrice = Geometry::new(1, 2).unwrap();
        let lacking = rebuild.lacking_room_to_rewrite(&files, Some(thick), thrice);
        lacking.unwrap()
    };
    // One is written with 2+2 again, the other with 1+2, and 2+2 is freed once.
    let once = lacking(&[1]);
    assert!((190 << 10..260 << 10).contains(&once), "{once}");
    let twice = lacking(&[1, 2]);
    assert!((250 << 10..330 << 10).contains(&twice), "{twice}");
}

/// Returns a volume of 2+2 on seven members with room for its own code, and one member that 6+1 needs has none. Its files,
/// which lie in 2+2, are to be given 6+1.
fn ordered_with_a_full_member(rig: &Rig) -> (TestFs, Classed) {
    let fs = rig.open(&[]);
    let wide = fs.class_for(6, 1);
    // It has no shards that could be moved elsewhere.
    let space = rig.disks[6].open().space().unwrap();
    rig.disks[6].set_capacity(space.total_bytes - space.free_bytes);
    let mut files = Classed::default();
    for file in 0..20 {
        files.write(&fs, file, volume(), 64 << 10).unwrap();
    }
    fs.flush();
    let given = fs
        .transactions
        .ordering_rewrite(|| (0..20).try_for_each(|file| fs.set_class(file, wide)));
    given.unwrap();
    files.classes = (0..20).map(|file| (file, wide)).collect();
    fs.rebuild().unwrap();
    let status = fs.maintenance.rebuild().rewrite_status().unwrap();
    assert!(status.waits_for_room, "{status:?}");
    (fs, files)
}

#[test]
fn an_order_looks_again_only_once_there_is_more_room_for_the_code_that_lacked_it() {
    let rig = rig(2, 7);
    let (fs, files) = ordered_with_a_full_member(&rig);
    let rebuild = fs.maintenance.rebuild();
    assert!(fs.transactions.space().usable_free > 4 << 20);
    assert!(!rebuild.has_rewriting_to_do().unwrap());
    let waiting = fs.rebuild().unwrap().bytes_waiting;
    assert!(waiting > 0 && rebuild.rewrite_status().unwrap().waits_for_room);
    assert!(!rebuild.has_rewriting_to_do().unwrap(), "as much as before");
    rig.disks[6].set_capacity(DISK);
    assert!(rebuild.has_rewriting_to_do().unwrap());
    fs.rebuild().unwrap();
    assert!(!rebuild.awaits_rewrite().unwrap());
    files.assert_in_place(&fs, "with room");
    assert_holds(&fs, &files.model, "with room");
}

/// The member without room leaves, and with it the code that lacked room.
#[test]
fn an_order_that_lacked_room_ends_once_the_volume_has_too_few_members_for_its_code() {
    let rig = rig(2, 7);
    let (fs, files) = ordered_with_a_full_member(&rig);
    fs.maintenance.draining().drain(MemberIndex(6)).unwrap();
    for _ in 0..2 {
        fs.rebuild().unwrap();
    }
    assert_eq!(fs.transactions.members().membership().count(), 6);
    let status = fs.maintenance.rebuild().rewrite_status().unwrap();
    assert!(!status.is_ordered && !status.waits_for_room, "{status:?}");
    assert_holds(&fs, &files.model, "the member is removed");
}
