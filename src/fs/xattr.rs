//! Extended attributes.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::format::record::{FileKind, Inode, Xattr};
use crate::format::{Ino, NAME_MAX, Record, key};
use crate::transaction::Transactions;

use super::acl;
use super::edit::Edit;
use super::error::FsError;
use super::inodes::Inodes;
use super::types::{Caller, XattrMode};

/// The attribute that holds the capabilities of a program.
const CAPABILITY: &[u8] = b"security.capability";

/// Longest value, in bytes.
const VALUE_MAX: usize = 64 << 10;

/// Longest list of the names of one inode, in bytes: what `listxattr(2)` can return.
const LIST_MAX: usize = 64 << 10;

/// Extended attributes of inodes.
pub struct Xattrs {
    inodes: Arc<Inodes>,
    transactions: Arc<Transactions>,
}

impl Xattrs {
    pub(super) fn new(inodes: &Arc<Inodes>, transactions: &Arc<Transactions>) -> Self {
        Self {
            inodes: Arc::clone(inodes),
            transactions: Arc::clone(transactions),
        }
    }

    /// Returns the value of an attribute.
    ///
    /// # Errors
    ///
    /// [`FsError::NoData`], [`FsError::NotFound`], [`FsError::Unsupported`] for a name in no known
    /// namespace, [`FsError::Range`] for one of more than 255 bytes.
    pub fn get(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, FsError> {
        check_name(name)?;
        match self.value(ino, name)? {
            Some(value) => Ok(value),
            // Only now: most are asked for in vain, of inodes that are there.
            None => self.inodes.get(ino).and(Err(FsError::NoData)),
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
    pub fn set(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FsError> {
        self.inodes.check_writable()?;
        let namespace = check_name(name)?;
        if value.len() > VALUE_MAX {
            return Err(FsError::TooBig);
        }
        self.inodes
            .with_room(0, || Ok(self.transactions.growth().check_growth()?))?;
        let _lock = self.inodes.locks().exclusive(&[ino]);
        let mut inode = self.inodes.get(ino)?;
        check_kind(&inode, namespace)?;
        let present = self.value(ino, name)?.is_some();
        match mode {
            XattrMode::Create if present => return Err(FsError::Exists),
            XattrMode::Replace if !present => return Err(FsError::NoData),
            XattrMode::Set | XattrMode::Create | XattrMode::Replace => {}
        }
        let len = if present {
            self.inodes.list_lens().get(ino)
        } else {
            let len = self.listed(ino)?.saturating_add(name.len() + 1);
            if len > LIST_MAX {
                return Err(FsError::NoSpace);
            }
            Some(len)
        };
        let mut edit = Edit::default();
        match namespace {
            // These may remove one instead: the next call counts the list again.
            Namespace::AccessAcl => acl::set_access(&mut edit, caller, ino, &mut inode, value)?,
            Namespace::DefaultAcl => acl::set_default(&mut edit, ino, &inode, value)?,
            Namespace::User | Namespace::Trusted | Namespace::Security => {
                edit.put_xattr(ino, name, value.to_vec());
                self.apply(edit, ino, inode)?;
                self.inodes.list_lens().note(ino, len);
                return Ok(());
            }
        }
        self.apply(edit, ino, inode)
    }

    /// Returns the names of all attributes that the caller may know of, each with a NUL behind it:
    /// `trusted.` ones are the superuser's.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], or a failure of the index; [`FsError::TooBig`] for a list of more than 64 KiB,
    /// which only a damaged volume has.
    pub fn list(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>, FsError> {
        self.inodes.get(ino)?;
        let mut list = Vec::new();
        self.visit_names(ino, |name| {
            if !caller.is_root() && Namespace::parse(name) == Some(Namespace::Trusted) {
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
        self.transactions.visit(&from, &end, |key, _| {
            visit(key::parse_xattr(key)?.1)?;
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Returns the length of the list of all names. The caller has the inode's exclusive lock.
    fn listed(&self, ino: Ino) -> Result<usize, FsError> {
        if let Some(len) = self.inodes.list_lens().get(ino) {
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
    /// [`FsError::NoData`] if it is not there, and as for [`Self::set`].
    pub fn remove(&self, ino: Ino, name: &[u8]) -> Result<(), FsError> {
        self.inodes.check_writable()?;
        let namespace = check_name(name)?;
        let _lock = self.inodes.locks().exclusive(&[ino]);
        let inode = self.inodes.get(ino)?;
        check_kind(&inode, namespace)?;
        if self.value(ino, name)?.is_none() {
            return Err(FsError::NoData);
        }
        let mut edit = Edit::default();
        edit.delete_xattr(ino, name);
        let len = self.inodes.list_lens().get(ino);
        self.apply(edit, ino, inode)?;
        let len = len.and_then(|len| len.checked_sub(name.len() + 1));
        self.inodes.list_lens().note(ino, len);
        Ok(())
    }

    /// Returns the value of an attribute, if the inode has it.
    pub(super) fn value(&self, ino: Ino, name: &[u8]) -> Result<Option<Vec<u8>>, FsError> {
        match self.transactions.get(&key::xattr(ino, name))? {
            Some(value) => Ok(Some(Xattr::decode(&value)?.0)),
            None => Ok(None),
        }
    }

    /// Removes the capabilities of anything but a directory. The caller holds the inode's exclusive lock until the
    /// edit is applied.
    pub(super) fn drop_capability(
        &self,
        edit: &mut Edit,
        ino: Ino,
        inode: &Inode,
    ) -> Result<(), FsError> {
        if inode.kind != FileKind::Directory && self.value(ino, CAPABILITY)?.is_some() {
            edit.delete_xattr(ino, CAPABILITY);
        }
        Ok(())
    }

    /// Applies an edit that changes the attributes of an inode.
    fn apply(&self, mut edit: Edit, ino: Ino, mut inode: Inode) -> Result<(), FsError> {
        inode.ctime = self.inodes.now();
        edit.put_inode(ino, &inode);
        self.inodes.apply(edit)
    }
}

/// The namespace of an attribute, which decides who may see it and what may carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    /// Attributes of users.
    User,
    /// Attributes of the superuser, hidden from all other users.
    Trusted,
    /// Attributes of security modules, and capabilities.
    Security,
    /// The ACL of an inode.
    AccessAcl,
    /// The ACL that a directory hands down.
    DefaultAcl,
}

impl Namespace {
    /// Returns the namespace of a name, if it is a known one.
    fn parse(name: &[u8]) -> Option<Self> {
        match name {
            acl::ACCESS => return Some(Self::AccessAcl),
            acl::DEFAULT => return Some(Self::DefaultAcl),
            _ => {}
        }
        let dot = name.iter().position(|byte| *byte == b'.')?;
        match &name[..dot] {
            b"user" => Some(Self::User),
            b"trusted" => Some(Self::Trusted),
            b"security" => Some(Self::Security),
            _ => None,
        }
    }
}

/// Returns the namespace of a valid name.
fn check_name(name: &[u8]) -> Result<Namespace, FsError> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(FsError::Range);
    }
    let namespace = Namespace::parse(name).ok_or(FsError::Unsupported)?;
    // The name ends with the dot behind the namespace.
    if name.iter().position(|byte| *byte == b'.') == Some(name.len() - 1) {
        return Err(FsError::Invalid);
    }
    Ok(namespace)
}

/// Fails if an inode cannot carry attributes of a namespace. Any user may write to some fifos and devices, and follows
/// some symbolic links: they carry no attributes that any user may set.
fn check_kind(inode: &Inode, namespace: Namespace) -> Result<(), FsError> {
    let plain = matches!(inode.kind, FileKind::Regular | FileKind::Directory);
    match namespace {
        Namespace::User if !plain => Err(FsError::NotPermitted),
        Namespace::AccessAcl | Namespace::DefaultAcl if inode.kind == FileKind::Symlink => {
            Err(FsError::Unsupported)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
