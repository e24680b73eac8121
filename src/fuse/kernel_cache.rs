//! Notices to the kernel that changes were lost which it has seen.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use super::device::Device;
use crate::format::Ino;
use crate::fs::{FsError, LostChanges, ServedFs};

/// Everything that the kernel remembers of one mount: names, attributes, sizes and pages.
#[derive(Clone, Debug)]
pub struct KernelCache {
    device: Arc<Device>,
}

impl KernelCache {
    /// Returns the cache of the mount at the other end of `device`.
    pub(super) fn new(device: Arc<Device>) -> Self {
        Self { device }
    }

    /// Returns the cache of a kernel at the other end of a socket, which a test is.
    #[cfg(test)]
    pub(crate) fn over(socket: std::os::fd::OwnedFd) -> Self {
        Self::new(Arc::new(Device::new(socket)))
    }

    /// Makes the kernel forget what it knows of names and inodes whose changes were `lost`, and take files for as long as
    /// they are in `served`. Pages that it has not handed over yet are written first. So this must not be called on a
    /// thread that serves requests.
    pub fn distrust(&self, lost: &LostChanges, served: &ServedFs) {
        for (parent, name) in &lost.names {
            note(self.device.invalidate_name(*parent, name));
        }
        for ino in &lost.inodes {
            self.drop_pages_of(*ino);
            self.restore_size(*ino, served);
        }
    }

    /// Makes the kernel drop its pages of inodes. This is subject to the same rule as [`Self::distrust`].
    pub fn drop_pages(&self, inodes: &BTreeSet<Ino>) {
        for ino in inodes {
            self.drop_pages_of(*ino);
        }
    }

    fn drop_pages_of(&self, ino: Ino) {
        note(self.device.invalidate_pages(ino, 0, None));
    }

    /// Makes the kernel take a file for as long as it is. A change that made it shorter may be lost. Its pages are dropped
    /// first: the last one may have zeros behind the end that the kernel knew.
    fn restore_size(&self, ino: Ino, served: &ServedFs) {
        match served.tell_size(ino, |size| self.device.lengthen(ino, size)) {
            Ok(Some(told)) => note(told),
            // What has no size here has none in the kernel either.
            Ok(None) | Err(FsError::NotFound) => {}
            Err(error) => {
                tracing::warn!("the kernel may take inode {ino} for shorter than it is: {error}");
            }
        }
    }
}

/// Logs a notice that failed. A name or inode that the kernel does not know needs none.
fn note(told: io::Result<()>) {
    if let Err(error) = told
        && error.raw_os_error() != Some(libc::ENOENT)
    {
        tracing::warn!("the kernel may show changes that were lost: {error}");
    }
}
