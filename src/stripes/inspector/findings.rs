//! The findings about the shards of one stripe, from reading to repair.

use std::ops::Range;

use bytes::Bytes;

use crate::format::record::ShardSet;
use crate::format::{MemberIndex, ShardIndex};
use crate::store::Buffer;

/// The state in which a shard was found.
#[derive(Debug)]
pub(super) enum FoundShard {
    /// All its blocks are right; those of an implied shard are zeros.
    Right(Bytes),
    /// It was read, and is wrong in these ranges.
    Wrong(Bytes, Vec<Range<usize>>),
    /// The file of an online member does not have it.
    Gone,
    /// It was never written, or its member is away, or there are no checksums to tell.
    Away,
}

impl FoundShard {
    /// Says whether it is right throughout a range of rows.
    pub(super) fn is_right_in(&self, rows: &Range<usize>) -> bool {
        match self {
            Self::Right(_) => true,
            Self::Wrong(_, ranges) => !ranges
                .iter()
                .any(|wrong| wrong.start < rows.end && rows.start < wrong.end),
            Self::Gone | Self::Away => false,
        }
    }

    pub(super) fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Right(bytes) | Self::Wrong(bytes, _) => Some(bytes),
            Self::Gone | Self::Away => None,
        }
    }
}

/// The result of restoring one stripe.
#[derive(Debug, Default)]
pub(super) struct Restored {
    /// The shards that were not right, as far as they could be computed.
    pub(super) fixed: Vec<Fixed>,
    /// The ranges of the payload that cannot be had.
    pub(super) lost: Vec<Range<u32>>,
    /// True if they could not be had either if all members were there.
    pub(super) is_lost_for_good: bool,
    /// The rows in which what is right does not fit together.
    pub(super) inconsistent: Vec<Range<u32>>,
    /// The parities that cannot be trusted, of the rows in which they are most.
    pub(super) suspects: ShardSet,
}

impl Restored {
    /// Notes the parities that cannot be trusted in some rows.
    pub(super) fn suspect(&mut self, suspects: ShardSet) {
        if suspects.len() > self.suspects.len() {
            self.suspects = suspects;
        }
    }
}

/// A shard that was not right.
#[derive(Debug)]
pub(super) struct Fixed {
    pub(super) shard: usize,
    /// The shard, right in `ranges` and where it was right before.
    pub(super) bytes: Buffer,
    /// The ranges that were recomputed, in order.
    pub(super) ranges: Vec<Range<usize>>,
    /// True if that is all that was not right.
    pub(super) is_whole: bool,
}

/// The bytes of one shard to be written.
#[derive(Debug)]
pub(super) struct ShardRepair {
    pub(super) shard: ShardIndex,
    pub(super) member: MemberIndex,
    /// True if the shard is right afterwards, all of it.
    pub(super) is_whole: bool,
    /// The shard.
    pub(super) bytes: Buffer,
    /// The ranges of it to be written.
    pub(super) ranges: Vec<Range<usize>>,
}
