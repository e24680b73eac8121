//! Reading event files, and merging those of several members.

use super::{Event, MAGIC};

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
    let mut file = EventFile::default();
    let mut rest = bytes;
    let mut is_damaged = false;
    while !rest.is_empty() {
        if let Ok((event, len)) = Event::decode(rest) {
            file.events.push(event);
            rest = &rest[len..];
            is_damaged = false;
        } else {
            file.damaged += usize::from(!is_damaged);
            is_damaged = true;
            rest = after_byte(rest);
        }
    }
    file
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
