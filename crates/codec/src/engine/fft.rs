//! The loop of additive Fourier transforms: follow a program's steps for a few columns of all shards, which
//! stay in the cache, then for the next.

#![expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]

mod bytes;
mod columns;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod planes;
mod symbols;
mod tile;
mod transform;

use crate::{
    fft::{Place, Program},
    job::{Job, Stores},
};

pub(super) use self::bytes::Bytes;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use self::planes::Planes;
use self::{
    columns::Columns,
    symbols::Symbols,
    tile::{Line, Tile},
};

/// Bytes that a few columns of all slots may take together, to stay in the L1 cache while shards pass
/// through it.
const SLOT_BYTES: usize = 20 << 10;

/// The most bytes of a shard in a tile, beyond which following the steps takes hardly any time.
const MOST_BYTES: usize = 1 << 10;

/// The fewest bytes of a shard in a tile, even if some slots then leave the L1 cache.
const LEAST_BYTES: usize = 256;

/// Returns the transforms by which a job is done sooner than by the coefficients of its plan, if there are any.
pub(super) fn program_for<'a, S: Symbols>(job: &Job<'a, '_>) -> Option<&'a Program> {
    let (product_cost, shard_cost) = S::COSTS;
    let coefficients = job.sources().len() * job.target_count();
    job.program().filter(|program| {
        let cost = product_cost * program.products() + shard_cost * program.shards();
        cost < 2 * coefficients
    })
}

/// Computes all bytes of all targets; returns how many. Returns 0 if shards are too short for it.
///
/// # Safety
///
/// The CPU must have the instructions of `S`.
#[expect(unsafe_code, reason = "passes pointers into the shards on")]
#[inline(always)]
pub(super) unsafe fn run<S: Symbols>(job: &mut Job<'_, '_>, program: &Program) -> usize {
    let shard_bytes = job.shard_bytes();
    if shard_bytes < S::BYTES {
        return 0;
    }
    let places = Place::FIRST_SHARD + program.slots();
    let tile_bytes = (SLOT_BYTES / places).clamp(LEAST_BYTES, MOST_BYTES);
    let tile_bytes = (tile_bytes / S::BYTES * S::BYTES).max(S::BYTES);
    let lines = (places * tile_bytes).div_ceil(size_of::<Line>());
    let mut memory = vec![Line([0; 64]); lines];
    let mut targets = (0..job.target_count()).map(|row| job.target(row).as_ptr().addr());
    let is_aligned = targets.all(|address| address.is_multiple_of(S::ALIGNMENT));
    let is_streaming = is_aligned && job.stores() == Stores::Streaming;
    let mut tile = Tile::new(job, program, &mut memory, tile_bytes);
    let mut left = shard_bytes;
    // One call of the tile's loop, which is large and becomes part of this function.
    while left > 0 {
        let columns = if left < S::BYTES {
            // The last columns overlap those before: computing them twice does no harm.
            tile.retreat(S::BYTES - left);
            left = S::BYTES;
            Columns {
                bytes: S::BYTES,
                is_streaming: false,
            }
        } else {
            Columns {
                bytes: (left / S::BYTES * S::BYTES).min(tile_bytes),
                is_streaming,
            }
        };
        // SAFETY: the caller vouches for the CPU, and so many bytes are left of all shards.
        unsafe { tile.run::<S>(program, columns) };
        tile.advance(columns.bytes);
        left -= columns.bytes;
    }
    if is_streaming {
        // SAFETY: the caller vouches for the CPU.
        unsafe { S::fence() };
    }
    shard_bytes
}

#[cfg(test)]
mod tests;
