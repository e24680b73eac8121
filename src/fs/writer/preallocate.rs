//! Filling the holes of files with unwritten extents.

use std::ops::Range;

use crate::format::record::{Extent, Inline, Inode};
use crate::format::superblock::UNWRITTEN;
use crate::format::{BLOCK_SIZE, Ino};
use crate::fs::edit::Edit;
use crate::fs::error::FsError;
use crate::fs::extents::{self, PAGE};
use crate::fs::failed_writeback::Reach;
use crate::fs::limits::SIZE_MAX;
use crate::fs::locks::ExclusiveLock;
use crate::fs::run::Run;
use crate::fs::spill::Spilled;
use crate::fs::types::Caller;
use crate::transaction::CommitError;
use crate::transaction::unwritten::Allocating;

use super::FileWriter;

/// An unwritten run crosses no multiple of so many bytes of its file. So a change of one concerns few pages of the cache.
const UNWRITTEN_BYTES: u64 = 1 << 25;

/// Bytes of a file that one batch allocates at most.
const MOST_AT_ONCE: u64 = PAGE as u64 * UNWRITTEN_BYTES;

/// The outcome of an attempt to allocate.
enum Attempt {
    /// Everything is allocated.
    Done,
    /// The file has changed since, and it takes another try.
    Superseded,
}

impl FileWriter {
    /// Makes unwritten extents of the holes in the blocks of `range`, and keeps room for them; with `grow`, the file
    /// reaches to its end then.
    pub(super) fn allocate(
        &self,
        caller: &Caller,
        ino: Ino,
        range: &Range<u64>,
        grow: bool,
    ) -> Result<(), FsError> {
        let block = BLOCK_SIZE as u64;
        let end = range.end.next_multiple_of(block).min(SIZE_MAX);
        let blocks = range.start / block * block..end;
        let target = (ino, range, &blocks);
        let missing = {
            let _lock = self.inodes.locks().shared(ino);
            self.missing_in(ino, &blocks, 0)?
        };
        let needed = self.transactions.unwritten_room().kept_for(missing);
        let attempt = || loop {
            match self.try_allocate(caller, target, grow) {
                Ok(Attempt::Superseded) => {}
                // No work makes so much room.
                Err(FsError::NoSpace) if missing > self.transactions.space().usable_total => {
                    return Ok(false);
                }
                done => return done.map(|_| true),
            }
        };
        if self.with_room(needed, attempt)? {
            Ok(())
        } else {
            Err(FsError::NoSpace)
        }
    }

    fn try_allocate(
        &self,
        caller: &Caller,
        (ino, range, blocks): (Ino, &Range<u64>, &Range<u64>),
        grow: bool,
    ) -> Result<Attempt, FsError> {
        // Otherwise new extents behind the end of the file would go with the rest of the old ones.
        self.removal.finish_cut(ino)?;
        self.transactions.growth().check_growth()?;
        let missing = {
            let _lock = self.inodes.locks().shared(ino);
            let inode = self.inodes.get(ino)?;
            self.check_growth_of(ino, &inode, blocks)?;
            self.missing_in(ino, blocks, 0)?
        };
        let mut room = None;
        if missing > 0 {
            room = Some(self.transactions.unwritten_room().allocate(missing)?);
            // Before the first extent that other builds would misread.
            let epochs = self.transactions.members().epochs();
            epochs.use_features(UNWRITTEN).map_err(CommitError::from)?;
        }
        let attempt = || self.allocate_locked(caller, (ino, range, blocks), grow, &mut room);
        self.with_open_stripe((&[ino], None), attempt)
    }

    /// Allocates as [`Self::allocate`], within the room that was kept; `None` if a stripe must be opened first.
    fn allocate_locked(
        &self,
        caller: &Caller,
        (ino, range, blocks): (Ino, &Range<u64>, &Range<u64>),
        grow: bool,
        room: &mut Option<Allocating<'_>>,
    ) -> Result<Option<Attempt>, FsError> {
        let lock = self.inodes.locks().exclusive(&[ino]);
        if self.removal.is_cutting(ino) {
            return Ok(Some(Attempt::Superseded));
        }
        let mut inode = self.inodes.get(ino)?;
        if grow && range.end > inode.size {
            let end = range.end..range.end;
            if !self.prepare(&lock, ino, &mut inode, (&end, Reach::Bytes))? {
                return Ok(None);
            }
        }
        let missing = self.missing_in(ino, blocks, 0)?;
        if missing > room.as_ref().map_or(0, Allocating::bytes) {
            return Ok(Some(Attempt::Superseded));
        }
        let edit = self.begin_allocation(caller, ino, &mut inode)?;
        if missing > 0 && !self.spill(ino, &mut inode)? {
            return Ok(None);
        }
        let size = if grow { range.end } else { 0 };
        self.fill(&lock, edit, (ino, inode), (blocks, size), room.as_mut())?;
        Ok(Some(Attempt::Done))
    }

    /// Moves the data of an inode's record into a stripe, in a batch of its own. Returns `false` if a stripe must be
    /// opened first.
    fn spill(&self, ino: Ino, inode: &mut Inode) -> Result<bool, FsError> {
        if inode.inline == Inline::None {
            return Ok(true);
        }
        let nothing = 0..0;
        let Some(spilled) = Spilled::place(&self.transactions, inode, &nothing)? else {
            return Ok(false);
        };
        let mut edit = Edit::default();
        spilled.replace_range(&self.transactions, &mut edit, (ino, inode), &nothing, &[])?;
        edit.put_inode(ino, inode);
        let applied = self.inodes.apply(edit);
        if applied.is_err() {
            spilled.abandon(&self.transactions)?;
        }
        applied.map(|()| true)
    }

    /// Makes unwritten extents of the holes in a range, in batches of bounded size. The last of them has the changes of
    /// `edit` as well, and the file is no shorter than `size` then.
    fn fill(
        &self,
        lock: &ExclusiveLock<'_>,
        mut edit: Edit,
        (ino, mut inode): (Ino, Inode),
        (range, size): (&Range<u64>, u64),
        mut room: Option<&mut Allocating<'_>>,
    ) -> Result<(), FsError> {
        debug_assert!(lock.covers(ino));
        let mut rest = range.clone();
        loop {
            let page = extents::page(&self.transactions, ino, &rest)?;
            let part = first_part(&page, &rest);
            let is_last = part.end == range.end;
            let mut batch = Edit::default();
            if is_last {
                std::mem::swap(&mut batch, &mut edit);
                if size > inode.size {
                    inode.size = size;
                    inode.mtime = inode.ctime;
                }
            }
            let old = page.into_iter().filter(|run| run.overlaps(&part));
            let old: Vec<Run> = old.collect();
            let before = inode.unwritten_bytes;
            extents::replace(&mut batch, ino, &old, &filled(&old, &part)).count_in(&mut inode);
            batch.put_inode(ino, &inode);
            self.inodes.apply(batch)?;
            if let Some(room) = &mut room {
                room.note_applied(inode.unwritten_bytes.saturating_sub(before));
            }
            if is_last {
                return Ok(());
            }
            rest.start = part.end;
        }
    }
}

/// Returns as much of a range as one batch should fill, and of which a page of runs tells.
fn first_part(page: &[Run], range: &Range<u64>) -> Range<u64> {
    let known = match page.last() {
        Some(last) if page.len() == PAGE => last.end().min(range.end),
        _ => range.end,
    };
    range.start..known.min(range.start.saturating_add(MOST_AT_ONCE))
}

/// Returns the runs of a file that overlap `range`, and unwritten ones in the holes between them.
fn filled(old: &[Run], range: &Range<u64>) -> Vec<Run> {
    let mut new = Vec::new();
    let mut at = range.start;
    for run in old {
        push_unwritten(&mut new, at..run.start.min(range.end));
        push(&mut new, *run);
        at = at.max(run.end());
    }
    push_unwritten(&mut new, at..range.end);
    new
}

/// Appends unwritten runs for a hole.
fn push_unwritten(runs: &mut Vec<Run>, mut hole: Range<u64>) {
    while hole.start < hole.end {
        let offset = hole.start % UNWRITTEN_BYTES;
        let len = (UNWRITTEN_BYTES - offset).min(hole.end - hole.start);
        let run = Run {
            start: hole.start,
            len,
            stripe: Extent::UNWRITTEN,
            stripe_offset: u32::try_from(offset).expect("it is below 2²⁵"),
        };
        push(runs, run);
        hole.start += len;
    }
}

/// Appends a run, or makes the last one longer.
fn push(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last) if last.continues_in(&run) => last.len += run.len,
        _ => runs.push(run),
    }
}

#[cfg(test)]
mod tests;
