//! Columns of shards, and how targets are written.

#![expect(
    clippy::inline_always,
    reason = "must become part of a function with the CPU feature"
)]

use super::symbols::Symbols;

/// Some neighbouring columns of all places.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    /// The number of columns, which are a byte wide: a multiple of what symbols take.
    pub(super) bytes: usize,
    /// True if targets are written past the caches.
    pub(super) is_streaming: bool,
}

impl Columns {
    /// Writes symbols to a target.
    ///
    /// # Safety
    ///
    /// The symbols' bytes must be writable, and aligned if they are to be streamed.
    #[expect(unsafe_code, reason = "writes through a pointer")]
    #[inline(always)]
    pub(super) unsafe fn write_shard<S: Symbols>(self, symbols: S, to: *mut u8) {
        if self.is_streaming {
            // SAFETY: the caller vouches for these bytes and their alignment; `run` fences.
            unsafe { symbols.stream_shard(to) };
        } else {
            // SAFETY: the caller vouches for these bytes.
            unsafe { symbols.store_shard(to) };
        }
    }
}
