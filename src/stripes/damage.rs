//! Damage that was found while shards were read: messages, counters, and the ranges that cannot be recovered.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::unrecoverable::UnrecoverableRanges;
use crate::format::{ShardIndex, StripeId};
use crate::rate_limit::RateLimit;

/// The damage of a shard, present or past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Finding {
    /// Some blocks do not match their checksums.
    WrongBytes,
    /// The file is gone, or ends before it.
    Missing,
    /// There are no checksums to match.
    NoChecksums,
}

/// The damage that was found since the volume was opened.
#[derive(Debug)]
pub(crate) struct Damage {
    /// The rate limiter of the messages: each finding once for each shard, and not too many of them.
    log: RateLimit<(StripeId, ShardIndex, Finding)>,
    /// The same for repairs of shards, which may be needed again later.
    repairs: RateLimit<(StripeId, ShardIndex)>,
    repaired_ranges: AtomicU64,
    lacks_files: AtomicBool,
    unrecoverable: UnrecoverableRanges,
}

impl Default for Damage {
    fn default() -> Self {
        Self {
            log: RateLimit::once(),
            repairs: RateLimit::once_a_minute(),
            repaired_ranges: AtomicU64::new(0),
            lacks_files: AtomicBool::new(false),
            unrecoverable: UnrecoverableRanges::default(),
        }
    }
}

impl Damage {
    /// Logs `text` unless the same was found of this shard before, or too much was logged just now.
    pub(super) fn warn(
        &self,
        (stripe, shard): (StripeId, ShardIndex),
        finding: Finding,
        text: impl FnOnce() -> String,
    ) {
        let found = (stripe, shard, finding);
        let Some(left_out) = self.log.admit(found, Instant::now()) else {
            return;
        };
        if left_out > 0 {
            tracing::warn!("{left_out} more shards were found wrong");
        }
        tracing::warn!(%stripe, %shard, "{}", text());
    }

    /// Notes that the file of a shard is gone or too short, so that it is rebuilt, and logs `text`.
    pub(super) fn note_missing(&self, id: (StripeId, ShardIndex), text: impl FnOnce() -> String) {
        self.set_lacks_files(true);
        self.warn(id, Finding::Missing, text);
    }

    /// Counts ranges of a shard that were repaired, and logs `text`. It logs nothing if the same shard was repaired within a
    /// minute, or if too much was logged just now.
    pub(super) fn note_repaired(
        &self,
        id: (StripeId, ShardIndex),
        ranges: usize,
        text: impl FnOnce() -> String,
    ) {
        self.repaired_ranges
            .fetch_add(ranges as u64, Ordering::Relaxed);
        let Some(left_out) = self.repairs.admit(id, Instant::now()) else {
            return;
        };
        if left_out > 0 {
            tracing::warn!("{left_out} more shards were repaired");
        }
        let (stripe, shard) = id;
        tracing::warn!(%stripe, %shard, "{}", text());
    }

    /// Returns how many wrong ranges of blocks were repaired.
    pub(crate) fn repaired_ranges(&self) -> u64 {
        self.repaired_ranges.load(Ordering::Relaxed)
    }

    /// Returns whether segment files on online members are known to be gone or too short.
    pub(crate) fn lacks_files(&self) -> bool {
        self.lacks_files.load(Ordering::Relaxed)
    }

    /// Notes whether segment files on online members are gone or too short.
    pub(crate) fn set_lacks_files(&self, lacks_files: bool) {
        self.lacks_files.store(lacks_files, Ordering::Relaxed);
    }

    /// Returns the bytes of stripes that could not be recovered when they were last read.
    pub(crate) fn unrecoverable(&self) -> &UnrecoverableRanges {
        &self.unrecoverable
    }
}
