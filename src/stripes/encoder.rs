//! From the payload of a stripe to its shards: parity and the checksums of all blocks, in one pass over the payload.

use std::sync::Arc;

use bytes::Bytes;

use super::buffers::Sealed;
use super::classes::ClassCode;
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
    code: Arc<ClassCode>,
    /// The payload, padded to whole data shards.
    data: Bytes,
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

    /// Encodes a stripe, with its own code or another one.
    ///
    /// # Errors
    ///
    /// If the codec refuses it.
    pub(super) fn encode(
        &self,
        sealed: &Sealed,
        code: &Arc<ClassCode>,
    ) -> Result<Encoded, StripeError> {
        let mut draft = self.draft(sealed, code);
        let (data, mut rows, mut lists) = draft.parts();
        self.coder
            .pass(code.codec())
            .encode_with_checksums(&data, &mut rows, &mut lists)
            .map_err(|source| StripeError::Codec {
                stripe: sealed.stripe,
                source,
            })?;
        Ok(Self::finish(draft))
    }

    /// Encodes several stripes of one code by one call, and keeps the result in each of them. Does nothing if the codec refuses one:
    /// the thread that flushes it reports the reason.
    pub(super) fn encode_all<'s>(
        &self,
        code: &Arc<ClassCode>,
        stripes: impl Iterator<Item = &'s Arc<Sealed>>,
    ) {
        let mut drafts: Vec<Draft<'_>> = stripes.map(|sealed| self.draft(sealed, code)).collect();
        let mut parts: Vec<Parts<'_>> = drafts.iter_mut().map(Draft::parts).collect();
        let pass = self.coder.pass(code.codec());
        let tasks = parts.iter_mut().map(|(data, rows, lists)| {
            let task = pass.encoding(data, rows, lists);
            task.ok()
        });
        let tasks: Option<Vec<CodingTask<'_, '_>>> = tasks.collect();
        let are_encoded = tasks.map(|mut tasks| CodingTask::compute_all(&mut tasks));
        if are_encoded.is_some() {
            for draft in drafts {
                let sealed = draft.sealed;
                sealed.set_encoded(Self::finish(draft));
            }
        }
    }

    fn draft<'s>(&self, sealed: &'s Sealed, code: &Arc<ClassCode>) -> Draft<'s> {
        let geometry = code.geometry();
        let height = layout::height(sealed.payload_len, geometry.data_shards());
        let blocks = height.div_ceil(BLOCK_SIZE);
        Draft {
            sealed,
            code: Arc::clone(code),
            data: self.padded(sealed, height * geometry.data_shards()),
            height,
            parity: self.pool.buffer(height * geometry.parity_shards()),
            sums: vec![vec![0; blocks]; geometry.total_shards()],
        }
    }

    /// Returns the payload with so many bytes: for another number of data shards than it was sealed for, they are others.
    fn padded(&self, sealed: &Sealed, len: usize) -> Bytes {
        if sealed.data.len() == len {
            return sealed.data.clone();
        }
        let mut buffer = self.pool.buffer(len);
        let payload = &sealed.data[..sealed.payload_len];
        buffer[..payload.len()].copy_from_slice(payload);
        buffer[payload.len()..].fill(0);
        buffer.freeze()
    }

    /// Makes a draft that was encoded ready to be written.
    fn finish(draft: Draft<'_>) -> Encoded {
        let geometry = draft.code.geometry();
        let (k, m) = (geometry.data_shards(), geometry.parity_shards());
        let Draft {
            sealed,
            code,
            data,
            height,
            parity,
            mut sums,
        } = draft;
        let parity = parity.freeze();
        let slice = |index: usize| {
            let (of, row) = if index < k {
                (&data, index)
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
            code,
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
            self.data.chunks_exact(self.height).collect(),
            self.parity.chunks_exact_mut(self.height).collect(),
            self.sums.iter_mut().map(|list| &mut list[..]).collect(),
        )
    }
}
