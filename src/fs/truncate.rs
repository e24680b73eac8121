//! Cutting files off and making them longer.

use crate::commit::Pipeline;
use crate::format::Ino;
use crate::format::record::{Inline, Inode};

use super::edit::Edit;
use super::extents::{self, PAGE};
use super::locks::Exclusive;
use super::{FsError, SIZE_MAX};

/// Gives a regular file another size and writes its inode, together with whatever `edit` holds.
///
/// What is cut off goes in one batch if it is little. If it is much, the first batch sets the size and
/// leaves a mark, more batches remove what lies behind, and the last takes the mark away.
pub(super) fn set_size(
    pipeline: &Pipeline,
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
    inode.size = size;
    if let Inline::Data(data) = &mut inode.inline {
        data.truncate(usize::try_from(size).unwrap_or(usize::MAX));
    }
    if inode.allocated_bytes == 0 {
        edit.put_inode(ino, &inode);
        pipeline.apply(edit.into_batch())?;
        return Ok(inode);
    }
    let complete = cut_page(pipeline, ino, &mut inode, &mut edit)?;
    if !complete {
        edit.put_orphan(ino);
    }
    edit.put_inode(ino, &inode);
    pipeline.apply(edit.into_batch())?;
    if complete {
        return Ok(inode);
    }
    finish(pipeline, lock, ino, inode)
}

/// Removes what lies behind the end of a file whose mark says that there may be something, and takes
/// the mark away.
pub(super) fn finish(
    pipeline: &Pipeline,
    lock: &Exclusive<'_>,
    ino: Ino,
    mut inode: Inode,
) -> Result<Inode, FsError> {
    debug_assert!(lock.covers(ino));
    loop {
        let mut edit = Edit::default();
        let complete = cut_page(pipeline, ino, &mut inode, &mut edit)?;
        // An inode without a name keeps its mark until it is removed.
        if complete && inode.links > 0 {
            edit.delete_orphan(ino);
        }
        edit.put_inode(ino, &inode);
        pipeline.apply(edit.into_batch())?;
        if complete {
            return Ok(inode);
        }
    }
}

/// Takes the first extents behind the end of a file out; says whether that was all of them.
fn cut_page(
    pipeline: &Pipeline,
    ino: Ino,
    inode: &mut Inode,
    edit: &mut Edit,
) -> Result<bool, FsError> {
    let behind = inode.size..u64::MAX;
    let runs = extents::page(pipeline, ino, &behind)?;
    let kept = extents::splice(&runs, &behind, &[]);
    let growth = extents::replace(edit, ino, &runs, &kept);
    inode.allocated_bytes = inode.allocated_bytes.saturating_add_signed(growth);
    Ok(runs.len() < PAGE)
}
