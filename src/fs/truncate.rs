//! Cutting files off and making them longer.
//!
//! If there is little behind the new end of a file, it goes in one batch. If there is much, the first batch sets the
//! size and leaves a mark. More batches remove the rest in the background, and the last takes the mark away. The
//! rest is invisible meanwhile, because reading ends at the end of the file. Before the file grows over it, it is
//! removed as far as the file will reach.

use std::ops::Range;

use crate::commit::Pipeline;
use crate::format::Ino;
use crate::format::record::{Inline, Inode};

use super::edit::Edit;
use super::extents::{self, PAGE};
use super::locks::Exclusive;
use super::{Fs, FsError, SIZE_MAX};

impl Fs {
    /// Gives a regular file another size and writes its inode, together with whatever `edit` holds.
    pub(super) fn set_size(
        &self,
        lock: &Exclusive<'_>,
        ino: Ino,
        mut inode: Inode,
        mut edit: Edit,
        size: u64,
    ) -> Result<Inode, FsError> {
        debug_assert!(lock.covers(ino));
        if size > SIZE_MAX {
            return Err(FsError::FileTooBig);
        }
        self.clear_behind(lock, ino, &mut inode, size)?;
        if !self.mark_refused(lock, ino, &mut inode, &(size..size))? {
            return Err(FsError::NoSpace);
        }
        inode.size = size;
        if let Inline::Data(data) = &mut inode.inline {
            data.truncate(usize::try_from(size).unwrap_or(usize::MAX));
        }
        let complete = inode.allocated_bytes == 0
            || take_out(&self.pipeline, ino, &mut inode, &mut edit, &behind(size))?;
        if !complete {
            edit.put_orphan(ino);
        }
        edit.put_inode(ino, &inode);
        self.apply(edit)?;
        self.refused.forget(ino, &behind(size));
        if !complete {
            self.removal.cut_later(lock, ino)?;
        }
        Ok(inode)
    }

    /// Takes out what is left of a file that was longer, from its end to `end`, to where it is about to
    /// grow.
    pub(super) fn clear_behind(
        &self,
        lock: &Exclusive<'_>,
        ino: Ino,
        inode: &mut Inode,
        end: u64,
    ) -> Result<(), FsError> {
        if end <= inode.size || !self.removal.is_cutting(ino) {
            return Ok(());
        }
        // Without what the caller has changed already.
        let mut stored = self.inode(ino)?;
        let range = stored.size..end;
        while !cut_piece(&self.pipeline, lock, ino, &mut stored, &range)? {}
        inode.allocated_bytes = stored.allocated_bytes;
        Ok(())
    }

    /// Says whether much is left to be taken out behind the end of a file: making it longer may take
    /// its time.
    #[must_use]
    pub fn is_being_cut(&self, ino: Ino) -> bool {
        self.removal.is_cutting(ino)
    }
}

/// Removes a bounded part of what lies behind the end of a file whose mark says that there may be
/// something; says whether nothing is left, and takes the mark away then.
pub(super) fn cut_on(
    pipeline: &Pipeline,
    lock: &Exclusive<'_>,
    ino: Ino,
    mut inode: Inode,
) -> Result<bool, FsError> {
    let range = behind(inode.size);
    if !cut_piece(pipeline, lock, ino, &mut inode, &range)? {
        return Ok(false);
    }
    // An inode without a name keeps its mark until it is removed.
    if inode.links > 0 {
        let mut edit = Edit::default();
        edit.delete_orphan(ino);
        pipeline.apply(edit.into_batch())?;
    }
    Ok(true)
}

fn behind(size: u64) -> Range<u64> {
    size..u64::MAX
}

/// Takes the first extents of a range out, in a batch; says whether that was all of them.
fn cut_piece(
    pipeline: &Pipeline,
    lock: &Exclusive<'_>,
    ino: Ino,
    inode: &mut Inode,
    range: &Range<u64>,
) -> Result<bool, FsError> {
    debug_assert!(lock.covers(ino));
    let mut edit = Edit::default();
    let complete = take_out(pipeline, ino, inode, &mut edit, range)?;
    edit.put_inode(ino, inode);
    pipeline.apply(edit.into_batch())?;
    Ok(complete)
}

/// Takes the first extents of a range out of `inode`, with `edit`; says whether that was all of them.
fn take_out(
    pipeline: &Pipeline,
    ino: Ino,
    inode: &mut Inode,
    edit: &mut Edit,
    range: &Range<u64>,
) -> Result<bool, FsError> {
    let runs = extents::page(pipeline, ino, range)?;
    let kept = extents::splice(&runs, range, &[]);
    let growth = extents::replace(edit, ino, &runs, &kept);
    inode.allocated_bytes = inode.allocated_bytes.saturating_add_signed(growth);
    Ok(runs.len() < PAGE)
}

#[cfg(test)]
mod tests;
