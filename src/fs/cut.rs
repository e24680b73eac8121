//! Taking extents out of files, in batches of bounded size.

use std::ops::Range;

use crate::format::Ino;
use crate::format::record::{Extent, Inode};
use crate::transaction::Transactions;

use super::edit::Edit;
use super::error::FsError;
use super::extents::{self, PAGE};
use super::inodes::Inodes;
use super::locks::ExclusiveLock;
use super::run::Run;

/// The progress of taking out the extents of a range in batches.
///
/// Each batch begins behind the last one. A search from the start would pass over all deletions before it that the index
/// lacks. A last search from the start finds what came meanwhile.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// The end of the last batch, or 0.
    reached: u64,
}

impl Sweep {
    /// Returns the part of `range` in which the next batch is searched.
    pub(super) fn rest_of(&self, range: &Range<u64>) -> Range<u64> {
        range.start.max(self.reached)..range.end
    }

    /// Notes the runs of a batch, which has at most [`PAGE`]. Returns whether none is left in `range`.
    pub(super) fn note(&mut self, range: &Range<u64>, runs: &[Run]) -> bool {
        let was_from_start = self.reached <= range.start;
        let is_full = runs.len() >= PAGE;
        self.reached = runs.last().filter(|_| is_full).map_or(0, Run::end);
        was_from_start && !is_full
    }
}

/// Removes a bounded part of the extents behind the end of a file with a mark. Returns whether none is left, and removes
/// the mark then.
pub(super) fn cut_behind_end(
    inodes: &Inodes,
    transactions: &Transactions,
    lock: &ExclusiveLock<'_>,
    (ino, mut inode): (Ino, Inode),
    sweep: &mut Sweep,
) -> Result<bool, FsError> {
    let (range, rest) = (behind(inode.size), Rest::of(&inode));
    if !cut_part(
        inodes,
        transactions,
        lock,
        (ino, &mut inode),
        (&range, rest),
        sweep,
    )? {
        return Ok(false);
    }
    // An inode without a name keeps its mark until it is removed.
    if inode.links > 0 {
        let mut edit = Edit::default();
        edit.delete_orphan(ino);
        inodes.apply(edit)?;
    }
    Ok(true)
}

/// The extents behind the end of a file that go with a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// All of them.
    All,
    /// Those with data.
    Written,
}

impl Rest {
    /// Returns what goes when a cut goes on. An inode without a name has a mark in any case, and may never have been cut.
    pub(super) fn of(inode: &Inode) -> Self {
        if inode.links == 0 {
            Self::Written
        } else {
            Self::All
        }
    }
}

/// Returns the range behind the end of a file of this size.
pub(super) fn behind(size: u64) -> Range<u64> {
    size..u64::MAX
}

/// Takes the next extents of a range out, in a batch. Returns whether none is left.
pub(super) fn cut_part(
    inodes: &Inodes,
    transactions: &Transactions,
    lock: &ExclusiveLock<'_>,
    (ino, inode): (Ino, &mut Inode),
    part: (&Range<u64>, Rest),
    sweep: &mut Sweep,
) -> Result<bool, FsError> {
    debug_assert!(lock.covers(ino));
    let mut edit = Edit::default();
    let complete = take_out(transactions, (ino, inode), &mut edit, part, sweep)?;
    edit.put_inode(ino, inode);
    inodes.apply(edit)?;
    Ok(complete)
}

/// Takes the next extents of a range out of `inode`, with `edit`. Returns whether none is left.
pub(super) fn take_out(
    transactions: &Transactions,
    (ino, inode): (Ino, &mut Inode),
    edit: &mut Edit,
    (range, rest): (&Range<u64>, Rest),
    sweep: &mut Sweep,
) -> Result<bool, FsError> {
    let runs = extents::page(transactions, ino, &sweep.rest_of(range))?;
    let within = runs
        .iter()
        .filter(|run| rest == Rest::Written && run.stripe == Extent::UNWRITTEN);
    let within: Vec<Run> = within.filter_map(|run| run.clip(range)).collect();
    let kept = extents::splice(&runs, range, &within);
    let growth = extents::replace(edit, ino, &runs, &kept);
    growth.count_in(inode);
    Ok(sweep.note(range, &runs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::StripeId;

    fn run(index: u64) -> Run {
        Run {
            start: index * 10,
            len: 10,
            stripe: StripeId(1),
            stripe_offset: 0,
        }
    }

    #[test]
    fn a_sweep_looks_at_each_run_once_and_finds_those_that_came_behind_it() {
        let count = 2 * PAGE as u64 + 5;
        let (mut left, mut sweep) = ((0..count).map(run).collect::<Vec<_>>(), Sweep::default());
        let (range, mut starts) = (7..u64::MAX, Vec::new());
        loop {
            let rest = sweep.rest_of(&range);
            starts.push(rest.start);
            let found = left.iter().filter(|run| run.overlaps(&rest)).take(PAGE);
            let batch: Vec<Run> = found.copied().collect();
            left.retain(|run| !batch.contains(run));
            // One more comes where the sweep was already.
            if starts.len() == 2 {
                left.insert(0, run(3));
            }
            if sweep.note(&range, &batch) {
                break;
            }
        }
        let page = PAGE as u64 * 10;
        assert_eq!(starts, [7, page, 2 * page, 7]);
        assert_eq!(left, []);
    }

    #[test]
    fn a_batch_that_is_not_full_from_the_start_is_all() {
        let mut sweep = Sweep::default();
        assert!(sweep.note(&(5..100), &[run(1)]));
        assert_eq!(sweep.rest_of(&(5..100)), 5..100);
    }
}
