//! Sets of ranges that take bounded memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// Most ranges of one set. If there are more, neighbours become one, together with what lies between them.
const MOST_RANGES: usize = 1024;

/// Ranges that neither overlap nor touch: where each starts, and where it ends. Their number is bounded.
#[derive(Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range. If there are too many ranges then, it becomes one with the range before it.
    pub(super) fn add(&mut self, mut range: Range<u64>) {
        let adjacent = self.0.range(..=range.end);
        let adjacent = adjacent.filter(|(_, end)| **end >= range.start);
        let adjacent: Vec<(u64, u64)> = adjacent.map(|(start, end)| (*start, *end)).collect();
        for (start, end) in adjacent {
            self.0.remove(&start);
            range = range.start.min(start)..range.end.max(end);
        }
        self.0.insert(range.start, range.end);
        if self.0.len() > MOST_RANGES {
            // The range between two others counts only where the file holds nothing.
            let before = self.0.range(..range.start).next_back();
            let other = before.or_else(|| self.0.range(range.end..).next());
            if let Some((&start, &end)) = other {
                self.add(start.min(range.start)..end.max(range.end));
            }
        }
    }

    /// Removes a range.
    pub(super) fn remove(&mut self, range: &Range<u64>) {
        for found in self.within(range) {
            let before = self.0.range(..=found.start).next_back();
            let Some((&start, &end)) = before else {
                continue;
            };
            self.0.remove(&start);
            if start < found.start {
                self.0.insert(start, found.start);
            }
            if found.end < end {
                self.0.insert(found.end, end);
            }
        }
    }

    /// Returns the parts that lie in `range`.
    pub(super) fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let all = self.0.range(..range.end);
        let cut = all.map(|(start, end)| range.start.max(*start)..range.end.min(*end));
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
        ranges.0.iter().map(|(start, end)| (*start, *end)).collect()
    }

    #[test]
    fn ranges_that_touch_are_one_and_what_is_removed_splits_them() {
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
    fn many_ranges_take_bounded_memory_and_none_is_forgotten() {
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
