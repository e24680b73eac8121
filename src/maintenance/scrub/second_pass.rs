//! The second pass of a scrub, which brings its findings up to date.
//!
//! Members come and go during a scrub, and shards of lost members are rebuilt elsewhere. So a scrub passes a segment
//! once more at the end if some of its shards could not be read or repaired. It reports the state found then. A shard
//! that cannot be read then either, though its member is online, is not verified.

use super::super::compaction::InodeLocks;
use super::Scrubber;
use super::passed::{Again, DefectCounts, Passed, Passes, add_defects};
use crate::format::record::Scrub;
use crate::format::{MemberIndex, SegmentId};
use crate::maintenance::stale_copies::Unread;
use crate::transaction::CommitError;

impl Scrubber {
    /// Passes the next stripes of segments that may have changed since they were passed. Returns false if there are
    /// none left.
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
        let mut state = self.passed.0.lock();
        if let Some(again) = &mut state.again {
            again.from = next;
            again.passed.add(passed);
        }
        if next.is_none() {
            self.finish_second_pass(scrub, &mut state);
        }
        Ok(true)
    }

    /// Returns where to go on with the second pass. Each segment is passed again only once, even if members come and
    /// go.
    fn next_again(&self) -> Option<(SegmentId, u64)> {
        let mut state = self.passed.0.lock();
        let last = state.again.as_ref().map(|again| again.segment);
        let is_under_way = state.again.as_ref().and_then(|again| again.from);
        if let (Some(segment), Some(from)) = (last, is_under_way) {
            return Some((segment, from));
        }
        let is_due = |(segment, passed): (&SegmentId, &Passed)| {
            let is_due = passed.counted.wrong + passed.waiting > 0
                || !self.unread_now(*segment, passed).is_empty();
            (!passed.is_second && is_due).then_some(*segment)
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

    /// Replaces the counts of a segment that was passed once more with those of now.
    fn finish_second_pass(&self, scrub: &mut Scrub, state: &mut Passes) {
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
        // The second pass finds the unrepaired defects of the first once more.
        let more = now.found.iter().map(|(member, pieces)| {
            let before = before.found.get(member).copied().unwrap_or_default();
            (*member, pieces.saturating_sub(before))
        });
        self.note_found_on(more);
        now.is_second = true;
        state.passed.insert(again.segment, now);
    }

    /// Returns which shards of a segment were not verified when it was passed, of online members that hold it now.
    fn unread_now(&self, segment: SegmentId, passed: &Passed) -> DefectCounts {
        if passed.unread.is_empty() {
            return DefectCounts::default();
        }
        let (live, record) = (
            self.members.membership().live(),
            self.stripes.segments().record(segment),
        );
        let has = |member: &MemberIndex| {
            let slots = record.iter().flat_map(|record| record.slots.iter());
            live.contains(member) && slots.flatten().any(|holder| holder == member)
        };
        let unread = passed.unread.iter().filter(|(member, _)| has(member));
        unread.map(|(member, shards)| (*member, *shards)).collect()
    }

    /// Returns which shards a finished scrub did not verify, by online member. Returns also how many more there are
    /// without a known member: those passed before the volume was opened.
    pub(super) fn left_unread(&self, scrub: &Scrub) -> Unread {
        let state = self.passed.0.lock();
        let mut unread = DefectCounts::default();
        let mut remembered = 0;
        for (segment, passed) in &state.passed {
            add_defects(&mut unread, self.unread_now(*segment, passed));
            remembered += passed.counted.missing;
        }
        Unread {
            by_member: unread,
            of_unknown: scrub.missing.saturating_sub(remembered),
        }
    }

    /// Returns how many shards the last finished scrub did not verify, though their members were online then. Adds all
    /// that it had not verified before the volume was opened, whose members are not known.
    #[must_use]
    pub fn unverified_by_scrub(&self) -> u64 {
        self.passed.0.lock().unverified
    }

    /// Puts into the record the shards that are missing or were not verified, and the bytes that are lost now.
    pub(super) fn count_the_rest(&self, scrub: &mut Scrub) -> Result<(), CommitError> {
        let counted = self.redundancy.redundancy()?;
        let missing = counted.missing_shards();
        let lost = self.redundancy.lost_bytes_in(&counted)?;
        // Shards passed before the volume was opened may be the same ones that are missing now: they count twice then
        // rather than not at all. It is not known either which of them are still lost.
        let unread = self.left_unread(scrub);
        let unverified = unread.by_member.values().sum::<u64>() + unread.of_unknown;
        let mut state = self.passed.0.lock();
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
