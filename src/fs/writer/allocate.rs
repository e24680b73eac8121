//! Holes: making them, finding them, and promising to fill them.

use std::ops::Range;

use crate::format::Ino;
use crate::format::record::{Inline, Inode};
use crate::fs::Fs;
use crate::fs::edit::Edit;
use crate::fs::error::FsError;
use crate::fs::extents::{self, PAGE};
use crate::fs::limits::SIZE_MAX;
use crate::fs::locks::Exclusive;
use crate::fs::mode::{check_regular, clear_privileges};
use crate::fs::types::{Allocation, Caller, Handle, Whence};

use super::end_of;

/// The knowledge of a file's data without its extents.
struct Map {
    ino: Ino,
    /// Bytes in its record.
    inline_len: u64,
    /// The refused ranges of it, in order.
    refused: Vec<Range<u64>>,
}

impl Fs {
    /// Allocates, punches out or zeroes a range of a file, as `fallocate(2)`.
    ///
    /// Every write goes to a new place, so nothing is reserved: allocating checks that the volume has
    /// room for the holes of the range, and makes the file longer. Zeroing is punching.
    ///
    /// # Errors
    ///
    /// [`FsError::BadHandle`] if the handle is not open for writing, [`FsError::Invalid`] for an empty
    /// range, [`FsError::FileTooBig`], [`FsError::NoSpace`].
    pub fn fallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: Allocation,
        offset: u64,
        len: u64,
    ) -> Result<(), FsError> {
        self.writable()?;
        let file = self.handles.file(handle)?;
        if !file.flags.write {
            return Err(FsError::BadHandle);
        }
        if len == 0 {
            return Err(FsError::Invalid);
        }
        let range = offset..end_of(offset, len)?;
        let allocate = matches!(mode, Allocation::Allocate | Allocation::AllocateKeepSize);
        let grow = matches!(mode, Allocation::Allocate | Allocation::ZeroRange);
        if allocate {
            self.find_room(file.ino, &range)?;
        }
        let lock = self.locks.exclusive(&[file.ino]);
        let mut inode = self.inode(file.ino)?;
        check_regular(&inode)?;
        let mut edit = Edit::default();
        if !caller.is_root() {
            clear_privileges(&mut inode);
        }
        self.drop_capability(&mut edit, file.ino, &inode)?;
        let now = self.now();
        let grown = grow && range.end > inode.size;
        if grown || !allocate {
            inode.mtime = now;
        }
        inode.ctime = now;
        if grown {
            self.clear_behind(&lock, file.ino, &mut inode, range.end)?;
            let end = range.end..range.end;
            if !self.mark_refused(&lock, file.ino, &mut inode, &end)? {
                return Err(FsError::NoSpace);
            }
            inode.size = range.end;
        }
        if allocate {
            edit.put_inode(file.ino, &inode);
            return self.apply(edit);
        }
        self.punch(&lock, edit, file.ino, inode, range.clone())?;
        self.refused.forget(file.ino, &range);
        Ok(())
    }

    /// Finds the next data or the next hole at `offset` or behind it. Data is also what was refused when it
    /// was written, even where the file ends because of that: a copy that skipped it would have zeros there.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSuchOffset`] at or behind the end of the file, or if no data follows.
    pub fn seek(&self, handle: Handle, offset: u64, whence: Whence) -> Result<u64, FsError> {
        let ino = self.handles.file(handle)?.ino;
        let _lock = self.locks.shared(ino);
        let inode = self.inode(ino)?;
        check_regular(&inode)?;
        let refused = self.refused.within(ino, &(offset..SIZE_MAX));
        let end = refused.last().map_or(0, |last| last.end).max(inode.size);
        if offset >= end {
            return Err(FsError::NoSuchOffset);
        }
        let map = Map {
            ino,
            inline_len: match &inode.inline {
                Inline::Data(data) => data.len() as u64,
                Inline::None | Inline::Target(_) => 0,
            },
            refused,
        };
        let found = match whence {
            Whence::Data => self.next_data(&map, offset)?,
            // Every file ends in a hole.
            Whence::Hole => Some(self.next_hole(&map, offset)?.min(end)),
        };
        found
            .filter(|found| *found < end || whence == Whence::Hole)
            .ok_or(FsError::NoSuchOffset)
    }

    fn next_data(&self, map: &Map, offset: u64) -> Result<Option<u64>, FsError> {
        if offset < map.inline_len {
            return Ok(Some(offset));
        }
        let runs = extents::page_of(&self.pipeline, map.ino, &(offset..u64::MAX), 1)?;
        let starts = runs.first().map(|run| run.start).into_iter();
        let starts = starts.chain(map.refused.first().map(|part| part.start));
        Ok(starts.min().map(|start| start.max(offset)))
    }

    fn next_hole(&self, map: &Map, offset: u64) -> Result<u64, FsError> {
        let mut at = offset.max(map.inline_len);
        loop {
            at = self.end_of_runs(map.ino, at)?;
            match map.refused.iter().find(|part| part.contains(&at)) {
                Some(part) => at = part.end,
                None => return Ok(at),
            }
        }
    }

    /// Returns where the runs end that a file has from an offset on, one right behind the other.
    fn end_of_runs(&self, ino: Ino, offset: u64) -> Result<u64, FsError> {
        let mut at = offset;
        loop {
            let page = extents::page(&self.pipeline, ino, &(at..u64::MAX))?;
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

    /// Sees that the volume has room for the holes in `range`; makes some, unless all there is were not
    /// enough.
    fn find_room(&self, ino: Ino, range: &Range<u64>) -> Result<(), FsError> {
        let is_possible = self.with_room(range.end - range.start, || {
            let space = self.pipeline.space();
            let missing = self.missing_in(ino, range, space.usable_free)?;
            if missing <= space.usable_free {
                return Ok(true);
            }
            if missing > space.usable_total {
                return Ok(false);
            }
            Err(FsError::NoSpace)
        })?;
        is_possible.then_some(()).ok_or(FsError::NoSpace)
    }

    /// Returns how many bytes of `range` are holes, or a number that is at most `enough` if that is
    /// all it takes.
    fn missing_in(&self, ino: Ino, range: &Range<u64>, enough: u64) -> Result<u64, FsError> {
        let mut missing = range.end - range.start;
        let mut rest = range.clone();
        while missing > enough {
            let page = extents::page(&self.pipeline, ino, &rest)?;
            for run in page.iter().filter_map(|run| run.clip(range)) {
                missing = missing.saturating_sub(run.len);
            }
            match page.last() {
                Some(last) if page.len() == PAGE => rest.start = last.end(),
                _ => break,
            }
        }
        Ok(missing)
    }

    /// Takes the bytes of `range` out, in batches of bounded size: whatever a crash leaves of that is
    /// a file with a smaller hole. The first batch has what is in `edit`, too.
    fn punch(
        &self,
        lock: &Exclusive<'_>,
        mut edit: Edit,
        ino: Ino,
        mut inode: Inode,
        mut range: Range<u64>,
    ) -> Result<(), FsError> {
        debug_assert!(lock.covers(ino));
        if let Inline::Data(data) = &mut inode.inline {
            let index = |offset: u64| {
                usize::try_from(offset)
                    .unwrap_or(usize::MAX)
                    .min(data.len())
            };
            let (start, end) = (index(range.start), index(range.end));
            data[start..end].fill(0);
        }
        loop {
            let page = extents::page(&self.pipeline, ino, &range)?;
            let complete = page.len() < PAGE;
            let part_end = match page.last() {
                Some(last) if !complete => last.end().min(range.end),
                _ => range.end,
            };
            let kept = extents::splice(&page, &(range.start..part_end), &[]);
            let growth = extents::replace(&mut edit, ino, &page, &kept);
            inode.allocated_bytes = inode.allocated_bytes.saturating_add_signed(growth);
            edit.put_inode(ino, &inode);
            self.apply(std::mem::take(&mut edit))?;
            if complete {
                return Ok(());
            }
            range.start = part_end;
        }
    }
}
