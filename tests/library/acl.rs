//! POSIX access control lists, as acl(5) has them.

use std::sync::Arc;

use cauchyfs::format::Ino;
use cauchyfs::fs::{Attr, Caller, Changes, Fs, FsError, FsOptions, XattrMode, check};

use crate::volume;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const ROOT: &Caller = &Caller::ROOT;

const OWNER: u16 = 1;
const USER: u16 = 2;
const OWNING_GROUP: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;
const NO_ID: u32 = u32::MAX;

/// Encodes a list as the kernel passes it.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// A list that grants user 7 something, with these permissions for owner, mask and other.
fn named(owner: u16, mask: u16, other: u16) -> Vec<u8> {
    acl(&[
        (OWNER, owner, NO_ID),
        (USER, 7, 7),
        (OWNING_GROUP, 5, NO_ID),
        (MASK, mask, NO_ID),
        (OTHER, other, NO_ID),
    ])
}

fn fs() -> (Arc<Fs>, Ino) {
    let fs = Fs::open(volume::maintenance(), FsOptions::default()).unwrap();
    let ino = fs
        .names()
        .mknod(ROOT, Ino::ROOT, b"file", 0o100_644, 0)
        .unwrap()
        .ino;
    (fs, ino)
}

fn set(fs: &Fs, ino: Ino, name: &[u8], value: &[u8]) -> Result<(), FsError> {
    fs.xattrs().set(ROOT, ino, name, value, XattrMode::Set)
}

fn has_none(fs: &Fs, ino: Ino, name: &[u8]) -> bool {
    matches!(fs.xattrs().get(ino, name), Err(FsError::NoData))
}

#[test]
fn a_list_sets_the_permission_bits_and_follows_them() {
    let (fs, ino) = fs();
    set(&fs, ino, ACCESS, &named(7, 4, 1)).unwrap();
    assert_eq!(
        fs.attributes().get(ino).unwrap().permissions,
        0o741,
        "the mask is the group's"
    );
    assert_eq!(fs.xattrs().get(ino, ACCESS).unwrap(), named(7, 4, 1));
    let changes = Changes {
        permissions: Some(0o4620),
        ..Changes::default()
    };
    fs.attributes().set(ROOT, ino, changes).unwrap();
    assert_eq!(fs.xattrs().get(ino, ACCESS).unwrap(), named(6, 2, 0));
}

#[test]
fn a_list_that_permission_bits_can_hold_is_kept_in_them() {
    let (fs, ino) = fs();
    set(&fs, ino, ACCESS, &named(7, 7, 7)).unwrap();
    let plain = [
        (OWNER, 6, NO_ID),
        (OWNING_GROUP, 4, NO_ID),
        (OTHER, 0, NO_ID),
    ];
    set(&fs, ino, ACCESS, &acl(&plain)).unwrap();
    assert_eq!(fs.attributes().get(ino).unwrap().permissions, 0o640);
    assert!(has_none(&fs, ino, ACCESS));
    set(&fs, ino, ACCESS, &named(7, 7, 7)).unwrap();
    set(&fs, ino, ACCESS, &acl(&[])).unwrap();
    assert!(has_none(&fs, ino, ACCESS));
    assert_eq!(fs.attributes().get(ino).unwrap().permissions, 0o777);
}

#[test]
fn lists_that_say_too_little_or_too_much_are_refused() {
    let (fs, ino) = fs();
    let plain = [
        (OWNER, 6, NO_ID),
        (OWNING_GROUP, 4, NO_ID),
        (OTHER, 0, NO_ID),
    ];
    let mut refused = vec![Vec::new(), vec![2, 0, 0], [acl(&plain), vec![0]].concat()];
    for left_out in 0..3 {
        let mut entries = plain.to_vec();
        entries.remove(left_out);
        refused.push(acl(&entries));
    }
    for wrong in [
        vec![plain[0], (USER, 7, 7), plain[1], plain[2]],
        vec![
            plain[0],
            (USER, 7, NO_ID),
            plain[1],
            (MASK, 7, NO_ID),
            plain[2],
        ],
        vec![
            plain[0],
            (USER, 7, 1),
            (USER, 6, 1),
            plain[1],
            (MASK, 7, NO_ID),
            plain[2],
        ],
        vec![plain[0], plain[1], (GROUP, 7, 1), plain[2]],
        vec![plain[0], plain[1], plain[2], plain[2]],
        vec![plain[1], plain[0], plain[2]],
        vec![(OWNER, 8, NO_ID), plain[1], plain[2]],
        vec![plain[0], plain[1], (64, 0, NO_ID), plain[2]],
    ] {
        refused.push(acl(&wrong));
    }
    for value in refused {
        let result = set(&fs, ino, ACCESS, &value);
        assert!(
            matches!(result, Err(FsError::Invalid)),
            "{value:?}: {result:?}"
        );
    }
    let mut newer = acl(&plain);
    newer[0] = 3;
    assert!(matches!(
        set(&fs, ino, ACCESS, &newer),
        Err(FsError::Unsupported)
    ));
    assert_eq!(
        fs.attributes().get(ino).unwrap().permissions,
        0o644,
        "nothing changed"
    );
}

#[test]
fn only_directories_hand_lists_down() {
    let (fs, ino) = fs();
    let refused = set(&fs, ino, DEFAULT, &named(7, 7, 7));
    assert!(
        matches!(refused, Err(FsError::PermissionDenied)),
        "{refused:?}"
    );
    let link = fs
        .names()
        .symlink(ROOT, Ino::ROOT, b"link", b"file")
        .unwrap()
        .ino;
    let refused = set(&fs, link, ACCESS, &named(7, 7, 7));
    assert!(matches!(refused, Err(FsError::Unsupported)), "{refused:?}");
}

#[test]
fn files_below_a_default_acl_get_it_and_no_umask() {
    let (fs, _) = fs();
    let caller = &Caller {
        umask: 0o077,
        ..*ROOT
    };
    let dir = fs
        .names()
        .mkdir(ROOT, Ino::ROOT, b"dir", 0o755)
        .unwrap()
        .ino;
    set(&fs, dir, DEFAULT, &named(7, 7, 5)).unwrap();
    let file = fs
        .names()
        .mknod(caller, dir, b"file", 0o100_664, 0)
        .unwrap();
    let below = fs.names().mkdir(caller, dir, b"below", 0o777).unwrap();
    let link = fs.names().symlink(caller, dir, b"link", b"x").unwrap();
    let lists = |attr: &Attr| [ACCESS, DEFAULT].map(|name| fs.xattrs().get(attr.ino, name).ok());
    assert_eq!(file.permissions, 0o664);
    assert_eq!(lists(&file), [Some(named(6, 6, 4)), None]);
    assert_eq!(below.permissions, 0o775);
    assert_eq!(lists(&below), [Some(named(7, 7, 5)), Some(named(7, 7, 5))]);
    assert_eq!(link.permissions, 0o777);
    assert_eq!(lists(&link), [None, None]);
    let plain = fs
        .names()
        .mknod(caller, Ino::ROOT, b"plain", 0o100_664, 0)
        .unwrap();
    assert_eq!(plain.permissions, 0o600, "without a list the umask counts");
    assert_eq!(check::check(fs.maintenance(), false).unwrap().findings, []);
}

#[test]
fn a_caller_outside_the_group_loses_setgid_when_it_sets_a_list() {
    let (fs, ino) = fs();
    let outside = Caller {
        uid: 1000,
        gid: 1000,
        ..*ROOT
    };
    let inside = Caller {
        groups: |_| vec![5, 20],
        ..outside
    };
    for (caller, expected) in [(inside, 0o2775), (outside, 0o775)] {
        let changes = Changes {
            gid: Some(20),
            ..Changes::default()
        };
        fs.attributes().set(ROOT, ino, changes).unwrap();
        let changes = Changes {
            permissions: Some(0o2755),
            ..Changes::default()
        };
        fs.attributes().set(ROOT, ino, changes).unwrap();
        fs.xattrs()
            .set(&caller, ino, ACCESS, &named(7, 7, 5), XattrMode::Set)
            .unwrap();
        assert_eq!(fs.attributes().get(ino).unwrap().permissions, expected);
    }
}
