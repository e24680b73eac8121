//! What a scrub found on its way, put as it is when the scrub is through.
//!
//! Members come and go while everything is read, and what they take with them is rebuilt elsewhere. So segments
//! with shards that could not be read or mended when they were passed are passed once more at the end, and what is
//! reported is how it is then. What could not be read then either, though its member is at hand, is not verified.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::super::{CommitError, InodeLocks, Pipeline};
use crate::format::record::Scrub;
use crate::format::{MemberIndex, SegmentId};

/// Pieces of members.
pub(super) type Pieces = BTreeMap<MemberIndex, u64>;

/// What passing stripes of a segment came to.
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// What adds up in the record of the scrub, as it was then.
    pub(super) counted: Scrub,
    /// Shards that were wrong, or gone, mended or not.
    pub(super) found: Pieces,
    /// Shards that were written and could not be verified.
    pub(super) unread: Pieces,
    /// Whether it was passed once more already.
    is_again: bool,
}

impl Passed {
    fn add(&mut self, other: Self) {
        add_counted(&mut self.counted, &other.counted);
        add_pieces(&mut self.found, other.found);
        add_pieces(&mut self.unread, other.unread);
    }

    /// Says whether it may come to something else if it is passed again.
    fn is_open(&self) -> bool {
        let Scrub {
            wrong,
            missing,
            lost,
            ..
        } = self.counted;
        (wrong, missing, lost) != (0, 0, 0) || !self.unread.is_empty()
    }
}

/// Adds what was counted to a record.
pub(super) fn add_counted(scrub: &mut Scrub, counted: &Scrub) {
    scrub.bytes += counted.bytes;
    scrub.repaired += counted.repaired;
    scrub.wrong += counted.wrong;
    scrub.missing += counted.missing;
    scrub.lost += counted.lost;
}

/// Adds pieces to others.
pub(super) fn add_pieces(all: &mut Pieces, pieces: impl IntoIterator<Item = (MemberIndex, u64)>) {
    for (member, pieces) in pieces {
        *all.entry(member).or_default() += pieces;
    }
}

/// Segments that were passed and not found whole. Forgotten when the volume is closed: what the record of a
/// scrub says of them stays as it is then.
#[derive(Debug, Default)]
pub(super) struct Unsettled(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    passed: BTreeMap<SegmentId, Passed>,
    again: Option<Again>,
    /// Shards that the last scrub which went through did not verify.
    unverified: u64,
}

/// A segment that is being passed once more.
#[derive(Debug)]
struct Again {
    segment: SegmentId,
    /// Where it goes on; `None` once it is through.
    from: Option<u64>,
    passed: Passed,
}

impl Unsettled {
    /// A scrub begins that has found nothing yet.
    pub(super) fn forget(&self) {
        *self.0.lock() = State::default();
    }

    /// Takes note of what passing stripes of a segment came to.
    pub(super) fn note(&self, segment: SegmentId, passed: Passed) {
        if passed.is_open() {
            let mut state = self.0.lock();
            state.passed.entry(segment).or_default().add(passed);
        }
    }
}

impl Pipeline {
    /// Passes the next stripes of segments that may not be as they were when they were passed. Returns false if
    /// there are none left.
    pub(super) fn scrub_again(
        &self,
        scrub: &mut Scrub,
        bytes_per_second: Option<u64>,
        locks: &dyn InodeLocks,
    ) -> Result<bool, CommitError> {
        let Some((segment, from)) = self.next_again() else {
            return Ok(false);
        };
        let (passed, next) = self.pass_stripes(segment, from, bytes_per_second, locks)?;
        scrub.bytes += passed.counted.bytes;
        scrub.repaired += passed.counted.repaired;
        let mut state = self.scrubbing.unsettled.0.lock();
        if let Some(again) = &mut state.again {
            again.from = next;
            again.passed.add(passed);
        }
        if next.is_none() {
            self.settle(scrub, &mut state);
        }
        Ok(true)
    }

    /// Returns where to go on with what is passed once more: each segment is that but once, whoever comes and goes.
    fn next_again(&self) -> Option<(SegmentId, u64)> {
        let mut state = self.scrubbing.unsettled.0.lock();
        let last = state.again.as_ref().map(|again| again.segment);
        let is_under_way = state.again.as_ref().and_then(|again| again.from);
        if let (Some(segment), Some(from)) = (last, is_under_way) {
            return Some((segment, from));
        }
        let is_due = |(segment, passed): (&SegmentId, &Passed)| {
            let is_due = passed.counted.wrong > 0 || !self.unread_now(*segment, passed).is_empty();
            (!passed.is_again && is_due).then_some(*segment)
        };
        let (before, after) = (..last.unwrap_or_default(), last.unwrap_or_default()..);
        let passed = &state.passed;
        let mut in_order = passed.range(after).chain(passed.range(before));
        let segment = in_order.find_map(is_due)?;
        state.again = Some(Again {
            segment,
            from: Some(0),
            passed: Passed::default(),
        });
        Some((segment, 0))
    }

    /// Has a segment that was passed once more count as it is now.
    fn settle(&self, scrub: &mut Scrub, state: &mut State) {
        let Some(again) = &mut state.again else {
            return;
        };
        let mut now = std::mem::take(&mut again.passed);
        let before = state.passed.remove(&again.segment).unwrap_or_default();
        let count = |all: &mut u64, before: u64, now: u64| *all = all.saturating_sub(before) + now;
        count(&mut scrub.wrong, before.counted.wrong, now.counted.wrong);
        count(
            &mut scrub.missing,
            before.counted.missing,
            now.counted.missing,
        );
        count(&mut scrub.lost, before.counted.lost, now.counted.lost);
        // What was found before is found once more, unless it was mended.
        let more = now.found.iter().map(|(member, pieces)| {
            let before = before.found.get(member).copied().unwrap_or_default();
            (*member, pieces.saturating_sub(before))
        });
        self.note_found_on(more);
        now.is_again = true;
        state.passed.insert(again.segment, now);
    }

    /// Returns which shards of a segment were not verified when it was passed, of members that hold it and are at hand
    /// now.
    fn unread_now(&self, segment: SegmentId, passed: &Passed) -> Pieces {
        if passed.unread.is_empty() {
            return Pieces::default();
        }
        let (live, record) = (self.members.live(), self.volume.segment(segment));
        let has = |member: &MemberIndex| {
            let slots = record.iter().flat_map(|record| record.slots.iter());
            live.contains(member) && slots.flatten().any(|holder| holder == member)
        };
        let unread = passed.unread.iter().filter(|(member, _)| has(member));
        unread.map(|(member, shards)| (*member, *shards)).collect()
    }

    /// Returns which shards a scrub that has gone through did not verify, of members that are at hand, and how many
    /// more of which nobody knows whose they are: what was passed before the volume was opened.
    pub(super) fn left_unread(&self, scrub: &Scrub) -> (Pieces, u64) {
        let state = self.scrubbing.unsettled.0.lock();
        let mut unread = Pieces::default();
        let mut remembered = 0;
        for (segment, passed) in &state.passed {
            add_pieces(&mut unread, self.unread_now(*segment, passed));
            remembered += passed.counted.missing;
        }
        let forgotten = scrub.missing.saturating_sub(remembered);
        (unread, forgotten)
    }

    /// Returns how many shards the last scrub that went through did not verify, though their members were at hand
    /// then; and all that it had not verified before the volume was opened, whose members are not known.
    #[must_use]
    pub fn unverified_by_scrub(&self) -> u64 {
        self.scrubbing.unsettled.0.lock().unverified
    }

    /// Puts into the record what is missing, or was not verified, and lost now.
    pub(super) fn count_what_is_left(&self, scrub: &mut Scrub) -> Result<(), CommitError> {
        let counted = self.redundancy()?;
        let missing = counted.missing_shards();
        let lost = self.lost_bytes_in(&counted)?;
        // Of what was passed before the volume was opened nobody knows whether it is the same that is missing now,
        // so that it counts twice then rather than not at all; or what of it is lost still.
        let (unread, of_nobody) = self.left_unread(scrub);
        let unverified = unread.values().sum::<u64>() + of_nobody;
        let mut state = self.scrubbing.unsettled.0.lock();
        state.unverified = unverified;
        let remembered: u64 = state
            .passed
            .values()
            .map(|passed| passed.counted.lost)
            .sum();
        drop(state);
        scrub.missing = missing + unverified;
        let is_all = counted.lists_all_lost() && scrub.lost <= remembered;
        scrub.lost = if is_all { lost } else { scrub.lost.max(lost) };
        Ok(())
    }
}
