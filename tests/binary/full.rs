//! Volumes that are filled up, emptied and used again; also by names and small files alone, which
//! take no segments.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::support::{
    Disk, DiskKind, Load, Shape, TestVolume, check_large, drop_caches, eventually, pattern,
    skip_mounts, write_large,
};

/// Small enough to lie in inode records.
const SMALL: usize = 2000;

/// Files that are synced together.
const BATCH: usize = 20;

/// Bytes of the large files.
const LARGE: u64 = 24 << 20;

/// Files to a directory.
const TO_A_DIRECTORY: u64 = 200;

const SHAPE: Shape = Shape {
    data: 1,
    parity: 1,
    members: 2,
    segment: "4MiB",
    unit: "64KiB",
    ..Shape::FOUR_TWO
};

fn path(volume: &TestVolume, number: u64) -> PathBuf {
    let directory = number / TO_A_DIRECTORY;
    volume
        .path(&format!("d{directory}"))
        .join(format!("f{number}"))
}

fn write_batch(volume: &TestVolume, first: u64) -> std::io::Result<()> {
    let mut files = Vec::new();
    for number in (first..).take(BATCH) {
        let path = path(volume, number);
        fs::create_dir_all(path.parent().expect("it is in a directory"))?;
        let mut file = File::create(&path)?;
        file.write_all(&pattern(number, SMALL))?;
        files.push(file);
    }
    files.iter().try_for_each(File::sync_all)
}

/// Writes small files until there is no space; returns where those that were synced end.
fn fill(volume: &TestVolume, first: u64) -> u64 {
    for batch in (first..).step_by(BATCH) {
        if let Err(error) = write_batch(volume, batch) {
            assert_eq!(
                error.kind(),
                ErrorKind::StorageFull,
                "{error}\n{}",
                volume.log()
            );
            return batch;
        }
    }
    unreachable!("no volume takes that many files")
}

#[track_caller]
fn check(volume: &TestVolume, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        let found = fs::read(path(volume, number))
            .unwrap_or_else(|error| panic!("file {number} was synced: {error}"));
        assert!(found == pattern(number, SMALL), "file {number}");
    }
}

fn remove_directories(volume: &TestVolume, directories: impl Iterator<Item = u64>) {
    for directory in directories {
        fs::remove_dir_all(volume.path(&format!("d{directory}"))).expect("nothing else removes it");
    }
}

fn try_sync(volume: &TestVolume) -> rustix::io::Result<()> {
    let root = File::open(&volume.mountpoint).expect("it is mounted");
    rustix::fs::syncfs(&root)
}

#[track_caller]
fn sync(volume: &TestVolume) {
    try_sync(volume).expect("a full volume can be synced");
}

#[test]
fn a_volume_full_of_small_files_can_be_emptied_unmounted_and_used_again() {
    if skip_mounts() {
        return;
    }
    for kind in [DiskKind::Tmpfs, DiskKind::Ext4] {
        let volume = TestVolume::create_on(SHAPE, Disk::new(kind, 40));
        volume.mount();
        let end = fill(&volume, 0);
        assert!(end > 2000, "{kind:?}: only {end} files fitted");
        check(&volume, 0..end);
        volume.remount();
        check(&volume, 0..end);
        // Every other directory, the last and perhaps incomplete ones apart.
        let directories = end / TO_A_DIRECTORY;
        let removed = |number: u64| {
            let directory = number / TO_A_DIRECTORY;
            directory < directories && directory.is_multiple_of(2)
        };
        remove_directories(&volume, (0..directories).step_by(2));
        sync(&volume);
        let again_from = (end / TO_A_DIRECTORY + 2) * TO_A_DIRECTORY;
        let again = fill(&volume, again_from);
        let (fitted, gone) = (again - again_from, directories.div_ceil(2) * TO_A_DIRECTORY);
        assert!(
            fitted * 2 > gone,
            "{kind:?}: {fitted} fitted where {gone} were deleted"
        );
        let kept = || {
            (0..end)
                .filter(|number| !removed(*number))
                .chain(again_from..again)
        };
        check(&volume, kept());
        volume.remount();
        check(&volume, kept());
        let last = fill(&volume, again_from * 2);
        volume.crash();
        volume.mount();
        check(&volume, kept().chain(again_from * 2..last));
        for entry in fs::read_dir(&volume.mountpoint).unwrap() {
            fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
        sync(&volume);
        let large = pattern(1, 8 << 20);
        // The kernel may forget the last of the removed files a moment later.
        eventually("the removed files make room", || {
            fs::write(volume.path("large"), &large).is_ok() && try_sync(&volume).is_ok()
        });
        volume.remount();
        assert!(fs::read(volume.path("large")).unwrap() == large);
        volume.unmount();
    }
}

/// Returns the bytes that a file takes.
fn taken(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.blocks() * 512)
}

/// Others fill the disk of a volume that can reserve nothing there.
#[test]
fn accepted_writes_are_kept_and_deleting_works_if_nothing_can_be_reserved() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create_on(SHAPE, Disk::new(DiskKind::Ext2, 96));
    volume.mount();
    let first = pattern(1, 4 << 20);
    fs::write(volume.path("first"), &first).unwrap();
    fs::create_dir(volume.path("gone")).unwrap();
    fs::write(volume.path("gone/file"), &first).unwrap();
    sync(&volume);
    let kept = |member: &PathBuf| taken(&member.join("ballast.data"));
    let sizes: Vec<u64> = volume.members.iter().map(kept).collect();
    assert!(sizes.iter().all(|size| *size >= 1 << 20), "{sizes:?}");
    let disk = volume.members[0].parent().expect("it is in a directory");
    let other = disk.join("other");
    let mut others = File::create(&other).unwrap();
    let filled = std::io::copy(&mut std::io::repeat(7), &mut others);
    assert_eq!(filled.unwrap_err().kind(), ErrorKind::StorageFull);
    // Kept open: a kernel that drops the inode from its cache forgets that its writeback failed.
    let refused = File::create(volume.path("second")).and_then(|mut file| {
        file.write_all(&pattern(2, 64 << 20))?;
        file.sync_all()
    });
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::StorageFull);
    // If not even its name was refused.
    if volume.path("second").exists() {
        fs::remove_file(volume.path("second")).unwrap();
    }
    // The kernel reports a failed writeback once more, to the process that syncs the filesystem first.
    let root = File::open(&volume.mountpoint).unwrap();
    let told = rustix::fs::syncfs(&root);
    assert!(
        matches!(told, Ok(()) | Err(rustix::io::Errno::NOSPC)),
        "{told:?}"
    );
    drop(root);
    fs::remove_dir_all(volume.path("gone")).unwrap();
    sync(&volume);
    assert!(fs::read(volume.path("first")).unwrap() == first);
    volume.remount();
    assert!(fs::read(volume.path("first")).unwrap() == first);
    drop(others);
    fs::remove_file(other).unwrap();
    fs::write(volume.path("third"), &first).unwrap();
    sync(&volume);
    let sizes: Vec<u64> = volume.members.iter().map(kept).collect();
    assert!(sizes.iter().all(|size| *size >= 1 << 20), "{sizes:?}");
    volume.remount();
    assert!(fs::read(volume.path("third")).unwrap() == first);
    volume.unmount();
}

/// The kernel had taken bytes that find no room when it writes them back, and some behind them do.
#[test]
fn refused_writes_are_never_read_as_zeros() {
    if skip_mounts() {
        return;
    }
    let shape = Shape {
        data: 2,
        members: 3,
        ..SHAPE
    };
    let disks = (0..3).map(|_| Disk::new(DiskKind::Tmpfs, 200)).collect();
    let volume = TestVolume::create_over(shape, disks);
    volume.mount();
    let other = volume.members[0].with_file_name("other");
    let len = rustix::fs::statvfs(&volume.members[0]).unwrap().f_bavail - (12 << 20) / 4096;
    let other = File::create(other).unwrap();
    for at in 0..len {
        other.write_all_at(&[7; 4096], at * 4096).unwrap();
    }
    let written = pattern(1, 60 << 20);
    let mut file = File::create(volume.path("file")).unwrap();
    let mut told = Ok(());
    for piece in written.chunks(1 << 20) {
        told = file.write_all(piece);
        if told.is_err() {
            break;
        }
    }
    let told = told.and_then(|()| file.sync_all());
    assert_eq!(told.unwrap_err().kind(), ErrorKind::StorageFull);
    drop(file);
    let check = || {
        drop_caches();
        let file = File::open(volume.path("file")).unwrap();
        let (mut right, mut failed) = (0, 0);
        for (number, expected) in (0..).zip(written.chunks(4096)) {
            let mut found = vec![0; 4096];
            match file.read_at(&mut found, number * 4096) {
                Ok(0) => break,
                Ok(len) => {
                    assert!(found[..len] == expected[..len], "block {number}");
                    right += 1;
                }
                Err(_) => failed += 1,
            }
        }
        println!("{right} blocks are right, {failed} cannot be read");
        assert!(right > 0);
    };
    check();
    volume.remount();
    check();
    volume.unmount();
}

#[test]
fn a_full_disk_that_keeps_the_others_from_taking_data_is_named_with_the_remedy() {
    if skip_mounts() {
        return;
    }
    let shape = Shape {
        data: 2,
        parity: 1,
        members: 3,
        ..SHAPE
    };
    let disks = (0..3).map(|_| Disk::new(DiskKind::Tmpfs, 320)).collect();
    let volume = TestVolume::create_over(shape, disks);
    volume.mount();
    let full = || -> Vec<bool> {
        let (status, _) = volume.status();
        let members = status["members"].as_array().expect("members are listed");
        members
            .iter()
            .map(|member| member["full"] == true)
            .collect()
    };
    write_large(&volume.path("before"), 1, LARGE).unwrap();
    assert_eq!(full(), [false; 3]);
    volume.fill_disk(1);
    let written = (0..20).try_for_each(|seed| {
        let path = volume.path(&format!("after{seed}"));
        write_large(&path, seed, LARGE)?;
        File::open(&path)?.sync_all()
    });
    assert_eq!(
        written.map_err(|error| error.kind()),
        Err(ErrorKind::StorageFull)
    );
    // The room of a refused write is given back, and others take that as well.
    eventually("the full member is flagged", || {
        volume.fill_disk(1);
        full() == [false, true, false]
    });
    let named = format!("no room on member 1 ({})", volume.members[1].display());
    eventually("the full member is named with the remedy", || {
        volume.fill_disk(1);
        let (_, status) = volume.command(&["status"], &[]);
        let next = status.lines().last().expect("it says what to do next");
        next.contains(&named) && next.contains("`cauchyfs member replace")
    });
    let log = volume.log();
    assert!(log.contains(&named), "{log}");
    volume.empty_disk(1);
    eventually("there is room again", || {
        write_large(&volume.path("again"), 1, LARGE).is_ok()
    });
    // Of a member that answers late, the last answer counts.
    eventually("no member is flagged", || full() == [false; 3]);
    check_large(&volume.path("before"), 1, LARGE);
    volume.unmount();
}

#[test]
fn a_full_disk_costs_redundancy_and_no_write_where_it_may() {
    if skip_mounts() {
        return;
    }
    let shape = Shape {
        data: 2,
        parity: 1,
        members: 3,
        ..SHAPE
    };
    let disks = (0..3).map(|_| Disk::new(DiskKind::Tmpfs, 320)).collect();
    let volume = TestVolume::create_over(shape, disks);
    let mounted = volume.try_mount(&[0, 1, 2], &["-o", "full-member=degrade"]);
    assert!(mounted.status.success(), "{mounted:?}");
    write_large(&volume.path("before"), 1, LARGE).unwrap();
    volume.fill_disk(1);
    for seed in 0..4 {
        let path = volume.path(&format!("after{seed}"));
        write_large(&path, seed, LARGE).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
    }
    let (status, code) = volume.status();
    assert_eq!(
        (&status["state"], code),
        (&"degraded".into(), 3),
        "{status}"
    );
    assert_eq!(status["members"][1]["full"], true, "{status}");
    assert_eq!(status["redundancy"][0]["losses_tolerated"], 0, "{status}");
    let (_, status) = volume.command(&["status"], &[]);
    let next = status.lines().last().expect("it says what to do next");
    assert!(
        next.contains("would not survive another loss, because"),
        "{status}"
    );
    drop_caches();
    (0..4).for_each(|seed| check_large(&volume.path(&format!("after{seed}")), seed, LARGE));
    volume.empty_disk(1);
    // A rebuild that was under way when room was made does not know of it.
    eventually("a rebuild finds the room", || {
        volume.command(&["rebuild"], &[]).0 == Some(0)
    });
    volume.assert_healthy();
    volume.unmount();
    volume.assert_intact();
}

/// Others fill disks one after the other, the first with copies of the index; a stripe needs three.
#[test]
fn disks_that_others_fill_cost_nothing_as_long_as_enough_have_room() {
    if skip_mounts() {
        return;
    }
    for kind in DiskKind::ALL {
        let shape = Shape {
            data: 2,
            parity: 1,
            members: 5,
            segment: "4MiB",
            unit: "64KiB",
            ..Shape::FOUR_TWO
        };
        let disks = (0..5).map(|_| Disk::new(kind, 320)).collect();
        let volume = TestVolume::create_over(shape, disks);
        volume.mount();
        let load = Load::start(volume.path("load"));
        load.goes_on();
        let mut end = 0;
        for filled in 0..2 {
            let has_index = |member: &usize| volume.members[*member].join("index").exists();
            let full = (0..5).find(has_index).expect("the index is somewhere");
            volume.fill_disk(full);
            for _ in 0..10 {
                let written = write_batch(&volume, end);
                written.unwrap_or_else(|error| panic!("{kind:?}: {error}\n{}", volume.log()));
                end += BATCH as u64;
            }
            let large = volume.path(&format!("large{filled}"));
            write_large(&large, filled, LARGE).unwrap();
            load.goes_on();
            eventually(&format!("{kind:?}: the index leaves"), || !has_index(&full));
            assert_eq!((0..5).filter(has_index).count(), 2, "{kind:?}: {filled}");
        }
        let loaded = load.end();
        assert_eq!(volume.members_in("online"), 5, "{kind:?}");
        volume.assert_healthy();
        volume.remount();
        loaded.check();
        check(&volume, 0..end);
        for filled in 0..2 {
            check_large(&volume.path(&format!("large{filled}")), filled, LARGE);
        }
        volume.unmount();
    }
}
