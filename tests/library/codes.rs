//! The filesystem with every code, and on every engine that this machine has.

use std::sync::Arc;
use std::time::Duration;

use cauchyfs::codec::{CodeId, Engine, Geometry, engines};
use cauchyfs::format::files;
use cauchyfs::fs::{Fs, FsOptions};
use cauchyfs::maintenance::Maintenance;
use cauchyfs::store::{MemDisk, Store};
use cauchyfs::transaction::{CreateOptions, OpenOptions, Transactions};

use crate::calls::{self, create, read, sound, write};
use cauchyfs::format::Ino;
use cauchyfs_testkit::{disks, executor, pattern, stores};

const DATA: usize = 5;
const PARITY: usize = 3;

/// Bytes of a file, which end in the middle of a block.
const LEN: usize = 3_333_333;

fn volume_of(code: CodeId) -> Vec<MemDisk> {
    let disks = disks(DATA + PARITY, 1 << 30);
    let options = CreateOptions {
        code,
        unit_bytes: 64 << 10,
        segment_bytes: 2 << 20,
        ..CreateOptions::new(Geometry::new(DATA, PARITY).unwrap())
    };
    let executor = executor(Duration::from_secs(30));
    Transactions::create(&stores(&disks), &options, executor).unwrap();
    disks
}

fn open(disks: &[MemDisk], engine: &str) -> Arc<Fs> {
    let options = OpenOptions {
        engine: engine.to_owned(),
        threads: 0,
        ..OpenOptions::default()
    };
    let executor = executor(Duration::from_secs(30));
    let maintenance = Maintenance::open(stores(disks), &options, executor).unwrap();
    Fs::open(maintenance, FsOptions::default()).unwrap()
}

/// Returns the first block of every segment file of a disk that stripes were written to.
fn first_blocks(disk: &MemDisk) -> Vec<(String, Vec<u8>)> {
    let store = disk.open();
    let listed = store.list(files::SEGMENTS).unwrap().into_iter();
    let blocks = listed.map(|(name, _)| {
        let mut block = vec![0; 4096];
        store.read_at(&name, 0, &mut block).unwrap();
        (name, block)
    });
    blocks
        .filter(|(_, block)| block.iter().any(|&byte| byte != 0))
        .collect()
}

#[test]
fn every_code_recovers_the_bytes_of_lost_and_damaged_members() {
    let names: Vec<&str> = engines().map(Engine::name).collect();
    let content = pattern(1, LEN);
    for (round, code) in CodeId::all().enumerate() {
        let mut repaired = 0;
        for (turn, written_by) in names.iter().enumerate() {
            let read_by = names[(turn + round + 1) % names.len()];
            let what = format!("{code}, written by {written_by}, read by {read_by}");
            let disks = volume_of(code);
            let fs = open(&disks, written_by);
            let (_, handle) = create(&fs, "file");
            assert_eq!(write(&fs, handle, 0, &content).unwrap(), content.len());
            fs.syncfs().unwrap();
            sound(&fs);
            fs.close().unwrap();
            fs.maintenance().close().unwrap();
            drop(fs);

            // One less than may be lost, and one more with a wrong block in each of its files.
            let lost = (turn..turn + PARITY - 1).map(|index| index % disks.len());
            lost.for_each(|index| disks[index].wipe());
            let damaged = &disks[(turn + PARITY) % disks.len()];
            let blocks = first_blocks(damaged);
            assert!(!blocks.is_empty(), "{what}");
            for (name, _) in &blocks {
                assert!(damaged.corrupt(name, 17, |bytes| bytes[0] ^= 1, 1));
            }
            let fs = open(&disks, read_by);
            let ino = fs.names().lookup(Ino::ROOT, b"file").unwrap().ino;
            let handle = fs
                .open_files()
                .open(calls::ROOT, ino, cauchyfs::fs::OpenFlags::read_only())
                .unwrap();
            assert!(read(&fs, handle, 0, content.len()) == content, "{what}");
            // A parity shard may not have been looked at.
            repaired += usize::from(first_blocks(damaged) == blocks);
        }
        assert!(repaired > 0, "{code}: nothing was repaired on a member");
    }
}
