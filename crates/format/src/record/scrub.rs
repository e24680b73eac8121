//! The progress of a scrub, and the losses that it found.

use std::ops::Range;

use bytes::BufMut;

use super::{MAX_STRIPE_BYTES, Record, VERSION, Value};
use crate::{FormatError, MemberIndex, SegmentId, wire::Reader};

/// The scrub that was begun last: `b'v'`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrub {
    /// True if it went through.
    pub is_finished: bool,
    /// The segment that it goes on with.
    pub segment: SegmentId,
    /// The offset in that segment's files that it goes on with.
    pub offset: u64,
    /// The first segment that it leaves out, because it was made later.
    pub end: SegmentId,
    /// When it was begun, in seconds since 1970.
    pub began: u64,
    /// When a scrub, this one or one before it, went through last; 0 if none did.
    pub last_finished: u64,
    /// Bytes of shards that it read.
    pub bytes: u64,
    /// Shards, pages of the index and other pieces that it repaired.
    pub repaired: u64,
    /// Those that were wrong and could not be repaired.
    pub wrong: u64,
    /// Shards that were on no online member, or were not verified. Counts the state when each was passed;
    /// once the scrub went through, the state at its end.
    pub missing: u64,
    /// Bytes of stripes that were lost, counted in the same way.
    pub lost: u64,
    /// The members that are stale copies and are not verified yet, a bit for each. A scrub begins, or goes
    /// on, by itself for them.
    pub stale_copies: [u64; 4],
}

impl Scrub {
    /// Names the stale copies that are not verified yet, and no others.
    #[must_use]
    pub fn naming(self, members: impl IntoIterator<Item = MemberIndex>) -> Self {
        let mut stale_copies = [0; 4];
        for MemberIndex(member) in members {
            if let Some(word) = stale_copies.get_mut(usize::from(member / 64)) {
                *word |= 1 << (member % 64);
            }
        }
        Self {
            stale_copies,
            ..self
        }
    }

    /// Returns the members that it names.
    pub fn named(&self) -> impl Iterator<Item = MemberIndex> + use<> {
        let bits = self.stale_copies;
        let is_set = move |member: &u16| bits[usize::from(member / 64)] >> (member % 64) & 1 == 1;
        (0..256).filter(is_set).map(MemberIndex)
    }
}

impl Record for Scrub {
    fn encode(&self) -> Value {
        let mut value = Vec::with_capacity(114);
        value.put_u8(VERSION);
        let has_stale_copies = self.stale_copies != [0; 4];
        value.put_u8(u8::from(self.is_finished) | u8::from(has_stale_copies) << 1);
        for number in [
            self.segment.0,
            self.offset,
            self.end.0,
            self.began,
            self.last_finished,
            self.bytes,
            self.repaired,
            self.wrong,
            self.missing,
            self.lost,
        ] {
            value.put_u64_le(number);
        }
        if has_stale_copies {
            for bits in self.stale_copies {
                value.put_u64_le(bits);
            }
        }
        value.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("scrub", bytes);
        reader.version(VERSION)?;
        let flags = reader.u8()?;
        if flags > 3 {
            return Err(reader.bad("flags", flags));
        }
        let mut scrub = Self {
            is_finished: flags & 1 == 1,
            segment: SegmentId(reader.u64()?),
            offset: reader.u64()?,
            end: SegmentId(reader.u64()?),
            began: reader.u64()?,
            last_finished: reader.u64()?,
            bytes: reader.u64()?,
            repaired: reader.u64()?,
            wrong: reader.u64()?,
            missing: reader.u64()?,
            lost: reader.u64()?,
            stale_copies: [0; 4],
        };
        if flags & 2 == 2 {
            for bits in &mut scrub.stale_copies {
                *bits = reader.u64()?;
            }
            if scrub.stale_copies == [0; 4] {
                return Err(reader.bad("stale copies", 0_u8));
            }
        }
        reader.finish()?;
        Ok(scrub)
    }
}

/// Bytes of a stripe's payload that parity could not replace when all its shards were last looked at:
/// `b'u' stripe`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostBytes(pub Vec<Range<u32>>);

impl Record for LostBytes {
    fn encode(&self) -> Value {
        let mut value = Vec::with_capacity(1 + 8 * self.0.len());
        value.put_u8(VERSION);
        for range in &self.0 {
            value.put_u32_le(range.start);
            value.put_u32_le(range.end);
        }
        value.into()
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("lost bytes", bytes);
        reader.version(VERSION)?;
        let (ranges, stray) = reader.rest().as_chunks::<8>();
        if !stray.is_empty() {
            return Err(FormatError::Trailing {
                what: "lost bytes",
                extra: stray.len(),
            });
        }
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .rev()
                .fold(0, |n, byte| n << 8 | u32::from(*byte))
        };
        let range = |range: &[u8; 8]| number(&range[..4])..number(&range[4..]);
        let ranges: Vec<Range<u32>> = ranges.iter().map(range).collect();
        let is_possible = |range: &Range<u32>| !range.is_empty() && range.end <= MAX_STRIPE_BYTES;
        if let Some(bad) = ranges.iter().find(|range| !is_possible(range)) {
            return Err(reader.bad("range that ends at", bad.end));
        }
        Ok(Self(ranges))
    }
}
