//! The parts of a filesystem that outlive the closing of its volume beneath a mount.
//!
//! Programs keep their open files, and the kernel its look-ups, while the volume is closed and opened again. What was
//! accepted and not made durable is lost then. It is named here, so that callers and the kernel learn of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::format::{Ino, key};
use crate::metadata::Key;

use super::error::FsError;
use super::handles::Handles;
use super::nodes::Nodes;
use super::types::Handle;

/// References of callers to inodes.
#[derive(Clone)]
pub struct Kept {
    pub(super) nodes: Arc<Nodes>,
    pub(super) handles: Arc<Handles>,
}

impl Kept {
    /// Returns no references.
    pub(super) fn none() -> Self {
        Self {
            nodes: Arc::new(Nodes::new()),
            handles: Arc::new(Handles::new()),
        }
    }

    /// Returns the inodes that callers have looked up or opened, and not given back.
    #[must_use]
    pub fn referenced(&self) -> Vec<Ino> {
        self.nodes.referenced()
    }

    /// Takes back look-ups while no volume is open. An inode without a name that nothing refers to any more is removed
    /// once the volume is open again.
    pub fn forget(&self, ino: Ino, lookups: u64) {
        let _is_idle = self.nodes.forget(ino, lookups);
    }

    /// Closes a file or directory while no volume is open, as [`Kept::forget`].
    ///
    /// # Errors
    ///
    /// [`FsError::BadHandle`] if it is not open.
    pub fn release(&self, handle: Handle) -> Result<(), FsError> {
        let opened = self.handles.remove(handle)?;
        let _is_idle = self.nodes.release(opened.ino(), opened.writes());
        Ok(())
    }
}

/// The changes that a filesystem accepted, and that were not durable when its volume was lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostChanges {
    /// The inodes of which contents or attributes had changed, directories included.
    pub inodes: BTreeSet<Ino>,
    /// The names that had come or gone, with their directories.
    pub names: BTreeSet<(Ino, Vec<u8>)>,
    /// All numbers of inodes that were given out are smaller.
    pub(super) next_ino: u64,
}

impl LostChanges {
    /// Returns what changes of these keys amount to. Keys of storage stand for nothing that a caller sees.
    pub(super) fn of(keys: &[Key], next_ino: u64) -> Self {
        let mut lost = Self {
            next_ino,
            ..Self::default()
        };
        for key in keys {
            lost.add(key);
        }
        lost
    }

    fn add(&mut self, key: &[u8]) {
        if let Ok((parent, name)) = key::parse_dirent(key) {
            self.names.insert((parent, name.to_vec()));
            self.inodes.insert(parent);
        } else if let Ok(ino) = key::parse_inode(key) {
            self.inodes.insert(ino);
        } else if let Ok((ino, _)) = key::parse_extent(key) {
            self.inodes.insert(ino);
        } else if let Ok((ino, _)) = key::parse_xattr(key) {
            self.inodes.insert(ino);
        }
    }
}

/// Inodes that lost changes, until their next sync has reported that.
#[derive(Debug, Default)]
pub(super) struct Unreported {
    inodes: Mutex<BTreeSet<Ino>>,
    /// Their number, readable without a lock.
    count: AtomicUsize,
}

impl Unreported {
    /// Remembers these as well.
    pub(super) fn add(&self, inodes: &BTreeSet<Ino>) {
        let mut unreported = self.inodes.lock();
        unreported.extend(inodes);
        self.count.store(unreported.len(), Ordering::Release);
    }

    /// Returns all of them.
    pub(super) fn all(&self) -> BTreeSet<Ino> {
        self.inodes.lock().clone()
    }

    /// Returns whether an inode lost changes, and forgets that.
    pub(super) fn take(&self, ino: Ino) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut unreported = self.inodes.lock();
        let was_there = unreported.remove(&ino);
        self.count.store(unreported.len(), Ordering::Release);
        was_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Cookie, StripeId};

    #[test]
    fn lost_changes_name_inodes_and_names_and_nothing_of_storage() {
        let keys = [
            key::inode(Ino(5)),
            key::dirent(Ino(7), b"name"),
            key::position(Ino(7), Cookie(3)),
            key::extent(Ino(9), 4096),
            key::xattr(Ino(11), b"user.a"),
            key::stripe(StripeId(13)),
            key::backref(StripeId(13), Ino(15), 4096),
        ];
        let keys: Vec<Key> = keys.into_iter().map(Key::from).collect();
        let lost = LostChanges::of(&keys, 20);
        let inodes = [5, 7, 9, 11].map(Ino);
        assert_eq!(lost.inodes, BTreeSet::from(inodes));
        assert_eq!(lost.names, BTreeSet::from([(Ino(7), b"name".to_vec())]));
        assert_eq!(lost.next_ino, 20);
    }

    #[test]
    fn a_loss_is_reported_once() {
        let unreported = Unreported::default();
        assert!(!unreported.take(Ino(5)));
        unreported.add(&BTreeSet::from([Ino(5), Ino(6)]));
        assert!(unreported.take(Ino(5)));
        assert!(!unreported.take(Ino(5)));
        assert!(!unreported.take(Ino(7)));
        assert_eq!(unreported.all(), BTreeSet::from([Ino(6)]));
    }
}
