//! The interface of a device that reads and writes memory by itself, as far as a pool needs it.

use std::fmt;
use std::sync::Arc;

/// A device that reads and writes memory by itself, faster where it was told of it beforehand.
pub trait Pinner: Send + Sync + fmt::Debug {
    /// Tells the device of memory, whose pages stay where they are from now on. Returns the device that knows the
    /// memory now; if there is none, this is asked again when the memory is lent again.
    ///
    /// This may take milliseconds, though not if the answer is no for good.
    fn pin(&self, memory: &mut [u8]) -> Option<Arc<dyn Unpinner>>;
}

/// The device that pinned memory.
pub trait Unpinner: Send + Sync + fmt::Debug {
    /// Unpins memory that is about to be unmapped. Returns whether it did; if not, it may go on using these pages
    /// whatever lies at their addresses, so that the memory must stay mapped.
    fn unpin(&self, memory: &mut [u8]) -> bool;
}
