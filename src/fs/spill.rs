//! Data of inode records that moves into stripes, and the extent maps that change with it.

use std::ops::Range;

use crate::format::Ino;
use crate::format::record::{Inline, Inode};
use crate::transaction::{Transactions, Written};

use super::edit::Edit;
use super::error::FsError;
use super::extents;
use super::run::Run;

/// The data of an inode's record, placed in a stripe. It must be kept until the edit is applied that refers to it.
#[derive(Default)]
pub(super) struct Spilled {
    runs: Vec<Run>,
    written: Option<Written>,
}

impl Spilled {
    /// Places the data of an inode's record, unless all of it lies in `range`, which is about to be replaced. Returns
    /// `None`, with nothing changed, if a stripe must be opened first.
    pub(super) fn place(
        transactions: &Transactions,
        inode: &Inode,
        range: &Range<u64>,
    ) -> Result<Option<Self>, FsError> {
        match &inode.inline {
            Inline::Data(data) if range.start > 0 || range.end < data.len() as u64 => {
                let written = transactions.write_at_once(inode.class, data)?;
                Ok(written.map(|written| Self {
                    runs: extents::placed_at(0, &written),
                    written: Some(written),
                }))
            }
            Inline::Data(_) | Inline::None | Inline::Target(_) => Ok(Some(Self::default())),
        }
    }

    /// Gives the place back, because no edit will refer to it.
    pub(super) fn abandon(&self, transactions: &Transactions) -> Result<(), FsError> {
        if let Some(written) = &self.written {
            transactions.abandon(written)?;
        }
        Ok(())
    }

    /// Puts into `edit` that `range` of a file holds `runs`. The rest of the file keeps what it held, which includes
    /// the spilled data. The caller holds the file's lock until the edit is applied.
    pub(super) fn replace_range(
        &self,
        transactions: &Transactions,
        edit: &mut Edit,
        (ino, inode): (Ino, &mut Inode),
        range: &Range<u64>,
        runs: &[Run],
    ) -> Result<(), FsError> {
        let old = if inode.allocated_bytes > 0 {
            extents::around(transactions, ino, range)?
        } else {
            Vec::new()
        };
        let current = if self.runs.is_empty() {
            &old
        } else {
            &self.runs
        };
        let new = extents::splice(current, range, runs);
        let growth = extents::replace(edit, ino, &old, &new);
        growth.count_in(inode);
        inode.inline = Inline::None;
        Ok(())
    }
}
