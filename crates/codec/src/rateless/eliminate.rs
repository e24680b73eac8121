//! Elimination of the rows alone: Gauss and Jordan in place, by the four Russians' tables.
//!
//! The matrix G has a row for each packet. Elimination applies row operations E until E·G is the unit matrix. Once
//! column c of G is a unit vector, its storage is free. It takes the column of E that belongs to the row that was the
//! pivot of c, which began as the same unit vector. So the inverse grows where G was, and takes no memory of its own.

use std::ops::Range;

use super::rows::{BitRows, PADDING_WORDS};

/// Columns that one pass over the rows eliminates.
const BLOCK: usize = 16;

/// Columns of a block whose pivots one table adds up.
const TABLE_BITS: usize = 4;

/// Tables of a block.
const TABLES: usize = BLOCK / TABLE_BITS;

/// Entries of a table: all sums of the pivot rows of its columns.
const ENTRIES: usize = 1 << TABLE_BITS;

/// Words of a long row that are summed at once.
const WIDE: usize = 16;

// No block crosses the end of a word.
const _: () = assert!(64 % BLOCK == 0 && BLOCK <= 16);

/// Eliminates the rows in place and returns their rank. `order` begins as any labels, one to a row, and moves with the rows.
///
/// If the rank is the number of columns, row c of the result is the combination of packets that gives source packet c.
/// This holds for each c below the rank, and column p stands for the packet with label `order[p]`. Otherwise the content is
/// meaningless.
///
/// # Panics
///
/// If there are not as many labels as rows.
#[expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]
#[inline(always)]
pub(crate) fn eliminate(rows: &mut BitRows, order: &mut [usize]) -> usize {
    assert_eq!(rows.rows(), order.len(), "one label to a row");
    if rows.row_words() == 1 {
        let columns = rows.columns();
        eliminate_words(rows.words_mut(), columns, order)
    } else {
        eliminate_blocks(rows, order)
    }
}

/// Eliminates rows of one word each, column by column.
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
fn eliminate_words(rows: &mut [u64], columns: usize, order: &mut [usize]) -> usize {
    let mut rank = 0;
    for column in 0..columns {
        let Some(found) = rows[rank..].iter().position(|row| row >> column & 1 == 1) else {
            continue;
        };
        rows.swap(rank, rank + found);
        order.swap(rank, rank + found);
        let pivot = rows[rank];
        // The bit of the column stays where it is set: there it becomes the one of the inverse.
        let added = pivot & !(1 << column);
        for row in &mut *rows {
            *row ^= added & (*row >> column & 1).wrapping_neg();
        }
        rows[rank] = pivot;
        rank += 1;
    }
    rank
}

/// The pivots of one block of columns.
#[derive(Default)]
struct Block {
    /// The columns that have a pivot, as bits.
    found: u16,
    /// The row of the pivot of each of them.
    rows: [usize; BLOCK],
    /// The content of these rows in the block.
    bits: [u16; BLOCK],
}

impl Block {
    /// Returns the bits of a row whose sum is its entry in `column` once it is reduced by the pivots found.
    fn reduced(&self, column: usize) -> u16 {
        let mut bits = 1 << column;
        for other in 0..BLOCK {
            if self.found >> other & 1 == 1 && self.bits[other] >> column & 1 == 1 {
                bits |= 1 << other;
            }
        }
        bits
    }
}

/// Eliminates rows of several words, a block of columns at a time.
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
fn eliminate_blocks(rows: &mut BitRows, order: &mut [usize]) -> usize {
    let mut tables = [(); TABLES].map(|()| BitRows::new(ENTRIES, rows.columns()));
    let is_wide = rows.row_words().is_multiple_of(WIDE);
    let mut rank = 0;
    for first in (0..rows.columns()).step_by(BLOCK) {
        let block = find_pivots(rows, order, first, rank);
        let own = rank..rank + block.found.count_ones() as usize;
        rank = own.end;
        if block.found == 0 {
            continue;
        }
        for (index, table) in tables.iter_mut().enumerate() {
            fill_table(table, rows, (first, &block), index * TABLE_BITS);
        }
        for others in [0..own.start, own.end..rows.rows()] {
            if is_wide {
                add_entries::<WIDE>(rows, &tables, (first, block.found), others);
            } else {
                add_entries::<PADDING_WORDS>(rows, &tables, (first, block.found), others);
            }
        }
    }
    rank
}

/// Returns the bits of a row in the block of columns from `first` on.
fn bits_at(row: &[u64], first: usize) -> u16 {
    let [low, high, ..] = (row[first / 64] >> (first % 64)).to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// Finds the pivots of a block among the rows from `rank` on, moves them to the front of these and reduces them by each
/// other. All other rows stay as they are.
fn find_pivots(rows: &mut BitRows, order: &mut [usize], first: usize, rank: usize) -> Block {
    let mut block = Block::default();
    let mut next = rank;
    for column in 0..BLOCK.min(rows.columns() - first) {
        let reduced = block.reduced(column);
        let is_pivot =
            |row: &usize| (bits_at(rows.row(*row), first) & reduced).count_ones() % 2 == 1;
        let Some(pivot) = (next..rows.rows()).find(is_pivot) else {
            continue;
        };
        swap_rows(rows, pivot, next);
        order.swap(pivot, next);
        let coefficients = bits_at(rows.row(next), first) & block.found;
        clear(rows.row_mut(next), first, coefficients);
        for other in 0..BLOCK {
            if coefficients >> other & 1 == 1 {
                add_row(rows, block.rows[other], next);
            }
        }
        for other in 0..BLOCK {
            let has_column = block.bits[other] >> column & 1 == 1;
            if block.found >> other & 1 == 1 && has_column {
                clear(rows.row_mut(block.rows[other]), first, 1 << column);
                add_row(rows, next, block.rows[other]);
            }
        }
        block.rows[column] = next;
        block.found |= 1 << column;
        for other in 0..BLOCK {
            if block.found >> other & 1 == 1 {
                block.bits[other] = bits_at(rows.row(block.rows[other]), first);
            }
        }
        next += 1;
    }
    block
}

/// Clears the columns of a block that `bits` names.
fn clear(row: &mut [u64], first: usize, bits: u16) {
    row[first / 64] &= !(u64::from(bits) << (first % 64));
}

fn swap_rows(rows: &mut BitRows, one: usize, other: usize) {
    if one != other {
        let (low, high) = (one.min(other), one.max(other));
        let row_words = rows.row_words();
        let (head, tail) = rows.words_mut().split_at_mut(high * row_words);
        head[low * row_words..][..row_words].swap_with_slice(&mut tail[..row_words]);
    }
}

/// Adds row `from` to another row.
fn add_row(rows: &mut BitRows, from: usize, to: usize) {
    let (low, high) = (from.min(to), from.max(to));
    let row_words = rows.row_words();
    let (head, tail) = rows.words_mut().split_at_mut(high * row_words);
    let (low, high) = (
        &mut head[low * row_words..][..row_words],
        &mut tail[..row_words],
    );
    let (source, target) = if from < to { (low, high) } else { (high, low) };
    for (target, source) in target.iter_mut().zip(source) {
        *target ^= *source;
    }
}

/// Fills a table with all sums of the pivot rows of some columns of a block. A column without a pivot adds nothing.
///
/// The bit of a pivot's own column is inverted. So the sum that a row takes also clears what picked it.
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
fn fill_table(table: &mut BitRows, rows: &BitRows, (first, block): (usize, &Block), start: usize) {
    let row_words = table.row_words();
    let mut filled = row_words;
    for column in start..start + TABLE_BITS {
        let (known, new) = table.words_mut().split_at_mut(filled);
        let new = &mut new[..filled];
        new.copy_from_slice(known);
        if block.found >> column & 1 == 1 {
            let pivot = rows.row(block.rows[column]);
            for new in new.chunks_exact_mut(row_words) {
                for (new, pivot) in new.iter_mut().zip(pivot) {
                    *new ^= pivot;
                }
                new[first / 64] ^= 1 << (first % 64 + column);
            }
        }
        filled *= 2;
    }
}

/// Adds to each row of a range the pivots that its bits in the block call for, `W` words at a time.
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
fn add_entries<const W: usize>(
    rows: &mut BitRows,
    tables: &[BitRows; TABLES],
    (first, found): (usize, u16),
    range: Range<usize>,
) {
    let row_words = rows.row_words();
    let words = &mut rows.words_mut()[range.start * row_words..range.end * row_words];
    for row in words.chunks_exact_mut(row_words) {
        let bits = usize::from(bits_at(row, first) & found);
        let (chunks, _) = row.as_chunks_mut::<W>();
        for (index, chunk) in chunks.iter_mut().enumerate() {
            // Summed apart, so that the compiler need not ask whether tables and rows overlap.
            let mut sum = *chunk;
            for (number, table) in tables.iter().enumerate() {
                let entry = table.row(bits >> (number * TABLE_BITS) & (ENTRIES - 1));
                let (entry, _) = entry.as_chunks::<W>();
                for (word, added) in sum.iter_mut().zip(&entry[index]) {
                    *word ^= added;
                }
            }
            *chunk = sum;
        }
    }
}
