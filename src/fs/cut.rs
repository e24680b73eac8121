//! Taking extents out of files, in batches of bounded size.

use std::ops::Range;

use crate::format::Ino;
use crate::format::record::Inode;
use crate::transaction::Transactions;

use super::edit::Edit;
use super::error::FsError;
use super::extents::{self, PAGE};
use super::inodes::Inodes;
use super::locks::ExclusiveLock;

/// Removes a bounded part of the extents behind the end of a file with a mark. Returns whether none is left, and removes
/// the mark then.
pub(super) fn cut_behind_end(
    inodes: &Inodes,
    transactions: &Transactions,
    lock: &ExclusiveLock<'_>,
    ino: Ino,
    mut inode: Inode,
) -> Result<bool, FsError> {
    let range = behind(inode.size);
    if !cut_part(inodes, transactions, lock, ino, &mut inode, &range)? {
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

/// Returns the range behind the end of a file of this size.
pub(super) fn behind(size: u64) -> Range<u64> {
    size..u64::MAX
}

/// Takes the first extents of a range out, in a batch. Returns whether that was all of them.
pub(super) fn cut_part(
    inodes: &Inodes,
    transactions: &Transactions,
    lock: &ExclusiveLock<'_>,
    ino: Ino,
    inode: &mut Inode,
    range: &Range<u64>,
) -> Result<bool, FsError> {
    debug_assert!(lock.covers(ino));
    let mut edit = Edit::default();
    let complete = take_out(transactions, ino, inode, &mut edit, range)?;
    edit.put_inode(ino, inode);
    inodes.apply(edit)?;
    Ok(complete)
}

/// Takes the first extents of a range out of `inode`, with `edit`. Returns whether that was all of them.
pub(super) fn take_out(
    transactions: &Transactions,
    ino: Ino,
    inode: &mut Inode,
    edit: &mut Edit,
    range: &Range<u64>,
) -> Result<bool, FsError> {
    let runs = extents::page(transactions, ino, range)?;
    let kept = extents::splice(&runs, range, &[]);
    let growth = extents::replace(edit, ino, &runs, &kept);
    inode.allocated_bytes = inode.allocated_bytes.saturating_add_signed(growth);
    Ok(runs.len() < PAGE)
}
