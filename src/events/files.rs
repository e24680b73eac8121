//! The event files of one directory: reading them, and appending to them.

use crate::format::event::{Event, FILE_MAX, FRAME_MAX, read_file};
use crate::format::files::{EVENTS, OLD_EVENTS};
use crate::store::{Store, StoreError};

/// Most bytes that are read of an event file, from its end. No daemon makes one longer.
const MOST_READ: u64 = FILE_MAX + FRAME_MAX as u64;

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
        let len = match store.open_len(name) {
            Ok(len) => len,
            Err(error) if error.kind().lacks_file() => continue,
            Err(error) => return Err(error),
        };
        let offset = len.saturating_sub(MOST_READ);
        let count = usize::try_from(len - offset).unwrap_or(usize::MAX);
        let mut bytes = vec![0; count];
        match store.read_at(name, offset, &mut bytes) {
            Ok(()) => {}
            // It was replaced since.
            Err(error) if error.kind().lacks_file() => continue,
            Err(error) => return Err(error),
        }
        let read = read_file(&bytes);
        found.events.extend(read.events);
        found.damaged += read.damaged;
    }
    Ok(found)
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
    store.rename(EVENTS, OLD_EVENTS)?;
    store.create(EVENTS, 0)?;
    Ok(0)
}
