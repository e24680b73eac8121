//! Names and what they name.

use crate::format::record::{Dirent, FileKind, Inode, Timestamp};
use crate::format::wire::MAX_COUNT;
use crate::format::{Cookie, Ino, NAME_MAX, Record, key};

use super::edit::Edit;
use super::{Attr, Fs, FsError, LINKS_MAX, corrupt};

/// Cookie of the first entry ever made in a directory; 0 stands for "before all entries".
pub(super) const FIRST_COOKIE: Cookie = Cookie(1);

/// Checks a name that an entry has or is to get.
pub(super) fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.is_empty() {
        return Err(FsError::NotFound);
    }
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    if is_dot(name) || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
        return Err(FsError::Invalid);
    }
    Ok(())
}

/// Says whether a name is `.` or `..`, which every directory has and no record holds.
pub(super) fn is_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// A directory that is being changed: its inode as it will be, with the changes of its entries going
/// into the same edit. The caller that makes one holds its lock.
pub(super) struct Directory {
    pub(super) ino: Ino,
    pub(super) inode: Inode,
}

impl Directory {
    /// Adds an entry, under `cookie` or under a new one.
    ///
    /// # Errors
    ///
    /// [`FsError::Corrupt`] if the directory has used up its cookies, which takes more than 2⁶³ entries.
    pub(super) fn add(
        &mut self,
        edit: &mut Edit,
        name: &[u8],
        (ino, kind): (Ino, FileKind),
        cookie: Option<Cookie>,
    ) -> Result<(), FsError> {
        let cookie = match cookie {
            Some(cookie) => cookie,
            None => self.take_cookie()?,
        };
        edit.put_entry(self.ino, name, &Dirent { ino, kind, cookie });
        self.inode.size += 1;
        Ok(())
    }

    fn take_cookie(&mut self) -> Result<Cookie, FsError> {
        let next = self.inode.next_cookie;
        if next.0 >= MAX_COUNT {
            return Err(corrupt(self.ino, "no entry can be added to its listing"));
        }
        self.inode.next_cookie = Cookie(next.0 + 1);
        Ok(next)
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, edit: &mut Edit, name: &[u8], entry: &Dirent) {
        edit.delete_entry(self.ino, name, entry.cookie);
        self.inode.size = self.inode.size.saturating_sub(1);
    }

    /// Counts a subdirectory that names this directory as its parent.
    pub(super) fn add_child(&mut self) -> Result<(), FsError> {
        add_link(&mut self.inode)
    }

    /// Counts a subdirectory out.
    pub(super) fn remove_child(&mut self) {
        self.inode.links = self.inode.links.saturating_sub(1);
    }

    /// Writes the directory's inode, changed at `now`.
    pub(super) fn put(mut self, edit: &mut Edit, now: Timestamp) {
        self.inode.mtime = now;
        self.inode.ctime = now;
        edit.put_inode(self.ino, &self.inode);
    }
}

/// Counts one more link.
pub(super) fn add_link(inode: &mut Inode) -> Result<(), FsError> {
    if inode.links >= LINKS_MAX {
        return Err(FsError::TooManyLinks);
    }
    inode.links += 1;
    Ok(())
}

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
