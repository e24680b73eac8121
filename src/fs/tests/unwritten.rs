//! Room that is kept for unwritten extents, seen from inside.

use super::*;
use crate::format::record::Marker;
use crate::format::{Ino, Record, key};
use crate::fs::{Allocation, Handle, OpenFlags, WriteFlags};
use crate::metadata::Batch;

const MIB: u64 = 1 << 20;

fn file(fs: &Fs, name: &[u8]) -> (Ino, Handle) {
    let flags = OpenFlags::read_write();
    let (attr, handle) = fs
        .names()
        .create(ROOT, Ino::ROOT, name, 0o644, flags)
        .unwrap();
    (attr.ino, handle)
}

fn allocate(fs: &Fs, handle: Handle, len: u64) {
    let mode = Allocation::Allocate;
    fs.writer().fallocate(ROOT, handle, mode, 0, len).unwrap();
}

#[test]
fn the_room_of_a_range_admits_one_write_at_a_time() {
    let fs = open(&create(64 << 20, None));
    let (ino, handle) = file(&fs, b"file");
    allocate(&fs, handle, MIB);
    let room = fs.transactions.unwritten_room();
    let claim = room.claim(ino, &(0..8192), true).expect("no one has it");
    assert!(room.claim(ino, &(4096..12288), false).is_none());
    drop(
        room.claim(ino, &(8192..12288), false)
            .expect("it is beside"),
    );
    drop(
        room.claim(Ino(99), &(0..8192), false)
            .expect("of another file"),
    );
    let write = |at_once| {
        let flags = WriteFlags {
            at_once,
            ..WriteFlags::default()
        };
        fs.writer().write(handle, 4096, &[7; 4096], flags)
    };
    let refused = write(true);
    assert!(
        matches!(refused, Err(crate::fs::FsError::NoSpace)),
        "{refused:?}"
    );
    drop(claim);
    assert_eq!(write(true).unwrap(), 4096);
}

#[test]
fn bytes_in_flight_are_no_room_for_an_allocation() {
    let fs = open(&create(64 << 20, None));
    let (_, handle) = file(&fs, b"file");
    allocate(&fs, handle, MIB);
    let room = fs.transactions.unwritten_room();
    let free = fs.transactions.space().usable_free;
    let half = room.allocate(free / 2).expect("there is room");
    assert!(room.allocate(free / 2).is_err());
    drop(half);
    drop(room.allocate(free / 2).expect("there is room again"));
    let mut claim = room
        .claim(Ino(99), &(0..free), true)
        .expect("no one has it");
    claim.cover(free / 2);
    assert!(room.allocate(free / 2).is_err());
    drop(claim);
    assert!(room.allocate(free / 2).is_ok());
}

/// The record of an inode is damaged: its extents tell how much room it keeps.
#[test]
fn room_is_kept_for_extents_of_a_file_whose_record_is_damaged() {
    let disks = create(64 << 20, None);
    let fs = open(&disks);
    let (ino, handle) = file(&fs, b"file");
    allocate(&fs, handle, 3 * MIB);
    let (_, other) = file(&fs, b"other");
    allocate(&fs, other, MIB);
    assert_eq!(fs.transactions.stripes.space().unwritten(), 4 * MIB);
    let mut batch = Batch::default();
    batch.put(key::inode(ino), Marker.encode());
    fs.transactions.apply(batch).unwrap();
    fs.syncfs().unwrap();
    let cut: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
    drop(fs);
    let fs = open(&cut);
    assert_eq!(fs.transactions.stripes.space().unwritten(), 4 * MIB);
}

/// Lost bytes are neither zeros nor forgotten where room was kept for them.
#[test]
fn a_failed_writeback_of_allocated_bytes_fails_reads_until_they_are_written() {
    let fs = open(&create(64 << 20, None));
    let (ino, handle) = file(&fs, b"file");
    allocate(&fs, handle, MIB);
    fs.failed_writeback.note(ino, 8192, 4096);
    let mut out = vec![0; 4096];
    assert!(fs.reader().read(handle, 8192, &mut out).is_err());
    assert_eq!(fs.reader().read(handle, 0, &mut out).unwrap(), 4096);
    assert_eq!(fs.transactions.stripes.space().unwritten(), MIB - 4096);
    let flags = WriteFlags::default();
    fs.writer().write(handle, 8192, &[5; 4096], flags).unwrap();
    fs.reader().read(handle, 8192, &mut out).unwrap();
    assert_eq!(out, [5; 4096]);
}
