//! The uses of the space of members, counted while a volume is written.

use super::*;
use crate::maintenance::MemberUsage;

/// Sums the bytes of all members.
fn counted(fs: &TestFs) -> MemberUsage {
    let counted = fs.maintenance.usage().count().unwrap();
    assert_eq!(counted.members.len(), 3, "{counted:?}");
    let mut sum = MemberUsage::default();
    for usage in counted.members.values() {
        sum.data += usage.data;
        sum.parity += usage.parity;
        sum.dead += usage.dead;
        sum.preallocated += usage.preallocated;
    }
    sum
}

/// Returns the blocks that segment files take on all disks, in bytes.
fn taken(rig: &Rig) -> u64 {
    let of_disk = |disk: &MemDisk| {
        let segments = disk.open().taken_by_file(files::SEGMENTS).unwrap();
        segments.into_iter().map(|(_, bytes)| bytes).sum::<u64>()
    };
    rig.disks.iter().map(of_disk).sum()
}

#[test]
fn the_files_of_a_segment_that_is_being_opened_are_preallocated_and_not_dead() {
    let rig = Rig::new(2, 1, 3);
    let plan = FaultPlan::new();
    let stores = FaultStore::wrap_all(rig.stores(&[]), &plan);
    // Nothing fails for its silence.
    let patient = cauchyfs_testkit::executor(Duration::from_secs(600));
    let fs = TestFs::open_on(stores, Access::ReadWrite, patient).unwrap();
    plan.add(Fault::at(3, Effect::Hang).of(Scope::Kind(CallKind::Create)));
    std::thread::scope(|scope| {
        // The writer ends also if a check fails.
        let _release = scopeguard::guard((), |()| plan.release());
        let writer = scope.spawn(|| fs.write(1, &pattern(1, UNIT)));
        cauchyfs_testkit::eventually("two files are made", Duration::from_secs(60), || {
            let made = |disk: &&MemDisk| !disk.open().list(files::SEGMENTS).unwrap().is_empty();
            plan.triggered() == 1 && rig.disks.iter().filter(made).count() == 2
        });
        let usage = counted(&fs);
        plan.release();
        writer.join().unwrap().unwrap();
        assert!(usage.preallocated > 0, "{usage:?}");
        assert_eq!(usage.dead, 0, "{usage:?}");
    });
    fs.sync().unwrap();
    let usage = counted(&fs);
    assert_eq!(usage.dead, 0, "{usage:?}");
    assert_eq!(usage.data + usage.parity + usage.preallocated, taken(&rig));
    fs.close();
}
