//! Data and holes of files.

use std::ops::Range;

use crate::format::Ino;
use crate::transaction::Transactions;

use super::error::FsError;
use super::extents::{self, PAGE};

/// The data of a file that is not in extents.
pub(super) struct DataMap {
    pub(super) ino: Ino,
    /// Bytes in its record.
    pub(super) inline_len: u64,
    /// The ranges of failed writeback, in order.
    pub(super) failed: Vec<Range<u64>>,
}

/// Returns where the next data begins, at an offset or behind it.
pub(super) fn next_data(
    transactions: &Transactions,
    map: &DataMap,
    offset: u64,
) -> Result<Option<u64>, FsError> {
    if offset < map.inline_len {
        return Ok(Some(offset));
    }
    let runs = extents::page_of(transactions, map.ino, &(offset..u64::MAX), 1)?;
    let starts = runs.first().map(|run| run.start).into_iter();
    let starts = starts.chain(map.failed.first().map(|part| part.start));
    Ok(starts.min().map(|start| start.max(offset)))
}

/// Returns where the next hole begins, at an offset or behind it. Every file ends in a hole.
pub(super) fn next_hole(
    transactions: &Transactions,
    map: &DataMap,
    offset: u64,
) -> Result<u64, FsError> {
    let mut at = offset.max(map.inline_len);
    loop {
        at = end_of_runs(transactions, map.ino, at)?;
        match map.failed.iter().find(|part| part.contains(&at)) {
            Some(part) => at = part.end,
            None => return Ok(at),
        }
    }
}

/// Returns where the runs end that a file has from an offset on, one right behind the other.
fn end_of_runs(transactions: &Transactions, ino: Ino, offset: u64) -> Result<u64, FsError> {
    let mut at = offset;
    loop {
        let page = extents::page(transactions, ino, &(at..u64::MAX))?;
        for run in &page {
            if run.start > at {
                return Ok(at);
            }
            at = run.end();
        }
        if page.len() < PAGE {
            return Ok(at);
        }
    }
}
