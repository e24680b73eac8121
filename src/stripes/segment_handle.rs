//! A segment with the name of its files.

use std::sync::Arc;

use super::layout;
use crate::format::record::{Segment, Stripe};
use crate::format::{MemberIndex, SegmentId, ShardIndex, files};

/// A segment, and the name of its files.
#[derive(Debug)]
pub(crate) struct SegmentHandle {
    pub(crate) id: SegmentId,
    pub(crate) name: Arc<str>,
    pub(crate) record: Segment,
}

impl SegmentHandle {
    /// Creates the handle of a segment.
    pub(crate) fn new(id: SegmentId, record: Segment) -> Self {
        Self {
            id,
            name: files::segment(id).into(),
            record,
        }
    }

    /// Returns the members that have a file of the segment, or should have one.
    pub(crate) fn members(&self) -> impl Iterator<Item = MemberIndex> + '_ {
        self.record.slots.iter().flatten().copied()
    }

    /// Returns the member that holds a shard of a stripe.
    pub(crate) fn member_of(&self, stripe: &Stripe, shard: ShardIndex) -> Option<MemberIndex> {
        layout::member_of(&self.record, stripe, shard)
    }
}
