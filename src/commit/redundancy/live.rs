//! The live bytes of stripes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::format::StripeId;
use crate::format::record::Backref;

use super::stretches::{MOST_KNOWN, STRETCH, StretchId};

/// Stands for a number that is not known.
const UNKNOWN: u32 = u32::MAX;

/// The number of live bytes of each stripe of a stretch, as far as it is known: half a kilobyte.
#[derive(Clone, Debug)]
struct Lives(Box<[u32]>);

impl Default for Lives {
    fn default() -> Self {
        Self(std::iter::repeat_n(UNKNOWN, index_of(STRETCH)).collect())
    }
}

impl Lives {
    fn get(&self, stripe: StripeId) -> Option<u64> {
        let bytes = self.0[index_of(stripe.0 % STRETCH)];
        (bytes != UNKNOWN).then_some(bytes.into())
    }

    fn set(&mut self, stripe: StripeId, bytes: u64) {
        self.0[index_of(stripe.0 % STRETCH)] = u32::try_from(bytes).unwrap_or(UNKNOWN);
    }
}

/// The live bytes of at most `MOST_KNOWN` stretches; those of others are looked up each time.
#[derive(Debug, Default)]
pub(super) struct KnownLives(BTreeMap<StretchId, Lives>);

impl KnownLives {
    pub(super) fn get(&self, stripe: StripeId) -> Option<u64> {
        self.0.get(&StretchId::of(stripe))?.get(stripe)
    }

    pub(super) fn set(&mut self, stripe: StripeId, bytes: u64) {
        let id = StretchId::of(stripe);
        if self.0.len() < MOST_KNOWN || self.0.contains_key(&id) {
            self.0.entry(id).or_default().set(stripe, bytes);
        }
    }

    /// Forgets a stretch.
    pub(super) fn remove(&mut self, id: StretchId) {
        self.0.remove(&id);
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Replaces the live bytes of counted stretches with those found; forgets a stretch without stripes.
    pub(super) fn replace(&mut self, counted: &BTreeSet<StretchId>, mut found: Self) {
        for id in counted {
            self.0.remove(id);
        }
        while self.0.len() < MOST_KNOWN
            && let Some((id, lives)) = found.0.pop_first()
        {
            self.0.insert(id, lives);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

fn index_of(number: u64) -> usize {
    usize::try_from(number).expect("a stretch is short")
}

/// The most runs before those that overlap are joined.
const MOST_RUNS: usize = 4096;

/// Counts the bytes of a stripe that its backrefs name, each once however many name it.
#[derive(Debug, Default)]
pub(super) struct LiveBytes {
    /// The start and the end of each run.
    runs: Vec<(u64, u64)>,
    /// The number of runs left when they were joined last.
    joined: usize,
}

impl LiveBytes {
    pub(super) fn add(&mut self, backref: &Backref) {
        let (start, end) = ends_of(backref);
        self.add_run(start, end);
    }

    /// Adds what a backref names of some ranges.
    pub(super) fn add_within(&mut self, backref: &Backref, ranges: &[Range<u32>]) {
        let (start, end) = ends_of(backref);
        for range in ranges {
            let (start, end) = (start.max(range.start.into()), end.min(range.end.into()));
            if start < end {
                self.add_run(start, end);
            }
        }
    }

    fn add_run(&mut self, start: u64, end: u64) {
        self.runs.push((start, end));
        if self.runs.len() >= MOST_RUNS.max(2 * self.joined) {
            self.join();
        }
    }

    /// Returns the count, and begins with the next stripe.
    pub(super) fn take(&mut self) -> u64 {
        self.join();
        let bytes = self.runs.iter().map(|(start, end)| end - start).sum();
        self.runs.clear();
        self.joined = 0;
        bytes
    }

    /// Joins runs that overlap or touch.
    fn join(&mut self) {
        self.runs.sort_unstable();
        self.runs.dedup_by(|next, run| {
            let overlaps = next.0 <= run.1;
            if overlaps {
                run.1 = run.1.max(next.1);
            }
            overlaps
        });
        self.joined = self.runs.len();
    }
}

/// Returns where in a stripe the bytes start and end that a backref names.
pub(super) fn ends_of(backref: &Backref) -> (u64, u64) {
    let start = u64::from(backref.stripe_offset);
    (start, start.saturating_add(backref.len))
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn no_more_stretches_are_remembered_than_they_may_be() {
        let stretch = |number: usize| StripeId(number as u64 * STRETCH);
        let mut lives = KnownLives::default();
        for number in 0..MOST_KNOWN + 3 {
            lives.set(stretch(number), 7);
        }
        assert_eq!(lives.len(), MOST_KNOWN);
        assert_eq!(lives.get(stretch(MOST_KNOWN)), None);
        lives.set(stretch(1), 8);
        assert_eq!(lives.get(stretch(1)), Some(8));
        // Two are gone, and more than that have come.
        let mut found = KnownLives::default();
        for number in MOST_KNOWN..MOST_KNOWN + 3 {
            found.set(stretch(number), 9);
        }
        let counted: BTreeSet<StretchId> = [0, 1, MOST_KNOWN, MOST_KNOWN + 1, MOST_KNOWN + 2]
            .map(|number| StretchId::of(stretch(number)))
            .into();
        lives.replace(&counted, found);
        assert_eq!(lives.len(), MOST_KNOWN);
        let known = [0, 1, 2, MOST_KNOWN, MOST_KNOWN + 2].map(|n| lives.get(stretch(n)));
        assert_eq!(known, [None, None, Some(7), Some(9), None]);
    }

    #[test]
    fn every_byte_counts_once_however_many_runs_hold_it() {
        for seed in 0..50 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut live = LiveBytes::default();
            for _ in 0..2 {
                let (mut held, mut within) = (vec![false; 20_000], LiveBytes::default());
                let ranges = [100..4_096, 4_096..4_097, 8_192..9_000];
                let most_len = [2, 50, 9000][random.random_range(0..3)];
                for _ in 0..random.random_range(0..3 * MOST_RUNS) {
                    let stripe_offset = random.random_range(0..10_000);
                    let len = random.random_range(1..=most_len);
                    live.add(&Backref { len, stripe_offset });
                    within.add_within(&Backref { len, stripe_offset }, &ranges);
                    let start = usize::try_from(stripe_offset).unwrap();
                    held[start..start + usize::try_from(len).unwrap()].fill(true);
                }
                let expected = held.iter().filter(|held| **held).count() as u64;
                assert_eq!(live.take(), expected, "seed {seed}");
                let held = |byte: &u32| held[usize::try_from(*byte).unwrap()];
                let expected = ranges.into_iter().flatten().filter(held).count() as u64;
                assert_eq!(within.take(), expected, "seed {seed}");
            }
        }
    }
}
