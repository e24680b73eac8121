//! Values of superblock fields.

use uuid::Uuid;

use crate::format::superblock;

/// Draws a nonce. Both halves of a random UUID have a few fixed bits, but not in the same places.
pub(super) fn nonce() -> u64 {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    high ^ low
}

/// Returns a path as superblocks note it.
pub(super) fn noted_path(path: &str) -> Vec<u8> {
    superblock::noted_path(path.as_bytes())
}

/// Returns a number of shards as superblocks note it.
///
/// # Panics
///
/// If a geometry cannot have so many.
pub(super) fn noted_shards(shards: usize) -> u8 {
    u8::try_from(shards).expect("a geometry has at most 255 shards")
}
