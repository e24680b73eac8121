//! Runs: stretches of a file that lie in one piece in a stripe.

use std::ops::Range;

use crate::format::record::Extent;
use crate::format::{Record, StripeId, key};

use super::error::{FsError, corrupt};
use super::limits::SIZE_MAX;

/// A run of a file's bytes inside a stripe: an extent together with its place in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run {
    /// Offset in the file.
    pub(super) start: u64,
    /// Bytes, never 0.
    pub(super) len: u64,
    /// Stripe that holds it.
    pub(super) stripe: StripeId,
    /// The offset in the stripe's payload at which it starts.
    pub(super) stripe_offset: u32,
}

impl Run {
    /// Offset in the file of the first byte behind it.
    pub(super) fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Returns whether it stands for bytes whose writeback failed.
    pub(super) fn is_failed_writeback(&self) -> bool {
        self.stripe == Extent::REFUSED
    }

    /// Returns the part of the run that lies in `range`, if any.
    pub(super) fn clip(&self, range: &Range<u64>) -> Option<Self> {
        let start = self.start.max(range.start);
        let end = self.end().min(range.end);
        if start >= end {
            return None;
        }
        let skipped = u32::try_from(start - self.start).ok()?;
        Some(Self {
            start,
            len: end - start,
            stripe: self.stripe,
            stripe_offset: self.stripe_offset + skipped,
        })
    }

    /// Returns whether `next` goes on where this ends, in the file and in the stripe.
    pub(super) fn continues_in(&self, next: &Self) -> bool {
        self.end() == next.start
            && self.stripe == next.stripe
            && u64::from(self.stripe_offset) + self.len == u64::from(next.stripe_offset)
    }

    pub(super) fn parse(key: &[u8], value: &[u8]) -> Result<Self, FsError> {
        let (ino, end) = key::parse_extent(key)?;
        let extent = Extent::decode(value)?;
        if u64::from(extent.stripe_offset) + extent.len > u64::from(u32::MAX) {
            return Err(corrupt(ino, "an extent is longer than a stripe"));
        }
        if end > SIZE_MAX {
            return Err(corrupt(ino, "an extent ends behind the longest file"));
        }
        let start = end.checked_sub(extent.len);
        Ok(Self {
            start: start.ok_or_else(|| corrupt(ino, "an extent begins before the file"))?,
            len: extent.len,
            stripe: extent.stripe,
            stripe_offset: extent.stripe_offset,
        })
    }
}
