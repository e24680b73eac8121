//! The search for the change to a draft that saves most.

use super::draft::{Draft, Pair, Reuse};
use crate::{bitset::BitSet, random::Random};

/// The fewest steps that are worth a partial sum of their own. Computing the sum takes two
/// operations, and each use of it saves one. One of the steps can go on where the sum lies, without
/// copying it.
const LEAST_USES: usize = 2;

/// Makes the changes that save most, one after the other, as long as there are any.
pub(super) fn descend(draft: &mut Draft, ties: &mut Ties) {
    while improve_best(draft, ties) {}
}

/// Makes the change that saves most; returns whether there was any.
fn improve_best(draft: &mut Draft, ties: &mut Ties) -> bool {
    ties.next_step();
    let reuse = best_reuse(draft, ties);
    let pair = if draft.has_room() {
        best_pair(draft, ties)
    } else {
        None
    };
    match (reuse, pair) {
        (Some(reuse), pair) if pair.as_ref().is_none_or(|p| p.saved <= reuse.saved) => {
            draft.reuse(&reuse);
        }
        (_, Some(pair)) => draft.share(&pair),
        _ => return false,
    }
    true
}

/// Returns the pair of slots whose sum, once computed, saves most.
fn best_pair(draft: &Draft, ties: &mut Ties) -> Option<Pair> {
    let slots = draft.inputs + draft.steps.len();
    let mut users = vec![BitSet::new(draft.steps.len()); slots];
    for (index, step) in draft.steps.iter().enumerate() {
        for slot in step.iter() {
            users[slot].insert(index);
        }
    }
    let counts: Vec<usize> = users.iter().map(BitSet::count).collect();
    let mut best: Option<Pair> = None;
    for b in 1..slots {
        for a in 0..b {
            let bound = best.as_ref().map_or(LEAST_USES, |pair| {
                ties.bound(LEAST_USES, pair.saved + LEAST_USES - 1)
            });
            if counts[a] >= bound && counts[b] >= bound {
                let shared = users[a].count_common(&users[b]);
                if shared >= bound && ties.replace(best.is_none(), shared > bound) {
                    let saved = shared + 1 - LEAST_USES;
                    best = Some(Pair { a, b, saved });
                }
            }
        }
    }
    best
}

/// Returns the step that is best computed from the result of another.
fn best_reuse(draft: &Draft, ties: &mut Ties) -> Option<Reuse> {
    let mut best: Option<Reuse> = None;
    for (step, terms) in draft.steps.iter().enumerate() {
        let count = terms.count();
        for (from, other) in draft.steps.iter().enumerate() {
            if from == step || draft.needs[from].contains(step) {
                continue;
            }
            let saved = count.saturating_sub(terms.count_different(other) + 1);
            let bound = best.as_ref().map_or(1, |best| ties.bound(1, best.saved));
            if saved >= bound && ties.replace(best.is_none(), saved > bound) {
                best = Some(Reuse { step, from, saved });
            }
        }
    }
    best
}

/// Decides between changes that are as good, at random but the same way for the same seed. Now and
/// then all that save anything count as equals, because the best step is not always on the best way;
/// only seed 0 never strays.
pub(super) struct Ties {
    random: Random,
    equals: u64,
    straying: bool,
    may_stray: bool,
}

impl Ties {
    /// One step in so many strays.
    const STRAYS: u64 = 8;

    pub(super) fn new(seed: u32) -> Self {
        Self {
            random: Random::new(seed),
            equals: 1,
            straying: false,
            may_stray: seed > 0,
        }
    }

    fn next_step(&mut self) {
        self.straying = self.may_stray && self.random.one_in(Self::STRAYS);
    }

    /// Returns what a change must save to be considered, when the best so far saves `best`.
    fn bound(&self, least: usize, best: usize) -> usize {
        if self.straying { least } else { best }
    }

    /// Returns whether a candidate takes the place of the best so far: always if it is the first or
    /// `better`, else so that all equals have the same chance.
    fn replace(&mut self, first: bool, better: bool) -> bool {
        if first || better && !self.straying {
            self.equals = 1;
            return true;
        }
        self.equals += 1;
        self.random.one_in(self.equals)
    }
}
