//! Giving back the space of dead stripes and empty segments.
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

use super::catalog::successor;
use super::group::CommitNumber;
use super::{CommitError, Pipeline};
use crate::format::record::{Marker, Stripe};
use crate::format::{MemberIndex, Record, SegmentId, StripeId, key};
use crate::meta::Batch;
use crate::volume::Moment;

/// Marks looked at in one go.
const MARKS_AT_ONCE: usize = 256;

/// Files of segments that are elsewhere now removed in one go: others wait for the reaper meanwhile.
const FILES_AT_ONCE: usize = 32;

/// Stripes audited in one go.
const AUDITED_AT_ONCE: usize = 64;

struct Suspect {
    stripe: StripeId,
    covered_by: CommitNumber,
    pinned_until: Moment,
}

enum Garbage {
    Stripe(Stripe),
    Segment(SegmentId),
    /// A file of a segment that moved to another member.
    File(SegmentId, MemberIndex),
}

/// The queues on the way from "perhaps dead" to free space.
#[derive(Default)]
pub(super) struct Reaper {
    suspects: VecDeque<Suspect>,
    suspected: BTreeSet<StripeId>,
    garbage: VecDeque<(CommitNumber, Garbage)>,
    /// Segments that take no more stripes and may have none.
    pub(super) closed_segments: Vec<SegmentId>,
    /// The next mark to look at.
    marks_from: Option<bytes::Bytes>,
    /// The next stripe to audit; `None` once all that a crash may have left unmarked were seen.
    audit_from: Option<bytes::Bytes>,
    /// Segments from before the mount that are still to be audited, once that has begun.
    pub(super) unaudited: Option<VecDeque<SegmentId>>,
    /// Pieces of space that were given back.
    pub(super) freed: u64,
}

impl Reaper {
    pub(super) fn new() -> Self {
        Self {
            audit_from: Some(key::stripes().0),
            ..Self::default()
        }
    }

    /// Returns whether something dead is on its way to being free space.
    pub(super) fn is_under_way(&self) -> bool {
        !self.suspects.is_empty() || !self.garbage.is_empty()
    }

    /// Returns whether space of a segment waits for a commit to be given back.
    pub(super) fn is_freeing(&self, segment: SegmentId) -> bool {
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

    /// Takes a file out of the queue again: the segment is about to move back to the member.
    pub(super) fn reclaim_file(&mut self, segment: SegmentId, member: MemberIndex) {
        let is_it = |garbage: &Garbage| matches!(garbage, Garbage::File(s, m) if (*s, *m) == (segment, member));
        self.garbage.retain(|(_, garbage)| !is_it(garbage));
    }
}

impl Pipeline {
    /// Takes every dead stripe and empty segment a step further on its way to being free space; call it about once a
    /// second. A later call, after a commit, frees what this one removes.
    ///
    /// # Errors
    ///
    /// If the index cannot be read or changed.
    pub fn reap(&self) -> Result<(), CommitError> {
        if self.commits.is_read_only() || self.commits.is_poisoned() {
            return Ok(());
        }
        // One at a time; only reapers and compaction wait for it.
        let mut reaper = self.reaper.lock();
        self.free_garbage(&mut reaper);
        self.remove_dead(&mut reaper)?;
        self.remove_empty_segments(&mut reaper)?;
        self.audit(&mut reaper)?;
        self.audit_segments(&mut reaper)?;
        self.look_at_marks(&mut reaper)
    }

    fn free_garbage(&self, reaper: &mut Reaper) {
        let freed_before = reaper.freed;
        let mut files = 0;
        while files < FILES_AT_ONCE
            && let Some((covered_by, _)) = reaper.garbage.front()
            && self.commits.group.has_ended(*covered_by)
            && let Some((_, garbage)) = reaper.garbage.pop_front()
        {
            match garbage {
                Garbage::Stripe(record) => self.volume.free_stripe(&record),
                Garbage::Segment(segment) => self.volume.remove_segment(segment),
                Garbage::File(segment, member) => {
                    self.volume.remove_file(segment, member);
                    files += 1;
                }
            }
            reaper.freed += 1;
        }
        if reaper.freed > freed_before && self.volume.is_stuck() {
            self.volume.retry();
        }
    }

    fn remove_dead(&self, reaper: &mut Reaper) -> Result<(), CommitError> {
        while let Some(suspect) = reaper.suspects.front()
            && self.commits.group.has_ended(suspect.covered_by)
            && self.volume.has_passed(suspect.pinned_until)
        {
            let stripe = suspect.stripe;
            self.remove_stripe(reaper, stripe)?;
            reaper.suspects.pop_front();
            reaper.suspected.remove(&stripe);
            self.candidates.lock().forget(stripe);
        }
        Ok(())
    }

    fn remove_stripe(&self, reaper: &mut Reaper, stripe: StripeId) -> Result<(), CommitError> {
        if let Some(record) = self.records.stripe(stripe)?
            && let Some(segment) = self.volume.segment(record.segment)
        {
            let whole = self.is_alone_in_segment(&record)?;
            self.records.remove(stripe, &record, &segment, whole)?;
            self.volume.forget_undecodable(stripe);
            let garbage = if whole {
                Garbage::Segment(record.segment)
            } else {
                Garbage::Stripe(record)
            };
            reaper
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
        // Asked first: a stripe added while it is being written is listed once it no longer is.
        if self.volume.is_writing(record.segment) {
            return Ok(false);
        }
        let (from, end) = key::segment_stripes(record.segment);
        Ok(self.meta.scan(&from, &end, 2)?.len() <= 1)
    }

    fn remove_empty_segments(&self, reaper: &mut Reaper) -> Result<(), CommitError> {
        reaper.closed_segments.extend(self.records.take_finished());
        for segment in std::mem::take(&mut reaper.closed_segments) {
            if self.volume.is_writing(segment) {
                reaper.closed_segments.push(segment);
                continue;
            }
            let (from, end) = key::segment_stripes(segment);
            let is_known = self.meta.get(&key::segment(segment))?.is_some();
            if is_known && self.meta.scan(&from, &end, 1)?.is_empty() {
                self.records.remove_segment(segment)?;
                reaper
                    .garbage
                    .push_back((self.commits.group.next(), Garbage::Segment(segment)));
            }
        }
        Ok(())
    }

    /// Marks stripes that have no backref and no mark: a crash came between their record and the extents that would
    /// have named them. All of them are from before the mount.
    fn audit(&self, reaper: &mut Reaper) -> Result<(), CommitError> {
        let Some(from) = reaper.audit_from.take() else {
            return Ok(());
        };
        let (_, end) = key::stripes();
        let found = self.meta.scan(&from, &end, AUDITED_AT_ONCE)?;
        for (found, _) in &found {
            let stripe = key::parse_stripe(found)?;
            if !self.volume.is_busy(stripe) && !self.catalog.has_backref(stripe)? {
                self.mark(stripe)?;
            }
        }
        if let Some((last, _)) = found.last() {
            reaper.audit_from = Some(successor(last));
        }
        Ok(())
    }

    fn look_at_marks(&self, reaper: &mut Reaper) -> Result<(), CommitError> {
        let (first, end) = key::all_perhaps_dead();
        let from = reaper.marks_from.take().unwrap_or(first);
        let marks = self.meta.scan(&from, &end, MARKS_AT_ONCE)?;
        for (mark, _) in &marks {
            let stripe = key::parse_perhaps_dead(mark)?;
            if !reaper.suspected.contains(&stripe) && !self.volume.is_busy(stripe) {
                self.look_at(reaper, stripe)?;
            }
        }
        if marks.len() == MARKS_AT_ONCE {
            reaper.marks_from = marks.last().map(|(last, _)| successor(last));
        }
        Ok(())
    }

    fn look_at(&self, reaper: &mut Reaper, stripe: StripeId) -> Result<(), CommitError> {
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
        reaper.suspected.insert(stripe);
        reaper.suspects.push_back(Suspect {
            stripe,
            covered_by: self.commits.group.next(),
            pinned_until: self.volume.moment(),
        });
        Ok(())
    }

    fn mark(&self, stripe: StripeId) -> Result<(), CommitError> {
        let mut batch = Batch::default();
        batch.put(key::perhaps_dead(stripe), Marker.encode());
        Ok(self.meta.apply(batch)?)
    }
}
