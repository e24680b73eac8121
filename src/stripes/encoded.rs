//! A stripe in the form in which it is written.

use std::sync::Arc;

use bytes::Bytes;

use super::classes::ClassCode;
use super::layout;
use crate::format::record::{ShardSet, ShardSums, Stripe};
use crate::format::{SegmentId, ShardIndex, StripeId};

/// A stripe ready to be written: all its shards, parity included.
#[derive(Debug)]
pub(super) struct Encoded {
    pub(super) stripe: StripeId,
    pub(super) code: Arc<ClassCode>,
    pub(super) payload_len: usize,
    pub(super) height: usize,
    /// The shards that exist: all but the implied ones.
    pub(super) shards: Vec<(ShardIndex, Bytes)>,
    /// The checksums of their blocks, in the same order.
    pub(super) sums: Vec<(ShardIndex, ShardSums)>,
}

impl Encoded {
    /// Returns the record of the stripe at an offset of a segment.
    pub(super) fn record(
        &self,
        (segment, offset): (SegmentId, u64),
        rotation: u8,
        written: ShardSet,
    ) -> Stripe {
        Stripe {
            segment,
            offset,
            height: layout::stripe_bytes(self.height),
            payload_len: layout::stripe_bytes(self.payload_len),
            rotation,
            written,
        }
    }
}
