//! Stretches of the numbers of stripes.

use std::collections::BTreeSet;

use crate::format::StripeId;
use crate::format::key::{self, Key, KeyRange};
use crate::metadata::Grouping;

/// The numbers of stripes that make a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::maintenance) struct StretchLen(pub(in crate::maintenance) u64);

impl StretchLen {
    /// Returns the stretch of a stripe.
    pub(super) fn stretch_of(self, stripe: StripeId) -> StretchId {
        StretchId(stripe.0 / self.0)
    }

    /// Returns the keys of the stripes of some stretches; neighbours share one range.
    pub(super) fn ranges_of(self, stretches: &BTreeSet<StretchId>) -> Vec<KeyRange> {
        let mut ranges: Vec<KeyRange> = Vec::new();
        for stretch in stretches {
            let (from, end) = (self.bound(*stretch, false), self.bound(*stretch, true));
            match ranges.last_mut() {
                Some((_, last)) if *last == from => *last = end,
                _ => ranges.push((from, end)),
            }
        }
        ranges
    }

    /// Returns the key of the first stripe of a stretch, or of the first after it.
    fn bound(self, stretch: StretchId, is_end: bool) -> Key {
        let first = stretch.0.checked_add(u64::from(is_end));
        let first = first.and_then(|stretch| stretch.checked_mul(self.0));
        first.map_or_else(|| key::stripes().1, |first| key::stripe(StripeId(first)))
    }
}

/// The group of a key is even for the record of a stripe of a stretch, and odd for its live bytes.
impl Grouping for StretchLen {
    fn group_of(&self, key: &[u8]) -> Option<u64> {
        let (stripe, is_backref) = key::stripe_of(key)?;
        Some(self.stretch_of(stripe).0 << 1 | u64::from(is_backref))
    }
}

/// The number of a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StretchId(pub(super) u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_side_by_side_are_read_in_one_go() {
        let len = 128;
        let stretches = [0, 1, 4, u64::MAX / len].map(StretchId);
        let key_of = |number| key::stripe(StripeId(number));
        let last = u64::MAX - u64::MAX % len;
        assert_eq!(
            StretchLen(len).ranges_of(&stretches.into()),
            [
                (key_of(0), key_of(2 * len)),
                (key_of(4 * len), key_of(5 * len)),
                (key_of(last), key::stripes().1),
            ]
        );
        assert!(key_of(u64::MAX) < key::stripes().1);
    }
}
