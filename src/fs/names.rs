//! Names and what they name.

mod create;
mod remove;
mod rename;

use std::sync::Arc;

use crate::format::Ino;
use crate::format::record::{Dirent, Inode};
use crate::transaction::Transactions;

use super::entries::{Directory, check_name, is_dot, read_entry};
use super::error::{FsError, corrupt};
use super::inodes::Inodes;
use super::open_files::OpenFiles;
use super::references::References;
use super::removal::Removal;
use super::types::Attr;
use super::xattr::Xattrs;

/// Names of inodes: looking them up and changing them.
pub struct Names {
    inodes: Arc<Inodes>,
    transactions: Arc<Transactions>,
    references: Arc<References>,
    xattrs: Arc<Xattrs>,
    removal: Arc<Removal>,
    open_files: Arc<OpenFiles>,
}

impl Names {
    pub(super) fn new(
        inodes: &Arc<Inodes>,
        transactions: &Arc<Transactions>,
        references: &Arc<References>,
        xattrs: &Arc<Xattrs>,
        removal: &Arc<Removal>,
        open_files: &Arc<OpenFiles>,
    ) -> Self {
        Self {
            inodes: Arc::clone(inodes),
            transactions: Arc::clone(transactions),
            references: Arc::clone(references),
            xattrs: Arc::clone(xattrs),
            removal: Arc::clone(removal),
            open_files: Arc::clone(open_files),
        }
    }

    /// Looks up a name and counts a look-up of what it names. `.` stands for the inode itself, whatever its kind: with
    /// that a caller opens an inode that it knows by number alone. Neither `.` nor `..` is found in an inode without links.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], [`FsError::NotDirectory`], [`FsError::NameTooLong`], or a failure of the
    /// index.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr, FsError> {
        let _lock = self.inodes.locks().shared(parent);
        let attr = if is_dot(name) {
            self.find_by_number(parent, name)?
        } else {
            self.find(parent, name)?
        };
        // The lock keeps other threads from removing the name, and with it the inode, before it is counted.
        self.references.nodes.look_up(attr.ino);
        Ok(attr)
    }

    /// Looks up a name without counting.
    pub(super) fn find(&self, parent: Ino, name: &[u8]) -> Result<Attr, FsError> {
        let directory = self.inodes.directory(parent)?;
        match name {
            b"." => return Ok(Attr::new(parent, &directory)),
            b".." => {
                let parent = directory.parent;
                return Ok(Attr::new(parent, &self.inodes.get(parent)?));
            }
            _ => check_name(name)?,
        }
        let entry = self.entry(parent, name)?.ok_or(FsError::NotFound)?;
        Ok(Attr::new(entry.ino, &self.named_inode(&entry)?))
    }

    /// Looks up `.` or `..` in an inode that has a link.
    fn find_by_number(&self, ino: Ino, name: &[u8]) -> Result<Attr, FsError> {
        let inode = self.inodes.get(ino)?;
        if inode.links == 0 {
            return Err(FsError::NotFound);
        }
        if name == b"." {
            return Ok(Attr::new(ino, &inode));
        }
        self.find(ino, name)
    }

    /// Runs `attempt`, which adds an inode or a name and holds no lock when it returns. If it finds no space, or no room in
    /// a quota, makes some and tries again.
    fn with_room<T>(&self, mut attempt: impl FnMut() -> Result<T, FsError>) -> Result<T, FsError> {
        self.references
            .with_quota(|| self.inodes.with_room(0, &mut attempt))
    }

    fn entry(&self, parent: Ino, name: &[u8]) -> Result<Option<Dirent>, FsError> {
        read_entry(&self.transactions, parent, name)
    }

    /// Reads the inode that an entry names.
    fn named_inode(&self, entry: &Dirent) -> Result<Inode, FsError> {
        match self.inodes.get(entry.ino) {
            Err(FsError::NotFound) => Err(corrupt(entry.ino, "has a name but no record")),
            other => other,
        }
    }

    /// Reads a directory whose entries are to change. One that was removed takes no new entries.
    fn directory_to_change(&self, ino: Ino) -> Result<Directory, FsError> {
        let inode = self.inodes.directory(ino)?;
        if inode.links == 0 {
            return Err(FsError::NotFound);
        }
        Ok(Directory { ino, inode })
    }
}
