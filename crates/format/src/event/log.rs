//! Reading event files, and merging those of several members.

use super::{Event, MAGIC, at};

/// An event of a file with the bytes that it is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawEvent<'a> {
    /// The event, as far as this build knows it.
    pub event: Event,
    /// Its frame, with fields and kinds of later builds.
    pub frame: &'a [u8],
    /// The offset in the file at which the frame ends.
    pub end: usize,
}

impl RawEvent<'_> {
    /// Returns the number of the kind, which tells kinds apart that this build does not know.
    #[must_use]
    pub fn kind_number(&self) -> u8 {
        self.frame[at::KIND]
    }
}

/// The content of an event file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFile {
    /// The events, in the order of the file.
    pub events: Vec<Event>,
    /// The runs of bytes that are no frame: damaged ones, and such that were not written in full.
    pub damaged: usize,
}

/// Reads an event file. A damaged frame costs no other frame.
#[must_use]
pub fn read_file(bytes: &[u8]) -> EventFile {
    let (events, damaged) = read_raw(bytes);
    let events = events.into_iter().map(|it| it.event).collect();
    EventFile { events, damaged }
}

/// Reads an event file as [`read_file`] does. Returns the events with their frames, and the count of damaged runs.
#[must_use]
pub fn read_raw(bytes: &[u8]) -> (Vec<RawEvent<'_>>, usize) {
    let (mut events, mut damaged) = (Vec::new(), 0);
    let mut rest = bytes;
    let mut is_damaged = false;
    while !rest.is_empty() {
        if let Ok((event, len)) = Event::decode(rest) {
            let (frame, after) = rest.split_at(len);
            let end = bytes.len() - after.len();
            events.push(RawEvent { event, frame, end });
            rest = after;
            is_damaged = false;
        } else {
            damaged += usize::from(!is_damaged);
            is_damaged = true;
            rest = after_byte(rest);
        }
    }
    (events, damaged)
}

/// Returns the bytes from the next place at which a frame may begin.
fn after_byte(bytes: &[u8]) -> &[u8] {
    let tail = bytes.get(1..).unwrap_or_default();
    let next = tail
        .iter()
        .position(|byte| *byte == MAGIC[0])
        .unwrap_or(tail.len());
    &tail[next..]
}

/// Merges the events of several files by time and sequence. An event that several members have is there once.
#[must_use]
pub fn merge(events: impl IntoIterator<Item = Event>) -> Vec<Event> {
    let mut merged: Vec<Event> = events.into_iter().collect();
    merged.sort_by_cached_key(order);
    merged.dedup();
    merged
}

/// Returns what orders events. Different events of equal time and sequence, which halves of a volume recorded apart, are
/// told by their bytes: copies of one stand together.
fn order(event: &Event) -> (i64, u64, Vec<u8>) {
    (event.time_ms, event.sequence, event.encode())
}
