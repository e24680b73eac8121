//! Reads of what the system has in memory, on the thread that wants the bytes.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, ReadWriteFlags};

use super::calls::retry;
use super::filesystems::LOCAL_FILESYSTEMS;
use super::handles::Open;

/// tmpfs, as `statfs(2)` numbers it.
const TMPFS: u32 = 0x0102_1994;

/// The way to find out whether a filesystem has bytes in memory.
#[derive(Debug)]
pub(super) enum Residence {
    /// All bytes are in memory. tmpfs refuses `RWF_NOWAIT`, and waits for no device but that of the swap space.
    Always,
    /// `RWF_NOWAIT` tells, until the filesystem refuses it.
    Asked { refused: AtomicBool },
    /// There is none. Even a read that is not to wait may wait for a server here.
    Unknown,
}

impl Residence {
    /// Returns the way of a filesystem of this kind.
    pub(super) fn of(kind: u32) -> Self {
        match kind {
            TMPFS => Self::Always,
            local if LOCAL_FILESYSTEMS.contains(&local) => Self::Asked {
                refused: AtomicBool::new(false),
            },
            _ => Self::Unknown,
        }
    }

    /// Fills `buf` from a file if that is possible without waiting. Returns whether it is full; its content is
    /// unspecified otherwise.
    pub(super) fn read(&self, file: &OwnedFd, offset: u64, buf: &mut [u8]) -> bool {
        let count = match self {
            Self::Always => retry(|| rustix::io::pread(file, &mut *buf, offset)),
            Self::Asked { refused } => {
                let read = retry(|| {
                    let mut whole = [IoSliceMut::new(buf)];
                    rustix::io::preadv2(file, &mut whole, offset, ReadWriteFlags::NOWAIT)
                });
                if let Err(Errno::OPNOTSUPP | Errno::NOSYS) = read {
                    refused.store(true, Ordering::Relaxed);
                }
                read
            }
            Self::Unknown => return false,
        };
        count == Ok(buf.len())
    }

    /// Returns the descriptor to read with, if there is one. `is_direct` tells that the file is used past the page cache.
    pub(super) fn choose(
        &self,
        is_direct: bool,
        open: impl FnOnce() -> Open,
    ) -> Option<Arc<OwnedFd>> {
        match self {
            Self::Always => open().any(),
            // The page cache has little of a file that is used past it. A read past it waits for its device, whatever
            // it is asked.
            Self::Asked { refused } if is_direct || refused.load(Ordering::Relaxed) => None,
            Self::Asked { .. } => open().buffered,
            Self::Unknown => None,
        }
    }
}
