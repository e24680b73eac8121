//! Runs: stretches of a file that lie in one piece in a stripe.

use std::ops::Range;

use crate::format::StripeId;
use crate::format::record::Extent;

/// A run of a file's bytes inside a stripe: an extent together with its place in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// Offset in the file.
    pub start: u64,
    /// Bytes, never 0.
    pub len: u64,
    /// Stripe that holds it.
    pub stripe: StripeId,
    /// The offset in the stripe's payload at which it starts.
    pub stripe_offset: u32,
}

impl Run {
    /// Offset in the file of the first byte behind it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Returns the bytes of the file that it holds.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.start..self.end()
    }

    /// Returns whether it holds a byte of `range`.
    #[must_use]
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        self.start < range.end && range.start < self.end()
    }

    /// Returns whether it stands for bytes whose writeback failed.
    #[must_use]
    pub fn is_failed_writeback(&self) -> bool {
        self.stripe == Extent::FAILED_WRITEBACK
    }

    /// Returns whether it stands for bytes that are not written yet, and for which the volume keeps room.
    #[must_use]
    pub fn is_unwritten(&self) -> bool {
        self.stripe == Extent::UNWRITTEN
    }

    /// Returns whether a stripe holds it.
    #[must_use]
    pub fn is_in_stripe(&self) -> bool {
        Extent::is_stripe(self.stripe)
    }

    /// Returns the part of the run that lies in `range`, if any.
    #[must_use]
    pub fn clip(&self, range: &Range<u64>) -> Option<Self> {
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
    #[must_use]
    pub fn continues_in(&self, next: &Self) -> bool {
        self.end() == next.start
            && self.stripe == next.stripe
            && u64::from(self.stripe_offset) + self.len == u64::from(next.stripe_offset)
    }
}
