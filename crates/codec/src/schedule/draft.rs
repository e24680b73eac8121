//! A schedule that is being improved.

use crate::{Matrix, bitset::BitSet, random::Random};

/// Steps as sets of slots. Slots are inputs, outputs, then partial sums.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) inputs: usize,
    pub(super) output_count: usize,
    /// The slots that each step adds up.
    pub(super) steps: Vec<BitSet>,
    /// For each step, all steps that it needs, directly or not.
    pub(super) needs: Vec<BitSet>,
}

/// Two slots to add once for all steps that add both.
pub(super) struct Pair {
    pub(super) a: usize,
    pub(super) b: usize,
    pub(super) saved: usize,
}

/// A step that is to start from another's result.
pub(super) struct Reuse {
    pub(super) step: usize,
    pub(super) from: usize,
    pub(super) saved: usize,
}

/// Room for partial sums: as many as outputs, and some.
fn capacity(outputs: usize) -> usize {
    3 * outputs + 64
}

impl Draft {
    /// Starts with a step per row of a matrix of bits, each the sum of inputs alone.
    pub(super) fn new(matrix: &Matrix) -> Self {
        let slots = matrix.columns() + capacity(matrix.rows());
        let step = |row| {
            let mut step = BitSet::new(slots);
            for column in (0..matrix.columns()).filter(|&column| matrix.at(row, column) == 1) {
                step.insert(column);
            }
            step
        };
        Self {
            inputs: matrix.columns(),
            output_count: matrix.rows(),
            steps: (0..matrix.rows()).map(step).collect(),
            needs: vec![BitSet::new(slots); matrix.rows()],
        }
    }

    /// Returns whether there is room for another partial sum.
    pub(super) fn has_room(&self) -> bool {
        self.steps.len() < capacity(self.output_count)
    }

    fn empty(&self) -> BitSet {
        BitSet::new(self.steps[0].size())
    }

    /// Lets every step start from the earlier one that saves most, if any does.
    pub(super) fn reuse_once(&mut self) {
        let originals = self.steps.clone();
        for (step, terms) in originals.iter().enumerate() {
            let saved = |from: usize| {
                let different = terms.count_different(&originals[from]) + 1;
                terms.count().saturating_sub(different)
            };
            let Some(from) = (0..step).max_by_key(|&from| saved(from)) else {
                continue;
            };
            if saved(from) > 0 {
                let mut terms = terms.clone();
                terms.toggle_all(&originals[from]);
                terms.insert(self.inputs + from);
                self.steps[step] = terms;
                self.now_needs(step, from);
            }
        }
    }

    /// Makes the sum of a pair a step of its own.
    pub(super) fn share(&mut self, &Pair { a, b, .. }: &Pair) {
        let new = self.steps.len();
        let (mut sum, mut needs) = (self.empty(), self.empty());
        for slot in [a, b] {
            sum.insert(slot);
            self.add_needs(&mut needs, slot);
        }
        self.steps.push(sum);
        self.needs.push(needs);
        for index in 0..new {
            if self.steps[index].contains(a) && self.steps[index].contains(b) {
                self.steps[index].remove(a);
                self.steps[index].remove(b);
                self.steps[index].insert(self.inputs + new);
                self.now_needs(index, new);
            }
        }
    }

    /// Lets a step start from the result of another, and add only what differs.
    pub(super) fn reuse(&mut self, &Reuse { step, from, .. }: &Reuse) {
        let mut terms = self.steps[step].clone();
        terms.toggle_all(&self.steps[from]);
        terms.toggle(self.inputs + from);
        for slot in terms.iter() {
            if let Some(needed) = slot.checked_sub(self.inputs) {
                self.now_needs(step, needed);
            }
        }
        self.steps[step] = terms;
    }

    /// Takes back a few of the changes made so far, for others to take their place.
    pub(super) fn disturb(&mut self, random: &mut Random) {
        for _ in 0..=random.below(5) {
            let step = random.below(self.steps.len());
            if step >= self.output_count && !random.one_in(3) {
                self.dissolve(step);
                continue;
            }
            let made_of: Vec<usize> = self.steps[step]
                .iter()
                .filter_map(|slot| slot.checked_sub(self.inputs))
                .collect();
            if !made_of.is_empty() {
                self.expand(step, made_of[random.below(made_of.len())]);
            }
        }
        self.settle();
    }

    /// Dissolves all partial sums that fewer than two steps need.
    pub(super) fn tidy(&mut self) {
        let lonely = |draft: &Self| {
            (draft.output_count..draft.steps.len())
                .find(|&step| draft.steps[step].count() > 0 && draft.users(step).count() < 2)
        };
        while let Some(step) = lonely(self) {
            self.dissolve(step);
        }
        self.settle();
    }

    /// Returns the steps that add the result of `step`.
    pub(super) fn users(&self, step: usize) -> impl Iterator<Item = usize> {
        let slot = self.inputs + step;
        (0..self.steps.len()).filter(move |&user| self.steps[user].contains(slot))
    }

    /// Puts the terms of a partial sum into all steps that use it, and leaves it empty.
    fn dissolve(&mut self, step: usize) {
        let users: Vec<usize> = self.users(step).collect();
        for user in users {
            self.expand(user, step);
        }
        self.steps[step] = self.empty();
    }

    /// Puts the terms of `step` into one that uses it.
    fn expand(&mut self, user: usize, step: usize) {
        let terms = self.steps[step].clone();
        self.steps[user].toggle(self.inputs + step);
        self.steps[user].toggle_all(&terms);
    }

    /// Removes empty partial sums, and determines again which step needs which.
    fn settle(&mut self) {
        let stays = |&step: &usize| step < self.output_count || self.steps[step].count() > 0;
        let kept: Vec<usize> = (0..self.steps.len()).filter(stays).collect();
        let mut renumbered = vec![0; self.steps.len()];
        for (new, &old) in kept.iter().enumerate() {
            renumbered[old] = new;
        }
        let inputs = self.inputs;
        let slot = |slot: usize| match slot.checked_sub(inputs) {
            Some(step) => inputs + renumbered[step],
            None => slot,
        };
        let renumber = |&old: &usize| {
            let mut terms = self.empty();
            self.steps[old]
                .iter()
                .for_each(|term| terms.insert(slot(term)));
            terms
        };
        self.steps = kept.iter().map(renumber).collect();
        self.needs = vec![self.empty(); self.steps.len()];
        for step in 0..self.steps.len() {
            let terms: Vec<usize> = self.steps[step].iter().collect();
            for needed in terms
                .into_iter()
                .filter_map(|term| term.checked_sub(inputs))
            {
                self.now_needs(step, needed);
            }
        }
    }

    /// Adds a slot's step, and all that this needs, to a set of steps.
    fn add_needs(&self, needs: &mut BitSet, slot: usize) {
        if let Some(step) = slot.checked_sub(self.inputs) {
            needs.insert(step);
            needs.insert_all(&self.needs[step]);
        }
    }

    /// Notes that `step`, and with it all that need it, now need `needed`.
    pub(super) fn now_needs(&mut self, step: usize, needed: usize) {
        let mut more = self.needs[needed].clone();
        more.insert(needed);
        for index in 0..self.needs.len() {
            if index == step || self.needs[index].contains(step) {
                self.needs[index].insert_all(&more);
            }
        }
    }
}
