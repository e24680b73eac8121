//! The loop over the columns of a few targets.

#![expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]

use crate::engine::vector::Affine;

/// The most rows of which `WIDE` registers at a time are computed.
pub(super) const MOST_WIDE: usize = 4;

/// A few targets, computed a few registers of each at a time.
#[expect(
    unsafe_code,
    reason = "the caller vouches for the CPU and for pointers"
)]
pub(super) trait Columns {
    /// Returns whether byte `offset` of every target is aligned to `register_bytes`, and targets are
    /// to be written past the cache.
    fn streaming(&self, register_bytes: usize, offset: usize) -> bool;

    /// Computes `N` registers of each target, starting at byte `offset`; with `STREAM`, for sources
    /// and targets that are not in the cache.
    ///
    /// # Safety
    ///
    /// The CPU must have GFNI and the instructions of `V`. These registers must lie within the
    /// shards, and the job of these targets must still be borrowed. With `STREAM`, all targets must
    /// be aligned to registers there.
    unsafe fn columns<V: Affine, const N: usize, const STREAM: bool>(&self, offset: usize);

    /// Computes bytes `start..end` of these targets, `N` registers of each at a time, and `STREAMED`
    /// where they are not in the cache: the lines of more than a few registers of many sources, asked
    /// for ahead, would not stay in the L1 cache until they are read.
    ///
    /// # Safety
    ///
    /// As for [`Self::columns`], with `start..end` whole registers.
    #[inline(always)]
    unsafe fn run<V: Affine, const N: usize, const STREAMED: usize>(
        &self,
        start: usize,
        end: usize,
    ) {
        let mut offset = start;
        if const { V::STREAMS } && self.streaming(V::BYTES, start) {
            while end - offset >= STREAMED * V::BYTES {
                // SAFETY: `STREAMED` more registers are left, and the targets are aligned.
                unsafe { self.columns::<V, STREAMED, true>(offset) };
                offset += STREAMED * V::BYTES;
            }
        } else {
            while end - offset >= N * V::BYTES {
                // SAFETY: `N` more registers are left.
                unsafe { self.columns::<V, N, false>(offset) };
                offset += N * V::BYTES;
            }
        }
        // One register at a time leaves none over; so this is compiled only where it can be needed.
        while (N > 1 || STREAMED > 1) && offset < end {
            // SAFETY: what is left is whole registers.
            unsafe { self.columns::<V, 1, false>(offset) };
            offset += V::BYTES;
        }
    }
}
