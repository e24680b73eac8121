//! Setuid and setgid of files that other users change, seen through the kernel.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use crate::support::{Shape, TestVolume, must, skip_mounts, text};

/// The group of the file.
const GROUP: u32 = 1234;

/// Becomes the user 65534 of the groups given, and changes a file.
const CHANGES: &str = r#"
import ctypes, mmap, os, sys

way, path, source, group, groups = sys.argv[1:6]
libc = ctypes.CDLL(None, use_errno=True)
source = os.open(source, os.O_RDONLY)
os.setgroups([int(number) for number in groups.split()])
os.setgid(int(group))
os.setuid(65534)
if way == "write":
    os.write(os.open(path, os.O_WRONLY), b"y")
elif way == "write past the cache":
    file = os.open(path, os.O_WRONLY | os.O_DIRECT)
    os.write(file, mmap.mmap(-1, 4096))
elif way == "truncate":
    os.truncate(path, 5000)
elif way == "open and truncate":
    os.open(path, os.O_WRONLY | os.O_TRUNC)
elif way == "punch":
    file = os.open(path, os.O_WRONLY)
    assert libc.fallocate(file, 3, ctypes.c_long(0), ctypes.c_long(4096)) == 0
elif way == "allocate":
    os.posix_fallocate(os.open(path, os.O_WRONLY), 0, 20000)
elif way == "copy":
    assert os.copy_file_range(source, os.open(path, os.O_WRONLY), 8192) == 8192
"#;

const WAYS: [&str; 7] = [
    "write",
    "write past the cache",
    "truncate",
    "open and truncate",
    "punch",
    "allocate",
    "copy",
];

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path)
        .expect("root may do all")
        .permissions()
        .mode()
        & 0o7777
}

/// Changes a file in all ways by a stranger to its group and by members of it, and returns its modes.
fn check_changes(options: &[&str]) {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 256);
    must("chmod", &["755", text(&volume.home)]);
    let options = [&["-o", "allow_other"], options].concat();
    let output = volume.try_mount(&[0, 1, 2, 3, 4, 5], &options);
    assert!(output.status.success(), "{output:?}");
    let (path, source) = (volume.path("changed"), volume.path("source"));
    fs::write(&source, [1; 8192]).expect("root may do all");
    fs::write(&path, [2; 16384]).expect("root may do all");
    chown(&path, None, Some(GROUP)).expect("root may do all");
    let mut wrong = Vec::new();
    for way in WAYS {
        for (group, groups, expected) in [
            ("65534", "", 0o666),
            ("1234", "", 0o2666),
            ("65534", "7 1234", 0o2666),
        ] {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o6666))
                .expect("root may do all");
            let (changed, copied) = (text(&path), text(&source));
            let words = ["-c", CHANGES, way, changed, copied, group, groups];
            must("python3", &words);
            let seen = mode_of(&path);
            if seen != expected {
                wrong.push(format!("{way} by {group} {groups}: {seen:o}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let before = mode_of(&path);
    volume.unmount();
    let output = volume.try_mount(&[0, 1, 2, 3, 4, 5], &options);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(mode_of(&path), before, "after a new mount");
    volume.unmount();
}

#[test]
fn setgid_goes_when_a_stranger_to_the_group_changes_a_file_and_stays_when_a_member_does() {
    check_changes(&[]);
}

#[test]
fn setgid_goes_as_well_where_the_kernel_requests_each_open() {
    check_changes(&["-o", "open_requests"]);
}

#[test]
fn setgid_goes_as_well_without_a_writeback_cache() {
    check_changes(&["-o", "no_writeback"]);
}
