//! The parts of the room, each made without those that it does not depend on.

use std::sync::Arc;

use super::{ROOT, create, open_volume};
use crate::format::record::{FileKind, Inline, Inode};
use crate::format::{Ino, key};
use crate::fs::access_time::AccessTimes;
use crate::fs::edit::Edit;
use crate::fs::failed_writeback::FailedWriteback;
use crate::fs::inodes::Inodes;
use crate::fs::kept::Kept;
use crate::fs::reader::FileReader;
use crate::fs::references::References;
use crate::fs::removal::Removal;
use crate::fs::writer::FileWriter;
use crate::fs::xattr::Xattrs;
use crate::fs::{
    Allocation, AtimePolicy, Caller, FsError, FsOptions, Handle, OpenFlags, Whence, WriteFlags,
    XattrMode, root_inode,
};
use crate::transaction::Transactions;

/// Bytes of each member.
const MEMBER_BYTES: u64 = 256 << 20;

const FILE: Ino = Ino(7);

/// The data of files, on a volume without any name.
struct FileData {
    inodes: Arc<Inodes>,
    transactions: Arc<Transactions>,
    removal: Arc<Removal>,
    references: Arc<References>,
    failed_writeback: Arc<FailedWriteback>,
    xattrs: Arc<Xattrs>,
    reader: Arc<FileReader>,
    writer: FileWriter,
}

impl FileData {
    fn new() -> Self {
        let maintenance = open_volume(&create(MEMBER_BYTES, None));
        let transactions = Arc::clone(maintenance.transactions());
        let inodes = Arc::new(Inodes::new(
            &transactions,
            maintenance.room(),
            FsOptions::default().clock,
            None,
            false,
        ));
        let access_times = Arc::new(AccessTimes::new(
            &inodes,
            &transactions,
            AtimePolicy::NoAtime,
        ));
        let removal = Arc::new(Removal::new(&inodes, &transactions));
        let references = Arc::new(References::new(&Kept::none(), &removal));
        let failed_writeback = Arc::new(FailedWriteback::new(&inodes, &transactions));
        let xattrs = Arc::new(Xattrs::new(&inodes, &transactions));
        let reader = Arc::new(FileReader::new(
            &inodes,
            &transactions,
            &references,
            &failed_writeback,
            &access_times,
        ));
        let writer = FileWriter::new(
            &inodes,
            &transactions,
            &references,
            &xattrs,
            &failed_writeback,
            &removal,
            &reader,
        );
        Self {
            inodes,
            transactions,
            removal,
            references,
            failed_writeback,
            xattrs,
            reader,
            writer,
        }
    }

    /// Puts the record of an empty regular file.
    fn put_file(&self, links: u32) {
        let root = root_inode(0, 0, self.inodes.now());
        let inode = Inode {
            kind: FileKind::Regular,
            links,
            ..root
        };
        let mut edit = Edit::default();
        edit.put_inode(FILE, &inode);
        if links == 0 {
            edit.put_orphan(FILE);
        }
        self.inodes.apply(edit).unwrap();
    }

    fn open(&self) -> Handle {
        self.references.open_file(FILE, OpenFlags::read_write())
    }

    fn write(&self, handle: Handle, offset: u64, data: &[u8]) {
        let flags = WriteFlags::default();
        let written = self.writer.write(handle, offset, data, flags);
        assert_eq!(written.unwrap(), data.len());
    }

    fn read(&self, handle: Handle, offset: u64, len: usize) -> Result<Vec<u8>, FsError> {
        let mut out = vec![0xaa; len];
        let len = self.reader.read(handle, offset, &mut out)?;
        out.truncate(len);
        Ok(out)
    }
}

#[test]
fn a_reader_returns_what_a_writer_wrote_to_a_file_without_a_name() {
    let data = FileData::new();
    data.put_file(1);
    let handle = data.open();
    data.write(handle, 0, b"inline");
    data.write(handle, 100_000, &vec![7; 50_000]);
    let mut expected = vec![0; 150_000];
    expected[..6].copy_from_slice(b"inline");
    expected[100_000..].fill(7);
    assert_eq!(data.read(handle, 0, 200_000).unwrap(), expected);
    let found = data.reader.seek(handle, 6, Whence::Data).unwrap();
    assert_eq!(found, 100_000);
}

#[test]
fn writeback_puts_the_record_of_an_inode_only_if_it_changes_something_there() {
    let data = FileData::new();
    data.put_file(1);
    let handle = data.open();
    data.write(handle, 0, &[1; 3 * 4096]);
    data.transactions.sync().unwrap();
    let record = key::inode(FILE);
    for (offset, puts_record) in [(4096, false), (3 * 4096, true)] {
        let flags = WriteFlags {
            from_page_cache: true,
            ..WriteFlags::default()
        };
        data.writer
            .write(handle, offset, &[2; 4096], flags)
            .unwrap();
        let changed = data.transactions.unsynced_keys();
        assert!(!changed.is_empty(), "at {offset}");
        assert_eq!(changed.contains(&record), puts_record, "at {offset}");
    }
    let expected = [[1; 4096], [2; 4096], [1; 4096], [2; 4096]].concat();
    assert_eq!(data.read(handle, 0, 5 * 4096).unwrap(), expected);
}

#[test]
fn a_hole_cannot_be_read_where_a_writeback_failed_until_it_is_written() {
    let data = FileData::new();
    data.put_file(1);
    let handle = data.open();
    data.failed_writeback.note(FILE, 4096, 4096);
    data.write(handle, 8192, &[1; 4096]);
    assert_eq!(data.read(handle, 0, 4096).unwrap(), [0; 4096]);
    let lost = data.read(handle, 4096, 4096);
    assert!(
        matches!(lost, Err(FsError::FailedWriteback { offset: 4096, .. })),
        "{lost:?}"
    );
    data.write(handle, 4096, &[2; 4096]);
    assert_eq!(data.read(handle, 4096, 4096).unwrap(), [2; 4096]);
}

/// Data of a record moves into a stripe when an extent follows. After an outage, no stripe is open.
#[test]
fn a_file_with_lost_bytes_and_no_open_stripe_is_resized_and_zeroed_on_a_volume_with_room() {
    for offset in [0, 4096] {
        let data = FileData::new();
        data.put_file(1);
        let handle = data.open();
        data.write(handle, 0, b"inline");
        data.failed_writeback.note(FILE, 4096, 4096);
        if offset == 0 {
            let resize = || {
                let lock = data.inodes.locks().exclusive(&[FILE]);
                let inode = data.inodes.get(FILE)?;
                data.writer
                    .set_size(&lock, FILE, inode, Edit::default(), 20_000)
            };
            let resized = data.writer.with_stripe_for(FILE, resize);
            assert_eq!(resized.unwrap().size, 20_000);
        } else {
            let mode = Allocation::ZeroRange;
            let zeroed = data
                .writer
                .fallocate(&Caller::ROOT, handle, mode, 16_000, 4000);
            zeroed.unwrap();
        }
        let mut expected = vec![0; 4096];
        expected[..6].copy_from_slice(b"inline");
        assert_eq!(data.read(handle, 0, 4096).unwrap(), expected);
        assert!(
            data.read(handle, 4096, 4096).is_err(),
            "lost bytes are no zeros"
        );
        assert_eq!(data.read(handle, 8192, 20_000).unwrap(), [0; 20_000 - 8192]);
    }
}

#[test]
fn a_file_with_lost_bytes_is_cut_or_zeroed_over_them_without_a_stripe() {
    let data = FileData::new();
    data.put_file(1);
    let handle = data.open();
    data.write(handle, 0, b"inline");
    data.failed_writeback.note(FILE, 4096, 4096);
    let mode = Allocation::ZeroRange;
    data.writer
        .fallocate(&Caller::ROOT, handle, mode, 4096, 4096)
        .unwrap();
    let inode = data.inodes.get(FILE).unwrap();
    assert!(matches!(inode.inline, Inline::Data(_)), "nothing was lost");
    assert_eq!(data.read(handle, 4096, 4096).unwrap(), [0; 4096]);
    data.failed_writeback.note(FILE, 4096, 4096);
    for size in [6000, 4, 0] {
        let lock = data.inodes.locks().exclusive(&[FILE]);
        let inode = data.inodes.get(FILE).unwrap();
        let cut = data
            .writer
            .set_size(&lock, FILE, inode, Edit::default(), size);
        let cut = cut.unwrap().expect("no stripe is needed");
        assert_eq!((cut.size, cut.allocated_bytes), (size, 0));
        drop(lock);
        let lost = data.read(handle, 4096, 4096);
        assert_eq!(lost.is_err(), size > 4096, "{size}: {lost:?}");
    }
}

#[test]
fn lost_bytes_next_to_data_of_a_record_are_on_record_at_the_end() {
    let data = FileData::new();
    data.put_file(1);
    let handle = data.open();
    data.write(handle, 0, b"inline");
    let lock = data.inodes.locks().exclusive(&[FILE]);
    let inode = data.inodes.get(FILE).unwrap();
    let resized = data
        .writer
        .set_size(&lock, FILE, inode, Edit::default(), 20_000);
    assert!(resized.unwrap().is_some(), "nothing is lost yet");
    drop(lock);
    data.failed_writeback.note(FILE, 4096, 4096);
    assert_eq!(data.failed_writeback.files(), [FILE], "no stripe is open");
    data.failed_writeback.persist_all();
    assert_eq!(data.failed_writeback.files(), []);
    assert!(data.read(handle, 4096, 4096).is_err());
}

#[test]
fn the_last_release_of_a_file_without_a_name_removes_it_with_its_attributes() {
    let data = FileData::new();
    data.put_file(0);
    let handles = [data.open(), data.open()];
    data.references.nodes.nameless(FILE, false);
    data.write(handles[0], 0, &vec![3; 100_000]);
    data.xattrs
        .set(ROOT, FILE, b"user.colour", b"red", XattrMode::Create)
        .unwrap();
    data.references.release(handles[0]).unwrap();
    data.removal.wait();
    assert!(data.inodes.get(FILE).is_ok(), "a handle is open");
    data.references.release(handles[1]).unwrap();
    data.removal.wait();
    assert!(matches!(data.inodes.get(FILE), Err(FsError::NotFound)));
    assert_eq!(data.xattrs.value(FILE, b"user.colour").unwrap(), None);
    data.transactions.sync().unwrap();
}
