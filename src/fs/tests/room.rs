//! Callers that find no space while others make room.

use super::*;
use crate::format::{Ino, files};
use crate::fs::{FsError, RenameMode};
use crate::store::Store;

/// Two callers find no room for the index. The first moves the index while the second is about to ask for room.
#[test]
fn a_caller_tries_again_if_another_one_made_room_for_the_index_meanwhile() {
    let disks = disks(4, 64 << 20);
    let options = CreateOptions::new(Geometry::new(1, 1).unwrap());
    Transactions::create(&stores(&disks), &options, executor(HANG)).unwrap();
    let disks: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
    let maintenance = open_volume(&disks);
    let fs = Fs::open(Arc::clone(&maintenance), FsOptions::default()).unwrap();
    let growth = maintenance.transactions().growth();
    let is_full = |disk: &MemDisk| disk.open().open_len(files::INDEX).is_ok();
    let full = disks
        .iter()
        .find(|disk| is_full(disk))
        .expect("one has the index");
    let space = full.open().space().unwrap();
    full.set_capacity(space.total_bytes - space.free_bytes);
    growth.measure_growth();
    let mut attempts = 0;
    let outcome = fs.inodes.with_room(0, || {
        attempts += 1;
        let refused = growth.check_growth();
        if attempts == 1 {
            assert!(refused.is_err());
            assert!(maintenance.room().make_room(0, &**fs.inodes.locks())?);
        }
        Ok(refused?)
    });
    assert!(outcome.is_ok(), "{outcome:?}");
    assert_eq!(attempts, 2);
}

/// A whiteout takes room as any new inode does. A rename without one takes none.
#[test]
fn a_rename_that_finds_no_room_for_its_whiteout_changes_nothing() {
    let disks = create(64 << 20, None);
    let fs = open(&disks);
    let names = fs.names();
    let regular = libc::S_IFREG | 0o644;
    let made = names.mknod(ROOT, Ino::ROOT, b"old", regular, 0).unwrap();
    let replaced = names.mknod(ROOT, Ino::ROOT, b"new", regular, 0).unwrap();
    for disk in &disks {
        let space = disk.open().space().unwrap();
        disk.set_capacity(space.total_bytes - space.free_bytes);
    }
    fs.transactions().growth().measure_growth();
    let root = fs.attributes().get(Ino::ROOT).unwrap();
    let rename = |mode| names.rename(ROOT, Ino::ROOT, b"old", Ino::ROOT, b"new", mode);
    let refused = rename(RenameMode::Whiteout);
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
    let ino_of = |name: &[u8]| names.lookup(Ino::ROOT, name).unwrap().ino;
    assert_eq!((ino_of(b"old"), ino_of(b"new")), (made.ino, replaced.ino));
    assert_eq!(fs.attributes().get(Ino::ROOT).unwrap(), root);
    assert_eq!(fs.attributes().get(replaced.ino).unwrap(), replaced);
    rename(RenameMode::Replace).unwrap();
    assert_eq!(ino_of(b"new"), made.ino);
}

/// A kernel forgets a file on another thread than that of the program that removed it.
#[test]
fn a_caller_without_space_tries_again_after_a_removal_just_now_and_else_not_at_all() {
    let fs = open(&create(64 << 20, None));
    let regular = libc::S_IFREG | 0o644;
    let mut attempts = 0;
    let refused = fs.references.with_quota(|| {
        attempts += 1;
        Err::<(), _>(FsError::NoSpace)
    });
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
    assert_eq!(attempts, 1);
    // A thread may be held up for so long that a removal is no longer one of just now.
    let passes = (0..100).any(|_| {
        let made = fs.names().mknod(ROOT, Ino::ROOT, b"file", regular, 0);
        let ino = made.unwrap().ino;
        fs.names().unlink(Ino::ROOT, b"file").unwrap();
        std::thread::scope(|scope| {
            let mut forgets = Some(|| fs.open_files().forget(ino, 1));
            let outcome = fs.references.with_quota(|| {
                let is_left = fs.removal.is_left(ino);
                // It does so while the first attempt fails, or after that.
                if let Some(forget) = forgets.take() {
                    scope.spawn(forget);
                }
                if is_left {
                    return Err(FsError::NoSpace);
                }
                Ok(())
            });
            outcome.is_ok()
        })
    });
    assert!(passes);
}
