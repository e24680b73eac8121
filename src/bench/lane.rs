//! The stripes that one thread works on.

use std::collections::TryReserveError;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::codec::Geometry;

/// Alignment of stripes: that of the filesystem's own buffers.
const PAGE_BYTES: usize = 4096;

/// Memory for stripes, kept from row to row: touching pages for the first time takes longer than
/// measuring does.
#[derive(Debug, Default)]
pub(super) struct Arena(Vec<Vec<u8>>);

impl Arena {
    /// Returns so many lanes of so many stripes each, filled with noise.
    ///
    /// # Errors
    ///
    /// If the system does not give the memory.
    pub(super) fn lanes(
        &mut self,
        count: usize,
        geometry: Geometry,
        shard_bytes: usize,
        stripes: usize,
    ) -> Result<Vec<Lane<'_>>, TryReserveError> {
        self.0.resize_with(count.max(self.0.len()), Vec::new);
        let buffers = self.0.iter_mut().take(count);
        buffers
            .map(|buffer| Lane::new(buffer, geometry, shard_bytes, stripes))
            .collect()
    }
}

/// Lengthens a buffer with noise.
fn grow(buffer: &mut Vec<u8>, bytes: usize) -> Result<(), TryReserveError> {
    let start = buffer.len();
    buffer.try_reserve_exact(bytes.saturating_sub(start))?;
    buffer.resize(bytes.max(start), 0);
    SmallRng::seed_from_u64(start as u64).fill_bytes(&mut buffer[start..]);
    Ok(())
}

/// Stripes in one buffer, each as the filesystem lays them out: shard after shard.
#[derive(Debug)]
pub(super) struct Lane<'a> {
    geometry: Geometry,
    shard_bytes: usize,
    buffer: &'a mut [u8],
    stripes: usize,
    next: usize,
    /// A shard to write to where the operation itself writes to none.
    scratch: Vec<u8>,
}

impl<'a> Lane<'a> {
    fn new(
        buffer: &'a mut Vec<u8>,
        geometry: Geometry,
        shard_bytes: usize,
        stripes: usize,
    ) -> Result<Self, TryReserveError> {
        let bytes = geometry.total_shards() * shard_bytes * stripes;
        grow(buffer, bytes + PAGE_BYTES)?;
        let start = buffer.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        let mut scratch = Vec::new();
        scratch.try_reserve_exact(shard_bytes)?;
        scratch.resize(shard_bytes, 0);
        let buffer = &mut buffer[start..start + bytes];
        Ok(Self {
            geometry,
            shard_bytes,
            buffer,
            stripes,
            next: 0,
            scratch,
        })
    }

    /// Returns how many stripes the lane rotates over.
    pub(super) fn stripes(&self) -> usize {
        self.stripes
    }

    /// Returns the memory of all stripes.
    pub(super) fn memory(&mut self) -> &mut [u8] {
        self.buffer
    }

    /// Hands out data and parity of the next stripe.
    pub(super) fn encode<R>(&mut self, work: impl FnOnce(&[&[u8]], &mut [&mut [u8]]) -> R) -> R {
        let k = self.geometry.data_shards();
        let mut shards = self.shards();
        let (data, parity) = shards.split_at_mut(k);
        let data: Vec<&[u8]> = data.iter().map(|shard| &**shard).collect();
        work(&data, parity)
    }

    /// Hands out k present and as many lost shards of the next stripe as can be: the first ones.
    pub(super) fn decode<R>(
        &mut self,
        work: impl FnOnce(&[(usize, &[u8])], &mut [(usize, &mut [u8])]) -> R,
    ) -> R {
        let (k, m) = (self.geometry.data_shards(), self.geometry.parity_shards());
        let mut lost: Vec<(usize, &mut [u8])> = self.shards().into_iter().enumerate().collect();
        let present = lost.split_off(k.min(m)).into_iter().take(k);
        let present: Vec<(usize, &[u8])> = present.map(|(index, shard)| (index, &*shard)).collect();
        work(&present, &mut lost)
    }

    /// Hands out all shards of the next stripe, and one that holds nothing.
    pub(super) fn verify<R>(&mut self, work: impl FnOnce(&[&[u8]], &mut [u8]) -> R) -> R {
        let mut scratch = std::mem::take(&mut self.scratch);
        let shards = self.shards();
        let shards: Vec<&[u8]> = shards.into_iter().map(|shard| &*shard).collect();
        let result = work(&shards, &mut scratch);
        self.scratch = scratch;
        result
    }

    /// Returns all shards of the next stripe, data first.
    fn shards(&mut self) -> Vec<&mut [u8]> {
        self.next_stripes(1).remove(0)
    }

    /// Returns all shards of so many next stripes, of each its data first.
    ///
    /// # Panics
    ///
    /// If the lane has fewer.
    pub(super) fn next_stripes(&mut self, count: usize) -> Vec<Vec<&mut [u8]>> {
        assert!(count <= self.stripes, "{count} of {}", self.stripes);
        if self.next + count > self.stripes {
            self.next = 0;
        }
        let stripe_bytes = self.geometry.total_shards() * self.shard_bytes;
        let start = self.next * stripe_bytes;
        self.next = (self.next + count) % self.stripes;
        self.buffer[start..start + count * stripe_bytes]
            .chunks_exact_mut(stripe_bytes)
            .map(|stripe| stripe.chunks_exact_mut(self.shard_bytes).collect())
            .collect()
    }
}
