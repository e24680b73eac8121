//! Extended attributes.

use std::collections::HashMap;
use std::ops::ControlFlow;

use parking_lot::Mutex;

use crate::format::record::{FileKind, Inode, Xattr};
use crate::format::{Ino, NAME_MAX, Record, key};

use super::Fs;
use super::acl;
use super::edit::Edit;
use super::error::FsError;
use super::types::{Caller, XattrMode};

/// The attribute that holds the capabilities of a program.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// Longest value, in bytes.
const VALUE_MAX: usize = 64 << 10;

/// Attributes of the superuser, hidden from all other users.
const TRUSTED: &[u8] = b"trusted.";

/// Longest list of the names of one inode, in bytes: what `listxattr(2)` can return.
const LIST_MAX: usize = 64 << 10;

/// Inodes whose lists' lengths are remembered: some kilobytes.
const KNOWN_LISTS: usize = 1024;

/// Lengths of the lists of names of inodes, so that adding a name does not count all others. An inode's
/// length is read and remembered only under the inode's exclusive lock, under which its names change.
#[derive(Debug, Default)]
pub(super) struct NameLens(Mutex<HashMap<Ino, usize>>);

impl NameLens {
    fn get(&self, ino: Ino) -> Option<usize> {
        self.0.lock().get(&ino).copied()
    }

    /// Remembers a length, if there is one.
    fn note(&self, ino: Ino, len: Option<usize>) {
        let Some(len) = len else {
            return;
        };
        let mut known = self.0.lock();
        if known.len() >= KNOWN_LISTS && !known.contains_key(&ino) {
            known.clear();
        }
        known.insert(ino, len);
    }

    /// Forgets the lengths of inodes whose names change.
    pub(super) fn forget(&self, inos: &[Ino]) {
        if inos.is_empty() {
            return;
        }
        let mut known = self.0.lock();
        for ino in inos {
            known.remove(ino);
        }
    }
}

impl Fs {
    /// Returns the value of an attribute.
    ///
    /// # Errors
    ///
    /// [`FsError::NoData`], [`FsError::NotFound`], [`FsError::Unsupported`] for a name in no known
    /// namespace, [`FsError::Range`] for one of more than 255 bytes.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, FsError> {
        check_name(name)?;
        match self.xattr_value(ino, name)? {
            Some(value) => Ok(value),
            // Only now: most are asked for in vain, of inodes that are there.
            None => self.inode(ino).and(Err(FsError::NoData)),
        }
    }

    /// Sets an attribute. Setting an ACL changes the permission bits with it.
    ///
    /// # Errors
    ///
    /// [`FsError::Exists`] and [`FsError::NoData`] as `mode` has it; [`FsError::Unsupported`] and
    /// [`FsError::Range`] for names; [`FsError::TooBig`] for a value of more than 64 KiB;
    /// [`FsError::NoSpace`] if the names were more than can be listed; [`FsError::NotPermitted`] for
    /// `user.` on what is neither file nor directory; for ACLs [`FsError::Invalid`], and
    /// [`FsError::PermissionDenied`] for a default ACL on what is no directory.
    pub fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FsError> {
        self.writable()?;
        check_name(name)?;
        if value.len() > VALUE_MAX {
            return Err(FsError::TooBig);
        }
        self.with_room(0, || Ok(self.pipeline.growth().check_growth()?))?;
        let _lock = self.locks.exclusive(&[ino]);
        let mut inode = self.inode(ino)?;
        check_kind(&inode, name)?;
        let present = self.xattr_value(ino, name)?.is_some();
        match mode {
            XattrMode::Create if present => return Err(FsError::Exists),
            XattrMode::Replace if !present => return Err(FsError::NoData),
            XattrMode::Set | XattrMode::Create | XattrMode::Replace => {}
        }
        let len = if present {
            self.name_lens.get(ino)
        } else {
            let len = self.listed(ino)?.saturating_add(name.len() + 1);
            if len > LIST_MAX {
                return Err(FsError::NoSpace);
            }
            Some(len)
        };
        let mut edit = Edit::default();
        match name {
            // These may remove one instead: the next call counts the list again.
            acl::ACCESS => acl::set_access(&mut edit, caller, ino, &mut inode, value)?,
            acl::DEFAULT => acl::set_default(&mut edit, ino, &inode, value)?,
            _ => {
                edit.put_xattr(ino, name, value.to_vec());
                self.changed(edit, ino, inode)?;
                self.name_lens.note(ino, len);
                return Ok(());
            }
        }
        self.changed(edit, ino, inode)
    }

    /// Returns the names of all attributes that the caller may know of, each with a NUL behind it:
    /// `trusted.` ones are the superuser's.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], or a failure of the index; [`FsError::TooBig`] for a list of more than 64 KiB,
    /// which only a damaged volume has.
    pub fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>, FsError> {
        self.inode(ino)?;
        let mut list = Vec::new();
        self.visit_names(ino, |name| {
            if caller.uid != 0 && name.starts_with(TRUSTED) {
                return Ok(());
            }
            if list.len() + name.len() >= LIST_MAX {
                return Err(FsError::TooBig);
            }
            list.extend_from_slice(name);
            list.push(0);
            Ok(())
        })?;
        Ok(list)
    }

    /// Calls `visit` with the name of each attribute; values are not copied.
    fn visit_names(
        &self,
        ino: Ino,
        mut visit: impl FnMut(&[u8]) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let (from, end) = key::xattrs(ino);
        self.pipeline.visit(&from, &end, |key, _| {
            visit(key::parse_xattr(key)?.1)?;
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Returns the length of the list of all names. The caller has the inode's exclusive lock.
    fn listed(&self, ino: Ino) -> Result<usize, FsError> {
        if let Some(len) = self.name_lens.get(ino) {
            return Ok(len);
        }
        let mut len = 0_usize;
        self.visit_names(ino, |name| {
            len = len.saturating_add(name.len() + 1);
            Ok(())
        })?;
        Ok(len)
    }

    /// Removes an attribute.
    ///
    /// # Errors
    ///
    /// [`FsError::NoData`] if it is not there, and as for [`Self::setxattr`].
    pub fn removexattr(&self, _caller: &Caller, ino: Ino, name: &[u8]) -> Result<(), FsError> {
        self.writable()?;
        check_name(name)?;
        let _lock = self.locks.exclusive(&[ino]);
        let inode = self.inode(ino)?;
        check_kind(&inode, name)?;
        if self.xattr_value(ino, name)?.is_none() {
            return Err(FsError::NoData);
        }
        let mut edit = Edit::default();
        edit.delete_xattr(ino, name);
        let len = self.name_lens.get(ino);
        self.changed(edit, ino, inode)?;
        let len = len.and_then(|len| len.checked_sub(name.len() + 1));
        self.name_lens.note(ino, len);
        Ok(())
    }

    pub(super) fn xattr_value(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>, FsError> {
        match self.pipeline.get(&key::xattr(ino, name))? {
            Some(value) => Ok(Some(Xattr::decode(&value)?.0)),
            None => Ok(None),
        }
    }

    fn changed(&self, mut edit: Edit, ino: Ino, mut inode: Inode) -> Result<(), FsError> {
        inode.ctime = self.now();
        edit.put_inode(ino, &inode);
        self.apply(edit)
    }
}

fn check_name(name: &[u8]) -> Result<(), FsError> {
    const NAMESPACES: [&[u8]; 3] = [b"user.", TRUSTED, b"security."];
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(FsError::Range);
    }
    if matches!(name, acl::ACCESS | acl::DEFAULT) {
        return Ok(());
    }
    let Some(namespace) = NAMESPACES.iter().find(|space| name.starts_with(space)) else {
        return Err(FsError::Unsupported);
    };
    if name.len() == namespace.len() {
        return Err(FsError::Invalid);
    }
    Ok(())
}

/// Anybody may write to some fifos and devices, and follows some symbolic links: they carry no
/// attributes that anybody may set.
fn check_kind(inode: &Inode, name: &[u8]) -> Result<(), FsError> {
    let plain = matches!(inode.kind, FileKind::Regular | FileKind::Directory);
    if name.starts_with(b"user.") && !plain {
        return Err(FsError::NotPermitted);
    }
    if matches!(name, acl::ACCESS | acl::DEFAULT) && inode.kind == FileKind::Symlink {
        return Err(FsError::Unsupported);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
