//! Reading bytes of a stripe: from memory, from one member, or from whichever shards are left.
//!
//! # Invariants
//!
//! - A block is used only after its checksum matched: corruption becomes an erasure right here.
//! - What was reconstructed is checked as well before it leaves.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::buffers::Buffers;
use super::cache::{CacheUse, ShardCache};
use super::error::StripeError;
use super::layout::{self, ShardRange};
use super::locator::{Located, Locator, Rows};
use super::prefetch::{Claim, Prefetch, Turn};
use super::shard_reader::ShardReader;
use crate::format::StripeId;
use crate::membership::Members;

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

/// The place from which bytes were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// A stripe buffer, or what members have in memory. Reading ahead would gain nothing.
    FromMemory,
    /// The members, now or when they were read ahead.
    FromMembers,
}

/// Reads bytes of stripes.
pub(crate) struct Reader {
    members: Arc<Members>,
    buffers: Arc<Buffers>,
    locator: Arc<Locator>,
    shards: Arc<ShardReader>,
    cache: Arc<ShardCache>,
    prefetch: Prefetch,
    partly_decoded: PartlyDecoded,
    /// True if threads read ahead.
    has_threads: bool,
}

impl Reader {
    /// Returns how the cache of shards is used.
    pub(crate) fn cache_use(&self) -> CacheUse {
        self.cache.usage()
    }

    /// Creates the part. With `has_threads`, threads call [`Reader::read_ahead_forever`].
    pub(super) fn new(
        members: Arc<Members>,
        buffers: Arc<Buffers>,
        locator: Arc<Locator>,
        shards: Arc<ShardReader>,
        cache: Arc<ShardCache>,
        has_threads: bool,
    ) -> Self {
        Self {
            members,
            buffers,
            locator,
            shards,
            cache,
            prefetch: Prefetch::default(),
            partly_decoded: PartlyDecoded::default(),
            has_threads,
        }
    }

    /// Fills `out` with the bytes at `offset` of a stripe, from memory or from members. Blocks that are lost or wrong are
    /// reconstructed; wrong ones are also repaired on their member. Returns where the bytes were.
    ///
    /// # Errors
    ///
    /// [`StripeError::TooFewShards`] if more is lost than parity replaces; `out` is unspecified then.
    pub(crate) fn read(
        &self,
        stripe: StripeId,
        offset: u32,
        out: &mut [u8],
    ) -> Result<Served, StripeError> {
        let offset = offset as usize;
        if self.buffers.read(stripe, offset, out)? {
            return Ok(Served::FromMemory);
        }
        let located = self.locator.locate(stripe)?;
        if offset + out.len() > located.record.payload_len as usize {
            let what = "an extent ends beyond the payload";
            return Err(StripeError::BadRecord { stripe, what });
        }
        if let Some(served) = self.serve_at_once(&located, offset, out)? {
            return Ok(served);
        }
        let ranges: Vec<_> = layout::shard_ranges(located.height(), offset, out.len()).collect();
        let rows = |range: &ShardRange| Rows {
            shard: range.shard,
            range: range.blocks(),
        };
        let wanted: Vec<Rows> = ranges.iter().map(rows).collect();
        let whole = match self
            .prefetch
            .join(stripe, self.is_worth_decoding(&located, &wanted))
        {
            Turn::Done => true,
            Turn::Caller(claim) => {
                self.read_ahead(&claim);
                true
            }
            Turn::NotWanted => false,
        };
        if whole && self.fill_from_cache(stripe, &ranges, out) {
            return Ok(Served::FromMembers);
        }
        let fetched = self.shards.fetch_or_note(&located, &wanted)?;
        for (range, bytes) in ranges.iter().zip(fetched) {
            let skip = range.within.start - range.blocks().start;
            out[range.out.clone()].copy_from_slice(&bytes[skip..skip + range.within.len()]);
        }
        Ok(Served::FromMembers)
    }

    /// Fills `out` from the cache and from what members have in memory, if all of it is there.
    fn serve_at_once(
        &self,
        located: &Located,
        offset: usize,
        out: &mut [u8],
    ) -> Result<Option<Served>, StripeError> {
        let mut served = Served::FromMemory;
        for range in layout::shard_ranges(located.height(), offset, out.len()) {
            let part = &mut out[range.out.clone()];
            if let Some(shard) = self.cache.get(located.id, range.shard) {
                part.copy_from_slice(&shard[range.within.clone()]);
                served = Served::FromMembers;
            } else if !self.shards.read_in_memory(located, &range, part)? {
                return Ok(None);
            }
        }
        Ok(Some(served))
    }

    fn fill_from_cache(&self, stripe: StripeId, ranges: &[ShardRange], out: &mut [u8]) -> bool {
        let cached: Option<Vec<Bytes>> = ranges
            .iter()
            .map(|range| self.cache.get(stripe, range.shard))
            .collect();
        let Some(cached) = cached else {
            return false;
        };
        for (range, shard) in ranges.iter().zip(cached) {
            out[range.out.clone()].copy_from_slice(&shard[range.within.clone()]);
        }
        true
    }

    /// Returns whether the whole of a stripe should be decoded for some rows of it: some of them are
    /// lost, or on a member that is slow, and the reader seems to be on its way through the stripe.
    ///
    /// It is if it enters a lost shard at its start, takes much of it, or goes on where it was. Decoding for it range
    /// by range would read each of the other shards as often as the lost one. For one that reads here and there, that
    /// is little beside the whole.
    fn is_worth_decoding(&self, located: &Located, wanted: &[Rows]) -> bool {
        let is_lost = |rows: &&Rows| {
            let member = self.shards.reachable(located, rows.shard);
            !located.is_implied(rows.shard)
                && member.is_none_or(|member| self.members.io().is_avoided(member))
        };
        let is_telling = |rows: &Rows| {
            let takes_much = rows.range.len() * 2 >= located.height();
            rows.range.start == 0 || takes_much || self.partly_decoded.note(located.id, rows)
        };
        wanted.iter().filter(is_lost).any(is_telling)
    }

    /// Reads all data shards of a stripe into the cache, from all members at once. Nothing fails if this
    /// does.
    fn read_ahead(&self, claim: &Claim<'_>) {
        let stripe = claim.stripe();
        if let Err(error) = self.read_whole(stripe) {
            tracing::debug!("stripe {stripe}: not read ahead: {error}");
        }
    }

    fn read_whole(&self, stripe: StripeId) -> Result<(), StripeError> {
        let located = self.locator.locate(stripe)?;
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
        for (rows, bytes) in wanted.iter().zip(self.shards.fetch(&located, &wanted)?) {
            self.cache.put(stripe, rows.shard, bytes);
        }
        Ok(())
    }

    /// Asks for a whole stripe to be read into the cache. Never blocks, and may do nothing.
    pub(crate) fn prefetch(&self, stripe: StripeId) {
        if self.has_threads && self.cache.limit_bytes() > 0 {
            self.prefetch.ask(stripe);
        }
    }

    /// Reads the stripes ahead that were asked for, until the reader is closed.
    pub(super) fn read_ahead_forever(&self) {
        while let Some(stripe) = self.prefetch.next() {
            // A panic is logged. Only the presence of the stripe in the cache depends on this.
            let _ = catch_unwind(AssertUnwindSafe(|| self.read_ahead(&stripe)));
        }
    }

    /// Ends [`Reader::read_ahead_forever`].
    pub(super) fn close(&self) {
        self.prefetch.close();
    }

    /// Returns how often rows of a stripe were reconstructed.
    #[cfg(test)]
    pub(super) fn decodes(&self) -> u64 {
        self.shards.decodes()
    }
}
