//! Room that `fallocate` keeps, as programs use it.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

use cauchyfs::format::superblock::{SLOT_BYTES, Superblock};

use crate::support::{Disk, DiskKind, Shape, TestVolume, must, pattern, skip_mounts, text};

const SHAPE: Shape = Shape {
    data: 2,
    parity: 1,
    members: 3,
    segment: "4MiB",
    unit: "64KiB",
    ..Shape::FOUR_TWO
};

/// Bytes for which room is kept, beyond the first block.
const LEN: u64 = 16 << 20;

/// Bytes that are written at once.
const PIECE: usize = 64 << 10;

fn features(volume: &TestVolume) -> Vec<u64> {
    let members = volume.members.iter();
    let features = members.map(|member| {
        let bytes = fs::read(member.join("superblock")).expect("each member has one");
        let block = Superblock::decode(&bytes[..SLOT_BYTES]).expect("it is right");
        block.features.incompat
    });
    features.collect()
}

/// Writes other files until there is no space.
fn fill(volume: &TestVolume) -> u64 {
    for number in 0.. {
        let written = File::create(volume.path(&format!("other{number}"))).and_then(|mut file| {
            file.write_all(&pattern(number, 1 << 20))?;
            file.sync_all()
        });
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => return number,
            Err(error) => panic!("{error}\n{}", volume.log()),
        }
    }
    unreachable!("no volume takes that many files")
}

#[test]
fn a_program_writes_what_it_allocated_although_others_fill_the_volume() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create_on(SHAPE, Disk::new(DiskKind::Tmpfs, 192));
    volume.mount();
    let path = volume.path("file");
    assert_eq!(features(&volume), [0; 3]);
    // Two bytes, in two blocks.
    must("fallocate", &["-o", "4095", "-l", "2", text(&path)]);
    let blocks = || {
        must("stat", &["-c", "%b %s", text(&path)])
            .trim()
            .to_owned()
    };
    assert_eq!(blocks(), "16 4097");
    must("fallocate", &["-n", "-l", &LEN.to_string(), text(&path)]);
    let expected = format!("{} 4097", LEN / 512);
    assert_eq!(blocks(), expected);
    File::open(&path).unwrap().sync_all().unwrap();
    assert_eq!(features(&volume), [8; 3]);
    volume.crash();
    volume.mount();
    assert_eq!(blocks(), expected);

    let filled = fill(&volume);
    assert!(filled > 8, "only {filled} MiB fitted");
    let bytes = pattern(7, usize::try_from(LEN).unwrap());
    let file = File::options().write(true).open(&path).unwrap();
    let pieces = bytes.len() / PIECE;
    for step in 0..pieces {
        // Each piece once, in no order that the file has.
        let start = step * 101 % pieces * PIECE;
        file.write_all_at(&bytes[start..start + PIECE], start as u64)
            .unwrap_or_else(|error| panic!("{error}\n{}", volume.log()));
    }
    file.sync_all()
        .unwrap_or_else(|error| panic!("{error}\n{}", volume.log()));
    assert_eq!(file.metadata().unwrap().blocks(), LEN / 512);
    drop(file);
    volume.remount();
    assert!(fs::read(&path).unwrap() == bytes);
    assert_eq!(blocks(), format!("{} {LEN}", LEN / 512));
    fs::remove_file(&path).unwrap();
    volume.unmount();
    volume.assert_intact();
}
