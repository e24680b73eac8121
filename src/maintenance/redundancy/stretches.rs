//! Earlier counts that still hold.
//!
//! Stripes are counted by stretches of their numbers. The count of a stretch holds until one of its stripes, or the
//! live bytes of one, change. It also ends when a member gets other files of their segments. So the time of a count
//! depends on the changes since, not on the size of the volume. The live bytes of each stripe are remembered
//! separately. They take longest to find out, by every extent of every file, and members that come and go do not change
//! them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use super::live::KnownLives;
use super::row::RedundancyRow;
use super::stretch_len::StretchId;
use crate::format::{SegmentId, StripeId};
use crate::stripes::SegmentCensus;
use crate::transaction::CountLimits;

/// The count of a stretch. None of its stripes has lost data.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    pub(super) rows: Vec<RedundancyRow>,
    /// The live bytes of its stripes in each of the segments that these lie in.
    pub(super) segments: BTreeMap<SegmentId, u64>,
}

/// The earlier counts, and the files by which they were made.
#[derive(Debug)]
pub(super) struct Stretches {
    limits: CountLimits,
    /// Set if every stretch with stripes is known, provisional, or changed since.
    is_complete: bool,
    known: BTreeMap<StretchId, Stretch>,
    /// Those that must be counted each time.
    provisional: BTreeSet<StretchId>,
    /// The live bytes of stripes, unless they changed since.
    lives: KnownLives,
    segments: HashMap<SegmentId, SegmentCensus>,
    unrecoverable_ranges: BTreeMap<StripeId, Vec<Range<u32>>>,
}

impl Stretches {
    pub(super) fn new(limits: CountLimits) -> Self {
        Self {
            limits,
            is_complete: false,
            known: BTreeMap::new(),
            provisional: BTreeSet::new(),
            lives: KnownLives::new(limits),
            segments: HashMap::new(),
            unrecoverable_ranges: BTreeMap::new(),
        }
    }

    /// Takes the current findings, and the groups of keys that changed since the last time, if they are known.
    /// Returns the stretches that have to be counted again, or `None` if it is all.
    pub(super) fn outdated(
        &mut self,
        dirty: Option<BTreeSet<u64>>,
        segments: &HashMap<SegmentId, SegmentCensus>,
        unrecoverable_ranges: &BTreeMap<StripeId, Vec<Range<u32>>>,
    ) -> Option<BTreeSet<StretchId>> {
        let dirty = dirty.filter(|_| self.is_complete);
        let outdated = dirty.map(|dirty| {
            for group in dirty.iter().filter(|group| **group & 1 != 0) {
                self.lives.remove(StretchId(group >> 1));
            }
            self.outdated_among(dirty, segments, unrecoverable_ranges)
        });
        match &outdated {
            None => {
                self.known.clear();
                self.provisional.clear();
                self.lives.clear();
            }
            Some(outdated) => {
                for stretch in outdated {
                    self.known.remove(stretch);
                    self.provisional.remove(stretch);
                }
            }
        }
        self.segments.clone_from(segments);
        self.unrecoverable_ranges.clone_from(unrecoverable_ranges);
        outdated
    }

    fn outdated_among(
        &self,
        dirty: BTreeSet<u64>,
        segments: &HashMap<SegmentId, SegmentCensus>,
        unrecoverable_ranges: &BTreeMap<StripeId, Vec<Range<u32>>>,
    ) -> BTreeSet<StretchId> {
        let is_same = |id: &SegmentId| self.segments.get(id) == segments.get(id);
        let ids = self.segments.keys().chain(segments.keys());
        let other: BTreeSet<SegmentId> = ids.filter(|id| !is_same(id)).copied().collect();
        let of_segments = self
            .known
            .iter()
            .filter(|(_, stretch)| stretch.segments.keys().any(|id| other.contains(id)))
            .map(|(id, _)| *id);
        let has_changed = |stripe: &&StripeId| {
            self.unrecoverable_ranges.get(stripe) != unrecoverable_ranges.get(stripe)
        };
        let stripes = self
            .unrecoverable_ranges
            .keys()
            .chain(unrecoverable_ranges.keys());
        let of_stripes = stripes
            .filter(has_changed)
            .map(|stripe| self.limits.stretch_len().stretch_of(*stripe));
        let dirty = dirty.into_iter().map(|group| StretchId(group >> 1));
        let provisional = self.provisional.iter().copied();
        dirty
            .chain(provisional)
            .chain(of_segments)
            .chain(of_stripes)
            .collect()
    }

    /// Notes the count of a stretch or, without one, that it must be counted each time.
    pub(super) fn add(&mut self, id: StretchId, counted: Option<Stretch>) {
        match counted {
            Some(stretch) => drop(self.known.insert(id, stretch)),
            None => drop(self.provisional.insert(id)),
        }
    }

    /// Returns how many bytes of a stripe live, if that was counted and nothing has changed it since.
    pub(super) fn live_in(&self, stripe: StripeId) -> Option<u64> {
        self.lives.get(stripe)
    }

    /// Replaces the live bytes of all stretches that were counted; some of them may be gone.
    pub(super) fn replace_lives(&mut self, counted: &BTreeSet<StretchId>, found: KnownLives) {
        self.lives.replace(counted, found);
    }

    /// Returns the number of stretches with remembered live bytes.
    #[cfg(test)]
    pub(super) fn lives_known(&self) -> usize {
        self.lives.len()
    }

    /// Notes that all outdated stretches were added.
    pub(super) fn complete(&mut self) {
        self.is_complete = true;
        if self.known.len() + self.provisional.len() > self.limits.max_stretches {
            *self = Self::new(self.limits);
        }
    }

    /// Returns all stretches that are known.
    pub(super) fn all(&self) -> impl Iterator<Item = &Stretch> {
        self.known.values()
    }
}
