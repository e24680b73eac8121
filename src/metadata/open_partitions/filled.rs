//! The partitions that have changes in an open set.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::metadata::overlay::Origin;
use crate::metadata::partitions::PartitionSet;

/// Of each of the two open sets, the partitions that may have changes in it. A commit of few changes then looks at few
/// partitions.
///
/// # Invariants
///
/// - A partition is noted, under its lock, before a change comes into its set.
/// - A partition is cleared only under its lock, and only while its set is empty.
#[derive(Debug, Default)]
pub(super) struct FilledPartitions {
    applied: CachePadded<AtomicU64>,
    stripes: CachePadded<AtomicU64>,
}

impl FilledPartitions {
    fn of(&self, origin: Origin) -> &AtomicU64 {
        match origin {
            Origin::Applied => &self.applied,
            Origin::Stripes => &self.stripes,
        }
    }

    /// Notes partitions whose sets get changes. The caller has the locks of all of them, and changes them afterwards.
    pub(super) fn note(&self, partitions: PartitionSet, origin: Origin) {
        let filled = self.of(origin);
        // Many threads read the bits, so they are written seldom. No other thread can clear these meanwhile.
        if !PartitionSet::from_bits(filled.load(Ordering::Acquire)).contains(partitions) {
            filled.fetch_or(partitions.bits(), Ordering::AcqRel);
        }
    }

    /// Returns the partitions that are noted.
    pub(super) fn get(&self, origin: Origin) -> PartitionSet {
        PartitionSet::from_bits(self.of(origin).load(Ordering::Acquire))
    }

    /// Clears partitions whose sets are empty. The caller has the locks of all of them.
    pub(super) fn clear(&self, partitions: PartitionSet, origin: Origin) {
        self.of(origin)
            .fetch_and(!partitions.bits(), Ordering::AcqRel);
    }
}
