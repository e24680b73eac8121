//! Matrices over GF(2⁸): the Cauchy generator, products and inverses.

use crate::{Geometry, field};

/// A matrix of bytes, stored row after row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    entries: Vec<u8>,
}

impl Matrix {
    /// Returns the matrix whose entry at (row, column) is `entry(row, column)`.
    pub fn from_fn(rows: usize, columns: usize, mut entry: impl FnMut(usize, usize) -> u8) -> Self {
        let entries = (0..rows * columns)
            .map(|i| entry(i / columns, i % columns))
            .collect();
        Self {
            rows,
            columns,
            entries,
        }
    }

    /// Returns the m×k matrix that turns data shards into parity shards.
    ///
    /// It starts as the Cauchy matrix 1 / ((k+r) XOR c); then each column is divided by its entry
    /// in row 0, and each row by its entry in column 0. So row 0 and column 0 are ones, and every
    /// square submatrix stays invertible, because scaling rows and columns keeps that.
    #[must_use]
    pub fn cauchy(geometry: Geometry) -> Self {
        let k = geometry.data_shards();
        let raw = |r: usize, c: usize| field::inv(index_byte((k + r) ^ c));
        let by_column = |r, c| field::div(raw(r, c), raw(0, c));
        Self::from_fn(geometry.parity_shards(), k, |r, c| {
            field::div(by_column(r, c), by_column(r, 0))
        })
    }

    /// Returns how many rows there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns how many columns there are.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the entry at (row, column).
    ///
    /// # Panics
    ///
    /// If either lies outside the matrix.
    #[must_use]
    pub fn at(&self, row: usize, column: usize) -> u8 {
        self.row(row)[column]
    }

    /// Returns one row.
    ///
    /// # Panics
    ///
    /// If the row lies outside the matrix.
    #[must_use]
    pub fn row(&self, row: usize) -> &[u8] {
        &self.entries[row * self.columns..][..self.columns]
    }

    fn row_mut(&mut self, row: usize) -> &mut [u8] {
        &mut self.entries[row * self.columns..][..self.columns]
    }

    /// Returns the matrix of the entries where the given rows and columns cross, in that order.
    ///
    /// # Panics
    ///
    /// If one of them lies outside the matrix.
    #[must_use]
    pub fn select(&self, rows: &[usize], columns: &[usize]) -> Self {
        Self::from_fn(rows.len(), columns.len(), |r, c| {
            self.at(rows[r], columns[c])
        })
    }

    /// Returns the product `self * right`.
    ///
    /// # Panics
    ///
    /// If `right` has not as many rows as `self` has columns.
    #[must_use]
    pub fn times(&self, right: &Self) -> Self {
        assert_eq!(self.columns, right.rows);
        Self::from_fn(self.rows, right.columns, |r, c| {
            let terms = self.row(r).iter().enumerate();
            terms.fold(0, |sum, (i, &a)| sum ^ field::mul(a, right.at(i, c)))
        })
    }

    /// Returns the inverse, or `None` if there is none.
    ///
    /// # Panics
    ///
    /// If the matrix is not square.
    #[must_use]
    pub fn inverse(&self) -> Option<Self> {
        assert_eq!(self.rows, self.columns);
        let mut left = self.clone();
        let mut right = Self::from_fn(self.rows, self.columns, |r, c| u8::from(r == c));
        for pivot in 0..self.rows {
            let usable = (pivot..self.rows).find(|&row| left.at(row, pivot) != 0)?;
            left.swap_rows(pivot, usable);
            right.swap_rows(pivot, usable);
            let scale = field::inv(left.at(pivot, pivot));
            left.scale_row(pivot, scale);
            right.scale_row(pivot, scale);
            for row in (0..self.rows).filter(|&row| row != pivot) {
                let factor = left.at(row, pivot);
                left.add_row(row, factor, pivot);
                right.add_row(row, factor, pivot);
            }
        }
        Some(right)
    }

    fn swap_rows(&mut self, a: usize, b: usize) {
        for column in 0..self.columns {
            self.entries
                .swap(a * self.columns + column, b * self.columns + column);
        }
    }

    fn scale_row(&mut self, row: usize, factor: u8) {
        for entry in self.row_mut(row) {
            *entry = field::mul(*entry, factor);
        }
    }

    /// Adds `factor` times row `source` to row `target`.
    fn add_row(&mut self, target: usize, factor: u8, source: usize) {
        for column in 0..self.columns {
            let term = field::mul(factor, self.at(source, column));
            self.row_mut(target)[column] ^= term;
        }
    }
}

/// Returns a point of the Cauchy construction as a field element.
fn index_byte(point: usize) -> u8 {
    u8::try_from(point).expect("k + m <= 255, so every point and every XOR of two fits a byte")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(data: usize, parity: usize) -> Geometry {
        Geometry::new(data, parity).expect("valid")
    }

    #[test]
    fn first_row_and_first_column_are_ones_for_every_geometry() {
        for total in 2..=255 {
            for parity in [1, 2, 3, 4, 8, 16, total / 2, total - 1] {
                if parity == 0 || parity >= total {
                    continue;
                }
                let matrix = Matrix::cauchy(geometry(total - parity, parity));
                assert!(matrix.row(0).iter().all(|&c| c == 1), "{total} {parity}");
                assert!(
                    (0..parity).all(|r| matrix.at(r, 0) == 1),
                    "{total} {parity}"
                );
            }
        }
    }

    #[test]
    fn the_matrix_of_4_plus_2_is_the_one_worked_out_by_hand() {
        let matrix = Matrix::cauchy(geometry(4, 2));
        assert_eq!(matrix.row(0), [1, 1, 1, 1]);
        // Row 1, before its scaling, is (4^c)/(5^c): 4/5, 5/4, 6/7, 7/6.
        let ratio = |c: u8| field::div(4 ^ c, 5 ^ c);
        let expected: Vec<u8> = (0..4).map(|c| field::div(ratio(c), ratio(0))).collect();
        assert_eq!(matrix.row(1), expected);
    }

    #[test]
    fn a_matrix_times_its_inverse_is_the_identity() {
        for size in 1..=20 {
            let square = Matrix::cauchy(geometry(size, size));
            let inverse = square.inverse().expect("Cauchy matrices invert");
            let identity = Matrix::from_fn(size, size, |r, c| u8::from(r == c));
            assert_eq!(square.times(&inverse), identity, "{size}");
        }
    }

    #[test]
    fn a_matrix_with_two_equal_rows_has_no_inverse() {
        assert_eq!(
            Matrix::from_fn(3, 3, |r, c| index_byte((r / 2 + 1) * (c + 1))).inverse(),
            None
        );
    }

    #[test]
    fn rows_are_exchanged_where_a_pivot_is_zero() {
        let swap = Matrix::from_fn(2, 2, |r, c| u8::from(r != c));
        assert_eq!(swap.inverse(), Some(swap));
    }
}
