//! Extent maps: which bytes of a file lie where in which stripe.
//!
//! A file's map is a list of [`Run`]s, in order, that do not overlap; between them are holes. A change computes a new
//! list for the part of the map that it touches, and is applied as the difference to the old list. So overwriting,
//! splitting, merging and punching are one thing.

use std::collections::HashMap;
use std::ops::Range;

use crate::commit::{Pipeline, Written};
use crate::format::record::Extent;
use crate::format::{Ino, Record, StripeId, key};

use super::edit::Edit;
use super::{FsError, SIZE_MAX};

/// Records that are read or deleted at once.
pub(super) const PAGE: usize = 512;

/// A run of a file's bytes inside a stripe: an extent together with its place in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run {
    /// Offset in the file.
    pub(super) start: u64,
    /// Bytes, never 0.
    pub(super) len: u64,
    /// Stripe that holds it.
    pub(super) stripe: StripeId,
    /// The offset in the stripe's payload at which it starts.
    pub(super) stripe_offset: u32,
}

impl Run {
    /// Offset in the file of the first byte behind it.
    pub(super) fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Says whether it stands for bytes that were refused.
    pub(super) fn is_refused(&self) -> bool {
        self.stripe == Extent::REFUSED
    }

    /// Returns the part of the run that lies in `range`, if any.
    pub(super) fn clip(&self, range: &Range<u64>) -> Option<Self> {
        let start = self.start.max(range.start);
        let end = self.end().min(range.end);
        if start >= end {
            return None;
        }
        let skipped = u32::try_from(start - self.start).ok()?;
        Some(Self {
            start,
            len: end - start,
            stripe: self.stripe,
            stripe_offset: self.stripe_offset + skipped,
        })
    }

    /// Says whether `next` goes on where this ends, in the file and in the stripe.
    fn continues_in(&self, next: &Self) -> bool {
        self.end() == next.start
            && self.stripe == next.stripe
            && u64::from(self.stripe_offset) + self.len == u64::from(next.stripe_offset)
    }

    pub(super) fn parse(key: &[u8], value: &[u8]) -> Result<Self, FsError> {
        let (ino, end) = key::parse_extent(key)?;
        let extent = Extent::decode(value)?;
        let corrupt = |what| FsError::Corrupt { ino: ino.0, what };
        if u64::from(extent.stripe_offset) + extent.len > u64::from(u32::MAX) {
            return Err(corrupt("an extent is longer than a stripe"));
        }
        if end > SIZE_MAX {
            return Err(corrupt("an extent ends behind the longest file"));
        }
        let start = end.checked_sub(extent.len);
        Ok(Self {
            start: start.ok_or_else(|| corrupt("an extent begins before the file"))?,
            len: extent.len,
            stripe: extent.stripe,
            stripe_offset: extent.stripe_offset,
        })
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
    pipeline: &Pipeline,
    ino: Ino,
    first_end: u64,
    limit: usize,
) -> Result<Vec<Run>, FsError> {
    // `extents_from` leaves out the offset itself, and no run ends at 0.
    let (from, end) = key::extents_from(ino, first_end.saturating_sub(1));
    let found = pipeline.scan(&from, &end, limit)?;
    let mut runs: Vec<Run> = Vec::with_capacity(found.len());
    for (key, value) in &found {
        let run = Run::parse(key, value)?;
        if runs.last().is_some_and(|last| run.start < last.end()) {
            let what = "two extents overlap";
            return Err(FsError::Corrupt { ino: ino.0, what });
        }
        runs.push(run);
    }
    Ok(runs)
}

/// Returns the first runs of a file, at most [`PAGE`], that overlap `range`.
pub(super) fn page(pipeline: &Pipeline, ino: Ino, range: &Range<u64>) -> Result<Vec<Run>, FsError> {
    page_of(pipeline, ino, range, PAGE)
}

/// Returns the first runs of a file, at most `limit`, that overlap `range`.
pub(super) fn page_of(
    pipeline: &Pipeline,
    ino: Ino,
    range: &Range<u64>,
    limit: usize,
) -> Result<Vec<Run>, FsError> {
    if range.is_empty() {
        return Ok(Vec::new());
    }
    let mut runs = ending_from(pipeline, ino, range.start.saturating_add(1), limit)?;
    runs.retain(|run| run.start < range.end);
    Ok(runs)
}

/// Returns all runs of a file that overlap `range` or touch it.
pub(super) fn around(
    pipeline: &Pipeline,
    ino: Ino,
    range: &Range<u64>,
) -> Result<Vec<Run>, FsError> {
    let mut all = Vec::new();
    // Most changes touch one run or two: read more only if there are more.
    let mut limit = 4;
    let mut first_end = range.start.max(1);
    loop {
        let runs = ending_from(pipeline, ino, first_end, limit)?;
        let complete = runs.len() < limit || runs.last().is_some_and(|run| run.start > range.end);
        all.extend(runs.into_iter().filter(|run| run.start <= range.end));
        match all.last() {
            Some(last) if !complete => first_end = last.end() + 1,
            _ => return Ok(all),
        }
        limit = PAGE;
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
pub(super) fn replace(edit: &mut Edit, ino: Ino, old: &[Run], new: &[Run]) -> i64 {
    let mut growth: HashMap<StripeId, i64> = HashMap::new();
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
    growth.values().sum()
}

/// Lengths of runs are below 2³².
fn signed(len: u64) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
