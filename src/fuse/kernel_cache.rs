//! Notices to the kernel that changes were lost which it has seen.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use super::device::Device;
use crate::format::Ino;
use crate::fs::{LostChanges, ServedFs, SizeTold};

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

    /// Makes the kernel forget what it knows of names and inodes whose changes were `lost`. It takes files for as long as
    /// they are in `served` then. Returns the files of which it can learn the size later, by [`Self::restore`]. The kernel
    /// first writes the pages that it holds. So this must not be called on a thread that serves requests.
    pub fn distrust(&self, lost: &LostChanges, served: &ServedFs) -> BTreeSet<Ino> {
        for (parent, name) in &lost.names {
            note(self.device.invalidate_name(*parent, name));
        }
        self.restore(&lost.inodes, served)
    }

    /// The same for inodes alone.
    pub fn restore(&self, inodes: &BTreeSet<Ino>, served: &ServedFs) -> BTreeSet<Ino> {
        let mut later = inodes.clone();
        later.retain(|ino| {
            // The last page may have zeros behind the end that the kernel knows.
            self.drop_pages_of(*ino);
            match served.tell_size(*ino, |size| self.device.lengthen(*ino, size)) {
                SizeTold::Told(told) => note(told),
                // The kernel knows no size of it either.
                SizeTold::NoFile => {}
                SizeTold::Later => return true,
            }
            false
        });
        later
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
}

/// Logs a notice that failed. A name or inode that the kernel does not know needs none.
fn note(told: io::Result<()>) {
    if let Err(error) = told
        && error.raw_os_error() != Some(libc::ENOENT)
    {
        tracing::warn!("the kernel may show changes that were lost: {error}");
    }
}
