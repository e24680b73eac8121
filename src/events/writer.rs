//! The thread that writes events to the members.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::files::{FULL, make_room};
use super::queue::{Batch, Queue};
use crate::format::MemberIndex;
use crate::format::event::Event;
use crate::format::files::EVENTS;
use crate::membership::{Members, chain};
use crate::store::{Store, StoreError, StoreRef, StoreRequest};

/// The time after which a member that did not take an event is asked again.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The pause before events are written again that no member took.
const PAUSE: Duration = Duration::from_secs(1);

/// The event file of a member.
enum MemberFile {
    /// It takes events.
    Open {
        directory: Weak<dyn Store>,
        /// Its length in bytes.
        len: u64,
    },
    /// It did not take an event.
    Failed {
        directory: Weak<dyn Store>,
        since: Instant,
    },
}

impl MemberFile {
    fn is_of(&self, store: &StoreRef) -> bool {
        let (Self::Open { directory, .. } | Self::Failed { directory, .. }) = self;
        std::ptr::addr_eq(directory.as_ptr(), Arc::as_ptr(store))
    }
}

/// Writer of events.
pub(super) struct Writer {
    queue: Arc<Queue>,
    files: BTreeMap<MemberIndex, MemberFile>,
    /// The members of which the log says that they take no events.
    warned: BTreeSet<MemberIndex>,
}

impl Writer {
    pub(super) fn new(queue: Arc<Queue>) -> Self {
        Self {
            queue,
            files: BTreeMap::new(),
            warned: BTreeSet::new(),
        }
    }

    /// Writes events until the log is closed.
    pub(super) fn run(&mut self) {
        while let Some(batch) = self.queue.next() {
            let has_written = self.write(&batch);
            let Batch {
                events, members, ..
            } = batch;
            drop(members);
            if has_written {
                self.queue.note_written(&events);
            } else if !self.queue.put_back(events, PAUSE) {
                break;
            }
        }
        self.queue.end();
    }

    /// Writes events to all members that take them, at once. Returns whether one did.
    fn write(&mut self, batch: &Batch) -> bool {
        let frames: Vec<u8> = batch.events.iter().flat_map(Event::encode).collect();
        let frames = Bytes::from(frames);
        let mut places = Vec::new();
        let mut live = batch.members.membership().live();
        // Members without room for data may have some for an event.
        if !live.iter().all(|index| batch.full.contains(index)) {
            live.retain(|index| !batch.full.contains(index));
        }
        for index in live {
            let Some(store) = batch.members.membership().store(index) else {
                continue;
            };
            if let Some(offset) = self.place(&batch.members, index, &store, frames.len() as u64) {
                places.push((index, store, offset));
            }
        }
        let request = |(_, store, offset): &(MemberIndex, StoreRef, u64)| {
            StoreRequest::write_durably(store, EVENTS, *offset, frames.clone())
        };
        let requests = places.iter().map(request).collect();
        let outcomes = batch.members.io().executor().run(requests);
        let mut has_written = false;
        for ((index, store, offset), outcome) in places.iter().zip(outcomes) {
            match outcome {
                Ok(_) => {
                    has_written = true;
                    self.note_written(*index, store, offset + frames.len() as u64);
                }
                // Another program deleted the file: the next event makes it again.
                Err(error) if error.kind().lacks_file() => {
                    self.files.remove(index);
                }
                Err(error) => self.note_failed(*index, store, &error),
            }
        }
        has_written
    }

    /// Returns the offset at which a member takes so many bytes; none if it takes none now.
    fn place(
        &mut self,
        members: &Members,
        index: MemberIndex,
        store: &StoreRef,
        needed: u64,
    ) -> Option<u64> {
        match self.files.get(&index).filter(|file| file.is_of(store)) {
            Some(MemberFile::Open { len, .. }) if *len + needed <= FULL => return Some(*len),
            Some(MemberFile::Failed { since, .. }) if since.elapsed() < RETRY_AFTER => return None,
            _ => {}
        }
        let executor = members.io().executor();
        let made = executor.call(store, "write events to", move |store| {
            make_room(store, needed)
        });
        made.map_err(|error| self.note_failed(index, store, &error))
            .ok()
    }

    fn note_written(&mut self, index: MemberIndex, store: &StoreRef, len: u64) {
        self.warned.remove(&index);
        let directory = Arc::downgrade(store);
        self.files
            .insert(index, MemberFile::Open { directory, len });
    }

    fn note_failed(&mut self, index: MemberIndex, store: &StoreRef, error: &StoreError) {
        if self.warned.insert(index) {
            tracing::warn!(journal.member = %index, "member {index} takes no events: {}", chain(error));
        }
        let (directory, since) = (Arc::downgrade(store), Instant::now());
        self.files
            .insert(index, MemberFile::Failed { directory, since });
    }
}
