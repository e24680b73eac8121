//! The amount of change in the index since it was compacted.

use std::sync::atomic::{AtomicU64, Ordering};

use super::batch::Value;
use crate::format::key::Key;

/// The bytes of compacting an index that each deletion pays for.
const DELETION_WORTH_BYTES: u64 = 64 << 10;

/// An index is compacted if what was changed in it is worth this part of its length.
const WORTH_COMPACTING_PART: u64 = 8;

/// The bytes that a deletion may free in the index: those of its record, and its part of half-filled pages.
const DELETION_FREES_BYTES: u64 = 256;

/// Looking how much of an index is free is worthwhile once deletions may have freed this part of its length.
const WORTH_LOOKING_PART: u64 = 2;

/// Counter of the bytes by which the index may have become emptier, or less dense, since it was compacted.
#[derive(Debug)]
pub(super) struct Churn {
    bytes: AtomicU64,
    /// The bytes that deletions may have freed since the last look how many are free.
    freed: AtomicU64,
}

impl Default for Churn {
    /// Starts with an index of which nothing is known: looking at it and compacting it are worthwhile.
    fn default() -> Self {
        Self {
            bytes: AtomicU64::new(u64::MAX),
            freed: AtomicU64::new(u64::MAX),
        }
    }
}

impl Churn {
    /// Adds changes that were brought into the index.
    pub(super) fn add<'a>(&self, changes: impl Iterator<Item = (&'a Key, Option<&'a Value>)>) {
        let (mut added, mut freed) = (0, 0);
        for (key, value) in changes {
            if let Some(value) = value {
                added += (key.len() + value.len()) as u64;
            } else {
                added += DELETION_WORTH_BYTES;
                freed += DELETION_FREES_BYTES;
            }
        }
        add_to(&self.bytes, added);
        add_to(&self.freed, freed);
    }

    /// Returns whether it is worthwhile to look how much of an index of `index_bytes` is free.
    pub(super) fn is_worth_looking(&self, index_bytes: u64) -> bool {
        self.freed.load(Ordering::Relaxed) >= index_bytes / WORTH_LOOKING_PART
    }

    /// Notes that this was looked at.
    pub(super) fn note_look(&self) {
        self.freed.store(0, Ordering::Relaxed);
    }

    /// Returns whether compacting an index of `index_bytes` is worthwhile.
    pub(super) fn is_worth_compacting(&self, index_bytes: u64) -> bool {
        self.bytes.load(Ordering::Relaxed) >= index_bytes / WORTH_COMPACTING_PART
    }

    /// Starts again from zero, after a compaction.
    pub(super) fn reset(&self) {
        self.bytes.store(0, Ordering::Relaxed);
    }
}

fn add_to(counter: &AtomicU64, added: u64) {
    let add = |old: u64| Some(old.saturating_add(added));
    // Never fails: `add` always answers.
    let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Batch;

    #[test]
    fn an_index_is_worth_a_look_at_first_and_again_after_enough_deletions() {
        let churn = Churn::default();
        assert!(churn.is_worth_looking(u64::MAX));
        churn.note_look();
        let mut batch = Batch::default();
        batch.put("key", vec![0; 1000]);
        churn.add(batch.iter());
        assert!(!churn.is_worth_looking(2));
        batch.delete("other");
        churn.add(batch.iter());
        assert!(churn.is_worth_looking(2 * DELETION_FREES_BYTES));
        assert!(!churn.is_worth_looking(2 * DELETION_FREES_BYTES + 2));
    }

    #[test]
    fn an_index_is_worth_compacting_at_first_and_again_after_enough_changes() {
        let churn = Churn::default();
        assert!(churn.is_worth_compacting(u64::MAX));
        churn.add(std::iter::empty());
        churn.reset();
        assert!(!churn.is_worth_compacting(1 << 20));
        let mut batch = Batch::default();
        batch.put("key", vec![0; 1000]);
        churn.add(batch.iter());
        assert!(churn.is_worth_compacting(8 * 1003) && !churn.is_worth_compacting(8 * 1004));
        batch.delete("other");
        churn.add(batch.iter());
        assert!(churn.is_worth_compacting(8 * DELETION_WORTH_BYTES));
    }
}
