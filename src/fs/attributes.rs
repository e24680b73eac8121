//! Reading and changing attributes.

use crate::format::Ino;
use crate::format::record::{FileKind, Inline, Inode, Timestamp};

use super::Fs;
use super::acl;
use super::edit::Edit;
use super::error::FsError;
use super::mode::{check_regular, clear_privileges};
use super::types::{AtimePolicy, Attr, Caller, Changes, TimeOrNow};
use super::xattr;

/// After so many seconds a time of last access is renewed even where nothing changed since.
const RELATIME_SECONDS: i64 = 24 * 60 * 60;

impl Fs {
    /// Returns the attributes of an inode.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], or a failure of the index.
    pub fn getattr(&self, ino: Ino) -> Result<Attr, FsError> {
        Ok(Attr::new(ino, &self.inode(ino)?))
    }

    /// Changes attributes, all or none of them, and what follows from that: an access ACL follows the
    /// permission bits; a new owner or group clears setuid, setgid and `security.capability` of
    /// anything but a directory; so does a new size, where setuid and setgid stay if root asks.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`]; for a size [`FsError::IsDirectory`], [`FsError::Invalid`] for what is no
    /// regular file, and [`FsError::FileTooBig`].
    pub fn setattr(&self, caller: &Caller, ino: Ino, changes: Changes) -> Result<Attr, FsError> {
        self.writable()?;
        if let Some(handle) = changes.handle {
            self.handles.check(handle)?;
        }
        let lock = self.locks.exclusive(&[ino]);
        let mut inode = self.inode(ino)?;
        if changes.size.is_some() {
            check_regular(&inode)?;
        }
        let mut edit = Edit::default();
        let now = self.now();
        self.change_owner_and_mode(&mut edit, caller, ino, &mut inode, &changes)?;
        change_times(&mut inode, &changes, now);
        let inode = if let Some(size) = changes.size {
            self.set_size(&lock, ino, inode, edit, size)?
        } else {
            edit.put_inode(ino, &inode);
            self.apply(edit)?;
            inode
        };
        Ok(Attr::new(ino, &inode))
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    ///
    /// [`FsError::Invalid`] for anything else.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        let inode = self.inode(ino)?;
        let Inline::Target(target) = &inode.inline else {
            return Err(FsError::Invalid);
        };
        let target = target.clone();
        self.accessed(ino, &inode);
        Ok(target)
    }

    /// Takes note that an inode, whose record was `inode` just now, was read. The reader has its bytes
    /// whether or not that can be kept: a volume that takes no more changes stays readable.
    pub(super) fn accessed(&self, ino: Ino, inode: &Inode) {
        if self.access_counts(inode)
            && let Err(error) = self.note_access(ino)
        {
            log::debug!("the time of access of inode {} stays: {error}", ino.0);
        }
    }

    fn note_access(&self, ino: Ino) -> Result<(), FsError> {
        // Every record is rewritten as a whole: a full volume has no room for that.
        self.pipeline.growth().check_growth()?;
        let _lock = self.locks.exclusive(&[ino]);
        let mut inode = match self.inode(ino) {
            // It was read while it was being removed.
            Err(FsError::NotFound) => return Ok(()),
            other => other?,
        };
        if self.access_counts(&inode) {
            inode.atime = self.now();
            let mut edit = Edit::default();
            edit.put_inode(ino, &inode);
            self.apply(edit)?;
        }
        Ok(())
    }

    fn access_counts(&self, inode: &Inode) -> bool {
        if self.options.read_only {
            return false;
        }
        match self.options.atime {
            AtimePolicy::NoAtime => false,
            AtimePolicy::Strict => true,
            AtimePolicy::Relatime => {
                let age = self.now().seconds.saturating_sub(inode.atime.seconds);
                inode.atime <= inode.mtime || inode.atime <= inode.ctime || age >= RELATIME_SECONDS
            }
        }
    }

    fn change_owner_and_mode(
        &self,
        edit: &mut Edit,
        caller: &Caller,
        ino: Ino,
        inode: &mut Inode,
        changes: &Changes,
    ) -> Result<(), FsError> {
        let owner_changes = changes.uid.is_some() || changes.gid.is_some();
        inode.uid = changes.uid.unwrap_or(inode.uid);
        inode.gid = changes.gid.unwrap_or(inode.gid);
        if let Some(permissions) = changes.permissions {
            inode.permissions = permissions & 0o7777;
            if let Some(access) = self.xattr_value(ino, acl::ACCESS)? {
                let followed = acl::follow_mode(&access, inode.permissions)?;
                edit.put_xattr(ino, acl::ACCESS, followed);
            }
        }
        let cut_by_user = changes.size.is_some() && !caller.is_root();
        if owner_changes || cut_by_user || changes.kill_suid_sgid {
            clear_privileges(inode);
        }
        if owner_changes || changes.size.is_some() || changes.kill_suid_sgid {
            self.drop_capability(edit, ino, inode)?;
        }
        Ok(())
    }

    /// Takes the file capabilities away from anything but a directory.
    pub(super) fn drop_capability(
        &self,
        edit: &mut Edit,
        ino: Ino,
        inode: &Inode,
    ) -> Result<(), FsError> {
        if inode.kind != FileKind::Directory && self.xattr_value(ino, xattr::CAPABILITY)?.is_some()
        {
            edit.delete_xattr(ino, xattr::CAPABILITY);
        }
        Ok(())
    }
}

fn change_times(inode: &mut Inode, changes: &Changes, now: Timestamp) {
    let time = |asked: Option<TimeOrNow>| {
        asked.map(|asked| match asked {
            TimeOrNow::Now => now,
            TimeOrNow::At(time) => time,
        })
    };
    if changes.size.is_some() {
        inode.mtime = now;
    }
    inode.atime = time(changes.atime).unwrap_or(inode.atime);
    inode.mtime = time(changes.mtime).unwrap_or(inode.mtime);
    inode.ctime = changes.ctime.unwrap_or(now);
}
