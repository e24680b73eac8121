//! One request on its way, with how far it has come.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::request::{Op, Outcome, StoreRequest};
use crate::dir::is_aligned;
use crate::{RawUse, StoreError, StoreRef};

/// A request of a batch.
#[derive(Debug)]
pub(super) struct RequestInFlight {
    /// Its place in the batch.
    pub(super) index: usize,
    pub(super) store: StoreRef,
    pub(super) op: Op,
    /// Bytes of a read or write that are done already.
    pub(super) done: usize,
    began: Instant,
}

/// The counter of a request.
pub(super) struct Meter {
    store: StoreRef,
    direction: Option<Direction>,
    began: Instant,
}

/// The direction of bytes, and their number.
enum Direction {
    Read(usize),
    Write(usize),
}

impl Meter {
    /// Counts the request once it has answered, however late. One that failed has moved no bytes.
    pub(super) fn count(&self, is_done: bool) {
        let Some(traffic) = self.store.traffic() else {
            return;
        };
        let time = self.began.elapsed();
        let moved = |bytes| if is_done { bytes } else { 0 };
        match self.direction {
            Some(Direction::Read(bytes)) => traffic.count_read(moved(bytes), time),
            Some(Direction::Write(bytes)) => traffic.count_write(moved(bytes), time),
            None => {}
        }
    }
}

impl RequestInFlight {
    pub(super) fn new(index: usize, request: StoreRequest) -> Self {
        Self {
            index,
            store: request.store,
            op: request.op,
            done: 0,
            began: Instant::now(),
        }
    }

    /// Returns the counter of the request, for when it has answered.
    pub(super) fn meter(&self) -> Meter {
        Meter {
            store: StoreRef::clone(&self.store),
            direction: match &self.op {
                Op::Read { buf, .. } => Some(Direction::Read(buf.len())),
                Op::Write { data, .. } | Op::WriteDurably { data, .. } => {
                    Some(Direction::Write(data.len()))
                }
                Op::Sync { .. } => Some(Direction::Write(0)),
                // These say little of the device.
                Op::Create { .. } | Op::Remove { .. } | Op::Punch { .. } | Op::Probe => None,
            },
            began: self.began,
        }
    }

    /// Does what is left of the request on this thread, for as long as it takes.
    pub(super) fn run(self) -> Outcome {
        let meter = self.meter();
        let outcome = self.run_unmetered();
        meter.count(outcome.is_ok());
        outcome
    }

    fn run_unmetered(self) -> Outcome {
        let Self {
            store, op, done, ..
        } = self;
        match op {
            Op::Read {
                name,
                offset,
                mut buf,
            } => {
                store.read_at(&name, offset + done as u64, &mut buf[done..])?;
                return Ok(Some(buf));
            }
            Op::Write { name, offset, data } => {
                store.write_at(&name, offset + done as u64, &data[done..])?;
            }
            Op::WriteDurably { name, offset, data } => {
                store.write_durably(&name, offset + done as u64, &data[done..])?;
            }
            Op::Sync { name } => store.sync(&name)?,
            Op::Create { name, len } => store.create(&name, len)?,
            Op::Remove { name } => store.remove(&name)?,
            Op::Punch { name, offset, len } => store.punch(&name, offset, len)?,
            Op::Probe => store.probe()?,
        }
        Ok(None)
    }

    /// Returns how many bytes the request copies.
    pub(super) fn copied_bytes(&self) -> usize {
        match &self.op {
            Op::Read { buf, .. } => buf.len(),
            Op::Write { data, .. } | Op::WriteDurably { data, .. } => data.len(),
            Op::Sync { .. }
            | Op::Create { .. }
            | Op::Remove { .. }
            | Op::Punch { .. }
            | Op::Probe => 0,
        }
    }

    /// Returns whether the request takes no longer than its bytes take to be copied: it is for a file that is open, in
    /// memory.
    pub(super) fn is_in_memory(&self) -> bool {
        self.store.is_in_memory() && self.raw().is_some()
    }

    /// Returns the descriptor with which the kernel can do the request itself, if there is one.
    pub(super) fn raw(&self) -> Option<Arc<OwnedFd>> {
        let shape = |aligned| {
            if aligned {
                RawUse::Aligned
            } else {
                RawUse::Unaligned
            }
        };
        match &self.op {
            Op::Read { name, offset, buf } if !buf.is_empty() => {
                self.store.raw(name, shape(is_aligned(*offset, buf)))
            }
            Op::Write { name, offset, data } if !data.is_empty() => {
                self.store.raw(name, shape(is_aligned(*offset, data)))
            }
            Op::WriteDurably { name, offset, data } if !data.is_empty() => {
                let aligned = is_aligned(*offset, data);
                self.store.raw(name, RawUse::Durable { aligned })
            }
            Op::Sync { name } => self.store.raw(name, RawUse::Sync),
            Op::Read { .. }
            | Op::Write { .. }
            | Op::WriteDurably { .. }
            | Op::Create { .. }
            | Op::Remove { .. }
            | Op::Punch { .. }
            | Op::Probe => None,
        }
    }

    /// The error for a request whose caller does not wait any more.
    pub(super) fn slow(&self) -> StoreError {
        StoreRequest::slow(&self.store, &self.op)
    }

    /// The error for a request that did not answer within `timeout`.
    pub(super) fn hung(&self, timeout: Duration) -> StoreError {
        StoreRequest::hung(&self.store, &self.op, timeout)
    }
}
