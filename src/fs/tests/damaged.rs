//! Records of files that no build writes, under good checksums: errors for those files, and for no others.

use super::super::extents;
use super::{ROOT, create, open};
use crate::format::record::Extent;
use crate::format::{Ino, Record, StripeId, key};
use crate::fs::{Allocation, Changes, Fs, Handle, OpenFlags, Whence, WriteFlags};
use crate::maintenance::{FileStripes, FilesUsage};
use crate::metadata::Batch;

/// Bytes of each member.
const MEMBER_BYTES: u64 = 256 << 20;

/// Makes a file of 64 KiB, and gives it these extents in the place of its own: where each ends, its length,
/// and where it lies in the stripe.
fn with_extents(fs: &Fs, name: &[u8], extents: &[(u64, u64, u32)]) -> (Ino, Handle) {
    let flags = OpenFlags::read_write();
    let (attr, handle) = fs
        .names()
        .create(ROOT, Ino::ROOT, name, 0o644, flags)
        .unwrap();
    fs.writer()
        .write(handle, 0, &vec![7; 64 << 10], WriteFlags::default())
        .unwrap();
    let (from, end) = key::extents_from(attr.ino, 0);
    let own = fs.transactions.scan(&from, &end, 10).unwrap();
    let stripe: StripeId = Extent::decode(&own[0].1).unwrap().stripe;
    let mut batch = Batch::default();
    for (key, _) in own {
        batch.delete(key);
    }
    for &(end, len, stripe_offset) in extents {
        let extent = Extent {
            len,
            stripe,
            stripe_offset,
        };
        batch.put(key::extent(attr.ino, end), extent.encode());
    }
    fs.transactions.apply(batch).unwrap();
    (attr.ino, handle)
}

#[test]
fn extents_that_no_file_has_are_errors_and_never_panics() {
    let fs = open(&create(MEMBER_BYTES, None));
    let (_, sound) = with_extents(&fs, b"sound", &[(64 << 10, 64 << 10, 0)]);
    let all: &[&[(u64, u64, u32)]] = &[
        // Overlapping.
        &[(100, 100, 0), (150, 150, 0)],
        &[(8192, 8192, 0), (12288, 8192, 8192)],
        // Before the file, behind the longest one.
        &[(100, 200, 0)],
        &[(u64::MAX, 4096, 0)],
        &[(4096, 4096, 0), (u64::MAX, u64::MAX - 8192, 0)],
        // Behind the stripe.
        &[(64 << 10, 64 << 10, 0xffff_fff0)],
        &[(64 << 10, 64 << 10, 60 << 20)],
    ];
    for (number, extents) in all.iter().enumerate() {
        let name = format!("file{number}");
        let (ino, handle) = with_extents(&fs, name.as_bytes(), extents);
        let mut out = vec![0; 64 << 10];
        assert!(
            fs.reader().read(handle, 0, &mut out).is_err(),
            "{extents:?}"
        );
        drop(fs.reader().seek(handle, 0, Whence::Data));
        drop(fs.reader().seek(handle, 0, Whence::Hole));
        drop(
            fs.writer()
                .write(handle, 50, &[1; 9000], WriteFlags::default()),
        );
        let cut = Changes {
            size: Some(10),
            ..Changes::default()
        };
        drop(fs.attributes().set(ROOT, ino, cut));
        drop(
            fs.writer()
                .fallocate(ROOT, handle, Allocation::PunchHole, 0, 1 << 20),
        );
        assert_eq!(fs.reader().read(sound, 0, &mut out).unwrap(), 64 << 10);
        assert!(out.iter().all(|byte| *byte == 7));
    }
}

/// More than a page of extents each, so that the second page begins with the one that overlaps.
#[test]
fn extents_that_overlap_across_pages_are_errors() {
    let fs = open(&create(MEMBER_BYTES, None));
    let page = extents::PAGE as u64;
    let mut all: Vec<(u64, u64, u32)> = (1..=page).map(|end| (end * 8, 8, 0)).collect();
    all.push((page * 8 + 64, 128, 0));
    let (_, handle) = with_extents(&fs, b"file", &all);
    let mut out = vec![0; 64 << 10];
    assert!(fs.reader().read(handle, 0, &mut out).is_err());
    drop(
        fs.writer()
            .fallocate(ROOT, handle, Allocation::Allocate, 0, 1 << 20),
    );
}

/// Three files, of which one is in the record of its inode. Another has lost the record of a stripe.
#[test]
fn extents_without_a_record_of_their_stripe_are_counted_as_lost() {
    let fs = open(&create(MEMBER_BYTES, None));
    let (sound, _) = with_extents(&fs, b"sound", &[(64 << 10, 64 << 10, 0)]);
    fs.transactions.checkpoint().unwrap();
    let (harmed, _) = with_extents(&fs, b"harmed", &[(4096, 4096, 0), (12288, 8192, 4096)]);
    fs.transactions.checkpoint().unwrap();
    let (small, handle) = fs
        .names()
        .create(ROOT, Ino::ROOT, b"small", 0o644, OpenFlags::read_write())
        .map(|(attr, handle)| (attr.ino, handle))
        .unwrap();
    fs.writer()
        .write(handle, 0, &[7; 100], WriteFlags::default())
        .unwrap();
    let usage_of = |inos: &[Ino]| {
        let (usage, mut files) = (fs.maintenance().usage(), FileStripes::default());
        for ino in inos {
            assert!(usage.add_file(*ino, &mut files).unwrap());
        }
        usage.count_stripes(&files).unwrap()
    };
    let all = [sound, harmed, small];
    let before = usage_of(&all);
    assert_eq!(
        (before.extents, before.without_record),
        (3, 0),
        "{before:?}"
    );
    let stripes = |usage: &FilesUsage| usage.losses_tolerated.values().sum::<u64>();
    assert_eq!((stripes(&before), before.unwritten), (2, 0), "{before:?}");
    let (from, end) = key::extents_from(harmed, 0);
    let own = fs.transactions.scan(&from, &end, 1).unwrap();
    let stripe = Extent::decode(&own[0].1).unwrap().stripe;
    let mut batch = Batch::default();
    batch.delete(key::stripe(stripe));
    fs.transactions.apply(batch).unwrap();
    let found = usage_of(&all);
    assert_eq!(found.extents, before.extents, "{found:?}");
    assert_eq!(
        (found.without_record, found.bytes_without_record),
        (1, 12288)
    );
    assert_eq!(stripes(&found) + found.without_record, stripes(&before));
    assert_eq!(usage_of(&[sound]).without_record, 0);
}
