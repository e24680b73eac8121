//! Making inodes and names.

use crate::format::record::{FileKind, Inline, Inode};
use crate::format::{Cookie, Ino, TARGET_MAX};
use crate::fs::acl;
use crate::fs::edit::Edit;
use crate::fs::entries::{Directory, FIRST_COOKIE, add_link, check_name, is_dot};
use crate::fs::error::FsError;
use crate::fs::mode::{GROUP_EXECUTE, SETGID, permission_bits};
use crate::fs::types::{Attr, Caller, Handle, OpenFlags};

use super::Names;

/// The attributes of a new inode.
#[derive(Clone)]
struct Fresh {
    kind: FileKind,
    permissions: u16,
    rdev: u32,
    inline: Inline,
}

impl Fresh {
    fn new(kind: FileKind, mode: u32) -> Self {
        Self {
            kind,
            permissions: permission_bits(mode),
            rdev: 0,
            inline: Inline::None,
        }
    }
}

impl Names {
    /// Makes a file, fifo, socket or device; `mode` says which (`S_IFMT`; none: a regular file).
    ///
    /// # Errors
    ///
    /// [`FsError::Exists`], [`FsError::Invalid`] for a mode that is none of these,
    /// [`FsError::NameTooLong`], [`FsError::NotFound`] if the directory was removed, [`FsError::QuotaExceeded`].
    pub fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Attr, FsError> {
        let kind = match mode & libc::S_IFMT {
            0 | libc::S_IFREG => FileKind::Regular,
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFSOCK => FileKind::Socket,
            libc::S_IFCHR => FileKind::CharDevice,
            libc::S_IFBLK => FileKind::BlockDevice,
            _ => return Err(FsError::Invalid),
        };
        let mut fresh = Fresh::new(kind, mode);
        if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
            fresh.rdev = rdev;
        }
        self.make(caller, parent, name, &fresh)
    }

    /// Makes a directory.
    ///
    /// # Errors
    ///
    /// As for [`Self::mknod`], and [`FsError::TooManyLinks`] if the parent has no place for another.
    pub fn mkdir(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        mode: u32,
    ) -> Result<Attr, FsError> {
        let fresh = Fresh::new(FileKind::Directory, mode);
        self.make(caller, parent, name, &fresh)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    ///
    /// As for [`Self::mknod`], and [`FsError::NameTooLong`] for a target of 4096 bytes or more.
    pub fn symlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attr, FsError> {
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.len() > TARGET_MAX {
            return Err(FsError::NameTooLong);
        }
        let mut fresh = Fresh::new(FileKind::Symlink, 0o777);
        fresh.inline = Inline::Target(target.to_vec());
        self.make(caller, parent, name, &fresh)
    }

    /// Gives an inode another name.
    ///
    /// # Errors
    ///
    /// [`FsError::Exists`], [`FsError::NotPermitted`] for a directory, [`FsError::TooManyLinks`],
    /// [`FsError::NotFound`] for an inode that lost its last name, [`FsError::CrossesQuota`] if the inode has a name in
    /// another quota.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr, FsError> {
        self.inodes.check_writable()?;
        check_new_name(name)?;
        self.with_room(|| {
            loop {
                if let Some(attr) = self.link_once(ino, parent, name)? {
                    return Ok(attr);
                }
            }
        })
    }

    /// Returns `None` if quotas began to count meanwhile, and another attempt is to hold the lock of renames.
    fn link_once(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Option<Attr>, FsError> {
        let quotas = self.inodes.quotas();
        let rename = quotas.is_counting().then(|| self.inodes.locks().rename());
        let _lock = self.inodes.locks().exclusive(&[ino, parent]);
        if quotas.is_counting() && rename.is_none() {
            return Ok(None);
        }
        let mut inode = self.inodes.get(ino)?;
        if inode.kind == FileKind::Directory {
            return Err(FsError::NotPermitted);
        }
        let mut directory = self.directory_for(parent, name)?;
        let was_nameless = inode.links == 0;
        if was_nameless && !self.references.nodes.is_linkable(ino) {
            return Err(FsError::NotFound);
        }
        let quota = quotas.check_link(&inode, parent)?;
        let counting = quotas.counting_around(parent)?;
        add_link(&mut inode)?;
        let now = self.inodes.now();
        inode.ctime = now;
        let mut edit = Edit::default();
        // The data behind its end must still be found after a crash.
        if was_nameless && !self.removal.is_cutting(ino) {
            edit.delete_orphan(ino);
        }
        if quota == inode.quota {
            edit.put_inode(ino, &inode);
        } else {
            inode.quota = quota;
            edit.put_recharged(ino, &inode);
        }
        directory.add(&mut edit, name, (ino, inode.kind), None)?;
        directory.put(&mut edit, now);
        self.inodes.apply_growth(edit)?;
        quotas.note_moved(counting, [ino]);
        if was_nameless {
            self.references.nodes.named(ino);
        }
        self.references.nodes.look_up(ino);
        Ok(Some(Attr::new(ino, &inode)))
    }

    /// Makes a regular file and opens it; opens the one that is there unless `flags.exclusive`.
    ///
    /// # Errors
    ///
    /// As for [`Self::mknod`] and [`OpenFiles::open`].
    pub fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle), FsError> {
        loop {
            match self.make(caller, parent, name, &Fresh::new(FileKind::Regular, mode)) {
                Ok(attr) => return Ok((attr, self.references.open_file(attr.ino, flags))),
                Err(FsError::Exists) if !flags.exclusive => {}
                Err(error) => return Err(error),
            }
            match self.lookup(parent, name) {
                Ok(attr) => return self.open_found(caller, &attr, flags),
                // Removed since: make it after all.
                Err(FsError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes a regular file without a name. It can be linked unless `flags.exclusive`, and is gone
    /// with its last handle or at the next mount if it was not.
    ///
    /// # Errors
    ///
    /// [`FsError::NotDirectory`], [`FsError::NotFound`] if the directory was removed, [`FsError::QuotaExceeded`].
    pub fn tmpfile(
        &self,
        caller: &Caller,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle), FsError> {
        self.inodes.check_writable()?;
        self.with_room(|| self.tmpfile_once(caller, parent, mode, flags))
    }

    fn tmpfile_once(
        &self,
        caller: &Caller,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle), FsError> {
        let _lock = self.inodes.locks().shared(parent);
        let directory = self.directory_to_change(parent)?;
        let fresh = Fresh::new(FileKind::Regular, mode);
        let mut edit = Edit::default();
        let (ino, mut inode) = self.fresh_inode(&mut edit, caller, &directory, fresh)?;
        inode.links = 0;
        edit.put_inode(ino, &inode);
        edit.put_orphan(ino);
        self.inodes.apply_growth(edit)?;
        self.references.nodes.look_up(ino);
        let handle = self.references.open_file(ino, flags);
        self.references.nodes.nameless(ino, !flags.exclusive);
        Ok((Attr::new(ino, &inode), handle))
    }

    fn open_found(
        &self,
        caller: &Caller,
        attr: &Attr,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle), FsError> {
        let opened = self.open_files.open(caller, attr.ino, flags);
        let result = opened
            .and_then(|handle| Ok((Attr::new(attr.ino, &self.inodes.get(attr.ino)?), handle)));
        if result.is_err() {
            self.open_files.forget(attr.ino, 1);
        }
        result
    }

    fn make(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        fresh: &Fresh,
    ) -> Result<Attr, FsError> {
        self.inodes.check_writable()?;
        check_new_name(name)?;
        self.with_room(|| self.make_once(caller, parent, name, fresh))
    }

    fn make_once(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        fresh: &Fresh,
    ) -> Result<Attr, FsError> {
        let _lock = self.inodes.locks().exclusive(&[parent]);
        let mut directory = self.directory_for(parent, name)?;
        if fresh.kind == FileKind::Directory {
            directory.add_child()?;
        }
        let mut edit = Edit::default();
        let (ino, inode) = self.fresh_inode(&mut edit, caller, &directory, fresh.clone())?;
        edit.put_inode(ino, &inode);
        directory.add(&mut edit, name, (ino, inode.kind), None)?;
        directory.put(&mut edit, inode.btime);
        self.inodes.apply_growth(edit)?;
        self.references.nodes.look_up(ino);
        Ok(Attr::new(ino, &inode))
    }

    /// Reads the directory that is to get an entry `name`, and sees that it has none.
    fn directory_for(&self, parent: Ino, name: &[u8]) -> Result<Directory, FsError> {
        let directory = self.directory_to_change(parent)?;
        match self.entry(parent, name)? {
            Some(_) => Err(FsError::Exists),
            None => Ok(directory),
        }
    }

    /// Adds a whiteout to a directory: a character device 0:0 that permits nothing.
    pub(super) fn add_whiteout(
        &self,
        edit: &mut Edit,
        caller: &Caller,
        directory: &mut Directory,
        name: &[u8],
        cookie: Option<Cookie>,
    ) -> Result<(), FsError> {
        let fresh = Fresh::new(FileKind::CharDevice, 0);
        let (ino, inode) = self.fresh_inode(edit, caller, directory, fresh)?;
        edit.put_inode(ino, &inode);
        directory.add(edit, name, (ino, inode.kind), cookie)
    }

    /// Returns the number of a new inode, and the inode with what it inherits from its directory. Its ACLs go into the
    /// edit.
    fn fresh_inode(
        &self,
        edit: &mut Edit,
        caller: &Caller,
        directory: &Directory,
        fresh: Fresh,
    ) -> Result<(Ino, Inode), FsError> {
        let ino = self.transactions.next_ino()?;
        let now = self.inodes.now();
        let is_dir = fresh.kind == FileKind::Directory;
        let hands_down_group = directory.inode.permissions & SETGID != 0;
        let gid = if hands_down_group {
            directory.inode.gid
        } else {
            caller.gid
        };
        let mut permissions = fresh.permissions;
        if hands_down_group && is_dir {
            permissions |= SETGID;
        } else if hands_down_group
            && permissions & (SETGID | GROUP_EXECUTE) == (SETGID | GROUP_EXECUTE)
            && !caller.may_set_gid_of(gid)
        {
            permissions &= !SETGID;
        }
        let symlink = fresh.kind == FileKind::Symlink;
        let size = match &fresh.inline {
            Inline::Target(target) => target.len() as u64,
            Inline::None | Inline::Data(_) => 0,
        };
        if !symlink {
            permissions = match self.xattrs.value(directory.ino, acl::DEFAULT)? {
                Some(default) => acl::inherit(edit, ino, is_dir, &default, permissions)?,
                None => permissions & !permission_bits(caller.umask & 0o777),
            };
        }
        let inode = Inode {
            kind: fresh.kind,
            permissions,
            uid: caller.uid,
            gid,
            links: if is_dir { 2 } else { 1 },
            rdev: fresh.rdev,
            size,
            allocated_bytes: 0,
            unwritten_bytes: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            parent: if is_dir { directory.ino } else { Ino(0) },
            next_cookie: if is_dir { FIRST_COOKIE } else { Cookie(0) },
            quota: self.inodes.quotas().resolve(&directory.inode),
            class: directory.inode.class,
            inline: fresh.inline,
        };
        Ok((ino, inode))
    }
}

fn check_new_name(name: &[u8]) -> Result<(), FsError> {
    if is_dot(name) {
        return Err(FsError::Exists);
    }
    check_name(name)
}
