//! Files that were cut and grow again, over what is left of them and after it is gone.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::format::{BLOCK_SIZE, key};
use crate::fs::extents::{self, PAGE};
use crate::fs::tests::{ROOT, create, open};
use crate::fs::{Allocation, Changes, Fs, Handle, OpenFlags, WriteFlags, check};
use crate::store::MemDisk;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Extents that the file has: several times what goes in a batch.
const EXTENTS: u64 = 3 * PAGE as u64;

/// A file, its bytes, and another one to copy from.
struct Cut {
    disks: Vec<MemDisk>,
    fs: Arc<Fs>,
    ino: Ino,
    file: Handle,
    other: Handle,
    bytes: Vec<u8>,
}

fn byte(seed: u64, block: u64) -> u8 {
    u8::try_from((seed * 31 + block) % 251 + 1).unwrap()
}

impl Cut {
    /// Makes a file of many extents.
    fn new(seed: u64) -> Self {
        let disks = create(1 << 30, Some(16 << 20));
        let fs = open(&disks);
        let make = |name: &[u8]| {
            let flags = OpenFlags::read_write();
            let made = fs
                .names()
                .create(ROOT, Ino::ROOT, name, 0o644, flags)
                .unwrap();
            (made.0.ino, made.1)
        };
        let ((ino, file), (_, other)) = (make(b"file"), make(b"other"));
        let mut bytes = Vec::new();
        for block in 0..EXTENTS {
            let content = [byte(seed, block); BLOCK_SIZE];
            for handle in [file, other] {
                let flags = WriteFlags::default();
                let written = fs.writer().write(handle, block * BLOCK, &content, flags);
                written.unwrap();
            }
            bytes.extend_from_slice(&content);
        }
        Self {
            disks,
            fs,
            ino,
            file,
            other,
            bytes,
        }
    }

    fn resize(&mut self, size: u64) {
        let changes = Changes {
            size: Some(size),
            ..Changes::default()
        };
        let attr = self.fs.attributes().set(ROOT, self.ino, changes).unwrap();
        assert_eq!(attr.size, size);
        self.bytes.resize(usize::try_from(size).unwrap(), 0);
    }

    /// Leaves the file as the first batch of a cut does, as if the job for the rest were waiting.
    fn cut_without_the_rest(&mut self, size: u64) {
        let fs = &self.fs;
        let lock = fs.inodes.locks().exclusive(&[self.ino]);
        let mut inode = fs.inodes.get(self.ino).unwrap();
        inode.size = size;
        let mut edit = Edit::default();
        let complete = take_out(
            &fs.transactions,
            (self.ino, &mut inode),
            &mut edit,
            (&behind(size), Rest::All),
            &mut Sweep::default(),
        );
        assert!(!complete.unwrap(), "there is more than goes in a batch");
        edit.put_orphan(self.ino);
        edit.put_inode(self.ino, &inode);
        fs.inodes.apply(edit).unwrap();
        fs.removal.mark_cutting(self.ino);
        drop(lock);
        self.bytes.truncate(usize::try_from(size).unwrap());
    }

    /// Makes the file longer, or changes it, in some way. To allocate would end the cut first.
    fn grow(&mut self, random: &mut StdRng, may_allocate: bool) {
        let size = self.bytes.len() as u64;
        let offset = size.saturating_add_signed(random.random_range(-9000..400_000));
        let len = random.random_range(1..60_000);
        let end = usize::try_from(offset + len).unwrap();
        let start = usize::try_from(offset).unwrap();
        let ways = if may_allocate { 5 } else { 4 };
        let way = [0, 2, 3, 4, 1][random.random_range(0..ways)];
        if way < 4 && self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let fs = &self.fs;
        match way {
            0 => {
                let content = vec![0xee; usize::try_from(len).unwrap()];
                let flags = WriteFlags::default();
                fs.writer()
                    .write(self.file, offset, &content, flags)
                    .unwrap();
                self.bytes[start..end].fill(0xee);
            }
            1 => fs
                .writer()
                .fallocate(ROOT, self.file, Allocation::Allocate, offset, len)
                .unwrap(),
            2 => {
                let mode = Allocation::ZeroRange;
                fs.writer()
                    .fallocate(ROOT, self.file, mode, offset, len)
                    .unwrap();
                self.bytes[start..end].fill(0);
            }
            3 => {
                let mut source = vec![0; end - start];
                fs.reader().read(self.other, 0, &mut source).unwrap();
                let copied = fs
                    .writer()
                    .copy_range(ROOT, self.other, 0, self.file, offset, len);
                // Little is copied in pieces.
                let copied = usize::try_from(copied.unwrap()).unwrap();
                self.bytes[start..start + copied].copy_from_slice(&source[..copied]);
                let size = fs.attributes().get(self.ino).unwrap().size;
                self.bytes.truncate(usize::try_from(size).unwrap());
            }
            _ => self.resize(offset),
        }
    }

    fn assert_same(&self, context: &str) {
        let mut read = vec![0xaa; self.bytes.len() + 1];
        let len = self.fs.reader().read(self.file, 0, &mut read).unwrap();
        assert_eq!(len, self.bytes.len(), "{context}");
        let wrong = (0..len).find(|&at| read[at] != self.bytes[at]);
        assert_eq!(wrong, None, "{context}: other bytes from here on");
    }

    /// Checks that nothing remains behind the end, nor the mark.
    fn assert_nothing_left(&self, context: &str) {
        self.fs.wait_for_removal();
        let found = check::check(self.fs.maintenance(), false).unwrap().findings;
        assert_eq!(found, [], "{context}");
        let size = self.bytes.len() as u64;
        let mut behind = extents::page(&self.fs.transactions, self.ino, &behind(size)).unwrap();
        // The rest of an allocated block.
        behind.retain(|run| !run.is_unwritten() || run.end() > size.next_multiple_of(BLOCK));
        assert_eq!(behind, [], "{context}");
        let mark = self.fs.transactions.get(&key::orphan(self.ino)).unwrap();
        assert_eq!(mark, None, "{context}");
        assert!(!self.fs.writer().is_being_cut(self.ino), "{context}");
    }
}

#[test]
fn a_file_that_grows_over_what_is_left_of_it_shows_none_of_it() {
    for seed in 0..6 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut cut = Cut::new(seed);
        cut.cut_without_the_rest(random.random_range(0..EXTENTS * BLOCK / 4));
        for round in 0..20 {
            let context = format!("seed {seed}, round {round}");
            cut.grow(&mut random, false);
            cut.assert_same(&context);
        }
        assert!(cut.fs.writer().is_being_cut(cut.ino), "seed {seed}");
        // As a crash leaves it.
        cut.fs.syncfs().unwrap();
        let disks: Vec<MemDisk> = cut.disks.iter().map(MemDisk::fork).collect();
        let flags = OpenFlags::read_write();
        let fs = open(&disks);
        let reopened = Cut {
            file: fs.open_files().open(ROOT, cut.ino, flags).unwrap(),
            fs,
            disks,
            ..cut
        };
        let mut cut = reopened;
        cut.other = cut.file;
        for round in 0..5 {
            cut.resize(cut.bytes.len() as u64 + 50_000);
            cut.assert_same(&format!("seed {seed}, reopened, round {round}"));
        }
        cut.assert_nothing_left(&format!("seed {seed}"));
    }
}

#[test]
fn truncated_bytes_are_freed_in_the_background_and_never_seen() {
    for seed in 0..6 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut cut = Cut::new(seed);
        for round in 0..6 {
            let context = format!("seed {seed}, round {round}");
            cut.resize(random.random_range(0..=cut.bytes.len() as u64));
            for _ in 0..random.random_range(0..4) {
                cut.grow(&mut random, true);
            }
            cut.assert_same(&context);
        }
        cut.assert_nothing_left(&format!("seed {seed}"));
        cut.resize(0);
        cut.fs.names().unlink(Ino::ROOT, b"file").unwrap();
        cut.fs.open_files().release(cut.file).unwrap();
        cut.fs.open_files().forget(cut.ino, 1);
        cut.fs.wait_for_removal();
        assert!(cut.fs.inodes.get(cut.ino).is_err());
        assert!(!cut.fs.writer().is_being_cut(cut.ino), "seed {seed}");
    }
}

/// Extents that are allocated behind the end of a file do not go with the rest of a cut.
#[test]
fn a_file_that_is_allocated_while_it_is_cut_keeps_what_is_allocated() {
    let mut cut = Cut::new(3);
    cut.cut_without_the_rest(2 * BLOCK);
    let (mode, start) = (Allocation::AllocateKeepSize, 4 * BLOCK);
    cut.fs
        .writer()
        .fallocate(ROOT, cut.file, mode, start, 8 * BLOCK)
        .unwrap();
    cut.fs.removal.resume(|_| false).unwrap();
    cut.fs.wait_for_removal();
    cut.fs.syncfs().unwrap();
    let disks: Vec<MemDisk> = cut.disks.iter().map(MemDisk::fork).collect();
    for fs in [open(&disks), Arc::clone(&cut.fs)] {
        fs.wait_for_removal();
        let behind = extents::page(&fs.transactions, cut.ino, &behind(2 * BLOCK)).unwrap();
        let found: Vec<_> = behind
            .iter()
            .map(|run| (run.range(), run.is_unwritten()))
            .collect();
        assert_eq!(found, [(start..start + 8 * BLOCK, true)]);
        let blocks = fs.attributes().get(cut.ino).unwrap().blocks_512;
        assert_eq!(blocks, 10 * BLOCK / 512);
        assert_eq!(check::check(fs.maintenance(), false).unwrap().findings, []);
    }
}
