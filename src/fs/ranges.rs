//! Sets of ranges that take bounded memory.

use std::ops::Range;

use rangemap::RangeSet;

/// Most ranges of one set. If there are more, neighbours become one, together with what lies between them.
const MOST_RANGES: usize = 1024;

/// A bounded number of ranges that neither overlap nor touch.
#[derive(Debug, Default)]
pub(super) struct Ranges(RangeSet<u64>);

impl Ranges {
    /// Adds a range. If there are too many ranges then, it becomes one with the range before it.
    pub(super) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.0.insert(range.clone());
        if self.0.len() > MOST_RANGES {
            // The bytes between two ranges count only where the file holds nothing.
            let before = self.0.overlapping(0..range.start).next_back();
            let neighbour = before.or_else(|| self.0.overlapping(range.end..u64::MAX).next());
            if let Some(neighbour) = neighbour {
                let joined = neighbour.start.min(range.start)..neighbour.end.max(range.end);
                self.0.insert(joined);
            }
        }
    }

    /// Removes a range.
    pub(super) fn remove(&mut self, range: &Range<u64>) {
        if !range.is_empty() {
            self.0.remove(range.clone());
        }
    }

    /// Returns the parts that lie in `range`.
    pub(super) fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let all = self.0.overlapping(range);
        let cut = all.map(|found| range.start.max(found.start)..range.end.min(found.end));
        cut.filter(|part| !part.is_empty()).collect()
    }

    /// Returns whether there is no range.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(ranges: &Ranges) -> Vec<(u64, u64)> {
        ranges
            .0
            .iter()
            .map(|range| (range.start, range.end))
            .collect()
    }

    #[test]
    fn adding_joins_ranges_that_touch_and_removing_splits_them() {
        let mut ranges = Ranges::default();
        ranges.add(10..20);
        ranges.add(30..40);
        assert_eq!(listed(&ranges), [(10, 20), (30, 40)]);
        ranges.add(20..30);
        assert_eq!(listed(&ranges), [(10, 40)]);
        ranges.remove(&(15..25));
        assert_eq!(listed(&ranges), [(10, 15), (25, 40)]);
        assert_eq!(ranges.within(&(12..30)), [12..15, 25..30]);
        ranges.remove(&(0..11));
        ranges.remove(&(39..90));
        assert_eq!(listed(&ranges), [(11, 15), (25, 39)]);
        ranges.remove(&(0..100));
        assert_eq!(listed(&ranges), []);
    }

    #[test]
    fn many_ranges_take_bounded_memory_and_every_byte_of_them_is_kept() {
        for order in [1, -1] {
            let mut ranges = Ranges::default();
            let starts = (0..10 * MOST_RANGES as u64).map(|number| 10 * number);
            let starts: Vec<u64> = if order == 1 {
                starts.collect()
            } else {
                starts.rev().collect()
            };
            for &start in &starts {
                ranges.add(start..start + 5);
            }
            assert!(ranges.0.len() <= MOST_RANGES);
            for &start in &starts {
                let found = ranges.within(&(start..start + 5));
                assert_eq!(found.first(), Some(&(start..start + 5)));
            }
        }
    }
}
