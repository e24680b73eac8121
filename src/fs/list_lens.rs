//! The lengths of the lists of attributes.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::format::Ino;

/// Inodes whose lists' lengths are remembered: some kilobytes.
const KNOWN_LISTS: usize = 1024;

/// Lengths of the lists of names of inodes, so that adding a name does not count all others. An inode's
/// length is read and remembered only under the inode's exclusive lock, under which its names change.
/// [`Edit::apply`](super::edit::Edit::apply) forgets the length of an inode whose attributes it changes.
#[derive(Debug, Default)]
pub(super) struct ListLens(Mutex<HashMap<Ino, usize>>);

impl ListLens {
    pub(super) fn get(&self, ino: Ino) -> Option<usize> {
        self.0.lock().get(&ino).copied()
    }

    /// Remembers a length, if there is one.
    pub(super) fn note(&self, ino: Ino, len: Option<usize>) {
        let Some(len) = len else {
            return;
        };
        let mut known = self.0.lock();
        if known.len() >= KNOWN_LISTS && !known.contains_key(&ino) {
            known.clear();
        }
        known.insert(ino, len);
    }

    /// Forgets the length of an inode whose names change.
    pub(super) fn forget(&self, ino: Ino) {
        self.0.lock().remove(&ino);
    }
}
