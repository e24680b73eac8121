//! Names that no entry may have, names that come twice, and directories that lie in themselves.

use std::sync::Arc;

use cauchyfs::format::record::{Dirent, FileKind, Position};
use cauchyfs::format::wire::MAX_COUNT;
use cauchyfs::format::{Cookie, Ino, NameFault, Record, key};
use cauchyfs::fs::check::FindingKind;
use cauchyfs::fs::{Fs, FsError, FsOptions, OpenFlags, RenameMode, tree};
use cauchyfs::metadata::Batch;

use super::{ROOT, Volume, found};

const BAD_NAMES: [(&[u8], NameFault); 5] = [
    (b"..", NameFault::Dots),
    (b".", NameFault::Dots),
    (b"", NameFault::Empty),
    (b"../file", NameFault::Slash),
    (b"fi\0le", NameFault::Nul),
];

/// Puts both records of an entry, whatever its name.
fn put_entry(
    batch: &mut Batch,
    parent: Ino,
    name: &[u8],
    (ino, kind): (Ino, FileKind),
    cookie: u64,
) {
    let cookie = Cookie(cookie);
    let dirent = Dirent { ino, kind, cookie };
    let name_of = name.to_vec();
    let position = Position {
        ino,
        kind,
        name: name_of,
    };
    batch.put(key::dirent(parent, name), dirent.encode());
    batch.put(key::position(parent, cookie), position.encode());
}

fn delete_entry(batch: &mut Batch, parent: Ino, name: &[u8], cookie: u64) {
    batch.delete(key::dirent(parent, name));
    batch.delete(key::position(parent, Cookie(cookie)));
}

fn open(volume: &Volume) -> Arc<Fs> {
    Fs::open(Arc::clone(&volume.maintenance), FsOptions::default()).unwrap()
}

/// Returns all paths, and asserts that each can be read.
fn paths(volume: &Volume) -> Vec<String> {
    let fs = open(volume);
    let walked = tree::walk(&fs, b"").unwrap();
    let text =
        |entry: Result<tree::TreeEntry, FsError>| String::from_utf8(entry.unwrap().path).unwrap();
    walked.map(text).collect()
}

#[test]
fn a_name_that_no_entry_may_have_is_found_and_its_file_gets_another() {
    for (name, fault) in BAD_NAMES {
        found(
            &format!("{name:?}"),
            |volume, batch| {
                delete_entry(batch, volume.dir, b"file", 1);
                put_entry(batch, volume.dir, name, (volume.file, FileKind::Regular), 1);
            },
            |_| FindingKind::BadName(fault),
            Some("dir"),
            true,
        );
    }
}

#[test]
fn nothing_under_a_bad_name_is_lost_by_a_repair() {
    for (name, _) in BAD_NAMES {
        let volume = Volume::new();
        let mut batch = Batch::default();
        delete_entry(&mut batch, Ino::ROOT, b"dir", 1);
        put_entry(
            &mut batch,
            Ino::ROOT,
            name,
            (volume.dir, FileKind::Directory),
            1,
        );
        put_entry(
            &mut batch,
            volume.dir,
            name,
            (volume.file, FileKind::Regular),
            7,
        );
        volume.maintenance.transactions().apply(batch).unwrap();
        let fs = open(&volume);
        for parent in [Ino::ROOT, volume.dir] {
            let looked_up = fs.names().lookup(parent, name).map(|attr| attr.ino);
            assert_ne!(looked_up.ok(), Some(volume.file), "{name:?}");
            let handle = fs.directories().open(parent).unwrap();
            let mut listed = Vec::new();
            let read = fs.directories().read(handle, 0, true, &mut |item| {
                listed.push(item.name.to_vec());
                true
            });
            listed.retain(|name| !matches!(&name[..], b"." | b".."));
            assert!(listed.iter().all(|name| name == b"file"), "{listed:?}");
            // The listing goes on to the damage, and the next call begins there.
            assert!(read.is_ok(), "{read:?}");
            fs.open_files().release(handle).unwrap();
        }
        drop(fs);
        volume.check(true);
        assert_eq!(volume.check(false).findings, [], "{name:?}");
        let dir = format!("lost+found-{}", volume.dir);
        assert_eq!(
            paths(&volume),
            ["", &dir, &format!("{dir}/file")],
            "{name:?}"
        );
    }
}

#[test]
fn positions_that_share_a_name_are_found_and_the_surplus_removed() {
    found(
        "a name twice",
        |volume, batch| {
            let name = b"file".to_vec();
            let position = Position {
                ino: volume.dir,
                kind: FileKind::Directory,
                name,
            };
            batch.put(key::position(volume.dir, Cookie(7)), position.encode());
        },
        |_| FindingKind::DuplicateName,
        Some("dir"),
        true,
    );
}

/// Lists a directory's names and inodes, but not `.` and `..`.
fn list(fs: &Fs, dir: Ino) -> Vec<(Vec<u8>, Ino)> {
    let handle = fs.directories().open(dir).unwrap();
    let mut listed = Vec::new();
    fs.directories()
        .read(handle, 0, true, &mut |item| {
            listed.push((item.name.to_vec(), item.ino));
            true
        })
        .unwrap();
    fs.open_files().release(handle).unwrap();
    listed.split_off(2)
}

/// Makes the positions of a directory with the files `file`, `one` and `two`: cookies, inodes and names.
type Crafted = fn([Ino; 3]) -> Vec<(u64, Ino, &'static [u8])>;

#[test]
fn a_listing_has_only_positions_that_their_names_lead_to() {
    let regular = FileKind::Regular;
    let position = |ino, name: &[u8]| Position {
        ino,
        kind: regular,
        name: name.to_vec(),
    };
    // Each with the names that a listing then has.
    let cases: [(Crafted, &[&[u8]]); 6] = [
        (
            |[file, one, two]| vec![(1, file, b"file"), (2, one, b"one"), (3, two, b"two")],
            &[b"file", b"one", b"two"],
        ),
        (
            |[file, one, two]| vec![(1, file, b"file"), (2, two, b"one"), (3, one, b"two")],
            &[b"file"],
        ),
        (
            |[file, one, two]| vec![(1, file, b"file"), (2, two, b"two"), (3, one, b"one")],
            &[b"file"],
        ),
        (
            |[file, one, _]| vec![(1, file, b"file"), (2, one, b"one"), (3, one, b"one")],
            &[b"file", b"one"],
        ),
        (
            |[file, one, two]| {
                let more = (9, file, &b"file"[..]);
                vec![(1, file, b"file"), (2, one, b"one"), (3, two, b"two"), more]
            },
            &[b"file", b"one", b"two"],
        ),
        (|[_, one, _]| vec![(2, one, b"one")], &[b"one"]),
    ];
    for (number, (crafted, expected)) in cases.into_iter().enumerate() {
        let volume = Volume::new();
        let fs = open(&volume);
        let [one, two] = [&b"one"[..], b"two"].map(|name| {
            let flags = OpenFlags::read_write();
            let (attr, handle) = fs
                .names()
                .create(ROOT, volume.dir, name, 0o644, flags)
                .unwrap();
            fs.open_files().release(handle).unwrap();
            attr.ino
        });
        drop(fs);
        let mut batch = Batch::default();
        for cookie in 1..=3 {
            batch.delete(key::position(volume.dir, Cookie(cookie)));
        }
        for (cookie, ino, name) in crafted([volume.file, one, two]) {
            let key = key::position(volume.dir, Cookie(cookie));
            batch.put(key, position(ino, name).encode());
        }
        // A listing that says when it began leaves out later cookies.
        volume.change(&mut batch, volume.dir, |inode| {
            inode.next_cookie = Cookie(10);
        });
        volume.maintenance.transactions().apply(batch).unwrap();
        let fs = open(&volume);
        for _ in 0..2 {
            let listed = list(&fs, volume.dir);
            let names: Vec<&[u8]> = listed.iter().map(|(name, _)| &name[..]).collect();
            assert_eq!(names, expected, "case {number}");
            for (name, ino) in &listed {
                assert_eq!(
                    fs.names().lookup(volume.dir, name).unwrap().ino,
                    *ino,
                    "case {number}"
                );
            }
        }
        let flags = OpenFlags::read_write();
        let (_, handle) = fs
            .names()
            .create(ROOT, volume.dir, b"later", 0o644, flags)
            .unwrap();
        fs.open_files().release(handle).unwrap();
        let listed = list(&fs, volume.dir);
        assert_eq!(listed.len(), expected.len() + 1, "case {number}");
    }
}

#[test]
fn a_directory_without_a_free_place_in_its_listing_takes_no_entry() {
    let volume = Volume::new();
    let mut batch = Batch::default();
    volume.change(&mut batch, volume.dir, |inode| {
        inode.next_cookie = Cookie(MAX_COUNT);
    });
    volume.maintenance.transactions().apply(batch).unwrap();
    let fs = open(&volume);
    let made = fs.names().mkdir(ROOT, volume.dir, b"new", 0o755);
    assert!(matches!(made, Err(FsError::Corrupt { .. })), "{made:?}");
    let moved = fs.names().rename(
        ROOT,
        volume.dir,
        b"file",
        volume.dir,
        b"moved",
        RenameMode::Replace,
    );
    assert!(moved.is_ok(), "it keeps its place: {moved:?}");
    drop(fs);
    assert_eq!(volume.check(false).findings, []);
}

#[test]
fn a_directory_keeps_the_one_name_that_it_records() {
    for (parent_is_root, name, kept) in [
        (true, &b"again"[..], "again"),
        (true, b"zzz", "dir"),
        (false, b"inside", "dir"),
    ] {
        found(
            "a directory with two names",
            |volume, batch| {
                let parent = if parent_is_root {
                    Ino::ROOT
                } else {
                    volume.dir
                };
                put_entry(batch, parent, name, (volume.dir, FileKind::Directory), 9);
            },
            |_| FindingKind::DirectoryNamedTwice,
            Some(kept),
            true,
        );
    }
    found(
        "a name of the root",
        |volume, batch| {
            put_entry(
                batch,
                volume.dir,
                b"root",
                (Ino::ROOT, FileKind::Directory),
                9,
            );
        },
        |_| FindingKind::DirectoryNamedTwice,
        Some(""),
        true,
    );
}

/// A volume with `outer/inner/file` whose two directories lie in each other and not in the root.
fn looping() -> (Volume, Ino, Ino) {
    let volume = Volume::new();
    let fs = open(&volume);
    let outer = fs
        .names()
        .mkdir(ROOT, Ino::ROOT, b"outer", 0o755)
        .unwrap()
        .ino;
    let inner = fs.names().mkdir(ROOT, outer, b"inner", 0o755).unwrap().ino;
    let flags = OpenFlags::read_write();
    let (_, handle) = fs
        .names()
        .create(ROOT, inner, b"file", 0o644, flags)
        .unwrap();
    fs.open_files().release(handle).unwrap();
    drop(fs);
    let mut batch = Batch::default();
    delete_entry(&mut batch, Ino::ROOT, b"outer", 2);
    put_entry(&mut batch, inner, b"outer", (outer, FileKind::Directory), 2);
    volume.change(&mut batch, outer, |inode| inode.parent = inner);
    volume.change(&mut batch, inner, |inode| {
        inode.links += 1;
        inode.size += 1;
        inode.next_cookie = Cookie(3);
    });
    volume.change(&mut batch, Ino::ROOT, |inode| {
        inode.links -= 1;
        inode.size -= 1;
    });
    volume.maintenance.transactions().apply(batch).unwrap();
    (volume, outer, inner)
}

#[test]
fn directories_that_lie_in_each_other_come_back_below_the_root() {
    let (volume, outer, _) = looping();
    let report = volume.check(false);
    let kinds: Vec<_> = report.findings.iter().map(|it| it.kind.clone()).collect();
    assert_eq!(kinds, [FindingKind::Unreachable, FindingKind::Unreachable]);
    let report = volume.check(true);
    assert_eq!((report.found, report.repaired), (2, 2));
    assert_eq!(volume.check(false).findings, []);
    let lost = format!("lost+found-{outer}");
    assert_eq!(
        paths(&volume),
        [
            "",
            "dir",
            "dir/file",
            &lost,
            &format!("{lost}/inner"),
            &format!("{lost}/inner/file")
        ]
    );
}

#[test]
fn following_the_parents_of_a_directory_ends_even_in_a_loop() {
    let (volume, outer, inner) = looping();
    let fs = open(&volume);
    let renamed = fs
        .names()
        .rename(ROOT, Ino::ROOT, b"dir", inner, b"new", RenameMode::Replace);
    assert!(
        matches!(renamed, Err(FsError::Corrupt { .. })),
        "{renamed:?}"
    );
    let of = [outer, inner].into_iter().collect();
    assert_eq!(fs.paths_of(&of, 10).unwrap(), [b""; 0]);
    assert_eq!(fs.attributes().get(inner).unwrap().links, 3);
}

#[test]
fn a_name_given_by_a_repair_takes_none_away() {
    let volume = Volume::new();
    let fs = open(&volume);
    let taken = format!("lost+found-{}", volume.file);
    let other = fs
        .names()
        .mknod(ROOT, Ino::ROOT, taken.as_bytes(), 0o644, 0)
        .unwrap();
    drop(fs);
    let mut batch = Batch::default();
    delete_entry(&mut batch, volume.dir, b"file", 1);
    volume.change(&mut batch, volume.dir, |inode| inode.size = 0);
    volume.maintenance.transactions().apply(batch).unwrap();
    volume.check(true);
    assert_eq!(volume.check(false).findings, []);
    let fs = open(&volume);
    let ino = |name: &str| fs.names().lookup(Ino::ROOT, name.as_bytes()).unwrap().ino;
    assert_eq!(
        (ino(&taken), ino(&format!("{taken}.1"))),
        (other.ino, volume.file)
    );
}
