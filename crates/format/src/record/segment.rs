//! Segments, and the positions of stripes in them.

use bytes::BufMut;

use super::{Record, VERSION, Value};
use crate::{
    FormatError, MemberIndex, ShardIndex, StripeClass, StripeId, code_number, wire::Reader,
};

/// A segment: `b's' segment`. Its stripes are listed under `b'g' segment offset` → [`SegmentStripe`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The class of its stripes.
    pub class: StripeClass,
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
    /// slots as a stripe has shards, or had when it was written ([`Segment::total_slots`]).
    pub slots: Vec<Option<MemberIndex>>,
    /// The number of shards that its stripes had when they were written: these rotate among as many slots. Any further
    /// shard was added to a volume in use, and lies in the slot of its own number. If there are fewer shards by now, the
    /// last ones were dropped.
    pub rotating: u8,
}

impl Segment {
    /// Returns the number of shards of each stripe, data and parity.
    #[must_use]
    pub fn total_shards(&self) -> usize {
        usize::from(self.data_shards) + usize::from(self.parity_shards)
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn total_slots(&self) -> usize {
        self.total_shards().max(self.rotating.into())
    }

    /// Returns the slot that holds a shard of a stripe which is rotated by so many slots.
    #[must_use]
    pub fn slot_of(&self, shard: ShardIndex, rotation: u8) -> usize {
        let shard = usize::from(shard.0);
        match usize::from(self.rotating) {
            rotating if shard < rotating => (shard + usize::from(rotation)) % rotating,
            _ => shard,
        }
    }

    /// Returns the shard that lies in a slot, of a stripe which is rotated by so many slots. Returns `None` if there is no
    /// such slot.
    #[must_use]
    pub fn shard_in(&self, slot: usize, rotation: u8) -> Option<ShardIndex> {
        let shard = match usize::from(self.rotating) {
            rotating if slot < rotating => {
                (slot + rotating - usize::from(rotation) % rotating) % rotating
            }
            _ => slot,
        };
        let is_there = shard < self.total_shards();
        u8::try_from(shard)
            .ok()
            .filter(|_| is_there)
            .map(ShardIndex)
    }
}

/// The greatest length of a segment's files in bytes (256 TiB): sums of lengths and offsets in it stay
/// far from the end of what 64 bits hold.
pub const MAX_SEGMENT_BYTES: u64 = 1 << 48;

/// On disk, the bit of the code's number that says that a class follows, other than [`StripeClass::VOLUME`].
const HAS_CLASS: u16 = 1 << 15;

/// On disk, the member of a slot that no member holds.
const VACANT: u16 = u16::MAX;

impl Record for Segment {
    fn encode(&self) -> Value {
        debug_assert_eq!(
            self.slots.len(),
            self.total_slots(),
            "a slot for each shard"
        );
        let (code, parameters) = code_number::split(self.code);
        let mut value = Vec::with_capacity(20 + 2 * self.slots.len());
        value.put_u8(VERSION);
        value.put_u8(self.data_shards);
        value.put_u8(self.parity_shards);
        let has_class = self.class != StripeClass::VOLUME;
        value.put_u16_le(if has_class { code | HAS_CLASS } else { code });
        if code_number::has_parameters(code) {
            value.put_slice(&parameters);
        }
        if has_class {
            value.put_u8(self.class.0);
        }
        value.put_u64_le(self.len);
        for slot in &self.slots {
            value.put_u16_le(slot.map_or(VACANT, |member| member.0));
        }
        if usize::from(self.rotating) != self.total_shards() {
            value.put_u8(self.rotating);
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
        let number = reader.u16()?;
        let code = number & !HAS_CLASS;
        let code = if code_number::has_parameters(code) {
            code_number::join(code, reader.array()?)
        } else {
            u64::from(code)
        };
        let mut class = StripeClass::VOLUME;
        if number & HAS_CLASS != 0 {
            class = StripeClass(reader.u8()?);
            // One encoding for one value.
            if class == StripeClass::VOLUME {
                return Err(reader.bad("class", class.0));
            }
        }
        let len = reader.u64()?;
        if len > MAX_SEGMENT_BYTES {
            return Err(reader.bad("length", len));
        }
        let (slots, rest) = reader.rest().as_chunks();
        let rotating = match rest {
            [] => total_shards,
            [rotating] if *rotating >= data_shards && *rotating != total_shards => *rotating,
            [rotating, ..] => return Err(reader.bad("rotating shards", *rotating)),
        };
        let wanted = total_shards.max(rotating);
        if slots.len() != usize::from(wanted) {
            return Err(reader.bad("slots", slots.len() as u64));
        }
        let member = |slot: &[u8; 2]| match u16::from_le_bytes(*slot) {
            VACANT => None,
            member => Some(MemberIndex(member)),
        };
        let slots = slots.iter().map(member).collect();
        Ok(Self {
            class,
            data_shards,
            parity_shards,
            code,
            len,
            slots,
            rotating,
        })
    }
}

/// The stripe whose shards lie at an offset of a segment's files: `b'g' segment offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentStripe(pub StripeId);

impl Record for SegmentStripe {
    fn encode(&self) -> Value {
        let mut value = [VERSION; 9];
        value[1..].copy_from_slice(&self.0.0.to_le_bytes());
        Value::from(&value)
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("segment stripe", bytes);
        reader.version(VERSION)?;
        let stripe = StripeId(reader.u64()?);
        reader.finish()?;
        Ok(Self(stripe))
    }
}
