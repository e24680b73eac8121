//! Segments: which there are, which are being written, and where the next stripe goes.
//!
//! Room for a whole stripe is reserved before the first byte of it is accepted, in a segment whose
//! files were reserved on their members: so "no space" comes before anything is at risk. A segment
//! is written until no further stripe fits, or until a member of it fails while others could take
//! its place; then it is finished: cut to its used length, and that length recorded.
//!
//! # Invariants
//!
//! - Offsets only grow: no byte of a segment file is allocated twice in the segment's life.
//! - A segment that is being written is never taken for dead ([`Segments::is_writing`]).
//! - No lock is held while files are made, cut or removed; `opening` and `finishing` are batons.
//!
//! Locks, in order: `frontier`, `known`, `taken`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, RwLock};
use scopeguard::{ScopeGuard, guard_on_unwind};

use super::classes::{ClassCode, Classes};
use super::error::StripeError;
use super::options::FullMembers;
use super::records::StripeRecords;
use super::segment_handle::SegmentHandle;
use super::segment_io::{SegmentIo, joined_by_member};
use super::tally;
use crate::format::record::{Segment, Stripe};
use crate::format::{MemberIndex, SegmentId, StripeClass};
use crate::membership::Members;
use crate::rate_limit::RateLimit;

mod ballast;
mod files;
mod frontier;

pub(crate) use files::{kept_back, kept_from_index, promised};

use frontier::{Frontier, Stage, Writing};

/// Divisor of a member's room: a new segment may take at most this part of it. Segments so stay small against
/// the room that is left, and all of it can be used.
const ROOM_PARTS: u64 = 8;

/// The stripes of the first segments that a mount opens. So a volume into which little is written reserves little, and
/// no first write waits for a large reservation.
const FIRST_STRIPES: u64 = 4;

/// The segments of a length that a mount opens before it doubles the length. So a new one reserves at most a quarter of
/// what was written: a filesystem in memory spends time and memory on each reserved page.
const SEGMENTS_OF_A_LENGTH: u32 = 4;

/// The purpose for which room is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Bytes that can still be refused.
    New,
    /// Bytes that compaction moves, to make more room than they take. Their new stripe has to survive so many losses.
    Compaction(i16),
    /// Bytes that were accepted already.
    Accepted,
}

/// Room for one stripe of the greatest height, in this segment.
#[derive(Debug)]
#[must_use = "room that is neither used nor released is lost until the next mount"]
pub(crate) struct Reservation {
    segment: SegmentId,
}

/// The bytes that a segment takes of each of its files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// The bytes of the stripes that are written, and of those being filled.
    pub(crate) stripes: u64,
    /// The bytes behind them.
    pub(crate) left: u64,
    /// True if further stripes come there; else it is about to be cut off.
    pub(crate) open: bool,
}

/// The place of a stripe's shards.
#[derive(Clone, Debug)]
pub(crate) struct Allocated {
    pub(crate) segment: Arc<SegmentHandle>,
    pub(crate) offset: u64,
}

/// All segments of a volume.
pub(crate) struct Segments {
    members: Arc<Members>,
    io: SegmentIo,
    records: Arc<StripeRecords>,
    classes: Arc<Classes>,
    /// The length of a full-sized segment file.
    segment_bytes: u64,
    /// The greatest height of a stripe of any class.
    step: u64,
    full_members: FullMembers,
    /// Rate limiter for messages about full members: room may come and go many times a second.
    full_log: RateLimit<Vec<MemberIndex>>,
    /// The most bytes that all stripes in memory together bring to one member.
    in_memory_bytes: u64,
    known: RwLock<HashMap<SegmentId, Arc<SegmentHandle>>>,
    /// The bytes that stripes take of each file of a segment. Those from before the mount are included once they
    /// have been counted. Locked last.
    taken: Mutex<HashMap<SegmentId, u64>>,
    frontier: Mutex<Frontier>,
    opened: Condvar,
}

impl Segments {
    /// Starts from the segments in the index; `in_memory` stripes are in memory at most.
    pub(crate) fn new(
        members: Arc<Members>,
        (records, classes): (Arc<StripeRecords>, Arc<Classes>),
        in_memory: u64,
        full_members: FullMembers,
        known: Vec<(SegmentId, Segment)>,
    ) -> Self {
        let handle = |(id, record)| (id, Arc::new(SegmentHandle::new(id, record)));
        // Stripes with the codes of directories are not higher, unless all are one block high.
        let step = classes.volume().step();
        Self {
            classes,
            segment_bytes: members.shape().segment_bytes(),
            step,
            full_members,
            full_log: RateLimit::once_a_minute(),
            in_memory_bytes: step * in_memory,
            io: SegmentIo::new(Arc::clone(&members)),
            known: RwLock::new(known.into_iter().map(handle).collect()),
            members,
            records,
            taken: Mutex::default(),
            frontier: Mutex::default(),
            opened: Condvar::new(),
        }
    }

    /// Returns the greatest height of a stripe.
    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    /// Returns the course of writes while members are full.
    pub(crate) fn on_full_members(&self) -> FullMembers {
        self.full_members
    }

    /// Returns the members that the newest segment does without because they had no room for it.
    pub(crate) fn left_out(&self) -> Vec<MemberIndex> {
        self.frontier.lock().left_out.clone()
    }

    /// Returns a segment that the index names.
    pub(crate) fn get(&self, segment: SegmentId) -> Option<Arc<SegmentHandle>> {
        self.known.read().get(&segment).cloned()
    }

    /// Returns all segments, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<SegmentHandle>> {
        self.known.read().values().cloned().collect()
    }

    /// Returns the record of a segment.
    #[must_use]
    pub(crate) fn record(&self, segment: SegmentId) -> Option<Segment> {
        self.get(segment).map(|handle| handle.record.clone())
    }

    /// Returns the records of all segments, in no order.
    #[must_use]
    pub(crate) fn records(&self) -> Vec<(SegmentId, Segment)> {
        let segments = self.all().into_iter();
        segments
            .map(|handle| (handle.id, handle.record.clone()))
            .collect()
    }

    /// Returns whether stripes may still be added to a segment.
    pub(crate) fn is_writing(&self, segment: SegmentId) -> bool {
        self.frontier.lock().writing.contains_key(&segment)
    }

    /// Reserves room for a stripe of a class; a more urgent `need` may use more of what is kept back.
    ///
    /// # Errors
    ///
    /// [`StripeError::NoSpace`], [`StripeError::Failed`], [`StripeError::LessProtected`] for compaction, or the failure of
    /// the index.
    pub(crate) fn reserve(&self, code: &ClassCode, need: Need) -> Result<Reservation, StripeError> {
        let class = code.class();
        loop {
            let mut frontier = self.frontier.lock();
            if let Some(reservation) = self.reserve_in_current(&mut frontier, class, need) {
                return Ok(reservation);
            }
            let outgrown = frontier.current.get(&class).copied();
            if let Some(ahead) = frontier.ahead.remove(&class) {
                frontier.current.insert(class, ahead);
                drop(frontier);
            } else if frontier.opening {
                self.opened.wait(&mut frontier);
                continue;
            } else {
                frontier.opening = true;
                drop(frontier);
                self.finish_opening(code, self.open_guarded(code, need))?;
            }
            if let Some(outgrown) = outgrown {
                self.retire(outgrown)?;
            }
        }
    }

    /// Opens a segment, and passes the baton on if that panics.
    fn open_guarded(
        &self,
        code: &ClassCode,
        need: Need,
    ) -> Result<Arc<SegmentHandle>, StripeError> {
        let unwinding = guard_on_unwind((), |()| {
            self.frontier.lock().opening = false;
            self.opened.notify_all();
        });
        let opened = self.open_segment(code, need);
        ScopeGuard::into_inner(unwinding);
        opened
    }

    /// Makes a segment that was just opened the current one.
    fn finish_opening(
        &self,
        code: &ClassCode,
        opened: Result<Arc<SegmentHandle>, StripeError>,
    ) -> Result<(), StripeError> {
        let mut frontier = self.frontier.lock();
        frontier.opening = false;
        self.opened.notify_all();
        let segment = self.admit(&mut frontier, code, opened?);
        frontier.current.insert(code.class(), segment);
        Ok(())
    }

    fn reserve_in_current(
        &self,
        frontier: &mut Frontier,
        class: StripeClass,
        need: Need,
    ) -> Option<Reservation> {
        let segment = *frontier.current.get(&class)?;
        let writing = frontier.writing.get(&segment)?;
        let end = writing.next + writing.reserved + writing.step;
        let mut members = writing.handle.record.slots.iter().flatten();
        if writing.stage != Stage::Open
            || end > writing.handle.record.len
            || !self.is_good(writing, &frontier.full)
            || !self.is_protected(writing, need)
            || need == Need::New && members.any(|member| frontier.is_bare(*member))
        {
            return None;
        }
        let writing = frontier.writing.get_mut(&segment)?;
        writing.reserved += writing.step;
        Some(Reservation { segment })
    }

    /// Returns whether no other placement would bring more of a stripe's shards onto members, and they suffice.
    fn is_good(&self, writing: &Writing, full: &[MemberIndex]) -> bool {
        let total = writing.handle.record.total_shards();
        let mut live = self.members.membership().homes(total);
        live.retain(|member| !writing.left_out.contains(member));
        let slots = || writing.handle.record.slots.iter().flatten();
        let reachable = slots().filter(|member| live.contains(member)).count();
        let suffices = || {
            let live = self.members.membership().live();
            tally::takes_stripes(&writing.handle.record, &|member| live.contains(member))
        };
        !writing.damaged
            && (reachable == total || suffices())
            && reachable >= live.len().min(total)
            && !slots().any(|member| full.contains(member))
    }

    /// Returns whether stripes of a segment survive as many losses as bytes have to that move.
    fn is_protected(&self, writing: &Writing, need: Need) -> bool {
        let Need::Compaction(least) = need else {
            return true;
        };
        let live = self.members.membership().live();
        let record = &writing.handle.record;
        let slots = record.slots.iter();
        let vacant = slots.filter(|slot| slot.is_none_or(|member| !live.contains(&member)));
        tally::survival(record).after(vacant.count()) >= least
    }

    /// Returns the members that a new segment does without although they are there.
    fn left_out_of(&self, record: &Segment) -> Vec<MemberIndex> {
        let is_whole = record.slots.iter().all(Option::is_some);
        if is_whole || self.full_members == FullMembers::Stop {
            return Vec::new();
        }
        let mut homes = self.members.membership().homes(record.total_shards());
        homes.retain(|member| !record.slots.contains(&Some(*member)));
        homes
    }

    fn admit(
        &self,
        frontier: &mut Frontier,
        code: &ClassCode,
        handle: Arc<SegmentHandle>,
    ) -> SegmentId {
        let id = handle.id;
        let left_out = self.left_out_of(&handle.record);
        self.known.write().insert(id, Arc::clone(&handle));
        self.taken.lock().insert(id, 0);
        let fresh = Writing {
            handle,
            step: code.step(),
            next: 0,
            reserved: 0,
            in_flight: 0,
            recorded: false,
            damaged: false,
            left_out,
            stage: Stage::Open,
        };
        frontier.begin_writing(id, fresh);
        id
    }

    /// Opens the next segment of a class if the current one is nearly full, so that writers need not wait.
    pub(crate) fn open_ahead(&self) {
        let code = {
            let mut frontier = self.frontier.lock();
            if frontier.opening {
                return;
            }
            let nearly_full = frontier.class_nearly_full();
            let code = nearly_full.and_then(|class| self.classes.get(class));
            frontier.opening = code.is_some();
            code
        };
        let Some(code) = code else { return };
        let opened = self.open_guarded(&code, Need::New);
        let mut frontier = self.frontier.lock();
        frontier.opening = false;
        self.opened.notify_all();
        // A caller that needs the segment meets the same error, and can report it.
        if let Ok(handle) = opened {
            let segment = self.admit(&mut frontier, &code, handle);
            frontier.ahead.insert(code.class(), segment);
        }
    }

    /// Gives reserved room back.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "the caller gives the room up"
    )]
    pub(crate) fn release(&self, reservation: Reservation) -> Result<(), StripeError> {
        let id = reservation.segment;
        if let Some(writing) = self.frontier.lock().writing.get_mut(&id) {
            writing.reserved -= writing.step;
        }
        self.finish_if_done(id)
    }

    /// Returns whether no other segment would keep more of a stripe's shards.
    pub(crate) fn is_fit(&self, reservation: &Reservation) -> bool {
        let frontier = self.frontier.lock();
        let writing = frontier.writing.get(&reservation.segment);
        writing.is_some_and(|writing| self.is_good(writing, &frontier.full))
    }

    /// Turns a reservation into a place of `height` bytes.
    ///
    /// # Panics
    ///
    /// If the segment is gone, which no segment is that has reservations.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "the caller gives the room up"
    )]
    pub(crate) fn allocate(&self, reservation: Reservation, height: u64) -> Allocated {
        let mut frontier = self.frontier.lock();
        let writing = frontier.writing.get_mut(&reservation.segment);
        let writing = writing.expect("a segment stays while room in it is reserved");
        writing.reserved -= writing.step;
        writing.in_flight += 1;
        let offset = writing.next;
        writing.next += height;
        *self.taken.lock().entry(reservation.segment).or_default() += height;
        Allocated {
            segment: Arc::clone(&writing.handle),
            offset,
        }
    }

    /// A stripe at an allocated place is written and recorded, or given up.
    pub(crate) fn complete(&self, segment: SegmentId) -> Result<(), StripeError> {
        if let Some(writing) = self.frontier.lock().writing.get_mut(&segment) {
            writing.in_flight -= 1;
        }
        self.finish_if_done(segment)
    }

    /// Returns whether the segment has a record.
    pub(crate) fn is_recorded(&self, segment: SegmentId) -> bool {
        let frontier = self.frontier.lock();
        frontier
            .writing
            .get(&segment)
            .is_none_or(|writing| writing.recorded)
    }

    /// Notes that the segment has a record.
    pub(crate) fn set_recorded(&self, segment: SegmentId) {
        if let Some(writing) = self.frontier.lock().writing.get_mut(&segment) {
            writing.recorded = true;
        }
    }

    /// Notes that a file of a segment is not there any more, or was replaced: no further stripe goes to the segment.
    pub(crate) fn set_damaged(&self, segment: SegmentId) {
        if let Some(writing) = self.frontier.lock().writing.get_mut(&segment) {
            writing.damaged = true;
        }
    }

    /// Notes that a member had no space where it had been reserved.
    pub(crate) fn set_full(&self, member: MemberIndex) {
        let mut frontier = self.frontier.lock();
        if !frontier.full.contains(&member) {
            frontier.full.push(member);
        }
    }

    /// Another directory has the place of a member.
    pub(crate) fn forget_member(&self, member: MemberIndex) {
        let mut frontier = self.frontier.lock();
        frontier.full.retain(|full| *full != member);
        frontier.ballast.remove(&member);
    }

    /// Something was freed: every member is worth another try.
    pub(crate) fn forget_full(&self) {
        self.frontier.lock().full.clear();
    }

    /// Adds no more stripes to a segment; finishes it once nothing is on its way into it.
    pub(crate) fn retire(&self, segment: SegmentId) -> Result<(), StripeError> {
        self.stop_writing(segment);
        self.finish_if_done(segment)
    }

    /// Returns how many classes have segments that are being written.
    pub(crate) fn classes_written(&self) -> usize {
        let frontier = self.frontier.lock();
        let ahead = frontier.ahead.keys();
        let further = ahead.filter(|class| !frontier.current.contains_key(class));
        frontier.current.len() + further.count()
    }

    /// Retires all segments that are being written.
    pub(crate) fn retire_all(&self) -> Result<(), StripeError> {
        let writing: Vec<SegmentId> = {
            let mut frontier = self.frontier.lock();
            frontier.current.clear();
            frontier.ahead.clear();
            frontier.writing.keys().copied().collect()
        };
        writing
            .into_iter()
            .try_for_each(|segment| self.retire(segment))
    }

    /// Adds no more stripes to a segment; the thread that completes the last one finishes it.
    pub(crate) fn stop_writing(&self, segment: SegmentId) {
        if let Some(writing) = self.frontier.lock().writing.get_mut(&segment)
            && writing.stage == Stage::Open
        {
            writing.stage = Stage::Retired;
        }
    }

    /// Forgets a segment whose record is gone for good, and removes its files from the members that are left.
    pub(crate) fn remove(&self, segment: SegmentId) {
        let Some(handle) = self.known.write().remove(&segment) else {
            return;
        };
        self.taken.lock().remove(&segment);
        self.io.remove(&handle, handle.members());
        self.forget_full();
    }

    /// Gives back the space of a stripe whose records are gone for good.
    pub(crate) fn free_stripe(&self, record: &Stripe) {
        self.punch(record.segment, record.offset, record.height);
    }

    /// Gives back the space of places in a segment's files, each on one member, in which no record names anything. They are in
    /// disk order. Returns how many ranges they form.
    pub(crate) fn free_places(
        &self,
        segment: SegmentId,
        places: impl Iterator<Item = (MemberIndex, Range<u64>)>,
    ) -> usize {
        let ranges = joined_by_member(places);
        if let Some(handle) = self.get(segment).filter(|_| !ranges.is_empty()) {
            self.io.punch_each(&handle, &ranges);
            self.forget_full();
        }
        ranges.len()
    }

    /// Removes the file of a segment from a member that it is not on any more.
    pub(crate) fn remove_file(&self, segment: SegmentId, member: MemberIndex) {
        self.io.remove_file(segment, member);
    }

    /// Gives back the space of a stripe's shards.
    pub(crate) fn punch(&self, segment: SegmentId, offset: u64, height: u32) {
        let height = u64::from(height);
        self.taken
            .lock()
            .entry(segment)
            .and_modify(|taken| *taken -= height.min(*taken));
        self.free_range(segment, offset..offset + height);
    }

    /// Gives back the space of a range of a segment's files in which no record names anything.
    pub(crate) fn free_range(&self, segment: SegmentId, range: Range<u64>) {
        let Some(handle) = self.get(segment) else {
            return;
        };
        self.io.punch(&handle, handle.members(), &range);
        self.forget_full();
    }

    /// Returns what each segment takes of each of its files.
    pub(crate) fn taken(&self) -> Vec<(Arc<SegmentHandle>, Taken)> {
        let frontier = self.frontier.lock();
        // Held, because a segment that is removed meanwhile would lose its count, and be taken for full.
        let known = self.known.read();
        let counted = self.taken.lock();
        let taken = |segment: Arc<SegmentHandle>| {
            let len = segment.record.len;
            let counted = counted.get(&segment.id).copied().unwrap_or(len);
            let taken = match frontier.writing.get(&segment.id) {
                Some(writing) => Taken {
                    stripes: counted + writing.reserved,
                    left: len - writing.next - writing.reserved,
                    open: writing.stage == Stage::Open && !writing.damaged,
                },
                None => Taken {
                    stripes: counted,
                    left: 0,
                    open: false,
                },
            };
            (segment, taken)
        };
        known.values().cloned().map(taken).collect()
    }

    /// Returns what is promised of each member's space, and not written yet.
    pub(crate) fn unwritten(&self) -> HashMap<MemberIndex, u64> {
        let frontier = self.frontier.lock();
        let mut unwritten = HashMap::new();
        for writing in frontier.writing.values() {
            let behind = match writing.stage {
                Stage::Open => writing.handle.record.len - writing.next,
                Stage::Retired | Stage::Finishing => writing.reserved,
            };
            let in_flight = writing.in_flight as u64 * writing.step;
            for member in writing.handle.members() {
                *unwritten.entry(member).or_default() += behind + in_flight;
            }
        }
        unwritten
    }

    /// Puts a segment that is not being written onto other members. The caller keeps others from cutting, punching or
    /// removing it meanwhile.
    pub(crate) fn set_record(&self, segment: SegmentId, record: Segment) {
        let mut known = self.known.write();
        if known.contains_key(&segment) {
            known.insert(segment, Arc::new(SegmentHandle::new(segment, record)));
        }
    }

    /// Notes what the stripes of a segment take of each of its files.
    pub(crate) fn set_taken(&self, segment: SegmentId, bytes: u64) {
        self.taken.lock().insert(segment, bytes);
    }

    fn finish_if_done(&self, segment: SegmentId) -> Result<(), StripeError> {
        let (handle, used, recorded) = {
            let mut frontier = self.frontier.lock();
            let Some(writing) = frontier.writing.get_mut(&segment).filter(|w| w.is_done()) else {
                return Ok(());
            };
            writing.stage = Stage::Finishing;
            (Arc::clone(&writing.handle), writing.next, writing.recorded)
        };
        let finished = self.finish(&handle, used, recorded);
        self.frontier.lock().writing.remove(&segment);
        finished
    }

    /// Cuts a segment to what is used of it, or removes one that was never used.
    fn finish(&self, handle: &SegmentHandle, used: u64, recorded: bool) -> Result<(), StripeError> {
        if !recorded {
            self.known.write().remove(&handle.id);
            self.taken.lock().remove(&handle.id);
            self.io.remove(handle, handle.members());
            return Ok(());
        }
        self.cut(handle, used)
    }

    /// Cuts a segment's files to `used` bytes and records that, also where nothing is to be cut: the
    /// final record says that no further stripe comes.
    pub(crate) fn cut(&self, handle: &SegmentHandle, used: u64) -> Result<(), StripeError> {
        let record = Segment {
            len: used,
            ..handle.record.clone()
        };
        self.records
            .finish_segment(handle.id, &record)
            .map_err(|source| StripeError::SegmentNotRecorded {
                segment: handle.id,
                source,
            })?;
        if used == handle.record.len {
            return Ok(());
        }
        for member in handle.members() {
            self.io.truncate(handle, member, used);
        }
        let shorter = Arc::new(SegmentHandle::new(handle.id, record));
        self.known.write().insert(handle.id, shorter);
        Ok(())
    }

    /// Cuts a segment that was being written when the volume was last used to its `used` bytes.
    ///
    /// # Errors
    ///
    /// If its final record cannot be put.
    pub(crate) fn cut_unfinished(&self, segment: SegmentId, used: u64) -> Result<(), StripeError> {
        match self.get(segment) {
            Some(handle) if handle.record.len > used && !self.is_writing(segment) => {
                self.cut(&handle, used)
            }
            _ => Ok(()),
        }
    }

    /// Returns the greatest length of the next segment of a class for new bytes.
    fn greatest_len(&self, code: &ClassCode) -> u64 {
        let opened = self.frontier.lock().opened.get(&code.class()).copied();
        let doublings = opened.unwrap_or(0) / SEGMENTS_OF_A_LENGTH;
        let stripes = FIRST_STRIPES << doublings.min(40);
        let step = code.step();
        let most = (self.segment_bytes / step).max(1) * step;
        most.min(step.saturating_mul(stripes))
    }

    /// Returns how a new segment is to look like: see [`super::placement::place`].
    fn wanted(&self, code: &ClassCode, need: Need) -> super::placement::Wanted {
        super::placement::Wanted {
            total_shards: code.geometry().total_shards(),
            fewest: fewest_members(code, need),
            max_len: match need {
                Need::New => self.greatest_len(code),
                Need::Compaction(_) | Need::Accepted => code.step(),
            },
            step: code.step(),
            room_parts: ROOM_PARTS,
        }
    }
}

/// Returns how many members a stripe needs to be read or, if it is to survive losses, to survive these.
fn fewest_members(code: &ClassCode, need: Need) -> usize {
    let geometry = code.geometry();
    let (data, total) = (geometry.data_shards(), geometry.total_shards());
    match need {
        Need::New | Need::Accepted => data,
        Need::Compaction(least) => (data..total)
            .find(|members| code.survival().after(total - members) >= least)
            .unwrap_or(total),
    }
}
