//! The filesystem that a mount serves, which may be away for a time.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::{Condvar, Mutex};

use super::Fs;
use super::error::FsError;
use super::kept::Kept;
use super::types::SpaceReport;
use crate::format::Ino;

/// The longest time that requests wait for a filesystem that is closed and opened again on purpose.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The filesystem that a mount serves. There is none while its volume is closed and opened again.
pub struct ServedFs {
    current: ArcSwapOption<Fs>,
    kept: Kept,
    /// The space that was measured last. A leaf.
    last_space: Mutex<SpaceReport>,
    /// Set while the filesystem is closed and opened again on purpose. A leaf.
    is_paused: Mutex<bool>,
    resumed: Condvar,
}

/// The outcome of passing the size of a file on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeTold<T> {
    /// It was passed on, with this result.
    Told(T),
    /// The inode is no regular file, or there is none.
    NoFile,
    /// The filesystem is away or has failed, or changes of the size take long.
    Later,
}

impl ServedFs {
    /// Serves `fs` from now on.
    #[must_use]
    pub fn new(fs: Arc<Fs>) -> Self {
        Self {
            kept: fs.kept().clone(),
            last_space: Mutex::new(fs.statfs()),
            current: ArcSwapOption::new(Some(fs)),
            is_paused: Mutex::default(),
            resumed: Condvar::new(),
        }
    }

    /// Returns the filesystem, if there is one. Takes no lock, and writes to no memory that other callers use.
    #[must_use]
    pub fn current(&self) -> Guard<Option<Arc<Fs>>> {
        self.current.load()
    }

    /// Returns the filesystem as [`Self::current`], and waits for it while it is closed and opened again on purpose, but no
    /// longer than [`LONGEST_PAUSE`].
    #[must_use]
    pub fn present(&self) -> Guard<Option<Arc<Fs>>> {
        let current = self.current();
        if current.is_some() {
            return current;
        }
        let mut is_paused = self.is_paused.lock();
        let is_so = |paused: &mut bool| *paused;
        self.resumed
            .wait_while_for(&mut is_paused, is_so, LONGEST_PAUSE);
        drop(is_paused);
        self.current()
    }

    /// Has callers of [`Self::present`] wait while there is no filesystem, until [`Self::resume`].
    pub fn pause(&self) {
        *self.is_paused.lock() = true;
    }

    /// Returns whether it is closed and opened again on purpose now.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        *self.is_paused.lock()
    }

    /// Has callers of [`Self::present`] go on.
    pub fn resume(&self) {
        *self.is_paused.lock() = false;
        self.resumed.notify_all();
    }

    /// Reports how full the filesystem is, and asks the members for that. While it is away or has failed, it is as large
    /// as it was measured last, and nothing of it is free.
    #[must_use]
    pub fn statfs(&self) -> SpaceReport {
        let current = self.current.load_full();
        let working = current.filter(|fs| !fs.transactions().has_failed());
        let measured = working.map(|fs| fs.statfs());
        let mut last = self.last_space.lock();
        // Too few members for a stripe have no room that could be told.
        if let Some(measured) = measured.filter(|space| space.blocks > 0) {
            *last = measured;
            return measured;
        }
        SpaceReport {
            blocks_free: 0,
            blocks_available: 0,
            ..*last
        }
    }

    /// Reports how much room is left below a directory, or for a file: as [`Self::statfs`], or less where quotas leave less.
    ///
    /// # Errors
    ///
    /// [`FsError::Storage`] if the index cannot be read.
    pub fn statfs_below(&self, ino: Ino) -> Result<SpaceReport, FsError> {
        let space = self.statfs();
        match self.current.load_full() {
            Some(fs) if !fs.transactions().has_failed() => fs.within_quotas(space, ino),
            _ => Ok(space),
        }
    }

    /// Passes the size of a regular file on, which does not change until `tell` returns. A change that waits long does not wait
    /// for that.
    pub fn tell_size<T>(&self, ino: Ino, tell: impl FnOnce(u64) -> T) -> SizeTold<T> {
        let Some(_closed) = self.kept.sizes.close(ino) else {
            return SizeTold::Later;
        };
        // The filesystem can be closed while the caller waits for the kernel.
        let size = match self.current.load_full() {
            Some(fs) => fs.attributes().file_size(ino),
            None => return SizeTold::Later,
        };
        match size {
            Ok(Some(size)) => SizeTold::Told(tell(size)),
            Ok(None) | Err(FsError::NotFound) => SizeTold::NoFile,
            Err(_) => SizeTold::Later,
        }
    }

    /// Returns the references of callers, which outlive the filesystem.
    #[must_use]
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Serves no filesystem from now on. Calls of the old one that are under way go on.
    pub fn take(&self) {
        self.current.store(None);
    }

    /// Serves `fs` from now on, which was opened with the references of the one before it.
    pub fn put(&self, fs: Arc<Fs>) {
        self.current.store(Some(fs));
    }
}
