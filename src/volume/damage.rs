//! Messages about damage.

use std::time::Instant;

use crate::format::{ShardIndex, StripeId};
use crate::volume::Said;

/// The damage of a shard, present or past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::volume) enum Finding {
    /// Some blocks do not match their checksums.
    WrongBytes,
    /// The file is gone, or ends before it.
    Missing,
    /// There are no checksums to match.
    NoChecksums,
    /// Wrong blocks were written again.
    Mended,
}

/// Says each finding once for each shard, and not too many of them.
#[derive(Debug)]
pub(in crate::volume) struct Damage(Said<(StripeId, ShardIndex, Finding)>);

impl Default for Damage {
    fn default() -> Self {
        Self(Said::once())
    }
}

impl Damage {
    /// Logs `text` unless the same was found of this shard before, or too much was said just now.
    pub(in crate::volume) fn warn(
        &self,
        (stripe, shard): (StripeId, ShardIndex),
        finding: Finding,
        text: impl FnOnce() -> String,
    ) {
        let found = (stripe, shard, finding);
        let Some(left_out) = self.0.is_to_be_said(found, Instant::now()) else {
            return;
        };
        if left_out > 0 {
            log::warn!("{left_out} more shards were found wrong or mended");
        }
        log::warn!("stripe {stripe} shard {shard}: {}", text());
    }
}
