//! The event log: what happened to a volume, kept on its members.
//!
//! Every online member with room has the same events in two files, `events` and `events.old`, which together are bounded.
//! Threads write them, so a caller that records an event waits for no member, and no member waits for one that hangs. A
//! member that was away gets the events from its return on; readers merge the files of all members.
//!
//! # Invariants
//!
//! - The log never hinders the volume. A member that does not take events stays online, and is asked again a minute later.
//! - Memory is bounded: the events that wait to be written, and those that are remembered. Events that found no place in
//!   the queue are counted, and the count is recorded.
//! - The log keeps no directory in use: it refers to the members only while it writes.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::format::event::{Event, EventKind, EventMember};
use crate::format::{MemberIndex, VolumeId};
use crate::membership::{Access, Members, chain};

mod files;
mod queue;
mod writer;

pub use files::{ReadEvents, read_store};
pub use queue::{MOST_REMEMBERED, Newer};

use queue::Queue;
use writer::Writer;

/// Members whose events are read at once.
const READ_AT_ONCE: usize = 16;

/// The event log of a mounted volume.
pub struct EventLog {
    queue: Arc<Queue>,
}

impl EventLog {
    /// Returns the log of a volume with the events that its online members have. Writes nothing. A member whose events
    /// cannot be read is left out.
    #[must_use]
    pub fn open(members: &Arc<Members>) -> Self {
        let volume = members.shape().volume_id();
        let queue = Queue::new(volume);
        let live = members.membership().live();
        let read = live.chunks(READ_AT_ONCE);
        let read = read.flat_map(|some| read_members(members, some));
        queue.remember(read.flatten().collect());
        let log = Self {
            queue: Arc::new(queue),
        };
        log.attach(members);
        log
    }

    /// Starts to write events to the members, unless the volume is read-only.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub fn start(&self, access: Access) -> io::Result<()> {
        if access == Access::ReadOnly {
            return Ok(());
        }
        self.queue.begin();
        let mut writer = Writer::new(Arc::clone(&self.queue));
        let started = thread::Builder::new()
            .name("events".to_owned())
            .spawn(move || writer.run());
        if started.is_err() {
            self.queue.end();
        }
        started.map(drop)
    }

    /// Writes to these members from now on.
    pub fn attach(&self, members: &Arc<Members>) {
        self.queue.set_members(Arc::downgrade(members));
    }

    /// Writes to no member until the next [`EventLog::attach`]; events wait meanwhile.
    pub fn detach(&self) {
        self.queue.set_members(std::sync::Weak::new());
    }

    /// Sets the members that have no room. They get events only if all members have none.
    pub fn set_full(&self, full: BTreeSet<MemberIndex>) {
        self.queue.set_full(full);
    }

    /// Records that something happened just now.
    pub fn record(&self, member: Option<EventMember>, kind: EventKind) {
        self.queue.push(now_ms(), member, kind);
    }

    /// Records that several things happened just now. They are written at once.
    pub fn record_together(&self, kinds: impl IntoIterator<Item = EventKind>) {
        let noted = kinds.into_iter().map(|kind| (None, kind));
        self.queue.push_all(now_ms(), noted);
    }

    /// Waits until members have each event that was recorded so far, but no longer than `patience`. Returns whether they have.
    /// A log that writes nothing has no event. Events that found no place in the queue are left out. Those of the interlock always find one.
    #[must_use]
    pub fn flush(&self, patience: Duration) -> bool {
        self.queue.flush(patience)
    }

    /// Returns the time of the last event if the daemon that recorded it had not ended in good order. `None` also if no
    /// daemon recorded anything.
    #[must_use]
    pub fn crashed_at(&self) -> Option<i64> {
        self.queue.crashed_at()
    }

    /// Returns the remembered events with higher sequence numbers, the oldest first, and no more than `most`.
    #[must_use]
    pub fn newer_than(&self, sequence: Option<u64>, since_ms: Option<i64>, most: usize) -> Newer {
        self.queue.newer_than(sequence, since_ms, most)
    }

    /// Writes what waits, and ends. Returns after `patience` if a member hangs; the rest may then still be written.
    pub fn close(&self, patience: Duration) {
        self.queue.close(patience);
    }

    /// Returns the volume.
    #[must_use]
    pub fn volume(&self) -> VolumeId {
        self.queue.volume()
    }
}

/// Reads the events of some members, all at once.
fn read_members(members: &Members, some: &[MemberIndex]) -> Vec<Vec<Event>> {
    let read = |index: MemberIndex| {
        let store = members.membership().store(index)?;
        let executor = members.io().executor();
        match executor.call(&store, "read events of", read_store) {
            Ok(read) => Some(read.events),
            Err(error) => {
                let error = chain(&error);
                tracing::warn!("the events of member {index} are left out: {error}");
                None
            }
        }
    };
    thread::scope(|scope| {
        let start = |&index: &MemberIndex| {
            let reader = thread::Builder::new().name("event-read".to_owned());
            reader.spawn_scoped(scope, move || read(index))
        };
        let started: Vec<_> = some.iter().map(start).collect();
        let ended = started.into_iter().filter_map(|reader| match reader {
            Ok(reader) => reader.join().ok().flatten(),
            Err(error) => {
                tracing::warn!("the events of a member are left out: {error}");
                None
            }
        });
        ended.collect()
    })
}

/// Returns the time, in milliseconds since 1970.
#[must_use]
pub fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| i64::try_from(now.as_millis()).unwrap_or(i64::MAX))
}

/// Merges the events that several directories have, and returns the newest of them, the oldest first.
#[must_use]
pub fn merged(events: Vec<Event>) -> Vec<Event> {
    let mut events = crate::format::event::merge(events);
    let surplus = events.len().saturating_sub(MOST_REMEMBERED);
    events.drain(..surplus);
    events
}

#[cfg(test)]
mod tests;
