//! Extent maps: which bytes of a file lie where in which stripe.
//!
//! A file's map is a list of [`Run`]s, in order, that do not overlap; between them are holes. A change computes a new
//! list for the part of the map that it touches, and is applied as the difference to the old list. So overwriting,
//! splitting, merging and punching are one thing.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::format::record::{Extent, Inode};
use crate::format::{Ino, StripeId, key};
use crate::transaction::extent_cache::{MAX_CHANGED_BYTES, MAX_FILLED_RUNS};
use crate::transaction::{Transactions, Written};

use super::edit::Edit;
use super::error::FsError;
use super::run::{self, Run};

/// Records that are read or deleted at once.
pub(super) const PAGE: usize = 512;

/// The bytes by which the extents of a file grow, or shrink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the record of the inode counts the bytes of its extents"]
pub(super) struct Growth {
    /// Of all of them.
    allocated: i64,
    /// Of those that are unwritten.
    unwritten: i64,
}

impl Growth {
    /// Counts the growth in the record of the file.
    pub(super) fn count_in(self, inode: &mut Inode) {
        inode.allocated_bytes = inode.allocated_bytes.saturating_add_signed(self.allocated);
        let unwritten = inode.unwritten_bytes.saturating_add_signed(self.unwritten);
        // In a damaged record the parts may be more than the whole.
        inode.unwritten_bytes = unwritten.min(inode.allocated_bytes);
    }
}

/// Returns where the bytes from `start` on were placed, as runs.
pub(super) fn placed_at(start: u64, written: &Written) -> Vec<Run> {
    let mut next = start;
    let mut runs = Vec::with_capacity(written.placed.len());
    for piece in written.placed.iter().filter(|piece| piece.len > 0) {
        let len = u64::from(piece.len);
        runs.push(Run {
            start: next,
            len,
            stripe: piece.stripe,
            stripe_offset: piece.offset,
        });
        next += len;
    }
    runs
}

/// Returns the first runs of a file, at most `limit`, that end at `first_end` or later.
fn ending_from(
    transactions: &Transactions,
    ino: Ino,
    first_end: u64,
    limit: usize,
) -> Result<Vec<Run>, FsError> {
    // `extents_from` leaves out the offset itself, and no run ends at 0.
    let (from, end) = key::extents_from(ino, first_end.saturating_sub(1));
    let found = transactions.scan(&from, &end, limit)?;
    let mut runs: Vec<Run> = Vec::with_capacity(found.len());
    for (key, value) in &found {
        let run = run::parse(key, value)?;
        if runs.last().is_some_and(|last| run.start < last.end()) {
            let what = "two extents overlap";
            return Err(FsError::Corrupt { ino: ino.0, what });
        }
        runs.push(run);
    }
    Ok(runs)
}

/// Returns the first runs of a file, at most [`PAGE`], that overlap `range`.
pub(super) fn page(
    transactions: &Transactions,
    ino: Ino,
    range: &Range<u64>,
) -> Result<Vec<Run>, FsError> {
    page_of(transactions, ino, range, PAGE)
}

/// Returns the first runs of a file, at most `limit`, that overlap `range`.
pub(super) fn page_of(
    transactions: &Transactions,
    ino: Ino,
    range: &Range<u64>,
    limit: usize,
) -> Result<Vec<Run>, FsError> {
    if range.is_empty() {
        return Ok(Vec::new());
    }
    let mut runs = ending_from(transactions, ino, range.start.saturating_add(1), limit)?;
    runs.retain(|run| run.start < range.end);
    Ok(runs)
}

/// Returns the parts of the runs of a file that lie in `range`. The caller holds the lock of the file.
pub(super) fn within(
    transactions: &Transactions,
    ino: Ino,
    range: &Range<u64>,
) -> Result<Vec<Run>, FsError> {
    let mut found: Vec<Run> = Vec::new();
    let load = |range: &Range<u64>| overlapping(transactions, ino, range);
    transactions.visit_runs(ino, range, load, |part, runs| {
        for run in runs.iter().filter_map(|run| run.clip(part)) {
            match found.last_mut() {
                Some(last) if last.continues_in(&run) => last.len += run.len,
                _ => found.push(run),
            }
        }
    })?;
    Ok(found)
}

/// Returns all runs of a file that overlap `range`, from the records.
fn overlapping(
    transactions: &Transactions,
    ino: Ino,
    range: &Range<u64>,
) -> Result<Vec<Run>, FsError> {
    let mut runs = recorded_around(transactions, ino, range, usize::MAX)?;
    if do_overlap(&runs) {
        let what = "two extents overlap";
        return Err(FsError::Corrupt { ino: ino.0, what });
    }
    runs.retain(|run| run.overlaps(range));
    Ok(runs)
}

/// Returns whether two neighbours of a list in order overlap.
fn do_overlap(runs: &[Run]) -> bool {
    runs.windows(2).any(|pair| pair[1].start < pair[0].end())
}

/// Returns all runs of a file that overlap `range` or touch it. The caller holds the lock of the file.
pub(super) fn around(
    transactions: &Transactions,
    ino: Ino,
    range: &Range<u64>,
) -> Result<Vec<Run>, FsError> {
    let load = |bounds: &Range<u64>| {
        let mut runs = recorded_around(transactions, ino, bounds, MAX_FILLED_RUNS)?;
        // Damage elsewhere in the page must not keep this part of it from being changed.
        if runs.len() > MAX_FILLED_RUNS || do_overlap(&runs) {
            return Ok(None);
        }
        runs.retain(|run| run.overlaps(bounds));
        Ok::<_, FsError>(Some(runs))
    };
    let mut known = None;
    if range.end - range.start <= MAX_CHANGED_BYTES {
        let touched = range.start.saturating_sub(1)..range.end.saturating_add(1);
        known = transactions.runs_for_change(ino, &touched, load)?;
    }
    match known {
        Some(runs) => Ok(runs),
        None => recorded_around(transactions, ino, range, usize::MAX),
    }
}

/// Returns what [`around`] returns, from the records. Stops when there are more than `most`.
fn recorded_around(
    transactions: &Transactions,
    ino: Ino,
    range: &Range<u64>,
    most: usize,
) -> Result<Vec<Run>, FsError> {
    let mut all = Vec::new();
    // Most changes touch one run or two: read more only if there are more.
    let mut limit = 4;
    let mut first_end = range.start.max(1);
    loop {
        let runs = ending_from(transactions, ino, first_end, limit)?;
        let complete = runs.len() < limit || runs.last().is_some_and(|run| run.start > range.end);
        all.extend(runs.into_iter().filter(|run| run.start <= range.end));
        match all.last() {
            Some(last) if !complete && all.len() <= most => first_end = last.end() + 1,
            _ => return Ok(all),
        }
        limit = (limit * 8).min(PAGE);
    }
}

/// Returns `old` with the bytes of `range` replaced by `new`, and neighbours that fit merged.
///
/// `new` lies within `range`; what it leaves out becomes a hole.
pub(super) fn splice(old: &[Run], range: &Range<u64>, new: &[Run]) -> Vec<Run> {
    let before = 0..range.start;
    let after = range.end..u64::MAX;
    let kept_before = old.iter().filter_map(|run| run.clip(&before));
    let kept_after = old.iter().filter_map(|run| run.clip(&after));
    let mut spliced: Vec<Run> = Vec::with_capacity(old.len() + new.len() + 1);
    for run in kept_before.chain(new.iter().copied()).chain(kept_after) {
        match spliced.last_mut() {
            Some(last) if last.continues_in(&run) => last.len += run.len,
            _ => spliced.push(run),
        }
    }
    spliced
}

/// Puts the difference between two lists of runs of `ino` into `edit`, with a mark for each stripe that loses bytes.
/// Returns by how many bytes the file's storage grows (or shrinks).
pub(super) fn replace(edit: &mut Edit, ino: Ino, old: &[Run], new: &[Run]) -> Growth {
    let mut growth: BTreeMap<StripeId, i64> = BTreeMap::new();
    for run in old {
        *growth.entry(run.stripe).or_default() -= signed(run.len);
        if new.binary_search(run).is_err() {
            edit.delete_run(ino, run);
        }
    }
    // After the deletions: a run that became longer or shorter at its start keeps its key.
    for run in new {
        *growth.entry(run.stripe).or_default() += signed(run.len);
        if old.binary_search(run).is_err() {
            edit.put_run(ino, run);
        }
    }
    for (stripe, _) in growth.iter().filter(|(_, bytes)| **bytes < 0) {
        edit.put_perhaps_dead(*stripe);
    }
    Growth {
        allocated: growth.values().sum(),
        unwritten: growth.get(&Extent::UNWRITTEN).copied().unwrap_or(0),
    }
}

/// Lengths of runs are below 2³².
fn signed(len: u64) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
