//! The way of a count through the directories of a quota.

use std::collections::HashSet;

use crate::format::{Ino, QuotaId};
use crate::fs::error::FsError;

/// The directories that are still to be listed, and what was left out.
pub(super) struct Walk {
    id: QuotaId,
    root: Ino,
    directories: Vec<Ino>,
    /// Directories that were added so far: on a damaged volume, names may lead back to one.
    known: HashSet<Ino>,
    left_out: u64,
}

impl Walk {
    /// Returns the walk of a quota, which begins at its directory.
    pub(super) fn new(id: QuotaId, root: Ino) -> Self {
        Self {
            id,
            root,
            directories: vec![root],
            known: HashSet::from([root]),
            left_out: 0,
        }
    }

    /// Returns the quota that counts.
    pub(super) fn id(&self) -> QuotaId {
        self.id
    }

    /// Returns the next directory to list.
    pub(super) fn next(&mut self) -> Option<Ino> {
        self.directories.pop()
    }

    /// Adds a directory. One that was listed is not listed again: what came into it since inherited the quota, or was noted.
    pub(super) fn add(&mut self, directory: Ino) {
        if self.known.insert(directory) {
            self.directories.push(directory);
        }
    }

    /// Leaves a damaged record out, and logs the first one. `ino` is damaged itself, or a directory with a damaged entry.
    pub(super) fn leave_out(&mut self, ino: Ino, error: &FsError) {
        if self.left_out == 0 {
            tracing::warn!(
                "the quota of inode {} leaves inode {ino} out: {error}",
                self.root
            );
        }
        self.left_out += 1;
    }

    /// Logs how many damaged records the quota does not count, if any.
    pub(super) fn report(&self) {
        if self.left_out > 0 {
            tracing::warn!(
                "the quota of inode {} is in force without {} damaged records: `cauchyfs check` lists them",
                self.root,
                self.left_out
            );
        }
    }
}
