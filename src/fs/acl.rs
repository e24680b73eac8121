//! POSIX access control lists, as acl(5) has them.
//!
//! They are kept in the form in which the kernel passes them: a version, then entries of a tag, the
//! permissions, and an id, little-endian. The kernel checks them; here they are validated, kept
//! in step with the permission bits, and handed down to new inodes.

use crate::format::Ino;
use crate::format::record::{FileKind, Inode};
use crate::format::wire::Reader;

use super::edit::Edit;
use super::error::FsError;
use super::mode::SETGID;
use super::types::Caller;

/// The attribute that holds the ACL of an inode.
pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";

/// The attribute that holds the ACL that a directory hands down.
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;

/// Id of entries that have none.
const NO_ID: u32 = u32::MAX;

/// Whom an entry is about, in the order that entries have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    Owner,
    User,
    OwningGroup,
    Group,
    Mask,
    Other,
}

impl Tag {
    fn number(self) -> u16 {
        match self {
            Self::Owner => 0x01,
            Self::User => 0x02,
            Self::OwningGroup => 0x04,
            Self::Group => 0x08,
            Self::Mask => 0x10,
            Self::Other => 0x20,
        }
    }

    fn from_number(number: u16) -> Option<Self> {
        [
            Self::Owner,
            Self::User,
            Self::OwningGroup,
            Self::Group,
            Self::Mask,
            Self::Other,
        ]
        .into_iter()
        .find(|tag| tag.number() == number)
    }

    fn has_id(self) -> bool {
        matches!(self, Self::User | Self::Group)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: Tag,
    permissions: u16,
    id: u32,
}

/// A valid list: owner, owning group and other once each, users and groups in the order of their ids,
/// and a mask if there are any.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Acl(Vec<AclEntry>);

impl Acl {
    /// Reads a list; `None` if it is empty, which means that there is to be none.
    fn parse(value: &[u8]) -> Result<Option<Self>, FsError> {
        let invalid = |_| FsError::Invalid;
        let mut reader = Reader::new("ACL", value);
        if reader.u32().map_err(invalid)? != VERSION {
            return Err(FsError::Unsupported);
        }
        let (entries, rest) = reader.rest().as_chunks::<8>();
        if !rest.is_empty() {
            return Err(FsError::Invalid);
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let entries: Vec<AclEntry> = entries
            .iter()
            .copied()
            .map(parse_entry)
            .collect::<Result<_, _>>()?;
        let acl = Self(entries);
        if acl.is_valid() {
            Ok(Some(acl))
        } else {
            Err(FsError::Invalid)
        }
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let named = count(Tag::User) + count(Tag::Group);
        let once = [Tag::Owner, Tag::OwningGroup, Tag::Other];
        once.into_iter().all(|tag| count(tag) == 1)
            && count(Tag::Mask) <= 1
            && (named == 0 || count(Tag::Mask) == 1)
            && self.0.is_sorted_by_key(|entry| entry.tag)
            && self.has_distinct_ids()
    }

    fn has_distinct_ids(&self) -> bool {
        let mut named: Vec<_> = self
            .0
            .iter()
            .filter(|entry| entry.tag.has_id())
            .map(|entry| (entry.tag, entry.id))
            .collect();
        let all = named.len();
        named.sort_unstable();
        named.dedup();
        named.len() == all
    }

    fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            value.extend_from_slice(&entry.tag.number().to_le_bytes());
            value.extend_from_slice(&entry.permissions.to_le_bytes());
            value.extend_from_slice(&entry.id.to_le_bytes());
        }
        value
    }

    /// Returns whether the list says no more than nine permission bits can.
    fn is_mode(&self) -> bool {
        self.0.len() == 3
    }

    /// Returns the nine permission bits that stand for the list.
    fn mode(&self) -> u16 {
        self.of(Tag::Owner) << 6 | self.of(self.group_class()) << 3 | self.of(Tag::Other)
    }

    /// Sets the entries that the permission bits stand for.
    fn set_mode(&mut self, mode: u16) {
        let group_class = self.group_class();
        self.set(Tag::Owner, mode >> 6 & 7);
        self.set(group_class, mode >> 3 & 7);
        self.set(Tag::Other, mode & 7);
    }

    /// The entry that the group's permission bits stand for.
    fn group_class(&self) -> Tag {
        if self.0.iter().any(|entry| entry.tag == Tag::Mask) {
            Tag::Mask
        } else {
            Tag::OwningGroup
        }
    }

    fn of(&self, tag: Tag) -> u16 {
        let entry = self.0.iter().find(|entry| entry.tag == tag);
        entry.map_or(0, |entry| entry.permissions)
    }

    fn set(&mut self, tag: Tag, permissions: u16) {
        for entry in self.0.iter_mut().filter(|entry| entry.tag == tag) {
            entry.permissions = permissions;
        }
    }
}

fn parse_entry(bytes: [u8; 8]) -> Result<AclEntry, FsError> {
    let mut reader = Reader::new("ACL entry", &bytes);
    let (tag, permissions, id) = (reader.u16()?, reader.u16()?, reader.u32()?);
    let tag = Tag::from_number(tag).ok_or(FsError::Invalid)?;
    if permissions > 7 || (tag.has_id() && id == NO_ID) {
        return Err(FsError::Invalid);
    }
    Ok(AclEntry {
        tag,
        permissions,
        id: if tag.has_id() { id } else { NO_ID },
    })
}

/// Sets the ACL of an inode, and its permission bits with it. A list that says no more than the bits
/// is kept in them alone.
pub(super) fn set_access(
    edit: &mut Edit,
    caller: &Caller,
    ino: Ino,
    inode: &mut Inode,
    value: &[u8],
) -> Result<(), FsError> {
    let Some(acl) = Acl::parse(value)? else {
        edit.delete_xattr(ino, ACCESS);
        return Ok(());
    };
    inode.permissions = inode.permissions & 0o7000 | acl.mode();
    if inode.permissions & SETGID != 0 && !caller.may_set_gid_of(inode.gid) {
        inode.permissions &= !SETGID;
    }
    if acl.is_mode() {
        edit.delete_xattr(ino, ACCESS);
    } else {
        edit.put_xattr(ino, ACCESS, acl.encode());
    }
    Ok(())
}

/// Sets the ACL that a directory hands down.
pub(super) fn set_default(
    edit: &mut Edit,
    ino: Ino,
    inode: &Inode,
    value: &[u8],
) -> Result<(), FsError> {
    match Acl::parse(value)? {
        None => edit.delete_xattr(ino, DEFAULT),
        Some(_) if inode.kind != FileKind::Directory => return Err(FsError::PermissionDenied),
        Some(acl) => edit.put_xattr(ino, DEFAULT, acl.encode()),
    }
    Ok(())
}

/// Returns an ACL changed as the permission bits were.
pub(super) fn follow_mode(access: &[u8], permissions: u16) -> Result<Vec<u8>, FsError> {
    let Some(mut acl) = Acl::parse(access)? else {
        return Ok(access.to_vec());
    };
    acl.set_mode(permissions);
    Ok(acl.encode())
}

/// Puts what a new inode gets from its directory's default ACL into `edit`, and returns its permission
/// bits: what the creator asked for, as far as the ACL grants it. The umask does not count.
pub(super) fn inherit(
    edit: &mut Edit,
    ino: Ino,
    is_dir: bool,
    default: &[u8],
    asked: u16,
) -> Result<u16, FsError> {
    let Some(mut acl) = Acl::parse(default)? else {
        return Ok(asked);
    };
    if is_dir {
        edit.put_xattr(ino, DEFAULT, acl.encode());
    }
    acl.set_mode(acl.mode() & asked);
    if !acl.is_mode() {
        edit.put_xattr(ino, ACCESS, acl.encode());
    }
    Ok(asked & 0o7000 | acl.mode())
}
