//! The requirements of POSIX and Linux on a filesystem, point by point.

use cauchyfs::format::record::{Extent, FileKind, Inode};
use cauchyfs::format::{Ino, Record, key};
use cauchyfs::fs::{
    Allocation, Attr, Caller, Changes, FsError, Handle, LINKS_MAX, OpenFlags, RenameMode, SIZE_MAX,
    Whence, WriteFlags, XattrMode, tree,
};
use cauchyfs::metadata::Batch;

use crate::calls::{BLOCK, ROOT, create, exclusive, fs, read, sound, write};
#[test]
fn names_are_any_255_bytes_but_slash_and_nul() {
    let fs = fs();
    let longest: Vec<u8> = (1..=255).filter(|byte| *byte != b'/').chain([1]).collect();
    assert_eq!(longest.len(), 255);
    fs.names().mkdir(ROOT, Ino::ROOT, &longest, 0o755).unwrap();
    assert_eq!(
        fs.names().lookup(Ino::ROOT, &longest).unwrap().kind,
        FileKind::Directory
    );
    let too_long = [longest, vec![b'x']].concat();
    for refused in [
        fs.names().mkdir(ROOT, Ino::ROOT, &too_long, 0o755),
        fs.names().lookup(Ino::ROOT, &too_long),
    ] {
        assert!(matches!(refused, Err(FsError::NameTooLong)), "{refused:?}");
    }
    for name in [&b"a/b"[..], b"a\0b"] {
        let refused = fs.names().mkdir(ROOT, Ino::ROOT, name, 0o755);
        assert!(matches!(refused, Err(FsError::Invalid)), "{refused:?}");
    }
    sound(&fs);
}

#[test]
fn a_removal_tells_a_missing_name_from_a_parent_that_is_missing_or_no_directory() {
    let fs = fs();
    let (file, _handle) = create(&fs, "file");
    for (parent, expected) in [
        (Ino::ROOT, "NotFound"),
        (file, "NotDirectory"),
        (Ino(1 << 40), "NotFound"),
    ] {
        for refused in [
            fs.names().unlink(parent, b"none"),
            fs.names().rmdir(parent, b"none"),
        ] {
            let refused = format!("{:?}", refused.unwrap_err());
            assert_eq!(refused, expected, "{parent}");
        }
    }
    sound(&fs);
}

#[test]
fn a_whiteout_takes_the_old_name_of_whatever_is_renamed() {
    let fs = fs();
    let names = fs.names();
    let caller = Caller {
        uid: 7,
        gid: 8,
        ..Caller::ROOT
    };
    let other = names.mkdir(ROOT, Ino::ROOT, b"other", 0o755).unwrap().ino;
    let is_whiteout = |attr: &Attr| {
        let is_device = (attr.kind, attr.rdev) == (FileKind::CharDevice, 0);
        let is_of_caller = (attr.uid, attr.gid) == (7, 8);
        is_device && is_of_caller && (attr.permissions, attr.links) == (0, 1)
    };
    for kind in [libc::S_IFREG, libc::S_IFIFO, libc::S_IFDIR] {
        for to in [Ino::ROOT, other] {
            let rename = |mode| names.rename(&caller, Ino::ROOT, b"old", to, b"new", mode);
            let is_dir = kind == libc::S_IFDIR;
            let made = if is_dir {
                names.mkdir(ROOT, Ino::ROOT, b"old", 0o755).unwrap()
            } else {
                names.mknod(ROOT, Ino::ROOT, b"old", kind, 0).unwrap()
            };
            rename(RenameMode::WhiteoutNoReplace).unwrap();
            assert_eq!(names.lookup(to, b"new").unwrap().ino, made.ino);
            let first = names.lookup(Ino::ROOT, b"old").unwrap();
            assert!(is_whiteout(&first), "{first:?}");
            sound(&fs);
            let refused = rename(RenameMode::WhiteoutNoReplace);
            assert!(matches!(refused, Err(FsError::Exists)), "{refused:?}");
            let replaced = rename(RenameMode::Whiteout);
            if is_dir {
                assert!(matches!(replaced, Err(FsError::IsDirectory)));
                names.rmdir(to, b"new").unwrap();
            } else {
                replaced.unwrap();
                assert_eq!(names.lookup(to, b"new").unwrap().ino, first.ino);
                let second = names.lookup(Ino::ROOT, b"old").unwrap();
                assert!(is_whiteout(&second), "{second:?}");
                names.unlink(to, b"new").unwrap();
            }
            names.unlink(Ino::ROOT, b"old").unwrap();
            sound(&fs);
        }
    }
}

#[test]
fn a_file_without_a_name_lives_until_it_is_forgotten_unless_it_is_linked() {
    let fs = fs();
    for (exclusive, is_linked) in [(false, false), (false, true), (true, true)] {
        let flags = OpenFlags {
            exclusive,
            ..OpenFlags::read_write()
        };
        let (attr, opened) = fs.names().tmpfile(ROOT, Ino::ROOT, 0o600, flags).unwrap();
        assert_eq!(attr.links, 0);
        // A kernel that opens files by itself closes the handle at once.
        fs.open_files().release(opened).unwrap();
        let handle = Handle::ByCaller {
            ino: attr.ino,
            flags: OpenFlags::read_write(),
        };
        write(&fs, handle, 0, &vec![7; 100_000]).unwrap();
        assert_eq!(read(&fs, handle, 99_999, 10), [7]);
        if is_linked {
            let linked = fs.names().link(attr.ino, Ino::ROOT, b"linked");
            assert_eq!(linked.is_ok(), !exclusive, "{linked:?}");
            fs.open_files().forget(attr.ino, u64::from(!exclusive));
        }
        fs.open_files().forget(attr.ino, 1);
        let lives = is_linked && !exclusive;
        assert_eq!(fs.attributes().get(attr.ino).is_ok(), lives);
        assert_eq!(sound(&fs).extents > 0, lives);
        if lives {
            fs.names().unlink(Ino::ROOT, b"linked").unwrap();
        }
    }
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
    let (mut at, size) = (0, fs.attributes().get(ino).unwrap().size);
    while at < size {
        let done = fs
            .writer()
            .copy_range(ROOT, handle, at, copied, at, size - at);
        at += done.unwrap();
    }
    for index in [0, 511, 512, 1_600, count - 1] {
        let expected = [index.to_le_bytes()[0]; 4096];
        assert_eq!(read(&fs, copied, index * 2 * BLOCK, 4096), expected);
    }
    assert_eq!(
        fs.reader().seek(copied, BLOCK, Whence::Data).unwrap(),
        2 * BLOCK
    );
    fs.writer()
        .fallocate(
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
    let attr = fs.attributes().set(ROOT, ino, cut).unwrap();
    assert_eq!(attr.size, 10 * BLOCK + 5);
    assert!(attr.blocks_512 <= attr.size.div_ceil(512));
    fs.wait_for_removal();
    assert_eq!(fs.attributes().get(ino).unwrap().blocks_512, 5 * 8 + 1);
    let grown = Changes {
        size: Some(size),
        ..Changes::default()
    };
    fs.attributes().set(ROOT, ino, grown).unwrap();
    assert!(
        read(&fs, handle, 10 * BLOCK + 5, 90_000)
            .iter()
            .all(|byte| *byte == 0)
    );
    for (name, ino, handle) in [("many", ino, handle), ("copy", copy, copied)] {
        fs.names().unlink(Ino::ROOT, name.as_bytes()).unwrap();
        fs.open_files().release(handle).unwrap();
        fs.open_files().forget(ino, 1);
    }
    let report = sound(&fs);
    assert_eq!((report.inodes, report.extents), (1, 0));
}

#[test]
fn a_file_can_be_as_long_as_its_offsets_and_no_longer() {
    let fs = fs();
    let (ino, handle) = create(&fs, "long");
    assert_eq!(write(&fs, handle, SIZE_MAX - 1, b"x").unwrap(), 1);
    assert_eq!(fs.attributes().get(ino).unwrap().size, SIZE_MAX);
    assert_eq!(read(&fs, handle, SIZE_MAX - 3, 100), b"\0\0x");
    assert_eq!(
        fs.reader().seek(handle, 0, Whence::Data).unwrap(),
        SIZE_MAX - 1
    );
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
        fs.attributes().set(ROOT, ino, changes),
        Err(FsError::FileTooBig)
    ));
    sound(&fs);
}

#[test]
fn no_inode_has_more_links_than_can_be_counted() {
    let fs = fs();
    let (file, _) = create(&fs, "file");
    let dir = fs
        .names()
        .mkdir(ROOT, Ino::ROOT, b"dir", 0o755)
        .unwrap()
        .ino;
    for ino in [file, dir] {
        let value = fs.transactions().get(&key::inode(ino)).unwrap().unwrap();
        let inode = Inode {
            links: LINKS_MAX,
            ..Inode::decode(&value).unwrap()
        };
        let mut batch = Batch::default();
        batch.put(key::inode(ino), inode.encode());
        fs.transactions().apply(batch).unwrap();
    }
    let refused = fs.names().link(file, Ino::ROOT, b"another");
    assert!(matches!(refused, Err(FsError::TooManyLinks)), "{refused:?}");
    let refused = fs.names().mkdir(ROOT, dir, b"below", 0o755);
    assert!(matches!(refused, Err(FsError::TooManyLinks)), "{refused:?}");
    fs.names()
        .create(ROOT, dir, b"file", 0o644, exclusive())
        .unwrap();
}

#[test]
fn an_unlinked_file_can_be_used_until_it_is_closed_and_takes_no_space_after() {
    let fs = fs();
    let (ino, handle) = create(&fs, "gone");
    write(&fs, handle, 0, &vec![7; 100_000]).unwrap();
    fs.names().unlink(Ino::ROOT, b"gone").unwrap();
    fs.open_files().forget(ino, 1);
    write(&fs, handle, 50_000, b"still").unwrap();
    assert_eq!(read(&fs, handle, 50_000, 5), b"still");
    assert_eq!(fs.attributes().get(ino).unwrap().links, 0);
    assert!(matches!(
        fs.names().link(ino, Ino::ROOT, b"back"),
        Err(FsError::NotFound)
    ));
    fs.open_files().release(handle).unwrap();
    assert!(matches!(fs.attributes().get(ino), Err(FsError::NotFound)));
    let report = sound(&fs);
    assert_eq!((report.inodes, report.extents), (1, 0));
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
        fs.writer()
            .copy_range(ROOT, from, 0, to, 0, u64::MAX / 4)
            .unwrap(),
        150_000
    );
    assert_eq!(read(&fs, to, 0, 200_000), bytes);
    let runs = |ino| {
        let (first, end) = key::extents_from(ino, 0);
        let found = fs.transactions().scan(&first, &end, 100).unwrap();
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
    let link = fs
        .names()
        .symlink(ROOT, Ino::ROOT, b"link", b"file")
        .unwrap()
        .ino;
    let set =
        |ino, name: &[u8], value: &[u8]| fs.xattrs().set(ROOT, ino, name, value, XattrMode::Set);
    let longest = [&b"user."[..], &[b'n'; 250]].concat();
    set(ino, &longest, b"").unwrap();
    assert_eq!(fs.xattrs().get(ino, &longest).unwrap(), b"");
    let too_long = [&longest[..], b"n"].concat();
    assert!(matches!(set(ino, &too_long, b""), Err(FsError::Range)));
    set(ino, b"user.big", &vec![1; 65_536]).unwrap();
    assert_eq!(fs.xattrs().get(ino, b"user.big").unwrap().len(), 65_536);
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
    let somebody = &Caller {
        uid: 1000,
        gid: 1000,
        ..Caller::ROOT
    };
    assert_eq!(fs.xattrs().list(ROOT, link).unwrap(), b"trusted.a\0");
    assert_eq!(fs.xattrs().list(somebody, link).unwrap(), b"");
    let mut count = 0;
    while set(ino, format!("user.{count:0250}").as_bytes(), b"").is_ok() {
        count += 1;
    }
    assert!(fs.xattrs().list(ROOT, ino).unwrap().len() <= 65_536);
    assert!(count > 250);
    sound(&fs);
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
        fs.attributes().set(ROOT, ino, changes).unwrap();
        let name = b"security.capability";
        fs.xattrs()
            .set(ROOT, ino, name, b"caps", XattrMode::Set)
            .unwrap();
    };
    let check = |expected, what: &str| {
        assert_eq!(
            fs.attributes().get(ino).unwrap().permissions,
            expected,
            "{what}"
        );
        let capability = fs.xattrs().get(ino, b"security.capability");
        assert!(matches!(capability, Err(FsError::NoData)), "{what}");
    };
    let kill = WriteFlags {
        unprivileged: Some(*user),
        ..WriteFlags::default()
    };
    arm(0o6755);
    fs.writer().write(handle, 0, b"x", kill).unwrap();
    check(0o755, "written");
    arm(0o6755);
    write(&fs, handle, 0, b"x").unwrap();
    check(0o6755, "written by root");
    arm(0o6755);
    let changes = Changes {
        uid: Some(5),
        ..Changes::default()
    };
    fs.attributes().set(ROOT, ino, changes).unwrap();
    check(0o755, "given away");
    arm(0o6755);
    let changes = Changes {
        size: Some(0),
        ..Changes::default()
    };
    fs.attributes().set(user, ino, changes).unwrap();
    check(0o755, "cut");
    arm(0o6755);
    fs.writer()
        .fallocate(user, handle, Allocation::ZeroRange, 0, 10)
        .unwrap();
    check(0o755, "zeroed");
}

type Change<'a> = &'a dyn Fn() -> Result<(), FsError>;

/// Changes a file in each way that clears setuid and setgid, and hands its permissions afterwards to `check`.
fn change_in_every_way(caller: &Caller, check: impl Fn(u16, &str)) {
    const GROUP: u32 = 7;
    let fs = fs();
    let (ino, handle) = create(&fs, "changed");
    let (_, source) = create(&fs, "source");
    write(&fs, source, 0, &vec![1; 20_000]).expect("the volume is whole");
    let set = |caller, changes| fs.attributes().set(caller, ino, changes).map(|_| ());
    let change = Changes {
        gid: Some(GROUP),
        ..Changes::default()
    };
    set(ROOT, change).expect("the volume is whole");
    let writer = fs.writer();
    let write_as = WriteFlags {
        unprivileged: (!caller.is_root()).then_some(*caller),
        ..WriteFlags::default()
    };
    let cut = Changes {
        size: Some(9),
        ..Changes::default()
    };
    let kill = Changes {
        kill_suid_sgid: true,
        ..Changes::default()
    };
    let truncating = OpenFlags::from_raw(libc::O_WRONLY | libc::O_TRUNC);
    let ways: [(&str, Change<'_>); 7] = [
        ("written", &|| {
            writer.write(handle, 0, b"x", write_as).map(|_| ())
        }),
        ("cut", &|| set(caller, cut)),
        ("changed through a page cache", &|| set(caller, kill)),
        ("cut when it was opened", &|| {
            fs.open_files().open(caller, ino, truncating).map(|_| ())
        }),
        ("punched", &|| {
            writer.fallocate(caller, handle, Allocation::PunchHole, 0, 5)
        }),
        ("shared", &|| {
            let copied = writer.copy_range(caller, source, 0, handle, 0, 20_000);
            copied.map(|_| ())
        }),
        ("copied", &|| {
            let copied = writer.copy_range(caller, source, 0, handle, 0, 5);
            copied.map(|_| ())
        }),
    ];
    for (what, change) in ways {
        let armed = Changes {
            permissions: Some(0o2745),
            ..Changes::default()
        };
        set(ROOT, armed).expect("the volume is whole");
        change().expect("the volume is whole");
        check(
            fs.attributes()
                .get(ino)
                .expect("the volume is whole")
                .permissions,
            what,
        );
    }
}

#[test]
fn setgid_without_execution_by_the_group_goes_when_a_stranger_to_the_group_changes_the_file() {
    let user = Caller {
        uid: 1000,
        gid: 1000,
        ..Caller::ROOT
    };
    change_in_every_way(&user, |permissions, what| {
        assert_eq!(permissions, 0o745, "{what}");
    });
    let member = Caller { gid: 7, ..user };
    let supplementary = Caller {
        groups: |_| vec![6, 7],
        ..user
    };
    for caller in [member, supplementary, Caller::ROOT] {
        change_in_every_way(&caller, |permissions, what| {
            assert_eq!(permissions, 0o2745, "{what} by {caller:?}");
        });
    }
}

#[test]
fn an_inode_that_has_a_link_is_found_by_its_number_and_a_directory_with_its_parent() {
    let fs = fs();
    let names = fs.names();
    let outer = names.mkdir(ROOT, Ino::ROOT, b"outer", 0o755).unwrap().ino;
    let inner = names.mkdir(ROOT, outer, b"inner", 0o755).unwrap().ino;
    let file = names.mknod(ROOT, inner, b"f", 0o100_644, 0).unwrap().ino;
    let link = names.symlink(ROOT, inner, b"link", b"f").unwrap().ino;
    for ino in [Ino::ROOT, outer, inner, file, link] {
        assert_eq!(names.lookup(ino, b".").unwrap().ino, ino);
    }
    for (ino, parent) in [(inner, outer), (outer, Ino::ROOT), (Ino::ROOT, Ino::ROOT)] {
        assert_eq!(names.lookup(ino, b"..").unwrap().ino, parent);
    }
    let refused = names.lookup(file, b"..");
    assert!(matches!(refused, Err(FsError::NotDirectory)), "{refused:?}");
    // A caller that looks one of them up holds it like one that found it by name.
    names.unlink(inner, b"f").unwrap();
    assert_eq!(fs.attributes().get(file).unwrap().links, 0);
    fs.open_files().forget(file, 2);
    names.unlink(inner, b"link").unwrap();
    names.rmdir(outer, b"inner").unwrap();
    for (ino, name) in [
        (file, b"."),
        (link, b"."),
        (inner, b"."),
        (Ino(u64::MAX), b"."),
    ] {
        let refused = names.lookup(ino, name);
        assert!(matches!(refused, Err(FsError::NotFound)), "{refused:?}");
    }
    let refused = names.lookup(inner, b"..");
    assert!(matches!(refused, Err(FsError::NotFound)), "{refused:?}");
    sound(&fs);
}

#[test]
fn symbolic_links_hold_targets_of_up_to_4095_bytes() {
    let fs = fs();
    let longest = vec![b't'; 4095];
    let attr = fs
        .names()
        .symlink(ROOT, Ino::ROOT, b"link", &longest)
        .unwrap();
    assert_eq!((attr.size, attr.permissions), (4095, 0o777));
    assert_eq!(fs.attributes().read_link(attr.ino).unwrap(), longest);
    let refused = fs
        .names()
        .symlink(ROOT, Ino::ROOT, b"longer", &[b't'; 4096]);
    assert!(matches!(refused, Err(FsError::NameTooLong)), "{refused:?}");
    let refused = fs.names().symlink(ROOT, Ino::ROOT, b"empty", b"");
    assert!(matches!(refused, Err(FsError::NotFound)), "{refused:?}");
}

#[test]
fn a_walk_passes_every_path_once_and_a_directory_before_its_entries() {
    let fs = fs();
    let outer = fs
        .names()
        .mkdir(ROOT, Ino::ROOT, b"outer", 0o755)
        .unwrap()
        .ino;
    let inner = fs.names().mkdir(ROOT, outer, b"inner", 0o755).unwrap().ino;
    for index in 0..600 {
        let name = format!("{index}");
        fs.names()
            .create(ROOT, inner, name.as_bytes(), 0o644, exclusive())
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
