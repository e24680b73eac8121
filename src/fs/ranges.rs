//! Sets of ranges that take bounded memory.

use std::ops::Range;

use rangemap::RangeSet;

/// Most ranges of one set. If there are more, neighbours become one, together with what lies between them.
const MOST_RANGES: usize = 1024;

/// A bounded number of ranges that neither overlap nor touch.
#[derive(Debug, Default)]
pub(super) struct Ranges(RangeSet<u64>);

impl Ranges {
    /// Adds a range. If there are too many ranges then, the nearest neighbours become one.
    pub(super) fn add(&mut self, range: Range<u64>) {
        if !range.is_empty() {
            self.0.insert(range);
            self.bound(None);
        }
    }

    /// Removes a range. If that leaves too many ranges, the nearest neighbours elsewhere become one.
    pub(super) fn remove(&mut self, range: &Range<u64>) {
        if !range.is_empty() {
            self.0.remove(range.clone());
            self.bound(Some(range));
        }
    }

    /// Joins neighbours until there are few enough ranges, but none across `removed`. The bytes between two ranges
    /// count only where the file holds nothing.
    fn bound(&mut self, removed: Option<&Range<u64>>) {
        while self.0.len() > MOST_RANGES {
            let pairs = self.0.iter().zip(self.0.iter().skip(1));
            let gaps = pairs.map(|(before, after)| before.end..after.start);
            let mut gaps: Vec<_> = gaps.collect();
            gaps.retain(|gap| removed.is_none_or(|range| !overlap(gap, range)));
            let Some(gap) = gaps.into_iter().min_by_key(|gap| gap.end - gap.start) else {
                break;
            };
            self.0.insert(gap);
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

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
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

    #[test]
    fn removing_from_the_middle_of_many_ranges_keeps_their_number_bounded() {
        let mut ranges = Ranges::default();
        let starts: Vec<u64> = (0..MOST_RANGES as u64).map(|number| 100 * number).collect();
        for &start in &starts {
            ranges.add(start..start + 30);
        }
        for &start in &starts {
            let middle = start + 10..start + 20;
            ranges.remove(&middle);
            assert!(ranges.0.len() <= MOST_RANGES, "after {start}");
            assert_eq!(ranges.within(&middle), [], "{start}");
            for kept in [start..start + 10, start + 20..start + 30] {
                assert_eq!(ranges.within(&kept), [kept], "{start}");
            }
        }
        ranges.add(7_000_000..7_000_001);
        assert!(ranges.0.len() <= MOST_RANGES);
    }
}
