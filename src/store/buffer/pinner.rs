//! What a pool needs of a device that reads and writes memory by itself, without knowing any.

use std::fmt;

/// A device that reads and writes memory by itself, faster where it was told of it beforehand.
pub trait Pinner: Send + Sync + fmt::Debug {
    /// Tells the device of memory, whose pages stay where they are from now on. Returns whether it knows
    /// the memory now; if not, it is asked again when the memory is lent again.
    ///
    /// This may take milliseconds, though not if the answer is no for good.
    fn pin(&self, memory: &mut [u8]) -> bool;

    /// Lets go of memory that was pinned, which is about to be unmapped.
    fn unpin(&self, memory: &mut [u8]);
}
