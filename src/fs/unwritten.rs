//! Counting the bytes of unwritten extents when a volume is opened.

use std::ops::ControlFlow;

use crate::format::{Ino, key};
use crate::transaction::{CommitError, Transactions};

use super::error::FsError;
use super::extents::{self, PAGE};
use super::limits::SIZE_MAX;
use super::stored_inode::read_inode;

/// Counts the bytes of all unwritten extents, so that room is kept for them. Call it before anything is changed.
///
/// # Errors
///
/// [`FsError::Storage`] if the index cannot be read.
pub(super) fn load(transactions: &Transactions) -> Result<(), FsError> {
    let (from, end) = key::all_unwritten();
    let mut inos = Vec::new();
    transactions.visit(&from, &end, |key, _| {
        match key::parse_unwritten(key) {
            Ok(ino) => inos.push(ino),
            Err(error) => tracing::warn!("a mark of an inode is damaged: {error}"),
        }
        Ok::<_, CommitError>(ControlFlow::Continue(()))
    })?;
    let mut sum: u64 = 0;
    for ino in inos {
        let bytes = match read_inode(transactions, ino) {
            Ok(inode) => inode.map_or(0, |inode| inode.unwritten_bytes),
            // Its extents can tell as well.
            Err(FsError::Format(_)) => count_extents(transactions, ino)?,
            Err(error) => return Err(error),
        };
        sum = sum.saturating_add(bytes);
    }
    transactions.unwritten_room().set(sum);
    Ok(())
}

/// Counts the bytes of the unwritten extents of a file, as far as its extents can be read.
fn count_extents(transactions: &Transactions, ino: Ino) -> Result<u64, FsError> {
    let (mut sum, mut rest): (u64, _) = (0, 0..SIZE_MAX);
    loop {
        let page = match extents::page(transactions, ino, &rest) {
            Err(FsError::Format(_) | FsError::Corrupt { .. }) => return Ok(sum),
            page => page?,
        };
        let unwritten = page.iter().filter(|run| run.is_unwritten());
        sum = unwritten.fold(sum, |sum, run| sum.saturating_add(run.len));
        match page.last() {
            Some(last) if page.len() == PAGE => rest.start = last.end(),
            _ => return Ok(sum),
        }
    }
}
