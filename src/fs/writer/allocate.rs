//! Allocating ranges of files, and making holes of them: the calls.

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
    /// Allocating makes unwritten extents of the holes in the blocks of the range, and the volume keeps room for their
    /// bytes: no write to them fails for lack of space. Once written they are as all others: every write goes to a new
    /// place, so writing them again needs room. Zeroing is punching.
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
        let grow = matches!(mode, Allocation::Allocate | Allocation::ZeroRange);
        if let Allocation::Allocate | Allocation::AllocateKeepSize = mode {
            return self.allocate(caller, file.ino, &range, grow);
        }
        self.with_stripe_for(file.ino, || self.zero(caller, file.ino, &range, grow))
    }

    /// Makes a hole of a range, and the file so long if it is to `grow`. Returns `None`, with nothing changed, if a stripe
    /// must be opened first.
    fn zero(
        &self,
        caller: &Caller,
        ino: Ino,
        range: &Range<u64>,
        grow: bool,
    ) -> Result<Option<()>, FsError> {
        let lock = self.inodes.locks().exclusive(&[ino]);
        let mut inode = self.inodes.get(ino)?;
        let edit = self.begin_allocation(caller, ino, &mut inode)?;
        inode.mtime = inode.ctime;
        if grow && range.end > inode.size {
            if !self.prepare(&lock, ino, &mut inode, (range, Reach::Bytes))? {
                return Ok(None);
            }
            inode.size = range.end;
        }
        self.punch(&lock, edit, ino, inode, range.clone())?;
        self.failed_writeback.clear(ino, range);
        Ok(Some(()))
    }

    /// Returns an edit for a change of a file by `fallocate`, and changes what each of them does.
    pub(super) fn begin_allocation(
        &self,
        caller: &Caller,
        ino: Ino,
        inode: &mut Inode,
    ) -> Result<Edit, FsError> {
        check_regular(inode)?;
        let mut edit = Edit::default();
        if !caller.is_root() {
            clear_privileges(inode, caller);
        }
        self.xattrs.drop_capability(&mut edit, ino, inode)?;
        inode.ctime = self.inodes.now();
        Ok(edit)
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
            growth.count_in(&mut inode);
            edit.put_inode(ino, &inode);
            self.inodes.apply(std::mem::take(&mut edit))?;
            if complete {
                return Ok(());
            }
            range.start = part_end;
        }
    }
}
