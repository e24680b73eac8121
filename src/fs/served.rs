//! The filesystem that a mount serves, which may be away for a time.

use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};

use super::Fs;
use super::kept::Kept;

/// The filesystem that a mount serves. There is none while its volume is closed and opened again.
pub struct ServedFs {
    current: ArcSwapOption<Fs>,
    kept: Kept,
}

impl ServedFs {
    /// Serves `fs` from now on.
    #[must_use]
    pub fn new(fs: Arc<Fs>) -> Self {
        Self {
            kept: fs.kept().clone(),
            current: ArcSwapOption::new(Some(fs)),
        }
    }

    /// Returns the filesystem, if there is one. Takes no lock, and writes to no memory that other callers use.
    #[must_use]
    pub fn current(&self) -> Guard<Option<Arc<Fs>>> {
        self.current.load()
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
