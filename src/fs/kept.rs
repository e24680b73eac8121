//! The parts of a filesystem that outlive the closing of its volume beneath a mount.
//!
//! Programs keep their open files, and the kernel its look-ups, while the volume is closed and opened again. What was
//! accepted and not made durable is lost then. It is named here, so that callers and the kernel learn of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::format::record::Inode;
use crate::format::{Ino, key};
use crate::metadata::Key;

use super::error::FsError;
use super::handles::Handles;
use super::nodes::Nodes;
use super::size_gate::SizeGate;
use super::types::Handle;

/// Ranges of failed writebacks that are remembered while no volume is open. Of others, fsync alone tells.
const MOST_FAILED: usize = 65536;

/// References of callers to inodes, and what becomes of them while no volume is open.
#[derive(Clone)]
pub struct Kept {
    pub(super) nodes: Arc<Nodes>,
    pub(super) handles: Arc<Handles>,
    pub(super) sizes: Arc<SizeGate>,
    meanwhile: Arc<Mutex<Meanwhile>>,
}

/// The events of the time without a volume.
#[derive(Default)]
pub(super) struct Meanwhile {
    /// Inodes without a name whose last reference is gone.
    pub(super) idle: Vec<Ino>,
    /// Bytes of the kernel's page cache that could not be written.
    pub(super) failed: Vec<(Ino, Range<u64>)>,
}

impl Kept {
    /// Returns no references.
    pub(super) fn none() -> Self {
        Self {
            nodes: Arc::new(Nodes::new()),
            handles: Arc::new(Handles::new()),
            sizes: Arc::new(SizeGate::new()),
            meanwhile: Arc::default(),
        }
    }

    /// Returns the events of the time without a volume, and forgets them.
    pub(super) fn take_meanwhile(&self) -> Meanwhile {
        std::mem::take(&mut *self.meanwhile.lock())
    }

    /// Notes that bytes of the kernel's page cache could not be written, because no volume is open.
    pub fn note_failed_writeback(&self, ino: Ino, offset: u64, len: u64) {
        let failed = &mut self.meanwhile.lock().failed;
        if failed.len() < MOST_FAILED {
            failed.push((ino, offset..offset.saturating_add(len)));
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
        if self.nodes.forget(ino, lookups) {
            self.meanwhile.lock().idle.push(ino);
        }
    }

    /// Closes a file or directory while no volume is open, as [`Kept::forget`].
    ///
    /// # Errors
    ///
    /// [`FsError::BadHandle`] if it is not open.
    pub fn release(&self, handle: Handle) -> Result<(), FsError> {
        let opened = self.handles.remove(handle)?;
        if self.nodes.release(opened.ino(), opened.writes()) {
            self.meanwhile.lock().idle.push(opened.ino());
        }
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
    /// Those of the inodes of which more than the record had changed.
    pub(super) touched: BTreeSet<Ino>,
    /// The records of the inodes, as far as they were known.
    pub(super) records: BTreeMap<Ino, Inode>,
    /// Bytes of files whose writeback had failed.
    pub(super) failed: Vec<(Ino, Range<u64>)>,
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
            self.touch(parent);
        } else if let Ok(ino) = key::parse_inode(key) {
            self.inodes.insert(ino);
        } else if let Ok((ino, _)) = key::parse_extent(key) {
            self.touch(ino);
        } else if let Ok((ino, _)) = key::parse_xattr(key) {
            self.touch(ino);
        }
    }

    /// Notes an inode of which more than the record had changed.
    pub(super) fn touch(&mut self, ino: Ino) {
        self.inodes.insert(ino);
        self.touched.insert(ino);
    }

    /// Returns whether an inode lost more than a time of access and its place in a count, now that its record is `recovered`.
    pub(super) fn is_loss(&self, ino: Ino, recovered: Option<&Inode>) -> bool {
        let (Some(old), Some(recovered)) = (self.records.get(&ino), recovered) else {
            return true;
        };
        let accessed = Inode {
            atime: old.atime,
            quota: old.quota,
            ..recovered.clone()
        };
        self.touched.contains(&ino) || accessed != *old
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
