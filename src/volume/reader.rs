//! Reading bytes of a stripe: from memory, from one member, or from whichever shards are left.
//!
//! # Invariants
//!
//! - A block is used only after its checksum matched: corruption becomes an erasure right here.
//! - What was reconstructed is checked as well before it leaves.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::layout::{self, Piece};
use super::prefetch::{Claim, Turn};
use super::segments::SegmentHandle;
use super::{Core, VolumeError};
use crate::codec::Codec;
use crate::format::record::{MAX_STRIPE_BYTES, Stripe};
use crate::format::{BLOCK_SIZE, ShardIndex, StripeId};

mod decode;
mod fetch;

pub(super) use fetch::mismatches;

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

/// The rows of stripes of which parts of shards were decoded lately.
#[derive(Debug, Default)]
pub(super) struct PartlyDecoded(Mutex<VecDeque<(StripeId, Rows)>>);

/// Partly decoded shards that are remembered.
const MAX_PARTLY_DECODED: usize = 64;

impl PartlyDecoded {
    /// Takes note of rows; returns whether they go on where others ended lately, or nearly so: requests
    /// of one reader may overtake one another.
    fn note(&self, stripe: StripeId, rows: &Rows) -> bool {
        let mut noted = self.0.lock();
        let goes_on = |(of, before): &(StripeId, Rows)| {
            let reach = before.range.end + 2 * rows.range.len();
            *of == stripe
                && before.shard == rows.shard
                && (before.range.end..=reach).contains(&rows.range.start)
        };
        if noted.iter().any(goes_on) {
            return true;
        }
        noted.push_back((stripe, rows.clone()));
        if noted.len() > MAX_PARTLY_DECODED {
            noted.pop_front();
        }
        false
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
        let rows = |piece: &Piece| Rows {
            shard: piece.shard,
            range: piece.blocks(),
        };
        let wanted: Vec<Rows> = pieces.iter().map(rows).collect();
        let whole = match self
            .prefetch
            .join(stripe, self.is_worth_decoding(&located, &wanted))
        {
            Turn::Past => true,
            Turn::Yours(claim) => {
                self.read_ahead(&claim);
                true
            }
            Turn::Nobodys => false,
        };
        if whole && self.fill_from_cache(stripe, &pieces, out) {
            return Ok(());
        }
        let fetched = self
            .fetch(&located, &wanted)
            .inspect_err(|error| self.note_lost(&located, &wanted, error))?;
        for (piece, bytes) in pieces.iter().zip(fetched) {
            let skip = piece.within.start - piece.blocks().start;
            out[piece.out.clone()].copy_from_slice(&bytes[skip..skip + piece.within.len()]);
        }
        Ok(())
    }

    /// Takes note of which blocks of what was to be read cannot be had.
    pub(super) fn note_lost(&self, located: &Located, wanted: &[Rows], error: &VolumeError) {
        if !matches!(error, VolumeError::TooFewShards { .. }) {
            return;
        }
        let data_shards = located.data_shards();
        let of_payload = |rows: &Rows| {
            layout::payload_range(&located.record, data_shards, rows.shard, &rows.range)
        };
        let is_known = |range: &Range<u32>| self.undecodable.knows(located.id, range);
        if wanted
            .iter()
            .filter_map(of_payload)
            .any(|range| is_known(&range))
        {
            return;
        }
        let blocks = wanted.iter().flat_map(|rows| {
            let starts = rows.range.clone().step_by(BLOCK_SIZE);
            starts.map(|start| Rows {
                shard: rows.shard,
                range: start..start + BLOCK_SIZE,
            })
        });
        let is_lost = |block: &Rows| {
            let fetched = self.fetch(located, std::slice::from_ref(block));
            matches!(fetched, Err(VolumeError::TooFewShards { .. }))
        };
        let lost: Vec<_> = blocks
            .filter(is_lost)
            .filter_map(|block| of_payload(&block))
            .collect();
        self.undecodable.add(located.id, &lost);
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

    /// Returns whether the whole of a stripe should be decoded for some rows of it: some of them are
    /// lost, or on a member that is slow, and the reader seems to be on its way through the stripe.
    ///
    /// It is if it enters a lost shard at its start, takes much of it, or goes on where it was. Decoding for it piece
    /// by piece would read each of the other shards as often as the lost one. For one that reads here and there, that
    /// is little beside the whole.
    fn is_worth_decoding(&self, located: &Located, wanted: &[Rows]) -> bool {
        let is_lost = |rows: &&Rows| {
            let member = self.reachable(located, rows.shard);
            !located.is_implied(rows.shard)
                && member.is_none_or(|member| self.members.is_avoided(member))
        };
        let is_telling = |rows: &Rows| {
            let takes_much = rows.range.len() * 2 >= located.height();
            rows.range.start == 0 || takes_much || self.partly_decoded.note(located.id, rows)
        };
        wanted.iter().filter(is_lost).any(is_telling)
    }

    /// Reads all data shards of a stripe into the cache, from all members at once. Nothing fails if this
    /// does.
    pub(super) fn read_ahead(&self, claim: &Claim<'_>) {
        let stripe = claim.stripe();
        if let Err(error) = self.read_whole(stripe) {
            log::debug!("stripe {stripe}: not read ahead: {error}");
        }
    }

    fn read_whole(&self, stripe: StripeId) -> Result<(), VolumeError> {
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

    pub(super) fn locate(&self, stripe: StripeId) -> Result<Located, VolumeError> {
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
        let data_bytes = u64::from(record.height) * k as u64;
        if record.height == 0 || data_bytes > u64::from(MAX_STRIPE_BYTES) {
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
