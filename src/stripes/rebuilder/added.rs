//! Shards that are added to stripes, because the volume has more parity shards by now.
//!
//! Nothing is known of such a shard, so its checksums come from itself. It is therefore computed on the CPU, from shards
//! that were compared with their own checksums.

use std::sync::Arc;

use super::batch::StripeRebuild;
use crate::codec::Codec;
use crate::format::record::{Segment, ShardSums};
use crate::format::{BLOCK_SIZE, ShardIndex};
use crate::stripes::error::StripeError;
use crate::stripes::layout;
use crate::stripes::locator::{Locator, Rows};
use crate::stripes::shard_reader::ShardReader;

/// Returns the checksums of the blocks of a shard.
pub(super) fn sums_of(bytes: &[u8]) -> ShardSums {
    ShardSums(bytes.chunks(BLOCK_SIZE).map(crc32c::crc32c).collect())
}

/// Returns whether nothing is known yet of a parity shard that is to be written.
pub(super) fn has_unknown(locator: &Locator, segment: &Segment, work: &StripeRebuild<'_>) -> bool {
    let mut parity = work
        .outputs
        .iter()
        .map(|(shard, _)| layout::shard(*shard))
        .filter(|shard| shard.0 >= segment.data_shards);
    parity.any(|shard| {
        let sums = locator.sums(work.incomplete.stripe, shard);
        matches!(sums, Ok(None))
    })
}

/// Returns whether the inputs of a stripe are as they were written.
pub(super) fn are_inputs_right(
    locator: &Locator,
    segment: &Segment,
    work: &StripeRebuild<'_>,
) -> bool {
    let record = &work.incomplete.record;
    let data_shards = usize::from(segment.data_shards);
    let is_read = |shard: &ShardIndex| !record.is_implied(*shard, data_shards);
    let mut read = work
        .present
        .iter()
        .map(|(shard, bytes)| (layout::shard(*shard), bytes))
        .filter(|(shard, _)| is_read(shard));
    read.all(|(shard, bytes)| {
        let sums = locator.sums(work.incomplete.stripe, shard);
        sums.ok().flatten() == Some(sums_of(bytes))
    })
}

/// Computes the outputs from all data of a stripe, read as a reader would that found its blocks wrong.
pub(super) fn compute_carefully(
    (locator, shards): (&Locator, &ShardReader),
    codec: &Arc<Codec>,
    segment: &Segment,
    work: &mut StripeRebuild<'_>,
) -> Result<(), StripeError> {
    let incomplete = work.incomplete;
    let located = locator.locate(incomplete.stripe)?;
    let data = (0..segment.data_shards).map(ShardIndex);
    let data = data.filter(|shard| !located.is_implied(*shard));
    let rows = |shard| Rows {
        shard,
        range: 0..incomplete.height(),
    };
    let wanted: Vec<Rows> = data.map(rows).collect();
    let fetched = shards.fetch_or_note(&located, &wanted)?;
    let zeros = vec![0; incomplete.height()];
    let mut present: Vec<(usize, &[u8])> = (0..usize::from(segment.data_shards))
        .map(|shard| (shard, &zeros[..]))
        .collect();
    for (rows, bytes) in wanted.iter().zip(&fetched) {
        present[usize::from(rows.shard.0)].1 = bytes;
    }
    for (shard, output) in &mut work.outputs {
        if let Some((_, bytes)) = present.get(*shard) {
            output.copy_from_slice(bytes);
        }
    }
    let parity = work.outputs.iter_mut();
    let mut parity: Vec<(usize, &mut [u8])> = parity
        .filter(|(shard, _)| *shard >= present.len())
        .map(|(shard, output)| (*shard, &mut **output))
        .collect();
    let computed = codec.pass().reconstruct(&present, &mut parity);
    computed.map_err(|source| StripeError::Codec {
        stripe: incomplete.stripe,
        source,
    })
}
