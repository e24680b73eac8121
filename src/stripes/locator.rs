//! Stripes as readers need them: the record, the segment, the codec and the checksums.

use std::ops::Range;
use std::sync::Arc;

use super::error::StripeError;
use super::layout;
use super::records::StripeRecords;
use super::segment_handle::SegmentHandle;
use super::segments::Segments;
use super::stripe_coder::StripeCoder;
use crate::codec::Codec;
use crate::format::record::{MAX_STRIPE_BYTES, ShardSums, Stripe};
use crate::format::{BLOCK_SIZE, MemberIndex, ShardIndex, StripeId};

/// A stripe that lies on members, with all that is needed to read it.
pub(super) struct Located {
    pub(super) id: StripeId,
    pub(super) record: Stripe,
    pub(super) segment: Arc<SegmentHandle>,
    pub(super) codec: Arc<Codec>,
}

/// Blocks of one shard: a range of bytes in it that starts and ends with blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) shard: ShardIndex,
    pub(super) range: Range<usize>,
}

impl Located {
    /// Returns the bytes of each shard.
    pub(super) fn height(&self) -> usize {
        self.record.height as usize
    }

    /// Returns the number of data shards.
    pub(super) fn data_shards(&self) -> usize {
        usize::from(self.segment.record.data_shards)
    }

    /// Returns whether a shard is all zeros and lies on no member.
    pub(super) fn is_implied(&self, shard: ShardIndex) -> bool {
        self.record.is_implied(shard, self.data_shards())
    }

    /// Returns the member of a shard, unless its slot is vacant.
    pub(super) fn member_of(&self, shard: ShardIndex) -> Option<MemberIndex> {
        self.segment.member_of(&self.record, shard)
    }

    /// Returns which bytes of the payload rows of a shard hold, if they hold any.
    pub(super) fn payload_range(
        &self,
        shard: ShardIndex,
        rows: &Range<usize>,
    ) -> Option<Range<u32>> {
        layout::payload_range(&self.record, self.data_shards(), shard, rows)
    }
}

/// Finds stripes by their number.
pub(super) struct Locator {
    records: Arc<StripeRecords>,
    segments: Arc<Segments>,
    coder: Arc<StripeCoder>,
}

impl Locator {
    /// Creates the part from the tables that it joins.
    pub(super) fn new(
        records: Arc<StripeRecords>,
        segments: Arc<Segments>,
        coder: Arc<StripeCoder>,
    ) -> Self {
        Self {
            records,
            segments,
            coder,
        }
    }

    /// Returns a stripe that lies on members.
    ///
    /// # Errors
    ///
    /// [`StripeError::UnknownStripe`] if it has no record; if its records make no sense, or cannot be read.
    pub(super) fn locate(&self, stripe: StripeId) -> Result<Located, StripeError> {
        let record = self
            .records
            .look_up(stripe)?
            .ok_or(StripeError::UnknownStripe { stripe })?;
        let bad = |what| StripeError::BadRecord { stripe, what };
        let segment = self
            .segments
            .get(record.segment)
            .ok_or_else(|| bad("its segment is unknown"))?;
        let k = usize::from(segment.record.data_shards);
        let data_bytes = u64::from(record.height) * k as u64;
        if record.height == 0 || data_bytes > u64::from(MAX_STRIPE_BYTES) {
            return Err(bad("its height makes no sense"));
        }
        if record.payload_len as usize > record.height as usize * k {
            return Err(bad("its payload is longer than its shards"));
        }
        if segment.record.slots.len() != segment.record.total_slots() {
            return Err(bad("its segment has not one slot for each shard"));
        }
        let codec = self
            .coder
            .codec_of(&segment.record)
            .map_err(|source| StripeError::Codec { stripe, source })?;
        Ok(Located {
            id: stripe,
            record,
            segment,
            codec,
        })
    }

    /// Returns the checksums of the blocks in `rows`, if the index has them.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub(super) fn sums_of(
        &self,
        located: &Located,
        rows: &Rows,
    ) -> Result<Option<Vec<u32>>, StripeError> {
        let shard = (located.id, rows.shard);
        self.records
            .with_block_sums(shard, blocks_of(&rows.range), |sums| sums.collect())
    }

    /// Returns whether the bytes of `rows` match their checksums; `false` if the index lacks these.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub(super) fn are_right(
        &self,
        located: &Located,
        rows: &Rows,
        bytes: &[u8],
    ) -> Result<bool, StripeError> {
        let shard = (located.id, rows.shard);
        let right = self
            .records
            .with_block_sums(shard, blocks_of(&rows.range), |sums| {
                let mut blocks = bytes.chunks(BLOCK_SIZE).zip(sums);
                blocks.all(|(block, sum)| crc32c::crc32c(block) == sum)
            })?;
        Ok(right == Some(true))
    }

    /// Returns the checksums of a shard, if the index has them.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub(super) fn sums(
        &self,
        stripe: StripeId,
        shard: ShardIndex,
    ) -> Result<Option<ShardSums>, StripeError> {
        let found = self.records.sums(stripe, shard);
        found.map_err(|source| StripeError::Lookup { stripe, source })
    }
}

/// Returns the numbers of the blocks that a range of a shard has.
fn blocks_of(range: &Range<usize>) -> Range<usize> {
    range.start / BLOCK_SIZE..range.end / BLOCK_SIZE
}

/// Returns the ranges of the shard whose blocks do not match their checksums, neighbours joined.
pub(super) fn mismatches(rows: &Rows, bytes: &[u8], sums: &[u32]) -> Vec<Range<usize>> {
    let mut bad: Vec<Range<usize>> = Vec::new();
    for (index, (block, &sum)) in bytes.chunks(BLOCK_SIZE).zip(sums).enumerate() {
        if crc32c::crc32c(block) == sum {
            continue;
        }
        let start = rows.range.start + index * BLOCK_SIZE;
        match bad.last_mut() {
            Some(last) if last.end == start => last.end += BLOCK_SIZE,
            _ => bad.push(start..start + BLOCK_SIZE),
        }
    }
    bad
}
