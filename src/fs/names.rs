//! Names and what they name.

mod create;
mod remove;
mod rename;

use crate::format::record::{Dirent, FileKind, Inode};
use crate::format::{Ino, Record, key};

use super::Fs;
use super::entries::{Directory, check_name};
use super::error::{FsError, corrupt};
use super::types::Attr;

impl Fs {
    /// Looks up a name and counts a look-up of what it names.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], [`FsError::NotDirectory`], [`FsError::NameTooLong`], or a failure of the
    /// index.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr, FsError> {
        let _lock = self.locks.shared(parent);
        let attr = self.find(parent, name)?;
        // The lock keeps other threads from removing the name, and with it the inode, before it is counted.
        self.nodes.look_up(attr.ino);
        Ok(attr)
    }

    /// Takes back look-ups that were counted. An inode without a name is removed with the last one.
    pub fn forget(&self, ino: Ino, lookups: u64) {
        if self.nodes.forget(ino, lookups) {
            self.remove_inode(ino);
        }
        if !self.nodes.is_out(ino) {
            self.forget_refused(ino);
        }
    }

    /// Looks up a name without counting.
    pub(super) fn find(&self, parent: Ino, name: &[u8]) -> Result<Attr, FsError> {
        let directory = self.directory(parent)?;
        match name {
            b"." => return Ok(Attr::new(parent, &directory)),
            b".." => return self.getattr(directory.parent),
            _ => check_name(name)?,
        }
        let entry = self.entry(parent, name)?.ok_or(FsError::NotFound)?;
        Ok(Attr::new(entry.ino, &self.named_inode(&entry)?))
    }

    pub(super) fn entry(&self, parent: Ino, name: &[u8]) -> Result<Option<Dirent>, FsError> {
        match self.pipeline.get(&key::dirent(parent, name))? {
            Some(value) => Ok(Some(Dirent::decode(&value)?)),
            None => Ok(None),
        }
    }

    /// Reads the inode that an entry names.
    pub(super) fn named_inode(&self, entry: &Dirent) -> Result<Inode, FsError> {
        match self.inode(entry.ino) {
            Err(FsError::NotFound) => Err(corrupt(entry.ino, "has a name but no record")),
            other => other,
        }
    }

    pub(super) fn directory(&self, ino: Ino) -> Result<Inode, FsError> {
        let inode = self.inode(ino)?;
        if inode.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        Ok(inode)
    }

    /// Reads a directory whose entries are to change. One that was removed takes no new entries.
    pub(super) fn directory_to_change(&self, ino: Ino) -> Result<Directory, FsError> {
        let inode = self.directory(ino)?;
        if inode.links == 0 {
            return Err(FsError::NotFound);
        }
        Ok(Directory { ino, inode })
    }
}
