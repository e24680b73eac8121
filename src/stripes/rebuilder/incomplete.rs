//! Stripes that lack shards, and the targets of a rebuild.

use crate::format::record::{Segment, ShardSet, Stripe};
use crate::format::{MemberIndex, ShardIndex, StripeId};

/// A slot of a segment, and the member on which its shards are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuildTarget {
    /// The slot.
    pub slot: usize,
    /// The member.
    pub member: MemberIndex,
}

/// A stripe, and which of its shards are to be written.
#[derive(Clone, Copy, Debug)]
pub struct IncompleteStripe {
    /// Its number.
    pub stripe: StripeId,
    /// Its record.
    pub record: Stripe,
    /// The shards; each lies in the slot of a target.
    pub shards: ShardSet,
}

impl IncompleteStripe {
    pub(super) fn start(&self) -> u64 {
        self.record.offset
    }

    pub(super) fn end(&self) -> u64 {
        self.record.offset + u64::from(self.record.height)
    }

    pub(super) fn height(&self) -> usize {
        self.record.height as usize
    }

    /// Returns the bytes that are to be written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shards.len() as u64 * u64::from(self.record.height)
    }

    /// Returns the shard that lies in a slot, if it is to be written.
    pub(super) fn shard_in(&self, segment: &Segment, slot: usize) -> Option<ShardIndex> {
        let shard = segment.shard_in(slot, self.record.rotation)?;
        self.shards.contains(shard).then_some(shard)
    }
}
