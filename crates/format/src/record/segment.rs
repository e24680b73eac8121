//! Segments, and the positions of stripes in them.

use bytes::{BufMut, Bytes};

use super::{Record, VERSION};
use crate::{FormatError, MemberIndex, StripeId, code_number, wire::Reader};

/// A segment: `b's' segment`. Its stripes are listed under `b'g' segment offset` → [`SegmentStripe`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Data shards of each stripe in it.
    pub data_shards: u8,
    /// Parity shards of each stripe in it.
    pub parity_shards: u8,
    /// The code's number (`CodeId` of the crate `cauchyfs-codec`), with its parameters: see
    /// [`code_number`](crate::code_number).
    pub code: u64,
    /// Bytes of each of its files.
    pub len: u64,
    /// The member that holds each slot, or `None` where there was no member left to take it. As many
    /// slots as a stripe has shards.
    pub slots: Vec<Option<MemberIndex>>,
}

/// The greatest length of a segment's files in bytes (256 TiB): sums of lengths and offsets in it stay
/// far from the end of what 64 bits hold.
pub const MAX_SEGMENT_BYTES: u64 = 1 << 48;

/// On disk, the member of a slot that no member holds.
const VACANT: u16 = u16::MAX;

impl Record for Segment {
    fn encode(&self) -> Bytes {
        debug_assert_eq!(
            self.slots.len(),
            usize::from(self.data_shards) + usize::from(self.parity_shards),
            "a slot for each shard"
        );
        let (code, parameters) = code_number::split(self.code);
        let mut value = Vec::with_capacity(19 + 2 * self.slots.len());
        value.put_u8(VERSION);
        value.put_u8(self.data_shards);
        value.put_u8(self.parity_shards);
        value.put_u16_le(code);
        if code_number::has_parameters(code) {
            value.put_slice(&parameters);
        }
        value.put_u64_le(self.len);
        for slot in &self.slots {
            value.put_u16_le(slot.map_or(VACANT, |member| member.0));
        }
        value.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("segment", bytes);
        reader.version(VERSION)?;
        let (data_shards, parity_shards) = (reader.u8()?, reader.u8()?);
        if data_shards == 0 {
            return Err(reader.bad("data shards", data_shards));
        }
        let Some(total_shards) = data_shards.checked_add(parity_shards) else {
            return Err(reader.bad("parity shards", parity_shards));
        };
        let code = reader.u16()?;
        let code = if code_number::has_parameters(code) {
            code_number::join(code, reader.array()?)
        } else {
            u64::from(code)
        };
        let len = reader.u64()?;
        if len > MAX_SEGMENT_BYTES {
            return Err(reader.bad("length", len));
        }
        let slots = (0..total_shards)
            .map(|_| {
                let member = reader.u16()?;
                Ok((member != VACANT).then_some(MemberIndex(member)))
            })
            .collect::<Result<_, _>>()?;
        reader.finish()?;
        Ok(Self {
            data_shards,
            parity_shards,
            code,
            len,
            slots,
        })
    }
}

/// The stripe whose shards lie at an offset of a segment's files: `b'g' segment offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentStripe(pub StripeId);

impl Record for SegmentStripe {
    fn encode(&self) -> Bytes {
        let mut value = [VERSION; 9];
        value[1..].copy_from_slice(&self.0.0.to_le_bytes());
        Bytes::copy_from_slice(&value)
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("segment stripe", bytes);
        reader.version(VERSION)?;
        let stripe = StripeId(reader.u64()?);
        reader.finish()?;
        Ok(Self(stripe))
    }
}
