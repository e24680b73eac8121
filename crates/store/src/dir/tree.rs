//! Names below one directory: opening, making, renaming and removing without following links.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{self as sys, AtFlags, Dir, FileType, IFlags, OFlags};
use rustix::io::Errno;

use super::calls::{DIR_MODE, FILE_MODE, NO_FOLLOW, retry};
use super::identity::{DirectoryIdentity, Inode};
use super::own::{Failed, Rule, Seen, Trust};
use crate::name::Name;
use crate::{EntryKind, Visitor};

/// The unit of `st_blocks`, whatever the block size of the filesystem is.
const STAT_BLOCK_BYTES: u64 = 512;

/// A directory held open, with its subdirectories as they are used.
#[derive(Debug)]
pub(super) struct Tree {
    top: Arc<OwnedFd>,
    rule: Rule,
    subdirs: Mutex<HashMap<String, Subdirectory>>,
    /// Subdirectories whose own names are known to be durable.
    durable: Mutex<HashSet<String>>,
}

/// A subdirectory in use.
#[derive(Clone, Debug)]
struct Subdirectory {
    held: Arc<OwnedFd>,
    inode: Inode,
}

/// The state of the path from which a directory was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PathState {
    /// The directory itself.
    Ours,
    /// It is there, without this subdirectory.
    Emptied(String),
    /// Another one.
    Taken,
}

impl Tree {
    /// Opens the directory at `path`; the path itself may lead over symbolic links. The files `owners` tell whose files
    /// are its own.
    pub(super) fn open(path: &Path, owners: &[&str], trust: Trust) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = retry(|| sys::open(path, flags, sys::Mode::empty()))?;
        let rule = Rule::new(Seen::of(&top)?, trust, owners, |base| {
            Seen::named(&top, base)
        });
        Ok(Self {
            top: Arc::new(top),
            rule,
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
        self.rule.top().identity
    }

    /// Returns what tells the directory from a copy. Looks at nothing.
    pub(super) fn directory_identity(&self) -> DirectoryIdentity {
        let subdirs = self.subdirs.lock();
        let inode = |(dir, subdir): (&String, &Subdirectory)| (dir.clone(), subdir.inode);
        DirectoryIdentity {
            top: Inode::of(self.rule.top()),
            subdirs: subdirs.iter().map(inode).collect(),
        }
    }

    /// Returns whether this is the directory of an identity. A subdirectory that is not there tells nothing.
    pub(super) fn is_directory(&self, identity: &DirectoryIdentity) -> Result<bool, Failed> {
        if Inode::of(self.rule.top()) != identity.top {
            return Ok(false);
        }
        for (dir, inode) in &identity.subdirs {
            match Seen::named(&self.top, dir.as_str()) {
                Ok(seen) if Inode::of(&seen) == *inode => {}
                Err(Errno::NOENT) => {}
                Ok(_) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }

    /// Returns the rule by which the directory knows its own files.
    pub(super) fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Says whether `path`, and the names of the subdirectories in use, still lead to the
    /// directories that are held open.
    pub(super) fn look(&self, path: &Path) -> Result<PathState, Errno> {
        let now = retry(|| sys::stat(path))?;
        if (now.st_dev, now.st_ino) != self.identity() {
            return Ok(PathState::Taken);
        }
        let subdirs: Vec<_> = self
            .subdirs
            .lock()
            .iter()
            .map(|(dir, subdir)| (dir.clone(), Arc::clone(&subdir.held)))
            .collect();
        for (dir, held) in subdirs {
            let held = sys::fstat(&held)?;
            match retry(|| sys::statat(&self.top, dir.as_str(), NO_FOLLOW)) {
                Ok(now) if (now.st_dev, now.st_ino) == (held.st_dev, held.st_ino) => {}
                Ok(_) => return Ok(PathState::Taken),
                Err(Errno::NOENT) => return Ok(PathState::Emptied(dir)),
                Err(errno) => return Err(errno),
            }
        }
        Ok(PathState::Ours)
    }

    /// Opens a file of the directory's own; `flags` add to those that every file gets. No file of others is opened, and
    /// `flags` must not change one before it was looked at.
    pub(super) fn open_file(&self, name: Name<'_>, flags: OFlags) -> Result<OwnedFd, Failed> {
        let parent = self.dir(name.dir)?;
        self.check(&Seen::named(&parent, name.base)?)?;
        // Another file may have taken the name since then: a fifo must not block, nor a terminal become ours.
        let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = open_at(&parent, name.base, flags)?;
        self.check(&Seen::of(&file)?)?;
        let flags = sys::fcntl_getfl(&file)?;
        sys::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
        Ok(file)
    }

    /// Makes a file, also where one that is not the directory's own has its name: that one loses the name, and nothing
    /// else.
    pub(super) fn create_file(&self, name: Name<'_>) -> Result<OwnedFd, Failed> {
        let parent = self.dir(name.dir)?;
        let new = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = match open_at(&parent, name.base, new) {
            Err(Errno::EXIST) if self.check(&Seen::named(&parent, name.base)?).is_err() => {
                self.unlink(name)?;
                open_at(&parent, name.base, new)?
            }
            opened => opened?,
        };
        self.rule.accept_owner_of_new(&Seen::of(&file)?);
        // The umask may have taken away more than it had to.
        sys::fchmod(&file, FILE_MODE)?;
        Ok(file)
    }

    fn check(&self, file: &Seen) -> Result<(), Failed> {
        self.rule.check_file(file).map_err(Failed::Foreign)
    }

    /// Opens a file for reading and writing, or for reading alone where nothing else is allowed.
    pub(super) fn open_existing(&self, name: Name<'_>, flags: OFlags) -> Result<OwnedFd, Failed> {
        match self.open_file(name, flags | OFlags::RDWR) {
            Err(Failed::Call(Errno::ROFS | Errno::ACCESS)) => {
                self.open_file(name, flags | OFlags::RDONLY)
            }
            other => other,
        }
    }

    /// Looks at a file of the directory's own.
    pub(super) fn stat(&self, name: Name<'_>) -> Result<Seen, Failed> {
        let parent = self.dir(name.dir)?;
        let seen = Seen::named(&parent, name.base)?;
        self.check(&seen).map(|()| seen)
    }

    /// Returns device and inode number of whatever has a name, also if it is not the directory's own.
    pub(super) fn identity_at(&self, name: Name<'_>) -> Result<(u64, u64), Failed> {
        let parent = self.dir(name.dir)?;
        Ok(Seen::named(&parent, name.base)?.identity)
    }

    /// Removes a file.
    pub(super) fn unlink(&self, name: Name<'_>) -> Result<(), Failed> {
        let parent = self.dir(name.dir)?;
        Ok(retry(|| {
            sys::unlinkat(&parent, name.base, AtFlags::empty())
        })?)
    }

    /// Removes a subdirectory that is empty.
    pub(super) fn remove_dir(&self, dir: &str) -> Result<(), Errno> {
        retry(|| sys::unlinkat(&self.top, dir, AtFlags::REMOVEDIR))?;
        self.subdirs.lock().remove(dir);
        self.durable.lock().remove(dir);
        Ok(())
    }

    /// Renames a file over whatever has the new name.
    pub(super) fn rename(&self, from: Name<'_>, to: Name<'_>) -> Result<(), Failed> {
        let (source, target) = (self.dir(from.dir)?, self.dir(to.dir)?);
        Ok(retry(|| {
            sys::renameat(&source, from.base, &target, to.base)
        })?)
    }

    /// Makes a subdirectory, durably, unless it is there.
    pub(super) fn make_dir(&self, dir: &str) -> Result<(), Failed> {
        if dir.is_empty() || self.durable.lock().contains(dir) {
            return Ok(());
        }
        match retry(|| sys::mkdirat(&self.top, dir, DIR_MODE)) {
            // The umask may have taken away more than it had to.
            Ok(()) => sys::fchmod(&*self.dir(dir)?, DIR_MODE)?,
            // One that is there may have been made by a daemon that was killed before it synced.
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.sync_dir("")?;
        self.durable.lock().insert(dir.to_owned());
        Ok(())
    }

    /// Makes the names in a directory durable. Filesystems that cannot sync a directory have no
    /// names in flight.
    pub(super) fn sync_dir(&self, dir: &str) -> Result<(), Failed> {
        let held = self.dir(dir)?;
        match retry(|| sys::fsync(&held)) {
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Returns names and lengths of the directory's own files in it or in a subdirectory, in order of name; names that
    /// no store takes are left out.
    pub(super) fn list(&self, dir: &str) -> Result<Vec<(String, u64)>, Failed> {
        let mut files = Vec::new();
        self.for_each_file(dir, |base, seen| files.push((joined(dir, base), seen.len)))?;
        files.sort_unstable();
        Ok(files)
    }

    /// Returns the same names in no order, with the bytes that each file takes.
    pub(super) fn taken_by_file(&self, dir: &str) -> Result<Vec<(String, u64)>, Failed> {
        let mut files = Vec::new();
        self.for_each_file(dir, |base, seen| {
            files.push((joined(dir, base), taken_by(seen)));
        })?;
        Ok(files)
    }

    /// Returns the bytes that the same files take together.
    pub(super) fn taken(&self, dir: &str) -> Result<u64, Failed> {
        let mut taken = 0;
        self.for_each_file(dir, |_, seen| {
            taken += taken_by(seen);
        })?;
        Ok(taken)
    }

    /// Shows the entries of a directory, whatever they are, until `look` breaks; one that is absent has none.
    pub(super) fn visit(&self, dir: &str, look: &mut Visitor<'_>) -> Result<(), Failed> {
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
                    Err(errno) => return Err(errno.into()),
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

    /// Looks at every file of the directory's own in it or in a subdirectory; one that is absent has none.
    fn for_each_file(&self, dir: &str, mut look: impl FnMut(&str, &Seen)) -> Result<(), Failed> {
        self.for_each_entry(dir, |base, seen| {
            if self.check(seen).is_ok() {
                look(base, seen);
            }
            ControlFlow::Continue(())
        })
    }

    /// Looks at every entry with a name that a store takes, until `look` breaks.
    pub(super) fn for_each_entry(
        &self,
        dir: &str,
        mut look: impl FnMut(&str, &Seen) -> ControlFlow<()>,
    ) -> Result<(), Failed> {
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
            let looked = match Seen::named(&held, base) {
                Ok(seen) => look(base, &seen),
                Err(Errno::NOENT) => continue, // removed meanwhile
                Err(errno) => return Err(errno.into()),
            };
            if looked.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The same as [`Tree::dir`], but a subdirectory may be absent.
    fn dir_if_there(&self, dir: &str) -> Result<Option<Arc<OwnedFd>>, Failed> {
        match self.dir(dir) {
            Err(Failed::Call(Errno::NOENT)) if !dir.is_empty() => Ok(None),
            held => held.map(Some),
        }
    }

    /// Returns the descriptor of a subdirectory, or of the top for `""`.
    fn dir(&self, dir: &str) -> Result<Arc<OwnedFd>, Failed> {
        if dir.is_empty() {
            return Ok(Arc::clone(&self.top));
        }
        if let Some(subdir) = self.subdirs.lock().get(dir) {
            return Ok(Arc::clone(&subdir.held));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let held = Arc::new(retry(|| {
            sys::openat(&self.top, dir, flags, sys::Mode::empty())
        })?);
        let seen = Seen::of(&held)?;
        let checked = self.rule.check_directory(&seen);
        checked.map_err(Failed::ForeignDirectory)?;
        let inode = Inode::of(&seen);
        let mut subdirs = self.subdirs.lock();
        let subdir = subdirs.entry(dir.to_owned());
        let subdir = subdir.or_insert(Subdirectory { held, inode });
        Ok(Arc::clone(&subdir.held))
    }
}

/// Returns the name of a file as a store takes it.
fn joined(dir: &str, base: &str) -> String {
    if dir.is_empty() {
        base.to_owned()
    } else {
        format!("{dir}/{base}")
    }
}

/// Opens a file, or makes one, without following a link; `flags` add to those that every file gets.
fn open_at(parent: &OwnedFd, base: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOATIME;
    match retry(|| sys::openat(parent, base, flags, FILE_MODE)) {
        // Only the owner of a file may leave its access time alone.
        Err(Errno::PERM) => {
            let flags = flags - OFlags::NOATIME;
            retry(|| sys::openat(parent, base, flags, FILE_MODE))
        }
        other => other,
    }
}

/// Returns the bytes that a file takes on its filesystem.
pub(super) fn taken_by(seen: &Seen) -> u64 {
    seen.blocks.saturating_mul(STAT_BLOCK_BYTES)
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
        tracing::debug!("a file that is overwritten may need new space: {errno}");
    }
}
