//! The filesystem with every code, and on every engine that this machine has.

use std::sync::Arc;
use std::time::Duration;

use cauchyfs::codec::{CodeId, Engine, Geometry, Survival, engines};
use cauchyfs::format::files;
use cauchyfs::fs::{Fs, FsOptions};
use cauchyfs::maintenance::Maintenance;
use cauchyfs::store::{MemDisk, Store};
use cauchyfs::transaction::{CreateOptions, OpenOptions, Transactions};

use crate::calls::{self, create, read, sound, write};
use cauchyfs::format::Ino;
use cauchyfs_testkit::{disks, executor, pattern, stores};

/// Data and parity shards of most volumes here.
const SMALL: (usize, usize) = (5, 3);

/// Such that `random-gf2` survives any three losses.
const EVEN: (usize, usize) = (4, 4);

/// So many that most engines compute `rs-fft` by transforms.
const WIDE: (usize, usize) = (32, 32);

/// Bytes of a file, which end in the middle of a block.
const LEN: usize = 3_333_333;

fn volume_of(code: CodeId, (data, parity): (usize, usize)) -> Vec<MemDisk> {
    let disks = disks(data + parity, 1 << 30);
    let options = CreateOptions {
        code,
        unit_bytes: 64 << 10,
        segment_bytes: 2 << 20,
        ..CreateOptions::new(Geometry::new(data, parity).unwrap())
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

/// Writes a file with every engine, and reads it by another one. Meanwhile one member less is lost than may be,
/// and of one more, a block of each segment file is changed.
fn check_with_every_engine(code: CodeId, shape: (usize, usize), round: usize) {
    let names: Vec<&str> = engines().map(Engine::name).collect();
    let content = pattern(1, LEN);
    let geometry = Geometry::new(shape.0, shape.1).unwrap();
    let code = code.for_geometry(geometry).unwrap();
    let losses = Survival::of(code, geometry).guaranteed();
    let mut repaired = 0;
    for (turn, written_by) in names.iter().enumerate() {
        let read_by = names[(turn + round + 1) % names.len()];
        let what = format!("{code}, written by {written_by}, read by {read_by}");
        let disks = volume_of(code, shape);
        let fs = open(&disks, written_by);
        let (_, handle) = create(&fs, "file");
        assert_eq!(write(&fs, handle, 0, &content).unwrap(), content.len());
        fs.syncfs().unwrap();
        sound(&fs);
        fs.close().unwrap();
        fs.maintenance().close().unwrap();
        drop(fs);

        let lost = (turn..turn + losses - 1).map(|index| index % disks.len());
        lost.for_each(|index| disks[index].wipe());
        let damaged = &disks[(turn + losses) % disks.len()];
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

#[test]
fn every_code_recovers_the_bytes_of_lost_and_damaged_members() {
    for (round, code) in CodeId::all().enumerate() {
        let shape = if code == CodeId::RANDOM_GF2 {
            EVEN
        } else {
            SMALL
        };
        check_with_every_engine(code, shape, round);
    }
}

#[test]
fn transforms_recover_the_bytes_of_half_of_64_members() {
    check_with_every_engine(CodeId::RS_FFT, WIDE, 0);
}
