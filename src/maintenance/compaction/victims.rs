//! The stripes that are most worth moving.

use std::collections::BTreeSet;

use super::moves::alignment;
use super::{CANDIDATES_AT_ONCE, Compaction, Effort, MAX_LIVE, VICTIMS_AT_ONCE};
use crate::format::record::Stripe;
use crate::format::{StripeId, key};
use crate::maintenance::candidates::Rank;
use crate::stripes::{Tally, member_of};
use crate::transaction::CommitError;
use crate::transaction::catalog::successor;

impl Compaction {
    /// Returns the stripes most worth moving: of those known to have lost bytes, or else of those that a survey finds.
    pub(super) fn find_victims(&self, effort: Effort) -> Result<Vec<StripeId>, CommitError> {
        for _ in 0..effort.counts {
            let counted = self.count_candidates()?;
            let victims = self
                .candidates
                .lock()
                .best(effort.max_live, VICTIMS_AT_ONCE);
            if !victims.is_empty() || (!counted && !self.survey()?) {
                return Ok(victims);
            }
        }
        Ok(Vec::new())
    }

    /// Counts the live bytes of some candidates. Returns whether there were any for which they are not known.
    fn count_candidates(&self) -> Result<bool, CommitError> {
        let stripes = self.candidates.lock().take_unranked(CANDIDATES_AT_ONCE);
        let mut counted = false;
        for (done, &stripe) in stripes.iter().enumerate() {
            if self.stripes.writer().is_busy(stripe) {
                self.candidates.lock().add(stripe);
                continue;
            }
            counted = true;
            let rank = self.rank_of(stripe).inspect_err(|_| {
                let mut candidates = self.candidates.lock();
                stripes[done..]
                    .iter()
                    .for_each(|&left| candidates.add(left));
            })?;
            if (1..=MAX_LIVE).contains(&rank.live) {
                self.candidates.lock().rank(stripe, rank);
            }
        }
        Ok(counted)
    }

    /// Returns the rank of a stripe. A removed stripe has no live part.
    fn rank_of(&self, stripe: StripeId) -> Result<Rank, CommitError> {
        let record = self.records.stripe(stripe)?;
        let held = record.map_or(0, |record| u64::from(record.payload_len));
        let live = self.live_bytes(stripe)?;
        Ok(Rank {
            is_whole: record.is_none_or(|record| self.is_whole(&record)),
            live: (live * 1000).checked_div(held).unwrap_or(0),
        })
    }

    /// Returns whether all shards of a stripe were written, and their members are online.
    fn is_whole(&self, record: &Stripe) -> bool {
        let Some(segment) = self.stripes.segments().record(record.segment) else {
            return true;
        };
        let live = self.members.membership().live();
        let is_there = |shard| {
            let member = member_of(&segment, record, shard);
            record.written.contains(shard) && member.is_some_and(|member| live.contains(&member))
        };
        Tally::of(&segment, record, is_there).is_whole()
    }

    /// Makes candidates of the next stripes in the order of their numbers. Returns false once the survey has passed all
    /// stripes from before the mount: those that lost bytes since are known.
    fn survey(&self) -> Result<bool, CommitError> {
        let Some(from) = self.candidates.lock().survey_from.clone() else {
            return Ok(false);
        };
        let (_, end) = key::stripes();
        let found = self.meta.scan(&from, &end, CANDIDATES_AT_ONCE)?;
        let stripes: Vec<StripeId> = found
            .iter()
            .map(|(key, _)| key::parse_stripe(key))
            .collect::<Result<_, _>>()?;
        let mut candidates = self.candidates.lock();
        candidates.survey_from = match found.last() {
            Some((last, _)) if found.len() == CANDIDATES_AT_ONCE => Some(successor(last)),
            _ => None,
        };
        for stripe in stripes {
            candidates.add_unless_aside(stripe);
        }
        Ok(true)
    }

    /// Returns the space that the live bytes of a stripe need in another one, each counted once.
    fn live_bytes(&self, stripe: StripeId) -> Result<u64, CommitError> {
        let runs = self.live_runs(stripe)?;
        let places: BTreeSet<(u32, u64)> = runs
            .iter()
            .map(|run| (run.extent.stripe_offset, run.extent.len))
            .collect();
        Ok(places
            .into_iter()
            .map(|(offset, len)| len.next_multiple_of(alignment(offset) as u64))
            .sum())
    }
}
