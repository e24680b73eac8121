//! Records of the journal.
//!
//! A journal file is a run of records from offset 0 on; each begins at a multiple of [`BLOCK_SIZE`] and is
//! padded to one with zeros. Older bytes may follow the newest record. A reader tells them apart by the
//! record's life and its LSN, never by where they lie.
//!
//! ```text
//! | header, 80 bytes | entries | stripe data | zeros up to the next block |
//!
//! entry:       key length u32 | value length u32, or 0xffff_ffff for "deleted" | key | value
//! stripe data: stripe u64 | offset u32 | length u32 | bytes
//! ```

use bytes::{BufMut, Bytes};
use uuid::Uuid;

use super::record::MAX_STRIPE_BYTES;
use super::{BLOCK_SIZE, Epoch, FormatError, Lsn, StripeId, VolumeId, wire::Reader};

/// Layout of a record's header, format version 1. Numbers are little-endian.
mod at {
    pub(super) const MAGIC: usize = 0; // 4 bytes
    pub(super) const VERSION: usize = 4; // u16
    pub(super) const RESERVED: usize = 6; // u16, zero
    pub(super) const CHECKSUM: usize = 8; // u32, CRC32C over every byte of the record after it
    pub(super) const LEN: usize = 12; // u32, header and body without padding
    pub(super) const ENTRIES: usize = 16; // u32
    pub(super) const STRIPES: usize = 20; // u32
    pub(super) const VOLUME: usize = 24; // 16 bytes
    pub(super) const EPOCH: usize = 40; // u64
    pub(super) const LSN: usize = 48; // u64
    pub(super) const GENERATION: usize = 56; // u64
    pub(super) const NONCE: usize = 64; // u64
    pub(super) const RESERVED_2: usize = 72; // u64, zero
    pub(super) const END: usize = 80;
}
const _: () = assert!(at::RESERVED_2 + size_of::<u64>() == at::END && at::END < BLOCK_SIZE);

/// Bytes of a record's header.
pub const RECORD_HEADER_BYTES: usize = at::END;

/// Longest file of a volume that was opened for writing, in bytes.
pub const MAX_FILE_BYTES: u64 = 32 << 20;

/// Longest record, in bytes with padding. Records are at most as long as a journal file, 32 MiB. Earlier
/// builds, which let the files grow, wrote none that is longer than this.
pub const MAX_RECORD_BYTES: usize = 1 << 30;

const MAGIC: [u8; 4] = *b"CfsJ";
const VERSION: u16 = 1;
const WHAT: &str = "journal record";
const DELETED: u32 = u32::MAX;

/// One life of the journal, from one mount to the next. Records of another journal generation are left-overs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct JournalGeneration {
    /// Counts lives: a higher one is later.
    pub number: u64,
    /// Drawn at random, so that two lives of one number are told apart.
    pub nonce: u64,
}

/// The content of a record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// The volume.
    pub volume: VolumeId,
    /// The epoch when it was written.
    pub epoch: Epoch,
    /// Its number.
    pub lsn: Lsn,
    /// The life it belongs to.
    pub generation: JournalGeneration,
}

/// Bytes of a stripe that has not been flushed, kept in the journal until it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripeData {
    /// The stripe.
    pub stripe: StripeId,
    /// Offset of the bytes in the stripe's payload.
    pub offset: u32,
    /// The bytes, at least one.
    pub bytes: Bytes,
}

impl StripeData {
    /// Takes bytes that lie within a stripe of at most `stripe_bytes` bytes of data.
    ///
    /// # Errors
    ///
    /// [`FormatError::Field`] if there are none, or if they end behind that: no volume of such stripes has written them.
    pub fn within(
        stripe_bytes: u32,
        stripe: StripeId,
        offset: u32,
        bytes: Bytes,
    ) -> Result<Self, FormatError> {
        if bytes.is_empty() {
            return Err(FormatError::Field {
                what: "stripe data",
                field: "length",
                value: 0,
            });
        }
        let end = u64::from(offset).saturating_add(bytes.len() as u64);
        if end > u64::from(stripe_bytes) {
            return Err(FormatError::Field {
                what: "stripe data",
                field: "end",
                value: end,
            });
        }
        Ok(Self {
            stripe,
            offset,
            bytes,
        })
    }
}

/// A key and its new value, or `None` if it is deleted.
pub type Change = (Bytes, Option<Bytes>);

/// A decoded record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalRecord {
    /// The header.
    pub header: RecordHeader,
    /// Changes of the index, in order of key.
    pub entries: Vec<Change>,
    /// Bytes of unflushed stripes.
    pub data: Vec<StripeData>,
}

/// Returns how many bytes of a record's body an entry takes.
#[must_use]
pub fn entry_bytes(key: &[u8], value: Option<&[u8]>) -> usize {
    8 + key.len() + value.map_or(0, <[u8]>::len)
}

/// Returns how many bytes of a record's body a piece of stripe data takes.
#[must_use]
pub fn stripe_bytes(data: &StripeData) -> usize {
    16 + data.bytes.len()
}

/// Returns the bytes of a whole record on disk, padding included, for a body of `body_bytes`.
#[must_use]
pub fn padded_bytes(body_bytes: usize) -> usize {
    (RECORD_HEADER_BYTES + body_bytes).next_multiple_of(BLOCK_SIZE)
}

/// Writes a record into `out`, which is exactly as long as [`padded_bytes`] says. Its entries are keys and new values,
/// `None` for a deletion.
///
/// # Panics
///
/// If `out` has another length, or the record is longer than [`MAX_RECORD_BYTES`]: the caller adds
/// the lengths up first.
pub fn encode<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    header: &RecordHeader,
    entries: &[(K, Option<V>)],
    data: &[StripeData],
    out: &mut [u8],
) {
    let body = entries
        .iter()
        .map(|(key, value)| entry_bytes(key.as_ref(), value.as_ref().map(V::as_ref)))
        .sum::<usize>()
        + data.iter().map(stripe_bytes).sum::<usize>();
    let len = RECORD_HEADER_BYTES + body;
    assert!(len <= MAX_RECORD_BYTES, "a journal record of {len} bytes");
    assert_eq!(out.len(), padded_bytes(body), "memory for a journal record");
    let (head, mut rest) = out.split_at_mut(RECORD_HEADER_BYTES);
    for (key, value) in entries {
        let (key, value) = (key.as_ref(), value.as_ref().map(V::as_ref));
        rest.put_u32_le(small(key.len()));
        rest.put_u32_le(value.map_or(DELETED, |value| small(value.len())));
        rest.put_slice(key);
        rest.put_slice(value.unwrap_or_default());
    }
    for piece in data {
        rest.put_u64_le(piece.stripe.0);
        rest.put_u32_le(piece.offset);
        rest.put_u32_le(small(piece.bytes.len()));
        rest.put_slice(&piece.bytes);
    }
    rest.fill(0);
    put_header(
        header,
        (small(len), small(entries.len()), small(data.len())),
        head,
    );
    let checksum = crc32c::crc32c(&out[at::LEN..len]);
    out[at::CHECKSUM..at::LEN].copy_from_slice(&checksum.to_le_bytes());
}

/// Every length in a record fits: the record as a whole is at most [`MAX_RECORD_BYTES`].
fn small(len: usize) -> u32 {
    u32::try_from(len).expect("parts of a record of at most 1 GiB have 32-bit lengths")
}

fn put_header(header: &RecordHeader, counts: (u32, u32, u32), out: &mut [u8]) {
    out[at::MAGIC..at::VERSION].copy_from_slice(&MAGIC);
    out[at::VERSION..at::RESERVED].copy_from_slice(&VERSION.to_le_bytes());
    out[at::RESERVED..at::CHECKSUM].fill(0);
    out[at::LEN..at::ENTRIES].copy_from_slice(&counts.0.to_le_bytes());
    out[at::ENTRIES..at::STRIPES].copy_from_slice(&counts.1.to_le_bytes());
    out[at::STRIPES..at::VOLUME].copy_from_slice(&counts.2.to_le_bytes());
    out[at::VOLUME..at::EPOCH].copy_from_slice(header.volume.0.as_bytes());
    out[at::EPOCH..at::LSN].copy_from_slice(&header.epoch.0.to_le_bytes());
    out[at::LSN..at::GENERATION].copy_from_slice(&header.lsn.0.to_le_bytes());
    out[at::GENERATION..at::NONCE].copy_from_slice(&header.generation.number.to_le_bytes());
    out[at::NONCE..at::RESERVED_2].copy_from_slice(&header.generation.nonce.to_le_bytes());
    out[at::RESERVED_2..at::END].fill(0);
}

/// The front of a record, read before its body: nothing in it is trusted until [`decode`] has
/// seen the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preview {
    /// The content of the header.
    pub header: RecordHeader,
    /// Bytes of the whole record on disk, padding included.
    pub padded_bytes: usize,
    len: usize,
    reserved: u16,
    checksum: u32,
    entries: u32,
    stripes: u32,
}

impl Preview {
    /// Reads the header at the front of `bytes`.
    ///
    /// # Errors
    ///
    /// If no record of a version that this build knows begins there.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(WHAT, bytes);
        if reader.array()? != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        let version = reader.u16()?;
        if version != VERSION {
            return Err(FormatError::Version {
                what: WHAT,
                found: version,
                known: VERSION,
            });
        }
        let reserved = reader.u16()?;
        let checksum = reader.u32()?;
        let len = reader.u32()?;
        let len_bytes = usize::try_from(len).map_err(|_| reader.bad("length", len))?;
        if !(RECORD_HEADER_BYTES..=MAX_RECORD_BYTES).contains(&len_bytes) {
            return Err(reader.bad("length", len));
        }
        let (entries, stripes) = (reader.u32()?, reader.u32()?);
        let volume = VolumeId(Uuid::from_bytes(reader.array()?));
        let epoch = Epoch(reader.count("epoch")?);
        let lsn = Lsn(reader.count("number")?);
        let generation = JournalGeneration {
            number: reader.count("journal generation")?,
            nonce: reader.u64()?,
        };
        Ok(Self {
            header: RecordHeader {
                volume,
                epoch,
                lsn,
                generation,
            },
            padded_bytes: len_bytes.next_multiple_of(BLOCK_SIZE),
            len: len_bytes,
            reserved,
            checksum,
            entries,
            stripes,
        })
    }
}

/// Decodes the record at the front of `bytes`, after checking its checksum. Keys, values and data
/// are slices of `bytes`, not copies.
///
/// # Errors
///
/// If the bytes are anything but a whole and undamaged record.
pub fn decode(bytes: &Bytes) -> Result<JournalRecord, FormatError> {
    decode_within(bytes, MAX_STRIPE_BYTES)
}

/// Decodes a record like [`decode`], of a volume whose stripes have at most `stripe_bytes` bytes of data.
///
/// # Errors
///
/// As for [`decode`], and if stripe data ends behind that.
pub fn decode_within(bytes: &Bytes, stripe_bytes: u32) -> Result<JournalRecord, FormatError> {
    let preview = Preview::decode(bytes)?;
    let mut reader = Reader::new(WHAT, bytes);
    let whole = reader.bytes(preview.len)?;
    let computed = crc32c::crc32c(&whole[at::LEN..]);
    if computed != preview.checksum {
        return Err(FormatError::Checksum {
            what: WHAT,
            stored: preview.checksum,
            computed,
        });
    }
    // Only now: a header under a wrong checksum is no fault of a record.
    if preview.reserved != 0 {
        return Err(reader.bad("reserved", preview.reserved));
    }
    let mut body = Reader::new(WHAT, &whole[RECORD_HEADER_BYTES..]);
    // The counts may lie even under a good checksum: never reserve memory by them.
    let mut entries = Vec::new();
    for _ in 0..preview.entries {
        entries.push(take_change(&mut body, bytes)?);
    }
    let mut data = Vec::new();
    for _ in 0..preview.stripes {
        data.push(take_data(&mut body, bytes, stripe_bytes)?);
    }
    body.finish()?;
    Ok(JournalRecord {
        header: preview.header,
        entries,
        data,
    })
}

fn take_change(body: &mut Reader<'_>, whole: &Bytes) -> Result<Change, FormatError> {
    let (key_len, value_len) = (body.u32()?, body.u32()?);
    let key = whole.slice_ref(take(body, key_len)?);
    let value = match value_len {
        DELETED => None,
        len => Some(whole.slice_ref(take(body, len)?)),
    };
    Ok((key, value))
}

fn take_data(
    body: &mut Reader<'_>,
    whole: &Bytes,
    stripe_bytes: u32,
) -> Result<StripeData, FormatError> {
    let (stripe, offset, len) = (StripeId(body.u64()?), body.u32()?, body.u32()?);
    let bytes = whole.slice_ref(take(body, len)?);
    StripeData::within(stripe_bytes, stripe, offset, bytes)
}

fn take<'a>(body: &mut Reader<'a>, len: u32) -> Result<&'a [u8], FormatError> {
    let bytes = usize::try_from(len).map_err(|_| body.bad("length", len))?;
    body.bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::MAX_COUNT;
    use proptest::prelude::*;

    fn header(lsn: u64) -> RecordHeader {
        RecordHeader {
            volume: VolumeId(Uuid::from_u128(7)),
            epoch: Epoch(3),
            lsn: Lsn(lsn),
            generation: JournalGeneration {
                number: 5,
                nonce: 0xdead_beef,
            },
        }
    }

    fn encoded(record: &JournalRecord) -> Vec<u8> {
        let body = record
            .entries
            .iter()
            .map(|(k, v)| entry_bytes(k, v.as_deref()))
            .sum::<usize>()
            + record.data.iter().map(stripe_bytes).sum::<usize>();
        let mut out = vec![0xaa; padded_bytes(body)];
        encode(&record.header, &record.entries, &record.data, &mut out);
        out
    }

    fn bytes(lens: std::ops::Range<usize>) -> impl Strategy<Value = Bytes> {
        proptest::collection::vec(any::<u8>(), lens).prop_map(Bytes::from)
    }

    fn records() -> impl Strategy<Value = JournalRecord> {
        let change = (bytes(0..20), proptest::option::of(bytes(0..300)));
        let piece = (any::<u64>(), 0..MAX_STRIPE_BYTES - 5000, bytes(1..5000)).prop_map(
            |(stripe, offset, bytes)| StripeData {
                stripe: StripeId(stripe),
                offset,
                bytes,
            },
        );
        let entries = proptest::collection::vec(change, 0..20);
        let data = proptest::collection::vec(piece, 0..3);
        (0..=MAX_COUNT, entries, data).prop_map(|(lsn, entries, data)| JournalRecord {
            header: header(lsn),
            entries,
            data,
        })
    }

    proptest! {
        #[test]
        fn a_record_decodes_to_the_encoded_one_whatever_follows_it(
            record in records(),
            tail in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let mut bytes = encoded(&record);
            prop_assert_eq!(bytes.len() % BLOCK_SIZE, 0);
            prop_assert_eq!(Preview::decode(&bytes).expect("header").padded_bytes, bytes.len());
            bytes.extend(tail);
            prop_assert_eq!(decode(&Bytes::from(bytes)), Ok(record));
        }

        #[test]
        fn no_flipped_bit_outside_the_padding_goes_unnoticed(
            record in records(), at in any::<proptest::sample::Index>(), bit in 0u8..8,
        ) {
            let mut bytes = encoded(&record);
            let len = Preview::decode(&bytes).expect("header").len;
            bytes[at.index(len)] ^= 1 << bit;
            prop_assert!(decode(&Bytes::from(bytes)).is_err());
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..9000),
            known in any::<bool>(), len in any::<u16>(), counts in any::<(u8, u8)>(),
        ) {
            if known && bytes.len() > RECORD_HEADER_BYTES {
                // A header that is right up to the checksum, so that the body is reached.
                let len = (usize::from(len) % bytes.len()).max(RECORD_HEADER_BYTES);
                let counts = (small(len), counts.0.into(), counts.1.into());
                put_header(&header(1), counts, &mut bytes[..RECORD_HEADER_BYTES]);
                let checksum = crc32c::crc32c(&bytes[at::LEN..len]);
                bytes[at::CHECKSUM..at::LEN].copy_from_slice(&checksum.to_le_bytes());
            }
            let _ = decode(&Bytes::from(bytes));
        }
    }
}
