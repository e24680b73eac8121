//! Filesystems of one kind or another to put members on.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{eventually, must, run, text};

/// The kinds on which everything must work alike, and one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskKind {
    Tmpfs,
    Ext4,
    Xfs,
    Btrfs,
    /// Reserves no space for files, as network filesystems and others do not.
    Ext2,
}

impl DiskKind {
    pub(crate) const ALL: [Self; 4] = [Self::Tmpfs, Self::Ext4, Self::Xfs, Self::Btrfs];

    fn mkfs(self) -> &'static [&'static str] {
        match self {
            Self::Tmpfs => &[],
            Self::Ext4 => &["mkfs.ext4", "-q", "-F"],
            Self::Xfs => &["mkfs.xfs", "-q", "-f"],
            Self::Btrfs => &["mkfs.btrfs", "-q", "-f"],
            Self::Ext2 => &["mkfs.ext2", "-q", "-F"],
        }
    }
}

/// A filesystem of its own, mounted in a temporary directory until it is dropped.
#[derive(Debug)]
pub(crate) struct Disk {
    home: TempDir,
    mounted: PathBuf,
    kind: DiskKind,
    /// The number of times that it was switched on.
    starts: u32,
    frozen: bool,
}

impl Disk {
    /// Makes a filesystem of `mebibytes`; on disk it takes what is written to it.
    pub(crate) fn new(kind: DiskKind, mebibytes: u64) -> Self {
        let home = tempfile::Builder::new()
            .prefix("cauchyfs-disk-")
            .tempdir()
            .expect("there is room for a temporary directory");
        let mounted = home.path().join("fs");
        let disk = Self {
            home,
            mounted,
            kind,
            starts: 0,
            frozen: false,
        };
        fs::create_dir(disk.path()).expect("the home is empty");
        let at = disk.path().to_str().expect("test paths are text");
        let Some((program, arguments)) = kind.mkfs().split_first() else {
            let size = format!("size={mebibytes}m,mode=755");
            must("mount", &["-t", "tmpfs", "-o", &size, "cauchyfs-test", at]);
            return disk;
        };
        let image = disk.image();
        let file = fs::File::create(&image).expect("the home is writable");
        file.set_len(mebibytes << 20)
            .expect("sparse files are possible");
        let image = image.to_str().expect("test paths are text");
        must(program, &[arguments, &[image]].concat());
        must("mount", &["-o", "loop", image, at]);
        disk
    }

    /// Returns where it is mounted.
    pub(crate) fn path(&self) -> &Path {
        &self.mounted
    }

    fn ballast(&self) -> PathBuf {
        self.mounted.join("ballast")
    }

    /// Leaves no room on it.
    pub(crate) fn fill(&self) {
        let space = rustix::fs::statvfs(&self.mounted).expect("the disk is mounted");
        let mut options = fs::File::options();
        let file = options.create(true).append(true).open(self.ballast());
        let file = file.expect("the disk is writable");
        let mut step = space.f_bavail * space.f_frsize;
        let mut len = file.metadata().expect("it is a file").len();
        // Filesystems need some for themselves: as much as goes.
        while step >= 4096 {
            let flags = rustix::fs::FallocateFlags::empty();
            if rustix::fs::fallocate(&file, flags, len, step).is_ok() {
                len += step;
            } else {
                step /= 2;
            }
        }
    }

    /// Gives back what [`Disk::fill`] took.
    pub(crate) fn empty(&self) {
        must("rm", &["-f", text(&self.ballast())]);
    }

    fn image(&self) -> PathBuf {
        self.home.path().join(format!("image{}", self.starts))
    }

    /// Says whether [`Disk::cut`] and [`Disk::freeze`] can be called.
    pub(crate) fn is_real(&self) -> bool {
        matches!(self.kind, DiskKind::Ext4 | DiskKind::Xfs)
    }

    /// Cuts its power: what was not synced is lost, and every operation fails from now on.
    pub(crate) fn cut(&self) {
        must("xfs_io", &["-x", "-c", "shutdown", text(&self.mounted)]);
    }

    /// Switches it on again after [`Disk::cut`].
    pub(crate) fn restart(&mut self) {
        must("umount", &["-l", text(&self.mounted)]);
        // A process may have files of the old one open, which must not keep the new one from being made.
        let old = self.image();
        self.starts += 1;
        must("cp", &["--sparse=always", text(&old), text(&self.image())]);
        fs::remove_file(old).expect("it is there");
        let options = match self.kind {
            DiskKind::Xfs => "loop,nouuid",
            _ => "loop",
        };
        let (image, mounted) = (self.image(), &self.mounted);
        must("mount", &["-o", options, text(&image), text(mounted)]);
    }

    /// Unmounts it after [`Disk::cut`] as soon as it is not in use any more, and mounts it again.
    pub(crate) fn mount_again(&mut self) {
        eventually("nothing of the disk is in use", || {
            run("umount", &[text(&self.mounted)]).status.success()
        });
        must(
            "mount",
            &["-o", "loop", text(&self.image()), text(&self.mounted)],
        );
    }

    /// Has everything that is written to it wait, until it is thawed.
    pub(crate) fn freeze(&mut self) {
        must("fsfreeze", &["-f", text(&self.mounted)]);
        self.frozen = true;
    }

    /// See [`Disk::freeze`].
    pub(crate) fn thaw(&mut self) {
        must("fsfreeze", &["-u", text(&self.mounted)]);
        self.frozen = false;
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let path = self.mounted.to_str().expect("test paths are text");
        if self.frozen {
            run("fsfreeze", &["-u", path]);
        }
        run("umount", &["-l", path]);
    }
}
