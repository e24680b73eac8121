//! Events in the life of a volume, and the files on the members that hold them.
//!
//! An event file is a sequence of frames. Each has a magic number and a checksum. So a reader finds the next frame after
//! bytes that are damaged or were never written in full.

mod kind;
mod log;

use uuid::Uuid;

use super::{FormatError, MemberIndex, VolumeId, wire::Reader};

pub use kind::{EventKind, FirstNames, Severity, TEXT_MAX};
pub use log::{EventFile, RawEvent, merge, read_file, read_raw};

/// Most bytes of an event file.
pub const FILE_MAX: u64 = 256 << 10;

/// Most bytes of a frame.
pub const FRAME_MAX: usize = 16 << 10;

const EVENT: &str = "event";
const MAGIC: [u8; 4] = *b"CEvt";
const VERSION: u8 = 1;
const NO_MEMBER: u16 = u16::MAX;

/// Layout of a frame. FORMAT.md, "Events", has the prose.
mod at {
    pub(super) const CHECKSUM: usize = 4; // u32, over everything after it
    pub(super) const LEN: usize = 8; // u16, of the whole frame
    pub(super) const BODY: usize = 10; // version u8, kind u8, severity u8, reserved u8, member u16, ...
    pub(super) const KIND: usize = 11;
    pub(super) const FIELDS: usize = 48; // path of the member, then the fields of the kind
}

// The longest frame has three texts.
const _: () = assert!(at::FIELDS + 3 * (2 + TEXT_MAX) + 64 < FRAME_MAX);

/// The member that an event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventMember {
    /// Its number.
    pub index: MemberIndex,
    /// Its directory when the event happened; empty if that was unknown.
    pub path: String,
}

/// Something that happened to a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it happened, in milliseconds since 1970.
    pub time_ms: i64,
    /// Counts the events of a volume over its life. Events that two halves of a volume recorded apart may share one.
    pub sequence: u64,
    /// The volume.
    pub volume: VolumeId,
    /// The member that it is about, if it is about one.
    pub member: Option<EventMember>,
    /// The urgency.
    pub severity: Severity,
    /// The event itself.
    pub kind: EventKind,
}

impl Event {
    /// Encodes the event as a frame of at most [`FRAME_MAX`] bytes. Texts of more than [`TEXT_MAX`] bytes are cut.
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "a frame has at most 16 KiB")]
    pub fn encode(&self) -> Vec<u8> {
        let mut frame = Vec::with_capacity(128);
        frame.extend_from_slice(&MAGIC);
        frame.extend_from_slice(&[0; at::BODY - at::CHECKSUM]);
        frame.extend_from_slice(&[VERSION, self.kind.tag(), self.severity.number(), 0]);
        let member = self.member.as_ref();
        let index = member.map_or(NO_MEMBER, |member| member.index.0);
        frame.extend_from_slice(&index.to_le_bytes());
        frame.extend_from_slice(self.volume.0.as_bytes());
        frame.extend_from_slice(&self.time_ms.to_le_bytes());
        frame.extend_from_slice(&self.sequence.to_le_bytes());
        debug_assert_eq!(frame.len(), at::FIELDS);
        kind::put_text(member.map_or("", |member| &member.path), &mut frame);
        self.kind.put(&mut frame);
        let len = u16::try_from(frame.len()).expect("a frame has at most 16 KiB");
        frame[at::LEN..at::BODY].copy_from_slice(&len.to_le_bytes());
        let checksum = crc32c::crc32c(&frame[at::LEN..]);
        frame[at::CHECKSUM..at::LEN].copy_from_slice(&checksum.to_le_bytes());
        frame
    }

    /// Decodes the frame at the front of `bytes`. Returns the event and the length of the frame. An event of an unknown
    /// kind becomes [`EventKind::Unknown`], and fields that a later build added are ignored.
    ///
    /// # Errors
    ///
    /// If there is no frame, or if it is cut off, damaged or of a later version.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), FormatError> {
        let mut reader = Reader::new(EVENT, bytes);
        if reader.array()? != MAGIC {
            return Err(FormatError::Magic { what: EVENT });
        }
        let stored = reader.u32()?;
        let len = usize::from(reader.u16()?);
        if !(at::FIELDS..=FRAME_MAX).contains(&len) {
            return Err(reader.bad("length", len as u64));
        }
        let Some(covered) = bytes.get(at::LEN..len) else {
            return Err(FormatError::Truncated {
                what: EVENT,
                len: bytes.len(),
                needed: len,
            });
        };
        let computed = crc32c::crc32c(covered);
        if computed != stored {
            return Err(FormatError::Checksum {
                what: EVENT,
                stored,
                computed,
            });
        }
        let mut reader = Reader::new(EVENT, &bytes[at::BODY..len]);
        reader.version(VERSION)?;
        let [tag, severity, _] = reader.array()?;
        let index = reader.u16()?;
        let volume = VolumeId(Uuid::from_bytes(reader.array()?));
        let (time_ms, sequence) = (reader.i64()?, reader.count("sequence")?);
        let path = kind::take_text(&mut reader)?;
        let index = Some(index).filter(|index| *index != NO_MEMBER);
        let member = index.map(|index| EventMember {
            index: MemberIndex(index),
            path,
        });
        let event = Self {
            time_ms,
            sequence,
            volume,
            member,
            severity: Severity::of(severity),
            kind: EventKind::take(tag, &mut reader)?,
        };
        Ok((event, len))
    }
}

#[cfg(test)]
mod tests;
