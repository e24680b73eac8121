//! Orders to rewrite files while a member is full, and the others would take stripes without it.

use super::super::full_disks::fill_disk;
use super::*;
use crate::transaction::FullMembers;

fn open_degrading(rig: &Rig) -> TestFs {
    let options = OpenOptions {
        cache_bytes: 1 << 20,
        index_cache_bytes: 1 << 20,
        threads: 0,
        count_limits: LIMITS,
        full_members: FullMembers::Degrade,
        ..OpenOptions::default()
    };
    let opened = Maintenance::open(rig.stores(&[]), &options, executor());
    TestFs::over(opened.unwrap())
}

/// Files of 2+2 get 4+2, which survives as much with all of its shards alone.
#[test]
fn files_are_not_rewritten_without_the_shards_of_a_full_member() {
    let rig = rig(2, 6);
    let fs = open_degrading(&rig);
    let wide = fs.class_for(4, 2);
    let mut files = Classed::default();
    files.fill(&fs, 0, &[volume()]);
    fs.flush();
    fill_disk(&rig.disks[1]);
    // The current segment of the class does without the member.
    fs.write_as(wide, 500, &pattern(500, 5_000)).unwrap();
    fs.sync().unwrap();
    let given = fs.transactions.ordering_rewrite(|| {
        for (file, class) in &mut files.classes {
            *class = wide;
            fs.set_class(*file, wide)?;
        }
        Ok::<_, CommitError>(())
    });
    given.unwrap();
    let done = fs.rebuild().unwrap();
    assert!(
        done.bytes_waiting > 0 && done.bytes_unreadable == 0,
        "{done:?}"
    );
    let rebuild = fs.maintenance.rebuild();
    let status = rebuild.rewrite_status().unwrap();
    assert!(status.is_ordered && status.waits_for_room, "{status:?}");
    assert_eq!(status.stripes_left, 0);
    fs.sync().unwrap();
    files.assert_survives(&rig, wide, 2, "a member is full");
    rig.disks[1].set_capacity(DISK);
    assert!(rebuild.has_rewriting_to_do().unwrap());
    fs.rebuild().unwrap();
    fs.flush();
    files.assert_in_place(&fs, "with room");
    assert!(!rebuild.awaits_rewrite().unwrap());
    fs.close();
    files.assert_survives(&rig, wide, 2, "with room");
}
