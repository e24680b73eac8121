//! The operations that still work where something does not: read-only, full, or after a failed commit.

use std::sync::Arc;

use cauchyfs::format::Ino;
use cauchyfs::fs::{
    Allocation, AtimePolicy, Changes, Fs, FsError, FsOptions, OpenFlags, RenameMode, XattrMode,
};
use cauchyfs::store::{CallKind, Effect, Fault, FaultPlan, FaultStore, Scope};

use crate::calls::{ROOT, create, exclusive, fs, list, read, sound, write};
use crate::volume::{self, TestClock};

#[test]
fn reading_changes_the_time_of_access_as_the_mount_asks() {
    let day = 24 * 60 * 60;
    for (atime, expected) in [
        (AtimePolicy::NoAtime, [0, 0, 0, 0]),
        (AtimePolicy::Relatime, [10, 10, 30, 30 + day]),
        (AtimePolicy::Strict, [10, 20, 30, 30 + day]),
    ] {
        let clock = TestClock::default();
        let options = FsOptions {
            atime,
            clock: clock.clock(),
            ..FsOptions::default()
        };
        let fs = Fs::open(volume::maintenance(), options).unwrap();
        let (ino, handle) = create(&fs, "file");
        write(&fs, handle, 0, b"bytes").unwrap();
        let mut seen = [0; 4];
        for (index, now) in [10, 20, 30, 30 + day].into_iter().enumerate() {
            clock.set(now);
            if now == 30 {
                fs.attributes().set(ROOT, ino, Changes::default()).unwrap();
            }
            read(&fs, handle, 0, 5);
            seen[index] = fs.attributes().get(ino).unwrap().atime.seconds;
        }
        assert_eq!(seen, expected, "{atime:?}");
    }
}

#[test]
fn a_read_only_filesystem_refuses_every_change() {
    let fs = fs();
    let (ino, _) = create(&fs, "file");
    let options = FsOptions {
        read_only: true,
        ..FsOptions::default()
    };
    let fs = Fs::open(Arc::clone(fs.maintenance()), options).unwrap();
    let handle = fs
        .open_files()
        .open(ROOT, ino, OpenFlags::read_only())
        .unwrap();
    let refused = [
        fs.names().mkdir(ROOT, Ino::ROOT, b"x", 0o755).map(drop),
        fs.names()
            .mknod(ROOT, Ino::ROOT, b"x", libc::S_IFIFO, 0)
            .map(drop),
        fs.names().symlink(ROOT, Ino::ROOT, b"x", b"y").map(drop),
        fs.names().link(ino, Ino::ROOT, b"x").map(drop),
        fs.names()
            .create(ROOT, Ino::ROOT, b"x", 0, exclusive())
            .map(drop),
        fs.names()
            .tmpfile(ROOT, Ino::ROOT, 0, exclusive())
            .map(drop),
        fs.names().unlink(Ino::ROOT, b"file"),
        fs.names().rmdir(Ino::ROOT, b"file"),
        fs.names().rename(
            ROOT,
            Ino::ROOT,
            b"file",
            Ino::ROOT,
            b"x",
            RenameMode::Replace,
        ),
        fs.attributes().set(ROOT, ino, Changes::default()).map(drop),
        fs.open_files()
            .open(ROOT, ino, OpenFlags::read_write())
            .map(drop),
        write(&fs, handle, 0, b"x").map(drop),
        fs.writer()
            .fallocate(ROOT, handle, Allocation::PunchHole, 0, 1),
        fs.writer()
            .copy_range(ROOT, handle, 0, handle, 10, 1)
            .map(drop),
        fs.xattrs().set(ROOT, ino, b"user.a", b"", XattrMode::Set),
        fs.xattrs().remove(ino, b"user.a"),
    ];
    for (index, refused) in refused.into_iter().enumerate() {
        assert!(
            matches!(refused, Err(FsError::ReadOnly)),
            "call {index}: {refused:?}"
        );
    }
    fs.syncfs().unwrap();
    fs.close().unwrap();
}

#[test]
fn a_full_volume_refuses_writes_changes_nothing_and_takes_them_again_after_a_removal() {
    let disks = volume::disks_of(48 << 20, 3, 2, 1);
    let fs = Fs::open(volume::open(&disks, 0), FsOptions::default()).unwrap();
    let chunk = vec![7; 1 << 20];
    let mut files = Vec::new();
    let refused = loop {
        let (ino, handle) = create(&fs, &format!("f{}", files.len()));
        files.push((ino, handle));
        let offsets = [0, 1 << 20];
        if let Some(error) = offsets
            .into_iter()
            .find_map(|offset| write(&fs, handle, offset, &chunk).err())
        {
            break error;
        }
        assert!(files.len() < 200, "the volume has 96 MiB at most");
    };
    assert!(matches!(refused, FsError::NoSpace), "{refused:?}");
    assert!(files.len() > 10, "only {} files fit", files.len());
    let (last, handle) = files[files.len() - 1];
    let before = fs.attributes().get(last).unwrap();
    let refused = write(&fs, handle, 0, &vec![9; 4 << 20]);
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
    assert_eq!(fs.attributes().get(last).unwrap(), before);
    assert_eq!(read(&fs, files[0].1, 0, 1 << 20), chunk);
    for (index, (ino, handle)) in files.iter().enumerate().take(6) {
        fs.names()
            .unlink(Ino::ROOT, format!("f{index}").as_bytes())
            .unwrap();
        fs.open_files().release(*handle).unwrap();
        fs.open_files().forget(*ino, 1);
    }
    write(&fs, handle, 0, &chunk).unwrap();
    fs.syncfs().unwrap();
    assert_eq!(read(&fs, handle, 0, 1 << 20), chunk);
    sound(&fs);
}

#[test]
fn a_volume_that_takes_no_more_changes_can_be_read() {
    let disks = volume::disks(3, 2, 1);
    let plan = FaultPlan::new();
    let stores = FaultStore::wrap_all(volume::stores(&disks), &plan);
    let maintenance = volume::try_open(stores, 0).unwrap();
    let options = FsOptions {
        atime: AtimePolicy::Strict,
        ..FsOptions::default()
    };
    let fs = Fs::open(Arc::clone(&maintenance), options).unwrap();
    let (ino, handle) = create(&fs, "file");
    write(&fs, handle, 0, &vec![7; 100_000]).unwrap();
    let link = fs
        .names()
        .symlink(ROOT, Ino::ROOT, b"link", b"file")
        .unwrap()
        .ino;
    fs.syncfs().unwrap();

    for member in 1..3 {
        let writes = Scope::MemberKind(member, CallKind::Write);
        plan.add(Fault::at(1, Effect::Eio).of(writes).lasting());
    }
    write(&fs, handle, 0, &vec![8; 100_000]).unwrap();
    fs.syncfs().unwrap_err();
    plan.clear();

    let refused = fs.names().mkdir(ROOT, Ino::ROOT, b"new", 0o755);
    assert!(matches!(refused, Err(FsError::Storage(_))), "{refused:?}");
    assert_eq!(read(&fs, handle, 0, 1 << 20), vec![8; 100_000]);
    assert_eq!(fs.attributes().read_link(link).unwrap(), b"file");
    let root = fs.directories().open(Ino::ROOT).unwrap();
    assert_eq!(list(&fs, root, 0, 9).0.len(), 4);
    assert_eq!(fs.attributes().get(ino).unwrap().size, 100_000);
}

#[test]
fn an_allocation_larger_than_the_volume_is_refused_without_making_room() {
    let disks = volume::disks_of(48 << 20, 3, 2, 1);
    let plan = FaultPlan::new();
    let stores = FaultStore::wrap_all(volume::stores(&disks), &plan);
    let fs = Fs::open(volume::try_open(stores, 0).unwrap(), FsOptions::default()).unwrap();
    let (ino, handle) = create(&fs, "file");
    write(&fs, handle, 0, &vec![7; 100_000]).unwrap();
    plan.record();
    for len in [1 << 40, u64::try_from(i64::MAX).unwrap()] {
        for mode in [Allocation::Allocate, Allocation::AllocateKeepSize] {
            let refused = fs.writer().fallocate(ROOT, handle, mode, 0, len);
            assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
        }
        let refused = fs
            .writer()
            .fallocate(ROOT, handle, Allocation::Allocate, len, len);
        let too_big = len > 1 << 40 && matches!(refused, Err(FsError::FileTooBig));
        let no_space = matches!(refused, Err(FsError::NoSpace));
        assert!(too_big || no_space, "{refused:?}");
    }
    let log = plan.take_log();
    let changes: Vec<_> = log.iter().filter(|call| call.kind.changes()).collect();
    assert!(changes.is_empty(), "{changes:?}");
    assert_eq!(fs.attributes().get(ino).unwrap().size, 100_000);
    fs.writer()
        .fallocate(ROOT, handle, Allocation::Allocate, 0, 1 << 20)
        .unwrap();
    assert_eq!(fs.attributes().get(ino).unwrap().size, 1 << 20);
}
