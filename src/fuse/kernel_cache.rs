//! Notices to the kernel that changes were lost which it has seen.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use super::device::Device;
use crate::format::Ino;
use crate::fs::LostChanges;

/// Everything that the kernel remembers of one mount: names, attributes and pages.
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

    /// Makes the kernel forget what it knows of names and inodes whose changes were `lost`. Pages that it has not handed
    /// over yet are written first. So this must not be called on a thread that serves requests.
    pub fn distrust(&self, lost: &LostChanges) {
        for (parent, name) in &lost.names {
            note(self.device.invalidate_name(*parent, name));
        }
        self.drop_pages(&lost.inodes);
    }

    /// Makes the kernel drop its pages of inodes. This is subject to the same rule as [`Self::distrust`].
    pub fn drop_pages(&self, inodes: &BTreeSet<Ino>) {
        for ino in inodes {
            note(self.device.invalidate_pages(*ino, 0, None));
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
