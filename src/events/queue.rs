//! The events that are remembered, and those that wait to be written.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::mem::discriminant;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::format::event::{Event, EventKind, EventMember, merge};
use crate::format::{MemberIndex, VolumeId};
use crate::membership::Members;

/// Most events that are remembered: about as many as the files of a member hold.
pub const MOST_REMEMBERED: usize = 8192;

/// One kind of events takes no more than this part of the log, if there are others.
pub(super) const SHARES: usize = 4;

/// Most events that wait to be written, but for those of the interlock.
const MOST_WAITING: usize = 1024;

/// More events than a volume ever has. No event is counted on from a number that only a forger can have written.
const MOST_EVENTS_EVER: u64 = 1 << 60;

/// Bytes of events after which no more are written at once. With the longest event, they are fewer than a file holds.
const ENOUGH_BYTES: usize = 32 << 10;

/// Remembered events after a place in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Newer {
    /// The events, the oldest first.
    pub events: Vec<Event>,
    /// True if there are more.
    pub has_more: bool,
}

/// The events of one volume in memory.
pub(super) struct Queue {
    volume: VolumeId,
    state: Mutex<KeptEvents>,
    changed: Condvar,
}

#[derive(Default)]
struct KeptEvents {
    /// In the order of their sequence numbers.
    remembered: VecDeque<Event>,
    waiting: VecDeque<Event>,
    /// Events that found no place since the last one that did.
    dropped: u64,
    /// The sequence number of the next event.
    next: u64,
    /// The number after that of the last event that was to be written, and of the last one that was written.
    added: u64,
    written: u64,
    members: Weak<Members>,
    full: BTreeSet<MemberIndex>,
    stage: Stage,
}

/// The stage of the thread that writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// There is none, and no event waits.
    #[default]
    Absent,
    /// It writes events.
    Writing,
    /// It writes what waits, and ends.
    Closing,
}

/// Events to write, and the members to write them to.
pub(super) struct EventBatch {
    pub(super) events: Vec<Event>,
    pub(super) members: Arc<Members>,
    pub(super) full: BTreeSet<MemberIndex>,
}

impl Queue {
    pub(super) fn new(volume: VolumeId) -> Self {
        Self {
            volume,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(super) fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Remembers events of this volume that were recorded before, by this daemon or an earlier one. After a loss of power,
    /// members may have different events of one number: in memory, each gets a number of its own.
    pub(super) fn remember(&self, events: Vec<Event>) {
        let mut state = self.state.lock();
        let known = state.remembered.drain(..);
        let mut all: Vec<Event> = known.chain(events).collect();
        all.retain(|event| event.volume == self.volume && event.sequence < MOST_EVENTS_EVER);
        let mut all = merge(all);
        all.sort_by_key(|event| event.sequence);
        let mut least = 0;
        for event in &mut all {
            event.sequence = event.sequence.max(least);
            least = event.sequence + 1;
        }
        state.remembered = newest_of_each_kind(all);
        state.next = state.remembered.back().map_or(0, |last| last.sequence + 1);
    }

    /// Adds an event. It waits to be written if there is a thread that writes.
    pub(super) fn push(&self, time_ms: i64, member: Option<EventMember>, kind: EventKind) {
        self.push_all(time_ms, [(member, kind)]);
    }

    /// Waits until all that was added so far and found a place is written, but no longer than `patience`. Returns whether it
    /// is, which is not so if no thread writes.
    pub(super) fn flush(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        let added = state.added;
        let waits = |state: &mut KeptEvents| state.stage != Stage::Absent && state.written < added;
        self.changed.wait_while_for(&mut state, waits, patience);
        state.written >= added
    }

    /// Notes that members have these events.
    pub(super) fn note_written(&self, events: &[Event]) {
        let mut state = self.state.lock();
        let newest = events.iter().map(|event| event.sequence).max();
        state.written = newest.map_or(state.written, |newest| newest + 1);
        drop(state);
        self.changed.notify_all();
    }

    /// Adds events, between which no batch begins.
    pub(super) fn push_all(
        &self,
        time_ms: i64,
        noted: impl IntoIterator<Item = (Option<EventMember>, EventKind)>,
    ) {
        let mut state = self.state.lock();
        for noted in noted {
            let is_full = state.stage != Stage::Absent && state.waiting.len() >= MOST_WAITING;
            if is_full && !waits_always(&noted.1) {
                state.dropped += 1;
                self.add(&mut state, time_ms, noted, false);
                continue;
            }
            let dropped = std::mem::take(&mut state.dropped);
            if dropped > 0 {
                let kind = EventKind::EventsDropped { events: dropped };
                self.add(&mut state, time_ms, (None, kind), true);
            }
            self.add(&mut state, time_ms, noted, true);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Remembers an event. It is written as well if it `waits` and a thread writes.
    fn add(
        &self,
        state: &mut KeptEvents,
        time_ms: i64,
        (member, kind): (Option<EventMember>, EventKind),
        waits: bool,
    ) {
        let event = Event {
            time_ms,
            sequence: state.next,
            volume: self.volume,
            member,
            severity: kind.severity(),
            kind,
        };
        state.next += 1;
        if state.remembered.len() >= MOST_REMEMBERED {
            forget_one(&mut state.remembered);
        }
        state.remembered.push_back(event.clone());
        if waits {
            state.added = state.next;
        }
        if waits && state.stage != Stage::Absent {
            state.waiting.push_back(event);
        }
    }

    pub(super) fn set_members(&self, members: Weak<Members>) {
        self.state.lock().members = members;
        self.changed.notify_all();
    }

    pub(super) fn set_full(&self, full: BTreeSet<MemberIndex>) {
        self.state.lock().full = full;
    }

    /// Returns the time of the newest event, unless the daemon that recorded it has stopped. A look that was under way then
    /// may have recorded more.
    pub(super) fn crashed_at(&self) -> Option<i64> {
        let state = self.state.lock();
        let newest = state.remembered.back()?;
        let mut lives = state.remembered.iter().rev().filter(|event| {
            matches!(
                event.kind,
                EventKind::DaemonStarted { .. } | EventKind::DaemonStopped { .. }
            )
        });
        let last = lives.next().map(|event| &event.kind);
        let has_stopped = matches!(last, Some(EventKind::DaemonStopped { .. }));
        (!has_stopped).then_some(newest.time_ms)
    }

    pub(super) fn newer_than(
        &self,
        sequence: Option<u64>,
        since_ms: Option<i64>,
        most: usize,
    ) -> Newer {
        let state = self.state.lock();
        let from = sequence.map_or(0, |sequence| {
            state
                .remembered
                .partition_point(|event| event.sequence <= sequence)
        });
        let mut events = state.remembered.range(from..).filter(|event| {
            let since = since_ms.unwrap_or(i64::MIN);
            event.time_ms >= since
        });
        Newer {
            events: events.by_ref().take(most).cloned().collect(),
            has_more: events.next().is_some(),
        }
    }

    /// Notes that a thread writes from now on.
    pub(super) fn begin(&self) {
        self.state.lock().stage = Stage::Writing;
    }

    /// Notes that no thread writes any more.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.stage = Stage::Absent;
        state.waiting.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// Has the thread end once nothing waits, and waits for that.
    pub(super) fn close(&self, patience: Duration) {
        let mut state = self.state.lock();
        if state.stage == Stage::Absent {
            return;
        }
        state.stage = Stage::Closing;
        self.changed.notify_all();
        let is_open = |state: &mut KeptEvents| state.stage != Stage::Absent;
        let waited = self.changed.wait_while_for(&mut state, is_open, patience);
        if waited.timed_out() {
            tracing::warn!("the last events are not written yet: a member does not answer");
        }
    }

    /// Waits for events that can be written. Returns none once the thread is to end.
    pub(super) fn next(&self) -> Option<EventBatch> {
        let mut state = self.state.lock();
        loop {
            let members = state.members.upgrade();
            let is_closing = state.stage == Stage::Closing;
            match members {
                Some(members) if !state.waiting.is_empty() => {
                    return Some(EventBatch {
                        events: take_some(&mut state.waiting),
                        members,
                        full: state.full.clone(),
                    });
                }
                _ if is_closing => return None,
                _ => self.changed.wait(&mut state),
            }
        }
    }

    /// Has events wait again that no member took, for some time or until the log is closed. Returns false if it is.
    pub(super) fn put_back(&self, events: Vec<Event>, pause: Duration) -> bool {
        let mut state = self.state.lock();
        for event in events.into_iter().rev() {
            state.waiting.push_front(event);
        }
        let is_open = |state: &mut KeptEvents| state.stage != Stage::Closing;
        self.changed.wait_while_for(&mut state, is_open, pause);
        state.stage != Stage::Closing
    }
}

/// Returns whether an event waits however many others do. A refusal is known by its event alone. These events are few: a user
/// gives an order between any two refusals.
fn waits_always(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::RemovalsRefused { .. } | EventKind::RemovalsAllowed { .. }
    )
}

/// Returns as many of these events as are remembered, in one pass. Those of kinds that have more than their share go first.
fn newest_of_each_kind(events: Vec<Event>) -> VecDeque<Event> {
    let mut surplus = events.len().saturating_sub(MOST_REMEMBERED);
    let mut counts = HashMap::new();
    for event in &events {
        *counts.entry(discriminant(&event.kind)).or_insert(0_usize) += 1;
    }
    let mut kept: VecDeque<Event> = events.into();
    kept.retain(|event| {
        let count = counts.entry(discriminant(&event.kind)).or_default();
        let goes = surplus > 0 && *count > MOST_REMEMBERED / SHARES;
        if goes {
            *count -= 1;
            surplus -= 1;
        }
        !goes
    });
    kept.drain(..surplus);
    kept
}

/// Forgets the oldest event of the kind that has more than its share of them, or the oldest of all. So no kind pushes out
/// the events of others.
fn forget_one(events: &mut VecDeque<Event>) {
    let share = events.len() / SHARES;
    let mut counts = HashMap::new();
    for event in &*events {
        *counts.entry(discriminant(&event.kind)).or_insert(0_usize) += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    let crowd = most.filter(|(_, count)| *count > share);
    let oldest = crowd.and_then(|(kind, _)| {
        let mut kinds = events.iter().map(|event| discriminant(&event.kind));
        kinds.position(|it| it == kind)
    });
    events.remove(oldest.unwrap_or_default());
}

/// Takes as many events as are written at once.
fn take_some(waiting: &mut VecDeque<Event>) -> Vec<Event> {
    let mut taken = Vec::new();
    let mut bytes = 0;
    while bytes < ENOUGH_BYTES
        && let Some(event) = waiting.pop_front()
    {
        bytes += event.encode().len();
        taken.push(event);
    }
    taken
}
