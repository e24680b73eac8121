//! The stripe that is being filled.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::sealed::Sealed;
use crate::format::{BLOCK_SIZE, StripeClass, StripeId};
use crate::store::Buffer;
use crate::stripes::classes::ClassCode;
use crate::stripes::layout;
use crate::stripes::segments::Reservation;

/// Alignment of a write of less than a block, so that none straddles more cache lines than it must.
const SMALL_ALIGNMENT: usize = 64;

/// The place of some bytes of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The stripe.
    pub stripe: StripeId,
    /// The offset in its payload, in bytes.
    pub offset: u32,
    /// The number of bytes.
    pub len: u32,
}

/// Bytes of a stripe that no journal record holds yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unjournaled {
    /// The stripe.
    pub stripe: StripeId,
    /// The offset in its payload at which they start.
    pub offset: u32,
    /// The bytes.
    pub bytes: Bytes,
}

/// The change of an open stripe since the last query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fresh {
    /// Nothing.
    Nothing,
    /// These bytes.
    Bytes(Unjournaled),
    /// More than were asked for.
    TooMany,
}

/// A stripe that bytes are appended to.
#[derive(Debug)]
pub(crate) struct OpenStripe {
    /// The class for which it takes bytes. Its code may be that of the volume instead.
    class: StripeClass,
    stripe: StripeId,
    code: Arc<ClassCode>,
    reservation: Option<Reservation>,
    buffer: Buffer,
    len: usize,
    journaled: usize,
}

impl OpenStripe {
    /// Starts an empty stripe; its capacity is the length of `buffer`.
    pub(super) fn new(
        class: StripeClass,
        (stripe, code): (StripeId, Arc<ClassCode>),
        reservation: Reservation,
        buffer: Buffer,
    ) -> Self {
        Self {
            class,
            stripe,
            code,
            reservation: Some(reservation),
            buffer,
            len: 0,
            journaled: 0,
        }
    }

    /// A stripe whose first `len` bytes are in `buffer` already.
    pub(super) fn restored(
        class: StripeClass,
        (stripe, code): (StripeId, Arc<ClassCode>),
        reservation: Option<Reservation>,
        buffer: Buffer,
        len: usize,
    ) -> Self {
        Self {
            class,
            stripe,
            code,
            reservation,
            buffer,
            len,
            journaled: len,
        }
    }

    pub(super) fn stripe(&self) -> StripeId {
        self.stripe
    }

    /// Returns the bytes that were appended, and those between them.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether not even a small write could start.
    pub(super) fn is_full(&self) -> bool {
        self.len.next_multiple_of(SMALL_ALIGNMENT) >= self.buffer.len()
    }

    /// Copies what fits of `data`; `None` if this stripe should take none of it.
    ///
    /// A write of a block or more starts at a block, so that reading it back touches no block more
    /// than it must; a smaller one is not split.
    pub(super) fn append(&mut self, data: &[u8]) -> Option<Placed> {
        let small = data.len() < BLOCK_SIZE;
        let alignment = if small { SMALL_ALIGNMENT } else { BLOCK_SIZE };
        let start = self.len.next_multiple_of(alignment);
        let room = self
            .buffer
            .len()
            .checked_sub(start)
            .filter(|&room| room > 0)?;
        if small && room < data.len() {
            return None;
        }
        let len = room.min(data.len());
        self.buffer[self.len..start].fill(0);
        self.buffer[start..start + len].copy_from_slice(&data[..len]);
        self.len = start + len;
        Some(Placed {
            stripe: self.stripe,
            offset: layout::stripe_bytes(start),
            len: layout::stripe_bytes(len),
        })
    }

    pub(super) fn get(&self, offset: usize, len: usize) -> Option<&[u8]> {
        self.buffer[..self.len].get(offset..offset.checked_add(len)?)
    }

    /// See [`Buffers::unjournaled`](super::Buffers::unjournaled).
    pub(super) fn unjournaled(&mut self, limit: usize) -> Fresh {
        let fresh = &self.buffer[self.journaled..self.len];
        if fresh.len() > limit {
            return Fresh::TooMany;
        }
        if fresh.is_empty() {
            return Fresh::Nothing;
        }
        let bytes = Bytes::copy_from_slice(fresh);
        let offset = layout::stripe_bytes(self.journaled);
        self.journaled = self.len;
        Fresh::Bytes(Unjournaled {
            stripe: self.stripe,
            offset,
            bytes,
        })
    }

    /// Fixes the bytes, padded with zeros to whole data shards.
    pub(super) fn seal(mut self, sequence: u64) -> Sealed {
        let data_shards = self.code.geometry().data_shards();
        let padded = layout::height(self.len, data_shards) * data_shards;
        self.buffer.set_len(padded.max(self.len));
        self.buffer[self.len..].fill(0);
        Sealed {
            class: self.class,
            stripe: self.stripe,
            code: self.code,
            payload_len: self.len,
            data: self.buffer.freeze(),
            sequence,
            reservation: Mutex::new(self.reservation),
            encoded: Mutex::default(),
        }
    }
}
