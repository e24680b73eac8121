//! Stripes, the checksums of their shards, and what they lack.

use std::ops::Range;

use bytes::BufMut;

use super::{MAX_SEGMENT_BYTES, Record, VERSION, Value};
use crate::{BLOCK_SIZE, FormatError, SegmentId, ShardIndex, wire::Reader};

/// The most bytes of data that a stripe has, however wide it is. It bounds the memory for one.
pub const MAX_STRIPE_BYTES: u32 = 64 << 20;

/// Returns the greatest height of a stripe: the stripe unit, or less where a stripe of full height would
/// exceed [`MAX_STRIPE_BYTES`]. It is at least a block.
#[must_use]
pub fn greatest_height(unit_bytes: u32, data_shards: u8) -> u32 {
    let affordable = MAX_STRIPE_BYTES / u32::from(data_shards.max(1));
    let whole_blocks = affordable.min(unit_bytes) / BLOCK_BYTES * BLOCK_BYTES;
    whole_blocks.max(BLOCK_BYTES)
}

/// [`BLOCK_SIZE`], as lengths within a stripe are counted.
const BLOCK_BYTES: u32 = 4096;
const _: () = assert!(BLOCK_BYTES as usize == BLOCK_SIZE);

/// A set of shards of one stripe, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShardSet(pub [u64; 4]);

impl ShardSet {
    /// Adds a shard.
    pub fn insert(&mut self, shard: ShardIndex) {
        self.0[usize::from(shard.0 >> 6)] |= 1 << (shard.0 & 63);
    }

    /// Takes a shard out.
    pub fn remove(&mut self, shard: ShardIndex) {
        self.0[usize::from(shard.0 >> 6)] &= !(1 << (shard.0 & 63));
    }

    /// Says whether a shard is in.
    #[must_use]
    pub fn contains(&self, shard: ShardIndex) -> bool {
        self.0[usize::from(shard.0 >> 6)] >> (shard.0 & 63) & 1 == 1
    }

    /// Counts its shards.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Says whether it has no shard.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// Lists its shards, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = ShardIndex> + use<'_> {
        (0..=u8::MAX)
            .map(ShardIndex)
            .filter(|shard| self.contains(*shard))
    }

    /// Writes a length byte and as many bytes of the set as are needed, lowest shards first.
    fn put(&self, value: &mut Vec<u8>) {
        let start = value.len();
        value.put_u8(0);
        for word in self.0 {
            value.put_u64_le(word);
        }
        let len = value[start + 1..]
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1);
        value.truncate(start + 1 + len);
        value[start] = u8::try_from(len).expect("a set has 32 bytes");
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let len = reader.u8()?;
        if usize::from(len) > size_of::<Self>() {
            return Err(reader.bad("shard set of length", len));
        }
        let bytes = reader.bytes(len.into())?;
        if bytes.last() == Some(&0) {
            return Err(reader.bad("needlessly long shard set of length", len));
        }
        let mut set = Self::default();
        for (place, byte) in bytes.iter().enumerate() {
            set.0[place / 8] |= u64::from(*byte) << (place % 8 * 8);
        }
        Ok(set)
    }
}

impl FromIterator<ShardIndex> for ShardSet {
    fn from_iter<I: IntoIterator<Item = ShardIndex>>(shards: I) -> Self {
        let mut set = Self::default();
        for shard in shards {
            set.insert(shard);
        }
        set
    }
}

/// A stripe: `b't' stripe`. Data shard `i` is the slice `[i·height, (i+1)·height)` of the payload,
/// padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// The segment in which it lies now.
    pub segment: SegmentId,
    /// Offset of every one of its shards in the segment's files; a multiple of the block size, and at
    /// most [`MAX_SEGMENT_BYTES`].
    pub offset: u64,
    /// Bytes of each shard; a multiple of the block size, never 0, at most [`MAX_STRIPE_BYTES`].
    pub height: u32,
    /// Bytes of data, at most `height × data shards`.
    pub payload_len: u32,
    /// Rotation of the shards: shard `i` lies in slot `(i + rotation) % total` of the segment.
    pub rotation: u8,
    /// Shards that were written and synced. One beyond the payload's end is all zeros and is never
    /// written nor counted as missing (see [`Stripe::is_implied`]).
    pub written: ShardSet,
}

impl Stripe {
    /// Says whether data shard `shard` lies wholly beyond the payload: it is zeros, lies on no member
    /// and is never lost.
    #[must_use]
    pub fn is_implied(&self, shard: ShardIndex, data_shards: usize) -> bool {
        let index = usize::from(shard.0);
        index < data_shards && index as u64 * u64::from(self.height) >= u64::from(self.payload_len)
    }
}

impl Record for Stripe {
    fn encode(&self) -> Value {
        let mut value = Vec::with_capacity(27 + size_of::<ShardSet>());
        value.put_u8(VERSION);
        value.put_u64_le(self.segment.0);
        value.put_u64_le(self.offset);
        value.put_u32_le(self.height);
        value.put_u32_le(self.payload_len);
        value.put_u8(self.rotation);
        self.written.put(&mut value);
        value.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("stripe", bytes);
        reader.version(VERSION)?;
        let stripe = Self {
            segment: SegmentId(reader.u64()?),
            offset: reader.u64()?,
            height: reader.u32()?,
            payload_len: reader.u32()?,
            rotation: reader.u8()?,
            written: ShardSet::take(&mut reader)?,
        };
        if !stripe.offset.is_multiple_of(BLOCK_SIZE as u64) || stripe.offset > MAX_SEGMENT_BYTES {
            return Err(reader.bad("offset", stripe.offset));
        }
        let is_possible = (BLOCK_BYTES..=MAX_STRIPE_BYTES).contains(&stripe.height);
        if !is_possible || !stripe.height.is_multiple_of(BLOCK_BYTES) {
            return Err(reader.bad("height", stripe.height));
        }
        if stripe.payload_len > MAX_STRIPE_BYTES {
            return Err(reader.bad("payload of length", stripe.payload_len));
        }
        reader.finish()?;
        Ok(stripe)
    }
}

/// Checksums of one shard of a stripe, a CRC32C for each block: `b'k' stripe shard`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardSums(pub Vec<u32>);

impl Record for ShardSums {
    fn encode(&self) -> Value {
        let mut value = Vec::with_capacity(1 + 4 * self.0.len());
        value.put_u8(VERSION);
        for sum in &self.0 {
            value.put_u32_le(*sum);
        }
        value.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let sums = Self::encoded(bytes)?.iter();
        Ok(Self(sums.copied().map(u32::from_le_bytes).collect()))
    }
}

impl ShardSums {
    /// Returns the checksums of some blocks from the encoded record, which is not decoded as a whole; `None` if it has
    /// not all of them.
    ///
    /// # Errors
    ///
    /// If the record is of another version, or its length makes no sense.
    pub fn decode_blocks(
        bytes: &[u8],
        blocks: Range<usize>,
    ) -> Result<Option<impl Iterator<Item = u32>>, FormatError> {
        let sums = Self::encoded(bytes)?;
        Ok(sums
            .get(blocks)
            .map(|sums| sums.iter().copied().map(u32::from_le_bytes)))
    }

    /// Returns the checksums as they are encoded.
    fn encoded(bytes: &[u8]) -> Result<&[[u8; 4]], FormatError> {
        let mut reader = Reader::new("sums", bytes);
        reader.version(VERSION)?;
        let (sums, stray) = reader.rest().as_chunks();
        if stray.is_empty() {
            return Ok(sums);
        }
        Err(FormatError::Trailing {
            what: "sums",
            extra: stray.len(),
        })
    }
}

/// A stripe that lacks shards: `b'l' (losses still tolerated + 1, or 0 if it is lost) stripe`, so that
/// the most endangered come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairNote {
    /// The shards that were never written or are known to be bad.
    pub missing: ShardSet,
}

impl Record for RepairNote {
    fn encode(&self) -> Value {
        let mut value = Vec::with_capacity(2 + size_of::<ShardSet>());
        value.put_u8(VERSION);
        self.missing.put(&mut value);
        value.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("repair note", bytes);
        reader.version(VERSION)?;
        let note = Self {
            missing: ShardSet::take(&mut reader)?,
        };
        reader.finish()?;
        Ok(note)
    }
}
