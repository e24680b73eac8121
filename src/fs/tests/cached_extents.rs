//! Extents in memory: a read never goes by extents that a change replaced.

use std::sync::atomic::{AtomicBool, Ordering};

use cauchyfs_testkit::pattern;

use super::{ROOT, create, open};
use crate::format::{Ino, key};
use crate::fs::{Allocation, Changes, Fs, FsError, Handle, OpenFlags, WriteFlags};

/// Bytes of each member.
const MEMBER_BYTES: u64 = 256 << 20;

const KIB: usize = 1 << 10;

fn file(fs: &Fs, name: &[u8]) -> (Ino, Handle) {
    let flags = OpenFlags::read_write();
    let made = fs.names().create(ROOT, Ino::ROOT, name, 0o644, flags);
    let (attr, handle) = made.unwrap();
    (attr.ino, handle)
}

fn write(fs: &Fs, handle: Handle, offset: usize, data: &[u8]) -> Result<(), FsError> {
    let flags = WriteFlags::default();
    let written = fs.writer().write(handle, offset as u64, data, flags)?;
    assert_eq!(written, data.len());
    Ok(())
}

fn set_size(fs: &Fs, ino: Ino, size: usize) {
    let change = Changes {
        size: Some(size as u64),
        ..Changes::default()
    };
    fs.attributes().set(ROOT, ino, change).unwrap();
}

/// Compares all of a file with `model`, in pieces of several lengths, twice each.
fn assert_reads(fs: &Fs, handle: Handle, model: &[u8], step: &str) {
    for len in [8 * 1024 * KIB, 700 * KIB, 4 * KIB, 100 * KIB + 1] {
        for _ in 0..2 {
            let mut out = vec![0xa5; len];
            let mut at = 0;
            while at <= model.len() {
                let read = fs.reader().read(handle, at as u64, &mut out).unwrap();
                let end = model.len().min(at + len);
                assert!(out[..read] == model[at..end], "{step}: {len} bytes at {at}");
                at += len;
            }
        }
    }
}

#[test]
fn every_change_of_a_files_extents_is_seen_by_the_next_read() {
    let fs = open(&create(MEMBER_BYTES, None));
    let (ino, handle) = file(&fs, b"file");
    let (_, other) = file(&fs, b"other");
    let source = pattern(2, 2048 * KIB);
    write(&fs, other, 0, &source).unwrap();
    let mut model = pattern(1, 3072 * KIB);
    write(&fs, handle, 0, &model).unwrap();
    assert_reads(&fs, handle, &model, "written");

    for (at, len) in [
        (500 * KIB, 100 * KIB),
        (512 * KIB - 5, 10),
        (1024 * KIB, 4096),
    ] {
        let data = pattern(at as u64, len);
        write(&fs, handle, at, &data).unwrap();
        model[at..at + len].copy_from_slice(&data);
        assert_reads(&fs, handle, &model, "overwritten");
    }

    let hole = 700 * KIB..1500 * KIB + 7;
    let (start, len) = (hole.start as u64, hole.len() as u64);
    let punch = Allocation::PunchHole;
    fs.writer()
        .fallocate(ROOT, handle, punch, start, len)
        .unwrap();
    model[hole].fill(0);
    assert_reads(&fs, handle, &model, "punched");

    let (from, to, len) = (3 * KIB, 600 * KIB + 1, 1024 * KIB);
    let mut copied = 0;
    while copied < len {
        let (from, to) = ((from + copied) as u64, (to + copied) as u64);
        let left = (len - copied) as u64;
        let done = fs.writer().copy_range(ROOT, other, from, handle, to, left);
        copied += usize::try_from(done.unwrap()).unwrap();
    }
    model[to..to + len].copy_from_slice(&source[from..from + len]);
    assert_reads(&fs, handle, &model, "copied");

    for size in [1024 * KIB + 3, 2048 * KIB, 0, 900 * KIB] {
        set_size(&fs, ino, size);
        model.resize(size, 0);
        assert_reads(&fs, handle, &model, "cut or made longer");
    }
    let data = pattern(3, 1024 * KIB);
    write(&fs, handle, 100 * KIB, &data).unwrap();
    model.resize(1124 * KIB, 0);
    model[100 * KIB..].copy_from_slice(&data);
    assert_reads(&fs, handle, &model, "written again");
}

/// Readers of a file whose bytes are replaced block by block see each block as it was or as it is.
#[test]
fn concurrent_readers_see_each_block_no_older_than_when_they_began() {
    const BLOCKS: usize = 300;
    let fs = open(&create(MEMBER_BYTES, None));
    let (_, handle) = file(&fs, b"file");
    write(&fs, handle, 0, &vec![0; BLOCKS * 4 * KIB]).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut newest = vec![0_u8; BLOCKS];
                while !done.load(Ordering::Acquire) {
                    for (block, newest) in newest.iter_mut().enumerate() {
                        let mut out = [0; 4 * KIB];
                        let offset = (block * 4 * KIB) as u64;
                        fs.reader().read(handle, offset, &mut out).unwrap();
                        assert!(
                            out.iter().all(|byte| *byte == out[0]),
                            "block {block} is torn"
                        );
                        assert!(
                            out[0] >= *newest,
                            "block {block}: {} after {newest}",
                            out[0]
                        );
                        *newest = out[0];
                    }
                }
            });
        }
        for round in 1..=20 {
            for block in 0..BLOCKS {
                // Neighbours are written out of order.
                let at = block * 7 % BLOCKS;
                write(&fs, handle, at * 4 * KIB, &[round; 4 * KIB]).unwrap();
                let mut out = [0; 4 * KIB];
                let offset = (at * 4 * KIB) as u64;
                fs.reader().read(handle, offset, &mut out).unwrap();
                assert!(out == [round; 4 * KIB], "the writer reads what it wrote");
            }
        }
        done.store(true, Ordering::Release);
    });
}

#[test]
fn a_file_whose_bytes_compaction_moved_is_read_where_they_are_now() {
    let fs = open(&create(64 << 20, Some(4 << 20)));
    let (ino, kept) = file(&fs, b"kept");
    let (dropped_ino, dropped) = file(&fs, b"dropped");
    let (_, filler) = file(&fs, b"filler");
    let mut model = Vec::new();
    for round in 0..24_usize {
        let data = pattern(round as u64, 64 * KIB);
        write(&fs, kept, model.len(), &data).unwrap();
        model.extend(data);
        write(&fs, dropped, round * 960 * KIB, &vec![1; 960 * KIB]).unwrap();
    }
    fs.syncfs().unwrap();
    assert_reads(&fs, kept, &model, "before");
    let extents = |ino| {
        let (from, end) = key::extents_from(ino, 0);
        fs.transactions.scan(&from, &end, 1000).unwrap()
    };
    let before = extents(ino);
    set_size(&fs, dropped_ino, 0);
    let mut used = 0;
    loop {
        match write(&fs, filler, used, &vec![2; 512 * KIB]) {
            Ok(()) => used += 512 * KIB,
            Err(FsError::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
        assert_reads(&fs, kept, &model, "while space is made");
    }
    assert_ne!(extents(ino), before, "compaction moved the file");
    assert_reads(&fs, kept, &model, "after");
}
