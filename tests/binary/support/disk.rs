//! Filesystems of one kind or another to put members on.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{must, run};

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
pub(crate) struct Disk {
    home: TempDir,
    mounted: PathBuf,
}

impl Disk {
    /// Makes a filesystem of `mebibytes`; on disk it takes what is written to it.
    pub(crate) fn new(kind: DiskKind, mebibytes: u64) -> Self {
        let home = tempfile::Builder::new()
            .prefix("cauchyfs-disk-")
            .tempdir()
            .expect("there is room for a temporary directory");
        let mounted = home.path().join("fs");
        let disk = Self { home, mounted };
        fs::create_dir(disk.path()).expect("the home is empty");
        let at = disk.path().to_str().expect("test paths are text");
        let Some((program, arguments)) = kind.mkfs().split_first() else {
            let size = format!("size={mebibytes}m,mode=755");
            must("mount", &["-t", "tmpfs", "-o", &size, "cauchyfs-test", at]);
            return disk;
        };
        let image = disk.home.path().join("image");
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
}

impl Drop for Disk {
    fn drop(&mut self) {
        let path = self.mounted.to_str().expect("test paths are text");
        run("umount", &["-l", path]);
    }
}
