//! The file `index`: a copy of the index database, every page of it checksummed.
//!
//! ```text
//! | head slot 0, 4096 | head slot 1, 4096 | frame 0 | frame 1 | frame 2 | ...
//!
//! frame: page, 4096 bytes | CRC32C u32 | volume tag u32 | page number u64 | sequence u64
//! ```
//!
//! A frame says how new it is: one sequence counts heads, and pages that are written together. So no page
//! that a head counts has a higher sequence than the head. Of two intact frames of a page in two copies, the
//! one with the higher sequence is the newer.
//!
//! The database's own header (all of its page 0 that is used) lies in a head instead of a frame.
//! It is the one thing that is overwritten while it is needed, so it has two slots: the newer valid
//! one counts, and the other is overwritten next. Frame 0 stays unused.

use bytes::BufMut;
use uuid::Uuid;

use super::{BLOCK_SIZE, FormatError, MemberIndex, VolumeId, wire::Reader};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// Bytes of a page with its trailer.
pub const FRAME_BYTES: usize = PAGE_BYTES + TRAILER_BYTES;

/// Bytes of a head slot.
pub const HEAD_BYTES: usize = BLOCK_SIZE;

/// Bytes of both head slots, where the frames begin.
pub const FRAMES_START: u64 = 2 * HEAD_BYTES as u64;

/// Bytes at the front of page 0 that a head keeps. The database uses 320 of them.
pub const DB_HEADER_BYTES: usize = 512;

/// Most copies that a head can name.
pub const MAX_COPIES: usize = 256;

const TRAILER_BYTES: usize = 24;
const FRAME: &str = "index frame";
const HEAD: &str = "index head";
const MAGIC: [u8; 8] = *b"CfsIndex";
const VERSION: u16 = 1;

/// Returns where the frame of a page lies in the file, in bytes. `page` is below 2⁵¹.
#[must_use]
pub fn frame_offset(page: u64) -> u64 {
    FRAMES_START + page * FRAME_BYTES as u64
}

/// Returns where a head slot lies in the file, in bytes. `slot` is 0 or 1.
#[must_use]
pub fn head_offset(slot: u8) -> u64 {
    u64::from(slot) * HEAD_BYTES as u64
}

/// Returns the tag that tells the frames of one volume from those of another.
#[must_use]
pub fn volume_tag(volume: VolumeId) -> u32 {
    crc32c::crc32c(volume.0.as_bytes())
}

/// The place of a frame in a copy of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePlace {
    /// The volume's tag; see [`volume_tag`].
    pub tag: u32,
    /// The page's number.
    pub page: u64,
}

/// A page, and how new it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its place in the sequence of all that was written, heads included.
    pub sequence: u64,
    /// The page.
    pub bytes: &'a [u8; PAGE_BYTES],
}

impl<'a> Frame<'a> {
    /// Appends the frame to `out`.
    pub fn put(&self, place: FramePlace, out: &mut impl BufMut) {
        out.put_slice(self.bytes);
        out.put_u32_le(self.checksum(place));
        out.put_u32_le(place.tag);
        out.put_u64_le(place.page);
        out.put_u64_le(self.sequence);
    }

    /// Reads a frame.
    ///
    /// # Errors
    ///
    /// If the frame is damaged, of another page or of another volume.
    pub fn open(place: FramePlace, frame: &'a [u8; FRAME_BYTES]) -> Result<Self, FormatError> {
        let cut = FormatError::Truncated {
            what: FRAME,
            len: frame.len(),
            needed: FRAME_BYTES,
        };
        let (bytes, trailer) = frame.split_first_chunk().ok_or(cut)?;
        let mut reader = Reader::new(FRAME, trailer);
        let (stored, tag, page) = (reader.u32()?, reader.u32()?, reader.u64()?);
        if tag != place.tag {
            return Err(reader.bad("volume tag", tag));
        }
        if page != place.page {
            return Err(reader.bad("page number", page));
        }
        let sequence = reader.u64()?;
        let opened = Self { sequence, bytes };
        let computed = opened.checksum(place);
        if computed != stored {
            return Err(FormatError::Checksum {
                what: FRAME,
                stored,
                computed,
            });
        }
        Ok(opened)
    }

    fn checksum(&self, place: FramePlace) -> u32 {
        let page = crc32c::crc32c_append(place.tag, self.bytes);
        let numbered = crc32c::crc32c_append(page, &place.page.to_le_bytes());
        crc32c::crc32c_append(numbered, &self.sequence.to_le_bytes())
    }
}

/// The state of a copy of the index, and the database's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The volume.
    pub volume: VolumeId,
    /// Counts what was written over the life of the index, heads and pages: the copy with the highest is
    /// the newest.
    pub sequence: u64,
    /// The last head before this one that was durable on all copies that it named. A copy whose own newest
    /// head is older does not count, even if a head names it.
    pub durable: u64,
    /// Bytes of the database.
    pub db_bytes: u64,
    /// Members whose copies hold every page that was synced before this head was written.
    pub copies: Vec<MemberIndex>,
    /// The front of the database's page 0.
    pub db_header: [u8; DB_HEADER_BYTES],
}

impl Head {
    /// Encodes the head as a slot.
    ///
    /// # Panics
    ///
    /// If it names more than [`MAX_COPIES`] copies.
    #[must_use]
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        assert!(
            self.copies.len() <= MAX_COPIES,
            "{} copies of the index",
            self.copies.len()
        );
        let mut slot = [0; HEAD_BYTES];
        let mut out = &mut slot[..HEAD_BYTES - 4];
        out.put_slice(&MAGIC);
        out.put_u16_le(VERSION);
        out.put_u16_le(u16::try_from(self.copies.len()).expect("at most 256 copies"));
        out.put_u32_le(0);
        out.put_slice(self.volume.0.as_bytes());
        out.put_u64_le(self.sequence);
        out.put_u64_le(self.durable);
        out.put_u64_le(self.db_bytes);
        out.put_slice(&self.db_header);
        for copy in &self.copies {
            out.put_u16_le(copy.0);
        }
        let (body, checksum) = slot.split_at_mut(HEAD_BYTES - 4);
        checksum.copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
        slot
    }

    /// Decodes a slot.
    ///
    /// # Errors
    ///
    /// If the slot is empty, damaged or of a newer version.
    pub fn decode(slot: &[u8; HEAD_BYTES]) -> Result<Self, FormatError> {
        let (body, checksum) = slot.split_at(HEAD_BYTES - 4);
        let mut reader = Reader::new(HEAD, body);
        if reader.array()? != MAGIC {
            return Err(FormatError::Magic { what: HEAD });
        }
        let stored = Reader::new(HEAD, checksum).u32()?;
        let computed = crc32c::crc32c(body);
        if computed != stored {
            return Err(FormatError::Checksum {
                what: HEAD,
                stored,
                computed,
            });
        }
        let version = reader.u16()?;
        if version != VERSION {
            return Err(FormatError::Version {
                what: HEAD,
                found: version,
                known: VERSION,
            });
        }
        let count = usize::from(reader.u16()?);
        if count > MAX_COPIES {
            return Err(reader.bad("count of copies", count as u64));
        }
        reader.u32()?;
        let volume = VolumeId(Uuid::from_bytes(reader.array()?));
        let (sequence, durable) = (reader.u64()?, reader.u64()?);
        if sequence > MAX_SEQUENCE {
            return Err(reader.bad("sequence", sequence));
        }
        if durable >= sequence {
            return Err(reader.bad("sequence of the head before", durable));
        }
        let (db_bytes, db_header) = (reader.u64()?, reader.array()?);
        if db_bytes > MAX_DB_BYTES {
            return Err(reader.bad("database length", db_bytes));
        }
        let mut copies = Vec::with_capacity(count);
        for _ in 0..count {
            copies.push(MemberIndex(reader.u16()?));
        }
        Ok(Self {
            volume,
            sequence,
            durable,
            db_bytes,
            copies,
            db_header,
        })
    }
}

/// No sequence is higher, so that it can be counted up from any that was read.
pub const MAX_SEQUENCE: u64 = 1 << 62;

/// No database is longer, so that offsets computed from a length never overflow.
pub const MAX_DB_BYTES: u64 = 1 << 60;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page() -> impl Strategy<Value = [u8; PAGE_BYTES]> {
        any::<[u8; 32]>().prop_map(|seed| std::array::from_fn(|i| seed[i % 31] ^ seed[i % 32]))
    }

    fn places() -> impl Strategy<Value = FramePlace> {
        (any::<u32>(), 0u64..1 << 51).prop_map(|(tag, page)| FramePlace { tag, page })
    }

    fn framed(place: FramePlace, frame: Frame<'_>) -> [u8; FRAME_BYTES] {
        let mut out = Vec::new();
        frame.put(place, &mut out);
        out.try_into().expect("a frame has its length")
    }

    fn heads() -> impl Strategy<Value = Head> {
        let copies = proptest::collection::vec(any::<u16>().prop_map(MemberIndex), 0..=MAX_COPIES);
        let sequences = (1..=MAX_SEQUENCE).prop_flat_map(|sequence| (Just(sequence), 0..sequence));
        (any::<u128>(), sequences, 0..MAX_DB_BYTES, copies, page()).prop_map(
            |(volume, (sequence, durable), db_bytes, copies, page)| Head {
                volume: VolumeId(Uuid::from_u128(volume)),
                sequence,
                durable,
                db_bytes,
                copies,
                db_header: *page.first_chunk().expect("a page is longer"),
            },
        )
    }

    proptest! {
        #[test]
        fn a_frame_opens_only_in_its_own_place_and_says_how_new_it_is(
            bytes in page(), place in places(), page in 0u64..1 << 51, sequence in any::<u64>(),
        ) {
            let frame = Frame { sequence, bytes: &bytes };
            let framed = framed(place, frame);
            prop_assert_eq!(Frame::open(place, &framed), Ok(frame));
            let other_volume = FramePlace { tag: place.tag ^ 1, ..place };
            prop_assert!(Frame::open(other_volume, &framed).is_err());
            let other_page = FramePlace { page, ..place };
            prop_assert_eq!(Frame::open(other_page, &framed).is_ok(), page == place.page);
        }

        #[test]
        fn no_flipped_bit_of_a_frame_goes_unnoticed(
            bytes in page(), sequence in any::<u64>(), at in 0..FRAME_BYTES, bit in 0u8..8,
        ) {
            let place = FramePlace { tag: 4, page: 9 };
            let mut frame = framed(place, Frame { sequence, bytes: &bytes });
            frame[at] ^= 1 << bit;
            prop_assert!(Frame::open(place, &frame).is_err());
        }

        #[test]
        fn no_bytes_make_the_frame_decoder_panic(
            bytes in proptest::collection::vec(any::<u8>(), FRAME_BYTES),
            place in places(),
            known in any::<bool>(),
        ) {
            let mut frame: [u8; FRAME_BYTES] = bytes.try_into().expect("a frame has its length");
            if known {
                frame[PAGE_BYTES + 4..PAGE_BYTES + 8].copy_from_slice(&place.tag.to_le_bytes());
                frame[PAGE_BYTES + 8..PAGE_BYTES + 16].copy_from_slice(&place.page.to_le_bytes());
            }
            // One of 2³² random checksums is right.
            let _ = Frame::open(place, &frame);
        }

        #[test]
        fn a_head_decodes_to_the_encoded_one_and_to_nothing_once_damaged(
            head in heads(), at in 0..HEAD_BYTES, bit in 0u8..8,
        ) {
            let mut slot = head.encode();
            prop_assert_eq!(Head::decode(&slot), Ok(head));
            slot[at] ^= 1 << bit;
            prop_assert!(Head::decode(&slot).is_err());
        }

        #[test]
        fn a_head_older_than_its_predecessor_or_past_the_last_sequence_is_refused(
            head in heads(), ahead in 0u64..9,
        ) {
            let durable = head.sequence + ahead;
            let younger = Head { durable, ..head.clone() };
            prop_assert!(Head::decode(&younger.encode()).is_err());
            let last = Head { sequence: MAX_SEQUENCE + 1 + ahead, ..head };
            prop_assert!(Head::decode(&last.encode()).is_err());
        }

        #[test]
        fn no_bytes_make_the_head_decoder_panic(
            mut slot in proptest::collection::vec(any::<u8>(), HEAD_BYTES), known in any::<bool>(),
        ) {
            if known {
                slot[..8].copy_from_slice(&MAGIC);
                slot[8..10].copy_from_slice(&VERSION.to_le_bytes());
                let checksum = crc32c::crc32c(&slot[..HEAD_BYTES - 4]);
                slot[HEAD_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
            }
            let slot: [u8; HEAD_BYTES] = slot.try_into().expect("a slot has its length");
            let _ = Head::decode(&slot);
        }
    }

    #[test]
    fn a_page_of_zeros_from_a_hole_is_no_frame() {
        let place = FramePlace { tag: 0, page: 0 };
        assert!(Frame::open(place, &[0; FRAME_BYTES]).is_err());
        assert!(Head::decode(&[0; HEAD_BYTES]).is_err());
    }
}
