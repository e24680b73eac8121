//! The order in which to XOR packets, so that sums which several packets have in common are computed
//! once.
//!
//! A schedule never changes what is computed, so a better search may replace this one at any time.

mod draft;
mod greedy;
mod place;
mod steps;

use crate::{Matrix, random::Random};

use self::{
    draft::Draft,
    greedy::{Ties, descend},
    place::Placed,
};

pub(super) use self::steps::{Schedule, StepPlace};

/// The amount of work to put into a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// For matrices that are used for long: as long as there is something to gain. Among changes that
    /// gain as much, the seed decides.
    Thorough {
        /// Any number; some lead to shorter schedules than others.
        seed: u32,
        /// The number of times to take back a few changes and look for better ones.
        rounds: u32,
    },
    /// For an erasure pattern that just turned up: only reuse of whole packets.
    Quick,
}

/// The largest matrix, in bits, that is worth more than a quick look: it takes a fraction of a
/// second then.
const THOROUGH_BITS: usize = 16 << 10;

/// The most bits of the matrix times rounds of a schedule, so that following its recipe takes a
/// fraction of a second.
const ROUNDS_TIMES_BITS: usize = 60_000;

/// Returns how many rounds to spend on a matrix of so many bits.
pub(super) fn rounds(bits: usize) -> u32 {
    let rounds = ROUNDS_TIMES_BITS / bits.max(1);
    u32::try_from(rounds.clamp(1, 1000)).unwrap_or(1000)
}

impl Schedule {
    /// Returns a schedule that computes every row of a matrix of bits from its columns.
    ///
    /// # Panics
    ///
    /// If there are more than 65,535 rows, columns and partial sums.
    pub(super) fn new(matrix: &Matrix, effort: Effort) -> Self {
        let mut draft = Draft::new(matrix);
        let small = matrix.rows() * matrix.columns() <= THOROUGH_BITS;
        match effort {
            Effort::Thorough { seed, rounds } if small => search(draft, seed, rounds).finish(),
            _ => {
                draft.reuse_once();
                Placed::new(draft).finish()
            }
        }
    }
}

/// Improves a draft step by step, and then as many times takes some steps back and tries others.
fn search(mut draft: Draft, seed: u32, rounds: u32) -> Placed {
    let mut ties = Ties::new(seed);
    let mut random = Random::new(!seed);
    let mut improve = |mut draft: Draft| {
        descend(&mut draft, &mut ties);
        draft.tidy();
        let operations = Placed::new(draft.clone()).operations();
        (draft, operations)
    };
    let mut fewest;
    (draft, fewest) = improve(draft);
    for _ in 0..rounds {
        let mut other = draft.clone();
        other.disturb(&mut random);
        let (other, operations) = improve(other);
        if operations <= fewest {
            (draft, fewest) = (other, operations);
        }
    }
    Placed::new(draft)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Geometry, bitmatrix::generator, points, width::Width};

    /// Follows a schedule symbolically: every slot as the set of inputs that it is the sum of, which
    /// must still be in its place whenever it is used.
    fn outputs(schedule: &Schedule, rows: usize) -> Vec<Vec<bool>> {
        let inputs = schedule.inputs();
        let mut slots: Vec<Vec<bool>> = (0..inputs)
            .map(|i| (0..inputs).map(|j| i == j).collect())
            .collect();
        let mut outputs = vec![Vec::new(); rows];
        let mut holder_of = std::collections::HashMap::new();
        for (turn, (terms, place)) in schedule.steps().enumerate() {
            let mut sum = vec![false; inputs];
            for &term in terms {
                if let Some(step) = usize::from(term).checked_sub(inputs) {
                    let place = schedule.places[step];
                    assert_eq!(holder_of[&place], step, "overwritten before step {turn}");
                }
                for (bit, other) in sum.iter_mut().zip(&slots[usize::from(term)]) {
                    *bit ^= other;
                }
            }
            holder_of.insert(place, turn);
            match place {
                StepPlace::Output(output) => outputs[usize::from(output)] = sum.clone(),
                StepPlace::Scratch(scratch) => {
                    assert!(usize::from(scratch) < schedule.scratch_count());
                }
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
                let thorough = |seed, rounds| Effort::Thorough { seed, rounds };
                for effort in [Effort::Quick, thorough(0, 0), thorough(7, 3)] {
                    check(&matrix, &Schedule::new(&matrix, effort));
                }
            }
        }
    }

    /// XORs and copies of all geometries that points were searched for: width, k, m, and the count.
    const COUNTS: [(usize, usize, usize, usize); 53] = [
        (4, 3, 2, 25),
        (4, 4, 2, 33),
        (4, 5, 3, 58),
        (4, 6, 2, 48),
        (4, 6, 3, 66),
        (4, 6, 4, 91),
        (4, 8, 3, 93),
        (4, 8, 4, 121),
        (4, 10, 4, 153),
        (4, 10, 6, 241),
        (4, 12, 4, 190),
        (5, 3, 2, 31),
        (5, 4, 2, 40),
        (5, 5, 3, 74),
        (5, 6, 2, 60),
        (5, 6, 3, 88),
        (5, 8, 3, 118),
        (5, 8, 4, 160),
        (5, 10, 4, 200),
        (5, 12, 4, 245),
        (5, 16, 4, 357),
        (6, 3, 2, 37),
        (6, 4, 2, 50),
        (6, 5, 3, 89),
        (6, 6, 2, 74),
        (6, 6, 3, 112),
        (6, 8, 3, 151),
        (6, 8, 4, 208),
        (6, 10, 4, 281),
        (6, 12, 4, 323),
        (6, 16, 4, 456),
        (7, 3, 2, 44),
        (7, 4, 2, 58),
        (7, 5, 3, 108),
        (7, 6, 2, 85),
        (7, 6, 3, 133),
        (7, 8, 3, 181),
        (7, 8, 4, 261),
        (7, 10, 4, 350),
        (7, 12, 4, 416),
        (7, 16, 4, 590),
        (8, 3, 2, 52),
        (8, 4, 2, 70),
        (8, 5, 3, 132),
        (8, 6, 2, 105),
        (8, 6, 3, 153),
        (8, 6, 4, 247),
        (8, 8, 3, 226),
        (8, 8, 4, 354),
        (8, 10, 4, 416),
        (8, 10, 6, 686),
        (8, 12, 4, 521),
        (8, 16, 4, 770),
    ];

    #[test]
    fn schedules_over_searched_points_compute_every_row_in_as_many_operations_as_were_found() {
        assert_eq!(points::table().count(), COUNTS.len());
        for ((width, geometry), (w, k, m, operations)) in points::table().zip(COUNTS) {
            let expected = (w, Geometry::new(k, m).expect("valid"));
            assert_eq!((width.bits(), geometry), expected);
            let matrix = generator(width, geometry);
            let schedule = Schedule::new(&matrix, points::effort(width, geometry));
            check(&matrix, &schedule);
            assert_eq!(schedule.operations(), operations, "w = {w}, {geometry}");
        }
    }

    #[test]
    fn rows_without_any_bit_become_empty_steps() {
        let matrix = Matrix::from_fn(3, 4, |row, _| u8::from(row == 1));
        let schedule = Schedule::new(&matrix, Effort::Thorough { seed: 0, rounds: 5 });
        check(&matrix, &schedule);
    }
}
