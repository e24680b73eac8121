//! Matrices of bits, packed in words.

/// The number of words that longer rows are padded to a multiple of, so that they fill whole registers.
pub(super) const PADDING_WORDS: usize = 4;

/// A matrix of bits. Column c of a row is bit c mod 64 of its word c / 64, the lowest bit first. The bits behind the
/// last column are zero. Rows of up to 64 columns take one word each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BitRows {
    columns: usize,
    row_words: usize,
    words: Vec<u64>,
}

impl BitRows {
    /// Returns the matrix of zeros.
    #[must_use]
    pub fn new(rows: usize, columns: usize) -> Self {
        let row_words = match columns.div_ceil(64) {
            0 | 1 => 1,
            words => words.next_multiple_of(PADDING_WORDS),
        };
        Self {
            columns,
            row_words,
            words: vec![0; rows * row_words],
        }
    }

    /// Returns how many rows there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.words.len() / self.row_words
    }

    /// Returns how many columns there are.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns how many words each row takes.
    pub(super) fn row_words(&self) -> usize {
        self.row_words
    }

    /// Returns the words of a row.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    #[must_use]
    pub fn row(&self, row: usize) -> &[u64] {
        &self.words[row * self.row_words..][..self.row_words]
    }

    /// Returns the words of a row, to be changed. Bits behind the last column must stay zero.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn row_mut(&mut self, row: usize) -> &mut [u64] {
        &mut self.words[row * self.row_words..][..self.row_words]
    }

    /// Returns the words of all rows, row after row.
    pub(super) fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }

    /// Returns the bit at (row, column).
    ///
    /// # Panics
    ///
    /// If either lies outside the matrix.
    #[must_use]
    pub fn at(&self, row: usize, column: usize) -> bool {
        assert!(column < self.columns, "column {column} of {}", self.columns);
        self.row(row)[column / 64] >> (column % 64) & 1 == 1
    }

    /// Returns the only column of a row whose bit is set, if there is exactly one.
    pub(super) fn only_column(&self, row: usize) -> Option<usize> {
        let words = self.row(row).iter().enumerate();
        let mut set = words.filter(|(_, word)| **word != 0);
        match (set.next(), set.next()) {
            (Some((index, word)), None) if word.is_power_of_two() => {
                Some(64 * index + word.trailing_zeros() as usize)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_with_one_bit_names_its_column_and_no_other_row_does() {
        for columns in [2, 63, 64, 65, 300] {
            for column in 0..columns {
                let mut rows = BitRows::new(3, columns);
                rows.row_mut(1)[column / 64] |= 1 << (column % 64);
                rows.row_mut(2).fill(u64::MAX);
                assert!(rows.at(1, column), "{columns} {column}");
                let found = [0, 1, 2].map(|row| rows.only_column(row));
                assert_eq!(found, [None, Some(column), None], "{columns} {column}");
            }
        }
    }
}
