//! The place of each byte of a stripe: heights, slots and rows. Arithmetic only.

use std::ops::Range;

use crate::format::record::{Segment, Stripe};
use crate::format::{BLOCK_SIZE, MemberIndex, ShardIndex};

/// Returns the shard with this index.
///
/// # Panics
///
/// If the index is above 255; no stripe that a codec can be made for has such a shard.
#[must_use]
pub(crate) fn shard(index: usize) -> ShardIndex {
    ShardIndex(u8::try_from(index).expect("a stripe has at most 255 shards"))
}

/// Returns an offset in a stripe, or a length of part of one, as records hold it.
///
/// # Panics
///
/// If it is 4 GiB or more; stripes are smaller by far.
#[must_use]
pub(crate) fn stripe_bytes(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a stripe is smaller than 4 GiB")
}

/// Returns the height of a stripe of `payload` bytes: what each of `data_shards` shards holds,
/// rounded up to a block.
///
/// ```text
/// 4+2, payload 20,000      |<- 8,192 ->|
///                          |  shard 0  |  shard 1  | shard 2 (3,616 used) | shard 3: implied |
/// ```
#[must_use]
pub(crate) fn height(payload: usize, data_shards: usize) -> usize {
    payload.div_ceil(data_shards).next_multiple_of(BLOCK_SIZE)
}

/// Returns the range of each file of its segment that a stripe takes.
#[must_use]
pub(crate) fn place_of(stripe: &Stripe) -> Range<u64> {
    stripe.offset..stripe.offset.saturating_add(stripe.height.into())
}

/// Returns the member that holds a shard, unless its slot is vacant or its number makes no sense.
#[must_use]
pub(crate) fn member_of(
    segment: &Segment,
    stripe: &Stripe,
    shard: ShardIndex,
) -> Option<MemberIndex> {
    let slot = segment.slot_of(shard, stripe.rotation);
    segment.slots.get(slot).copied().flatten()
}

/// Returns all shards of a segment's stripes, data first.
pub(crate) fn shards(segment: &Segment) -> impl Iterator<Item = ShardIndex> + use<> {
    (0..segment.data_shards.saturating_add(segment.parity_shards)).map(ShardIndex)
}

/// A run of bytes within one data shard that a read wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardRange {
    /// The shard.
    pub(crate) shard: ShardIndex,
    /// The bytes wanted, within the shard.
    pub(crate) within: Range<usize>,
    /// The place in the output where they go.
    pub(crate) out: Range<usize>,
}

impl ShardRange {
    /// Returns the whole blocks of the shard that cover the bytes wanted.
    pub(crate) fn blocks(&self) -> Range<usize> {
        let start = self.within.start / BLOCK_SIZE * BLOCK_SIZE;
        start..self.within.end.next_multiple_of(BLOCK_SIZE)
    }
}

/// Returns which bytes of the payload rows of a shard hold; `None` if they hold none, as those of parity
/// do not, nor what lies beyond the payload's end.
#[must_use]
pub(crate) fn payload_range(
    stripe: &Stripe,
    data_shards: usize,
    shard: ShardIndex,
    rows: &Range<usize>,
) -> Option<Range<u32>> {
    let index = usize::from(shard.0);
    let start = index * stripe.height as usize;
    let payload_len = stripe.payload_len as usize;
    let range = start + rows.start..payload_len.min(start + rows.end);
    (index < data_shards && !range.is_empty())
        .then(|| stripe_bytes(range.start)..stripe_bytes(range.end))
}

/// Splits `len` bytes at `offset` of a stripe of shards of `height` bytes into runs, one for each
/// data shard that is touched.
pub(crate) fn shard_ranges(
    height: usize,
    offset: usize,
    len: usize,
) -> impl Iterator<Item = ShardRange> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done;
        let (index, start) = (at / height, at % height);
        let take = (height - start).min(len - done);
        let out = done..done + take;
        done = out.end;
        Some(ShardRange {
            shard: shard(index),
            within: start..start + take,
            out,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_height_is_the_least_multiple_of_a_block_that_holds_the_payload() {
        for data_shards in [1, 2, 3, 4, 10, 64] {
            for payload in (1..600_000).step_by(997) {
                let height = height(payload, data_shards);
                assert!(height.is_multiple_of(BLOCK_SIZE));
                assert!(height * data_shards >= payload);
                assert!((height - BLOCK_SIZE) * data_shards < payload);
            }
        }
    }

    #[test]
    fn shard_ranges_cover_the_range_once_and_in_order() {
        let height = 3 * BLOCK_SIZE;
        for offset in (0..40_000).step_by(1_021) {
            for len in [0, 1, 4_095, 4_096, 12_288, 30_001] {
                let mut at = offset;
                let mut done = 0;
                for range in shard_ranges(height, offset, len) {
                    let start = usize::from(range.shard.0) * height + range.within.start;
                    assert_eq!((start, range.out.start), (at, done));
                    assert!(range.blocks().start <= range.within.start);
                    assert!(range.blocks().end <= height);
                    at += range.within.len();
                    done = range.out.end;
                }
                assert_eq!(done, len, "offset {offset}");
            }
        }
    }
}
