//! Rows of shards that were asked for and could not be read.

use std::ops::Range;

use crate::store::Buffer;
use crate::stripes::locator::Rows;

/// Rows of a shard of which something is lost.
#[derive(Debug)]
pub(super) struct Lost<'a> {
    /// Their place among the rows that were asked for.
    pub(super) index: usize,
    pub(super) rows: &'a Rows,
    /// The bytes, right but for what is lost.
    pub(super) buffer: Buffer,
    /// The ranges of bytes in the shard that are lost.
    pub(super) ranges: Vec<Range<usize>>,
    /// True if they were read and are wrong, so that they can be repaired; else they are absent.
    pub(super) wrong: bool,
}

impl<'a> Lost<'a> {
    /// Rows that were read, and are wrong in these ranges of the shard.
    pub(super) fn wrong(
        index: usize,
        rows: &'a Rows,
        buffer: Buffer,
        ranges: Vec<Range<usize>>,
    ) -> Self {
        Self {
            index,
            rows,
            buffer,
            ranges,
            wrong: true,
        }
    }

    /// Rows that could not be read at all; `buffer` is to take them.
    pub(super) fn absent(index: usize, rows: &'a Rows, buffer: Buffer) -> Self {
        Self {
            index,
            rows,
            buffer,
            ranges: vec![rows.range.clone()],
            wrong: false,
        }
    }

    /// Takes what was decoded of `rows`.
    pub(super) fn take(&mut self, rows: &Range<usize>, decoded: Buffer) {
        let have = &self.rows.range;
        if rows == have {
            self.buffer = decoded;
            return;
        }
        let both = have.start.max(rows.start)..have.end.min(rows.end);
        self.buffer[shift(&both, have.start)].copy_from_slice(&decoded[shift(&both, rows.start)]);
    }
}

/// Returns a range relative to another offset.
pub(super) fn shift(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start - by..range.end - by
}
