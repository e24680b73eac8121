//! A file that an extraction has made, held by its descriptor, and the attributes that it gets.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Gid, Mode, Stat, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

/// Something that this extraction has made.
///
/// Attributes are set over the descriptor. No name is resolved for it, so no other program can put
/// something else in its place.
pub(super) struct Made {
    descriptor: OwnedFd,
    /// True if the descriptor only stands for the inode (`O_PATH`): symlinks and devices are not opened.
    is_path: bool,
}

impl From<File> for Made {
    fn from(file: File) -> Self {
        Self::open(file.into())
    }
}

impl Made {
    /// Takes the descriptor of a file or directory.
    pub(super) fn open(descriptor: OwnedFd) -> Self {
        Self {
            descriptor,
            is_path: false,
        }
    }

    /// Takes a descriptor that only stands for the inode.
    pub(super) fn path(descriptor: OwnedFd) -> Self {
        Self {
            descriptor,
            is_path: true,
        }
    }

    pub(super) fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(&self.descriptor)?)
    }

    pub(super) fn set_owner(&self, uid: u32, gid: u32) -> io::Result<()> {
        // The system takes this number for "as it is", which would leave the file to the caller.
        if uid == u32::MAX || gid == u32::MAX {
            return Err(Errno::INVAL.into());
        }
        let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        let at = self.descriptor.as_fd();
        Ok(rustix::fs::chownat(
            at,
            "",
            owner.0,
            owner.1,
            AtFlags::EMPTY_PATH,
        )?)
    }

    /// Sets the permissions of anything but a symlink.
    pub(super) fn set_permissions(&self, permissions: u16) -> io::Result<()> {
        let mode = Mode::from_raw_mode(u32::from(permissions));
        if self.is_path {
            let link = magic_link(self.descriptor.as_fd());
            return Ok(rustix::fs::chmodat(CWD, link, mode, AtFlags::empty())?);
        }
        Ok(rustix::fs::fchmod(&self.descriptor, mode)?)
    }

    pub(super) fn set_times(&self, times: &Timestamps) -> io::Result<()> {
        if !self.is_path {
            return Ok(rustix::fs::futimens(&self.descriptor, times)?);
        }
        match rustix::fs::utimensat(&self.descriptor, "", times, AtFlags::EMPTY_PATH) {
            // Kernels before 5.8 do not take an empty path.
            Err(Errno::INVAL | Errno::NOENT) => {
                let link = magic_link(self.descriptor.as_fd());
                Ok(rustix::fs::utimensat(CWD, link, times, AtFlags::empty())?)
            }
            set => Ok(set?),
        }
    }

    pub(super) fn set_attribute(&self, name: &[u8], value: &[u8]) -> io::Result<()> {
        let flags = XattrFlags::empty();
        if self.is_path {
            let link = magic_link(self.descriptor.as_fd());
            return Ok(rustix::fs::setxattr(link, name, value, flags)?);
        }
        Ok(rustix::fs::fsetxattr(&self.descriptor, name, value, flags)?)
    }
}

/// Returns a path that leads to the inode of a descriptor and no further, also where that is a symlink.
fn magic_link(descriptor: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}
