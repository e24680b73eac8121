//! The live bytes of stripes, as they were last counted.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::StripeId;

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

#[cfg(test)]
mod tests {
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
}
