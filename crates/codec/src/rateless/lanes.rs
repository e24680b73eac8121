//! Elimination of the rows of several small messages at once, one to a lane of a register.
//!
//! A message of up to 32 source packets has so few rows that finding a pivot takes longer than adding it: each step waits
//! for the one before. Lanes take these steps together. They hold columns, not rows. A column of up to 64 rows is one word,
//! and its lowest bit that no pivot has yet is the next pivot. Each lane has its own, and no step branches.

use std::hint::black_box;

use super::{RandomCode, rows::BitRows};

/// Messages side by side: the words of a wide register.
pub(super) const LANES: usize = 8;

/// The most columns, which are source packets.
const COLUMNS: usize = 32;

/// The most rows, which are packets.
const ROWS: usize = 2 * COLUMNS;

/// One word of each lane.
type Words = [u64; LANES];

/// Small matrices of bits side by side, as a random code has them.
#[derive(Debug, Clone)]
pub struct BitLanes {
    columns: usize,
    /// First the rows: in word r row r in the lower half, and row r + 32 in the upper one. From these columns are made, of
    /// which word c has bit r for row r, and then rows again.
    words: [Words; COLUMNS],
    /// The row of the pivot of each column, as a bit; 0 if it has none.
    pivots: [Words; COLUMNS],
}

impl BitLanes {
    /// Returns lanes of matrices of so many rows and columns, if they are small enough.
    pub(super) fn new(rows: usize, columns: usize) -> Option<Self> {
        let is_small = rows <= ROWS && columns <= COLUMNS;
        is_small.then_some(Self {
            columns,
            words: [[0; LANES]; COLUMNS],
            pivots: [[0; LANES]; COLUMNS],
        })
    }

    /// Replaces the matrix of a lane by the rows of packets with these numbers.
    pub(super) fn set(&mut self, lane: usize, code: &RandomCode, numbers: &[u64]) {
        let row = |number: Option<&u64>| {
            let mut row = [0];
            if let Some(&number) = number {
                code.write_row(number, &mut row);
            }
            row[0]
        };
        for (index, words) in self.words.iter_mut().enumerate() {
            words[lane] = row(numbers.get(index)) | row(numbers.get(index + COLUMNS)) << COLUMNS;
        }
    }

    /// Returns the rank of a lane's matrix, after elimination.
    pub(super) fn rank(&self, lane: usize) -> usize {
        let pivots = self.pivots.iter().take(self.columns);
        pivots.filter(|pivots| pivots[lane] != 0).count()
    }

    /// Writes the inverse of a lane's matrix, whose rank is full, and the rows that its columns stand for.
    pub(super) fn write_inverse(&self, lane: usize, inverse: &mut BitRows, order: &mut [usize]) {
        let pivots = self.pivots.iter().take(self.columns).enumerate();
        for ((column, pivots), order) in pivots.zip(order) {
            let row = pivots[lane].trailing_zeros() as usize;
            let both = self.words[row % COLUMNS][lane];
            let half = both >> (row / COLUMNS * COLUMNS) & u64::from(u32::MAX);
            inverse.row_mut(column)[0] = half;
            *order = row;
        }
    }
}

/// Eliminates the matrices of all lanes in place, as Gauss and Jordan do. Then a column holds that of the inverse.
#[expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]
#[inline(always)]
pub(crate) fn eliminate_lanes(lanes: &mut BitLanes) {
    transpose(&mut lanes.words);
    let columns = &mut lanes.words[..lanes.columns];
    let mut used = [0; LANES];
    for column in 0..columns.len() {
        let own = columns[column];
        let mut pivot = [0; LANES];
        let mut added = [0; LANES];
        for lane in 0..LANES {
            let free = own[lane] & !used[lane];
            pivot[lane] = free & free.wrapping_neg();
            used[lane] |= pivot[lane];
            added[lane] = own[lane] ^ pivot[lane];
        }
        for other in &mut *columns {
            // The lanes of a column are to fill a register. Without this, the compiler gathered one lane of eight columns,
            // which takes more than twice as long.
            let other = black_box(other);
            for lane in 0..LANES {
                // All bits if the row of the pivot has this column, none otherwise.
                let is_set = u64::from(other[lane] & pivot[lane] != 0).wrapping_neg();
                other[lane] ^= added[lane] & is_set;
            }
        }
        // Its storage is free once it is a unit vector. It takes the column of the inverse that began as that vector.
        columns[column] = own;
        lanes.pivots[column] = pivot;
    }
    transpose(&mut lanes.words);
}

/// Transposes the matrix in the lower halves of the words of each lane, and that in the upper halves.
#[expect(
    clippy::needless_range_loop,
    reason = "two rows are changed at once, lane by lane"
)]
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
fn transpose(words: &mut [Words; COLUMNS]) {
    // Swaps ever smaller squares off the diagonal. The mask has the lower columns of each pair of squares.
    let mut mask = 0x0000_FFFF_0000_FFFF_u64;
    let mut size = COLUMNS / 2;
    while size > 0 {
        for low in (0..COLUMNS).filter(|row| row & size == 0) {
            for lane in 0..LANES {
                let (upper, lower) = (words[low][lane], words[low + size][lane]);
                let swapped = (upper >> size ^ lower) & mask;
                words[low][lane] = upper ^ swapped << size;
                words[low + size][lane] = lower ^ swapped;
            }
        }
        size /= 2;
        mask ^= mask << size;
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    const SEED: u64 = 0x1A9E_5EED;

    #[test]
    fn transposing_moves_every_bit_of_both_halves_of_every_lane() {
        let mut rng = StdRng::seed_from_u64(SEED);
        let mut words = [[0; LANES]; COLUMNS];
        words.as_flattened_mut().fill_with(|| rng.random());
        let before = words;
        transpose(&mut words);
        for (row, lanes) in before.iter().enumerate() {
            for (lane, word) in lanes.iter().enumerate() {
                for bit in 0..64 {
                    let (half, column) = (bit / COLUMNS * COLUMNS, bit % COLUMNS);
                    let found = words[column][lane] >> (half + row) & 1;
                    assert_eq!(found, word >> bit & 1, "seed {SEED:#x}: {row} {lane} {bit}");
                }
            }
        }
    }

    #[test]
    fn larger_matrices_have_no_lanes() {
        assert!(BitLanes::new(ROWS, COLUMNS).is_some());
        assert!(BitLanes::new(ROWS + 1, COLUMNS).is_none());
        assert!(BitLanes::new(ROWS, COLUMNS + 1).is_none());
    }
}
