//! The event files of one directory: reading them, and appending to them.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use crate::format::event::{Event, FILE_MAX, FRAME_MAX, RawEvent, read_file, read_raw};
use crate::format::files::{EVENTS, OLD_EVENTS};
use crate::store::{Store, StoreError, StoreErrorKind};

/// The bytes of one kind that stay beyond the life of a file before others do.
const SHARE_BYTES: usize = 32 << 10;

/// The length beyond which an event file takes no new events. The rest of [`FILE_MAX`] is for events that stay. Only a file that
/// an earlier build filled becomes longer, up to [`MOST_READ`]. It is small because the old file alone has the history just after
/// a rotation: of the bytes that both files may have, at least three quarters.
pub(super) const FULL: u64 = 64 << 10;

const _: () = assert!(4 * (FILE_MAX - FRAME_MAX as u64) >= 3 * (FILE_MAX + FULL));

/// Most bytes that are read of an event file, from its end. No daemon makes one longer.
pub(super) const MOST_READ: u64 = FILE_MAX + FRAME_MAX as u64;

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
    // The old file ends with events that were in a file before it. A crash may have left these in both files.
    let order = |event: &Event| (event.sequence, event.time_ms, event.encode());
    found.events.sort_by_cached_key(order);
    found.events.dedup();
    Ok(found)
}

/// Reads one of the files. There are no events if it is absent.
fn read_one(store: &dyn Store, name: &str) -> Result<ReadEvents, StoreError> {
    let read = read_file(&read_bytes(store, name)?);
    Ok(ReadEvents {
        events: read.events,
        damaged: read.damaged,
    })
}

/// Reads the bytes of one of the files. There are none if it is absent.
fn read_bytes(store: &dyn Store, name: &str) -> Result<Vec<u8>, StoreError> {
    let len = match store.open_len(name) {
        Ok(len) => len,
        Err(error) if error.kind().lacks_file() => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let offset = len.saturating_sub(MOST_READ);
    let count = usize::try_from(len - offset).unwrap_or(usize::MAX);
    let mut bytes = vec![0; count];
    match store.read_at(name, offset, &mut bytes) {
        Ok(()) => Ok(bytes),
        // It was replaced since.
        Err(error) if error.kind().lacks_file() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Makes room for `needed` bytes in the event file of a directory. Returns the offset at which they belong.
///
/// A full file first takes over those events of the old one that stay. Then it becomes the old one. So a crash costs no event
/// at any moment. Where there is no space for all that stay, the newest and one of each kind stay: a full disk must not end the log.
pub(super) fn make_room(store: &dyn Store, needed: u64) -> Result<u64, StoreError> {
    let len = match store.open_len(EVENTS) {
        Ok(len) => len,
        Err(error) if error.kind().lacks_file() => {
            store.create(EVENTS, 0)?;
            0
        }
        Err(error) => return Err(error),
    };
    if len == 0 || len.saturating_add(needed) <= FULL {
        return Ok(len);
    }
    // Old events that cannot be read do not keep new ones out.
    match staying_events(store, len) {
        Ok(staying) => add_staying(store, len, staying)?,
        Err(error) => tracing::debug!("no old events are kept: {error}"),
    }
    store.rename(EVENTS, OLD_EVENTS)?;
    store.create(EVENTS, 0)?;
    Ok(0)
}

/// Old events that stay, and the place for them.
struct Staying {
    /// The end of the last intact frame that was appended to the full file. An earlier try may have left more behind it.
    offset: u64,
    /// The frames, those first that are to go first where space is short: the oldest, and the newest of each kind last. A
    /// refusal of removals is known by its event alone.
    frames: Vec<Vec<u8>>,
}

/// Adds the events that stay to a file of `len` bytes, or the newest of them if there is no space for all.
fn add_staying(store: &dyn Store, len: u64, staying: Staying) -> Result<(), StoreError> {
    let Staying { offset, mut frames } = staying;
    if offset < len {
        cut_back(store, offset);
    }
    let wanted = frames.len();
    while !frames.is_empty() {
        match store.write_durably(EVENTS, offset, &frames.concat()) {
            Ok(()) => break,
            Err(error) => {
                cut_back(store, offset);
                if error.kind() != StoreErrorKind::NoSpace {
                    return Err(error);
                }
                frames.drain(..frames.len().div_ceil(2));
            }
        }
    }
    let left = frames.len();
    if left < wanted {
        tracing::debug!("there is no space for all {wanted} events that stay: {left} are left");
    }
    Ok(())
}

/// Removes what a failed write left at the end of the event file, so that tries do not add up.
fn cut_back(store: &dyn Store, len: u64) {
    if let Err(error) = store.truncate(EVENTS, len) {
        tracing::debug!("the event file keeps a part of a frame: {error}");
    }
}

/// Returns those events of the old file that stay although the new one of `len` bytes takes its place. The newest event of each
/// kind comes first. More of each kind follow, up to its share of a file, and then the newest of all, as far as there is
/// room. So no kind pushes out the last event of another, and a kind has the room that others leave.
fn staying_events(store: &dyn Store, len: u64) -> Result<Staying, StoreError> {
    let (old, new) = (read_bytes(store, OLD_EVENTS)?, read_bytes(store, EVENTS)?);
    let (mut old, (mut new, _)) = (read_raw(&old).0, read_raw(&new));
    let skipped = len.saturating_sub(MOST_READ);
    // An earlier try may have added some, and a crash may have left gaps between them. They are added again.
    let added: HashSet<&[u8]> = old.iter().map(|raw| raw.frame).collect();
    let own = new.iter().rposition(|raw| !added.contains(raw.frame));
    let own = own.map_or(0, |last| last + 1);
    let offset = match own.checked_sub(1) {
        Some(last) => skipped + new[last].end as u64,
        // Bytes without any intact frame are no rest of a try.
        None if new.is_empty() => len,
        None => skipped,
    };
    new.truncate(own);
    let known: HashSet<&[u8]> = new.iter().map(|raw| raw.frame).collect();
    old.retain(|raw| !known.contains(raw.frame));
    // The old file ends with the oldest events.
    old.sort_by_key(|raw| raw.event.sequence);
    let room = |most: u64| usize::try_from(most.saturating_sub(offset)).unwrap_or(usize::MAX);
    // Earlier builds fill a file up to [`FILE_MAX`], and what is rare finds a place nevertheless.
    let most = if offset > FULL { MOST_READ } else { FILE_MAX };
    Ok(Staying {
        offset,
        frames: choose_staying(&old, &new, room(most), room(FILE_MAX)),
    })
}

/// Chooses the events of an old file that stay, in the order of [`Staying`], in so many bytes. The newest of each kind that the
/// new file lacks comes first, the shorter ones before the longer. Then come those that are in the share of their kind. Others
/// stay only if all have fewer bytes than `room_for_all`.
fn choose_staying(
    old: &[RawEvent<'_>],
    new: &[RawEvent<'_>],
    room: usize,
    room_for_all: usize,
) -> Vec<Vec<u8>> {
    let mut bytes_of: HashMap<u8, usize> = HashMap::new();
    let mut has_share = |raw: &RawEvent<'_>| {
        let bytes = bytes_of.entry(raw.kind_number()).or_insert(0);
        *bytes += raw.frame.len();
        *bytes <= SHARE_BYTES
    };
    let mut kinds: HashSet<u8> = HashSet::new();
    for raw in new {
        has_share(raw);
        kinds.insert(raw.kind_number());
    }
    let newest_first = old.iter().rev();
    let (mut newest_of_kinds, rest): (Vec<_>, Vec<_>) =
        newest_first.partition(|raw| kinds.insert(raw.kind_number()));
    newest_of_kinds.sort_by_key(|raw| raw.frame.len());
    let mut bytes = 0;
    newest_of_kinds.retain(|raw| {
        let fits = bytes + raw.frame.len() <= room;
        if fits {
            has_share(raw);
            bytes += raw.frame.len();
        }
        fits
    });
    newest_of_kinds.sort_by_key(|raw| Reverse(raw.event.sequence));
    let (mut in_share, mut others, mut surplus) = (Vec::new(), Vec::new(), Vec::new());
    for raw in rest {
        if !has_share(raw) {
            surplus.push(raw);
        } else if bytes + raw.frame.len() <= room {
            bytes += raw.frame.len();
            in_share.push(raw);
        }
    }
    for raw in surplus {
        // All that are older than one that finds no room go as well: the history has no gap there.
        bytes += raw.frame.len();
        if bytes > room_for_all {
            break;
        }
        others.push(raw);
    }
    let chosen = [others, in_share, newest_of_kinds];
    let frames = chosen
        .iter()
        .flat_map(|newest_first| newest_first.iter().rev());
    frames.map(|raw| raw.frame.to_vec()).collect()
}
