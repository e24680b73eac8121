use std::time::{Duration, Instant};

use super::*;
use crate::fs::tests::{ROOT, create, open};
use crate::fs::{Fs, LINKS_MAX, LimitChange, QuotaLimits, RenameMode};
use crate::metadata::Batch;
use crate::store::{MemDisk, Store};

/// Bytes of each member.
const MEMBER_BYTES: u64 = 64 << 20;

/// A count is over by then, unless the machine stands still.
const LONG: Duration = Duration::from_secs(60);

fn mkdir(fs: &Fs, parent: Ino, name: &[u8]) -> Ino {
    fs.names().mkdir(ROOT, parent, name, 0o755).unwrap().ino
}

fn mknod(fs: &Fs, parent: Ino, name: &[u8]) -> Ino {
    let regular = libc::S_IFREG | 0o644;
    let made = fs.names().mknod(ROOT, parent, name, regular, 0);
    made.unwrap().ino
}

/// Gives a directory a quota whose count has not begun yet.
fn set_uncounted(fs: &Fs, directory: Ino) {
    let limits = QuotaLimits {
        bytes: LimitChange::Keep,
        files: LimitChange::Set(1000),
    };
    fs.quotas().set_once(directory, limits).unwrap();
}

fn count(fs: &Fs) {
    fs.quotas().counting.start();
    fs.quotas().wait();
}

/// Returns how many inodes the only quota counts, and whether it still counts.
fn counted(fs: &Fs) -> (u64, bool) {
    let report = &fs.quotas().list(None).unwrap()[0];
    (report.usage.files, report.is_counting)
}

fn put_raw(fs: &Fs, key: impl AsRef<[u8]>, value: &[u8]) {
    let mut batch = Batch::default();
    batch.put(key.as_ref().to_vec(), value.to_vec());
    fs.transactions.apply(batch).unwrap();
}

#[test]
fn damaged_inodes_and_entries_are_left_out_and_the_quota_comes_into_force() {
    let fs = open(&create(MEMBER_BYTES, None));
    let top = mkdir(&fs, Ino::ROOT, b"top");
    for name in [&b"a"[..], b"m", b"z"] {
        mknod(&fs, top, name);
    }
    let inner = mkdir(&fs, top, b"inner");
    mknod(&fs, inner, b"file");
    let damaged = fs.names().lookup(top, b"a").unwrap().ino;
    put_raw(&fs, key::inode(damaged), b"no inode");
    put_raw(&fs, key::dirent(top, b"m"), b"no entry");
    set_uncounted(&fs, top);
    count(&fs);
    assert_eq!(counted(&fs), (4, false), "top, z, inner and file");
}

/// A directory that names one above it has no end for a walk that knows no directory again.
#[test]
fn a_count_ends_where_a_damaged_name_leads_back() {
    let fs = open(&create(MEMBER_BYTES, None));
    let top = mkdir(&fs, Ino::ROOT, b"top");
    let inner = mkdir(&fs, top, b"inner");
    let own = fs.transactions.get(&key::dirent(top, b"inner")).unwrap();
    put_raw(&fs, key::dirent(inner, b"again"), &own.unwrap());
    set_uncounted(&fs, top);
    count(&fs);
    assert_eq!(counted(&fs), (2, false));
}

#[test]
fn a_count_that_finds_no_space_goes_on_by_itself_once_there_is_some() {
    let disks: Vec<MemDisk> = create(MEMBER_BYTES, None);
    let fs = open(&disks);
    let top = mkdir(&fs, Ino::ROOT, b"top");
    mknod(&fs, top, b"file");
    set_uncounted(&fs, top);
    let before: Vec<_> = disks
        .iter()
        .map(|disk| disk.open().space().unwrap())
        .collect();
    for (disk, space) in disks.iter().zip(&before) {
        disk.set_capacity(space.total_bytes - space.free_bytes);
    }
    fs.transactions().growth().measure_growth();
    count(&fs);
    assert_eq!(counted(&fs), (1, true));
    for (disk, space) in disks.iter().zip(&before) {
        disk.set_capacity(space.total_bytes);
    }
    fs.transactions().growth().measure_growth();
    let began = Instant::now();
    while counted(&fs).1 {
        assert!(began.elapsed() < LONG, "it is not tried again");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(counted(&fs), (2, false));
}

/// A file with as many names as it can have lies elsewhere, and gets no name in the directory that is counted.
#[test]
fn a_link_that_fails_during_a_count_leaves_its_file_uncharged() {
    let fs = open(&create(MEMBER_BYTES, None));
    let top = mkdir(&fs, Ino::ROOT, b"top");
    let outside = mknod(&fs, Ino::ROOT, b"outside");
    let mut inode = fs.inodes.get(outside).unwrap();
    inode.links = LINKS_MAX;
    put_raw(&fs, key::inode(outside), &inode.encode());
    set_uncounted(&fs, top);
    let counter = &fs.quotas().counting.counter;
    let (id, root) = counter.next().unwrap();
    let notes = fs.inodes.quotas().note_moves(id);
    let mut walk = Walk::new(id, root);
    assert_eq!(walk.next(), Some(top));
    assert!(counter.list(top, &mut walk).unwrap());
    let refused = fs.names().link(outside, top, b"linked");
    assert!(matches!(refused, Err(FsError::TooManyLinks)), "{refused:?}");
    assert_eq!(counter.finish(id, &notes).unwrap(), None);
    assert_eq!(counted(&fs), (1, false));
    assert_eq!(fs.inodes.get(outside).unwrap().quota, QuotaId::NONE);
}

/// Names that come into directories which were listed already.
#[test]
fn links_and_renames_behind_a_count_are_noted_until_they_are_counted() {
    let fs = open(&create(MEMBER_BYTES, None));
    let top = mkdir(&fs, Ino::ROOT, b"top");
    let [early, late] = [&b"early"[..], b"late"].map(|name| mkdir(&fs, top, name));
    let [moved, swapped] = [&b"moved"[..], b"other"].map(|name| mknod(&fs, late, name));
    mknod(&fs, early, b"there");
    let outside = mknod(&fs, Ino::ROOT, b"outside");
    set_uncounted(&fs, top);
    let counter = &fs.quotas().counting.counter;
    let (id, root) = counter.next().unwrap();
    let notes = fs.inodes.quotas().note_moves(id);
    let mut walk = Walk::new(id, root);
    for directory in [top, early] {
        assert!(counter.list(directory, &mut walk).unwrap());
    }
    let names = fs.names();
    names.link(outside, early, b"linked").unwrap();
    names
        .rename(ROOT, late, b"moved", early, b"moved", RenameMode::Replace)
        .unwrap();
    names
        .rename(ROOT, late, b"other", early, b"there", RenameMode::Exchange)
        .unwrap();
    assert!(counter.list(late, &mut walk).unwrap());
    let found = counter.finish(id, &notes).unwrap().unwrap();
    assert!(found.is_superset(&BTreeSet::from([outside, moved, swapped])));
    for ino in found {
        counter.visit(ino, &mut walk).unwrap();
    }
    assert_eq!(counter.finish(id, &notes).unwrap(), None);
    assert_eq!(counted(&fs), (7, false));
}

/// A count that has not begun, or waits, lists everything once it runs.
#[test]
fn moves_are_noted_only_while_a_count_runs() {
    let fs = open(&create(MEMBER_BYTES, None));
    let top = mkdir(&fs, Ino::ROOT, b"top");
    mknod(&fs, top, b"file");
    set_uncounted(&fs, top);
    let there_and_back = || {
        for (from, to) in [(b"file", b"name"), (b"name", b"file")] {
            fs.names()
                .rename(ROOT, top, from, top, to, RenameMode::Replace)
                .unwrap();
        }
    };
    let quotas = fs.inodes.quotas();
    there_and_back();
    let (id, _) = fs.quotas().counting.counter.next().unwrap();
    let notes = quotas.note_moves(id);
    assert_eq!(notes.take(), BTreeSet::new());
    there_and_back();
    assert_eq!(notes.take().len(), 1);
    drop(notes);
    there_and_back();
    assert!(quotas.moved.lock().is_none());
    count(&fs);
    assert_eq!(counted(&fs), (2, false));
}
