//! The places of the results of a draft's steps, and the order in which the steps run.

use super::draft::Draft;
use super::steps::{Schedule, StepPlace};
use crate::bitset::BitSet;

/// A draft in which some partial sums lie where a step goes on with them.
pub(super) struct Placed {
    draft: Draft,
    /// For each partial sum and output, the step that overwrites it with its own result.
    heirs: Vec<Option<usize>>,
}

impl Placed {
    /// Lets as many partial sums as can be found lie where one of their users puts its result: that
    /// one comes last of them, and needs no copy.
    pub(super) fn new(mut draft: Draft) -> Self {
        let mut found = Vec::new();
        let mut inherits = vec![false; draft.steps.len()];
        for sum in draft.output_count..draft.steps.len() {
            let users: Vec<usize> = draft.users(sum).collect();
            let comes_last = |&heir: &usize| {
                let others = users.iter().filter(|&&user| user != heir);
                !inherits[heir]
                    && others
                        .clone()
                        .all(|&user| !draft.needs[user].contains(heir))
            };
            if let Some(heir) = users.iter().copied().find(comes_last) {
                found.push((sum, heir));
                inherits[heir] = true;
                for &user in users.iter().filter(|&&user| user != heir) {
                    draft.now_needs(heir, user);
                }
            }
        }
        let mut heirs = vec![None; draft.steps.len()];
        for (sum, heir) in found {
            heirs[sum] = Some(heir);
        }
        Self { draft, heirs }
    }

    /// Returns how many XORs and copies of packets there are: a sum of t packets is a copy and t−1
    /// XORs, and no copy where the first of them is in place already.
    pub(super) fn operations(&self) -> usize {
        let terms: usize = self.draft.steps.iter().map(BitSet::count).sum();
        terms - self.heirs.iter().flatten().count()
    }

    /// Puts the steps into an order in which all is computed before it is used, and overwritten after.
    pub(super) fn finish(self) -> Schedule {
        let Self { draft, heirs } = self;
        // A step needs all that the steps it needs do, and one more at least: so fewer needs first.
        // Among equals those with as many terms stand together, which keeps the loop regular.
        let mut order: Vec<usize> = (0..draft.steps.len()).collect();
        order.sort_by_key(|&step| (draft.needs[step].count(), draft.steps[step].count()));
        let mut slot_of: Vec<usize> = (0..draft.inputs + draft.steps.len()).collect();
        for (turn, &step) in order.iter().enumerate() {
            slot_of[draft.inputs + step] = draft.inputs + turn;
        }
        let number = |number: usize| u16::try_from(number).expect("65,535 slots at most");
        // Heirs come later than what they inherit: from the last step to the first, places are known.
        let mut places = vec![StepPlace::Scratch(0); draft.steps.len()];
        let mut scratch_count = 0;
        for &step in order.iter().rev() {
            places[step] = match heirs[step] {
                Some(heir) => places[heir],
                None if step < draft.output_count => StepPlace::Output(number(step)),
                None => {
                    scratch_count += 1;
                    StepPlace::Scratch(number(scratch_count - 1))
                }
            };
        }
        let terms = |&step: &usize| {
            draft.steps[step]
                .iter()
                .map(|slot| number(slot_of[slot]))
                .collect()
        };
        Schedule {
            inputs: draft.inputs,
            steps: order.iter().map(terms).collect(),
            places: order.iter().map(|&step| places[step]).collect(),
            scratch_count,
        }
    }
}
