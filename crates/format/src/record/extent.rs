//! Extents, and the way back from a stripe to them.

use bytes::{BufMut, Bytes};

use super::{MAX_STRIPE_BYTES, Record, VERSION};
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
}

impl Record for Extent {
    fn encode(&self) -> Bytes {
        let mut value = Vec::with_capacity(21);
        value.put_u8(VERSION);
        value.put_u64_le(self.len);
        value.put_u64_le(self.stripe.0);
        value.put_u32_le(self.stripe_offset);
        value.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("extent", bytes);
        reader.version(VERSION)?;
        let extent = Self {
            len: take_len(&mut reader)?,
            stripe: StripeId(reader.u64()?),
            stripe_offset: reader.u32()?,
        };
        // A failed writeback lies in no stripe, and may be longer than one.
        let most = match extent.stripe {
            Self::FAILED_WRITEBACK => u32::MAX,
            _ => MAX_STRIPE_BYTES,
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
    fn encode(&self) -> Bytes {
        let mut value = Vec::with_capacity(13);
        value.put_u8(VERSION);
        value.put_u64_le(self.len);
        value.put_u32_le(self.stripe_offset);
        value.into()
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
