//! The amount of change in the index since it was compacted.

use std::sync::atomic::{AtomicU64, Ordering};

use super::batch::Value;
use crate::format::key::Key;

/// The bytes of compacting an index that each deletion pays for.
const DELETION_WORTH_BYTES: u64 = 64 << 10;

/// An index is compacted if what was changed in it is worth this part of its length.
const WORTH_COMPACTING_PART: u64 = 8;

/// Counter of the bytes by which the index may have become emptier, or less dense, since it was compacted.
#[derive(Debug)]
pub(super) struct Churn {
    bytes: AtomicU64,
}

impl Default for Churn {
    /// Starts with an index of which nothing is known: compacting it is worthwhile.
    fn default() -> Self {
        Self {
            bytes: AtomicU64::new(u64::MAX),
        }
    }
}

impl Churn {
    /// Adds changes that were brought into the index.
    pub(super) fn add<'a>(&self, changes: impl Iterator<Item = (&'a Key, Option<&'a Value>)>) {
        let worth = |(key, value): (&Key, Option<&Value>)| match value {
            Some(value) => (key.len() + value.len()) as u64,
            None => DELETION_WORTH_BYTES,
        };
        let added = changes.map(worth).sum();
        let add = |old: u64| Some(old.saturating_add(added));
        // Never fails: `add` always answers.
        let _ = self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Batch;

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
