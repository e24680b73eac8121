//! Reading bytes of a stripe: from memory, from one member, or from whichever shards are left.
//!
//! # Invariants
//!
//! - A block is used only after its checksum matched: corruption becomes an erasure right here.
//! - What was reconstructed is checked as well before it leaves.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::layout::{self, Piece};
use super::segments::SegmentHandle;
use super::{Core, VolumeError};
use crate::codec::Codec;
use crate::format::record::Stripe;
use crate::format::{ShardIndex, StripeId};

mod decode;
mod fetch;

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
    pub(super) fn height(&self) -> usize {
        self.record.height as usize
    }

    pub(super) fn data_shards(&self) -> usize {
        usize::from(self.segment.record.data_shards)
    }

    pub(super) fn is_implied(&self, shard: ShardIndex) -> bool {
        self.record.is_implied(shard, self.data_shards())
    }
}

impl Core {
    /// Fills `out` with the bytes at `offset` of a stripe.
    pub(crate) fn read(
        &self,
        stripe: StripeId,
        offset: u32,
        out: &mut [u8],
    ) -> Result<(), VolumeError> {
        let offset = offset as usize;
        if self.buffers.read(stripe, offset, out)? {
            return Ok(());
        }
        let located = self.locate(stripe)?;
        if offset + out.len() > located.record.payload_len as usize {
            let what = "an extent ends beyond the payload";
            return Err(VolumeError::BadRecord { stripe, what });
        }
        let pieces = layout::pieces(located.height(), offset, out.len());
        if self.fill_from_cache(stripe, &pieces, out) {
            return Ok(());
        }
        if self.prefetch.wait_for(stripe) && self.fill_from_cache(stripe, &pieces, out) {
            return Ok(());
        }
        let rows = |piece: &Piece| Rows {
            shard: piece.shard,
            range: piece.blocks(),
        };
        let wanted: Vec<Rows> = pieces.iter().map(rows).collect();
        let fetched = self.fetch(&located, &wanted)?;
        for (piece, bytes) in pieces.iter().zip(fetched) {
            let skip = piece.within.start - piece.blocks().start;
            out[piece.out.clone()].copy_from_slice(&bytes[skip..skip + piece.within.len()]);
        }
        Ok(())
    }

    fn fill_from_cache(&self, stripe: StripeId, pieces: &[Piece], out: &mut [u8]) -> bool {
        let cached: Option<Vec<Bytes>> = pieces
            .iter()
            .map(|piece| self.cache.get(stripe, piece.shard))
            .collect();
        let Some(cached) = cached else {
            return false;
        };
        for (piece, shard) in pieces.iter().zip(cached) {
            out[piece.out.clone()].copy_from_slice(&shard[piece.within.clone()]);
        }
        true
    }

    /// Reads all data shards of a stripe into the cache, from all members at once.
    pub(super) fn read_ahead(&self, stripe: StripeId) -> Result<(), VolumeError> {
        let located = self.locate(stripe)?;
        let data = layout::shards(&located.segment.record).take(located.data_shards());
        let wanted: Vec<Rows> = data
            .filter(|&shard| !located.is_implied(shard) && !self.cache.contains(stripe, shard))
            .map(|shard| Rows {
                shard,
                range: 0..located.height(),
            })
            .collect();
        if wanted.is_empty() || wanted.len() * located.height() * 2 > self.cache.limit_bytes() {
            return Ok(());
        }
        for (rows, bytes) in wanted.iter().zip(self.fetch(&located, &wanted)?) {
            self.cache.put(stripe, rows.shard, bytes);
        }
        Ok(())
    }

    fn locate(&self, stripe: StripeId) -> Result<Located, VolumeError> {
        let record = self
            .record_of(stripe)?
            .ok_or(VolumeError::UnknownStripe { stripe })?;
        let bad = |what| VolumeError::BadRecord { stripe, what };
        let segment = self
            .segments
            .get(record.segment)
            .ok_or_else(|| bad("its segment is unknown"))?;
        let (k, total) = (
            usize::from(segment.record.data_shards),
            layout::total_shards(&segment.record),
        );
        if record.height == 0 || u64::from(record.height) * k as u64 > u64::from(u32::MAX) {
            return Err(bad("its height makes no sense"));
        }
        if record.payload_len as usize > record.height as usize * k {
            return Err(bad("its payload is longer than its shards"));
        }
        if segment.record.slots.len() != total {
            return Err(bad("its segment has not one slot for each shard"));
        }
        let codec = self
            .codec_of(&segment.record)
            .map_err(|source| VolumeError::Codec { stripe, source })?;
        Ok(Located {
            id: stripe,
            record,
            segment,
            codec,
        })
    }
}
