//! The charge of an inode to its quota.

use crate::format::QuotaId;
use crate::format::record::{Inline, Inode, QuotaUsage};

/// Unit in which the bytes of a file are counted, as `st_blocks` counts them.
const UNIT: u64 = 512;

/// The charge of one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fs) struct Charge {
    /// The quota that the inode names.
    pub(in crate::fs) quota: QuotaId,
    /// The storage of the inode, and the inode itself.
    pub(in crate::fs) usage: QuotaUsage,
}

impl Charge {
    /// Returns the charge of an inode. Data that is still to be cut off behind the end of a file counts.
    pub(in crate::fs) fn of(inode: &Inode) -> Self {
        let in_record = match &inode.inline {
            Inline::Data(data) => data.len() as u64,
            Inline::None | Inline::Target(_) => 0,
        };
        let bytes = inode.allocated_bytes.saturating_add(in_record);
        Self {
            quota: inode.quota,
            usage: QuotaUsage {
                bytes: bytes.div_ceil(UNIT).saturating_mul(UNIT),
                files: 1,
            },
        }
    }
}

/// The charge of one inode before and after an edit; `None` where there is no such inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fs) struct Recharge {
    pub(in crate::fs) before: Option<Charge>,
    pub(in crate::fs) after: Option<Charge>,
}

/// The change of what a quota counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::fs) struct Change {
    pub(in crate::fs) bytes: i64,
    pub(in crate::fs) files: i64,
}

impl Change {
    /// Adds a usage.
    pub(in crate::fs) fn add(&mut self, usage: QuotaUsage) {
        self.bytes = self.bytes.saturating_add(signed(usage.bytes));
        self.files = self.files.saturating_add(signed(usage.files));
    }

    /// Takes a usage away.
    pub(in crate::fs) fn subtract(&mut self, usage: QuotaUsage) {
        self.bytes = self.bytes.saturating_sub(signed(usage.bytes));
        self.files = self.files.saturating_sub(signed(usage.files));
    }

    /// Returns a usage after the change.
    pub(in crate::fs) fn applied_to(self, usage: QuotaUsage) -> QuotaUsage {
        QuotaUsage {
            bytes: usage.bytes.saturating_add_signed(self.bytes),
            files: usage.files.saturating_add_signed(self.files),
        }
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
