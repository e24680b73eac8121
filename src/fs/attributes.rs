//! Reading and changing attributes.

use std::sync::Arc;

use crate::format::Ino;
use crate::format::record::{FileKind, Inline, Inode, Timestamp};

use super::access_time::AccessTimes;
use super::acl;
use super::edit::Edit;
use super::error::FsError;
use super::inodes::Inodes;
use super::mode::{check_regular, clear_privileges};
use super::references::References;
use super::size_gate::SizeGate;
use super::types::{Attr, Caller, Changes, TimeOrNow};
use super::writer::FileWriter;
use super::xattr::Xattrs;

/// Attributes of inodes.
pub struct Attributes {
    inodes: Arc<Inodes>,
    references: Arc<References>,
    xattrs: Arc<Xattrs>,
    writer: Arc<FileWriter>,
    access_times: Arc<AccessTimes>,
    sizes: Arc<SizeGate>,
}

impl Attributes {
    pub(super) fn new(
        inodes: &Arc<Inodes>,
        references: &Arc<References>,
        xattrs: &Arc<Xattrs>,
        writer: &Arc<FileWriter>,
        access_times: &Arc<AccessTimes>,
        sizes: &Arc<SizeGate>,
    ) -> Self {
        Self {
            inodes: Arc::clone(inodes),
            references: Arc::clone(references),
            xattrs: Arc::clone(xattrs),
            writer: Arc::clone(writer),
            access_times: Arc::clone(access_times),
            sizes: Arc::clone(sizes),
        }
    }

    /// Returns the attributes of an inode.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], or a failure of the index.
    pub fn get(&self, ino: Ino) -> Result<Attr, FsError> {
        Ok(Attr::new(ino, &self.inodes.get(ino)?))
    }

    /// Changes attributes, all or none of them, and what follows from that: an access ACL follows the
    /// permission bits; a new owner or group clears setuid, setgid and `security.capability` of
    /// anything but a directory; so does a new size, where setuid and setgid stay if root asks. Where the group may not
    /// execute, setgid stays as well if a member of the group asks.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`]; for a size [`FsError::IsDirectory`], [`FsError::Invalid`] for what is no
    /// regular file, and [`FsError::FileTooBig`]. [`FsError::NoSpace`] if the volume is full and lost bytes of the file must
    /// be put on record first.
    pub fn set(&self, caller: &Caller, ino: Ino, changes: Changes) -> Result<Attr, FsError> {
        self.inodes.check_writable()?;
        if let Some(handle) = changes.handle {
            self.references.handles.check(handle)?;
        }
        let attempt = || self.try_set(caller, ino, changes);
        self.writer.with_stripe_for(ino, attempt)
    }

    /// Sets attributes as [`Self::set`]. Returns `None`, with none of them changed, if a stripe must be opened first.
    fn try_set(
        &self,
        caller: &Caller,
        ino: Ino,
        changes: Changes,
    ) -> Result<Option<Attr>, FsError> {
        let _passing = changes.size.map(|_| self.sizes.pass(ino));
        let lock = self.inodes.locks().exclusive(&[ino]);
        let mut inode = self.inodes.get(ino)?;
        if changes.size.is_some() {
            check_regular(&inode)?;
        }
        let mut edit = Edit::default();
        let now = self.inodes.now();
        self.change_owner_and_mode(&mut edit, caller, ino, &mut inode, &changes)?;
        change_times(&mut inode, &changes, now);
        let set = if let Some(size) = changes.size {
            self.writer.set_size(&lock, ino, inode, edit, size)?
        } else {
            edit.put_inode(ino, &inode);
            self.inodes.apply(edit)?;
            Some(inode)
        };
        Ok(set.map(|inode| Attr::new(ino, &inode)))
    }

    /// Returns the size of a regular file, and none for anything else.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], or a failure of the index.
    pub(super) fn file_size(&self, ino: Ino) -> Result<Option<u64>, FsError> {
        let inode = self.inodes.get(ino)?;
        Ok((inode.kind == FileKind::Regular).then_some(inode.size))
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    ///
    /// [`FsError::Invalid`] for anything else.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        let inode = self.inodes.get(ino)?;
        let Inline::Target(target) = &inode.inline else {
            return Err(FsError::Invalid);
        };
        let target = target.clone();
        self.access_times.note(ino, &inode);
        Ok(target)
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
        if let Some(permissions) = changes.permissions {
            inode.permissions = permissions & 0o7777;
            if let Some(access) = self.xattrs.value(ino, acl::ACCESS)? {
                let followed = acl::follow_mode(&access, inode.permissions)?;
                edit.put_xattr(ino, acl::ACCESS, followed);
            }
        }
        let cut_by_user = changes.size.is_some() && !caller.is_root();
        if owner_changes || cut_by_user || changes.kill_suid_sgid {
            // By the group that the inode had until now.
            clear_privileges(inode, caller);
        }
        inode.uid = changes.uid.unwrap_or(inode.uid);
        inode.gid = changes.gid.unwrap_or(inode.gid);
        if owner_changes || changes.size.is_some() || changes.kill_suid_sgid {
            self.xattrs.drop_capability(edit, ino, inode)?;
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
