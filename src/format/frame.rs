//! The file `index`: a copy of the index database, every page of it checksummed.
//!
//! ```text
//! | head slot 0, 4096 | head slot 1, 4096 | frame 0 | frame 1 | frame 2 | ...
//!
//! frame: page, 4096 bytes | CRC32C u32 | volume tag u32 | page number u64
//! ```
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

const TRAILER_BYTES: usize = 16;
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

/// Appends the frame of a page to `out`.
pub fn put_frame(page: u64, bytes: &[u8; PAGE_BYTES], tag: u32, out: &mut impl BufMut) {
    out.put_slice(bytes);
    out.put_u32_le(frame_checksum(page, bytes, tag));
    out.put_u32_le(tag);
    out.put_u64_le(page);
}

/// Returns the page in a frame.
///
/// # Errors
///
/// If the frame is damaged, of another page or of another volume.
pub fn open_frame(
    page: u64,
    tag: u32,
    frame: &[u8; FRAME_BYTES],
) -> Result<&[u8; PAGE_BYTES], FormatError> {
    let cut = FormatError::Truncated {
        what: FRAME,
        len: frame.len(),
        needed: FRAME_BYTES,
    };
    let (bytes, trailer) = frame.split_first_chunk().ok_or(cut)?;
    let mut reader = Reader::new(FRAME, trailer);
    let (stored, found_tag, found_page) = (reader.u32()?, reader.u32()?, reader.u64()?);
    if found_tag != tag {
        return Err(reader.bad("volume tag", found_tag));
    }
    if found_page != page {
        return Err(reader.bad("page number", found_page));
    }
    let computed = frame_checksum(page, bytes, tag);
    if computed != stored {
        return Err(FormatError::Checksum {
            what: FRAME,
            stored,
            computed,
        });
    }
    Ok(bytes)
}

fn frame_checksum(page: u64, bytes: &[u8; PAGE_BYTES], tag: u32) -> u32 {
    let checksum = crc32c::crc32c_append(tag, bytes);
    crc32c::crc32c_append(checksum, &page.to_le_bytes())
}

/// What a copy of the index is worth, and the database's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The volume.
    pub volume: VolumeId,
    /// Counts heads over the life of the index: the copy with the highest is the newest.
    pub sequence: u64,
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
        let (sequence, db_bytes, db_header) = (reader.u64()?, reader.u64()?, reader.array()?);
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
            db_bytes,
            copies,
            db_header,
        })
    }
}

/// No database is longer, so that offsets computed from a length never overflow.
pub const MAX_DB_BYTES: u64 = 1 << 60;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page() -> impl Strategy<Value = [u8; PAGE_BYTES]> {
        any::<[u8; 32]>().prop_map(|seed| std::array::from_fn(|i| seed[i % 31] ^ seed[i % 32]))
    }

    fn framed(page: u64, bytes: &[u8; PAGE_BYTES], tag: u32) -> [u8; FRAME_BYTES] {
        let mut out = Vec::new();
        put_frame(page, bytes, tag, &mut out);
        out.try_into().expect("a frame has its length")
    }

    fn heads() -> impl Strategy<Value = Head> {
        let copies = proptest::collection::vec(any::<u16>().prop_map(MemberIndex), 0..=MAX_COPIES);
        (any::<u128>(), any::<u64>(), 0..MAX_DB_BYTES, copies, page()).prop_map(
            |(volume, sequence, db_bytes, copies, page)| Head {
                volume: VolumeId(Uuid::from_u128(volume)),
                sequence,
                db_bytes,
                copies,
                db_header: *page.first_chunk().expect("a page is longer"),
            },
        )
    }

    proptest! {
        #[test]
        fn a_frame_opens_only_under_its_own_number_and_tag(
            bytes in page(), number in 0u64..1 << 51, other in 0u64..1 << 51, tag in any::<u32>(),
        ) {
            let frame = framed(number, &bytes, tag);
            prop_assert_eq!(open_frame(number, tag, &frame), Ok(&bytes));
            prop_assert!(open_frame(number, tag ^ 1, &frame).is_err());
            prop_assert_eq!(open_frame(other, tag, &frame).is_ok(), other == number);
        }

        #[test]
        fn no_flipped_bit_of_a_frame_goes_unnoticed(
            bytes in page(), at in 0..FRAME_BYTES, bit in 0u8..8,
        ) {
            let mut frame = framed(9, &bytes, 4);
            frame[at] ^= 1 << bit;
            prop_assert!(open_frame(9, 4, &frame).is_err());
        }

        #[test]
        fn a_head_decodes_to_what_was_encoded_and_to_nothing_once_damaged(
            head in heads(), at in 0..HEAD_BYTES, bit in 0u8..8,
        ) {
            let mut slot = head.encode();
            prop_assert_eq!(Head::decode(&slot), Ok(head));
            slot[at] ^= 1 << bit;
            prop_assert!(Head::decode(&slot).is_err());
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
        assert!(open_frame(0, 0, &[0; FRAME_BYTES]).is_err());
        assert!(Head::decode(&[0; HEAD_BYTES]).is_err());
    }
}
