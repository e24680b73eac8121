//! Files in the kernel's page cache, and the notices that the kernel needs about them.
//!
//! A write(2) into the page cache succeeds before its bytes are here. A lack of room for them shows only when they are
//! written back, and only fsync and close report it. A program that does neither would fill a full volume for ever. But
//! before it takes a write, the kernel asks for the attributes of the file, unless it holds some to trust. So they are
//! taken away from it when pages find no room. It then asks for them again. If the handle is known to be there for writing
//! only, the answer is `ENOSPC`, or `EDQUOT` if a quota has no room. Where the kernel opens files by itself, that is a file which was created so.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::device::Device;
use crate::format::Ino;
use crate::fs::FsError;

/// The time for which writers are refused after pages found no room. A writer that goes on meets it, and room that was
/// made since does not stay unused for long.
const REFUSAL: Duration = Duration::from_secs(5);

/// Most files that are remembered for it. Writers of others learn of it from fsync and close.
const MOST_STARVED: usize = 1024;

/// The lack because of which pages find no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// The volume is full.
    Space,
    /// A quota is used up.
    Quota,
}

impl Lack {
    /// Returns the lack that a write failed for, if it was one.
    pub(super) fn of(errno: Errno) -> Option<Self> {
        match errno {
            Errno::NOSPC => Some(Self::Space),
            Errno::DQUOT => Some(Self::Quota),
            _ => None,
        }
    }

    /// Returns the error that a writer learns of it by.
    pub(super) fn error(self) -> FsError {
        match self {
            Self::Space => FsError::NoSpace,
            Self::Quota => FsError::QuotaExceeded,
        }
    }
}

/// The kernel's page cache of one mount.
pub(super) struct PageCache {
    device: Arc<Device>,
    /// The time when pages of an inode last found no room, and the reason.
    starved: Mutex<HashMap<Ino, (Instant, Lack)>>,
}

impl PageCache {
    /// Returns the page cache of the mount at the other end of `device`.
    pub(super) fn new(device: Arc<Device>) -> Self {
        Self {
            device,
            starved: Mutex::default(),
        }
    }

    /// Makes the kernel write back and drop the pages of an inode from byte `start` to before `end`, or to the last one.
    /// Waits for the writes, so it must not be called on a thread that serves them.
    ///
    /// # Errors
    ///
    /// If the kernel cannot be told.
    pub(super) fn write_back(&self, number: Ino, start: u64, end: Option<u64>) -> io::Result<()> {
        known(self.device.invalidate_pages(number, start, end))
    }

    /// Makes the kernel ask for an inode's attributes before it uses them again. It may wait for the
    /// inode's pages to be written, so it must not be called on a thread that serves them.
    ///
    /// # Errors
    ///
    /// If the kernel cannot be told.
    pub(super) fn distrust_attributes(&self, number: Ino) -> io::Result<()> {
        known(self.device.invalidate_attributes(number))
    }

    /// Notes that pages of an inode found no room just now.
    pub(super) fn note_starved(&self, number: Ino, lack: Lack) {
        let mut starved = self.starved.lock();
        if starved.len() >= MOST_STARVED {
            starved.retain(|_, (since, _)| since.elapsed() < REFUSAL);
        }
        if starved.len() < MOST_STARVED {
            starved.insert(number, (Instant::now(), lack));
        }
    }

    /// Returns the lack for which pages of an inode found no room lately.
    pub(super) fn starved(&self, number: Ino) -> Option<Lack> {
        let starved = self.starved.lock();
        let (since, lack) = *starved.get(&number)?;
        (since.elapsed() < REFUSAL).then_some(lack)
    }
}

/// Returns the outcome of a notice. An inode that the kernel has forgotten needs none.
fn known(told: io::Result<()>) -> io::Result<()> {
    match told {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        told => told,
    }
}
