//! The superblock: what each member knows of the volume. FORMAT.md, "Superblock", has the prose.

use bytes::BufMut;
use uuid::Uuid;

use super::code_number;
use super::record::MAX_SEGMENT_BYTES;
use super::{
    BLOCK_SIZE, Epoch, FORMAT_VERSION, FormatError, Generation, MemberId, MemberIndex, VolumeId,
    wire::Reader,
};

mod absent;
mod extension;
mod last_records;
mod last_seen;

pub use absent::{MAX_REPLACED, Replaced};
pub use last_records::LastRecord;
pub use last_seen::LastSeen;

/// Bytes of each of the two slots.
pub const SLOT_BYTES: usize = 64 << 10;

/// Slots in the superblock's file; generation `g` is written to slot `g % SLOTS`.
pub const SLOTS: usize = 2;

/// Most members a volume can have.
pub const MAX_MEMBERS: usize = 256;

/// Longest label in bytes.
pub const MAX_LABEL: usize = 255;

/// Longest path of a member that is noted, in bytes.
pub const MAX_PATH: usize = 200;

/// Most epochs that the history keeps.
pub const MAX_HISTORY: usize = 256;

/// Most bytes of fields.
pub const MAX_EXTENSION: usize = 4096;

/// The incompatible feature of a volume on which a quota was set once: inodes name quotas. Bits 0 and 1 are reserved.
pub const QUOTAS: u64 = 1 << 2;

/// The incompatible feature of a volume on which a file had unwritten extents once.
pub const UNWRITTEN: u64 = 1 << 3;

/// The incompatible feature of a volume whose code was changed once: segments may have shards that were added to them.
pub const CODE_CHANGES: u64 = 1 << 4;

/// The incompatible feature of a volume whose code has parameters: see [`code_number`](crate::code_number).
pub const CODE_PARAMETERS: u64 = 1 << 5;

/// The incompatible feature of a volume on which a directory was given a code once: inodes and segments name classes of
/// stripes.
pub const DIRECTORY_CODES: u64 = 1 << 6;

/// The features that this build knows.
pub const KNOWN: Features = Features {
    compat: 0,
    read_only: 0,
    incompat: QUOTAS | UNWRITTEN | CODE_CHANGES | CODE_PARAMETERS | DIRECTORY_CODES,
};

const MAGIC: [u8; 8] = *b"CauchyFS";

/// Layout of the fixed part, format version 1.
mod at {
    pub(super) const MAGIC: usize = 0; // 8 bytes
    pub(super) const VERSION: usize = 8; // u16, then two reserved bytes, zero
    pub(super) const LEN: usize = 12; // u32, bytes of the whole superblock, checksum included
    pub(super) const COMPAT: usize = 16; // u64
    pub(super) const INCOMPAT: usize = 24; // u64
    pub(super) const VOLUME: usize = 32; // 16 bytes
    pub(super) const MEMBER: usize = 48; // 16 bytes
    pub(super) const INDEX: usize = 64; // u16
    pub(super) const CODE: usize = 66; // u16
    pub(super) const DATA_SHARDS: usize = 68; // u8
    pub(super) const PARITY_SHARDS: usize = 69; // u8
    pub(super) const MEMBERS: usize = 70; // u16, entries of the member table
    pub(super) const UNIT: usize = 72; // u32
    pub(super) const HISTORY: usize = 76; // u16, entries of the history
    pub(super) const LABEL_LEN: usize = 78; // u8
    pub(super) const PROPOSED: usize = 79; // u8, 1 if the last entry of the history is only proposed
    pub(super) const SEGMENT: usize = 80; // u64
    pub(super) const GENERATION: usize = 88; // u64
    pub(super) const READ_ONLY: usize = 96; // u64
    pub(super) const EXTENSION_LEN: usize = 104; // u16
    pub(super) const CODE_PARAMETERS: usize = 106; // 6 bytes, zero if the code has none
    pub(super) const LABEL: usize = 112; // then member table, history, extension, checksum
}
const _: () = assert!(at::LABEL == at::CODE_PARAMETERS + code_number::PARAMETER_BYTES);

const ENTRY_MAX: usize = 18 + MAX_PATH;
const MARK_LEN: usize = 16;
const CHECKSUM_LEN: usize = 4;
const _: () = assert!(
    at::LABEL
        + MAX_LABEL
        + MAX_MEMBERS * ENTRY_MAX
        + (MAX_HISTORY + 1) * MARK_LEN
        + MAX_EXTENSION
        + CHECKSUM_LEN
        <= SLOT_BYTES
);

/// The features of a volume that not every build knows, one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// A build that does not know one may go on. It keeps the bit, and what belongs to it.
    pub compat: u64,
    /// A build that does not know one may read the volume, and must not write to it.
    pub read_only: u64,
    /// A build that does not know one would misread the volume.
    pub incompat: u64,
}

/// An epoch, told apart by a random number from one of the same number that others began elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochMark {
    /// Its number.
    pub epoch: Epoch,
    /// Drawn when it was proposed.
    pub nonce: u64,
}

/// The superblock's entry for one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberEntry {
    /// Its identity.
    pub id: MemberId,
    /// True if it belongs to the current epoch. A member that does not may have missed writes.
    pub current: bool,
    /// True while its shards are on their way to other members, after which it is removed.
    pub draining: bool,
    /// The path at which it was last seen, for messages; empty if that path is longer than [`MAX_PATH`], or
    /// has control characters.
    pub path: Vec<u8>,
}

/// One member's superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The volume.
    pub volume: VolumeId,
    /// The member it lies on.
    pub member: MemberId,
    /// The index of that member in `members`.
    pub index: MemberIndex,
    /// Data shards of new stripes.
    pub data_shards: u8,
    /// Parity shards of new stripes.
    pub parity_shards: u8,
    /// Number of the code of new stripes, with its parameters: see [`code_number`](crate::code_number).
    pub code: u64,
    /// Most bytes of a shard of new stripes.
    pub unit_bytes: u32,
    /// Bytes of each file of a full-sized segment.
    pub segment_bytes: u64,
    /// The user's name for the volume, at most [`MAX_LABEL`] bytes.
    pub label: String,
    /// The features that the volume uses.
    pub features: Features,
    /// Counts the superblocks written to this member.
    pub generation: Generation,
    /// Epochs that led here, oldest first, at most [`MAX_HISTORY`]; the last is the current one.
    pub history: Vec<EpochMark>,
    /// The epoch that is to follow, while it is agreed on.
    pub proposed: Option<EpochMark>,
    /// All members, by index, as of the current epoch; at most [`MAX_MEMBERS`].
    pub members: Vec<MemberEntry>,
    /// Fields, at most [`MAX_EXTENSION`] bytes. They record how members were last
    /// ([`Superblock::last_seen`]), which records they acknowledged last ([`Superblock::last_records`]), which were
    /// replaced ([`Superblock::replaced`]), and which are given up ([`Superblock::given_up`]). Fields that this build does not know are kept as they are.
    pub extension: Vec<u8>,
}

impl Superblock {
    /// Returns the features for whose sake this build must not write to the volume.
    #[must_use]
    pub fn read_only_features(&self) -> u64 {
        self.features.read_only & !KNOWN.read_only
    }

    /// Returns the current epoch.
    ///
    /// # Panics
    ///
    /// If the history is empty, which no decoded superblock's is.
    #[must_use]
    pub fn head(&self) -> EpochMark {
        *self.history.last().expect("a history has its own epoch")
    }

    /// Says whether an epoch, if it led here, is too old for the history.
    #[must_use]
    pub fn has_forgotten(&self, epoch: Epoch) -> bool {
        let first = self.history.first();
        self.history.len() == MAX_HISTORY && first.is_some_and(|first| epoch < first.epoch)
    }

    /// Returns the offset in the file at which this generation is written.
    #[must_use]
    pub fn slot_offset(&self) -> u64 {
        self.generation.0 % SLOTS as u64 * SLOT_BYTES as u64
    }

    /// Returns the slot's bytes, checksum included; at most [`SLOT_BYTES`].
    ///
    /// # Panics
    ///
    /// If there are more members or epochs, longer names, or more fields than the format has room for.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.members.len() <= MAX_MEMBERS, "too many members");
        assert!(self.history.len() <= MAX_HISTORY, "too long a history");
        assert!(self.label.len() <= MAX_LABEL, "too long a label");
        assert!(self.extension.len() <= MAX_EXTENSION, "too many fields");
        let mut slot = vec![0; at::LABEL];
        self.put_fixed(&mut slot);
        slot.put_slice(self.label.as_bytes());
        for entry in &self.members {
            assert!(entry.path.len() <= MAX_PATH, "too long a path");
            slot.put_slice(entry.id.0.as_bytes());
            slot.put_u8(u8::from(entry.current) | u8::from(entry.draining) << 1);
            slot.put_u8(narrow(entry.path.len()));
            slot.put_slice(&entry.path);
        }
        for mark in self.history.iter().chain(&self.proposed) {
            slot.put_u64_le(mark.epoch.0);
            slot.put_u64_le(mark.nonce);
        }
        slot.put_slice(&self.extension);
        let len: u32 = narrow(slot.len() + CHECKSUM_LEN);
        put(&mut slot, at::LEN, len.to_le_bytes());
        let checksum = crc32c::crc32c(&slot);
        slot.put_u32_le(checksum);
        slot
    }

    fn put_fixed(&self, slot: &mut [u8]) {
        let marks = self.history.len() + usize::from(self.proposed.is_some());
        put(slot, at::MAGIC, MAGIC);
        put(slot, at::VERSION, FORMAT_VERSION.to_le_bytes());
        put(slot, at::COMPAT, self.features.compat.to_le_bytes());
        put(slot, at::INCOMPAT, self.features.incompat.to_le_bytes());
        put(slot, at::VOLUME, *self.volume.0.as_bytes());
        put(slot, at::MEMBER, *self.member.0.as_bytes());
        put(slot, at::INDEX, self.index.0.to_le_bytes());
        let (code, parameters) = code_number::split(self.code);
        put(slot, at::CODE, code.to_le_bytes());
        put(slot, at::CODE_PARAMETERS, parameters);
        put(slot, at::DATA_SHARDS, [self.data_shards]);
        put(slot, at::PARITY_SHARDS, [self.parity_shards]);
        put(
            slot,
            at::MEMBERS,
            narrow::<u16>(self.members.len()).to_le_bytes(),
        );
        put(slot, at::UNIT, self.unit_bytes.to_le_bytes());
        put(slot, at::HISTORY, narrow::<u16>(marks).to_le_bytes());
        put(slot, at::LABEL_LEN, [narrow::<u8>(self.label.len())]);
        put(slot, at::PROPOSED, [self.proposed.is_some().into()]);
        put(slot, at::SEGMENT, self.segment_bytes.to_le_bytes());
        put(slot, at::GENERATION, self.generation.0.to_le_bytes());
        put(slot, at::READ_ONLY, self.features.read_only.to_le_bytes());
        put(
            slot,
            at::EXTENSION_LEN,
            narrow::<u16>(self.extension.len()).to_le_bytes(),
        );
    }

    /// Reads a slot; bytes after the superblock's end are ignored. Never panics.
    ///
    /// # Errors
    ///
    /// [`FormatError::Version`] and [`FormatError::Features`] for one that is whole but was made by a
    /// newer build; any other [`FormatError`] if there is none, or it is damaged.
    pub fn decode(slot: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(WHAT, checked(slot)?);
        reader.bytes(at::COMPAT)?;
        let (compat, incompat) = (reader.u64()?, reader.u64()?);
        let unknown = incompat & !KNOWN.incompat;
        if unknown != 0 {
            return Err(FormatError::Features {
                what: WHAT,
                unknown,
            });
        }
        let volume = VolumeId(Uuid::from_bytes(reader.array()?));
        let member = MemberId(Uuid::from_bytes(reader.array()?));
        let (index, code) = (reader.u16()?, reader.u16()?);
        let (data_shards, parity_shards) = (reader.u8()?, reader.u8()?);
        let member_count = reader.u16()?;
        let unit_bytes = reader.u32()?;
        let marks = reader.u16()?;
        let label_len = reader.u8()?;
        let proposed = reader.u8()?;
        let segment_bytes = reader.u64()?;
        let generation = Generation(reader.count("generation")?);
        let features = Features {
            compat,
            read_only: reader.u64()?,
            incompat,
        };
        let extension_len = reader.u16()?;
        let parameters = reader.array()?;
        // No build has written anything else than zeros there for a code without parameters.
        let code = if features.incompat & CODE_PARAMETERS == 0 {
            u64::from(code)
        } else {
            code_number::join(code, parameters)
        };
        if usize::from(extension_len) > MAX_EXTENSION {
            return Err(reader.bad("extension of length", extension_len));
        }
        if usize::from(member_count) > MAX_MEMBERS {
            return Err(reader.bad("member count", member_count));
        }
        if index >= member_count {
            return Err(reader.bad("member index", index));
        }
        check_sizes(&reader, data_shards, unit_bytes, segment_bytes)?;
        let label = take_label(&mut reader, label_len)?;
        let members = (0..member_count)
            .map(|_| take_entry(&mut reader, features))
            .collect::<Result<_, _>>()?;
        let (history, proposed) = take_marks(&mut reader, marks, proposed)?;
        let extension = reader.bytes(extension_len.into())?.to_vec();
        reader.finish()?;
        Ok(Self {
            volume,
            member,
            index: MemberIndex(index),
            data_shards,
            parity_shards,
            code,
            unit_bytes,
            segment_bytes,
            label,
            features,
            generation,
            history,
            proposed,
            members,
            extension,
        })
    }
}

const WHAT: &str = "superblock";

/// Refuses sizes of stripes and segments with which no volume is made: the stripe unit is whole blocks, a
/// segment's file whole units, and neither so long that sums of offsets overflow.
fn check_sizes(
    reader: &Reader<'_>,
    data_shards: u8,
    unit_bytes: u32,
    segment_bytes: u64,
) -> Result<(), FormatError> {
    let unit = u64::from(unit_bytes);
    let is_whole = unit > 0 && unit.is_multiple_of(BLOCK_SIZE as u64);
    if !is_whole || unit * u64::from(data_shards) > u64::from(u32::MAX) {
        return Err(reader.bad("stripe unit", unit_bytes));
    }
    let is_possible = (unit..=MAX_SEGMENT_BYTES).contains(&segment_bytes);
    if !is_possible || !segment_bytes.is_multiple_of(unit) {
        return Err(reader.bad("segment size", segment_bytes));
    }
    Ok(())
}

/// Returns the superblock's bytes without its checksum, which was right. Magic, version, length and the
/// checksum at the end stay where they are in every version. A newer superblock can thus be told from a
/// damaged one.
fn checked(slot: &[u8]) -> Result<&[u8], FormatError> {
    let mut reader = Reader::new(WHAT, slot);
    if reader.array()? != MAGIC {
        return Err(FormatError::Magic { what: WHAT });
    }
    let version = reader.u16()?;
    reader.bytes(at::LEN - at::VERSION - size_of::<u16>())?;
    let len = reader.u32()?;
    let Some(body_len) = (len as usize).checked_sub(CHECKSUM_LEN) else {
        return Err(reader.bad("length", len));
    };
    let mut reader = Reader::new(WHAT, slot);
    let body = reader.bytes(body_len)?;
    let stored = reader.u32()?;
    let computed = crc32c::crc32c(body);
    if stored != computed {
        return Err(FormatError::Checksum {
            what: WHAT,
            stored,
            computed,
        });
    }
    if version != FORMAT_VERSION {
        return Err(FormatError::Version {
            what: WHAT,
            found: version,
            known: FORMAT_VERSION,
        });
    }
    Ok(body)
}

/// Says whether a text has no control characters, with which it could steer a terminal.
fn is_printable(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

/// Returns a path as superblocks note it, and as it is read: empty if it is too long, or has control
/// characters. Members in such directories are found like all others, by what they hold.
#[must_use]
pub fn noted_path(path: &[u8]) -> Vec<u8> {
    if path.len() <= MAX_PATH && is_printable(&String::from_utf8_lossy(path)) {
        path.to_vec()
    } else {
        Vec::new()
    }
}

fn take_label(reader: &mut Reader<'_>, len: u8) -> Result<String, FormatError> {
    let bytes = reader.bytes(len.into())?;
    match str::from_utf8(bytes) {
        Ok(label) if is_printable(label) => Ok(label.to_owned()),
        Ok(label) => Err(reader.bad(
            "label with a control character, of length",
            label.len() as u64,
        )),
        Err(error) => Err(reader.bad(
            "label with a byte that is not UTF-8 at",
            error.valid_up_to() as u64,
        )),
    }
}

fn take_entry(reader: &mut Reader<'_>, features: Features) -> Result<MemberEntry, FormatError> {
    let id = MemberId(Uuid::from_bytes(reader.array()?));
    let newer = features.read_only & !KNOWN.read_only != 0;
    let (current, draining) = match reader.u8()? {
        state @ 0..4 => (state & 1 != 0, state & 2 != 0),
        // Nothing rewrites it: a volume with such features is read only.
        _ if newer => (false, false),
        other => return Err(reader.bad("member state", other)),
    };
    let path_len = reader.u8()?;
    if usize::from(path_len) > MAX_PATH {
        return Err(reader.bad("path of length", path_len));
    }
    let path = noted_path(reader.bytes(path_len.into())?);
    Ok(MemberEntry {
        id,
        current,
        draining,
        path,
    })
}

impl MemberEntry {
    /// Returns the entry of an index that no member has, because its member was removed.
    #[must_use]
    pub fn vacant() -> Self {
        Self {
            id: MemberId(Uuid::nil()),
            current: false,
            draining: false,
            path: Vec::new(),
        }
    }

    /// Says whether no member has this place.
    #[must_use]
    pub fn is_vacant(&self) -> bool {
        self.id.0.is_nil()
    }
}

fn take_marks(
    reader: &mut Reader<'_>,
    count: u16,
    proposed: u8,
) -> Result<(Vec<EpochMark>, Option<EpochMark>), FormatError> {
    if proposed > 1 {
        return Err(reader.bad("proposal flag", proposed));
    }
    let history_len = usize::from(count).saturating_sub(proposed.into());
    if history_len == 0 || history_len > MAX_HISTORY {
        return Err(reader.bad("history of length", history_len as u64));
    }
    let history = (0..history_len)
        .map(|_| take_mark(reader))
        .collect::<Result<_, _>>()?;
    let proposed = (proposed == 1).then(|| take_mark(reader)).transpose()?;
    Ok((history, proposed))
}

fn take_mark(reader: &mut Reader<'_>) -> Result<EpochMark, FormatError> {
    Ok(EpochMark {
        epoch: Epoch(reader.count("epoch")?),
        nonce: reader.u64()?,
    })
}

fn put<const N: usize>(slot: &mut [u8], offset: usize, field: [u8; N]) {
    slot[offset..offset + N].copy_from_slice(&field);
}

/// Converts a count that [`Superblock::encode`] has checked against the format's limits.
fn narrow<T: TryFrom<usize>>(count: usize) -> T {
    T::try_from(count)
        .ok()
        .expect("limits of the format fit its fields")
}

#[cfg(test)]
mod tests;
