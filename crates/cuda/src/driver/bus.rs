//! The bus to a device, to measure how fast it is at its best.

use std::sync::Arc;

use super::{
    context::Context,
    copy::{Copy, End},
    memory::DeviceMemory,
    stream::Stream,
};
use crate::DeviceError;

/// Copies that do nothing else.
pub struct Bus {
    context: Arc<Context>,
    sending: Stream,
    fetching: Stream,
    sent: DeviceMemory,
    fetched: DeviceMemory,
}

impl Bus {
    /// Makes room on the device for so many bytes each way.
    pub(super) fn new(context: &Arc<Context>, most_bytes: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            context: Arc::clone(context),
            sending: Stream::new(context)?,
            fetching: Stream::new(context)?,
            sent: DeviceMemory::new(context, most_bytes)?,
            fetched: DeviceMemory::new(context, most_bytes)?,
        })
    }

    /// Copies `send` to the device and as many bytes as `fetch` has from there, both at once, and returns
    /// when that is done.
    ///
    /// # Errors
    ///
    /// If the device is lost.
    ///
    /// # Panics
    ///
    /// If one of them is longer than there is room for.
    pub fn copy(&mut self, send: &[u8], fetch: &mut [u8]) -> Result<(), DeviceError> {
        assert!(send.len().max(fetch.len()) <= self.sent.len().min(self.fetched.len()));
        self.context.enter()?;
        let queued = self.queue(send, fetch);
        // Nothing is under way any more when this returns, so that the memory can be freed.
        let finished = [self.sending.finish(), self.fetching.finish()];
        finished.into_iter().fold(queued, Result::and)
    }

    fn queue(&self, send: &[u8], fetch: &mut [u8]) -> Result<(), DeviceError> {
        let there = Copy {
            from: End::Host {
                address: send.as_ptr().expose_provenance(),
                pitch: send.len(),
            },
            to: End::Device {
                address: self.sent.address(),
                pitch: send.len(),
            },
            width: send.len(),
            rows: 1,
        };
        let back = Copy {
            from: End::Device {
                address: self.fetched.address(),
                pitch: fetch.len(),
            },
            to: End::Host {
                address: fetch.as_mut_ptr().expose_provenance(),
                pitch: fetch.len(),
            },
            width: fetch.len(),
            rows: 1,
        };
        if !send.is_empty() {
            // SAFETY: `copy` checked the lengths, and waits before the borrows end.
            unsafe { self.sending.copy(&there) }?;
        }
        if !fetch.is_empty() {
            // SAFETY: as above.
            unsafe { self.fetching.copy(&back) }?;
        }
        Ok(())
    }
}
