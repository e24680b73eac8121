//! Bytes that a kernel's page cache had taken, and that found no room when it wrote them back. A read there
//! returns an error or what was there before, never zeros that no program wrote.

use std::collections::BTreeSet;
use std::sync::Arc;

use cauchyfs::format::Ino;
use cauchyfs::fs::{
    Allocation, Changes, Fs, FsError, FsOptions, Handle, OpenFlags, Whence, WriteFlags,
};
use cauchyfs::store::MemDisk;

use crate::calls::{ROOT, create, read, sound, write};

use crate::volume;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// More ranges than the index notes when it is full.
const SCATTERED: u64 = 300;

/// A volume that is full of what can be removed again.
struct Full {
    disks: Vec<MemDisk>,
    fs: Arc<Fs>,
    filler: (Ino, Handle),
}

impl Full {
    /// Makes one with what `before` writes first.
    fn new<T>(before: impl FnOnce(&Fs) -> T) -> (Self, T) {
        let disks = volume::disks_of(48 << 20, 3, 2, 1);
        let fs = Fs::open(volume::open(&disks, 0), FsOptions::default()).unwrap();
        let made = before(&fs);
        let filler = create(&fs, "filler");
        let mut end = 0;
        let chunk = vec![7; 1 << 20];
        while write(&fs, filler.1, end, &chunk).is_ok() {
            end += MIB;
        }
        while write(&fs, filler.1, end, &chunk[..4096]).is_ok() {
            end += 4 * KIB;
        }
        (Self { disks, fs, filler }, made)
    }

    /// Adds what the index alone holds, until it takes no more.
    fn fill_index(&self) {
        let name = |number: u32| format!("{number:0240}");
        let full = (0..).find_map(|number| {
            let made = self
                .fs
                .names()
                .mkdir(ROOT, Ino::ROOT, name(number).as_bytes(), 0o755);
            made.err()
        });
        assert!(matches!(full, Some(FsError::NoSpace)), "{full:?}");
    }

    /// Has so much refused in a file that the index notes no more of that while it is full.
    fn exhaust(&self, scattered: Handle) {
        for piece in 0..SCATTERED {
            refused(&self.fs, scattered, 64 * KIB * piece, &bytes(2, 4 * KIB));
        }
    }

    fn make_room(&self) {
        self.fs.names().unlink(Ino::ROOT, b"filler").unwrap();
        self.fs.open_files().release(self.filler.1).unwrap();
        self.fs.open_files().forget(self.filler.0, 1);
        self.fs.wait_for_removal();
        self.fs.syncfs().unwrap();
    }

    /// Unmounts and mounts again.
    fn again(&mut self) {
        self.fs.close().unwrap();
        self.fs.maintenance().close().unwrap();
        self.disks = self.disks.iter().map(MemDisk::fork).collect();
        self.fs = Fs::open(volume::open(&self.disks, 0), FsOptions::default()).unwrap();
    }

    fn open(&self, name: &str) -> Handle {
        let ino = self
            .fs
            .names()
            .lookup(Ino::ROOT, name.as_bytes())
            .unwrap()
            .ino;
        let flags = OpenFlags::read_write();
        self.fs.open_files().open(ROOT, ino, flags).unwrap()
    }
}

fn bytes(seed: u8, len: u64) -> Vec<u8> {
    (0..len).map(|at| seed ^ (at % 251) as u8 | 1).collect()
}

/// Writes as the kernel writes back its pages.
fn write_back(fs: &Fs, handle: Handle, offset: u64, data: &[u8]) -> Result<usize, FsError> {
    let flags = WriteFlags {
        from_page_cache: true,
        ..WriteFlags::default()
    };
    fs.writer().write(handle, offset, data, flags)
}

#[track_caller]
fn refused(fs: &Fs, handle: Handle, offset: u64, data: &[u8]) {
    let refused = write_back(fs, handle, offset, data);
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
}

/// Says that no byte of a range can be read.
#[track_caller]
fn unreadable(fs: &Fs, handle: Handle, offset: u64, len: u64) {
    for at in [offset, offset + len / 2, offset + len - 1] {
        let read = fs.reader().read(handle, at, &mut [0]);
        assert!(
            matches!(read, Err(FsError::FailedWriteback { .. })),
            "{at}: {read:?}"
        );
    }
}

#[test]
fn lost_bytes_cannot_be_read_until_they_are_written_again_also_after_a_remount() {
    let start = bytes(1, 64 * KIB);
    let (mut full, (_, handle)) = Full::new(|fs| {
        let file = create(fs, "file");
        write_back(fs, file.1, 0, &bytes(1, 64 * KIB)).unwrap();
        file
    });
    let hole = bytes(2, 512 * KIB);
    refused(&full.fs, handle, 64 * KIB, &hole);
    refused(&full.fs, handle, 576 * KIB, &hole);
    let check = |fs: &Fs, handle| {
        assert_eq!(read(fs, handle, 0, 64 << 10), start);
        unreadable(fs, handle, 64 * KIB, MIB);
        let both = fs.reader().read(handle, 0, &mut vec![0; 128 << 10]);
        assert!(
            matches!(both, Err(FsError::FailedWriteback { .. })),
            "{both:?}"
        );
    };
    check(&full.fs, handle);
    full.make_room();
    check(&full.fs, handle);
    let end = bytes(3, MIB);
    write_back(&full.fs, handle, 3 * MIB, &end).unwrap();
    for _ in 0..2 {
        let handle = full.open("file");
        check(&full.fs, handle);
        // No program wrote this.
        assert_eq!(read(&full.fs, handle, 2 * MIB, 4096), [0; 4096]);
        assert_eq!(read(&full.fs, handle, 3 * MIB, 1 << 20), end);
        sound(&full.fs);
        full.again();
    }
    let handle = full.open("file");
    write_back(&full.fs, handle, 64 * KIB, &hole).unwrap();
    assert_eq!(read(&full.fs, handle, 64 * KIB, 512 << 10), hole);
    unreadable(&full.fs, handle, 576 * KIB, 512 * KIB);
    let len = 512 * KIB;
    full.fs
        .writer()
        .fallocate(ROOT, handle, Allocation::PunchHole, 576 * KIB, len)
        .unwrap();
    assert_eq!(read(&full.fs, handle, 576 * KIB, 4096), [0; 4096]);
    sound(&full.fs);
}

#[test]
fn a_hole_that_was_refused_behind_which_others_were_faster_stays_unreadable() {
    let (mut full, (_, handle)) = Full::new(|fs| {
        let file = create(fs, "file");
        write_back(fs, file.1, 2 * MIB, &bytes(1, MIB)).unwrap();
        file
    });
    refused(&full.fs, handle, MIB, &bytes(2, MIB));
    unreadable(&full.fs, handle, MIB, MIB);
    full.make_room();
    full.again();
    let handle = full.open("file");
    unreadable(&full.fs, handle, MIB, MIB);
    assert_eq!(read(&full.fs, handle, 2 * MIB, 1 << 20), bytes(1, MIB));
    sound(&full.fs);
}

#[test]
fn a_file_returns_its_earlier_bytes_where_a_writeback_failed() {
    let (full, (old, small)) = Full::new(|fs| {
        let (_, old) = create(fs, "old");
        write_back(fs, old, 0, &bytes(1, MIB)).unwrap();
        let (_, small) = create(fs, "small");
        write_back(fs, small, 0, &bytes(2, 100)).unwrap();
        (old, small)
    });
    refused(&full.fs, old, 0, &bytes(9, MIB));
    refused(&full.fs, small, 0, &bytes(9, 512 * KIB));
    let check = || {
        assert_eq!(read(&full.fs, old, 0, 1 << 20), bytes(1, MIB));
        assert_eq!(read(&full.fs, small, 0, 100), bytes(2, 100));
        unreadable(&full.fs, small, 100, 512 * KIB - 100);
    };
    check();
    full.make_room();
    // The first bytes of it leave the record now.
    write_back(&full.fs, small, MIB, &bytes(3, 4096)).unwrap();
    check();
    sound(&full.fs);
}

#[test]
fn lost_bytes_that_are_cut_off_or_forgotten_by_the_kernel_leave_no_trace() {
    let (full, files) = Full::new(|fs| {
        ["cut", "forgotten", "removed"].map(|name| {
            let file = create(fs, name);
            write_back(fs, file.1, 0, &bytes(1, 8 * KIB)).unwrap();
            file
        })
    });
    for (_, handle) in files {
        refused(&full.fs, handle, 8 * KIB, &bytes(2, MIB));
        unreadable(&full.fs, handle, 8 * KIB, MIB);
    }
    full.make_room();
    let size = |size| Changes {
        size: Some(size),
        ..Changes::default()
    };
    let [cut, forgotten, removed] = files;
    full.fs
        .attributes()
        .set(ROOT, cut.0, size(8 * KIB))
        .unwrap();
    full.fs
        .attributes()
        .set(ROOT, cut.0, size(2 * MIB))
        .unwrap();
    full.fs.names().unlink(Ino::ROOT, b"removed").unwrap();
    for file in [forgotten, removed] {
        full.fs.open_files().release(file.1).unwrap();
        full.fs.open_files().forget(file.0, 1);
    }
    let again = full.open("forgotten");
    full.fs
        .attributes()
        .set(ROOT, forgotten.0, size(2 * MIB))
        .unwrap();
    for handle in [cut.1, again] {
        assert_eq!(read(&full.fs, handle, 0, 8 << 10), bytes(1, 8 * KIB));
        assert_eq!(read(&full.fs, handle, 8 * KIB, 1 << 20), vec![0; 1 << 20]);
    }
    sound(&full.fs);
}

#[test]
fn lost_bytes_cannot_be_read_from_a_copy_either() {
    let (full, (_, handle)) = Full::new(|fs| {
        let file = create(fs, "file");
        write_back(fs, file.1, 2 * MIB, &bytes(1, MIB)).unwrap();
        file
    });
    refused(&full.fs, handle, MIB, &bytes(2, MIB));
    full.make_room();
    let (_, copy) = create(&full.fs, "copy");
    let copied = full
        .fs
        .writer()
        .copy_range(ROOT, handle, 0, copy, 0, 3 * MIB)
        .unwrap();
    assert_eq!(copied, 3 * MIB);
    assert_eq!(read(&full.fs, copy, 0, 1 << 20), vec![0; 1 << 20]);
    unreadable(&full.fs, copy, MIB, MIB);
    assert_eq!(read(&full.fs, copy, 2 * MIB, 1 << 20), bytes(1, MIB));
    sound(&full.fs);
}

/// Says where data and holes follow each other in a file.
fn map(fs: &Fs, handle: Handle) -> Vec<(u64, u64)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Ok(start) = fs.reader().seek(handle, at, Whence::Data) {
        at = fs.reader().seek(handle, start, Whence::Hole).unwrap();
        found.push((start, at));
    }
    found
}

#[test]
fn bytes_without_room_in_the_index_are_refused_to_copies_and_are_no_hole() {
    let (full, (hole, behind, small, scattered)) = Full::new(|fs| {
        let (_, hole) = create(fs, "hole");
        write_back(fs, hole, 2 * MIB, &bytes(1, MIB)).unwrap();
        let (_, behind) = create(fs, "behind");
        write_back(fs, behind, 0, &bytes(1, MIB)).unwrap();
        let (_, small) = create(fs, "small");
        write_back(fs, small, 0, &bytes(2, 100)).unwrap();
        let (_, scattered) = create(fs, "scattered");
        write_back(fs, scattered, 64 * KIB * SCATTERED, &bytes(2, 4096)).unwrap();
        (hole, behind, small, scattered)
    });
    full.fill_index();
    full.exhaust(scattered);
    refused(&full.fs, hole, 512 * KIB, &bytes(2, MIB));
    refused(&full.fs, behind, 2 * MIB, &bytes(2, MIB));
    refused(&full.fs, small, MIB, &bytes(2, MIB));
    assert_eq!(
        map(&full.fs, hole),
        [(512 * KIB, 1536 * KIB), (2 * MIB, 3 * MIB)]
    );
    assert_eq!(map(&full.fs, behind), [(0, MIB), (2 * MIB, 3 * MIB)]);
    assert_eq!(map(&full.fs, small), [(0, 100), (MIB, 2 * MIB)]);
    full.make_room();
    let (_, copy) = create(&full.fs, "copy");
    let copy_range = |from, at, len| full.fs.writer().copy_range(ROOT, from, at, copy, at, len);
    assert_eq!(copy_range(hole, 0, 3 * MIB).unwrap(), 3 * MIB);
    unreadable(&full.fs, copy, 512 * KIB, MIB);
    unreadable(&full.fs, hole, 512 * KIB, MIB);
    assert_eq!(read(&full.fs, copy, 0, 512 << 10), vec![0; 512 << 10]);
    assert_eq!(read(&full.fs, copy, 2 * MIB, 1 << 20), bytes(1, MIB));
    // A file can end early because what followed did not come. Its end is no end for a copy then.
    assert_eq!(copy_range(behind, 0, 3 * MIB).unwrap(), MIB);
    for (file, at) in [(behind, 2 * MIB), (behind, MIB), (small, MIB)] {
        let copied = copy_range(file, at, 4 * MIB);
        assert!(
            matches!(copied, Err(FsError::FailedWriteback { .. })),
            "{at}: {copied:?}"
        );
    }
    sound(&full.fs);
}

#[test]
fn lost_bytes_between_others_are_no_zeros_after_a_remount_of_a_full_volume() {
    let (mut full, handle) = Full::new(|fs| {
        let (_, handle) = create(fs, "file");
        write_back(fs, handle, 2 * MIB, &bytes(1, MIB)).unwrap();
        handle
    });
    full.fill_index();
    refused(&full.fs, handle, 512 * KIB, &bytes(2, MIB));
    for _ in 0..2 {
        full.again();
        let handle = full.open("file");
        unreadable(&full.fs, handle, 512 * KIB, MIB);
        assert_eq!(read(&full.fs, handle, 0, 512 << 10), vec![0; 512 << 10]);
        assert_eq!(read(&full.fs, handle, 2 * MIB, 1 << 20), bytes(1, MIB));
    }
    sound(&full.fs);
}

#[test]
fn ranges_that_a_full_index_cannot_note_leave_its_reserve_to_others() {
    let (mut full, (small, file)) = Full::new(|fs| {
        let (ino, small) = create(fs, "small");
        write_back(fs, small, 0, &bytes(2, 100)).unwrap();
        let size = Changes {
            size: Some(2 * MIB),
            ..Changes::default()
        };
        fs.attributes().set(ROOT, ino, size).unwrap();
        let (_, file) = create(fs, "file");
        write_back(fs, file, 2 * MIB, &bytes(1, MIB)).unwrap();
        (small, file)
    });
    full.fill_index();
    // Its first bytes would have to leave its record, and there is no room for them.
    for _ in 0..SCATTERED {
        refused(&full.fs, small, MIB, &bytes(2, 4 * KIB));
    }
    refused(&full.fs, file, 512 * KIB, &bytes(2, MIB));
    full.again();
    let file = full.open("file");
    unreadable(&full.fs, file, 512 * KIB, MIB);
    sound(&full.fs);
}

fn try_read(fs: &Fs, handle: Handle, offset: u64, len: usize) -> Result<Vec<u8>, FsError> {
    let mut out = vec![0xaa; len];
    let len = fs.reader().read(handle, offset, &mut out)?;
    out.truncate(len);
    Ok(out)
}

/// A file of which 5000 bytes are durable and 595,000 more were lost with their volume, open in the next one.
fn with_lost_end() -> (Arc<Fs>, Handle) {
    let disks = volume::disks_of(48 << 20, 3, 2, 1);
    let fs = Fs::open(volume::open(&disks, 0), FsOptions::default()).unwrap();
    let (_, handle) = create(&fs, "f");
    write(&fs, handle, 0, &bytes(1, 5000)).unwrap();
    fs.syncfs().unwrap();
    write(&fs, handle, 5000, &bytes(2, 595_000)).unwrap();
    let (kept, lost) = (fs.kept().clone(), fs.unsynced_changes());
    let disks: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
    drop(fs);
    let maintenance = volume::open(&disks, 0);
    let again = Fs::reopen(maintenance, FsOptions::default(), &kept, &lost).unwrap();
    (again, handle)
}

#[test]
fn a_writeback_that_failed_in_an_outage_is_reported_by_the_kernel_alone() {
    let disks = volume::disks_of(48 << 20, 3, 2, 1);
    let fs = Fs::open(volume::open(&disks, 0), FsOptions::default()).unwrap();
    let [(failed, handle), (lost, other)] = ["failed", "lost"].map(|name| create(&fs, name));
    fs.syncfs().unwrap();
    for handle in [handle, other] {
        write(&fs, handle, 0, &bytes(1, 5000)).unwrap();
    }
    let (kept, changes) = (fs.kept().clone(), fs.unsynced_changes());
    kept.note_failed_writeback(failed, 0, 4096);
    let disks: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
    drop(fs);
    let maintenance = volume::open(&disks, 0);
    let again = Fs::reopen(maintenance, FsOptions::default(), &kept, &changes).unwrap();
    assert_eq!(again.make_up(), BTreeSet::from([failed]));
    assert!(!again.take_loss(failed), "reported once more");
    assert!(again.take_loss(lost), "reported by no one");
    let found = try_read(&again, handle, 0, 1);
    let is_lost = matches!(found, Err(FsError::FailedWriteback { .. }));
    assert!(is_lost, "{found:?}");
}

/// The page in which the file of [`with_lost_end`] ended.
const LAST_PAGE: u64 = 598_016;

/// The end of that file.
const LOST_END: u64 = 600_000;

#[test]
fn the_last_bytes_that_an_outage_took_fail_once_a_write_leaves_their_page_behind() {
    for start in [602_112, 700_000] {
        let (fs, handle) = with_lost_end();
        write(&fs, handle, start, &bytes(3, 4096)).unwrap();
        for offset in [8192, 500_000, LAST_PAGE, 599_999] {
            let found = try_read(&fs, handle, offset, 1);
            let is_lost = matches!(found, Err(FsError::FailedWriteback { .. }));
            assert!(is_lost, "{start}: {offset}: {found:?}");
        }
        assert_eq!(read(&fs, handle, 600_000, 1), [0], "never written");
        assert_eq!(read(&fs, handle, 0, 5000), bytes(1, 5000));
        assert_eq!(read(&fs, handle, start, 4096), bytes(3, 4096));
        // They are readable once they are written again.
        write(&fs, handle, LAST_PAGE, &bytes(4, 4096)).unwrap();
        assert_eq!(read(&fs, handle, LAST_PAGE, 4096), bytes(4, 4096));
    }
}

/// The kernel reads and writes whole pages: it could not read what a program writes behind bytes that fail.
#[test]
fn a_program_can_write_on_in_the_page_in_which_its_file_ended_before_an_outage() {
    let (fs, handle) = with_lost_end();
    assert_eq!(read(&fs, handle, 4096, 4096).len(), 904);
    assert_eq!(read(&fs, handle, 598_016, 4096).len(), 0);
    write(&fs, handle, 600_000, &bytes(3, 4096)).unwrap();
    let page = read(&fs, handle, 598_016, 4096);
    assert_eq!(page[1984..], bytes(3, 4096)[..2112]);
    // The page may have been written as a whole, so nothing of it is lost any more.
    write(&fs, handle, 700_000, &bytes(4, 4096)).unwrap();
    assert_eq!(read(&fs, handle, 598_016, 4096), page);
}

/// Writes as a program does with `O_DIRECT`.
fn write_direct(fs: &Fs, handle: Handle, offset: u64, data: &[u8]) {
    let flags = WriteFlags {
        is_direct: true,
        ..WriteFlags::default()
    };
    let written = fs.writer().write(handle, offset, data, flags);
    assert_eq!(written.unwrap(), data.len());
}

fn set_size(fs: &Fs, size: u64) {
    let ino = fs.names().lookup(Ino::ROOT, b"f").unwrap().ino;
    let changes = Changes {
        size: Some(size),
        ..Changes::default()
    };
    fs.attributes().set(ROOT, ino, changes).unwrap();
}

/// Says which bytes of the last page cannot be read. Behind the end of the file, none can.
fn lost_in_last_page(fs: &Fs, handle: Handle) -> Vec<u64> {
    let page = LAST_PAGE..LAST_PAGE + 4096;
    let is_lost = |at: &u64| {
        let found = try_read(fs, handle, *at, 1);
        matches!(found, Err(FsError::FailedWriteback { .. }))
    };
    page.filter(is_lost).collect()
}

#[test]
fn a_direct_write_into_the_last_page_that_an_outage_took_leaves_the_rest_of_it_lost() {
    let data = bytes(3, 512);
    for start in [LAST_PAGE, LAST_PAGE + 512, LOST_END - 512, LOST_END] {
        let (fs, handle) = with_lost_end();
        write_direct(&fs, handle, start, &data);
        let written = start..start + 512;
        let before: Vec<u64> = (LAST_PAGE..start.min(LOST_END)).collect();
        assert_eq!(lost_in_last_page(&fs, handle), before, "{start}");
        assert_eq!(read(&fs, handle, start, 512), data, "{start}");
        // It reaches behind the page.
        write_direct(&fs, handle, 700_000, &data);
        let rest = (LAST_PAGE..LOST_END).filter(|at| !written.contains(at));
        let rest: Vec<u64> = rest.collect();
        assert_eq!(lost_in_last_page(&fs, handle), rest, "{start}");
        assert_eq!(read(&fs, handle, start, 512), data, "{start}");
        sound(&fs);
    }
}

/// The kernel sends changes of the size while direct writes are under way, in either order.
#[test]
fn a_change_of_the_size_beside_direct_writes_leaves_the_rest_of_the_last_page_lost() {
    let data = bytes(3, 512);
    let written = LAST_PAGE + 512..LAST_PAGE + 1024;
    for size in [LAST_PAGE + 2048, LOST_END, LOST_END + 1000, 700_000] {
        for is_first in [true, false] {
            let (fs, handle) = with_lost_end();
            if is_first {
                set_size(&fs, size);
            }
            write_direct(&fs, handle, written.start, &data);
            if !is_first {
                set_size(&fs, size);
            }
            let rest = (LAST_PAGE..size.min(LOST_END)).filter(|at| !written.contains(at));
            let rest: Vec<u64> = rest.collect();
            assert_eq!(lost_in_last_page(&fs, handle), rest, "{size} {is_first}");
            assert_eq!(read(&fs, handle, written.start, 512), data);
            assert!(try_read(&fs, handle, size, 1).unwrap().is_empty());
            sound(&fs);
        }
    }
}

/// A write from the page cache has the whole page.
#[test]
fn a_page_that_is_written_back_over_lost_bytes_can_be_read() {
    let (fs, handle) = with_lost_end();
    let page = bytes(3, LOST_END + 100 - LAST_PAGE);
    write_back(&fs, handle, LAST_PAGE, &page).unwrap();
    write_direct(&fs, handle, 700_000, &page);
    assert!(lost_in_last_page(&fs, handle).is_empty());
    assert_eq!(read(&fs, handle, LAST_PAGE, page.len()), page);
}
