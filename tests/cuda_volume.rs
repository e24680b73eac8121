//! A volume on directories that codes on real GPUs. Without one, the test says so and passes.
//!
//! `CAUCHYFS_TEST_MIB` says how much is written, in MiB.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::time::Duration;

use cauchyfs::codec::Geometry;
use cauchyfs::coding;
use cauchyfs::format::Ino;
use cauchyfs::fs::{Caller, Fs, FsOptions, OpenFlags, WriteFlags};
use cauchyfs::maintenance::Maintenance;
use cauchyfs::membership::{CreateOptions, directory};
use cauchyfs::store::{Executor, ExecutorKind, StoreRef};
use cauchyfs::transaction::{OpenOptions, Transactions};
use tempfile::TempDir;

const ROOT: &Caller = &Caller::ROOT;
const FILES: usize = 8;
const PIECE: usize = 1 << 20;

fn mebibytes() -> usize {
    let asked = std::env::var("CAUCHYFS_TEST_MIB").ok();
    asked.map_or(256, |text| text.parse().unwrap())
}

fn executor() -> Arc<Executor> {
    Arc::new(Executor::new(ExecutorKind::Auto, Duration::from_secs(60)))
}

/// Opens the members that are there.
fn stores(homes: &[TempDir]) -> Vec<StoreRef> {
    let there = homes.iter().filter(|home| home.path().exists());
    there
        .map(|home| Arc::new(directory::open(home.path()).unwrap()) as StoreRef)
        .collect()
}

fn open(homes: &[TempDir], engine: &str) -> Arc<Fs> {
    let options = OpenOptions {
        engine: engine.to_owned(),
        threads: 4,
        ..OpenOptions::default()
    };
    let maintenance = Maintenance::open(stores(homes), &options, executor()).unwrap();
    Fs::open(maintenance, FsOptions::default()).unwrap()
}

/// Words that tell file and place.
fn piece(file: usize, number: usize) -> Vec<u8> {
    let mut state = (file << 32 | number) as u64 ^ 0x9E37_79B9_7F4A_7C15;
    let mut bytes = Vec::with_capacity(PIECE);
    while bytes.len() < PIECE {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

/// Writes all files side by side.
fn write_all(fs: &Fs, pieces: usize) -> Vec<Ino> {
    let write = |file: usize| {
        let name = format!("file{file}");
        let flags = OpenFlags::read_write();
        let created = fs
            .names()
            .create(ROOT, Ino::ROOT, name.as_bytes(), 0o600, flags);
        let (attr, handle) = created.unwrap();
        for number in 0..pieces {
            let (mut offset, mut bytes) = ((number * PIECE) as u64, &piece(file, number)[..]);
            while !bytes.is_empty() {
                let written = fs
                    .writer()
                    .write(handle, offset, bytes, WriteFlags::default());
                let written = written.unwrap();
                offset += written as u64;
                bytes = &bytes[written..];
            }
        }
        fs.open_files().release(handle).unwrap();
        attr.ino
    };
    std::thread::scope(|scope| {
        let files: Vec<_> = (0..FILES)
            .map(|file| scope.spawn(move || write(file)))
            .collect();
        files.into_iter().map(|file| file.join().unwrap()).collect()
    })
}

/// Reads all files side by side, and compares them with what was written.
fn assert_all_there(fs: &Fs, files: &[Ino], pieces: usize) {
    let read = |file: usize, ino: Ino| {
        let handle = fs
            .open_files()
            .open(ROOT, ino, OpenFlags::read_only())
            .unwrap();
        let mut bytes = vec![0; PIECE];
        for number in 0..pieces {
            let mut done = 0;
            while done < PIECE {
                let offset = (number * PIECE + done) as u64;
                let count = fs
                    .reader()
                    .read(handle, offset, &mut bytes[done..])
                    .unwrap();
                assert_ne!(count, 0, "file {file} ends early");
                done += count;
            }
            assert!(bytes == piece(file, number), "file {file}, piece {number}");
        }
        fs.open_files().release(handle).unwrap();
    };
    std::thread::scope(|scope| {
        for (file, &ino) in files.iter().enumerate() {
            scope.spawn(move || read(file, ino));
        }
    });
}

#[test]
fn a_volume_coded_by_gpus_survives_two_lost_members_with_and_without_them() {
    match coding::devices() {
        Err(error) if error.is_absence() => {
            println!("skipped: no CUDA device ({error})");
            return;
        }
        opened => drop(opened.unwrap()),
    }
    let homes: Vec<TempDir> = (0..6).map(|_| tempfile::tempdir().unwrap()).collect();
    let geometry = Geometry::new(4, 2).unwrap();
    Transactions::create(&stores(&homes), &CreateOptions::new(geometry), executor()).unwrap();
    let pieces = mebibytes().div_ceil(FILES);
    let fs = open(&homes, "cuda");
    let files = write_all(&fs, pieces);
    fs.syncfs().unwrap();
    println!("written: {:?}", fs.transactions().coding());
    assert!(fs.transactions().coding().cuda.bytes >= (FILES * pieces * PIECE / 2) as u64);
    assert_eq!(fs.transactions().coding().redone, 0);
    assert_eq!(fs.transactions().engine_name(), "cuda");
    fs.close().unwrap();
    fs.maintenance().close().unwrap();
    drop(fs);
    for lost in [1, 4] {
        std::fs::remove_dir_all(homes[lost].path()).unwrap();
    }
    // Each of them decodes to the same bytes as the other.
    for engine in ["cuda", "auto", "scalar"] {
        let fs = open(&homes, engine);
        assert_all_there(&fs, &files, pieces);
        let coding = fs.transactions().coding();
        println!("read with {engine}: {coding:?}");
        assert_eq!(coding.redone, 0);
        match engine {
            "cuda" => {
                // A device that had been wrong would have been given up.
                assert_eq!(fs.transactions().engine_name(), "cuda");
                assert!(coding.cuda.passes > 0);
                assert!(coding.cuda.bytes > coding.cpu.bytes, "{coding:?}");
            }
            "scalar" => assert_eq!(coding.cuda.passes, 0),
            _ => {}
        }
        fs.close().unwrap();
        fs.maintenance().close().unwrap();
    }
}
