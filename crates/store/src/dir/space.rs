//! The space of files, reserved where the filesystem can do that.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{self as sys, FallocateFlags};
use rustix::io::Errno;

use super::calls::retry;
use super::own::{Failed, Seen};
use super::{DirStore, tree};
use crate::name::Name;

impl DirStore {
    /// Makes the file and its space, and both durable; the caller removes what is left on failure.
    pub(super) fn fill_new(&self, parts: Name<'_>, file: &OwnedFd, len: u64) -> Result<(), Failed> {
        tree::overwrite_in_place(file);
        self.grow(file, 0, len)?;
        retry(|| sys::fsync(file))?;
        self.tree.sync_dir(parts.dir)
    }

    /// Reserves a range of a file, or just grows it where nothing can be reserved.
    pub(super) fn grow(&self, file: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
        if len == 0 {
            return Ok(());
        }
        match retry(|| sys::fallocate(&file, FallocateFlags::empty(), offset, len)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
                if Seen::of(&file)?.len < end {
                    retry(|| sys::ftruncate(&file, end))?;
                }
                self.give_up_reserving();
                Ok(())
            }
            // A filesystem that writes to a new place each time may report success without having reserved anything.
            Ok(()) if tree::taken_by(&Seen::of(&file)?) < len => {
                self.give_up_reserving();
                Ok(())
            }
            other => other,
        }
    }

    fn give_up_reserving(&self) {
        if self.reserves.swap(false, Ordering::Relaxed) {
            tracing::info!(path = self.label, "no space can be reserved here");
        }
    }
}
