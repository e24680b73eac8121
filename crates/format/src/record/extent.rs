//! Extents, and the way back from a stripe to them.

use bytes::BufMut;

use super::{MAX_STRIPE_BYTES, Record, VERSION, Value};
use crate::{FormatError, StripeId, wire::Reader};

/// A run of a file's bytes inside a stripe: `b'e' ino end`, keyed by where it *ends*, so that the
/// extent covering byte `o`, or the next one after it, is the first with `end > o`: one forward seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes, never 0; the run starts at `end - len`.
    pub len: u64,
    /// The stripe that holds it.
    pub stripe: StripeId,
    /// Offset of its first byte in the stripe's payload.
    pub stripe_offset: u32,
}

impl Extent {
    /// Names no stripe: the writeback of these bytes failed, and reading them fails.
    pub const FAILED_WRITEBACK: StripeId = StripeId(u64::MAX);

    /// Names no stripe: nothing was written there, so it reads as zeros. The volume keeps room for these bytes.
    pub const UNWRITTEN: StripeId = StripeId(u64::MAX - 1);

    /// Returns whether the number is that of a stripe, and neither of the two above.
    #[must_use]
    pub fn is_stripe(number: StripeId) -> bool {
        number != Self::FAILED_WRITEBACK && number != Self::UNWRITTEN
    }
}

impl Record for Extent {
    fn encode(&self) -> Value {
        let mut value = [0; 21];
        let mut fields = &mut value[..];
        fields.put_u8(VERSION);
        fields.put_u64_le(self.len);
        fields.put_u64_le(self.stripe.0);
        fields.put_u32_le(self.stripe_offset);
        Value::from(&value)
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("extent", bytes);
        reader.version(VERSION)?;
        let extent = Self {
            len: take_len(&mut reader)?,
            stripe: StripeId(reader.u64()?),
            stripe_offset: reader.u32()?,
        };
        // One that lies in no stripe may be longer than that.
        let most = if Self::is_stripe(extent.stripe) {
            MAX_STRIPE_BYTES
        } else {
            u32::MAX
        };
        check_end(&reader, (extent.len, extent.stripe_offset), most)?;
        reader.finish()?;
        Ok(extent)
    }
}

/// Stripe → extent, for compaction and for naming the files hit by a loss: `b'r' stripe ino end`.
/// Written and removed in the same batch as its extent. A stripe without any is dead, and stays so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backref {
    /// Length of the extent in bytes.
    pub len: u64,
    /// Offset of the extent's first byte in the stripe's payload.
    pub stripe_offset: u32,
}

impl Record for Backref {
    fn encode(&self) -> Value {
        let mut value = [0; 13];
        let mut fields = &mut value[..];
        fields.put_u8(VERSION);
        fields.put_u64_le(self.len);
        fields.put_u32_le(self.stripe_offset);
        Value::from(&value)
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("backref", bytes);
        reader.version(VERSION)?;
        let backref = Self {
            len: take_len(&mut reader)?,
            stripe_offset: reader.u32()?,
        };
        check_end(
            &reader,
            (backref.len, backref.stripe_offset),
            MAX_STRIPE_BYTES,
        )?;
        reader.finish()?;
        Ok(backref)
    }
}

/// Refuses a length and an offset that lie behind `most` bytes of a stripe.
fn check_end(
    reader: &Reader<'_>,
    (len, stripe_offset): (u64, u32),
    most: u32,
) -> Result<(), FormatError> {
    let end = len.saturating_add(stripe_offset.into());
    if end > u64::from(most) {
        return Err(reader.bad("end in its stripe", end));
    }
    Ok(())
}

fn take_len(reader: &mut Reader<'_>) -> Result<u64, FormatError> {
    match reader.u64()? {
        0 => Err(reader.bad("length", 0_u64)),
        len => Ok(len),
    }
}
