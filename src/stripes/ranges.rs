//! Ranges of bytes, in order and without overlaps.

use std::ops::Range;

use rangemap::RangeSet;

/// Returns ranges in order; those that touch or overlap are joined.
pub(crate) fn joined<T: Ord + Clone>(ranges: impl IntoIterator<Item = Range<T>>) -> Vec<Range<T>> {
    let ranges = ranges.into_iter().filter(|range| !range.is_empty());
    ranges.collect::<RangeSet<T>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_or_overlap_are_joined_and_gaps_stay() {
        let ranges = [8..12, 0..4, 4..8, 20..24, 22..30, 40..41, 7..7];
        assert_eq!(joined(ranges), [0..12, 20..30, 40..41]);
    }
}
