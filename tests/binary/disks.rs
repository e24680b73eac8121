//! Directories on disks that fail as disks do, on filesystems of several kinds at once.

use std::fs;
use std::path::Path;

use crate::support::{
    Disk, DiskKind, Load, Shape, TestVolume, check_large, compare_trees, copy_source, drop_caches,
    eventually, must, skip_mounts, text, write_large,
};

/// Bytes of the large files.
const LARGE: u64 = 100 << 20;

/// Takes the disk away from under a filesystem of kind ext4 or xfs: every operation fails from now on.
fn shut_down(member: &Path) {
    let filesystem = member.parent().expect("a member lies on a disk");
    must("xfs_io", &["-x", "-c", "shutdown", text(filesystem)]);
}

/// Directories of [`mixed`] on a filesystem of this kind.
const EXT4: usize = 3;
const XFS: usize = 1;
const BTRFS: usize = 5;

/// Six directories, two each on ext4, xfs and btrfs, a filesystem of its own for every one.
fn mixed() -> TestVolume {
    let kinds = [DiskKind::Ext4, DiskKind::Xfs, DiskKind::Btrfs];
    let disks = kinds.into_iter().cycle().take(6);
    let disks = disks.map(|kind| Disk::new(kind, 768)).collect();
    TestVolume::create_over(Shape::FOUR_TWO, disks)
}

/// A disk that failed and was mounted again: what it wrote last is gone, and it missed what came after.
#[test]
fn a_disk_that_failed_is_taken_back_once_it_takes_writes_again() {
    if skip_mounts() {
        return;
    }
    let mut volume = mixed();
    volume.mount();
    write_large(&volume.path("old"), 1, LARGE).unwrap();
    let members = volume.status().0["members"].take();
    for member in members.as_array().expect("there are members") {
        assert_eq!(member["page_cache"], "bypassed", "{member}");
    }
    shut_down(&volume.members[EXT4]);
    write_large(&volume.path("new"), 2, LARGE).unwrap();
    eventually("the failure is seen", || volume.members_in("online") < 6);
    volume.restart_disk(EXT4);
    eventually("it is back with all that it missed", || {
        volume.status().1 == 0
    });
    volume.assert_healthy();
    volume.unmount();
    volume.assert_intact();
    volume.mount();
    volume.delete_member(XFS);
    volume.delete_member(BTRFS);
    drop_caches();
    check_large(&volume.path("old"), 1, LARGE);
    check_large(&volume.path("new"), 2, LARGE);
    volume.unmount();
}

/// A user who repairs a disk has to unmount it first, and the volume is in use meanwhile.
#[test]
fn disks_that_failed_can_be_unmounted_and_mounted_again_while_the_volume_is_in_use() {
    if skip_mounts() {
        return;
    }
    let mut volume = mixed();
    volume.mount();
    write_large(&volume.path("old"), 1, LARGE).unwrap();
    let load = Load::start(volume.path("load"));
    for index in [EXT4, XFS] {
        shut_down(&volume.members[index]);
    }
    eventually("the failures are seen", || volume.members_in("online") == 4);
    for index in [EXT4, XFS] {
        volume.mount_disk_again(index);
    }
    load.goes_on();
    eventually("they are back with all that they missed", || {
        volume.status().1 == 0
    });
    let loaded = load.end();
    volume.assert_healthy();
    volume.unmount();
    volume.assert_intact();
    volume.mount();
    volume.delete_member(0);
    volume.delete_member(BTRFS);
    loaded.check();
    check_large(&volume.path("old"), 1, LARGE);
    volume.unmount();
}

/// A disk is gone under two directories at once, or one is gone and another directory deleted.
#[test]
fn a_shut_down_filesystem_and_a_deleted_directory_cost_no_byte_under_load() {
    if skip_mounts() {
        return;
    }
    for (shut, deleted) in [(&[EXT4, XFS][..], None), (&[XFS], Some(BTRFS))] {
        let volume = mixed();
        volume.mount();
        let original = volume.home.join("original");
        copy_source(&original);
        must("cp", &["-a", text(&original), text(&volume.path("before"))]);
        write_large(&volume.path("large"), 1, LARGE).unwrap();
        let load = Load::start(volume.path("load"));
        load.goes_on();
        for &index in shut {
            shut_down(&volume.members[index]);
            load.goes_on();
        }
        if let Some(index) = deleted {
            volume.delete_member(index);
        }
        must("cp", &["-a", text(&original), text(&volume.path("after"))]);
        write_large(&volume.path("new"), 2, LARGE).unwrap();
        fs::File::open(volume.path("new"))
            .unwrap()
            .sync_all()
            .unwrap();
        eventually("two members are away", || volume.members_in("online") == 4);
        load.goes_on();
        let loaded = load.end();

        let sound = || {
            loaded.check();
            check_large(&volume.path("large"), 1, LARGE);
            check_large(&volume.path("new"), 2, LARGE);
            compare_trees(&original, &volume.path("before"));
            compare_trees(&original, &volume.path("after"));
        };
        sound();
        volume.unmount();
        let lost: Vec<usize> = shut.iter().copied().chain(deleted).collect();
        let left: Vec<usize> = (0..6).filter(|index| !lost.contains(index)).collect();
        volume.mount_degraded(&left);
        sound();
        volume.unmount();
        volume.assert_intact_in(&left, 0);
    }
}

/// The kernel remembers the names on a disk that is gone, and a volume is mounted by naming all directories.
#[test]
fn a_volume_is_mounted_although_a_disk_that_is_named_answers_nothing() {
    if skip_mounts() {
        return;
    }
    let volume = mixed();
    volume.mount();
    write_large(&volume.path("large"), 1, LARGE / 4).unwrap();
    volume.unmount();
    for index in [EXT4, XFS] {
        shut_down(&volume.members[index]);
    }
    volume.mount_degraded(&[0, 1, 2, 3, 4, 5]);
    assert_eq!(volume.members_in("missing"), 2);
    check_large(&volume.path("large"), 1, LARGE / 4);
    volume.unmount();
}

/// One directory has far less room than the others, which have all the redundancy without it.
#[test]
fn a_full_disk_is_left_out_where_the_others_suffice() {
    if skip_mounts() {
        return;
    }
    let mut disks: Vec<_> = (0..6).map(|_| Disk::new(DiskKind::Tmpfs, 768)).collect();
    disks.push(Disk::new(DiskKind::Ext4, 160));
    let volume = TestVolume::create_over(Shape::FOUR_TWO_AND_ONE, disks);
    volume.mount();
    for seed in 0..8 {
        write_large(&volume.path(&format!("large{seed}")), seed, LARGE).unwrap();
    }
    must("sync", &["-f", text(&volume.mountpoint)]);
    let sound = |expected: &str| {
        let (status, _) = volume.status();
        assert_eq!(status["state"], expected, "{status}");
        assert_eq!(
            volume.members_in("online"),
            if expected == "healthy" { 7 } else { 5 }
        );
        drop_caches();
        for seed in 0..8 {
            check_large(&volume.path(&format!("large{seed}")), seed, LARGE);
        }
    };
    sound("healthy");
    let (status, _) = volume.status();
    let used = |index: usize| status["members"][index]["bytes_used"].as_u64().unwrap();
    assert!(used(6) < 160 << 20, "{status}");
    assert!((0..6).all(|index| used(index) > LARGE), "{status}");
    volume.remount();
    volume.delete_member(0);
    volume.delete_member(3);
    eventually("two members are away", || volume.members_in("online") == 5);
    sound("degraded");
    volume.unmount();
}

/// Returns whether a whole file was written. Space that is only reserved counts as a hole.
fn is_written(file: &Path) -> bool {
    let file = fs::File::open(file).expect("the file is there");
    let len = file.metadata().expect("it is open").len();
    let first_hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0));
    len > 0 && first_hole.expect("it is not empty") == len
}

/// The first write to space that is only reserved changes the metadata of these filesystems too, which an fsync waits for.
#[test]
fn the_journals_of_new_and_of_replaced_members_are_written_and_not_only_reserved_on_ext4_and_xfs() {
    if skip_mounts() {
        return;
    }
    let volume = mixed();
    let are_written = |member: &Path| {
        for journal in ["journal.0", "journal.1"] {
            let file = member.join(journal);
            assert!(is_written(&file), "{}", file.display());
        }
    };
    let (ext4, xfs) = ([0, EXT4], [XFS, 4]);
    for index in ext4.into_iter().chain(xfs) {
        are_written(&volume.members[index]);
    }
    volume.mount();
    for index in [EXT4, XFS] {
        volume.delete_member(index);
        eventually("the loss is seen", || volume.members_in("online") < 6);
        let new = volume.members[index].with_file_name("new");
        let arguments = [&index.to_string(), text(&new)];
        let (code, said) = volume.command(&["member", "replace"], &arguments);
        assert!(matches!(code, Some(0 | 3)), "{said}");
        are_written(&new);
        eventually("the new one replaces it", || volume.status().1 == 0);
    }
    volume.unmount();
}
