//! From the payload of a stripe to its shards: parity and the checksums of all blocks, in one pass over the payload.

use std::sync::Arc;

use super::buffers::Sealed;
use super::encoded::Encoded;
use super::error::StripeError;
use super::layout;
use super::stripe_coder::StripeCoder;
use crate::codec::CodingTask;
use crate::format::BLOCK_SIZE;
use crate::format::record::ShardSums;
use crate::store::{Buffer, Pool};

/// The encoded form of a stripe.
struct Draft<'s> {
    sealed: &'s Sealed,
    height: usize,
    /// Room for the parity shards, one behind the other.
    parity: Buffer,
    /// Room for the checksums of all shards.
    sums: Vec<Vec<u32>>,
}

/// Data, parity and checksums.
type Parts<'d> = (Vec<&'d [u8]>, Vec<&'d mut [u8]>, Vec<&'d mut [u32]>);

/// Encodes stripes that are to be written.
pub(super) struct Encoder {
    coder: Arc<StripeCoder>,
    /// Memory for parity.
    pool: Pool,
}

impl Encoder {
    /// Creates the part; parity takes memory of `pool`.
    pub(super) fn new(coder: Arc<StripeCoder>, pool: Pool) -> Self {
        Self { coder, pool }
    }

    /// Returns whether several stripes are better encoded by one call than one by each thread.
    pub(super) fn prefers_batches(&self) -> bool {
        self.coder.prefers_batches()
    }

    /// Encodes a stripe.
    ///
    /// # Errors
    ///
    /// If the codec refuses it.
    pub(super) fn encode(&self, sealed: &Sealed) -> Result<Encoded, StripeError> {
        let mut draft = self.draft(sealed);
        let (data, mut rows, mut lists) = draft.parts();
        self.coder
            .pass(self.coder.codec())
            .encode_with_checksums(&data, &mut rows, &mut lists)
            .map_err(|source| StripeError::Codec {
                stripe: sealed.stripe,
                source,
            })?;
        Ok(self.finish(draft))
    }

    /// Encodes several stripes by one call, and keeps the result in each of them. Does nothing if the codec refuses one:
    /// the thread that flushes it reports the reason.
    pub(super) fn encode_all<'s>(&self, stripes: impl Iterator<Item = &'s Arc<Sealed>>) {
        let mut drafts: Vec<Draft<'_>> = stripes.map(|sealed| self.draft(sealed)).collect();
        let mut parts: Vec<Parts<'_>> = drafts.iter_mut().map(Draft::parts).collect();
        let pass = self.coder.pass(self.coder.codec());
        let tasks = parts.iter_mut().map(|(data, rows, lists)| {
            let task = pass.encoding(data, rows, lists);
            task.ok()
        });
        let tasks: Option<Vec<CodingTask<'_, '_>>> = tasks.collect();
        let are_encoded = tasks.map(|mut tasks| CodingTask::compute_all(&mut tasks));
        if are_encoded.is_some() {
            for draft in drafts {
                let sealed = draft.sealed;
                sealed.set_encoded(self.finish(draft));
            }
        }
    }

    fn draft<'s>(&self, sealed: &'s Sealed) -> Draft<'s> {
        let geometry = self.coder.codec().geometry();
        let height = layout::height(sealed.payload_len, geometry.data_shards());
        let blocks = height.div_ceil(BLOCK_SIZE);
        Draft {
            sealed,
            height,
            parity: self.pool.buffer(height * geometry.parity_shards()),
            sums: vec![vec![0; blocks]; geometry.total_shards()],
        }
    }

    /// Makes a draft that was encoded ready to be written.
    fn finish(&self, draft: Draft<'_>) -> Encoded {
        let geometry = self.coder.codec().geometry();
        let (k, m) = (geometry.data_shards(), geometry.parity_shards());
        let Draft {
            sealed,
            height,
            parity,
            mut sums,
        } = draft;
        let parity = parity.freeze();
        let slice = |index: usize| {
            let (of, row) = if index < k {
                (&sealed.data, index)
            } else {
                (&parity, index - k)
            };
            (
                layout::shard(index),
                of.slice(row * height..(row + 1) * height),
            )
        };
        let implied = |index: usize| index < k && index * height >= sealed.payload_len;
        let written = (0..k + m).filter(|&index| !implied(index));
        let sums_of = |index: usize| {
            let sums = std::mem::take(&mut sums[index]);
            (layout::shard(index), ShardSums(sums))
        };
        Encoded {
            stripe: sealed.stripe,
            payload_len: sealed.payload_len,
            height,
            shards: written.clone().map(slice).collect(),
            sums: written.map(sums_of).collect(),
        }
    }
}

impl Draft<'_> {
    fn parts(&mut self) -> Parts<'_> {
        (
            self.sealed.data.chunks_exact(self.height).collect(),
            self.parity.chunks_exact_mut(self.height).collect(),
            self.sums.iter_mut().map(|list| &mut list[..]).collect(),
        )
    }
}
