//! Stripes that turned out to be lost when they were looked at, whatever their files look like.

use std::collections::BTreeMap;
use std::ops::Range;

use parking_lot::Mutex;

use crate::format::StripeId;

/// The most stripes that are remembered: a few megabytes. Callers can tell if there were more.
const MOST: usize = 1 << 15;

/// Stripes of which something could not be decoded, because too few of their shards were right: which
/// bytes of the payload. They are remembered until the volume is closed, or the stripe is found right.
#[derive(Debug, Default)]
pub(crate) struct Undecodable(Mutex<State>);

/// Bytes of the payloads of stripes.
pub(crate) type LostBytes = BTreeMap<StripeId, Vec<Range<u32>>>;

#[derive(Debug, Default)]
struct State {
    lost: LostBytes,
    changes: u64,
    /// True if there were more than can be remembered.
    is_cut: bool,
    /// The same, since it was begun to look at everything; `None` if that was not begun.
    is_cut_since: Option<bool>,
}

impl Undecodable {
    /// Takes note of bytes that are lost beside others.
    pub(crate) fn add(&self, stripe: StripeId, lost: &[Range<u32>]) {
        let known = self.0.lock().lost.get(&stripe).cloned();
        let both = known
            .unwrap_or_default()
            .into_iter()
            .chain(lost.iter().cloned());
        self.set(stripe, &joined(both.collect()));
    }

    /// Takes note of all the bytes of a stripe that are lost, if any are.
    pub(crate) fn set(&self, stripe: StripeId, lost: &[Range<u32>]) {
        let mut state = self.0.lock();
        let before = if lost.is_empty() {
            state.lost.remove(&stripe)
        } else if state.lost.len() < MOST || state.lost.contains_key(&stripe) {
            state.lost.insert(stripe, lost.to_vec())
        } else {
            state.changes += u64::from(!state.is_cut);
            state.is_cut = true;
            state.is_cut_since = state.is_cut_since.map(|_| true);
            return;
        };
        state.changes += u64::from(before.unwrap_or_default() != lost);
    }

    /// Says whether some of these bytes are known to be lost.
    pub(crate) fn knows(&self, stripe: StripeId, range: &Range<u32>) -> bool {
        let state = self.0.lock();
        let lost = state.lost.get(&stripe);
        lost.is_some_and(|lost| {
            lost.iter()
                .any(|lost| lost.start < range.end && range.start < lost.end)
        })
    }

    /// Counts how often something of it changed.
    pub(crate) fn changes(&self) -> u64 {
        self.0.lock().changes
    }

    /// All stripes are going to be looked at.
    pub(crate) fn begin_to_look(&self) {
        self.0.lock().is_cut_since = Some(false);
    }

    /// All were looked at since that was begun, if it was: what is not remembered now is not lost.
    pub(crate) fn end_looking(&self) {
        let mut state = self.0.lock();
        if let Some(is_cut) = state.is_cut_since.take() {
            state.changes += u64::from(state.is_cut != is_cut);
            state.is_cut = is_cut;
        }
    }

    /// Says whether there were stripes that are not remembered.
    pub(crate) fn is_cut(&self) -> bool {
        self.0.lock().is_cut
    }

    /// Returns all that is lost.
    pub(crate) fn all(&self) -> LostBytes {
        self.0.lock().lost.clone()
    }
}

/// Puts ranges in order, and joins those that touch or overlap.
pub(crate) fn joined(mut ranges: Vec<Range<u32>>) -> Vec<Range<u32>> {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let touches = next.start <= range.end;
        if touches {
            range.end = range.end.max(next.end);
        }
        touches
    });
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_adds_up_until_the_stripe_is_found_right() {
        let undecodable = Undecodable::default();
        let stripe = StripeId(1);
        let (low, high) = (0..4096, 8192..12288);
        undecodable.add(stripe, std::slice::from_ref(&high));
        undecodable.add(stripe, std::slice::from_ref(&low));
        assert_eq!(undecodable.changes(), 2);
        undecodable.add(stripe, std::slice::from_ref(&low));
        assert_eq!(undecodable.changes(), 2, "nothing new");
        assert_eq!(undecodable.all()[&stripe], [low, high]);
        assert!(undecodable.knows(stripe, &(4000..5000)));
        assert!(!undecodable.knows(stripe, &(4096..8192)));
        let between = 4096..8192;
        undecodable.add(stripe, std::slice::from_ref(&between));
        let all = 0..12288;
        assert_eq!(undecodable.all()[&stripe], std::slice::from_ref(&all));
        undecodable.set(stripe, &[]);
        assert!(undecodable.all().is_empty());
        assert_eq!(undecodable.changes(), 4);
    }

    #[test]
    fn who_asks_is_told_that_not_all_is_remembered() {
        let undecodable = Undecodable::default();
        let most = MOST as u64;
        let spoil = |stripe| undecodable.set(StripeId(stripe), std::slice::from_ref(&(0..1)));
        (0..most).for_each(spoil);
        spoil(0);
        assert!(!undecodable.is_cut());
        spoil(most);
        spoil(most + 1);
        assert!(undecodable.is_cut());
        assert_eq!(undecodable.all().len(), MOST);
        assert_eq!(undecodable.changes(), most + 1);
        // A pass that did not see all of it knows nothing of the rest.
        undecodable.end_looking();
        assert!(undecodable.is_cut());
        undecodable.begin_to_look();
        spoil(most);
        undecodable.end_looking();
        assert!(undecodable.is_cut());
        undecodable.begin_to_look();
        undecodable.set(StripeId(1), &[]);
        assert!(undecodable.is_cut(), "it is not through");
        undecodable.end_looking();
        assert!(!undecodable.is_cut());
    }
}
