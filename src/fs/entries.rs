//! Entries of directories, and the links that they count.

use crate::format::record::{Dirent, FileKind, Inode, Timestamp};
use crate::format::wire::MAX_COUNT;
use crate::format::{Cookie, Ino, NAME_MAX, Record, key};
use crate::transaction::Transactions;

use super::edit::Edit;
use super::error::{FsError, corrupt};
use super::limits::LINKS_MAX;

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

/// Returns whether a name is `.` or `..`, which every directory has and no record holds.
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

/// Counts a name out; the last one leaves an orphan.
pub(super) fn drop_link(edit: &mut Edit, ino: Ino, inode: &mut Inode, now: Timestamp) {
    inode.links = inode.links.saturating_sub(1);
    inode.ctime = now;
    if inode.links == 0 {
        edit.put_orphan(ino);
    }
    edit.put_inode(ino, inode);
}

/// Turns an empty directory into an orphan.
pub(super) fn drop_directory(edit: &mut Edit, ino: Ino, inode: &mut Inode, now: Timestamp) {
    inode.links = 0;
    inode.ctime = now;
    edit.put_orphan(ino);
    edit.put_inode(ino, inode);
}

/// Reads the entry of a directory with this name.
pub(super) fn read_entry(
    transactions: &Transactions,
    parent: Ino,
    name: &[u8],
) -> Result<Option<Dirent>, FsError> {
    match transactions.get(&key::dirent(parent, name))? {
        Some(value) => Ok(Some(Dirent::decode(&value)?)),
        None => Ok(None),
    }
}
