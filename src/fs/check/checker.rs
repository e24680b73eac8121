//! A check under way: what it has found, and the walk through ranges of records.

use crate::format::key::KeyRange;
use crate::format::{FormatError, Ino};
use crate::fs::edit::Edit;
use crate::fs::error::FsError;
use crate::fs::list_lens::ListLens;
use crate::maintenance::RedundancyCounter;
use crate::metadata::{Key, Value};
use crate::transaction::Transactions;

use super::report::{CheckReport, Finding, FindingKind};

/// Records that are read at once.
const PAGE: usize = 1024;

/// Findings that are kept; of more, only the number.
const FINDINGS_MAX: usize = 10_000;

/// A check under way.
pub(super) struct Checker<'a> {
    pub(super) transactions: &'a Transactions,
    pub(super) redundancy: &'a RedundancyCounter,
    pub(super) repair: bool,
    pub(super) report: CheckReport,
}

impl Checker<'_> {
    /// Records something wrong that `repair` would repair.
    pub(super) fn repairable(
        &mut self,
        kind: FindingKind,
        ino: Option<Ino>,
        repair: Edit,
    ) -> Result<(), FsError> {
        if self.repair {
            // No length is known without a mount.
            repair.apply(self.transactions, &ListLens::default())?;
            self.transactions.clock().tick()?;
        }
        self.note(kind, ino, self.repair);
        Ok(())
    }

    /// Records something wrong that cannot be repaired.
    pub(super) fn lost(&mut self, kind: FindingKind, ino: Option<Ino>) {
        self.note(kind, ino, false);
    }

    pub(super) fn note(&mut self, kind: FindingKind, ino: Option<Ino>, repaired: bool) {
        self.report.found += 1;
        self.report.repaired += u64::from(repaired);
        self.report.lost += u64::from(kind.is_loss());
        if self.report.findings.len() < FINDINGS_MAX {
            self.report.findings.push(Finding {
                kind,
                ino,
                path: None,
                repaired,
            });
        }
    }

    /// Returns what was decoded; a failure is a finding.
    pub(super) fn decoded<T>(
        &mut self,
        decoded: Result<T, FormatError>,
        ino: Option<Ino>,
    ) -> Option<T> {
        match decoded {
            Ok(value) => Some(value),
            Err(error) => {
                self.lost(FindingKind::Damaged(error), ino);
                None
            }
        }
    }

    /// Calls `visit` for each record of a range, in order.
    pub(super) fn each(
        &mut self,
        (from, end): KeyRange,
        mut visit: impl FnMut(&mut Self, &[u8], &[u8]) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let mut cursor = Cursor::new(from, end);
        while let Some((key, value)) = cursor.next(self.transactions)? {
            visit(self, &key, &value)?;
        }
        Ok(())
    }

    pub(super) fn is_there(&self, key: &[u8]) -> Result<bool, FsError> {
        Ok(self.transactions.get(key)?.is_some())
    }
}

/// A place in a range of records.
pub(super) struct Cursor {
    from: Key,
    end: Key,
    page: std::vec::IntoIter<(Key, Value)>,
    is_last: bool,
}

impl Cursor {
    pub(super) fn new(from: Key, end: Key) -> Self {
        Self {
            from,
            end,
            page: Vec::new().into_iter(),
            is_last: false,
        }
    }

    pub(super) fn next(
        &mut self,
        transactions: &Transactions,
    ) -> Result<Option<(Key, Value)>, FsError> {
        if self.page.as_slice().is_empty() && !self.is_last {
            let page = transactions.scan(&self.from, &self.end, PAGE)?;
            self.is_last = page.len() < PAGE;
            if let Some((last, _)) = page.last() {
                // The next key after this one is this one with a zero behind it.
                self.from = [last, &[0][..]].concat().into();
            }
            self.page = page.into_iter();
        }
        Ok(self.page.next())
    }
}
