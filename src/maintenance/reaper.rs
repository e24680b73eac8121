//! Frees the space of dead stripes and empty segments.
//!
//! ```text
//! b'q' stripe ─► no backref left: suspect ─► dead, records removed ─► freed on the members
//!                      a commit and all older pins pass    a commit passes
//! ```
//!
//! A stripe without backrefs and without holds stays so: no lock is needed. Its records go only after a commit that
//! covers the loss of its last backref. A crash could otherwise bring back the extents without their stripe. They also
//! wait for every earlier pin, because its holder may be about to read the stripe. Its space goes only after a commit
//! that covers the loss of its records.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::candidates::Candidates;
use crate::format::record::{Marker, Stripe};
use crate::format::{MemberIndex, Record, SegmentId, StripeId, key};
use crate::metadata::{Batch, Key, Meta};
use crate::transaction::CommitError;
use crate::transaction::catalog::{Catalog, successor};
use crate::transaction::commits::Commits;
use crate::transaction::group::CommitNumber;

use crate::stripes::{PinFence, StripeRecords, Stripes};

mod audit;

/// The most marks read in one pass.
const MARKS_AT_ONCE: usize = 256;

/// The most files of moved segments that one pass removes, because other threads wait for the reaper meanwhile.
const FILES_AT_ONCE: usize = 32;

/// Rounds of "commit, then reap" in which a dead stripe becomes free space: one for the loss of its
/// backrefs, one for that of its records, and one that frees it.
const REAPS: usize = 3;

/// The most rounds of reaping before a request is refused for lack of room, if each round frees something.
const MAX_REAPS: usize = 1000;

/// The most stripes audited in one pass.
const AUDITED_AT_ONCE: usize = 64;

struct Suspect {
    stripe: StripeId,
    covered_by: CommitNumber,
    pinned_until: PinFence,
}

enum Garbage {
    Stripe(Stripe),
    Segment(SegmentId),
    /// A file of a segment that moved to another member.
    File(SegmentId, MemberIndex),
}

/// The queues on the way from "perhaps dead" to free space.
#[derive(Default)]
pub(super) struct Queues {
    suspects: VecDeque<Suspect>,
    suspected: BTreeSet<StripeId>,
    garbage: VecDeque<(CommitNumber, Garbage)>,
    /// Segments that take no more stripes and may be empty.
    closed_segments: Vec<SegmentId>,
    /// The next mark to look at.
    marks_from: Option<Key>,
    /// The next stripe to audit; `None` after the last stripe that a crash may have left unmarked.
    audit_from: Option<Key>,
    /// Segments from before the mount that are still to be audited, once that has begun.
    unaudited: Option<VecDeque<SegmentId>>,
    /// Segments whose records in memory and on disk name different shards. The audit skips them for now.
    held: BTreeSet<SegmentId>,
    /// The number of freed stripes, segments and files.
    freed: u64,
}

impl Queues {
    fn new() -> Self {
        Self {
            audit_from: Some(key::stripes().0),
            ..Self::default()
        }
    }

    fn is_under_way(&self) -> bool {
        !self.suspects.is_empty() || !self.garbage.is_empty()
    }

    /// Returns whether dead space of a segment waits for a commit.
    fn is_freeing(&self, segment: SegmentId) -> bool {
        self.garbage.iter().any(|(_, garbage)| match garbage {
            Garbage::Stripe(record) => record.segment == segment,
            Garbage::Segment(whole) => *whole == segment,
            Garbage::File(..) => false,
        })
    }

    /// Queues a file for removal, once a commit covers that its segment moved to another member.
    pub(super) fn abandon_file(
        &mut self,
        covered_by: CommitNumber,
        segment: SegmentId,
        member: MemberIndex,
    ) {
        let garbage = Garbage::File(segment, member);
        self.garbage.push_back((covered_by, garbage));
    }

    /// Audits all segments once more, because a member with stripes that died meanwhile came back.
    pub(super) fn audit_again(&mut self) {
        self.unaudited = None;
    }

    /// Takes a file out of the queue, because its segment is about to move back to the member.
    pub(super) fn reclaim_file(&mut self, segment: SegmentId, member: MemberIndex) {
        let is_it = |garbage: &Garbage| matches!(garbage, Garbage::File(s, m) if (*s, *m) == (segment, member));
        self.garbage.retain(|(_, garbage)| !is_it(garbage));
    }
}

/// A segment that is not audited for as long as this lives.
pub(super) struct HeldSegment<'a> {
    queues: &'a Mutex<Queues>,
    segment: SegmentId,
    /// False if the segment stays held after this.
    ends: bool,
}

impl HeldSegment<'_> {
    /// Keeps the audit away until the volume is closed, because its records on disk may stay as they were.
    pub(super) fn keep(mut self) {
        self.ends = false;
    }
}

impl Drop for HeldSegment<'_> {
    fn drop(&mut self) {
        if self.ends {
            self.queues.lock().held.remove(&self.segment);
        }
    }
}

/// Frees dead stripes and empty segments.
pub struct Reaper {
    meta: Arc<Meta>,
    stripes: Arc<Stripes>,
    records: Arc<StripeRecords>,
    catalog: Arc<Catalog>,
    commits: Arc<Commits>,
    candidates: Arc<Mutex<Candidates>>,
    /// Held through I/O by the thread that removes, cuts or punches anything.
    queues: Mutex<Queues>,
}

impl Reaper {
    pub(super) fn new(
        meta: Arc<Meta>,
        stripes: Arc<Stripes>,
        records: Arc<StripeRecords>,
        catalog: Arc<Catalog>,
        commits: Arc<Commits>,
        candidates: Arc<Mutex<Candidates>>,
    ) -> Self {
        Self {
            meta,
            stripes,
            records,
            catalog,
            commits,
            candidates,
            queues: Mutex::new(Queues::new()),
        }
    }

    /// Keeps others from removing, cutting or punching anything while the guard is held.
    pub(super) fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock()
    }

    /// Keeps the audit of a segment waiting until the returned guard is dropped.
    pub(super) fn hold(&self, segment: SegmentId) -> HeldSegment<'_> {
        let is_new = self.queues.lock().held.insert(segment);
        HeldSegment {
            queues: &self.queues,
            segment,
            ends: is_new,
        }
    }

    /// Returns whether something dead is on its way to being free space.
    pub(super) fn is_under_way(&self) -> bool {
        self.queues.lock().is_under_way()
    }

    /// Returns the number of freed stripes, segments and files.
    pub(super) fn freed(&self) -> u64 {
        self.queues.lock().freed
    }

    /// Frees all dead stripes. Returns whether there was any. Without space even for the note of their death, they are
    /// freed later.
    pub(super) fn free_dead(&self) -> Result<bool, CommitError> {
        let first = self.freed();
        for _ in 0..MAX_REAPS {
            let before = self.freed();
            match self.reap_now() {
                Err(CommitError::NoSpace) => break,
                done => done?,
            }
            if self.freed() == before {
                break;
            }
        }
        Ok(self.freed() > first)
    }

    /// Commits and reaps until the stripes that are dead by now are free, unless readers hold them.
    pub(super) fn reap_now(&self) -> Result<(), CommitError> {
        for _ in 0..REAPS {
            self.reap()?;
            self.commits.sync()?;
        }
        self.reap()
    }

    /// Takes every dead stripe and empty segment one step further towards free space. Call it about once a second. A
    /// later call, after a commit, frees the space whose records this call removes.
    ///
    /// # Errors
    ///
    /// If the index cannot be read or changed.
    pub fn reap(&self) -> Result<(), CommitError> {
        if self.commits.is_read_only() || self.commits.is_poisoned() {
            return Ok(());
        }
        // One at a time; only reapers and compaction wait for it.
        let mut queues = self.queues.lock();
        self.free_garbage(&mut queues);
        self.remove_dead(&mut queues)?;
        self.remove_empty_segments(&mut queues)?;
        self.audit(&mut queues)?;
        self.audit_segments(&mut queues)?;
        self.look_at_marks(&mut queues)
    }

    fn free_garbage(&self, queues: &mut Queues) {
        let freed_before = queues.freed;
        let mut files = 0;
        while files < FILES_AT_ONCE
            && let Some((covered_by, _)) = queues.garbage.front()
            && self.commits.group.has_ended(*covered_by)
            && let Some((_, garbage)) = queues.garbage.pop_front()
        {
            match garbage {
                Garbage::Stripe(record) => self.stripes.segments().free_stripe(&record),
                Garbage::Segment(segment) => self.stripes.segments().remove(segment),
                Garbage::File(segment, member) => {
                    self.stripes.segments().remove_file(segment, member);
                    files += 1;
                }
            }
            queues.freed += 1;
        }
        if queues.freed > freed_before && self.stripes.writer().is_stuck() {
            self.stripes.writer().retry();
        }
    }

    fn remove_dead(&self, queues: &mut Queues) -> Result<(), CommitError> {
        while let Some(suspect) = queues.suspects.front()
            && self.commits.group.has_ended(suspect.covered_by)
            && self.stripes.pins().has_passed(suspect.pinned_until)
        {
            let stripe = suspect.stripe;
            self.remove_stripe(queues, stripe)?;
            queues.suspects.pop_front();
            queues.suspected.remove(&stripe);
            self.candidates.lock().forget(stripe);
        }
        Ok(())
    }

    fn remove_stripe(&self, queues: &mut Queues, stripe: StripeId) -> Result<(), CommitError> {
        if let Some(record) = self.records.stripe(stripe)?
            && let Some(segment) = self.stripes.segments().record(record.segment)
        {
            let whole = self.is_alone_in_segment(&record)?;
            self.records.remove(stripe, &record, &segment, whole)?;
            self.stripes.damage().unrecoverable().forget(stripe);
            let garbage = if whole {
                Garbage::Segment(record.segment)
            } else {
                Garbage::Stripe(record)
            };
            queues
                .garbage
                .push_back((self.commits.group.next(), garbage));
        }
        // After the records: a mark without a stripe is harmless, the opposite is a leak.
        let mut batch = Batch::default();
        batch.delete(key::perhaps_dead(stripe));
        Ok(self.meta.apply(batch)?)
    }

    /// Returns whether a stripe is the last one of a segment that takes no more.
    fn is_alone_in_segment(&self, record: &Stripe) -> Result<bool, CommitError> {
        // First, because a stripe that is added to a segment is listed before the writing of the segment ends.
        if self.stripes.segments().is_writing(record.segment) {
            return Ok(false);
        }
        let (from, end) = key::segment_stripes(record.segment);
        Ok(self.meta.scan(&from, &end, 2)?.len() <= 1)
    }

    fn remove_empty_segments(&self, queues: &mut Queues) -> Result<(), CommitError> {
        queues.closed_segments.extend(self.records.take_finished());
        for segment in std::mem::take(&mut queues.closed_segments) {
            if self.stripes.segments().is_writing(segment) {
                queues.closed_segments.push(segment);
                continue;
            }
            let (from, end) = key::segment_stripes(segment);
            let is_known = self.meta.get(&key::segment(segment))?.is_some();
            if is_known && self.meta.scan(&from, &end, 1)?.is_empty() {
                self.records.remove_segment(segment)?;
                queues
                    .garbage
                    .push_back((self.commits.group.next(), Garbage::Segment(segment)));
            }
        }
        Ok(())
    }

    /// Marks stripes without a backref and without a mark. A crash came between their record and the extents that would
    /// have named them. All of them are from before the mount.
    fn audit(&self, queues: &mut Queues) -> Result<(), CommitError> {
        let Some(from) = queues.audit_from.take() else {
            return Ok(());
        };
        let (_, end) = key::stripes();
        let found = self.meta.scan(&from, &end, AUDITED_AT_ONCE)?;
        for (found, _) in &found {
            let stripe = key::parse_stripe(found)?;
            if !self.stripes.writer().is_busy(stripe) && !self.catalog.has_backref(stripe)? {
                self.mark(stripe)?;
            }
        }
        if let Some((last, _)) = found.last() {
            queues.audit_from = Some(successor(last));
        }
        Ok(())
    }

    fn look_at_marks(&self, queues: &mut Queues) -> Result<(), CommitError> {
        let (first, end) = key::all_perhaps_dead();
        let from = queues.marks_from.take().unwrap_or(first);
        let marks = self.meta.scan(&from, &end, MARKS_AT_ONCE)?;
        for (mark, _) in &marks {
            let stripe = key::parse_perhaps_dead(mark)?;
            if !queues.suspected.contains(&stripe) && !self.stripes.writer().is_busy(stripe) {
                self.look_at(queues, stripe)?;
            }
        }
        if marks.len() == MARKS_AT_ONCE {
            queues.marks_from = marks.last().map(|(last, _)| successor(last));
        }
        Ok(())
    }

    fn look_at(&self, queues: &mut Queues, stripe: StripeId) -> Result<(), CommitError> {
        // The mark goes before the look: a thread that removes a backref after the look marks again.
        let mut batch = Batch::default();
        batch.delete(key::perhaps_dead(stripe));
        self.meta.apply(batch)?;
        if self.catalog.has_backref(stripe)? {
            self.candidates.lock().add(stripe);
            return Ok(());
        }
        if self.records.stripe(stripe)?.is_none() {
            return Ok(());
        }
        self.mark(stripe)?;
        queues.suspected.insert(stripe);
        queues.suspects.push_back(Suspect {
            stripe,
            covered_by: self.commits.group.next(),
            pinned_until: self.stripes.pins().fence(),
        });
        Ok(())
    }

    fn mark(&self, stripe: StripeId) -> Result<(), CommitError> {
        let mut batch = Batch::default();
        batch.put(key::perhaps_dead(stripe), Marker.encode());
        Ok(self.meta.apply(batch)?)
    }
}
