//! The directory that an extraction writes to.
//!
//! # Invariants
//!
//! - No call resolves a path: each takes the descriptor of a directory below OUT and one name in it.
//! - Nothing that is found in OUT is followed, opened for writing, or replaced. What is found there gets no attributes,
//!   but for a directory with the mark of an earlier extraction. Only a [`Made`] takes attributes, and only what this
//!   extraction has made, or such a directory, becomes one.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::made::Made;
use crate::format::NameFault;

/// Bytes of a path that are resolved at once; the system takes less than 4096.
const STEP_BYTES: usize = 2048;

/// Opens a directory by a path that neither leaves another directory nor leads through a symlink.
type OpenBeneath = fn(BorrowedFd<'_>, &[u8]) -> Result<OwnedFd, Errno>;

/// Gives a file another name: `linkat` without following a symlink.
type LinkAt = fn(BorrowedFd<'_>, &OsStr, BorrowedFd<'_>, &OsStr) -> Result<(), Errno>;

/// The method of opening directories below OUT.
#[derive(Clone, Copy, Debug)]
pub(super) enum Resolver {
    /// The kernel keeps a whole path beneath OUT, and free of symlinks (`openat2`, Linux 5.6).
    Kernel(OpenBeneath),
    /// Each name is opened in its directory without following it.
    EachName,
}

/// Device and number of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    number: u64,
}

impl Identity {
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            number: stat.st_ino,
        }
    }
}

/// The directory OUT, and what is in it.
pub(super) struct OutputDirectory {
    root: OwnedFd,
    /// Identity of OUT if it was made here.
    made: Option<Identity>,
    resolver: Resolver,
    link_at: LinkAt,
    /// The directory that was opened last: files of one directory follow each other.
    recent: Option<(Vec<u8>, OwnedFd)>,
}

impl OutputDirectory {
    /// Opens OUT, or makes it with `mode` where it does not exist.
    ///
    /// Links on the way to OUT are followed: the path is the caller's own.
    ///
    /// # Errors
    ///
    /// If it cannot be made, or is no directory.
    pub(super) fn open(out: &Path, mode: u32) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let (Some(parent), Some(name)) = (out.parent(), out.file_name()) {
            std::fs::create_dir_all(parent)?;
            let parent = rustix::fs::openat(CWD, parent, flags, Mode::empty())?;
            match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(mode)) {
                Ok(()) => {
                    let root =
                        rustix::fs::openat(&parent, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
                    let stat = of_kind(rustix::fs::fstat(&root)?, FileType::Directory)?;
                    return Ok(Self::new(root, Some(Identity::of(&stat))));
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let root = rustix::fs::openat(CWD, out, flags, Mode::empty())?;
        Ok(Self::new(root, None))
    }

    fn new(root: OwnedFd, made: Option<Identity>) -> Self {
        Self {
            root,
            made,
            resolver: Resolver::Kernel(beneath),
            link_at,
            recent: None,
        }
    }

    /// Resolves paths in another way.
    #[cfg(test)]
    pub(super) fn with_resolver(self, resolver: Resolver) -> Self {
        Self { resolver, ..self }
    }

    /// Makes hard links in another way.
    #[cfg(test)]
    pub(super) fn link_with(&mut self, link_at: LinkAt) {
        self.link_at = link_at;
    }

    /// Makes a directory that only its owner may enter. Returns nothing where there is one: it is used as it is.
    ///
    /// # Errors
    ///
    /// If it cannot be made, or something else has its name.
    pub(super) fn directory(&mut self, path: &[u8]) -> io::Result<Option<Identity>> {
        if path.is_empty() {
            return Ok(self.made);
        }
        let (parent, name) = self.parent(path)?;
        match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
            Ok(()) => {
                let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
                Ok(Some(Identity::of(&of_kind(stat, FileType::Directory)?)))
            }
            Err(Errno::EXIST) => {
                let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory => Ok(None),
                    FileType::Symlink => Err(Errno::LOOP.into()),
                    _ => Err(Errno::EXIST.into()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Marks a directory that was made here as one that is being filled.
    ///
    /// # Errors
    ///
    /// If the mark, which is a file, cannot be made.
    pub(super) fn mark(&mut self, mark: &[u8]) -> io::Result<()> {
        self.file(mark).map(drop)
    }

    /// Returns a directory that was there already if it has a mark, and else nothing. Only a directory that its owner
    /// alone may enter, and that belongs to this user, counts: no other could have marked it.
    ///
    /// # Errors
    ///
    /// If it cannot be looked at.
    pub(super) fn marked(&mut self, path: &[u8], mark: &[u8]) -> io::Result<Option<Identity>> {
        let is_mark = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !self.found(mark)?.as_ref().is_some_and(is_mark) {
            return Ok(None);
        }
        let stat = if path.is_empty() {
            rustix::fs::fstat(&self.root)?
        } else {
            let (parent, name) = self.parent(path)?;
            rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?
        };
        let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
        let is_private = stat.st_mode & 0o777 == 0o700;
        Ok((is_own && is_private).then(|| Identity::of(&stat)))
    }

    /// Returns what has a name, without following it; nothing if it is free.
    ///
    /// # Errors
    ///
    /// If it cannot be looked at.
    pub(super) fn found(&mut self, path: &[u8]) -> io::Result<Option<Stat>> {
        let (parent, name) = self.parent(path)?;
        match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns where a symlink leads to.
    ///
    /// # Errors
    ///
    /// If it is none.
    pub(super) fn leads_to(&mut self, path: &[u8]) -> io::Result<Vec<u8>> {
        let (parent, name) = self.parent(path)?;
        Ok(rustix::fs::readlinkat(parent, name, Vec::new())?.into_bytes())
    }

    /// Gives what was made under a name of its own the name that it is to have.
    ///
    /// # Errors
    ///
    /// If it cannot be renamed, or something has the name.
    pub(super) fn rename(&mut self, from: &[u8], to: &[u8]) -> io::Result<()> {
        let (source, from) = self.parent(from)?;
        let source = source.try_clone_to_owned()?;
        let (parent, to) = self.parent(to)?;
        match rustix::fs::renameat_with(&source, from, parent, to, RenameFlags::NOREPLACE) {
            // Some filesystems cannot say that nothing is to be replaced. A new link never replaces anything.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                rustix::fs::linkat(&source, from, parent, to, AtFlags::empty())?;
                Ok(rustix::fs::unlinkat(&source, from, AtFlags::empty())?)
            }
            renamed => Ok(renamed?),
        }
    }

    /// Removes a name that this or an earlier extraction has made for itself.
    ///
    /// # Errors
    ///
    /// If it cannot be removed.
    pub(super) fn remove(&mut self, path: &[u8]) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(rustix::fs::unlinkat(parent, name, AtFlags::empty())?)
    }

    /// Opens a directory that was made here, to give it attributes.
    ///
    /// # Errors
    ///
    /// If it cannot be opened, or another has its name by now.
    pub(super) fn made_directory(&mut self, path: &[u8], identity: Identity) -> io::Result<Made> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = if path.is_empty() {
            rustix::fs::openat(&self.root, ".", flags, Mode::empty())?
        } else {
            let (parent, name) = self.parent(path)?;
            rustix::fs::openat(parent, name, flags, Mode::empty())?
        };
        if Identity::of(&rustix::fs::fstat(&opened)?) != identity {
            return Err(replaced());
        }
        Ok(Made::open(opened))
    }

    /// Makes an empty regular file that only its owner may read.
    ///
    /// # Errors
    ///
    /// If it cannot be made, or something has its name.
    pub(super) fn file(&mut self, path: &[u8]) -> io::Result<File> {
        let (parent, name) = self.parent(path)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::openat(parent, name, flags, mode)?.into())
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    ///
    /// If it cannot be made, or something has its name.
    pub(super) fn symlink(&mut self, path: &[u8], leads_to: &[u8]) -> io::Result<Made> {
        let (parent, name) = self.parent(path)?;
        rustix::fs::symlinkat(leads_to, parent, name)?;
        just_made(parent, name, FileType::Symlink)
    }

    /// Makes a fifo, a socket or a device that only its owner may open.
    ///
    /// # Errors
    ///
    /// If it cannot be made, or something has its name.
    pub(super) fn node(&mut self, path: &[u8], kind: FileType, device: u32) -> io::Result<Made> {
        let (parent, name) = self.parent(path)?;
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(parent, name, kind, mode, u64::from(device))?;
        just_made(parent, name, kind)
    }

    /// Gives what was made as `first` another name.
    ///
    /// # Errors
    ///
    /// If it cannot be linked, something has the name, or `first` is something else by now.
    pub(super) fn link(&mut self, first: &[u8], identity: Identity, path: &[u8]) -> io::Result<()> {
        let link_at = self.link_at;
        let (source, first) = self.parent(first)?;
        let source = source.try_clone_to_owned()?;
        let (parent, name) = self.parent(path)?;
        let stat = rustix::fs::statat(&source, first, AtFlags::SYMLINK_NOFOLLOW)?;
        if Identity::of(&stat) != identity {
            return Err(replaced());
        }
        Ok(link_at(source.as_fd(), first, parent, name)?)
    }

    /// Returns the directory that a path lies in, and the name there.
    fn parent<'a>(&mut self, path: &'a [u8]) -> io::Result<(BorrowedFd<'_>, &'a OsStr)> {
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&b""[..], path),
        };
        path.split(|byte| *byte == b'/').try_for_each(check_name)?;
        Ok((self.open_directory(parent)?, OsStr::from_bytes(name)))
    }

    /// Opens a directory by its path from OUT on.
    fn open_directory(&mut self, path: &[u8]) -> io::Result<BorrowedFd<'_>> {
        if path.is_empty() {
            return Ok(self.root.as_fd());
        }
        if self
            .recent
            .as_ref()
            .is_none_or(|(recent, _)| recent != path)
        {
            let opened = self.resolve(path)?;
            self.recent = Some((path.to_vec(), opened));
        }
        let (_, recent) = self.recent.as_ref().expect("it was set above");
        Ok(recent.as_fd())
    }

    fn resolve(&mut self, path: &[u8]) -> io::Result<OwnedFd> {
        if let Resolver::Kernel(open) = self.resolver {
            let resolved = steps(path).try_fold(None, |at: Option<OwnedFd>, step| {
                let at = at.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
                open(at, step).map(Some)
            });
            match resolved {
                // Kernels before 5.6 lack the call, and some sandboxes forbid it.
                Err(Errno::NOSYS | Errno::PERM) => self.resolver = Resolver::EachName,
                resolved => return opened(resolved),
            }
        }
        let names = path.split(|byte| *byte == b'/');
        opened(
            names
                .map(OsStr::from_bytes)
                .try_fold(None, |at: Option<OwnedFd>, name| {
                    let at = at.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
                    rustix::fs::openat(at, name, directory_flags(), Mode::empty()).map(Some)
                }),
        )
    }
}

fn opened(resolved: Result<Option<OwnedFd>, Errno>) -> io::Result<OwnedFd> {
    Ok(resolved?.ok_or(Errno::NOENT)?)
}

fn directory_flags() -> OFlags {
    OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

/// Opens a directory by a path that neither leaves `at` nor leads through a symlink.
fn beneath(at: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(at, path, directory_flags(), Mode::empty(), resolve)
}

fn link_at(
    source: BorrowedFd<'_>,
    first: &OsStr,
    parent: BorrowedFd<'_>,
    name: &OsStr,
) -> Result<(), Errno> {
    // Without `AT_SYMLINK_FOLLOW`, a symlink itself gets the name.
    rustix::fs::linkat(source, first, parent, name, AtFlags::empty())
}

/// Splits a path between names into parts that a call takes.
fn steps(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = path;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let split = if rest.len() <= STEP_BYTES {
            None
        } else {
            // Names are shorter than a step, so one ends in it.
            rest[..STEP_BYTES].iter().rposition(|byte| *byte == b'/')
        };
        let (step, after) = match split {
            Some(at) => (&rest[..at], &rest[at + 1..]),
            None => (rest, &rest[rest.len()..]),
        };
        rest = after;
        Some(step)
    })
}

/// Refuses a name that leads elsewhere. Decoders have refused it before; this one guards what is written.
fn check_name(name: &[u8]) -> io::Result<()> {
    match NameFault::of_entry(name) {
        Some(fault) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            fault.to_string(),
        )),
        None => Ok(()),
    }
}

/// Opens what was made a moment ago, without following it.
fn just_made(parent: BorrowedFd<'_>, name: &OsStr, kind: FileType) -> io::Result<Made> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    of_kind(rustix::fs::fstat(&opened)?, kind)?;
    Ok(Made::path(opened))
}

/// Refuses what cannot have been made here, because it is of another kind. The owner says nothing: some
/// filesystems choose it.
fn of_kind(stat: Stat, kind: FileType) -> io::Result<Stat> {
    if FileType::from_raw_mode(stat.st_mode) == kind {
        Ok(stat)
    } else {
        Err(replaced())
    }
}

fn replaced() -> io::Error {
    io::Error::other("another program replaced it")
}

#[cfg(test)]
pub(in crate::cli::extract) mod tests;
