//! Room that `fallocate` keeps for files.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use cauchyfs::codec::Geometry;
use cauchyfs::format::Ino;
use cauchyfs::format::superblock::{SLOT_BYTES, Superblock};
use cauchyfs::fs::{Allocation, Changes, Fs, FsError, FsOptions, Handle, Whence};
use cauchyfs::store::{CutPolicy, MemDisk, Store};
use cauchyfs::transaction::{CreateOptions, Transactions};

use crate::calls::{BLOCK, ROOT, create, read, sound, write};
use crate::volume;

const MIB: u64 = 1 << 20;

/// Bytes of a file for which room is kept: not a multiple of the length of a stripe.
const LEN: u64 = 12 * MIB + 5 * BLOCK;

fn small_disks() -> Vec<MemDisk> {
    volume::disks_of(48 << 20, 3, 2, 1)
}

fn open(disks: &[MemDisk]) -> Arc<Fs> {
    Fs::open(volume::open(disks, 0), FsOptions::default()).unwrap()
}

fn allocate(fs: &Fs, handle: Handle, offset: u64, len: u64) -> Result<(), FsError> {
    fs.writer()
        .fallocate(ROOT, handle, Allocation::Allocate, offset, len)
}

fn keep_size(fs: &Fs, handle: Handle, offset: u64, len: u64) -> Result<(), FsError> {
    fs.writer()
        .fallocate(ROOT, handle, Allocation::AllocateKeepSize, offset, len)
}

fn punch(fs: &Fs, handle: Handle, offset: u64, len: u64) {
    fs.writer()
        .fallocate(ROOT, handle, Allocation::PunchHole, offset, len)
        .unwrap();
}

fn truncate(fs: &Fs, ino: Ino, size: u64) {
    let size = Some(size);
    let changes = Changes {
        size,
        ..Changes::default()
    };
    fs.attributes().set(ROOT, ino, changes).unwrap();
}

/// Returns the bytes that `st_blocks` shows.
fn allocated(fs: &Fs, ino: Ino) -> u64 {
    fs.attributes().get(ino).unwrap().blocks_512 * 512
}

/// Returns the bytes that are free.
fn free(fs: &Fs) -> u64 {
    fs.statfs().blocks_free * BLOCK
}

/// Returns the bytes of a block of a file, all of one value.
fn block_of(index: u64) -> Vec<u8> {
    vec![u8::try_from(index % 251).unwrap() + 1; usize::try_from(BLOCK).unwrap()]
}

/// Writes other files until there is no space, large ones, then blocks, and then ones that fit into inodes.
fn fill(fs: &Fs) -> u64 {
    let mut written = 0;
    for (name, len, most) in [
        ("large", 200_000, u64::MAX),
        ("little", 4096, u64::MAX),
        ("least", 1000, 3000),
    ] {
        for number in 0..most {
            let name = format!("{name}{number}");
            let made = fs.names().create(
                ROOT,
                Ino::ROOT,
                name.as_bytes(),
                0o644,
                crate::calls::exclusive(),
            );
            let handle = match made {
                Ok((_, handle)) => handle,
                Err(FsError::NoSpace) => break,
                Err(error) => panic!("{name}: {error}"),
            };
            let outcome = write(fs, handle, 0, &vec![0xfe; len]);
            fs.open_files().release(handle).unwrap();
            match outcome {
                Ok(_) => written += len as u64,
                Err(FsError::NoSpace) => break,
                Err(error) => panic!("{name}: {error}"),
            }
        }
    }
    written
}

#[test]
fn allocated_blocks_count_at_once_read_as_zeros_and_survive_a_power_cut() {
    let disks = volume::disks(3, 2, 1);
    let fs = open(&disks);
    let (ino, handle) = create(&fs, "file");
    write(&fs, handle, 0, b"in the record").unwrap();
    allocate(&fs, handle, 1, 2 * BLOCK).unwrap();
    // All blocks that the range touches.
    assert_eq!(allocated(&fs, ino), 3 * BLOCK);
    assert_eq!(fs.attributes().get(ino).unwrap().size, 2 * BLOCK + 1);
    let mut expected = b"in the record".to_vec();
    expected.resize(8193, 0);
    assert_eq!(read(&fs, handle, 0, 10_000), expected);
    let seek = |whence| fs.reader().seek(handle, 0, whence).unwrap();
    assert_eq!((seek(Whence::Data), seek(Whence::Hole)), (0, 13));
    let behind = fs.reader().seek(handle, 13, Whence::Data);
    assert!(matches!(behind, Err(FsError::NoSuchOffset)), "{behind:?}");

    write(&fs, handle, BLOCK, &block_of(7)).unwrap();
    assert_eq!(allocated(&fs, ino), 3 * BLOCK);
    assert_eq!(fs.reader().seek(handle, 13, Whence::Data).unwrap(), BLOCK);
    // Allocated bytes are not counted again.
    allocate(&fs, handle, 0, 4 * BLOCK).unwrap();
    assert_eq!(allocated(&fs, ino), 4 * BLOCK);
    keep_size(&fs, handle, 5 << 30, 8 * MIB).unwrap();
    assert_eq!(allocated(&fs, ino), 4 * BLOCK + 8 * MIB);
    assert_eq!(fs.attributes().get(ino).unwrap().size, 4 * BLOCK);
    sound(&fs);

    fs.syncfs().unwrap();
    let (before, bytes) = (free(&fs), read(&fs, handle, 0, 20_000));
    drop(fs);
    for disk in &disks {
        disk.cut(CutPolicy::Drop);
    }
    let fs = open(&disks);
    let ino = fs.names().lookup(Ino::ROOT, b"file").unwrap().ino;
    assert_eq!(allocated(&fs, ino), 4 * BLOCK + 8 * MIB);
    assert!(free(&fs).abs_diff(before) < MIB, "{before} {}", free(&fs));
    let flags = cauchyfs::fs::OpenFlags::read_write();
    let handle = fs.open_files().open(ROOT, ino, flags).unwrap();
    assert_eq!(read(&fs, handle, 0, 20_000), bytes);
    sound(&fs);
}

#[test]
fn blocks_of_more_than_four_gibibytes_are_counted() {
    // The disks are sparse.
    let disks = volume::disks_of(64 << 30, 3, 2, 1);
    let fs = open(&disks);
    let (ino, handle) = create(&fs, "file");
    let len = (5 << 30) + BLOCK;
    allocate(&fs, handle, 0, len).unwrap();
    assert_eq!(allocated(&fs, ino), len);
    truncate(&fs, ino, 4 << 30);
    assert_eq!(allocated(&fs, ino), 4 << 30);
    truncate(&fs, ino, 4096);
    fs.wait_for_removal();
    assert_eq!(allocated(&fs, ino), BLOCK);
    sound(&fs);
}

/// Other writers fill the volume. What room was kept for can be written to the last byte, in every order.
#[test]
fn a_file_can_be_written_where_room_is_kept_although_others_fill_the_volume() {
    for pieces in ["in order", "at random", "at once"] {
        let disks = small_disks();
        let fs = open(&disks);
        let (ino, handle) = create(&fs, "file");
        let before = free(&fs);
        allocate(&fs, handle, 0, LEN).unwrap();
        let kept = before - free(&fs);
        assert!(
            (LEN..LEN * 5 / 4).contains(&kept),
            "{pieces}: {kept} for {LEN}"
        );
        let others = fill(&fs);
        assert!(others > 20 * MIB, "{pieces}: {others}");
        let refused = create_and_write(&fs, "late");
        assert!(
            matches!(refused, Err(FsError::NoSpace)),
            "{pieces}: {refused:?}"
        );

        let blocks = LEN / BLOCK;
        match pieces {
            "in order" => {
                let content: Vec<u8> = (0..blocks).flat_map(block_of).collect();
                for (index, piece) in content.chunks(128 << 10).enumerate() {
                    let offset = index as u64 * (128 << 10);
                    let written = write(&fs, handle, offset, piece);
                    assert_eq!(written.unwrap(), piece.len(), "{pieces}: {offset}");
                }
            }
            // A step without a common divisor visits each block once.
            "at random" => {
                for step in 0..blocks {
                    let index = step * 1009 % blocks;
                    let written = write(&fs, handle, index * BLOCK, &block_of(index));
                    written.unwrap_or_else(|error| panic!("{pieces}: {step}: {error}"));
                    if step % 64 == 0 {
                        fs.syncfs().unwrap();
                    }
                }
            }
            _ => write_by_many(&fs, handle, blocks),
        }
        fs.syncfs().unwrap();
        assert_eq!(allocated(&fs, ino), LEN, "{pieces}");
        let refused = create_and_write(&fs, "later");
        assert!(
            matches!(refused, Ok(()) | Err(FsError::NoSpace)),
            "{pieces}: {refused:?}"
        );
        sound(&fs);
        drop(fs);
        for disk in &disks {
            disk.cut(CutPolicy::Drop);
        }
        for lost in 0..3 {
            let mut left: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
            left.remove(lost);
            let fs = open(&left);
            let ino = fs.names().lookup(Ino::ROOT, b"file").unwrap().ino;
            let flags = cauchyfs::fs::OpenFlags::read_only();
            let handle = fs.open_files().open(ROOT, ino, flags).unwrap();
            for index in 0..blocks {
                let found = read(&fs, handle, index * BLOCK, 4096);
                assert!(
                    found == block_of(index),
                    "{pieces}: block {index}, without {lost}"
                );
            }
        }
    }
}

fn create_and_write(fs: &Fs, name: &str) -> Result<(), FsError> {
    let made = fs.names().create(
        ROOT,
        Ino::ROOT,
        name.as_bytes(),
        0o644,
        crate::calls::exclusive(),
    );
    write(fs, made?.1, 0, &vec![1; 100_000]).map(drop)
}

/// Several threads write the blocks of a file.
fn write_by_many(fs: &Fs, handle: Handle, blocks: u64) {
    thread::scope(|scope| {
        for first in 0..4 {
            scope.spawn(move || {
                for index in (first..blocks).step_by(4) {
                    let written = write(fs, handle, index * BLOCK, &block_of(index));
                    written.unwrap_or_else(|error| panic!("block {index}: {error}"));
                }
            });
        }
    });
}

#[test]
fn an_allocation_without_room_keeps_nothing_and_one_of_two_at_once_succeeds() {
    let fs = open(&small_disks());
    let (before, len) = (free(&fs), free(&fs) / 100 * 60);
    let (ino, handle) = create(&fs, "file");
    let refused = allocate(&fs, handle, 0, before);
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
    let attr = fs.attributes().get(ino).unwrap();
    assert_eq!((attr.size, attr.blocks_512, free(&fs)), (0, 0, before));

    let files = [create(&fs, "a"), create(&fs, "b")];
    let start = Barrier::new(2);
    let outcomes = thread::scope(|scope| {
        let threads = files.map(|(_, handle)| {
            let (fs, start) = (&fs, &start);
            scope.spawn(move || {
                start.wait();
                allocate(fs, handle, 0, len)
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    let refused = |outcome: &&Result<(), FsError>| matches!(outcome, Err(FsError::NoSpace));
    assert_eq!(
        (done, outcomes.iter().filter(refused).count()),
        (1, 1),
        "{outcomes:?}"
    );
    let blocks = files.map(|(ino, _)| allocated(&fs, ino));
    let size = len.next_multiple_of(BLOCK);
    assert!(blocks == [size, 0] || blocks == [0, size], "{blocks:?}");
    sound(&fs);
}

#[test]
fn room_comes_free_by_punching_cutting_and_removing() {
    let disks = small_disks();
    let fs = open(&disks);
    let (ino, handle) = create(&fs, "file");
    let (other, _) = create(&fs, "other");
    fs.syncfs().unwrap();
    let whole = free(&fs);
    allocate(&fs, handle, 0, LEN).unwrap();
    let with_all = free(&fs);
    punch(&fs, handle, 2 * MIB, 4 * MIB);
    assert_eq!(allocated(&fs, ino), LEN - 4 * MIB);
    assert!(free(&fs) >= with_all + 4 * MIB);
    truncate(&fs, ino, MIB);
    assert_eq!(allocated(&fs, ino), MIB);
    // Allocated behind the end, and not given up where the file grows.
    keep_size(&fs, handle, 2 * MIB, MIB).unwrap();
    truncate(&fs, ino, MIB + BLOCK);
    assert_eq!(allocated(&fs, ino), 2 * MIB);
    truncate(&fs, ino, 0);
    assert_eq!((allocated(&fs, ino), free(&fs)), (0, whole));

    // The copy of a hole keeps no room.
    allocate(&fs, handle, 0, MIB).unwrap();
    let flags = cauchyfs::fs::OpenFlags::read_write();
    let to = fs.open_files().open(ROOT, other, flags).unwrap();
    fs.writer().copy_range(ROOT, handle, 0, to, 0, MIB).unwrap();
    assert_eq!((allocated(&fs, ino), allocated(&fs, other)), (MIB, 0));

    fs.names().unlink(Ino::ROOT, b"file").unwrap();
    assert!(free(&fs) < whole);
    fs.syncfs().unwrap();
    let cut: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
    fs.open_files().forget(ino, 1);
    fs.open_files().release(handle).unwrap();
    fs.wait_for_removal();
    assert_eq!(free(&fs), whole);
    sound(&fs);
    // The same if no one is left to close it.
    let fs = open(&cut);
    fs.wait_for_removal();
    assert!(free(&fs).abs_diff(whole) < MIB, "{} {whole}", free(&fs));
    sound(&fs);
}

#[test]
fn a_volume_needs_a_build_that_knows_unwritten_extents_only_once_it_has_some() {
    let features = |disks: &[MemDisk]| {
        let blocks = disks.iter().map(|disk| {
            let mut slots = vec![0; 2 * SLOT_BYTES];
            disk.open().read_at("superblock", 0, &mut slots).unwrap();
            let slots = slots.chunks(SLOT_BYTES);
            let features = slots.map(|slot| Superblock::decode(slot).unwrap().features.incompat);
            features.collect::<Vec<_>>()
        });
        blocks.collect::<Vec<_>>()
    };
    let disks = volume::disks(3, 2, 1);
    let fs = open(&disks);
    let (_, handle) = create(&fs, "file");
    write(&fs, handle, 0, &block_of(0)).unwrap();
    allocate(&fs, handle, 0, BLOCK).unwrap();
    assert_eq!(features(&disks), vec![vec![0, 0]; 3]);
    allocate(&fs, handle, 0, 2 * BLOCK).unwrap();
    assert_eq!(features(&disks), vec![vec![8, 8]; 3]);
}

/// Two writes of one block at the same time: the room that is kept for it admits one of them after the other.
#[test]
fn a_block_is_written_by_two_at_once_where_room_is_kept_for_one() {
    let fs = open(&small_disks());
    let (ino, handle) = create(&fs, "file");
    allocate(&fs, handle, 0, 4 * MIB).unwrap();
    fill(&fs);
    let start = Barrier::new(2);
    let len = usize::try_from(MIB).unwrap();
    let outcomes = thread::scope(|scope| {
        let threads = [1, 2].map(|value| {
            let (fs, start) = (&fs, &start);
            scope.spawn(move || {
                start.wait();
                write(fs, handle, 0, &vec![value; len])
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    // The later one writes it again, which needs room beyond.
    assert!(outcomes.iter().any(Result::is_ok), "{outcomes:?}");
    for index in 1..4 {
        write(&fs, handle, index * MIB, &vec![3; len]).unwrap();
    }
    assert_eq!(allocated(&fs, ino), 4 * MIB);
    sound(&fs);
}

/// The same with more members, of other sizes, and with single blocks, each durable before the next.
#[test]
fn room_is_kept_for_single_blocks_whatever_the_members() {
    let shapes: [(usize, usize, &[u64]); 4] = [
        (1, 1, &[32, 32]),
        (4, 2, &[24; 6]),
        (4, 2, &[20, 30, 24, 60, 20, 24, 33, 20]),
        (2, 2, &[24, 24, 24, 24, 60]),
    ];
    for (data, parity, sizes) in shapes {
        let context = format!("{data}+{parity} of {sizes:?} MiB");
        let disk = |(index, size): (usize, &u64)| MemDisk::new(&format!("disk{index}"), size << 20);
        let disks: Vec<MemDisk> = sizes.iter().enumerate().map(disk).collect();
        let options = CreateOptions {
            unit_bytes: 64 << 10,
            segment_bytes: 2 << 20,
            ..CreateOptions::new(Geometry::new(data, parity).unwrap())
        };
        let executor = cauchyfs_testkit::executor(Duration::from_secs(30));
        Transactions::create(&volume::stores(&disks), &options, executor).unwrap();
        let disks: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
        let fs = open(&disks);
        let (ino, handle) = create(&fs, "file");
        let len = free(&fs) / 3 / BLOCK * BLOCK;
        allocate(&fs, handle, 0, len).unwrap();
        fill(&fs);
        let blocks = len / BLOCK;
        for step in 0..blocks {
            let index = step * 1009 % blocks;
            let written = write(&fs, handle, index * BLOCK, &block_of(index));
            written.unwrap_or_else(|error| panic!("{context}: {step} of {blocks}: {error}"));
            fs.syncfs().unwrap();
            // As a mount does: with a full journal each commit ends a stripe.
            fs.transactions().clock().tick().unwrap();
        }
        assert_eq!(allocated(&fs, ino), len, "{context}");
        for index in 0..blocks {
            let found = read(&fs, handle, index * BLOCK, 4096);
            assert!(found == block_of(index), "{context}: block {index}");
        }
        sound(&fs);
    }
}
