//! The directory in which the jobs work.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use uuid::Uuid;

use super::error::FsBenchError;
use super::load::{BLOCK, Load};

/// The start of the name of a site.
const PREFIX: &str = "cauchyfs-bench-";

/// A new directory with a unique name. Dropping it removes it with everything in it.
#[derive(Debug)]
pub struct FsSite {
    path: PathBuf,
    /// True while it must be removed.
    is_there: bool,
    /// Cleared if the filesystem refuses `O_DIRECT`.
    is_direct: bool,
    /// The number of small files.
    pub(super) files: u64,
}

impl FsSite {
    /// Makes a site in `parent`, which must have room for `load`.
    ///
    /// # Errors
    ///
    /// If there is too little room, or the directory cannot be made.
    pub fn create(parent: &Path, load: &Load) -> Result<Self, FsBenchError> {
        check_free(parent, load.bytes_needed())?;
        let path = parent.join(format!("{PREFIX}{}", Uuid::new_v4()));
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(FsBenchError::of("make a directory in", parent))?;
        Ok(Self {
            path,
            is_there: true,
            is_direct: true,
            files: 0,
        })
    }

    /// Returns whether random reads go past the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Removes it with everything in it.
    ///
    /// # Errors
    ///
    /// If something cannot be removed. It is not tried again.
    pub fn remove(&mut self) -> Result<(), FsBenchError> {
        if !std::mem::replace(&mut self.is_there, false) {
            return Ok(());
        }
        fs::remove_dir_all(&self.path).map_err(FsBenchError::of("remove", &self.path))
    }

    /// Returns a path in it.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a file to be read at random. It bypasses the page cache where the filesystem allows that; else the page
    /// cache is emptied of it.
    pub(super) fn open_past_cache(&mut self, path: &Path) -> io::Result<File> {
        if self.is_direct {
            match open_direct(path) {
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                    self.is_direct = false;
                }
                opened => return opened,
            }
        }
        let file = File::open(path)?;
        drop_cache(&file)?;
        Ok(file)
    }
}

impl Drop for FsSite {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!("{error}");
        }
    }
}

/// Checks that so many bytes have room in each of `directories`. Those on one filesystem need their sum.
///
/// # Errors
///
/// If there is too little room, or a directory cannot be looked at.
pub fn check_room(directories: &[PathBuf], bytes: u64) -> Result<(), FsBenchError> {
    let mut needs = HashMap::new();
    for directory in directories {
        let found = fs::metadata(directory).map_err(FsBenchError::of("look at", directory))?;
        let needed: &mut u64 = needs.entry(found.dev()).or_default();
        *needed = needed.saturating_add(bytes);
        check_free(directory, *needed)?;
    }
    Ok(())
}

fn check_free(directory: &Path, needed: u64) -> Result<(), FsBenchError> {
    let space = rustix::fs::statvfs(directory).map_err(FsBenchError::of("look at", directory))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if free < needed {
        let path = directory.to_owned();
        return Err(FsBenchError::NoSpace { path, free, needed });
    }
    Ok(())
}

/// Opens a file with `O_DIRECT`, and reads a block. Some filesystems refuse the first of these, and some the second.
fn open_direct(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)?;
    file.read_at(AlignedBlock::new().bytes(), 0)?;
    Ok(file)
}

/// Empties the kernel's page cache of a file that has no unwritten pages.
pub(super) fn drop_cache(file: &File) -> io::Result<()> {
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

/// Memory for a block, aligned as `O_DIRECT` needs it.
pub(super) struct AlignedBlock(Vec<u8>);

impl AlignedBlock {
    pub(super) fn new() -> Self {
        Self(vec![0; 2 * BLOCK])
    }

    /// Returns the memory.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(BLOCK);
        &mut self.0[start..start + BLOCK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(size: u64) -> Load {
        Load {
            size,
            seconds: std::time::Duration::ZERO,
            jobs: 1,
        }
    }

    #[test]
    fn a_site_is_refused_without_room_or_place_and_nothing_is_made() {
        let home = tempfile::tempdir().unwrap();
        let refused = FsSite::create(home.path(), &load(u64::MAX));
        assert!(matches!(refused, Err(FsBenchError::NoSpace { .. })));
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
        let absent = FsSite::create(&home.path().join("none"), &load(1));
        let Err(FsBenchError::Io { source, .. }) = absent else {
            panic!("{absent:?}");
        };
        assert_eq!(source.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn directories_on_one_filesystem_need_the_sum_of_their_room() {
        let home = tempfile::tempdir().unwrap();
        let space = rustix::fs::statvfs(home.path()).unwrap();
        let most = space.f_bavail * space.f_frsize / 3 * 2;
        let mut directories = vec![home.path().to_owned()];
        check_room(&directories, most).unwrap();
        directories.push(home.path().to_owned());
        let Err(FsBenchError::NoSpace { needed, .. }) = check_room(&directories, most) else {
            panic!("twice two thirds are more than there is");
        };
        assert_eq!(needed, 2 * most);
        let absent = check_room(&[home.path().join("none")], 1);
        assert!(matches!(absent, Err(FsBenchError::Io { .. })));
    }

    #[test]
    fn two_sites_have_two_names_and_each_removes_its_own() {
        let home = tempfile::tempdir().unwrap();
        let [mut one, two] = [(); 2].map(|()| FsSite::create(home.path(), &load(1)).unwrap());
        fs::write(one.path("data"), "x").unwrap();
        let kept = two.path("data");
        fs::write(&kept, "x").unwrap();
        one.remove().unwrap();
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
        assert!(kept.exists());
        drop(two);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }
}
