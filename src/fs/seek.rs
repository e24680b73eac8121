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
    let first = first_written(transactions, map.ino, offset)?;
    let starts = first.into_iter();
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

/// Returns where the first run with data begins that ends behind an offset. Unwritten runs have none, as on ext4.
fn first_written(
    transactions: &Transactions,
    ino: Ino,
    offset: u64,
) -> Result<Option<u64>, FsError> {
    let (mut from, mut limit) = (offset, 1);
    loop {
        let runs = extents::page_of(transactions, ino, &(from..u64::MAX), limit)?;
        if let Some(run) = runs.iter().find(|run| !run.is_unwritten()) {
            return Ok(Some(run.start));
        }
        match runs.last() {
            Some(last) if runs.len() == limit => from = last.end(),
            _ => return Ok(None),
        }
        limit = PAGE;
    }
}

/// Returns where the runs with data end that a file has from an offset on, one right behind the other.
fn end_of_runs(transactions: &Transactions, ino: Ino, offset: u64) -> Result<u64, FsError> {
    let mut at = offset;
    loop {
        let page = extents::page(transactions, ino, &(at..u64::MAX))?;
        for run in &page {
            if run.start > at || run.is_unwritten() {
                return Ok(at);
            }
            at = run.end();
        }
        if page.len() < PAGE {
            return Ok(at);
        }
    }
}
