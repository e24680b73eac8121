//! A stripe on its way to the members.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::format::{StripeClass, StripeId};
use crate::stripes::classes::ClassCode;
use crate::stripes::encoded::Encoded;
use crate::stripes::segments::Reservation;

/// A stripe whose bytes are fixed and on their way to the members.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) stripe: StripeId,
    /// The class of the files whose bytes it has.
    pub(crate) class: StripeClass,
    /// The code that it gets, unless members are too few for that.
    pub(crate) code: Arc<ClassCode>,
    /// The payload, padded with zeros to whole data shards.
    pub(crate) data: Bytes,
    pub(crate) payload_len: usize,
    /// Counts stripes in the order of their sealing.
    pub(super) sequence: u64,
    pub(super) reservation: Mutex<Option<Reservation>>,
    /// The data to be written, if it was encoded ahead.
    pub(super) encoded: Mutex<Option<Encoded>>,
}

impl Sealed {
    /// Keeps what is to be written until the stripe is flushed.
    pub(in crate::stripes) fn set_encoded(&self, encoded: Encoded) {
        *self.encoded.lock() = Some(encoded);
    }

    /// Takes what is to be written, if it was encoded ahead.
    pub(in crate::stripes) fn take_encoded(&self) -> Option<Encoded> {
        self.encoded.lock().take()
    }

    /// Returns whether it was encoded ahead.
    pub(crate) fn is_encoded(&self) -> bool {
        self.encoded.lock().is_some()
    }

    /// Takes the room that was reserved for the stripe.
    pub(crate) fn take_reservation(&self) -> Option<Reservation> {
        self.reservation.lock().take()
    }
}
