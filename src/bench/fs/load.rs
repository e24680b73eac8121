//! How much the jobs do.

use std::time::Duration;

/// The bytes of a small read or write, and of a small file.
pub(super) const BLOCK: usize = 4096;

/// The bytes of a large read or write.
pub(super) const PIECE: usize = 1 << 20;

/// The most small files that are made.
const MOST_FILES: u64 = 10_000;

/// How much the jobs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The bytes of the large file; at least [`Load::LEAST_SIZE`].
    pub size: u64,
    /// The time of each job that has no end of its own.
    pub seconds: Duration,
    /// The threads of the jobs that have several; at least 1.
    pub jobs: usize,
}

impl Load {
    /// The smallest large file.
    pub const LEAST_SIZE: u64 = PIECE as u64;

    /// Returns the free bytes that the jobs need. A filesystem that does not write in place keeps what was overwritten
    /// or removed for a while.
    #[must_use]
    pub fn bytes_needed(&self) -> u64 {
        self.size.saturating_mul(6)
    }

    /// Returns the bytes that the jobs have in files at once: the large file, and those of the jobs with several threads.
    #[must_use]
    pub fn bytes_at_once(&self) -> u64 {
        self.size.saturating_mul(2)
    }

    /// Returns the share of each of so many files in the bytes of the large file.
    pub(super) fn share(&self, files: usize) -> u64 {
        (self.size / files as u64).max(1)
    }

    /// Returns the most small files that are made; all of them are no larger than the large file.
    pub(super) fn most_files(&self) -> u64 {
        MOST_FILES.min(self.blocks())
    }

    /// Returns the blocks of the large file.
    pub(super) fn blocks(&self) -> u64 {
        (self.size / BLOCK as u64).max(1)
    }
}
