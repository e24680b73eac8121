//! Taking names away.

use crate::format::record::{Dirent, FileKind, Inode};
use crate::format::{Ino, key};
use crate::fs::edit::Edit;
use crate::fs::entries::{check_name, drop_directory, drop_link, is_dot};
use crate::fs::error::FsError;
use crate::fs::interlock::Admission;
use crate::fs::locks::ExclusiveLock;

use super::Names;

impl Names {
    /// Takes a name away from anything but a directory. The inode goes with its last name, look-up and
    /// handle.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], [`FsError::IsDirectory`], [`FsError::NameTooLong`]; [`FsError::Interlocked`] if too many files
    /// were removed.
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        self.inodes.check_writable()?;
        if is_dot(name) {
            return Err(FsError::IsDirectory);
        }
        check_name(name)?;
        self.inodes.recorded(self.unlink_once(parent, name))
    }

    fn unlink_once(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        let (lock, entry) = self.lock_entry(parent, name)?;
        if entry.kind == FileKind::Directory {
            return Err(FsError::IsDirectory);
        }
        let mut inode = self.named_inode(&entry)?;
        let now = self.inodes.now();
        let mut edit = Edit::default();
        let mut directory = self.directory_to_change(parent)?;
        directory.remove(&mut edit, name, &entry);
        directory.put(&mut edit, now);
        drop_link(&mut edit, entry.ino, &mut inode, now);
        let mut admission = Admission::default();
        if inode.links == 0 {
            admission = self.inodes.admit_removal(&inode, now)?;
        }
        self.inodes.apply(edit)?;
        admission.done();
        self.after_drop(lock, (entry.ino, &inode));
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], [`FsError::NotDirectory`], [`FsError::NotEmpty`], and
    /// [`FsError::Invalid`] for `.`.
    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        self.inodes.check_writable()?;
        match name {
            b"." => return Err(FsError::Invalid),
            b".." => return Err(FsError::NotEmpty),
            _ => check_name(name)?,
        }
        let (lock, entry) = self.lock_entry(parent, name)?;
        if entry.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        self.check_empty(entry.ino)?;
        let mut inode = self.named_inode(&entry)?;
        let now = self.inodes.now();
        let mut edit = Edit::default();
        let mut directory = self.directory_to_change(parent)?;
        directory.remove(&mut edit, name, &entry);
        directory.remove_child();
        directory.put(&mut edit, now);
        drop_directory(&mut edit, entry.ino, &mut inode, now);
        self.inodes.apply(edit)?;
        self.after_drop(lock, (entry.ino, &inode));
        Ok(())
    }

    /// Finds an entry and locks it together with its directory.
    fn lock_entry(&self, parent: Ino, name: &[u8]) -> Result<(ExclusiveLock<'_>, Dirent), FsError> {
        loop {
            let Some(entry) = self.entry(parent, name)? else {
                // It may be no directory at all.
                self.inodes.directory(parent)?;
                return Err(FsError::NotFound);
            };
            let lock = self.inodes.locks().exclusive(&[parent, entry.ino]);
            // The name may have come to mean something else before both were locked.
            if self.entry(parent, name)? == Some(entry) {
                return Ok((lock, entry));
            }
        }
    }

    pub(super) fn check_empty(&self, ino: Ino) -> Result<(), FsError> {
        let (from, end) = key::dirents(ino);
        if self.transactions.scan(&from, &end, 1)?.is_empty() {
            Ok(())
        } else {
            Err(FsError::NotEmpty)
        }
    }

    /// Removes `dropped`, an inode that just lost a name, if nothing of it is left.
    pub(super) fn after_drop(&self, lock: ExclusiveLock<'_>, (ino, dropped): (Ino, &Inode)) {
        if dropped.links == 0 {
            self.references.unlinked(lock, ino);
        }
    }
}
