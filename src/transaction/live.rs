//! Counts the live bytes of a stripe: those that files hold.

use std::ops::Range;

use crate::format::record::Backref;

/// The most runs before those that overlap are joined.
const MOST_RUNS: usize = 4096;

/// Counts the bytes of a stripe that its backrefs name, each once however many name it.
#[derive(Debug, Default)]
pub(crate) struct LiveBytes {
    /// The start and the end of each run.
    runs: Vec<(u64, u64)>,
    /// The number of runs left when they were joined last.
    joined: usize,
}

impl LiveBytes {
    pub(crate) fn add(&mut self, backref: &Backref) {
        let (start, end) = ends_of(backref);
        self.add_run(start, end);
    }

    /// Adds what a backref names of some ranges.
    pub(crate) fn add_within(&mut self, backref: &Backref, ranges: &[Range<u32>]) {
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
    pub(crate) fn take(&mut self) -> u64 {
        self.join();
        let bytes = self.runs.iter().map(|(start, end)| end - start).sum();
        self.runs.clear();
        self.joined = 0;
        bytes
    }

    /// Returns the start and the end of each run, in order and apart from one another, and begins with the next stripe.
    pub(crate) fn take_runs(&mut self) -> Vec<(u64, u64)> {
        self.join();
        self.joined = 0;
        std::mem::take(&mut self.runs)
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
pub(crate) fn ends_of(backref: &Backref) -> (u64, u64) {
    let start = u64::from(backref.stripe_offset);
    (start, start.saturating_add(backref.len))
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

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
