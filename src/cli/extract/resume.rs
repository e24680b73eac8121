//! Going on with an extraction that was interrupted.
//!
//! A file is made under a name of its own, and renamed once it is complete. So whatever has its real name is complete,
//! and is left as it is if its size and times are those of the volume. A directory has a mark, which is an empty file,
//! until it is full. What is incomplete because the volume is damaged is named `NAME.damaged`.

use std::io;

use rustix::fs::{FileType, Stat};

use super::target::Identity;
use super::{Extraction, First, Trouble, place, unwritable};
use crate::cli::failure::{Failure, warn};
use crate::format::NAME_MAX;
use crate::format::record::FileKind;
use crate::fs::tree;
use crate::fs::{Attr, Caller, Fs, FsError};

/// The name of a file that is being made, before the number of its inode.
const PARTIAL: &str = ".cauchyfs-partial-";

/// The name of the mark of a directory that is being filled, before the number of its inode.
const MARK: &str = ".cauchyfs-unfinished-";

/// The end of the name of what is incomplete.
const DAMAGED: &str = ".damaged";

/// Splits a path in front of its last name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let name = path.iter().rposition(|byte| *byte == b'/');
    path.split_at(name.map_or(0, |at| at + 1))
}

/// Returns the first of the paths `directory` + `name(n)` that the volume does not have.
fn free(fs: &Fs, directory: &[u8], name: impl Fn(&str) -> Vec<u8>) -> Vec<u8> {
    let mut tries = 0;
    loop {
        let number = if tries == 0 {
            String::new()
        } else {
            format!("-{tries}")
        };
        let path = [directory, &name(&number)].concat();
        if tree::resolve(fs, &path).is_err() {
            return path;
        }
        tries += 1;
    }
}

/// Returns the path at which a file is made before it gets its name.
pub(super) fn partial(path: &[u8], attr: &Attr) -> Vec<u8> {
    let (directory, _) = split(path);
    [directory, format!("{PARTIAL}{}", attr.ino).as_bytes()].concat()
}

/// Returns the path of the mark of a directory.
pub(super) fn mark(fs: &Fs, path: &[u8], attr: &Attr) -> Vec<u8> {
    let mut directory = path.to_vec();
    if !directory.is_empty() {
        directory.push(b'/');
    }
    free(fs, &directory, |number| {
        format!("{MARK}{}{number}", attr.ino).into_bytes()
    })
}

/// Returns the path for what is incomplete.
pub(super) fn damaged(fs: &Fs, path: &[u8]) -> Vec<u8> {
    let (directory, name) = split(path);
    free(fs, directory, |number| {
        let end = format!("{DAMAGED}{number}");
        let kept = name.len().min(NAME_MAX - end.len());
        [&name[..kept], end.as_bytes()].concat()
    })
}

/// Returns whether something in OUT is of the kind that an inode has.
fn is_of_kind(found: &Stat, attr: &Attr) -> bool {
    let kind = match attr.kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    };
    FileType::from_raw_mode(found.st_mode) == kind
}

/// Returns whether a time in OUT is one of the volume. OUT may keep whole seconds alone.
fn is_time(found: &Stat, attr: &Attr) -> bool {
    let nanos = [0, u64::from(attr.mtime.nanos)];
    found.st_mtime == attr.mtime.seconds && nanos.contains(&found.st_mtime_nsec)
}

impl Extraction<'_> {
    /// Returns whether an earlier run has made an inode under this name, and counts it then.
    pub(super) fn is_there(&mut self, path: &[u8], attr: &Attr) -> Result<bool, Trouble> {
        let found = self.target.found(path);
        let found = found.map_err(|error| self.unwritable(path, &error))?;
        let Some(found) = found else {
            return Ok(false);
        };
        let identity = Identity::of(&found);
        let first = self.linked.get(&attr.ino);
        let is_linked = first.is_some_and(|first| first.identity == identity);
        if !is_linked && !self.is_copy(path, &found, attr)? {
            let taken = io::Error::from(rustix::io::Errno::EXIST);
            return Err(self.unwritable(path, &taken).into());
        }
        self.kept += 1;
        let first = self.linked.remove(&attr.ino);
        if first.is_none() {
            self.progress.inc(attr.blocks_512 * 512);
            self.count_left_out(attr)?;
        }
        let names = first.map_or(attr.links, |first| first.left);
        let first = First {
            path: path.to_vec(),
            identity,
            is_damaged: false,
            left: names.saturating_sub(1),
        };
        self.note_first(attr, first);
        Ok(true)
    }

    /// Notes the first name of an inode, if others are still to come: they become links to it.
    pub(super) fn note_first(&mut self, attr: &Attr, first: First) {
        if first.left > 0 {
            self.linked.insert(attr.ino, first);
        }
    }

    /// Returns whether something in OUT is the complete copy of an inode.
    fn is_copy(&mut self, path: &[u8], found: &Stat, attr: &Attr) -> Result<bool, Trouble> {
        if !is_of_kind(found, attr) {
            return Ok(false);
        }
        Ok(match attr.kind {
            FileKind::Regular => {
                u64::try_from(found.st_size) == Ok(attr.size) && is_time(found, attr)
            }
            FileKind::Symlink => {
                let leads_to = self.target.leads_to(path);
                let leads_to = leads_to.map_err(|error| self.unwritable(path, &error))?;
                leads_to == self.fs.attributes().read_link(attr.ino)?
            }
            FileKind::CharDevice | FileKind::BlockDevice => {
                found.st_rdev == u64::from(attr.rdev) && is_time(found, attr)
            }
            FileKind::Fifo | FileKind::Socket => is_time(found, attr),
            FileKind::Directory => false,
        })
    }

    /// Returns the free path at which a file is to be made. Removes what an interrupted run has left there.
    pub(super) fn clear_partial(&mut self, path: &[u8], attr: &Attr) -> Result<Vec<u8>, Failure> {
        let partial = partial(path, attr);
        let found = self.target.found(&partial);
        if found
            .map_err(|error| self.unwritable(path, &error))?
            .is_none()
        {
            return Ok(partial);
        }
        // The volume may have a file of that name, if it was extracted to once itself.
        let (directory, name) = split(&partial);
        let partial = free(self.fs, directory, |number| {
            [name, number.as_bytes()].concat()
        });
        let found = self.target.found(&partial);
        if found
            .map_err(|error| self.unwritable(path, &error))?
            .is_some()
        {
            let removed = self.target.remove(&partial);
            removed.map_err(|error| self.unwritable(&partial, &error))?;
        }
        Ok(partial)
    }

    /// Gives what was made its name, or that of something incomplete. Returns the name, and what has it.
    pub(super) fn publish(
        &mut self,
        partial: &[u8],
        path: &[u8],
        (attr, made): (&Attr, Identity),
        is_damaged: bool,
    ) -> Result<(Vec<u8>, Identity), Trouble> {
        if !is_damaged {
            let renamed = self.target.rename(partial, path);
            renamed.map_err(|error| self.unwritable(path, &error))?;
            return Ok((path.to_vec(), made));
        }
        let damaged = damaged(self.fs, path);
        let found = self.target.found(&damaged);
        let found = found.map_err(|error| self.unwritable(&damaged, &error))?;
        if let Some(found) = found
            && self.is_copy(&damaged, &found, attr)?
        {
            let shown = place(&self.out, &damaged);
            warn(format_args!("{shown} is of an earlier run, and stays"));
            let removed = self.target.remove(partial);
            removed.map_err(|error| self.unwritable(partial, &error))?;
            return Ok((damaged, Identity::of(&found)));
        }
        let renamed = self.target.rename(partial, &damaged);
        renamed.map_err(|error| unwritable(&self.out, &damaged, &error))?;
        Ok((damaged, made))
    }

    /// Counts the bits and attributes of an inode that are not restored.
    fn count_left_out(&mut self, attr: &Attr) -> Result<(), FsError> {
        self.permissions(attr);
        let names = self.fs.xattrs().list(&Caller::ROOT, attr.ino)?;
        for name in names.split(|&byte| byte == 0) {
            self.leaves_out(name);
        }
        Ok(())
    }
}
