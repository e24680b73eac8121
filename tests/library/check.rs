//! Every kind of disagreement between records is found, and repaired where that is possible.

mod classes;
mod names;
mod quotas;

use std::ops::ControlFlow;
use std::sync::Arc;

use cauchyfs::format::record::{Backref, Dirent, Extent, FileKind, Inode, Marker, Position, Xattr};
use cauchyfs::format::{Cookie, Ino, Record, StripeId, key};
use cauchyfs::fs::check::{CheckReport, FindingKind, check, check_again};
use cauchyfs::fs::{Caller, Fs, FsOptions, OpenFlags, WriteFlags};
use cauchyfs::maintenance::{Maintenance, ScrubStatus};
use cauchyfs::metadata::Batch;
use cauchyfs::store::{MemDisk, Store, StoreErrorKind};

use crate::volume;

const ROOT: &Caller = &Caller::ROOT;

/// A volume with a directory `dir`, in it a file `file` of three extents.
struct Volume {
    maintenance: Arc<Maintenance>,
    dir: Ino,
    file: Ino,
}

impl Volume {
    fn new() -> Self {
        let maintenance = volume::maintenance();
        let fs = Fs::open(Arc::clone(&maintenance), FsOptions::default()).unwrap();
        let dir = fs
            .names()
            .mkdir(ROOT, Ino::ROOT, b"dir", 0o755)
            .unwrap()
            .ino;
        let flags = OpenFlags::read_write();
        let (attr, handle) = fs.names().create(ROOT, dir, b"file", 0o644, flags).unwrap();
        for index in 0..3 {
            let offset = index * 10_000;
            fs.writer()
                .write(handle, offset, &[1; 5_000], WriteFlags::default())
                .unwrap();
        }
        fs.open_files().release(handle).unwrap();
        Self {
            maintenance,
            dir,
            file: attr.ino,
        }
    }

    fn inode(&self, ino: Ino) -> Inode {
        let value = self
            .maintenance
            .transactions()
            .get(&key::inode(ino))
            .unwrap()
            .unwrap();
        Inode::decode(&value).unwrap()
    }

    /// Puts an inode with a change into `batch`.
    fn change(&self, batch: &mut Batch, ino: Ino, change: impl FnOnce(&mut Inode)) {
        let mut inode = self.inode(ino);
        change(&mut inode);
        batch.put(key::inode(ino), inode.encode());
    }

    fn last_extent(&self) -> Extent {
        let key = key::extent(self.file, 25_000);
        Extent::decode(&self.maintenance.transactions().get(&key).unwrap().unwrap()).unwrap()
    }

    fn check(&self, repair: bool) -> CheckReport {
        check(&self.maintenance, repair).unwrap()
    }
}

/// A volume of 2+1 on three disks with a file of four stripes, all of which lie on the disks.
struct OnDisks {
    disks: Vec<MemDisk>,
    maintenance: Arc<Maintenance>,
    fs: Arc<Fs>,
    /// The file of the segment that they are in.
    segment: String,
}

impl OnDisks {
    fn new() -> Self {
        let disks = volume::disks(3, 2, 1);
        let maintenance = volume::open(&disks, 0);
        let fs = Fs::open(Arc::clone(&maintenance), FsOptions::default()).unwrap();
        let flags = OpenFlags::read_write();
        let (_, handle) = fs
            .names()
            .create(ROOT, Ino::ROOT, b"file", 0o644, flags)
            .unwrap();
        fs.writer()
            .write(handle, 0, &vec![1; 500_000], WriteFlags::default())
            .unwrap();
        fs.open_files().release(handle).unwrap();
        fs.syncfs().unwrap();
        maintenance.transactions().checkpoint().unwrap();
        assert_eq!(check(&maintenance, false).unwrap().findings, []);
        let (segment, _) = disks[1].open().list("segments").unwrap().remove(0);
        Self {
            disks,
            maintenance,
            fs,
            segment,
        }
    }
}

/// Returns what a check finds, and whether it was repaired.
fn findings(maintenance: &Arc<Maintenance>, repair: bool) -> Vec<(FindingKind, bool)> {
    let report = check(maintenance, repair).unwrap();
    let findings = report.findings.into_iter();
    findings.map(|it| (it.kind, it.repaired)).collect()
}

/// Breaks a volume, and checks that the first thing found is `kind` of `path`; if it can be repaired, that
/// nothing is left of it then.
fn found(
    what: &str,
    damage: impl FnOnce(&Volume, &mut Batch),
    kind: impl FnOnce(&Volume) -> FindingKind,
    path: Option<&str>,
    repairable: bool,
) {
    let volume = Volume::new();
    assert_eq!(volume.check(false).findings, [], "{what}: sound before");
    let mut batch = Batch::default();
    damage(&volume, &mut batch);
    volume.maintenance.transactions().apply(batch).unwrap();
    let report = volume.check(false);
    let first = report.findings.first().expect(what);
    assert_eq!(first.kind, kind(&volume), "{what}");
    let found_path = first.path.as_deref().map(String::from_utf8_lossy);
    assert_eq!(found_path.as_deref(), path, "{what}");
    assert!(!first.repaired);
    assert_eq!(
        volume.check(false),
        report,
        "{what}: looking changes nothing"
    );
    let repaired = volume.check(true);
    assert_eq!(repaired.findings[0].repaired, repairable, "{what}");
    assert_eq!(
        volume.check(false).findings.is_empty(),
        repairable,
        "{what}: repaired"
    );
}

#[test]
fn every_fault_of_names_is_found_and_repaired() {
    found(
        "a name without an inode",
        |_, batch| {
            let entry = Dirent {
                ino: Ino(99),
                kind: FileKind::Regular,
                cookie: Cookie(9),
            };
            batch.put(key::dirent(Ino::ROOT, b"stray"), entry.encode());
        },
        |_| FindingKind::NameWithoutInode,
        Some(""),
        true,
    );
    found(
        "a name of another kind",
        |volume, batch| {
            let cookie = Cookie(1);
            let entry = Dirent {
                ino: volume.file,
                kind: FileKind::Fifo,
                cookie,
            };
            batch.put(key::dirent(volume.dir, b"file"), entry.encode());
        },
        |_| FindingKind::NameOfOtherKind,
        Some("dir/file"),
        true,
    );
    found(
        "a name without a position",
        |volume, batch| batch.delete(key::position(volume.dir, Cookie(1))),
        |_| FindingKind::NameWithoutPosition,
        Some("dir/file"),
        true,
    );
    found(
        "a position without a name",
        |volume, batch| {
            let name = b"ghost".to_vec();
            let position = Position {
                ino: volume.file,
                kind: FileKind::Regular,
                name,
            };
            batch.put(key::position(volume.dir, Cookie(7)), position.encode());
        },
        |_| FindingKind::PositionWithoutName,
        Some("dir"),
        true,
    );
    found(
        "a file that lost its name",
        |volume, batch| {
            batch.delete(key::dirent(volume.dir, b"file"));
            batch.delete(key::position(volume.dir, Cookie(1)));
            volume.change(batch, volume.dir, |inode| inode.size = 0);
        },
        |_| FindingKind::Nameless,
        None,
        true,
    );
}

#[test]
fn every_fault_of_inodes_is_found_and_repaired() {
    found(
        "wrong links",
        |volume, batch| {
            volume.change(batch, volume.file, |inode| inode.links = 3);
        },
        |_| FindingKind::WrongLinks {
            recorded: 3,
            counted: 1,
        },
        Some("dir/file"),
        true,
    );
    found(
        "wrong entries",
        |volume, batch| {
            volume.change(batch, volume.dir, |inode| inode.size = 5);
        },
        |_| FindingKind::WrongEntries,
        Some("dir"),
        true,
    );
    found(
        "a cookie that will be used twice",
        |volume, batch| {
            let next_cookie = Cookie(1);
            let dir = Inode {
                next_cookie,
                ..volume.inode(volume.dir)
            };
            batch.put(key::inode(volume.dir), dir.encode());
        },
        |_| FindingKind::WrongEntries,
        Some("dir"),
        true,
    );
    found(
        "a wrong parent",
        |volume, batch| {
            let parent = volume.file;
            let dir = Inode {
                parent,
                ..volume.inode(volume.dir)
            };
            batch.put(key::inode(volume.dir), dir.encode());
        },
        |_| FindingKind::WrongParent,
        Some("dir"),
        true,
    );
    found(
        "an orphan without a mark",
        |volume, batch| {
            let inode = Inode {
                links: 0,
                allocated_bytes: 0,
                unwritten_bytes: 0,
                ..volume.inode(volume.file)
            };
            batch.put(key::inode(Ino(99)), inode.encode());
        },
        |_| FindingKind::Unmarked,
        None,
        true,
    );
    found(
        "attributes of nothing",
        |_, batch| batch.put(key::xattr(Ino(99), b"user.a"), Xattr(Vec::new()).encode()),
        |_| FindingKind::AttributeWithoutInode,
        None,
        true,
    );
    found(
        "an inode that does not decode",
        |volume, batch| batch.put(key::inode(volume.file), Marker.encode()),
        |_| FindingKind::Damaged(Inode::decode(&Marker.encode()).unwrap_err()),
        Some("dir/file"),
        false,
    );
}

#[test]
fn wrong_counts_of_unwritten_bytes_are_found_and_repaired() {
    found(
        "wrong unwritten bytes",
        |volume, batch| {
            volume.change(batch, volume.file, |inode| inode.unwritten_bytes = 1);
        },
        |_| FindingKind::WrongUnwritten {
            recorded: 1,
            counted: 0,
        },
        Some("dir/file"),
        true,
    );
    found(
        "a mark of unwritten extents where there are none",
        |volume, batch| batch.put(key::unwritten(volume.file), Marker.encode()),
        |_| FindingKind::WrongUnwritten {
            recorded: 0,
            counted: 0,
        },
        Some("dir/file"),
        true,
    );
}

#[test]
fn every_fault_of_extents_is_found_and_repaired() {
    found(
        "wrong allocation",
        |volume, batch| {
            volume.change(batch, volume.file, |inode| inode.allocated_bytes = 1);
        },
        |_| FindingKind::WrongAllocation {
            recorded: 1,
            counted: 15_000,
        },
        Some("dir/file"),
        true,
    );
    found(
        "an extent its stripe does not know of",
        |volume, batch| {
            let stripe = volume.last_extent().stripe;
            batch.delete(key::backref(stripe, volume.file, 25_000));
        },
        |volume| FindingKind::ExtentWithoutBackref(volume.last_extent().stripe),
        Some("dir/file"),
        true,
    );
    found(
        "a stripe that knows of no extent",
        |volume, batch| {
            let stripe = volume.last_extent().stripe;
            let backref = Backref {
                len: 5,
                stripe_offset: 0,
            };
            batch.put(key::backref(stripe, volume.file, 77_777), backref.encode());
        },
        |volume| FindingKind::BackrefWithoutExtent(volume.last_extent().stripe),
        Some("dir/file"),
        true,
    );
    found(
        "an extent of nothing",
        |volume, batch| {
            let extent = volume.last_extent();
            let backref = Backref {
                len: extent.len,
                stripe_offset: extent.stripe_offset,
            };
            batch.put(key::extent(Ino(99), 5_000), extent.encode());
            batch.put(
                key::backref(extent.stripe, Ino(99), 5_000),
                backref.encode(),
            );
        },
        |_| FindingKind::ExtentWithoutFile,
        None,
        true,
    );
    found(
        "an extent behind the end",
        |volume, batch| {
            volume.change(batch, volume.file, |inode| inode.size = 24_000);
        },
        |_| FindingKind::BehindEnd,
        Some("dir/file"),
        true,
    );
    found(
        "bytes in a stripe that is not there",
        |volume, batch| {
            let mut extent = volume.last_extent();
            let backref = Backref {
                len: extent.len,
                stripe_offset: 0,
            };
            batch.delete(key::backref(extent.stripe, volume.file, 25_000));
            extent.stripe = StripeId(999);
            extent.stripe_offset = 0;
            batch.put(key::extent(volume.file, 25_000), extent.encode());
            batch.put(
                key::backref(extent.stripe, volume.file, 25_000),
                backref.encode(),
            );
        },
        |_| FindingKind::ExtentWithoutStripe(StripeId(999)),
        Some("dir/file"),
        false,
    );
}

#[test]
fn a_file_whose_cutting_a_crash_interrupted_is_cut_at_the_next_mount() {
    let volume = Volume::new();
    let file = Inode {
        size: 2_000,
        ..volume.inode(volume.file)
    };
    let mut batch = Batch::default();
    batch.put(key::inode(volume.file), file.encode());
    batch.put(key::orphan(volume.file), Marker.encode());
    volume.maintenance.transactions().apply(batch).unwrap();
    assert_eq!(volume.check(false).findings, [], "a mark explains it");
    let fs = Fs::open(Arc::clone(&volume.maintenance), FsOptions::default()).unwrap();
    assert_eq!(fs.attributes().get(volume.file).unwrap().blocks_512, 4);
    fs.wait_for_removal();
    let report = volume.check(false);
    assert_eq!((report.findings, report.extents), (vec![], 1));
    assert!(
        volume
            .maintenance
            .transactions()
            .get(&key::orphan(volume.file))
            .unwrap()
            .is_none()
    );
}

#[test]
fn an_inode_whose_removal_a_crash_interrupted_is_removed_at_the_next_mount() {
    let volume = Volume::new();
    let fs = Fs::open(Arc::clone(&volume.maintenance), FsOptions::default()).unwrap();
    let handle = fs
        .open_files()
        .open(ROOT, volume.file, OpenFlags::read_write())
        .unwrap();
    fs.names().unlink(volume.dir, b"file").unwrap();
    assert_eq!(volume.check(false).inodes, 3);
    // Not closed, and not unmounted.
    assert!(fs.reader().read(handle, 0, &mut [0]).is_ok());
    drop(fs);
    let fs = Fs::open(Arc::clone(&volume.maintenance), FsOptions::default()).unwrap();
    fs.wait_for_removal();
    let report = volume.check(false);
    assert_eq!(
        (report.findings, report.inodes, report.extents),
        (vec![], 2, 0)
    );
}

#[test]
fn a_stripe_that_a_crash_left_without_a_file_is_no_fault_and_freed_after_the_next_mount() {
    let disks = volume::disks(3, 2, 1);
    let maintenance = volume::open(&disks, 0);
    let written = maintenance.transactions().write(&vec![1; 300_000]).unwrap();
    maintenance.transactions().sync().unwrap();
    // The daemon is killed before the file learns of its bytes.
    drop((written, maintenance));
    let disks: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
    let maintenance = volume::open(&disks, 0);
    let report = check(&maintenance, false).unwrap();
    assert_eq!((report.findings, report.unclaimed), (vec![], 3));
    for _ in 0..4 {
        maintenance.reaper().reap().unwrap();
        maintenance.transactions().sync().unwrap();
    }
    let report = check(&maintenance, false).unwrap();
    assert_eq!((report.stripes, report.unclaimed), (0, 0));
}

#[test]
fn a_segment_file_that_is_gone_or_cut_short_is_named_with_the_shards_it_lacks() {
    let volume = OnDisks::new();
    volume.fs.close().unwrap();
    let (store, name) = (volume.disks[1].open(), &volume.segment);
    let missing = |found, shards| {
        let file = format!("disk1/{name}");
        let kind = FindingKind::ShardsMissing {
            file,
            found,
            shards,
        };
        vec![(kind, false)]
    };
    // Of each stripe it has one of two data shards of 64 KiB, or parity.
    store.truncate(name, 100_000).unwrap();
    assert_eq!(
        findings(&volume.maintenance, true),
        missing(Some(100_000), 3)
    );
    store.remove(name).unwrap();
    assert_eq!(findings(&volume.maintenance, true), missing(None, 4));
}

/// Only the first of the two checks finds it: the name is gone then, and so is the file.
#[test]
fn lost_data_stays_lost_when_the_records_are_checked_again() {
    let volume = Volume::new();
    let mut batch = Batch::default();
    let entry = Dirent {
        ino: Ino(99),
        kind: FileKind::Regular,
        cookie: Cookie(9),
    };
    batch.put(key::dirent(Ino::ROOT, b"stray"), entry.encode());
    volume.maintenance.transactions().apply(batch).unwrap();
    let mut report = volume.check(true);
    assert_eq!(report.lost, 1);
    check_again(&volume.maintenance, &mut report).unwrap();
    assert_eq!(volume.check(false).findings, []);
    assert_eq!((report.lost, report.repaired), (1, report.found));
}

/// The repair of shards begins with taking them out of the records, so that nothing names them when it fails.
#[test]
fn shards_are_repaired_only_once_none_is_missing() {
    for (is_readable, is_repaired) in [(true, true), (false, false)] {
        let OnDisks {
            disks,
            maintenance,
            fs,
            segment,
        } = OnDisks::new();
        disks[1].open().remove(&segment).unwrap();
        if !is_readable {
            assert!(disks[0].corrupt(&segment, 0, |bytes| bytes[0] ^= 1, 1));
        }
        let mut report = check(&maintenance, true).unwrap();
        assert_eq!((report.found, report.repaired), (1, 0));
        let locks = &*fs.inode_locks();
        let go_on = |_: &ScrubStatus| ControlFlow::Continue(());
        maintenance
            .scrubber()
            .scrub(locks, None, go_on)
            .unwrap()
            .unwrap();
        let missing = maintenance
            .redundancy()
            .redundancy()
            .unwrap()
            .missing_shards();
        check_again(&maintenance, &mut report).unwrap();
        assert_eq!(missing == 0, is_repaired, "{missing}");
        assert_eq!(report.findings[0].repaired, is_repaired);
        assert_eq!(report.repaired, u64::from(is_repaired));
    }
}

/// The shards that an absent member has or lacks say nothing of a file that is there again.
#[test]
fn a_file_that_was_restored_is_repaired_although_a_member_is_away() {
    for lost in [true, false] {
        let disks = volume::disks(4, 2, 2);
        let maintenance = volume::open(&disks, 0);
        let fs = Fs::open(Arc::clone(&maintenance), FsOptions::default()).unwrap();
        let flags = OpenFlags::read_write();
        let (_, handle) = fs
            .names()
            .create(ROOT, Ino::ROOT, b"file", 0o644, flags)
            .unwrap();
        fs.writer()
            .write(handle, 0, &vec![1; 500_000], WriteFlags::default())
            .unwrap();
        fs.open_files().release(handle).unwrap();
        fs.syncfs().unwrap();
        maintenance.transactions().checkpoint().unwrap();
        disks[3].fail(Some(StoreErrorKind::Io));
        maintenance.transactions().members().probe();
        assert_eq!(
            maintenance
                .transactions()
                .members()
                .membership()
                .away()
                .len(),
            1
        );
        let store = disks[1].open();
        let (name, _) = store.list("segments").unwrap().remove(0);
        let content = |store: &dyn Store| {
            let len = store.open_len(&name).unwrap();
            let mut bytes = vec![0; usize::try_from(len).unwrap()];
            store.read_at(&name, 0, &mut bytes).map(|()| bytes).unwrap()
        };
        let whole = content(&store);
        store.remove(&name).unwrap();
        if lost {
            // And what is left is too little.
            assert!(disks[0].corrupt(&name, 0, |bytes| bytes[0] ^= 1, 1));
        }
        let mut report = check(&maintenance, true).unwrap();
        assert_eq!((report.found, report.repaired), (1, 0));
        let go_on = |_: &ScrubStatus| ControlFlow::Continue(());
        maintenance
            .scrubber()
            .scrub(&*fs.inode_locks(), None, go_on)
            .unwrap()
            .unwrap();
        assert!(
            maintenance
                .redundancy()
                .redundancy()
                .unwrap()
                .missing_shards()
                > 0
        );
        check_again(&maintenance, &mut report).unwrap();
        assert_eq!(report.findings[0].repaired, !lost, "{report:?}");
        assert_eq!(report.repaired, u64::from(!lost));
        if !lost {
            let restored = content(&store);
            let (shards, rest) = whole.split_at(restored.len());
            assert!(restored.contains(&1) && !rest.contains(&1));
            assert!(restored == shards, "byte for byte");
        }
    }
}

#[test]
fn a_missing_copy_of_the_index_is_found_and_made_once_there_is_room() {
    let disks = volume::disks(3, 2, 1);
    let has_copy = |disk: &MemDisk| disk.open().open_len("index").is_ok();
    let (holders, others): (Vec<_>, Vec<_>) = disks.iter().partition(|disk| has_copy(disk));
    assert_eq!((holders.len(), others.len()), (2, 1));
    holders[0].open().remove("index").unwrap();
    holders[0].set_capacity(0);
    others[0].set_capacity(0);
    let maintenance = volume::open(&disks, 0);
    let found = |repair| findings(&maintenance, repair);
    let missing = FindingKind::CopiesMissing {
        found: 1,
        wanted: 2,
    };
    assert_eq!(found(false), [(missing.clone(), false)]);
    assert_eq!(found(true), [(missing.clone(), false)], "there is no room");
    for disk in &disks {
        disk.set_capacity(1 << 30);
    }
    let mut batch = Batch::default();
    batch.put(key::perhaps_dead(StripeId(7)), Marker.encode());
    maintenance.transactions().apply(batch).unwrap();
    maintenance.transactions().checkpoint().unwrap();
    assert_eq!(found(true), [(missing, true)]);
    assert_eq!(found(false), []);
    let copies = disks.iter().filter(|disk| has_copy(disk)).count();
    assert_eq!(copies, 2);
}

/// An index is repaired once it is as it should be: one more copy of the two that are missing is not enough.
#[test]
fn an_index_that_has_more_copies_than_before_and_still_too_few_is_not_repaired() {
    let disks = volume::disks(3, 1, 2);
    for disk in &disks[1..] {
        disk.open().remove("index").unwrap();
        disk.set_capacity(0);
    }
    let maintenance = volume::open(&disks, 0);
    let mut report = check(&maintenance, true).unwrap();
    let missing = |found| FindingKind::CopiesMissing { found, wanted: 3 };
    assert_eq!(report.findings[0].kind, missing(1));
    assert_eq!((report.found, report.repaired), (1, 0));
    disks[1].set_capacity(1 << 30);
    let mut batch = Batch::default();
    batch.put(key::perhaps_dead(StripeId(7)), Marker.encode());
    maintenance.transactions().apply(batch).unwrap();
    maintenance.transactions().checkpoint().unwrap();
    maintenance
        .transactions()
        .commits()
        .complete_index()
        .unwrap();
    check_again(&maintenance, &mut report).unwrap();
    assert_eq!(report.findings[0].kind, missing(2), "as it is by now");
    assert!(!report.findings[0].repaired);
    assert_eq!(report.repaired, 0);
    let has_copy = |disk: &MemDisk| disk.open().open_len("index").is_ok();
    assert_eq!(disks.iter().filter(|disk| has_copy(disk)).count(), 2);
}

#[test]
fn all_paths_of_files_are_found_around_damaged_records() {
    let volume = Volume::new();
    let fs = Fs::open(Arc::clone(&volume.maintenance), FsOptions::default()).unwrap();
    let deep = fs
        .names()
        .mkdir(ROOT, volume.dir, b"deep", 0o755)
        .unwrap()
        .ino;
    fs.names().link(volume.file, deep, b"twin").unwrap();
    fs.names().link(volume.file, Ino::ROOT, b"top").unwrap();
    let broken = fs
        .names()
        .mkdir(ROOT, Ino::ROOT, b"broken", 0o755)
        .unwrap()
        .ino;
    let inside = fs
        .names()
        .mknod(ROOT, broken, b"inside", 0o644, 0)
        .unwrap()
        .ino;
    let alone = fs
        .names()
        .mknod(ROOT, Ino::ROOT, b"alone", 0o644, 0)
        .unwrap()
        .ino;
    let flags = OpenFlags::read_write();
    let (nameless, _handle) = fs.names().tmpfile(ROOT, deep, 0o600, flags).unwrap();
    let mut batch = Batch::default();
    for damaged in [
        key::inode(broken),
        key::inode(alone),
        key::dirent(deep, b"a"),
    ] {
        batch.put(damaged, "no record");
    }
    volume.maintenance.transactions().apply(batch).unwrap();
    let paths = |inos: &[Ino], most| {
        let found = fs.paths_of(&inos.iter().copied().collect(), most).unwrap();
        let text = |path: Vec<u8>| String::from_utf8(path).unwrap();
        found.into_iter().map(text).collect::<Vec<_>>()
    };
    let names = ["dir/deep/twin", "dir/file", "top"];
    assert_eq!(paths(&[volume.file], 10), names);
    assert_eq!(paths(&[volume.file], 2).len(), 2);
    let all = [
        volume.file,
        inside,
        alone,
        nameless.ino,
        deep,
        Ino::ROOT,
        Ino(9999),
    ];
    assert_eq!(
        paths(&all, 10),
        ["", "alone", "dir/deep", "dir/deep/twin", "dir/file", "top"]
    );
}
