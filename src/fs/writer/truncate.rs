//! Cutting files off and making them longer.
//!
//! If there is little behind the new end of a file, it goes in one batch. If there is much, the first batch sets the
//! size and leaves a mark. More batches remove the rest in the background, and the last takes the mark away. The
//! rest is invisible meanwhile, because reading ends at the end of the file. Before the file grows over it, it is
//! removed as far as the file will reach.

use crate::format::Ino;
use crate::format::record::{Inline, Inode};
use crate::fs::cut::{Rest, Sweep, behind, take_out};
use crate::fs::edit::Edit;
use crate::fs::error::FsError;
use crate::fs::failed_writeback::Reach;
use crate::fs::limits::SIZE_MAX;
use crate::fs::locks::ExclusiveLock;

use super::FileWriter;

impl FileWriter {
    /// Gives a regular file another size and writes its inode, together with whatever `edit` holds. Returns `None`, and
    /// drops `edit`, if a stripe must be opened first.
    pub(in crate::fs) fn set_size(
        &self,
        lock: &ExclusiveLock<'_>,
        ino: Ino,
        mut inode: Inode,
        mut edit: Edit,
        size: u64,
    ) -> Result<Option<Inode>, FsError> {
        debug_assert!(lock.covers(ino));
        if size > SIZE_MAX {
            return Err(FsError::FileTooBig);
        }
        // A file that becomes shorter needs no room. Bytes lost before its new end stay known as they are.
        let grows = size > inode.size;
        if grows && !self.prepare(lock, ino, &mut inode, (&(size..size), Reach::Bytes))? {
            return Ok(None);
        }
        // Unwritten extents behind the end of a file that grows stay.
        let keeps_rest = grows && inode.unwritten_bytes > 0 && !self.removal.is_cutting(ino);
        inode.size = size;
        if let Inline::Data(data) = &mut inode.inline {
            data.truncate(usize::try_from(size).unwrap_or(usize::MAX));
        }
        let complete = inode.allocated_bytes == 0
            || keeps_rest
            || take_out(
                &self.transactions,
                (ino, &mut inode),
                &mut edit,
                (&behind(size), Rest::All),
                &mut Sweep::default(),
            )?;
        if !complete {
            edit.put_orphan(ino);
        }
        edit.put_inode(ino, &inode);
        self.inodes.apply(edit)?;
        self.failed_writeback.clear(ino, &behind(size));
        if !complete {
            self.removal.cut_later(lock, ino)?;
        }
        Ok(Some(inode))
    }
}

#[cfg(test)]
mod tests;
