//! The journaled layers in partitions, each with a lock of its own.
//!
//! [`super::partitions`] says which keys share one.
//!
//! # Invariants
//!
//! - A caller that holds the locks of several partitions took them in ascending order. Readers of ranges do so; all
//!   others hold one lock at a time.
//! - Changes of one record come in after those of the last, and are set aside between two records. Callers do both
//!   under the lock `appending` of [`Meta`](super::Meta). So the frozen changes are those of whole records, although
//!   each partition is frozen by itself.
//! - A change leaves its partition once the index has it. So a reader that finds no change in a partition, and looks
//!   into the index under the lock of the partition, finds the newest value. The partitions need not be cleared at
//!   once.

use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, RwLockReadGuard};

use super::brief_lock::BriefLock;
use super::index::Position;
use super::layer::{InOrder, Layer, NumberedChange};
use super::overlay::{Frozen, Journaled};
use super::partitions::{
    CHUNK, HeldPartitions, PARTITIONS, PartitionSet, PartitionedChange, partition_of,
};
use crate::format::key::Key;

/// Changes that a partition takes in under one hold of its lock. Look-ups of keys that no change concerns wait for it.
const LOGGED_AT_ONCE: usize = 32;

/// The layers of changes that the journal holds, which threads share.
#[derive(Debug)]
pub(super) struct JournaledPartitions {
    partitions: Box<[CachePadded<BriefLock<Journaled>>]>,
    /// Memory that all partitions take, in bytes.
    bytes: CachePadded<AtomicUsize>,
    /// The changes set aside for the index. The lock is a leaf.
    frozen: Mutex<Option<Frozen>>,
}

impl Default for JournaledPartitions {
    fn default() -> Self {
        Self {
            partitions: (0..PARTITIONS).map(|_| CachePadded::default()).collect(),
            bytes: CachePadded::default(),
            frozen: Mutex::default(),
        }
    }
}

impl JournaledPartitions {
    /// Starts with changes that are in the journal already.
    pub(super) fn with_logged(logged: Layer) -> Self {
        let partitions = Self::default();
        for (key, change) in logged {
            partitions.change(partition_of(&key), |partition| partition.log(key, change));
        }
        partitions
    }

    fn change<T>(&self, partition: usize, change: impl FnOnce(&mut Journaled) -> T) -> T {
        let mut journaled = self.partitions[partition].write();
        let before = journaled.bytes();
        let done = change(&mut journaled);
        // The difference may wrap; the sum does not.
        let added = journaled.bytes().wrapping_sub(before);
        if added != 0 {
            self.bytes.fetch_add(added, Ordering::Relaxed);
        }
        done
    }

    /// Returns the partition of a key, which does not change while the guard lives.
    pub(super) fn of_key(&self, key: &Key) -> RwLockReadGuard<'_, Journaled> {
        self.partitions[partition_of(key)].read()
    }

    /// Returns the partitions of the keys from `from` to before `end`, which do not change while the guards live.
    pub(super) fn read(&self, from: Bound<&[u8]>, end: &[u8]) -> HeldPartitions<'_, Journaled> {
        let partitions = PartitionSet::of_range(from, end).iter();
        partitions
            .map(|partition| self.partitions[partition].read())
            .collect()
    }

    /// Returns those of some changes, which are in order of key, that are the newest of their keys here.
    pub(super) fn newest_of<'c>(&self, changes: &InOrder<'c>) -> InOrder<'c> {
        let mut newest = Vec::with_capacity(changes.len());
        for stretch in
            changes.chunk_by(|(one, _), (next, _)| partition_of(one) == partition_of(next))
        {
            for chunk in stretch.chunks(CHUNK) {
                let journaled = self.of_key(chunk[0].0);
                let is_newest = |(key, change): &&(&Key, &NumberedChange)| {
                    !journaled.has_newer(key, change.number)
                };
                newest.extend(chunk.iter().filter(is_newest));
            }
        }
        newest
    }

    /// Notes changes that the journal now holds.
    pub(super) fn log(&self, changes: &[PartitionedChange<'_>]) {
        for of_partition in changes.chunk_by(|(one, _), (next, _)| one == next) {
            for chunk in of_partition.chunks(LOGGED_AT_ONCE) {
                self.change(of_partition[0].0, |journaled| {
                    for (_, (key, change)) in chunk {
                        journaled.log((*key).clone(), (*change).clone());
                    }
                });
            }
        }
    }

    /// Sets everything aside for the index. Only while nothing is frozen.
    pub(super) fn freeze(&self, position: Position) -> Frozen {
        let frozen =
            (0..PARTITIONS).filter_map(|partition| self.change(partition, Journaled::freeze));
        let frozen = Frozen {
            layers: frozen.collect(),
            position,
        };
        *self.frozen.lock() = Some(frozen.clone());
        frozen
    }

    /// Returns the frozen changes, if there are any.
    pub(super) fn frozen(&self) -> Option<Frozen> {
        self.frozen.lock().clone()
    }

    /// Forgets the frozen changes: the index has them.
    pub(super) fn thaw(&self) {
        for partition in 0..PARTITIONS {
            self.change(partition, Journaled::thaw);
        }
        // Bound first: the memory is freed after the locks.
        let thawed = self.frozen.lock().take();
        drop(thawed);
    }

    /// Returns everything that the index lacks.
    pub(super) fn all(&self) -> Layer {
        let mut all = Layer::default();
        for partition in &self.partitions {
            let journaled = partition.read();
            for (key, change) in journaled.layers().flat_map(Layer::iter) {
                all.insert(key.clone(), change.clone());
            }
        }
        all
    }

    /// Forgets everything: the index has it.
    pub(super) fn clear(&self) {
        for partition in 0..PARTITIONS {
            // Bound first: the memory is freed after the lock.
            let cleared = self.change(partition, std::mem::take);
            drop(cleared);
        }
        let frozen = self.frozen.lock().take();
        drop(frozen);
    }

    /// Returns about how much memory all changes take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns whether no thread has one of the locks.
    #[cfg(test)]
    pub(super) fn is_free(&self) -> bool {
        self.partitions.iter().all(|partition| partition.is_free())
    }
}
