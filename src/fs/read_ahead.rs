//! Recognising sequential reading.

use std::ops::Range;

/// The greatest distance between the end of one read and the begin of the next that still goes on from it. A kernel
/// keeps several reads in flight, and they arrive in any order.
const TOLERANCE: u64 = 4 << 20;

/// Reads in a row before anything is fetched ahead.
const PATIENCE: u32 = 3;

/// The recent reads of one handle.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    furthest: u64,
    in_a_row: u32,
    fetched_to: u64,
}

impl ReadAhead {
    /// Returns whether a read of `range` goes on from the recent ones, or lies among them.
    pub(super) fn is_followed_by(&self, range: &Range<u64>) -> bool {
        range.start.abs_diff(self.furthest) <= TOLERANCE
    }

    /// Records a read of `range` and returns what to fetch now, if anything: enough that
    /// `window` bytes behind the read are always on their way, but not a little at every read.
    pub(super) fn note(&mut self, range: &Range<u64>, window: u64) -> Option<Range<u64>> {
        if self.is_followed_by(range) && range.end > self.furthest {
            self.in_a_row = self.in_a_row.saturating_add(1);
            self.furthest = range.end;
        } else if !self.is_followed_by(range) {
            *self = Self {
                furthest: range.end,
                ..Self::default()
            };
        }
        let wanted = self.furthest.saturating_add(window);
        let from = self.fetched_to.max(self.furthest);
        // The window gets smaller where a file has stripes of several codes, and more is fetched already then.
        if self.in_a_row < PATIENCE || wanted.saturating_sub(from) < window / 2 {
            return None;
        }
        self.fetched_to = wanted;
        Some(from..wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 1 << 20;
    const WINDOW: u64 = 8 << 20;

    #[test]
    fn reading_on_fetches_every_byte_ahead_once() {
        let mut read_ahead = ReadAhead::default();
        let mut fetched = Vec::new();
        for index in 0..64 {
            fetched.extend(read_ahead.note(&(index * STEP..(index + 1) * STEP), WINDOW));
        }
        assert!(!fetched.is_empty());
        for pair in fetched.windows(2) {
            assert_eq!(pair[0].end, pair[1].start);
        }
        assert!(fetched.last().is_some_and(|last| last.end >= 64 * STEP));
        assert!(fetched.len() <= 20, "not a little at every read");
    }

    #[test]
    fn reads_that_arrive_swapped_still_count_as_reading_on() {
        let mut read_ahead = ReadAhead::default();
        let mut fetches = 0;
        for pair in 0..16 {
            for index in [2 * pair + 1, 2 * pair] {
                let range = index * STEP..(index + 1) * STEP;
                fetches += usize::from(read_ahead.note(&range, WINDOW).is_some());
            }
        }
        assert!(fetches > 0);
    }

    #[test]
    fn a_window_that_gets_smaller_fetches_nothing_twice() {
        let mut read_ahead = ReadAhead::default();
        let mut fetched: Vec<Range<u64>> = Vec::new();
        for index in 0..64 {
            let window = if index < 8 { WINDOW } else { WINDOW / 4 };
            fetched.extend(read_ahead.note(&(index * STEP..(index + 1) * STEP), window));
        }
        for pair in fetched.windows(2) {
            assert_eq!(pair[0].end, pair[1].start);
        }
        assert!(fetched.last().is_some_and(|last| last.end >= 64 * STEP));
    }

    #[test]
    fn jumping_about_fetches_nothing() {
        let mut read_ahead = ReadAhead::default();
        for index in 0..64_u64 {
            let start = (index * 7919 % 64) * (64 << 20);
            assert_eq!(read_ahead.note(&(start..start + STEP), WINDOW), None);
        }
    }
}
