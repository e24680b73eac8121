//! A mount as the upper layer of overlayfs, as containers use it, and the whiteouts that this takes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::RenameFlags;

use crate::support::{Shape, TestVolume, must, run, skip_mounts, text};

/// Returns whether the kernel has overlayfs, and says so if not.
fn has_overlay() -> bool {
    // It may be a module that is not loaded yet.
    drop(Command::new("modprobe").arg("overlay").output());
    let filesystems = fs::read_to_string("/proc/filesystems").expect("the kernel lists them");
    let found = filesystems.lines().any(|line| line.ends_with("\toverlay"));
    if !found {
        eprintln!("left out: this kernel has no overlayfs");
    }
    found
}

/// An overlay over a directory, with its changes on a volume.
struct Overlay<'a> {
    volume: &'a TestVolume,
    lower: PathBuf,
    merged: PathBuf,
}

impl<'a> Overlay<'a> {
    fn new(volume: &'a TestVolume) -> Self {
        let overlay = Self {
            volume,
            lower: volume.home.join("lower"),
            merged: volume.home.join("merged"),
        };
        for directory in [
            &overlay.lower,
            &overlay.merged,
            &volume.path("upper"),
            &volume.path("work"),
        ] {
            fs::create_dir(directory).expect("it is new");
        }
        overlay
    }

    fn mount(&self) {
        let (upper, work) = (self.volume.path("upper"), self.volume.path("work"));
        let options = format!(
            "lowerdir={},upperdir={},workdir={},redirect_dir=on",
            text(&self.lower),
            text(&upper),
            text(&work)
        );
        let merged = text(&self.merged);
        must(
            "mount",
            &["-t", "overlay", "overlay", "-o", &options, merged],
        );
    }

    fn unmount(&self) {
        must("umount", &[text(&self.merged)]);
    }
}

impl Drop for Overlay<'_> {
    fn drop(&mut self) {
        // After a failure it keeps the volume busy.
        drop(run("umount", &["-l", text(&self.merged)]));
    }
}

#[test]
fn a_rename_leaves_a_whiteout_where_it_is_asked_to() {
    if skip_mounts() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 256);
    volume.mount();
    let (old, new) = (volume.path("old"), volume.path("new"));
    let rename =
        |flags| rustix::fs::renameat_with(rustix::fs::CWD, &old, rustix::fs::CWD, &new, flags);
    fs::write(&old, "old").unwrap();
    fs::write(&new, "new").unwrap();
    let whiteout = RenameFlags::WHITEOUT;
    assert_eq!(
        rename(whiteout | RenameFlags::EXCHANGE),
        Err(rustix::io::Errno::INVAL)
    );
    assert_eq!(
        rename(whiteout | RenameFlags::NOREPLACE),
        Err(rustix::io::Errno::EXIST)
    );
    assert_eq!(fs::read(&old).unwrap(), b"old");
    rename(whiteout).unwrap();
    let check = || {
        assert_eq!(fs::read(&new).unwrap(), b"old");
        let left = fs::symlink_metadata(&old).unwrap();
        assert_eq!((left.mode(), left.rdev()), (libc::S_IFCHR, 0));
        let mut listed: Vec<_> = fs::read_dir(&volume.mountpoint)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        listed.sort_unstable();
        assert_eq!(listed, ["new", "old"]);
    };
    check();
    volume.remount();
    check();
    fs::remove_file(&new).unwrap();
    rename(whiteout | RenameFlags::NOREPLACE).unwrap();
    assert_eq!(fs::symlink_metadata(&new).unwrap().mode(), libc::S_IFCHR);
    volume.unmount();
}

#[test]
fn a_mount_keeps_the_changes_of_an_overlay() {
    if skip_mounts() || !has_overlay() {
        return;
    }
    let volume = TestVolume::create(Shape::FOUR_TWO, 256);
    volume.mount();
    let overlay = Overlay::new(&volume);
    let lower = |name: &str| overlay.lower.join(name);
    let merged = |name: &str| overlay.merged.join(name);
    fs::create_dir_all(lower("directory/inner")).unwrap();
    for name in [
        "kept",
        "deleted",
        "edited",
        "renamed",
        "directory/inner/file",
    ] {
        fs::write(lower(name), name).unwrap();
    }
    overlay.mount();
    fs::remove_file(merged("deleted")).unwrap();
    fs::rename(merged("renamed"), merged("moved")).unwrap();
    fs::write(merged("edited"), "edited twice").unwrap();
    // Not copied: the upper layer notes where it came from.
    fs::rename(merged("directory"), merged("elsewhere")).unwrap();
    fs::write(merged("elsewhere/inner/new"), "new").unwrap();
    fs::create_dir(merged("directory")).unwrap();
    let check = || {
        for (name, content) in [
            ("kept", "kept"),
            ("moved", "renamed"),
            ("edited", "edited twice"),
            ("elsewhere/inner/file", "directory/inner/file"),
            ("elsewhere/inner/new", "new"),
        ] {
            assert_eq!(fs::read_to_string(merged(name)).unwrap(), content, "{name}");
        }
        for name in ["deleted", "renamed", "directory/inner"] {
            assert!(!merged(name).exists(), "{name}");
        }
        let mut listed: Vec<_> = fs::read_dir(&overlay.merged)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        listed.sort_unstable();
        assert_eq!(
            listed,
            ["directory", "edited", "elsewhere", "kept", "moved"]
        );
    };
    check();
    overlay.unmount();
    for name in ["upper/deleted", "upper/renamed"] {
        let whiteout = fs::symlink_metadata(volume.path(name)).unwrap();
        assert_eq!(whiteout.mode() & libc::S_IFMT, libc::S_IFCHR, "{name}");
        assert_eq!(whiteout.rdev(), 0, "{name}");
    }
    volume.remount();
    overlay.mount();
    check();
    overlay.unmount();
    volume.unmount();
    let (said, code) = volume.check(&[]);
    assert_eq!(code, 0, "{said}");
}
