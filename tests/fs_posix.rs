//! What POSIX and Linux ask of a filesystem, point by point.

#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "fs_model/volume.rs"]
mod volume;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cauchyfs::format::record::{Extent, FileKind, Inode};
use cauchyfs::format::{Ino, Record, key};
use cauchyfs::fs::{
    Allocation, AtimePolicy, Caller, Changes, Fs, FsError, FsOptions, Handle, LINKS_MAX, OpenFlags,
    RenameMode, SIZE_MAX, Whence, WriteFlags, XattrMode, check, tree,
};
use cauchyfs::meta::Batch;

use volume::TestClock;

const ROOT: &Caller = &Caller::ROOT;
const BLOCK: u64 = 4096;

fn fs() -> Arc<Fs> {
    Fs::open(volume::pipeline(), FsOptions::default()).unwrap()
}

fn exclusive() -> OpenFlags {
    OpenFlags {
        exclusive: true,
        ..OpenFlags::read_write()
    }
}

fn create(fs: &Fs, name: &str) -> (Ino, Handle) {
    let made = fs.create(ROOT, Ino::ROOT, name.as_bytes(), 0o644, exclusive());
    let (attr, handle) = made.unwrap();
    (attr.ino, handle)
}

fn write(fs: &Fs, handle: Handle, offset: u64, data: &[u8]) -> Result<usize, FsError> {
    fs.write(ROOT, handle, offset, data, WriteFlags::default())
}

fn read(fs: &Fs, handle: Handle, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0xaa; len];
    let len = fs.read(handle, offset, &mut out).unwrap();
    out.truncate(len);
    out
}

fn sound(fs: &Fs) -> check::Report {
    fs.settle();
    let report = check::check(fs.pipeline(), false).unwrap();
    assert_eq!(report.findings, []);
    report
}

/// Reads at most `limit` names from `offset` on; returns them and where to go on.
fn list(fs: &Fs, dir: Handle, offset: u64, limit: usize) -> (Vec<Vec<u8>>, u64) {
    let (mut names, mut next) = (Vec::new(), offset);
    fs.readdir(dir, offset, false, &mut |item| {
        if names.len() == limit {
            return false;
        }
        names.push(item.name.to_vec());
        next = item.next;
        true
    })
    .unwrap();
    (names, next)
}

#[test]
fn names_are_any_255_bytes_but_slash_and_nul() {
    let fs = fs();
    let longest: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').chain([1]).collect();
    assert_eq!(longest.len(), 255);
    fs.mkdir(ROOT, Ino::ROOT, &longest, 0o755).unwrap();
    assert_eq!(
        fs.lookup(Ino::ROOT, &longest).unwrap().kind,
        FileKind::Directory
    );
    let too_long = [longest, vec![b'x']].concat();
    for refused in [
        fs.mkdir(ROOT, Ino::ROOT, &too_long, 0o755),
        fs.lookup(Ino::ROOT, &too_long),
    ] {
        assert!(matches!(refused, Err(FsError::NameTooLong)), "{refused:?}");
    }
    for name in [&b"a/b"[..], b"a\0b"] {
        let refused = fs.mkdir(ROOT, Ino::ROOT, name, 0o755);
        assert!(matches!(refused, Err(FsError::Invalid)), "{refused:?}");
    }
    sound(&fs);
}

#[test]
fn a_listing_has_every_entry_that_stays_exactly_once_while_others_come_and_go() {
    let fs = fs();
    for index in 0..1_000 {
        create(&fs, &format!("f{index}"));
    }
    let dir = fs.opendir(Ino::ROOT).unwrap();
    let mut seen: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    let (mut offset, mut round) = (0, 0);
    loop {
        let (names, next) = list(&fs, dir, offset, 7);
        if names.is_empty() {
            break;
        }
        for name in names {
            *seen.entry(name).or_default() += 1;
        }
        offset = next;
        // One goes that was listed, one that was not, perhaps; one comes.
        for gone in [round * 10, 999 - round * 10] {
            if gone % 10 != 5 {
                let _gone_before = fs.unlink(Ino::ROOT, format!("f{gone}").as_bytes());
            }
        }
        create(&fs, &format!("new{round}"));
        round += 1;
    }
    for index in (5..1_000).step_by(10) {
        assert_eq!(
            seen.get(format!("f{index}").as_bytes()),
            Some(&1),
            "f{index}"
        );
    }
    assert!(seen.values().all(|times| *times == 1));
    sound(&fs);
}

#[test]
fn a_program_that_adds_or_renames_an_entry_for_each_it_lists_comes_to_an_end() {
    let fs = fs();
    for index in 0..50 {
        create(&fs, &format!("f{index}"));
    }
    let dir = fs.opendir(Ino::ROOT).unwrap();
    let (mut offset, mut listed) = (0, 0);
    loop {
        let (names, next) = list(&fs, dir, offset, 1);
        let Some(name) = names.first() else { break };
        offset = next;
        listed += 1;
        assert!(listed <= 200, "the listing does not end");
        if name.starts_with(b".") {
            continue;
        }
        create(&fs, &format!("new{listed}"));
        let renamed = [name, &b".bak"[..]].concat();
        fs.rename(Ino::ROOT, name, Ino::ROOT, &renamed, RenameMode::Replace)
            .unwrap();
    }
    assert_eq!(listed, 52);
    assert_eq!(list(&fs, dir, 0, 1_000).0.len(), 102, "rewound, it has all");
    sound(&fs);
}

#[test]
fn files_of_thousands_of_extents_are_cut_punched_shared_and_removed() {
    let fs = fs();
    let (ino, handle) = create(&fs, "many");
    let count = 2_100;
    for index in 0..count {
        write(
            &fs,
            handle,
            index * 2 * BLOCK,
            &[index.to_le_bytes()[0]; 4096],
        )
        .unwrap();
    }
    assert_eq!(sound(&fs).extents, count);
    let (copy, copied) = create(&fs, "copy");
    let (mut at, size) = (0, fs.getattr(ino).unwrap().size);
    while at < size {
        let done = fs.copy_range(ROOT, handle, at, copied, at, size - at);
        at += done.unwrap();
    }
    for index in [0, 511, 512, 1_600, count - 1] {
        let expected = [index.to_le_bytes()[0]; 4096];
        assert_eq!(read(&fs, copied, index * 2 * BLOCK, 4096), expected);
    }
    assert_eq!(fs.seek(copied, BLOCK, Whence::Data).unwrap(), 2 * BLOCK);
    fs.fallocate(
        ROOT,
        copied,
        Allocation::PunchHole,
        BLOCK,
        1_200 * 2 * BLOCK,
    )
    .unwrap();
    assert_eq!(sound(&fs).extents, 2 * count - 1_200);
    let cut = Changes {
        size: Some(10 * BLOCK + 5),
        ..Changes::default()
    };
    let attr = fs.setattr(ROOT, ino, cut).unwrap();
    assert_eq!((attr.size, attr.blocks_512), (10 * BLOCK + 5, 5 * 8 + 1));
    let grown = Changes {
        size: Some(size),
        ..Changes::default()
    };
    fs.setattr(ROOT, ino, grown).unwrap();
    assert!(
        read(&fs, handle, 10 * BLOCK + 5, 90_000)
            .iter()
            .all(|byte| *byte == 0)
    );
    for (name, ino, handle) in [("many", ino, handle), ("copy", copy, copied)] {
        fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
        fs.release(handle).unwrap();
        fs.forget(ino, 1);
    }
    let report = sound(&fs);
    assert_eq!((report.inodes, report.extents), (1, 0));
}

#[test]
fn a_file_can_be_as_long_as_its_offsets_and_no_longer() {
    let fs = fs();
    let (ino, handle) = create(&fs, "long");
    assert_eq!(write(&fs, handle, SIZE_MAX - 1, b"x").unwrap(), 1);
    assert_eq!(fs.getattr(ino).unwrap().size, SIZE_MAX);
    assert_eq!(read(&fs, handle, SIZE_MAX - 3, 100), b"\0\0x");
    assert_eq!(fs.seek(handle, 0, Whence::Data).unwrap(), SIZE_MAX - 1);
    for (offset, data) in [
        (SIZE_MAX, &b"x"[..]),
        (SIZE_MAX - 1, b"xy"),
        (u64::MAX, b"x"),
    ] {
        let refused = write(&fs, handle, offset, data);
        assert!(matches!(refused, Err(FsError::FileTooBig)), "{refused:?}");
    }
    let changes = Changes {
        size: Some(SIZE_MAX + 1),
        ..Changes::default()
    };
    assert!(matches!(
        fs.setattr(ROOT, ino, changes),
        Err(FsError::FileTooBig)
    ));
    sound(&fs);
}

#[test]
fn no_inode_has_more_links_than_can_be_counted() {
    let fs = fs();
    let (file, _) = create(&fs, "file");
    let dir = fs.mkdir(ROOT, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    for ino in [file, dir] {
        let value = fs.pipeline().get(&key::inode(ino)).unwrap().unwrap();
        let inode = Inode {
            links: LINKS_MAX,
            ..Inode::decode(&value).unwrap()
        };
        let mut batch = Batch::default();
        batch.put(key::inode(ino), inode.encode());
        fs.pipeline().apply(batch).unwrap();
    }
    let refused = fs.link(file, Ino::ROOT, b"another");
    assert!(matches!(refused, Err(FsError::TooManyLinks)), "{refused:?}");
    let refused = fs.mkdir(ROOT, dir, b"below", 0o755);
    assert!(matches!(refused, Err(FsError::TooManyLinks)), "{refused:?}");
    fs.create(ROOT, dir, b"file", 0o644, exclusive()).unwrap();
}

#[test]
fn appends_from_many_threads_are_all_there_and_whole() {
    let fs = fs();
    let (ino, _) = create(&fs, "log");
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let fs = &fs;
            scope.spawn(move || {
                let flags = OpenFlags {
                    append: true,
                    ..OpenFlags::read_write()
                };
                let handle = fs.open_file(ROOT, ino, flags).unwrap();
                for _ in 0..100 {
                    write(fs, handle, 0, &[b'0' + thread; 100]).unwrap();
                }
                fs.release(handle).unwrap();
            });
        }
    });
    let handle = fs.open_file(ROOT, ino, OpenFlags::read_only()).unwrap();
    let bytes = read(&fs, handle, 0, 1 << 20);
    assert_eq!(bytes.len(), 4 * 100 * 100);
    for record in bytes.chunks(100) {
        assert!(record.iter().all(|byte| *byte == record[0]));
    }
    sound(&fs);
}

#[test]
fn a_read_sees_a_concurrent_write_wholly_or_not_at_all() {
    let fs = fs();
    let (ino, handle) = create(&fs, "flips");
    write(&fs, handle, 0, &vec![0; 70_000]).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..200_u8 {
                write(&fs, handle, 0, &vec![round; 70_000]).unwrap();
            }
            done.store(true, Ordering::SeqCst);
        });
        let reader = fs.open_file(ROOT, ino, OpenFlags::read_only()).unwrap();
        while !done.load(Ordering::SeqCst) {
            let bytes = read(&fs, reader, 0, 70_000);
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a torn read");
        }
    });
    sound(&fs);
}

#[test]
fn directories_moved_from_many_threads_stay_a_tree() {
    let fs = fs();
    let dirs: Vec<Ino> = (0..6)
        .map(|index| {
            let name = format!("d{index}");
            fs.mkdir(ROOT, Ino::ROOT, name.as_bytes(), 0o755)
                .unwrap()
                .ino
        })
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (fs, dirs) = (&fs, &dirs);
            scope.spawn(move || {
                let mut random = thread + 1;
                let mut pick = || {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    random >> 33
                };
                for _ in 0..3_000 {
                    let place = |pick: &mut dyn FnMut() -> usize| match pick() % 7 {
                        6 => Ino::ROOT,
                        index => dirs[index],
                    };
                    let (from, to) = (place(&mut pick), place(&mut pick));
                    let names = [format!("d{}", pick() % 6), format!("d{}", pick() % 6)];
                    let mode = [RenameMode::Replace, RenameMode::Exchange][pick() % 2];
                    // Most of these are refused; what matters is what the others leave.
                    let (name, new_name) = (names[0].as_bytes(), names[1].as_bytes());
                    if let Err(FsError::Corrupt { .. } | FsError::Format(_) | FsError::Storage(_)) =
                        fs.rename(from, name, to, new_name, mode)
                    {
                        panic!("rename broke something");
                    }
                }
            });
        }
    });
    sound(&fs);
}

#[test]
fn threads_that_make_and_remove_files_in_shared_directories_leave_sound_counts() {
    let fs = fs();
    let dir = fs.mkdir(ROOT, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let fs = &fs;
            scope.spawn(move || {
                for index in 0..300 {
                    let name = format!("{}", (index * 7 + thread) % 20);
                    let name = name.as_bytes();
                    match index % 3 {
                        0 => {
                            if let Ok((attr, handle)) =
                                fs.create(ROOT, dir, name, 0o644, OpenFlags::read_write())
                            {
                                write(fs, handle, 0, &[1; 3_000]).unwrap();
                                fs.release(handle).unwrap();
                                fs.forget(attr.ino, 1);
                            }
                        }
                        1 => drop(fs.unlink(dir, name)),
                        _ => {
                            if let Ok(attr) = fs.lookup(dir, name) {
                                let linked = fs.link(attr.ino, Ino::ROOT, name);
                                let counted = 1 + u64::from(linked.is_ok());
                                fs.forget(attr.ino, counted);
                                drop(fs.unlink(Ino::ROOT, name));
                            }
                        }
                    }
                }
            });
        }
    });
    sound(&fs);
}

#[test]
fn an_unlinked_file_can_be_used_until_it_is_closed_and_takes_no_space_after() {
    let fs = fs();
    let (ino, handle) = create(&fs, "gone");
    write(&fs, handle, 0, &vec![7; 100_000]).unwrap();
    fs.unlink(Ino::ROOT, b"gone").unwrap();
    fs.forget(ino, 1);
    write(&fs, handle, 50_000, b"still").unwrap();
    assert_eq!(read(&fs, handle, 50_000, 5), b"still");
    assert_eq!(fs.getattr(ino).unwrap().links, 0);
    assert!(matches!(
        fs.link(ino, Ino::ROOT, b"back"),
        Err(FsError::NotFound)
    ));
    fs.release(handle).unwrap();
    assert!(matches!(fs.getattr(ino), Err(FsError::NotFound)));
    let report = sound(&fs);
    assert_eq!((report.inodes, report.extents), (1, 0));
}

#[test]
fn a_removed_directory_that_is_open_lists_nothing_and_takes_nothing() {
    let fs = fs();
    let dir = fs.mkdir(ROOT, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    let handle = fs.opendir(dir).unwrap();
    fs.rmdir(Ino::ROOT, b"dir").unwrap();
    assert_eq!(list(&fs, handle, 0, 10).0, [b".".to_vec(), b"..".to_vec()]);
    let refused = fs.mkdir(ROOT, dir, b"below", 0o755);
    assert!(matches!(refused, Err(FsError::NotFound)), "{refused:?}");
    fs.releasedir(handle).unwrap();
    fs.forget(dir, 1);
    assert!(matches!(fs.getattr(dir), Err(FsError::NotFound)));
    sound(&fs);
}

#[test]
fn a_copy_within_the_volume_points_at_the_same_bytes() {
    let fs = fs();
    let (source, from) = create(&fs, "source");
    let (target, to) = create(&fs, "target");
    let bytes: Vec<u8> = (0..150_000_u32)
        .map(|index| index.to_le_bytes()[1])
        .collect();
    write(&fs, from, 0, &bytes).unwrap();
    write(&fs, to, 0, b"in the record").unwrap();
    assert_eq!(
        fs.copy_range(ROOT, from, 0, to, 0, u64::MAX / 4).unwrap(),
        150_000
    );
    assert_eq!(read(&fs, to, 0, 200_000), bytes);
    let runs = |ino| {
        let (first, end) = key::extents_from(ino, 0);
        let found = fs.pipeline().scan(&first, &end, 100).unwrap();
        let extents = found
            .iter()
            .map(|(_, value)| Extent::decode(value).unwrap());
        extents.collect::<Vec<_>>()
    };
    assert_eq!(runs(source), runs(target));
    write(&fs, from, 70_000, b"other").unwrap();
    assert_eq!(
        read(&fs, to, 0, 200_000),
        bytes,
        "the copy stands on its own"
    );
    sound(&fs);
}

#[test]
fn attributes_are_refused_by_name_length_and_kind() {
    let fs = fs();
    let (ino, _) = create(&fs, "file");
    let link = fs.symlink(ROOT, Ino::ROOT, b"link", b"file").unwrap().ino;
    let set = |ino, name: &[u8], value: &[u8]| fs.setxattr(ROOT, ino, name, value, XattrMode::Set);
    let longest = [&b"user."[..], &[b'n'; 250]].concat();
    set(ino, &longest, b"").unwrap();
    assert_eq!(fs.getxattr(ino, &longest).unwrap(), b"");
    let too_long = [&longest[..], b"n"].concat();
    assert!(matches!(set(ino, &too_long, b""), Err(FsError::Range)));
    set(ino, b"user.big", &vec![1; 65_536]).unwrap();
    assert_eq!(fs.getxattr(ino, b"user.big").unwrap().len(), 65_536);
    assert!(matches!(
        set(ino, b"user.big", &vec![1; 65_537]),
        Err(FsError::TooBig)
    ));
    assert!(matches!(set(ino, b"user.", b""), Err(FsError::Invalid)));
    for name in [&b"other.a"[..], b"system.nfs4_acl", b"user"] {
        assert!(matches!(set(ino, name, b""), Err(FsError::Unsupported)));
    }
    assert!(matches!(
        set(link, b"user.a", b""),
        Err(FsError::NotPermitted)
    ));
    set(link, b"trusted.a", b"v").unwrap();
    let mut count = 0;
    while set(ino, format!("user.{count:0250}").as_bytes(), b"").is_ok() {
        count += 1;
    }
    assert!(fs.listxattr(ino).unwrap().len() <= 65_536);
    assert!(count > 250);
    sound(&fs);
}

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
        let fs = Fs::open(volume::pipeline(), options).unwrap();
        let (ino, handle) = create(&fs, "file");
        write(&fs, handle, 0, b"bytes").unwrap();
        let mut seen = [0; 4];
        for (index, now) in [10, 20, 30, 30 + day].into_iter().enumerate() {
            clock.set(now);
            if now == 30 {
                fs.setattr(ROOT, ino, Changes::default()).unwrap();
            }
            read(&fs, handle, 0, 5);
            seen[index] = fs.getattr(ino).unwrap().atime.seconds;
        }
        assert_eq!(seen, expected, "{atime:?}");
    }
}

#[test]
fn setuid_setgid_and_capabilities_go_when_the_bytes_or_the_owner_change() {
    let fs = fs();
    let (ino, handle) = create(&fs, "program");
    let user = &Caller {
        uid: 1000,
        gid: 1000,
        ..Caller::ROOT
    };
    let arm = |permissions| {
        let changes = Changes {
            permissions: Some(permissions),
            ..Changes::default()
        };
        fs.setattr(ROOT, ino, changes).unwrap();
        let name = b"security.capability";
        fs.setxattr(ROOT, ino, name, b"caps", XattrMode::Set)
            .unwrap();
    };
    let check = |expected, what: &str| {
        assert_eq!(fs.getattr(ino).unwrap().permissions, expected, "{what}");
        let capability = fs.getxattr(ino, b"security.capability");
        assert!(matches!(capability, Err(FsError::NoData)), "{what}");
    };
    let kill = WriteFlags {
        kill_suid_sgid: true,
        ..WriteFlags::default()
    };
    arm(0o6755);
    fs.write(user, handle, 0, b"x", kill).unwrap();
    check(0o755, "written");
    arm(0o6755);
    write(&fs, handle, 0, b"x").unwrap();
    check(0o6755, "written by root");
    arm(0o6755);
    let changes = Changes {
        uid: Some(5),
        ..Changes::default()
    };
    fs.setattr(ROOT, ino, changes).unwrap();
    check(0o755, "given away");
    arm(0o6745);
    let changes = Changes {
        size: Some(0),
        ..Changes::default()
    };
    fs.setattr(user, ino, changes).unwrap();
    check(
        0o2745,
        "cut; without execution by the group, setgid means something else",
    );
    arm(0o6755);
    fs.fallocate(user, handle, Allocation::ZeroRange, 0, 10)
        .unwrap();
    check(0o755, "zeroed");
}

#[test]
fn a_read_only_filesystem_refuses_every_change() {
    let fs = fs();
    let (ino, _) = create(&fs, "file");
    let options = FsOptions {
        read_only: true,
        ..FsOptions::default()
    };
    let fs = Fs::open(Arc::clone(fs.pipeline()), options).unwrap();
    let handle = fs.open_file(ROOT, ino, OpenFlags::read_only()).unwrap();
    let refused = [
        fs.mkdir(ROOT, Ino::ROOT, b"x", 0o755).map(drop),
        fs.mknod(ROOT, Ino::ROOT, b"x", libc::S_IFIFO, 0).map(drop),
        fs.symlink(ROOT, Ino::ROOT, b"x", b"y").map(drop),
        fs.link(ino, Ino::ROOT, b"x").map(drop),
        fs.create(ROOT, Ino::ROOT, b"x", 0, exclusive()).map(drop),
        fs.tmpfile(ROOT, Ino::ROOT, 0, exclusive()).map(drop),
        fs.unlink(Ino::ROOT, b"file"),
        fs.rmdir(Ino::ROOT, b"file"),
        fs.rename(Ino::ROOT, b"file", Ino::ROOT, b"x", RenameMode::Replace),
        fs.setattr(ROOT, ino, Changes::default()).map(drop),
        fs.open_file(ROOT, ino, OpenFlags::read_write()).map(drop),
        write(&fs, handle, 0, b"x").map(drop),
        fs.fallocate(ROOT, handle, Allocation::PunchHole, 0, 1),
        fs.copy_range(ROOT, handle, 0, handle, 10, 1).map(drop),
        fs.setxattr(ROOT, ino, b"user.a", b"", XattrMode::Set),
        fs.removexattr(ROOT, ino, b"user.a"),
    ];
    for (index, refused) in refused.into_iter().enumerate() {
        assert!(
            matches!(refused, Err(FsError::ReadOnly)),
            "call {index}: {refused:?}"
        );
    }
    fs.fsync(ino, false).unwrap();
    fs.close().unwrap();
}

#[test]
fn symbolic_links_hold_targets_of_up_to_4095_bytes() {
    let fs = fs();
    let longest = vec![b't'; 4095];
    let attr = fs.symlink(ROOT, Ino::ROOT, b"link", &longest).unwrap();
    assert_eq!((attr.size, attr.permissions), (4095, 0o777));
    assert_eq!(fs.readlink(attr.ino).unwrap(), longest);
    let refused = fs.symlink(ROOT, Ino::ROOT, b"longer", &[b't'; 4096]);
    assert!(matches!(refused, Err(FsError::NameTooLong)), "{refused:?}");
    let refused = fs.symlink(ROOT, Ino::ROOT, b"empty", b"");
    assert!(matches!(refused, Err(FsError::NotFound)), "{refused:?}");
}

#[test]
fn a_walk_passes_every_path_once_and_a_directory_before_what_it_holds() {
    let fs = fs();
    let outer = fs.mkdir(ROOT, Ino::ROOT, b"outer", 0o755).unwrap().ino;
    let inner = fs.mkdir(ROOT, outer, b"inner", 0o755).unwrap().ino;
    for index in 0..600 {
        let name = format!("{index}");
        fs.create(ROOT, inner, name.as_bytes(), 0o644, exclusive())
            .unwrap();
    }
    create(&fs, "last");
    let walked = tree::walk(&fs, b"")
        .unwrap()
        .map(|entry| entry.unwrap().path);
    let walked: Vec<_> = walked.collect();
    assert_eq!(walked.len(), 604);
    assert_eq!(
        walked[..4],
        [&b""[..], b"outer", b"outer/inner", b"outer/inner/0"]
    );
    assert_eq!(walked[603], b"last");
    let below: Vec<_> = tree::walk(&fs, b"/outer//inner/").unwrap().collect();
    assert_eq!(below.len(), 601);
    assert_eq!(below[0].as_ref().unwrap().path, b"outer/inner");
    let refused = tree::resolve(&fs, b"outer/other");
    assert!(matches!(refused, Err(FsError::NotFound)), "{refused:?}");
    let refused = tree::resolve(&fs, b"last/other");
    assert!(matches!(refused, Err(FsError::NotDirectory)), "{refused:?}");
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
    let before = fs.getattr(last).unwrap();
    let refused = write(&fs, handle, 0, &vec![9; 4 << 20]);
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
    assert_eq!(fs.getattr(last).unwrap(), before);
    assert_eq!(read(&fs, files[0].1, 0, 1 << 20), chunk);
    for (index, (ino, handle)) in files.iter().enumerate().take(6) {
        fs.unlink(Ino::ROOT, format!("f{index}").as_bytes())
            .unwrap();
        fs.release(*handle).unwrap();
        fs.forget(*ino, 1);
    }
    write(&fs, handle, 0, &chunk).unwrap();
    fs.fsync(last, false).unwrap();
    assert_eq!(read(&fs, handle, 0, 1 << 20), chunk);
    sound(&fs);
}
