//! The event files of one directory: reading them, and appending to them.

use std::collections::HashMap;
use std::mem::discriminant;

use crate::format::event::{Event, EventKind, FILE_MAX, FRAME_MAX, read_file};
use crate::format::files::{EVENTS, OLD_EVENTS};
use crate::store::{Store, StoreError};

/// Most bytes that are read of an event file, from its end. No daemon makes one longer.
const MOST_READ: u64 = FILE_MAX + FRAME_MAX as u64;

/// Most bytes of one kind that stay beyond the life of a file, and of all kinds together.
const SHARE_BYTES: usize = 32 << 10;
const MOST_KEPT: usize = 128 << 10;

/// The events in the files of one directory.
#[derive(Clone, Debug, Default)]
pub struct ReadEvents {
    /// The events, the oldest first.
    pub events: Vec<Event>,
    /// The places at which the files are damaged, or were not written in full.
    pub damaged: usize,
}

/// Reads the event files of a directory. Files that are not there have no events.
///
/// # Errors
///
/// If a file is there and cannot be read.
pub fn read_store(store: &dyn Store) -> Result<ReadEvents, StoreError> {
    let mut found = ReadEvents::default();
    for name in [OLD_EVENTS, EVENTS] {
        let read = read_one(store, name)?;
        found.events.extend(read.events);
        found.damaged += read.damaged;
    }
    // The new file begins with events that were in a file before the old one.
    found.events.sort_by_key(|event| event.sequence);
    Ok(found)
}

/// Reads one of the files. There are no events if it is absent.
fn read_one(store: &dyn Store, name: &str) -> Result<ReadEvents, StoreError> {
    let absent = ReadEvents::default;
    let len = match store.open_len(name) {
        Ok(len) => len,
        Err(error) if error.kind().lacks_file() => return Ok(absent()),
        Err(error) => return Err(error),
    };
    let offset = len.saturating_sub(MOST_READ);
    let count = usize::try_from(len - offset).unwrap_or(usize::MAX);
    let mut bytes = vec![0; count];
    match store.read_at(name, offset, &mut bytes) {
        Ok(()) => {}
        // It was replaced since.
        Err(error) if error.kind().lacks_file() => return Ok(absent()),
        Err(error) => return Err(error),
    }
    let read = read_file(&bytes);
    Ok(ReadEvents {
        events: read.events,
        damaged: read.damaged,
    })
}

/// Makes room for `needed` bytes in the event file of a directory. Returns the offset at which they belong.
pub(super) fn make_room(store: &dyn Store, needed: u64) -> Result<u64, StoreError> {
    let len = match store.open_len(EVENTS) {
        Ok(len) => len,
        Err(error) if error.kind().lacks_file() => {
            store.create(EVENTS, 0)?;
            0
        }
        Err(error) => return Err(error),
    };
    if len == 0 || len.saturating_add(needed) <= FILE_MAX {
        return Ok(len);
    }
    // Old events that cannot be read do not keep new ones out.
    let kept = rare_events(store).unwrap_or_else(|error| {
        tracing::debug!("no old events are kept: {error}");
        Vec::new()
    });
    store.rename(EVENTS, OLD_EVENTS)?;
    store.create(EVENTS, 0)?;
    store.write_at(EVENTS, 0, &kept)?;
    Ok(kept.len() as u64)
}

/// Returns those events of the old file that stay although a new one takes its place: the newest of each kind, as many as
/// its share of a file is. So a kind that fills a file pushes out no event of another.
fn rare_events(store: &dyn Store) -> Result<Vec<u8>, StoreError> {
    let old = read_one(store, OLD_EVENTS)?.events;
    let new = read_one(store, EVENTS)?.events;
    let mut bytes_of = HashMap::new();
    let mut has_share = |event: &Event| {
        // One of a later build would lose its fields.
        if event.kind == EventKind::Unknown {
            return None;
        }
        let frame = event.encode();
        let bytes = bytes_of.entry(discriminant(&event.kind)).or_insert(0);
        *bytes += frame.len();
        (*bytes <= SHARE_BYTES).then_some(frame)
    };
    for event in new.iter().rev() {
        has_share(event);
    }
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let mut left = MOST_KEPT;
    for event in old.iter().rev() {
        if let Some(frame) = has_share(event) {
            let Some(rest) = left.checked_sub(frame.len()) else {
                continue;
            };
            left = rest;
            kept.push(frame);
        }
    }
    kept.reverse();
    Ok(kept.concat())
}
