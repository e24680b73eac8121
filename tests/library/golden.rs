//! Volumes that an earlier build wrote are read by this one, with all members and without as many as may be lost.
//!
//! The files in `tests/golden` hold the member directories of volumes of format version 1, as a power cut left them:
//! what was written last is in the journals only. `volume-1.bin` is a 2+1 volume. `volume-1-codes.bin` has files of 2+1
//! and of 2+2 of the random code, to which it was changed while in use. `volume-1-directories.bin` is a 2+2 volume with
//! directories of 5+1, and of 2+2 of the random code. They are made by
//!
//! ```text
//! cargo test --test library golden -- --ignored
//! ```
//!
//! and may be made again only while no build that writes the format has been released. Numbers in them are
//! little-endian, and blocks are 4 KiB without the zeros at their end:
//!
//! ```text
//! u32 files, then for each: u8 member, u8 length of name, name, u64 length of file,
//!                           u32 blocks that are not all zeros
//!           for each block: u32 number in its file, u16 length, bytes; or where the bytes are those
//!                           of an earlier one: u32 number in its file, u16 0, u32 how many blocks
//!                           with bytes come before that one
//! ```

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;

use cauchyfs::codec::{CodeId, Geometry};
use cauchyfs::format::record::Inode;
use cauchyfs::format::{Ino, Record, StripeClass, files, key};
use cauchyfs::fs::{
    Caller, Changes, Fs, FsError, FsOptions, OpenFlags, RenameMode, WriteFlags, XattrMode, check,
    tree,
};
use cauchyfs::membership::StripeCode;
use cauchyfs::store::{CutPolicy, MemDisk, Store};

use crate::volume;

const ROOT: &Caller = &Caller::ROOT;
const BLOCK: usize = 4096;
const MAX_GOLDEN_BYTES: usize = 200 << 10;

/// Bytes of the file that fills several stripes.
const STRIPES: usize = 300_000;
/// Offset of the bytes in the sparse file, and its length.
const SPARSE_AT: u64 = 1 << 30;
const SPARSE_LEN: u64 = 1 << 40;

fn golden(name: &str) -> PathBuf {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    golden.join(name)
}

/// Bytes that tell file and block, and are mostly zeros.
fn content(file: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (number, block) in bytes.chunks_mut(BLOCK).enumerate() {
        let mark = format!("file {file} block {number}.");
        let len = mark.len().min(block.len());
        block[..len].copy_from_slice(&mark.as_bytes()[..len]);
    }
    bytes
}

fn put(fs: &Fs, dir: Ino, name: &str, offset: u64, data: &[u8]) -> Ino {
    let (attr, handle) = fs
        .names()
        .create(ROOT, dir, name.as_bytes(), 0o640, OpenFlags::read_write())
        .unwrap();
    fs.writer()
        .write(handle, offset, data, WriteFlags::default())
        .unwrap();
    fs.open_files().release(handle).unwrap();
    attr.ino
}

/// Writes a file of every kind; the last one is in the journal when the power goes.
fn write_all(fs: &Fs) {
    let dir = fs
        .names()
        .mkdir(ROOT, Ino::ROOT, b"dir", 0o750)
        .unwrap()
        .ino;
    let inline = put(fs, dir, "inline", 0, &content(1, 100));
    fs.xattrs()
        .set(ROOT, inline, b"user.golden", b"value", XattrMode::Set)
        .unwrap();
    let stripes = put(fs, dir, "stripes", 0, &content(2, STRIPES));
    fs.names().link(stripes, Ino::ROOT, b"linked").unwrap();
    fs.names()
        .symlink(ROOT, dir, b"symbolic", b"stripes")
        .unwrap();
    let sparse = put(fs, dir, "sparse", SPARSE_AT, &content(3, BLOCK));
    let longer = Changes {
        size: Some(SPARSE_LEN),
        ..Changes::default()
    };
    fs.attributes().set(ROOT, sparse, longer).unwrap();
    put(fs, dir, "deleted", 0, &content(4, 100_000));
    fs.syncfs().unwrap();
    fs.names().unlink(dir, b"deleted").unwrap();
    fs.wait_for_removal();
    for _ in 0..4 {
        fs.syncfs().unwrap();
        fs.maintenance().reaper().reap().unwrap();
    }
    fs.transactions().checkpoint().unwrap();
    put(fs, dir, "journaled", 0, &content(5, 5_000));
    fs.syncfs().unwrap();
}

fn read(fs: &Fs, path: &str, offset: u64, len: usize) -> Vec<u8> {
    let ino = tree::resolve(fs, path.as_bytes()).unwrap().ino;
    let handle = fs
        .open_files()
        .open(ROOT, ino, OpenFlags::read_only())
        .unwrap();
    let mut bytes = vec![0xff; len];
    let mut done = 0;
    while done < len {
        let count = fs
            .reader()
            .read(handle, offset + done as u64, &mut bytes[done..])
            .unwrap();
        assert_ne!(count, 0, "{path} ends early");
        done += count;
    }
    fs.open_files().release(handle).unwrap();
    bytes
}

fn assert_all_there(fs: &Fs, context: &str) {
    for (path, file, len) in [
        ("dir/inline", 1, 100),
        ("dir/stripes", 2, STRIPES),
        ("linked", 2, STRIPES),
        ("dir/journaled", 5, 5_000),
    ] {
        assert!(
            read(fs, path, 0, len) == content(file, len),
            "{context}: {path}"
        );
        let attr = tree::resolve(fs, path.as_bytes()).unwrap();
        assert_eq!(attr.size, len as u64, "{context}: {path}");
        assert_eq!(attr.permissions, 0o640, "{context}: {path}");
    }
    let resolve = |path: &str| tree::resolve(fs, path.as_bytes());
    let (first, second) = (resolve("dir/stripes").unwrap(), resolve("linked").unwrap());
    assert_eq!((first.ino, first.links), (second.ino, 2), "{context}");
    let symbolic = resolve("dir/symbolic").unwrap().ino;
    assert_eq!(
        fs.attributes().read_link(symbolic).unwrap(),
        b"stripes",
        "{context}"
    );
    let value = fs
        .xattrs()
        .get(resolve("dir/inline").unwrap().ino, b"user.golden");
    assert_eq!(value.unwrap(), b"value", "{context}");
    assert_eq!(resolve("dir/sparse").unwrap().size, SPARSE_LEN, "{context}");
    let around = read(fs, "dir/sparse", SPARSE_AT - 10, BLOCK + 20);
    let expected = [vec![0; 10], content(3, BLOCK), vec![0; 10]].concat();
    assert!(around == expected, "{context}: sparse");
    assert!(
        matches!(resolve("dir/deleted"), Err(FsError::NotFound)),
        "{context}"
    );
}

fn open(disks: &[MemDisk]) -> Arc<Fs> {
    Fs::open(volume::open(disks, 0), FsOptions::default()).unwrap()
}

fn pack(disks: &[MemDisk]) -> Vec<u8> {
    let mut files = Vec::new();
    for (member, disk) in disks.iter().enumerate() {
        let store = disk.open();
        for dir in ["", "segments"] {
            let listed = store.list(dir).unwrap();
            files.extend(listed.into_iter().map(|(name, len)| (member, name, len)));
        }
    }
    let mut packed = Vec::new();
    let mut seen: HashMap<Vec<u8>, u32> = HashMap::new();
    packed.extend(u32::try_from(files.len()).unwrap().to_le_bytes());
    for (member, name, len) in files {
        packed.push(u8::try_from(member).unwrap());
        packed.push(u8::try_from(name.len()).unwrap());
        packed.extend(name.as_bytes());
        packed.extend(len.to_le_bytes());
        let mut bytes = vec![0; usize::try_from(len).unwrap()];
        disks[member].open().read_at(&name, 0, &mut bytes).unwrap();
        let trimmed = |block: &[u8]| block.iter().rposition(|&byte| byte != 0).map(|at| at + 1);
        let blocks: Vec<(usize, &[u8])> = bytes
            .chunks(BLOCK)
            .enumerate()
            .filter_map(|(number, block)| Some((number, &block[..trimmed(block)?])))
            .collect();
        packed.extend(u32::try_from(blocks.len()).unwrap().to_le_bytes());
        for (number, block) in blocks {
            packed.extend(u32::try_from(number).unwrap().to_le_bytes());
            let count = u32::try_from(seen.len()).unwrap();
            match seen.entry(block.to_vec()) {
                Entry::Occupied(known) => {
                    packed.extend([0; 2]);
                    packed.extend(known.get().to_le_bytes());
                }
                Entry::Vacant(new) => {
                    packed.extend(u16::try_from(block.len()).unwrap().to_le_bytes());
                    packed.extend(block);
                    new.insert(count);
                }
            }
        }
    }
    packed
}

/// The bytes that are left to unpack.
struct Packed<'a>(&'a [u8]);

impl<'a> Packed<'a> {
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn number(&mut self, bytes: usize) -> u64 {
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(self.bytes(bytes));
        u64::from_le_bytes(number)
    }

    fn index(&mut self, bytes: usize) -> usize {
        usize::try_from(self.number(bytes)).unwrap()
    }
}

fn unpack(packed: &[u8], members: usize) -> Vec<MemDisk> {
    let disks: Vec<MemDisk> = (0..members)
        .map(|member| MemDisk::new(&format!("d{member}"), 1 << 30))
        .collect();
    let mut packed = Packed(packed);
    let mut seen = Vec::new();
    for _ in 0..packed.index(4) {
        let store = disks[packed.index(1)].open();
        let name_len = packed.index(1);
        let name = std::str::from_utf8(packed.bytes(name_len)).unwrap();
        store.create(name, packed.number(8)).unwrap();
        for _ in 0..packed.index(4) {
            let offset = packed.number(4) * BLOCK as u64;
            let block = match packed.index(2) {
                0 => seen[packed.index(4)],
                len => {
                    seen.push(packed.bytes(len));
                    seen[seen.len() - 1]
                }
            };
            store.write_at(name, offset, block).unwrap();
        }
        store.sync(name).unwrap();
    }
    assert!(packed.0.is_empty());
    disks
}

/// Keeps the members of a volume as a power cut leaves them.
fn keep(name: &str, disks: &[MemDisk]) {
    for disk in disks {
        disk.cut(CutPolicy::Drop);
    }
    let packed = pack(disks);
    assert!(packed.len() <= MAX_GOLDEN_BYTES, "{} bytes", packed.len());
    std::fs::create_dir_all(golden("")).unwrap();
    std::fs::write(golden(name), packed).unwrap();
}

#[test]
#[ignore = "writes the golden volume"]
fn make_the_golden_volume() {
    let disks = volume::disks(3, 2, 1);
    let fs = open(&disks);
    write_all(&fs);
    assert_all_there(&fs, "just written");
    // A power cut, as it were: the daemon lets nothing go in order.
    keep("volume-1.bin", &disks);
}

/// The code to which the other volume is changed. It survives the loss of any two.
fn second_code() -> StripeCode {
    let geometry = Geometry::new(2, 2).unwrap();
    StripeCode {
        geometry,
        code: CodeId::RANDOM_GF2.for_geometry(geometry).unwrap(),
        unit_bytes: 64 << 10,
    }
}

/// Checks what was written before the change of code, and with it.
fn assert_both_codes_there(fs: &Fs, context: &str) {
    assert_all_there(fs, context);
    for (path, file, len) in [("changed", 6, STRIPES), ("late", 7, 5_000)] {
        assert!(
            read(fs, path, 0, len) == content(file, len),
            "{context}: {path}"
        );
    }
    let members = fs.transactions().members();
    assert_eq!(members.shape().stripe_code(), second_code(), "{context}");
}

#[test]
#[ignore = "writes the golden volume of two codes"]
fn make_the_golden_volume_of_two_codes() {
    let disks = volume::disks(4, 2, 1);
    let fs = open(&disks);
    write_all(&fs);
    fs.transactions().change_code(second_code()).unwrap();
    fs.close().unwrap();
    fs.maintenance().close().unwrap();
    drop(fs);
    let fs = open(&disks);
    put(&fs, Ino::ROOT, "changed", 0, &content(6, STRIPES));
    fs.syncfs().unwrap();
    fs.transactions().checkpoint().unwrap();
    put(&fs, Ino::ROOT, "late", 0, &content(7, 5_000));
    fs.syncfs().unwrap();
    assert_both_codes_there(&fs, "just written");
    keep("volume-1-codes.bin", &disks);
}

/// Reads a golden volume without the lost members, uses it, and reads it again.
fn assert_readable(
    packed: &[u8],
    members: usize,
    lost: &[usize],
    assert_there: impl Fn(&Fs, &str),
) {
    let context = format!("lost {lost:?}");
    let mut disks = unpack(packed, members);
    let mut number = 0..;
    disks.retain(|_| number.next().is_none_or(|number| !lost.contains(&number)));
    let fs = open(&disks);
    assert_there(&fs, &context);
    fs.wait_for_removal();
    let report = check::check(fs.maintenance(), false).unwrap();
    assert_eq!(report.findings, [], "{context}");
    fs.close().unwrap();
    fs.maintenance().close().unwrap();
    drop(fs);
    assert_there(&open(&disks), &format!("{context}, after it was used"));
}

#[test]
fn the_golden_volume_of_version_1_is_read_with_all_members_and_without_any_one() {
    let packed = std::fs::read(golden("volume-1.bin")).unwrap();
    for lost in [&[][..], &[0], &[1], &[2]] {
        assert_readable(&packed, 3, lost, assert_all_there);
    }
}

/// The files of the first code tolerate one loss, until they are rewritten.
#[test]
fn the_golden_volume_of_two_codes_is_read_with_all_members_and_without_any_one() {
    let packed = std::fs::read(golden("volume-1-codes.bin")).unwrap();
    for lost in [&[][..], &[0], &[1], &[2], &[3]] {
        assert_readable(&packed, 4, lost, assert_both_codes_there);
    }
}

/// Bytes of the larger file in each directory.
const LARGE: usize = 60_000;

/// The directories with codes of their own. One has less parity than the volume, and the other has another code.
fn directory_codes() -> [(&'static str, Geometry, CodeId); 2] {
    let (thin, random) = (Geometry::new(5, 1).unwrap(), Geometry::new(2, 2).unwrap());
    let code = CodeId::RANDOM_GF2.for_geometry(random).unwrap();
    [("thin", thin, CodeId::RS_CAUCHY), ("random", random, code)]
}

/// The files: the path, the number that tells the content, the length, and the directory whose code it has.
const FILES: [(&str, u8, usize, &str); 9] = [
    ("plain/large", 1, LARGE, ""),
    ("plain/late", 2, 5_000, ""),
    ("thin/large", 3, LARGE, "thin"),
    ("thin/inline", 4, 100, "thin"),
    ("thin/late", 5, 5_000, "thin"),
    ("random/below/large", 6, LARGE, "random"),
    ("random/late", 7, 5_000, "random"),
    ("random/linked", 3, LARGE, "thin"),
    ("plain/moved", 8, LARGE, "random"),
];

#[test]
#[ignore = "writes the golden volume of codes of directories"]
fn make_the_golden_volume_of_codes_of_directories() {
    let disks = volume::disks(6, 2, 2);
    let fs = open(&disks);
    let mkdir = |parent, name: &str| {
        let made = fs.names().mkdir(ROOT, parent, name.as_bytes(), 0o750);
        made.unwrap().ino
    };
    let plain = mkdir(Ino::ROOT, "plain");
    let [thin, random] = directory_codes().map(|(name, geometry, code)| {
        let directory = mkdir(Ino::ROOT, name);
        let class = fs.transactions().class_for(geometry, code).unwrap();
        fs.directory_codes().set(directory, class, false).unwrap();
        directory
    });
    let below = mkdir(random, "below");
    put(&fs, plain, "large", 0, &content(1, LARGE));
    let large = put(&fs, thin, "large", 0, &content(3, LARGE));
    put(&fs, thin, "inline", 0, &content(4, 100));
    put(&fs, below, "large", 0, &content(6, LARGE));
    fs.names().link(large, random, b"linked").unwrap();
    put(&fs, random, "moved", 0, &content(8, LARGE));
    let moved = fs
        .names()
        .rename(ROOT, random, b"moved", plain, b"moved", RenameMode::Replace);
    moved.unwrap();
    fs.syncfs().unwrap();
    fs.transactions().checkpoint().unwrap();
    // The journal alone has these.
    for (directory, file) in [(plain, 2), (thin, 5), (random, 7)] {
        put(&fs, directory, "late", 0, &content(file, 5_000));
    }
    fs.syncfs().unwrap();
    assert_directories_there(&fs, "just written");
    keep("volume-1-directories.bin", &disks);
}

/// Returns the code that an inode names, if it is not that of the volume.
fn code_named(fs: &Fs, ino: Ino) -> Option<(Geometry, CodeId)> {
    let value = fs.transactions().get(&key::inode(ino)).unwrap().unwrap();
    let class = Inode::decode(&value).unwrap().class;
    let code = fs.transactions().code_of_class(class).unwrap();
    (class != StripeClass::VOLUME).then_some(code)
}

/// Checks the codes of all directories and files.
fn assert_codes_there(fs: &Fs, context: &str) {
    let resolve = |path: &str| tree::resolve(fs, path.as_bytes()).unwrap().ino;
    let codes = directory_codes();
    let code_of = |directory: &str| {
        let found = codes.iter().find(|(name, ..)| *name == directory);
        found.map(|(_, geometry, code)| (*geometry, *code))
    };
    for (path, directory) in [
        ("", ""),
        ("plain", ""),
        ("thin", "thin"),
        ("random", "random"),
        ("random/below", "random"),
    ] {
        let found = code_named(fs, resolve(path));
        assert_eq!(found, code_of(directory), "{context}: {path}");
    }
    for (path, _, _, directory) in FILES {
        let found = code_named(fs, resolve(path));
        assert_eq!(found, code_of(directory), "{context}: {path}");
    }
    let listed = fs.directory_codes().list(9).unwrap().into_iter();
    let mut paths: Vec<_> = listed.filter_map(|own| own.path).collect();
    paths.sort();
    assert_eq!(paths, [b"random".to_vec(), b"thin".to_vec()], "{context}");
}

fn assert_directories_there(fs: &Fs, context: &str) {
    assert_codes_there(fs, context);
    for (path, file, len, _) in FILES {
        assert!(
            read(fs, path, 0, len) == content(file, len),
            "{context}: {path}"
        );
    }
}

/// Returns the incompatible features that a member notes, in either slot of its superblock.
fn features_of(disk: &MemDisk) -> u64 {
    let slot = |offset: u64| {
        let mut features = [0; 8];
        let read = disk
            .open()
            .read_at(files::SUPERBLOCK, offset + 24, &mut features);
        read.unwrap();
        u64::from_le_bytes(features)
    };
    slot(0) | slot(64 << 10)
}

/// FORMAT.md says so.
#[test]
fn the_golden_volumes_use_the_features_that_are_described() {
    for (name, members, features) in [
        ("volume-1.bin", 3, 0),
        ("volume-1-codes.bin", 4, 16 | 32),
        ("volume-1-directories.bin", 6, 64),
    ] {
        let packed = std::fs::read(golden(name)).unwrap();
        for disk in unpack(&packed, members) {
            assert_eq!(features_of(&disk), features, "{name}");
        }
    }
}

#[test]
fn the_golden_volume_of_codes_of_directories_is_read_with_all_members_and_without_any_one() {
    let packed = std::fs::read(golden("volume-1-directories.bin")).unwrap();
    for lost in [&[][..], &[0], &[1], &[2], &[3], &[4], &[5]] {
        assert_readable(&packed, 6, lost, assert_directories_there);
    }
}

/// The stripes of both directories promise to survive one loss, and those of the volume two.
#[test]
fn the_golden_volume_of_codes_of_directories_is_read_without_any_two_as_far_as_it_promises() {
    let packed = std::fs::read(golden("volume-1-directories.bin")).unwrap();
    for (first, second) in (0..6).flat_map(|first| (0..first).map(move |second| (first, second))) {
        let context = format!("lost {first} and {second}");
        let mut disks = unpack(&packed, 6);
        disks.remove(first);
        disks.remove(second);
        let fs = open(&disks);
        assert_codes_there(&fs, &context);
        for (path, file, len, directory) in FILES {
            // Some pairs are all right for the random code.
            if directory == "random" && len == LARGE {
                continue;
            }
            // Other files of that directory lie in the index and in the journals.
            if directory == "thin" && len == LARGE {
                let ino = tree::resolve(&fs, path.as_bytes()).unwrap().ino;
                let opened = fs.open_files().open(ROOT, ino, OpenFlags::read_only());
                let outcome = fs.reader().read(opened.unwrap(), 0, &mut vec![0; len]);
                assert!(outcome.is_err(), "{context}: {path}");
                continue;
            }
            assert!(
                read(&fs, path, 0, len) == content(file, len),
                "{context}: {path}"
            );
        }
    }
}
