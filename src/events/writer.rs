//! The thread that writes events to the members.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::files::{FULL, make_room};
use super::queue::{EventBatch, Queue};
use crate::format::MemberIndex;
use crate::format::event::Event;
use crate::format::files::EVENTS;
use crate::membership::{Members, chain};
use crate::store::{Store, StoreError, StoreRef, StoreRequest};

/// The time after which a member that did not take an event is asked again.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The pause before events are written again that no member took.
const PAUSE: Duration = Duration::from_secs(1);

/// The time for which the other members are waited for once one has the events. Less than removals wait for their refusal,
/// which may come meanwhile.
const GRACE: Duration = Duration::from_secs(1);

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

/// The answer of a member that events were written to.
struct Answer {
    index: MemberIndex,
    directory: Weak<dyn Store>,
    /// The length of its file since.
    outcome: Result<u64, StoreError>,
}

/// Writer of events. A thread of its own writes to each member, so a member that hangs keeps no event off the others.
pub(super) struct Writer {
    queue: Arc<Queue>,
    files: BTreeMap<MemberIndex, MemberFile>,
    /// The members of which the log says that they take no events.
    warned: BTreeSet<MemberIndex>,
    /// The members that have not answered yet.
    busy: BTreeSet<MemberIndex>,
    /// The newest frames that came while these members were busy: no more bytes for each than a file takes. A member gets
    /// them once it has answered.
    behind: BTreeMap<MemberIndex, Vec<Bytes>>,
    /// The members of the last batch.
    members: Weak<Members>,
    tell: Sender<Answer>,
    answers: Receiver<Answer>,
}

impl Writer {
    pub(super) fn new(queue: Arc<Queue>) -> Self {
        let (tell, answers) = mpsc::channel();
        Self {
            queue,
            files: BTreeMap::new(),
            warned: BTreeSet::new(),
            busy: BTreeSet::new(),
            behind: BTreeMap::new(),
            members: Weak::new(),
            tell,
            answers,
        }
    }

    /// Writes events until the log is closed.
    pub(super) fn run(&mut self) {
        while let Some(batch) = self.queue.next() {
            let has_written = self.write(&batch);
            let EventBatch {
                events, members, ..
            } = batch;
            drop(members);
            if !has_written && !self.queue.put_back(events, PAUSE) && !self.note_next() {
                break;
            }
        }
        while self.note_next() {}
        self.queue.end();
    }

    /// Waits for the answer of a busy member. Returns false if there is none.
    fn note_next(&mut self) -> bool {
        if self.busy.is_empty() {
            return false;
        }
        let Ok(answer) = self.answers.recv() else {
            return false;
        };
        self.note(answer);
        true
    }

    /// Writes events to all members that take them, at once. Returns whether one did, a moment after that at the latest.
    fn write(&mut self, batch: &EventBatch) -> bool {
        while let Ok(answer) = self.answers.try_recv() {
            self.note(answer);
        }
        let frames: Vec<u8> = batch.events.iter().flat_map(Event::encode).collect();
        let frames = Bytes::from(frames);
        self.members = Arc::downgrade(&batch.members);
        let mut live = batch.members.membership().live();
        // Members without room for data may have some for an event.
        if !live.iter().all(|index| batch.full.contains(index)) {
            live.retain(|index| !batch.full.contains(index));
        }
        let (busy, idle): (Vec<_>, Vec<_>) =
            live.into_iter().partition(|it| self.busy.contains(it));
        let mut asked = BTreeSet::new();
        for index in idle {
            if self.start(&batch.members, index, &frames) {
                asked.insert(index);
            }
        }
        for index in &busy {
            let behind = self.behind.entry(*index).or_default();
            behind.push(frames.clone());
            drop_surplus(behind);
        }
        let has_written = self.wait(asked, &batch.events);
        if !has_written {
            // They come again with the next try.
            for index in busy {
                self.take_from_behind(index, &frames);
            }
        }
        has_written
    }

    /// Takes the newest frames back that were to be written to a member later, if these are they.
    fn take_from_behind(&mut self, index: MemberIndex, frames: &Bytes) {
        let Entry::Occupied(mut behind) = self.behind.entry(index) else {
            return;
        };
        behind
            .get_mut()
            .pop_if(|last| last.as_ptr() == frames.as_ptr());
        if behind.get().is_empty() {
            behind.remove();
        }
    }

    /// Starts to write to a member. Returns false if it takes no events now.
    fn start(&mut self, members: &Arc<Members>, index: MemberIndex, frames: &Bytes) -> bool {
        let Some(store) = members.membership().store(index) else {
            return false;
        };
        let file = self.files.get(&index).filter(|file| file.is_of(&store));
        if let Some(MemberFile::Failed { since, .. }) = file
            && since.elapsed() < RETRY_AFTER
        {
            return false;
        }
        let mut all = self.behind.remove(&index).unwrap_or_default();
        all.push(frames.clone());
        drop_surplus(&mut all);
        let frames = Bytes::from(all.concat());
        let offset = match file {
            Some(MemberFile::Open { len, .. }) if *len + frames.len() as u64 <= FULL => Some(*len),
            _ => None,
        };
        let kept = frames.clone();
        let (members, tell) = (Arc::clone(members), self.tell.clone());
        let write = move || {
            let outcome = write_to(&members, &store, offset, frames);
            let directory = Arc::downgrade(&store);
            drop((members, store));
            // The log may have ended meanwhile.
            let _ = tell.send(Answer {
                index,
                directory,
                outcome,
            });
        };
        let started = thread::Builder::new()
            .name("event-write".to_owned())
            .spawn(write);
        match started {
            Ok(_) => self.busy.insert(index),
            Err(error) => {
                tracing::warn!("member {index} gets no events now: {error}");
                self.behind.insert(index, vec![kept]);
                false
            }
        }
    }

    /// Waits for the members that were asked to take events. Once one has them, the others have only a moment. Returns
    /// whether one has.
    fn wait(&mut self, mut asked: BTreeSet<MemberIndex>, events: &[Event]) -> bool {
        let mut written: Option<Instant> = None;
        while !asked.is_empty() {
            let answer = match written {
                None => self.answers.recv().ok(),
                Some(at) => {
                    let left = GRACE.saturating_sub(at.elapsed());
                    self.answers.recv_timeout(left).ok()
                }
            };
            let Some(answer) = answer else {
                break;
            };
            let index = answer.index;
            let is_asked = asked.remove(&index);
            if self.note(answer) && is_asked && written.is_none() {
                self.queue.note_written(events);
                written = Some(Instant::now());
            }
            // A member that was busy gets these events now, behind those that it lacked.
            if !is_asked && self.busy.contains(&index) {
                asked.insert(index);
            }
        }
        written.is_some()
    }

    /// Notes the answer of a member, and has what it lacks written to it. Returns whether it has the events that it was asked
    /// to take.
    fn note(&mut self, answer: Answer) -> bool {
        let Answer {
            index,
            directory,
            outcome,
        } = answer;
        self.busy.remove(&index);
        let is_open = matches!(self.files.get(&index), Some(MemberFile::Open { .. }));
        match outcome {
            Ok(len) => {
                self.warned.remove(&index);
                self.files
                    .insert(index, MemberFile::Open { directory, len });
                if self.behind.contains_key(&index)
                    && let Some(members) = self.members.upgrade()
                {
                    self.start(&members, index, &Bytes::new());
                }
                return true;
            }
            // Another program deleted the file: the next event makes it again.
            Err(error) if is_open && error.kind().lacks_file() => {
                self.files.remove(&index);
            }
            Err(error) => {
                if self.warned.insert(index) {
                    tracing::warn!(journal.member = %index, "member {index} takes no events: {}", chain(&error));
                }
                let since = Instant::now();
                self.files
                    .insert(index, MemberFile::Failed { directory, since });
            }
        }
        false
    }
}

/// Drops the oldest frames that a file has no room for.
fn drop_surplus(frames: &mut Vec<Bytes>) {
    let mut bytes = 0;
    let kept = frames.iter().rev().take_while(|some| {
        bytes += some.len() as u64;
        bytes <= FULL
    });
    let surplus = frames.len() - kept.count();
    frames.drain(..surplus);
}

/// Writes frames to a member, at an offset or where its file has room for them. Returns the length of the file since.
fn write_to(
    members: &Members,
    store: &StoreRef,
    offset: Option<u64>,
    frames: Bytes,
) -> Result<u64, StoreError> {
    let executor = members.io().executor();
    let needed = frames.len() as u64;
    let room = || {
        executor.call(store, "write events to", move |store| {
            make_room(store, needed)
        })
    };
    let offset = offset.map_or_else(room, Ok)?;
    executor.run_one(StoreRequest::write_durably(store, EVENTS, offset, frames))?;
    Ok(offset + needed)
}
