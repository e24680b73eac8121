//! The effects of a kill, a deleted directory and a full disk, on each kind of filesystem below.

use std::fs;
use std::io::ErrorKind;

use crate::crash::{check, write_synced, write_until_killed};
use crate::support::{
    CAUCHYFS, Disk, DiskKind, Load, Shape, TestVolume, eventually, run, said, skip_mounts, text,
};

const SHAPE: Shape = Shape {
    data: 2,
    parity: 1,
    members: 4,
    segment: "4MiB",
    unit: "256KiB",
    ..Shape::FOUR_TWO
};

/// The smallest that all kinds can be.
const MEBIBYTES: u64 = 320;

/// A daemon killed while it writes, a directory deleted under load, and a full disk.
fn nothing_acknowledged_is_lost_on(kind: DiskKind) {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create_on(SHAPE, Disk::new(kind, MEBIBYTES));
    volume.mount();
    let directory = volume.path("synced");
    fs::create_dir(&directory).expect("the mount is writable");

    if matches!(kind, DiskKind::Btrfs) {
        // The space reserved for the journal must stay so when it is written over.
        for member in &volume.members {
            let journal = fs::File::open(member.join("journal.0")).expect("each member has one");
            let flags = rustix::fs::ioctl_getflags(&journal).expect("btrfs has flags");
            assert!(flags.contains(rustix::fs::IFlags::NOCOW), "{flags:?}");
        }
    }

    // Killed in the middle of writing files of every size.
    let writer = write_until_killed(directory.clone(), 0);
    let mut acknowledged: Vec<u64> = writer.iter().take(12).collect();
    assert_eq!(
        acknowledged.len(),
        12,
        "{kind:?}: the daemon died by itself"
    );
    volume.crash();
    acknowledged.extend(writer.iter());
    volume.mount();
    check(&directory, &acknowledged);

    // A directory deleted under load.
    let load = Load::start(volume.path("load"));
    load.goes_on();
    volume.delete_member(1);
    eventually("a member is away", || volume.members_in("missing") == 1);
    load.goes_on();
    load.end();
    check(&directory, &acknowledged);
    let status = run(CAUCHYFS, &["status", text(&volume.mountpoint)]);
    let way = match kind {
        DiskKind::Tmpfs => "I/O on segments goes to memory",
        _ => "I/O on segments bypasses the page cache",
    };
    assert!(said(&status).contains(way), "{kind:?}: {status:?}");

    // Full, killed, emptied and used again.
    let first = 10_000;
    let failed = (first..).find_map(|seed| Some((seed, write_synced(&directory, seed).err()?)));
    let (full, error) = failed.expect("no disk is without an end");
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{kind:?}: {error}");
    acknowledged.extend(first..full);
    volume.crash();
    volume.mount_degraded(&[0, 2, 3]);
    check(&directory, &acknowledged);
    for seed in first..full {
        let file = directory.join(format!("f{seed}"));
        fs::remove_file(file).expect("deleting always works");
    }
    acknowledged.retain(|seed| *seed < first);
    eventually("the freed space can be used again", || {
        write_synced(&directory, full + 1).is_ok()
    });
    acknowledged.push(full + 1);
    volume.unmount();
    volume.mount_degraded(&[3, 0, 2]);
    check(&directory, &acknowledged);
    volume.unmount();
}

#[test]
fn kills_deletions_and_full_disks_cost_nothing_acknowledged_on_tmpfs() {
    nothing_acknowledged_is_lost_on(DiskKind::Tmpfs);
}

#[test]
fn kills_deletions_and_full_disks_cost_nothing_acknowledged_on_ext4() {
    nothing_acknowledged_is_lost_on(DiskKind::Ext4);
}

#[test]
fn kills_deletions_and_full_disks_cost_nothing_acknowledged_on_xfs() {
    nothing_acknowledged_is_lost_on(DiskKind::Xfs);
}

#[test]
fn kills_deletions_and_full_disks_cost_nothing_acknowledged_on_btrfs() {
    nothing_acknowledged_is_lost_on(DiskKind::Btrfs);
}
