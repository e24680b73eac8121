//! Orders to rewrite files for which members have too little room.

use super::*;

/// Makes the disks of a volume so small that it has nearly no room.
fn shrink(fs: &TestFs, rig: &Rig) {
    let mut capacity = DISK;
    while fs.transactions.space().usable_free > 400 << 10 {
        capacity -= 64 << 10;
        rig.disks
            .iter()
            .for_each(|disk| disk.set_capacity(capacity));
    }
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
    let bytes = BTreeMap::from([(volume(), 120 * (64 << 10))]);
    assert_eq!(rebuild.lacking_room_to_rewrite(&bytes, thrice), 0);
    shrink(&fs, &rig);
    let lacking = rebuild.lacking_room_to_rewrite(&bytes, thrice);
    assert!((5 << 20..8 << 20).contains(&lacking), "{lacking}");
    // What takes less than before needs a stripe, and nothing needs no room.
    let less = Geometry::new(5, 1).unwrap();
    assert_eq!(rebuild.lacking_room_to_rewrite(&bytes, less), 0);
    let nothing = BTreeMap::from([(volume(), 0)]);
    assert_eq!(rebuild.lacking_room_to_rewrite(&nothing, thrice), 0);
    let given = fs
        .transactions
        .ordering_rewrite(|| (0..120).try_for_each(|file| fs.set_class(file, thick)));
    given.unwrap();
    files.classes = (0..120).map(|file| (file, thick)).collect();
    let stuck = fs.rebuild().unwrap();
    let status = rebuild.rewrite_status().unwrap();
    assert!(
        status.is_ordered && status.waits_for_room,
        "{status:?}, {stuck:?}"
    );
    assert!(
        !status.waits_for_members && status.stripes_left == 0,
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
