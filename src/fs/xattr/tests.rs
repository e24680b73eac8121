//! Many attributes of one file.

use std::sync::Arc;

use super::*;
use crate::fs::tests::{ROOT, create, open};
use crate::fs::{Changes, Fs, OpenFlags};
use crate::store::MemDisk;

fn made() -> (Vec<MemDisk>, Arc<Fs>, Ino) {
    let disks = create(1 << 30, None);
    let fs = open(&disks);
    let flags = OpenFlags::read_write();
    let (attr, _) = fs
        .names()
        .create(ROOT, Ino::ROOT, b"file", 0o644, flags)
        .unwrap();
    (disks, fs, attr.ino)
}

fn name(number: usize) -> Vec<u8> {
    format!("user.{number:05}").into_bytes()
}

fn set(fs: &Fs, ino: Ino, name: &[u8], value: &[u8]) -> Result<(), FsError> {
    fs.xattrs().set(ROOT, ino, name, value, XattrMode::Set)
}

/// An access ACL with an entry for user 7.
fn access_acl() -> Vec<u8> {
    let mut acl = 2_u32.to_le_bytes().to_vec();
    let none = u32::MAX;
    for (tag, bits, id) in [
        (1_u16, 6_u16, none),
        (2, 4, 7),
        (4, 4, none),
        (16, 4, none),
        (32, 4, none),
    ] {
        acl.extend(tag.to_le_bytes());
        acl.extend(bits.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    acl
}

/// Otherwise each name that is added costs as much as all that are there.
#[test]
fn the_names_of_a_file_are_counted_once_however_many_are_added() {
    let (disks, fs, ino) = made();
    for number in 0..300 {
        set(&fs, ino, &name(number), b"value").unwrap();
        let listed = fs.xattrs().list(ROOT, ino).unwrap().len();
        assert_eq!(
            fs.xattrs.inodes.list_lens().get(ino),
            Some(listed),
            "after {number}"
        );
    }
    set(&fs, ino, &name(7), b"another").unwrap();
    fs.xattrs().remove(ino, &name(8)).unwrap();
    set(&fs, ino, &name(300), b"value").unwrap();
    let listed = fs.xattrs().list(ROOT, ino).unwrap().len();
    assert_eq!(fs.xattrs.inodes.list_lens().get(ino), Some(listed));
    set(&fs, ino, acl::ACCESS, &access_acl()).unwrap();
    set(&fs, ino, &name(301), b"value").unwrap();
    let listed = fs.xattrs().list(ROOT, ino).unwrap();
    assert!(
        listed
            .windows(acl::ACCESS.len())
            .any(|part| part == acl::ACCESS)
    );
    assert_eq!(fs.xattrs.inodes.list_lens().get(ino), Some(listed.len()));
    let plain = Changes {
        permissions: Some(0o600),
        ..Changes::default()
    };
    fs.attributes().set(ROOT, ino, plain).unwrap();
    set(&fs, ino, &name(302), b"value").unwrap();
    let listed = fs.xattrs().list(ROOT, ino).unwrap();
    assert_eq!(fs.xattrs.inodes.list_lens().get(ino), Some(listed.len()));
    fs.close().unwrap();
    drop(fs);
    let disks: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
    assert_eq!(open(&disks).xattrs().list(ROOT, ino).unwrap(), listed);
}

/// Edits of other parts change attributes as well: those of ACLs and capabilities.
#[test]
fn every_edit_of_attributes_is_counted_at_the_next_change() {
    let (_disks, fs, ino) = made();
    set(&fs, ino, &name(0), b"value").unwrap();
    let listed = |fs: &Fs| fs.xattrs().list(ROOT, ino).unwrap().len();
    for (number, is_put) in [(1, true), (0, false)] {
        let mut edit = Edit::default();
        if is_put {
            edit.put_xattr(ino, &name(number), Vec::new());
        } else {
            edit.delete_xattr(ino, &name(number));
        }
        fs.inodes.apply(edit).unwrap();
        set(&fs, ino, &name(10 + number), b"value").unwrap();
        let known = fs.inodes.list_lens().get(ino);
        assert_eq!(known, Some(listed(&fs)), "{is_put}");
    }
}

/// The thread that removes inodes changes attributes as well.
#[test]
fn the_length_of_the_list_of_a_removed_file_is_forgotten() {
    let disks = create(1 << 30, None);
    let fs = open(&disks);
    let flags = OpenFlags::read_write();
    for names in [1, 5000] {
        let (attr, handle) = fs
            .names()
            .create(ROOT, Ino::ROOT, b"file", 0o644, flags)
            .unwrap();
        let mut edit = Edit::default();
        for number in 1..names {
            edit.put_xattr(attr.ino, &name(number), Vec::new());
        }
        fs.inodes.apply(edit).unwrap();
        if names == 1 {
            set(&fs, attr.ino, &name(0), b"value").unwrap();
        } else {
            // A list too long for a call is removed part by part.
            fs.inodes.list_lens().note(attr.ino, Some(names));
        }
        assert!(fs.inodes.list_lens().get(attr.ino).is_some());
        fs.names().unlink(Ino::ROOT, b"file").unwrap();
        fs.open_files().release(handle).unwrap();
        fs.open_files().forget(attr.ino, 1);
        fs.wait_for_removal();
        assert!(matches!(fs.inodes.get(attr.ino), Err(FsError::NotFound)));
        assert_eq!(fs.inodes.list_lens().get(attr.ino), None, "{names} names");
    }
}

#[test]
fn the_list_of_names_ends_at_64_kib_and_a_name_that_goes_makes_room_for_one() {
    let (_disks, fs, ino) = made();
    let long = |number: usize| {
        let mut name = name(number);
        name.resize(NAME_MAX, b'x');
        name
    };
    let most = LIST_MAX / (NAME_MAX + 1);
    for number in 0..most {
        set(&fs, ino, &long(number), b"").unwrap();
    }
    assert_eq!(fs.xattrs().list(ROOT, ino).unwrap().len(), LIST_MAX);
    assert!(matches!(
        set(&fs, ino, b"user.a", b""),
        Err(FsError::NoSpace)
    ));
    set(&fs, ino, &long(0), b"another").unwrap();
    fs.xattrs().remove(ino, &long(0)).unwrap();
    set(&fs, ino, &long(most), b"").unwrap();
    assert!(matches!(
        set(&fs, ino, &long(0), b""),
        Err(FsError::NoSpace)
    ));
    assert_eq!(fs.xattrs().list(ROOT, ino).unwrap().len(), LIST_MAX);
}

/// Only a volume that was made by hand has such a list.
#[test]
fn a_list_that_is_too_long_is_an_error_and_takes_little_memory() {
    let (_disks, fs, ino) = made();
    let mut edit = Edit::default();
    for number in 0..20_000 {
        edit.put_xattr(ino, &name(number), Vec::new());
    }
    fs.inodes.apply(edit).unwrap();
    assert!(matches!(fs.xattrs().list(ROOT, ino), Err(FsError::TooBig)));
    assert!(matches!(
        set(&fs, ino, b"user.a", b""),
        Err(FsError::NoSpace)
    ));
    assert!(fs.xattrs().get(ino, &name(5)).unwrap().is_empty());
}

/// Measures; by hand, with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn time_of_adding_attributes() {
    for (count, len) in [(762, 100), (762, 64 << 10), (2000, 100), (5000, 100)] {
        let (_disks, fs, ino) = made();
        let value = vec![7; len];
        let began = std::time::Instant::now();
        for number in 0..count {
            set(&fs, ino, &name(number), &value).unwrap();
        }
        println!("{count} attributes of {len} bytes: {:?}", began.elapsed());
    }
}
