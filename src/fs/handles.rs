//! Open files and directories.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, RwLock};

use crate::format::{Cookie, Ino};

use super::error::FsError;
use super::read_ahead::ReadAhead;
use super::types::{Handle, OpenFlags};

/// Independent parts of the table, a power of two.
const SHARDS: usize = 64;

/// The places for recent reads of files that callers opened by themselves, and the readers that each has room for. More
/// readers of one place displace one another: then some are not read ahead.
const PLACES: usize = 256;
const READERS_OF_PLACE: usize = 4;

/// The recent reads of some readers of files that callers opened by themselves.
#[derive(Default)]
struct Readers {
    readers: [(Ino, ReadAhead); READERS_OF_PLACE],
    /// The reader that a new one displaces.
    next: usize,
}

impl Readers {
    /// Returns the recent reads of the reader of `ino` that most likely reads `range` now.
    fn reader(&mut self, ino: Ino, range: &Range<u64>) -> &mut ReadAhead {
        let goes_on = |(of, reads): &(Ino, ReadAhead)| *of == ino && reads.is_followed_by(range);
        let known = self.readers.iter().position(goes_on);
        let place = known.unwrap_or_else(|| {
            let place = self.next;
            self.next = (place + 1) % READERS_OF_PLACE;
            self.readers[place] = (ino, ReadAhead::default());
            place
        });
        &mut self.readers[place].1
    }
}

/// An open regular file.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFile {
    pub(super) ino: Ino,
    pub(super) flags: OpenFlags,
}

/// An open directory.
pub(super) struct OpenDir {
    pub(super) ino: Ino,
    /// Entries from this cookie on were made after the directory was opened or rewound, and are left
    /// out: a program that adds an entry for each one it reads must come to an end.
    pub(super) first_unseen: AtomicU64,
}

impl OpenDir {
    /// Opens a directory whose next entry gets this cookie.
    pub(super) fn new(ino: Ino, next_cookie: Cookie) -> Self {
        Self {
            ino,
            first_unseen: AtomicU64::new(next_cookie.0),
        }
    }
}

/// Something open under a number.
pub(super) enum Opened {
    File(OpenFile, Mutex<ReadAhead>),
    Dir(Arc<OpenDir>),
}

impl Opened {
    pub(super) fn ino(&self) -> Ino {
        match self {
            Self::File(file, _) => file.ino,
            Self::Dir(dir) => dir.ino,
        }
    }

    pub(super) fn writes(&self) -> bool {
        match self {
            Self::File(file, _) => file.flags.write,
            Self::Dir(_) => false,
        }
    }
}

/// A part of the table.
type Shard = RwLock<HashMap<u64, Opened>>;

/// Everything open, by handle.
pub(super) struct Handles {
    /// Files that are opened at the same time get neighbouring numbers, and so neighbouring parts.
    shards: Box<[CachePadded<Shard>]>,
    next: CachePadded<AtomicU64>,
    /// The recent reads of files that callers opened by themselves; a place for each remainder of an inode's number.
    readers: Box<[Mutex<Readers>]>,
}

impl Handles {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            next: CachePadded::new(AtomicU64::new(1)),
            readers: (0..PLACES).map(|_| Mutex::default()).collect(),
        }
    }

    pub(super) fn add_file(&self, ino: Ino, flags: OpenFlags) -> Handle {
        self.add(Opened::File(OpenFile { ino, flags }, Mutex::default()))
    }

    pub(super) fn add_dir(&self, dir: OpenDir) -> Handle {
        self.add(Opened::Dir(Arc::new(dir)))
    }

    /// Checks that a handle is open.
    pub(super) fn check(&self, handle: Handle) -> Result<(), FsError> {
        match handle {
            Handle::Numbered(number) if !self.shard(number).read().contains_key(&number) => {
                Err(FsError::BadHandle)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn file(&self, handle: Handle) -> Result<OpenFile, FsError> {
        let number = match handle {
            Handle::Numbered(number) => number,
            Handle::ByCaller { ino, flags } => return Ok(OpenFile { ino, flags }),
        };
        match self.shard(number).read().get(&number) {
            Some(Opened::File(file, _)) => Ok(*file),
            Some(Opened::Dir(_)) => Err(FsError::IsDirectory),
            None => Err(FsError::BadHandle),
        }
    }

    /// Returns a directory that is open under a number.
    pub(super) fn dir(&self, handle: Handle) -> Result<Arc<OpenDir>, FsError> {
        let Handle::Numbered(number) = handle else {
            return Err(FsError::NotDirectory);
        };
        match self.shard(number).read().get(&number) {
            Some(Opened::Dir(dir)) => Ok(Arc::clone(dir)),
            Some(Opened::File(..)) => Err(FsError::NotDirectory),
            None => Err(FsError::BadHandle),
        }
    }

    /// Records a read of a file and returns what to fetch ahead now, as [`ReadAhead::note`] does. Readers of a file
    /// that a caller opened by itself are told apart by the distance of their reads.
    pub(super) fn note_read(
        &self,
        handle: Handle,
        range: &Range<u64>,
        window: u64,
    ) -> Option<Range<u64>> {
        match handle {
            Handle::Numbered(number) => match self.shard(number).read().get(&number) {
                Some(Opened::File(_, reads)) => reads.lock().note(range, window),
                Some(Opened::Dir(_)) | None => None,
            },
            Handle::ByCaller { ino, .. } => {
                let mut place = self.readers[remainder(ino.0, PLACES)].lock();
                place.reader(ino, range).note(range, window)
            }
        }
    }

    pub(super) fn remove(&self, handle: Handle) -> Result<Opened, FsError> {
        let removed = match handle {
            Handle::Numbered(number) => self.shard(number).write().remove(&number),
            Handle::ByCaller { .. } => None,
        };
        removed.ok_or(FsError::BadHandle)
    }

    fn add(&self, opened: Opened) -> Handle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.shard(number).write().insert(number, opened);
        Handle::Numbered(number)
    }

    fn shard(&self, number: u64) -> &Shard {
        &self.shards[remainder(number, SHARDS)]
    }
}

fn remainder(number: u64, count: usize) -> usize {
    usize::try_from(number % count as u64).expect("less than a length")
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 1 << 20;

    fn fetches(handles: &Handles, handle: Handle, steps: Range<u64>) -> usize {
        let read = |step| handles.note_read(handle, &(step * STEP..(step + 1) * STEP), 8 * STEP);
        steps.filter_map(read).count()
    }

    fn by_caller(ino: u64) -> Handle {
        Handle::ByCaller {
            ino: Ino(ino),
            flags: OpenFlags::read_only(),
        }
    }

    #[test]
    fn a_file_is_read_ahead_through_handles_of_both_kinds() {
        let handles = Handles::new();
        let numbered = handles.add_file(Ino(7), OpenFlags::read_only());
        assert!(fetches(&handles, numbered, 0..16) > 0);
        assert!(fetches(&handles, by_caller(7), 0..16) > 0);
    }

    #[test]
    fn as_many_readers_as_a_place_has_room_for_are_read_ahead_and_more_displace_one_another() {
        const FAR: u64 = 1000;
        let other = 7 + PLACES as u64;
        let all = [(7, 0), (7, FAR), (other, 0), (other, FAR), (7, 2 * FAR)];
        for (count, are_read_ahead) in [(READERS_OF_PLACE, true), (all.len(), false)] {
            let handles = Handles::new();
            let mut fetched = [0; 5];
            for step in 0..16 {
                for (place, (ino, start)) in all[..count].iter().enumerate() {
                    let step = start + step..start + step + 1;
                    fetched[place] += fetches(&handles, by_caller(*ino), step);
                }
            }
            let fetched = &fetched[..count];
            assert!(
                fetched.iter().all(|count| (*count > 0) == are_read_ahead),
                "{fetched:?}"
            );
        }
    }

    #[test]
    fn a_handle_by_the_caller_is_open_without_end_and_under_no_number() {
        let handles = Handles::new();
        assert!(handles.check(by_caller(7)).is_ok());
        assert!(
            handles
                .file(by_caller(7))
                .is_ok_and(|file| file.ino == Ino(7))
        );
        assert!(matches!(
            handles.dir(by_caller(7)),
            Err(FsError::NotDirectory)
        ));
        assert!(matches!(
            handles.remove(by_caller(7)),
            Err(FsError::BadHandle)
        ));
    }
}
