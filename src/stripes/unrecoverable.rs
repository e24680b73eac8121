//! Ranges of stripes that cannot be recovered, whatever their files look like.

use std::collections::BTreeMap;
use std::ops::Range;

use parking_lot::Mutex;
use rangemap::RangeSet;

use crate::format::StripeId;

/// The most stripes that are remembered: a few megabytes. Callers can tell if there were more.
const MAX_STRIPES: usize = 1 << 15;

/// The bytes of stripes' payloads that could not be recovered, because too few of their shards were right. They are
/// remembered until the volume is closed, or the stripe is found right.
#[derive(Debug, Default)]
pub(crate) struct UnrecoverableRanges(Mutex<RememberedRanges>);

#[derive(Debug, Default)]
struct RememberedRanges {
    ranges: BTreeMap<StripeId, RangeSet<u32>>,
    changes: u64,
    /// True if there were more stripes than are remembered.
    is_truncated: bool,
    /// The same, since a pass over all stripes began; `None` if none began.
    is_truncated_in_pass: Option<bool>,
}

impl UnrecoverableRanges {
    /// Notes bytes of a stripe that are unrecoverable beside others.
    pub(crate) fn add(&self, stripe: StripeId, ranges: &[Range<u32>]) {
        let mut state = self.0.lock();
        let mut all = state.ranges.get(&stripe).cloned().unwrap_or_default();
        all.extend(filled(ranges));
        state.set(stripe, &all);
    }

    /// Notes all bytes of a stripe that are unrecoverable, if any are.
    pub(crate) fn set(&self, stripe: StripeId, ranges: &[Range<u32>]) {
        let ranges = filled(ranges).collect();
        self.0.lock().set(stripe, &ranges);
    }

    /// Forgets a stripe that is gone.
    pub(crate) fn forget(&self, stripe: StripeId) {
        self.set(stripe, &[]);
    }

    /// Returns whether some bytes of a range are known to be unrecoverable.
    pub(crate) fn overlaps(&self, stripe: StripeId, range: &Range<u32>) -> bool {
        let state = self.0.lock();
        let ranges = state.ranges.get(&stripe);
        ranges.is_some_and(|ranges| ranges.overlaps(range))
    }

    /// Returns a number that rises with every change.
    pub(crate) fn changes(&self) -> u64 {
        self.0.lock().changes
    }

    /// Begins a pass that reads all stripes.
    pub(crate) fn begin_pass(&self) {
        self.0.lock().is_truncated_in_pass = Some(false);
    }

    /// Ends the pass over all stripes, if one began. Afterwards a stripe that is not remembered is recoverable, unless
    /// more were met during the pass than are remembered.
    pub(crate) fn end_pass(&self) {
        let mut state = self.0.lock();
        if let Some(is_truncated) = state.is_truncated_in_pass.take() {
            state.changes += u64::from(state.is_truncated != is_truncated);
            state.is_truncated = is_truncated;
        }
    }

    /// Returns whether there were stripes that are not remembered.
    pub(crate) fn is_truncated(&self) -> bool {
        self.0.lock().is_truncated
    }

    /// Returns the ranges of all stripes, in order.
    pub(crate) fn all(&self) -> BTreeMap<StripeId, Vec<Range<u32>>> {
        let state = self.0.lock();
        let ranges = state.ranges.iter();
        ranges
            .map(|(stripe, ranges)| (*stripe, ranges.iter().cloned().collect()))
            .collect()
    }
}

/// Returns the ranges that are not empty; a set takes no others.
fn filled(ranges: &[Range<u32>]) -> impl Iterator<Item = Range<u32>> {
    ranges.iter().filter(|range| !range.is_empty()).cloned()
}

impl RememberedRanges {
    fn set(&mut self, stripe: StripeId, ranges: &RangeSet<u32>) {
        let before = if ranges.is_empty() {
            self.ranges.remove(&stripe).unwrap_or_default()
        } else if self.ranges.len() < MAX_STRIPES || self.ranges.contains_key(&stripe) {
            let before = self.ranges.insert(stripe, ranges.clone());
            before.unwrap_or_default()
        } else {
            self.changes += u64::from(!self.is_truncated);
            self.is_truncated = true;
            self.is_truncated_in_pass = self.is_truncated_in_pass.map(|_| true);
            return;
        };
        self.changes += u64::from(before != *ranges);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrecoverable_ranges_add_up_until_the_stripe_is_found_right() {
        let ranges = UnrecoverableRanges::default();
        let stripe = StripeId(1);
        let (low, high) = (0..4096, 8192..12288);
        ranges.add(stripe, std::slice::from_ref(&high));
        ranges.add(stripe, std::slice::from_ref(&low));
        assert_eq!(ranges.changes(), 2);
        ranges.add(stripe, std::slice::from_ref(&low));
        assert_eq!(ranges.changes(), 2, "nothing new");
        assert_eq!(ranges.all()[&stripe], [low, high]);
        assert!(ranges.overlaps(stripe, &(4000..5000)));
        assert!(!ranges.overlaps(stripe, &(4096..8192)));
        let between = 4096..8192;
        ranges.add(stripe, std::slice::from_ref(&between));
        let all = 0..12288;
        assert_eq!(ranges.all()[&stripe], std::slice::from_ref(&all));
        ranges.set(stripe, &[]);
        assert!(ranges.all().is_empty());
        assert_eq!(ranges.changes(), 4);
    }

    #[test]
    fn empty_ranges_are_not_noted() {
        let ranges = UnrecoverableRanges::default();
        let (stripe, some, none) = (StripeId(1), 0..4096, 8192..8192);
        ranges.add(stripe, std::slice::from_ref(&none));
        ranges.set(stripe, std::slice::from_ref(&none));
        assert_eq!((ranges.changes(), ranges.all().len()), (0, 0));
        ranges.set(stripe, &[none.clone(), some.clone()]);
        ranges.add(stripe, std::slice::from_ref(&none));
        assert_eq!(ranges.all()[&stripe], [some]);
        assert_eq!(ranges.changes(), 1);
    }

    #[test]
    fn more_stripes_than_are_remembered_are_reported_as_truncated() {
        let ranges = UnrecoverableRanges::default();
        let most = MAX_STRIPES as u64;
        let spoil = |stripe| ranges.set(StripeId(stripe), std::slice::from_ref(&(0..1)));
        (0..most).for_each(spoil);
        spoil(0);
        assert!(!ranges.is_truncated());
        spoil(most);
        spoil(most + 1);
        assert!(ranges.is_truncated());
        assert_eq!(ranges.all().len(), MAX_STRIPES);
        assert_eq!(ranges.changes(), most + 1);
        // A pass that did not see all of it knows nothing of the rest.
        ranges.end_pass();
        assert!(ranges.is_truncated());
        ranges.begin_pass();
        spoil(most);
        ranges.end_pass();
        assert!(ranges.is_truncated());
        ranges.begin_pass();
        ranges.set(StripeId(1), &[]);
        assert!(ranges.is_truncated(), "it is not through");
        ranges.end_pass();
        assert!(!ranges.is_truncated());
    }
}
