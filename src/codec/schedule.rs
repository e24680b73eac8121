//! In which order to XOR packets, so that sums which several packets have in common are computed
//! once.
//!
//! A schedule never changes what is computed, so a better search may replace this one at any time.

use crate::codec::{Matrix, bitset::BitSet};

/// How much work to put into a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// For matrices that are used for long: as long as there is something to gain. Among changes that
    /// gain as much, the seed decides.
    Thorough {
        /// Any number; some lead to shorter schedules than others.
        seed: u32,
    },
    /// For an erasure pattern that just turned up: only reuse of whole packets.
    Quick,
}

/// The largest matrix, in bits, that is worth more than a quick look: it takes a fraction of a
/// second then.
const THOROUGH_BITS: usize = 16 << 10;

/// Steps that compute all outputs. Slots are numbered: inputs first, then one per step.
#[derive(Debug)]
pub(super) struct Schedule {
    inputs: usize,
    /// The slots that each step adds up. Every slot is computed before it is used.
    steps: Vec<Vec<u16>>,
    /// For each step, the output it computes; `None` for a partial sum that others need.
    outputs: Vec<Option<u16>>,
}

impl Schedule {
    /// Returns a schedule that computes every row of a matrix of bits from its columns.
    ///
    /// # Panics
    ///
    /// If there are more than 65,535 rows, columns and partial sums.
    pub(super) fn new(matrix: &Matrix, effort: Effort) -> Self {
        let small = matrix.rows() * matrix.columns() <= THOROUGH_BITS;
        let effort = if small { effort } else { Effort::Quick };
        let mut search = Search::new(matrix);
        match effort {
            Effort::Quick => search.improve_once(),
            Effort::Thorough { seed } => {
                let mut ties = Ties::new(seed);
                while search.improve_best(&mut ties) {}
            }
        }
        search.finish()
    }

    pub(super) fn inputs(&self) -> usize {
        self.inputs
    }

    /// Returns the steps in order: the slots that each adds up, and the output it computes.
    pub(super) fn steps(&self) -> impl ExactSizeIterator<Item = (&[u16], Option<u16>)> {
        self.steps
            .iter()
            .map(Vec::as_slice)
            .zip(self.outputs.iter().copied())
    }

    /// Returns how many XORs and copies of packets there are, counted as the literature does: a sum
    /// of t packets is a copy and t−1 XORs.
    pub(super) fn operations(&self) -> usize {
        self.steps.iter().map(Vec::len).sum()
    }
}

/// A schedule being improved. Slots are inputs, outputs, then partial sums.
struct Search {
    inputs: usize,
    output_count: usize,
    /// The slots that each step adds up, as a set.
    steps: Vec<BitSet>,
    /// For each step, all steps that it needs, directly or not.
    needs: Vec<BitSet>,
}

/// Room for partial sums: as many as outputs, and some.
fn capacity(outputs: usize) -> usize {
    3 * outputs + 64
}

impl Search {
    fn new(matrix: &Matrix) -> Self {
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

    /// Lets every step start from the earlier one that saves most, if any does.
    fn improve_once(&mut self) {
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

    /// Makes the change that saves most; returns whether there was any.
    fn improve_best(&mut self, ties: &mut Ties) -> bool {
        ties.next_step();
        let reuse = self.best_reuse(ties);
        let room = self.steps.len() < capacity(self.output_count);
        let pair = if room { self.best_pair(ties) } else { None };
        match (reuse, pair) {
            (Some(reuse), pair) if pair.as_ref().is_none_or(|p| p.saved <= reuse.saved) => {
                self.reuse(&reuse);
            }
            (_, Some(pair)) => self.share(&pair),
            _ => return false,
        }
        true
    }

    /// Returns the pair of slots whose sum, once computed, saves most.
    fn best_pair(&self, ties: &mut Ties) -> Option<Pair> {
        let slots = self.inputs + self.steps.len();
        let mut users = vec![BitSet::new(self.steps.len()); slots];
        for (index, step) in self.steps.iter().enumerate() {
            for slot in step.iter() {
                users[slot].insert(index);
            }
        }
        let counts: Vec<usize> = users.iter().map(BitSet::count).collect();
        let mut best: Option<Pair> = None;
        for b in 1..slots {
            for a in 0..b {
                // Computing the sum takes two operations, each use of it saves one.
                let bound = best
                    .as_ref()
                    .map_or(3, |pair| ties.bound(3, pair.saved + 2));
                if counts[a] >= bound && counts[b] >= bound {
                    let shared = users[a].count_common(&users[b]);
                    if shared >= bound && ties.replace(best.is_none(), shared > bound) {
                        best = Some(Pair {
                            a,
                            b,
                            saved: shared - 2,
                        });
                    }
                }
            }
        }
        best
    }

    /// Makes the sum of a pair a step of its own.
    fn share(&mut self, &Pair { a, b, .. }: &Pair) {
        let new = self.steps.len();
        let mut sum = BitSet::new(self.steps[0].size());
        sum.insert(a);
        sum.insert(b);
        let mut needs = BitSet::new(self.steps[0].size());
        for slot in [a, b] {
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

    /// Returns the step that is best computed from the result of another.
    fn best_reuse(&self, ties: &mut Ties) -> Option<Reuse> {
        let mut best: Option<Reuse> = None;
        for (step, terms) in self.steps.iter().enumerate() {
            let count = terms.count();
            for (from, other) in self.steps.iter().enumerate() {
                if from == step || self.needs[from].contains(step) {
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

    /// Lets a step start from the result of another, and add only what differs.
    fn reuse(&mut self, &Reuse { step, from, .. }: &Reuse) {
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

    /// Adds a slot's step, and all that this needs, to a set of steps.
    fn add_needs(&self, needs: &mut BitSet, slot: usize) {
        if let Some(step) = slot.checked_sub(self.inputs) {
            needs.insert(step);
            needs.insert_all(&self.needs[step]);
        }
    }

    /// Notes that `step`, and with it all that need it, now need `needed`.
    fn now_needs(&mut self, step: usize, needed: usize) {
        let mut more = self.needs[needed].clone();
        more.insert(needed);
        for index in 0..self.needs.len() {
            if index == step || self.needs[index].contains(step) {
                self.needs[index].insert_all(&more);
            }
        }
    }

    /// Puts the steps into an order in which all is computed before it is used.
    fn finish(self) -> Schedule {
        // A step needs all that the steps it needs do, and one more at least: so fewer needs first.
        // Among equals those with as many terms stand together, which keeps the loop regular.
        let mut order: Vec<usize> = (0..self.steps.len()).collect();
        order.sort_by_key(|&step| (self.needs[step].count(), self.steps[step].count()));
        let mut slot_of: Vec<usize> = (0..self.inputs + self.steps.len()).collect();
        for (place, &step) in order.iter().enumerate() {
            slot_of[self.inputs + step] = self.inputs + place;
        }
        let slot = |slot: usize| u16::try_from(slot_of[slot]).expect("65,535 slots at most");
        let output = |&step: &usize| {
            (step < self.output_count).then(|| u16::try_from(step).expect("65,535 slots at most"))
        };
        Schedule {
            inputs: self.inputs,
            steps: order
                .iter()
                .map(|&s| self.steps[s].iter().map(slot).collect())
                .collect(),
            outputs: order.iter().map(output).collect(),
        }
    }
}

/// Decides between changes that are as good, at random but the same way for the same seed. Now and
/// then all that save anything count as equals, because the best step is not always on the best way;
/// only seed 0 never strays.
struct Ties {
    state: u64,
    equals: u64,
    straying: bool,
    may_stray: bool,
}

impl Ties {
    /// One step in so many strays.
    const STRAYS: u64 = 8;

    fn new(seed: u32) -> Self {
        // Spread over all bits, and never 0, where xorshift would stay.
        let state = (u64::from(seed) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Self {
            state,
            equals: 1,
            straying: false,
            may_stray: seed > 0,
        }
    }

    fn next_step(&mut self) {
        self.straying = self.may_stray && self.one_in(Self::STRAYS);
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
        self.one_in(self.equals)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state.is_multiple_of(count)
    }
}

/// Two slots to add once for all steps that add both.
struct Pair {
    a: usize,
    b: usize,
    saved: usize,
}

/// A step that is to start from another's result.
struct Reuse {
    step: usize,
    from: usize,
    saved: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{
        Geometry,
        bitmatrix::{Width, generator},
    };

    /// Follows a schedule symbolically: every slot as the set of inputs that it is the sum of.
    fn outputs(schedule: &Schedule, rows: usize) -> Vec<Vec<bool>> {
        let inputs = schedule.inputs();
        let mut slots: Vec<Vec<bool>> = (0..inputs)
            .map(|i| (0..inputs).map(|j| i == j).collect())
            .collect();
        let mut outputs = vec![Vec::new(); rows];
        for (terms, output) in schedule.steps() {
            let mut sum = vec![false; inputs];
            for &term in terms {
                for (bit, other) in sum.iter_mut().zip(&slots[usize::from(term)]) {
                    *bit ^= other;
                }
            }
            if let Some(output) = output {
                outputs[usize::from(output)] = sum.clone();
            }
            slots.push(sum);
        }
        outputs
    }

    fn check(matrix: &Matrix, schedule: &Schedule) {
        for (row, output) in outputs(schedule, matrix.rows()).iter().enumerate() {
            let expected: Vec<bool> = matrix.row(row).iter().map(|&bit| bit == 1).collect();
            assert_eq!(*output, expected, "row {row}");
        }
    }

    #[test]
    fn schedules_compute_every_row_of_the_matrix() {
        for width in (4..=8).filter_map(Width::new) {
            for (k, m) in [(1, 1), (2, 1), (1, 3), (4, 2), (6, 3), (10, 4)] {
                let matrix = generator(width, Geometry::new(k, m).expect("valid"));
                for effort in [Effort::Quick, Effort::Thorough { seed: 0 }] {
                    check(&matrix, &Schedule::new(&matrix, effort));
                }
            }
        }
    }

    #[test]
    fn rows_without_any_bit_become_empty_steps() {
        let matrix = Matrix::from_fn(3, 4, |row, _| u8::from(row == 1));
        let schedule = Schedule::new(&matrix, Effort::Thorough { seed: 0 });
        check(&matrix, &schedule);
    }
}
