//! Allocating ranges of files, and making holes of them.

use std::ops::Range;

use crate::format::Ino;
use crate::format::record::{Inline, Inode};
use crate::fs::edit::Edit;
use crate::fs::error::FsError;
use crate::fs::extents::{self, PAGE};
use crate::fs::failed_writeback::Reach;
use crate::fs::locks::ExclusiveLock;
use crate::fs::mode::{check_regular, clear_privileges};
use crate::fs::types::{Allocation, Caller, Handle};

use super::{FileWriter, end_of};

impl FileWriter {
    /// Allocates, punches out or zeroes a range of a file, as `fallocate(2)`.
    ///
    /// Every write goes to a new place, so nothing is reserved: allocating checks that the volume has
    /// room for the holes of the range, and its quotas too, and makes the file longer. Zeroing is punching.
    ///
    /// # Errors
    ///
    /// [`FsError::BadHandle`] if the handle is not open for writing, [`FsError::Invalid`] for an empty
    /// range, [`FsError::FileTooBig`], [`FsError::NoSpace`], [`FsError::QuotaExceeded`].
    pub fn fallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: Allocation,
        offset: u64,
        len: u64,
    ) -> Result<(), FsError> {
        self.inodes.check_writable()?;
        let file = self.references.handles.file(handle)?;
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
            self.references.with_quota(|| {
                let _lock = self.inodes.locks().shared(file.ino);
                let inode = self.inodes.get(file.ino)?;
                self.check_growth_of(file.ino, &inode, &range)
            })?;
            self.find_room(file.ino, &range)?;
        }
        let lock = self.inodes.locks().exclusive(&[file.ino]);
        let mut inode = self.inodes.get(file.ino)?;
        check_regular(&inode)?;
        let mut edit = Edit::default();
        if !caller.is_root() {
            clear_privileges(&mut inode, caller);
        }
        self.xattrs.drop_capability(&mut edit, file.ino, &inode)?;
        let now = self.inodes.now();
        let grown = grow && range.end > inode.size;
        if grown || !allocate {
            inode.mtime = now;
        }
        inode.ctime = now;
        if grown {
            let end = range.end..range.end;
            if !self.prepare(&lock, file.ino, &mut inode, (&end, Reach::Bytes))? {
                return Err(FsError::NoSpace);
            }
            inode.size = range.end;
        }
        if allocate {
            edit.put_inode(file.ino, &inode);
            return self.inodes.apply(edit);
        }
        self.punch(&lock, edit, file.ino, inode, range.clone())?;
        self.failed_writeback.clear(file.ino, &range);
        Ok(())
    }

    /// Checks that the volume has room for the holes in `range`; makes some, unless all there is were not
    /// enough.
    fn find_room(&self, ino: Ino, range: &Range<u64>) -> Result<(), FsError> {
        let is_possible = self.inodes.with_room(range.end - range.start, || {
            let space = self.transactions.space();
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
    pub(super) fn missing_in(
        &self,
        ino: Ino,
        range: &Range<u64>,
        enough: u64,
    ) -> Result<u64, FsError> {
        let mut missing = range.end - range.start;
        let mut rest = range.clone();
        while missing > enough {
            let page = extents::page(&self.transactions, ino, &rest)?;
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
        lock: &ExclusiveLock<'_>,
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
            let page = extents::page(&self.transactions, ino, &range)?;
            let complete = page.len() < PAGE;
            let part_end = match page.last() {
                Some(last) if !complete => last.end().min(range.end),
                _ => range.end,
            };
            let kept = extents::splice(&page, &(range.start..part_end), &[]);
            let growth = extents::replace(&mut edit, ino, &page, &kept);
            inode.allocated_bytes = inode.allocated_bytes.saturating_add_signed(growth);
            edit.put_inode(ino, &inode);
            self.inodes.apply(std::mem::take(&mut edit))?;
            if complete {
                return Ok(());
            }
            range.start = part_end;
        }
    }
}
