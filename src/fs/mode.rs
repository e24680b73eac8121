//! Kinds and permission bits of inodes.

use crate::format::record::{FileKind, Inode};

use super::error::FsError;
use super::types::Caller;

/// The bit with which a program runs as its owner.
pub(super) const SETUID: u16 = 0o4000;

/// The bit with which a program runs as its group, and with which a directory hands its group down.
pub(super) const SETGID: u16 = 0o2000;

/// The bit that lets the group execute.
pub(super) const GROUP_EXECUTE: u16 = 0o010;

/// Checks that an inode has bytes that can be read, written and cut.
pub(super) fn check_regular(inode: &Inode) -> Result<(), FsError> {
    match inode.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(FsError::IsDirectory),
        FileKind::Symlink
        | FileKind::Fifo
        | FileKind::Socket
        | FileKind::CharDevice
        | FileKind::BlockDevice => Err(FsError::Invalid),
    }
}

/// Clears the bits that let a program run as another user, because `caller` changes what they stand for: setuid, and
/// setgid. Without the group's execute bit setgid stays if the caller may set it, as on other filesystems of Linux.
pub(super) fn clear_privileges(inode: &mut Inode, caller: &Caller) {
    if inode.kind == FileKind::Directory {
        return;
    }
    inode.permissions &= !SETUID;
    let is_setgid = inode.permissions & SETGID != 0;
    if is_setgid && (inode.permissions & GROUP_EXECUTE != 0 || !caller.may_set_gid_of(inode.gid)) {
        inode.permissions &= !SETGID;
    }
}

/// Returns the permission bits of a mode, setuid, setgid and sticky included.
pub(super) fn permission_bits(mode: u32) -> u16 {
    u16::try_from(mode & 0o7777).expect("12 bits fit")
}
