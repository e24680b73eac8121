//! Names below one directory: opening, making, renaming and removing without following links.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{self as sys, AtFlags, Dir, FileType, IFlags, OFlags, Stat};
use rustix::io::Errno;

use super::{DIR_MODE, FILE_MODE, NO_FOLLOW, length_of, retry};
use crate::store::name::Name;
use crate::store::{EntryKind, Visitor};

/// The unit of `st_blocks`, whatever the block size of the filesystem is.
const STAT_BLOCK_BYTES: u64 = 512;

/// A directory held open, with its subdirectories as they are used.
#[derive(Debug)]
pub(super) struct Tree {
    top: Arc<OwnedFd>,
    identity: (u64, u64),
    subdirs: Mutex<HashMap<String, Arc<OwnedFd>>>,
    /// Subdirectories whose own names are known to be durable.
    durable: Mutex<HashSet<String>>,
}

/// What is where a directory was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The directory itself.
    Ours,
    /// It is there, without this subdirectory.
    Emptied(String),
    /// Another one.
    Taken,
}

impl Tree {
    /// Opens the directory at `path`; the path itself may lead over symbolic links.
    pub(super) fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = retry(|| sys::open(path, flags, sys::Mode::empty()))?;
        let stat = sys::fstat(&top)?;
        let identity = (stat.st_dev, stat.st_ino);
        Ok(Self {
            top: Arc::new(top),
            identity,
            subdirs: Mutex::default(),
            durable: Mutex::default(),
        })
    }

    /// Returns the number by which the kernel knows filesystems of this kind.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it has 32 bits, in a word that is longer or signed on some machines"
    )]
    pub(super) fn kind(&self) -> Result<u32, Errno> {
        Ok(sys::fstatfs(&self.top)?.f_type as u32)
    }

    /// Returns the descriptor of the directory itself.
    pub(super) fn top(&self) -> &OwnedFd {
        &self.top
    }

    /// Opens the directory itself once more.
    pub(super) fn reopen(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        retry(|| sys::openat(&self.top, ".", flags, sys::Mode::empty()))
    }

    /// Returns device and inode number.
    pub(super) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Says whether `path`, and the names of the subdirectories in use, still lead to the
    /// directories that are held open.
    pub(super) fn look(&self, path: &Path) -> Result<Place, Errno> {
        let now = retry(|| sys::stat(path))?;
        if (now.st_dev, now.st_ino) != self.identity {
            return Ok(Place::Taken);
        }
        let subdirs: Vec<_> = self
            .subdirs
            .lock()
            .iter()
            .map(|(dir, held)| (dir.clone(), Arc::clone(held)))
            .collect();
        for (dir, held) in subdirs {
            let held = sys::fstat(&held)?;
            match retry(|| sys::statat(&self.top, dir.as_str(), NO_FOLLOW)) {
                Ok(now) if (now.st_dev, now.st_ino) == (held.st_dev, held.st_ino) => {}
                Ok(_) => return Ok(Place::Taken),
                Err(Errno::NOENT) => return Ok(Place::Emptied(dir)),
                Err(errno) => return Err(errno),
            }
        }
        Ok(Place::Ours)
    }

    /// Opens a file; `flags` add to those that every file gets.
    pub(super) fn open_file(&self, name: Name<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
        let parent = self.dir(name.dir)?;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOATIME;
        match retry(|| sys::openat(&parent, name.base, flags, FILE_MODE)) {
            // Only the owner of a file may leave its access time alone.
            Err(Errno::PERM) => {
                let flags = flags - OFlags::NOATIME;
                retry(|| sys::openat(&parent, name.base, flags, FILE_MODE))
            }
            other => other,
        }
    }

    /// Opens a file for reading and writing, or for reading alone where nothing else is allowed.
    pub(super) fn open_existing(&self, name: Name<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
        match self.open_file(name, flags | OFlags::RDWR) {
            Err(Errno::ROFS | Errno::ACCESS) => self.open_file(name, flags | OFlags::RDONLY),
            other => other,
        }
    }

    /// Looks at what a name leads to.
    pub(super) fn stat(&self, name: Name<'_>) -> Result<Stat, Errno> {
        let parent = self.dir(name.dir)?;
        retry(|| sys::statat(&parent, name.base, NO_FOLLOW))
    }

    /// Removes a file.
    pub(super) fn unlink(&self, name: Name<'_>) -> Result<(), Errno> {
        let parent = self.dir(name.dir)?;
        retry(|| sys::unlinkat(&parent, name.base, AtFlags::empty()))
    }

    /// Removes a subdirectory that is empty.
    pub(super) fn remove_dir(&self, dir: &str) -> Result<(), Errno> {
        retry(|| sys::unlinkat(&self.top, dir, AtFlags::REMOVEDIR))?;
        self.subdirs.lock().remove(dir);
        self.durable.lock().remove(dir);
        Ok(())
    }

    /// Renames a file over whatever has the new name.
    pub(super) fn rename(&self, from: Name<'_>, to: Name<'_>) -> Result<(), Errno> {
        let (source, target) = (self.dir(from.dir)?, self.dir(to.dir)?);
        retry(|| sys::renameat(&source, from.base, &target, to.base))
    }

    /// Makes a subdirectory, durably, unless it is there.
    pub(super) fn make_dir(&self, dir: &str) -> Result<(), Errno> {
        if dir.is_empty() || self.durable.lock().contains(dir) {
            return Ok(());
        }
        match retry(|| sys::mkdirat(&self.top, dir, DIR_MODE)) {
            // One that is there may have been made by a daemon that was killed before it synced.
            Ok(()) | Err(Errno::EXIST) => self.sync_dir("")?,
            Err(errno) => return Err(errno),
        }
        self.durable.lock().insert(dir.to_owned());
        Ok(())
    }

    /// Makes the names in a directory durable. Filesystems that cannot sync a directory have no
    /// names in flight.
    pub(super) fn sync_dir(&self, dir: &str) -> Result<(), Errno> {
        let held = self.dir(dir)?;
        match retry(|| sys::fsync(&held)) {
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            other => other,
        }
    }

    /// Returns names and lengths of the regular files in a directory, in order of name; names that
    /// no store takes are not ours and left out.
    pub(super) fn list(&self, dir: &str) -> Result<Vec<(String, u64)>, Errno> {
        let mut files = Vec::new();
        self.for_each_file(dir, |base, stat| {
            let name = if dir.is_empty() {
                base.to_owned()
            } else {
                format!("{dir}/{base}")
            };
            files.push((name, length_of(stat)));
        })?;
        files.sort_unstable();
        Ok(files)
    }

    /// Returns the bytes that the same files take.
    pub(super) fn taken(&self, dir: &str) -> Result<u64, Errno> {
        let mut taken = 0;
        self.for_each_file(dir, |_, stat| {
            taken += taken_by(stat);
        })?;
        Ok(taken)
    }

    /// Shows the entries of a directory, whatever they are, until `look` breaks; one that is absent has none.
    pub(super) fn visit(&self, dir: &str, look: &mut Visitor<'_>) -> Result<(), Errno> {
        let Some(held) = self.dir_if_there(dir)? else {
            return Ok(());
        };
        for entry in Dir::read_from(&held)? {
            let entry = entry?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            let mut kind = entry.file_type();
            if kind == FileType::Unknown {
                kind = match retry(|| sys::statat(&held, entry.file_name(), NO_FOLLOW)) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(Errno::NOENT) => continue, // removed meanwhile
                    Err(errno) => return Err(errno),
                };
            }
            let kind = match kind {
                FileType::RegularFile => EntryKind::File,
                FileType::Directory => EntryKind::Directory,
                _ => EntryKind::Other,
            };
            if look(&entry.file_name().to_string_lossy(), kind).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Looks at every regular file in a directory; one that is absent has none.
    fn for_each_file(&self, dir: &str, mut look: impl FnMut(&str, &Stat)) -> Result<(), Errno> {
        let Some(held) = self.dir_if_there(dir)? else {
            return Ok(());
        };
        for entry in Dir::read_from(&held)? {
            let entry = entry?;
            let Ok(base) = entry.file_name().to_str() else {
                continue;
            };
            if Name::parse(base).is_none() {
                continue;
            }
            match retry(|| sys::statat(&held, base, NO_FOLLOW)) {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                    look(base, &stat);
                }
                Ok(_) | Err(Errno::NOENT) => {} // no file of ours, or removed meanwhile
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// The same as [`Tree::dir`], but a subdirectory may be absent.
    fn dir_if_there(&self, dir: &str) -> Result<Option<Arc<OwnedFd>>, Errno> {
        match self.dir(dir) {
            Err(Errno::NOENT) if !dir.is_empty() => Ok(None),
            held => held.map(Some),
        }
    }

    /// Returns the descriptor of a subdirectory, or of the top for `""`.
    fn dir(&self, dir: &str) -> Result<Arc<OwnedFd>, Errno> {
        if dir.is_empty() {
            return Ok(Arc::clone(&self.top));
        }
        if let Some(held) = self.subdirs.lock().get(dir) {
            return Ok(Arc::clone(held));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let held = Arc::new(retry(|| {
            sys::openat(&self.top, dir, flags, sys::Mode::empty())
        })?);
        Ok(Arc::clone(
            self.subdirs.lock().entry(dir.to_owned()).or_insert(held),
        ))
    }
}

/// Returns the bytes that a file takes on its filesystem.
pub(super) fn taken_by(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks)
        .unwrap_or(0)
        .saturating_mul(STAT_BLOCK_BYTES)
}

/// Asks a filesystem that writes everything to a new place to overwrite this new file where it lies: only
/// then does space that was reserved for it stay reserved. The checksums that btrfs gives up for that
/// are ours anyway.
pub(super) fn overwrite_in_place(file: &impl AsFd) {
    const BTRFS: u64 = 0x9123_683e;
    let kind = sys::fstatfs(file).map(|found| u64::try_from(found.f_type).unwrap_or(0));
    if kind != Ok(BTRFS) {
        return;
    }
    let flags = sys::ioctl_getflags(file);
    let set = flags.and_then(|flags| sys::ioctl_setflags(file, flags | IFlags::NOCOW));
    if let Err(errno) = set {
        log::debug!("a file that is overwritten may need new space: {errno}");
    }
}
