//! The live bytes of stripes, as they were last counted.

use std::collections::{BTreeMap, BTreeSet};

use super::stretch_len::StretchId;
use crate::format::StripeId;
use crate::transaction::CountLimits;

/// Mark of an unknown number.
const UNKNOWN: u32 = u32::MAX;

/// The number of live bytes of each stripe of a stretch, as far as it is known: half a kilobyte.
#[derive(Clone, Debug)]
struct Lives(Box<[u32]>);

impl Lives {
    fn new(stripes: u64) -> Self {
        Self(std::iter::repeat_n(UNKNOWN, index_of(stripes)).collect())
    }

    fn get(&self, index: u64) -> Option<u64> {
        let bytes = self.0[index_of(index)];
        (bytes != UNKNOWN).then_some(bytes.into())
    }

    fn set(&mut self, index: u64, bytes: u64) {
        self.0[index_of(index)] = u32::try_from(bytes).unwrap_or(UNKNOWN);
    }
}

/// The live bytes of a limited number of stretches; those of others are looked up each time.
#[derive(Debug)]
pub(super) struct KnownLives {
    limits: CountLimits,
    stretches: BTreeMap<StretchId, Lives>,
}

impl KnownLives {
    pub(super) fn new(limits: CountLimits) -> Self {
        Self {
            limits,
            stretches: BTreeMap::new(),
        }
    }

    pub(super) fn get(&self, stripe: StripeId) -> Option<u64> {
        let (id, index) = self.place_of(stripe);
        self.stretches.get(&id)?.get(index)
    }

    pub(super) fn set(&mut self, stripe: StripeId, bytes: u64) {
        let (id, index) = self.place_of(stripe);
        if self.stretches.len() < self.limits.max_stretches || self.stretches.contains_key(&id) {
            let new = || Lives::new(self.limits.stretch_stripes);
            self.stretches
                .entry(id)
                .or_insert_with(new)
                .set(index, bytes);
        }
    }

    /// Returns the stretch of a stripe, and the index of the stripe in it.
    fn place_of(&self, stripe: StripeId) -> (StretchId, u64) {
        let id = self.limits.stretch_len().stretch_of(stripe);
        (id, stripe.0 % self.limits.stretch_stripes)
    }

    /// Forgets a stretch.
    pub(super) fn remove(&mut self, id: StretchId) {
        self.stretches.remove(&id);
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.stretches.clear();
    }

    /// Replaces the live bytes of counted stretches with those found; forgets a stretch without stripes.
    pub(super) fn replace(&mut self, counted: &BTreeSet<StretchId>, mut found: Self) {
        for id in counted {
            self.stretches.remove(id);
        }
        while self.stretches.len() < self.limits.max_stretches
            && let Some((id, lives)) = found.stretches.pop_first()
        {
            self.stretches.insert(id, lives);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.stretches.len()
    }
}

fn index_of(number: u64) -> usize {
    usize::try_from(number).expect("a stretch is short")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_stretches_are_remembered_than_they_may_be() {
        const MOST: usize = 4;
        let limits = CountLimits {
            stretch_stripes: 2,
            max_stretches: MOST,
            ..CountLimits::default()
        };
        let stretch = |number: usize| StripeId(number as u64 * limits.stretch_stripes);
        let mut lives = KnownLives::new(limits);
        for number in 0..MOST + 3 {
            lives.set(stretch(number), 7);
        }
        assert_eq!(lives.len(), MOST);
        assert_eq!(lives.get(stretch(MOST)), None);
        lives.set(stretch(1), 8);
        assert_eq!(lives.get(stretch(1)), Some(8));
        // Two are gone, and more than that have come.
        let mut found = KnownLives::new(limits);
        for number in MOST..MOST + 3 {
            found.set(stretch(number), 9);
        }
        let counted: BTreeSet<StretchId> = [0, 1, MOST, MOST + 1, MOST + 2]
            .map(|number| limits.stretch_len().stretch_of(stretch(number)))
            .into();
        lives.replace(&counted, found);
        assert_eq!(lives.len(), MOST);
        let known = [0, 1, 2, MOST, MOST + 2].map(|n| lives.get(stretch(n)));
        assert_eq!(known, [None, None, Some(7), Some(9), None]);
    }
}
