//! The stripes of the segments, some megabytes at a time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::super::compaction::{Floor, InodeLocks, Rewritten};
use super::super::pace::Pace;
use super::Scrubber;
use super::passed::{DefectCounts, Passed, add_counted, add_defects};
use super::{MAX_REST, batch_bytes};
use crate::format::record::{LostBytes, Scrub, SegmentStripe, ShardSet};
use crate::format::{Record, SegmentId, StripeId, key};
use crate::metadata::Batch;
use crate::stripes::{Remedy, Verdict};
use crate::transaction::CommitError;
use crate::transaction::catalog::successor;

/// The most stripes inspected at once.
const STRIPES_AT_ONCE: usize = 512;

/// Stripes that lie one after the other in a segment.
pub(super) struct StripeRun {
    /// The stripes with a backref.
    pub(super) live: Vec<StripeId>,
    /// The offset at which the next run may begin.
    pub(super) end: u64,
    /// Set if the segment has more.
    pub(super) has_more: bool,
}

impl Scrubber {
    /// Scrubs the next stripes, as many as this rate allows at once. Returns false if none are left.
    pub(super) fn scrub_stripes(
        &self,
        scrub: &mut Scrub,
        bytes_per_second: Option<u64>,
        locks: &dyn InodeLocks,
    ) -> Result<bool, CommitError> {
        let segments = self
            .stripes
            .segments()
            .records()
            .into_iter()
            .map(|(id, _)| id);
        let Some(segment) = segments
            .filter(|id| (scrub.segment..scrub.end).contains(id))
            .min()
        else {
            return self.scrub_again(scrub, bytes_per_second, locks);
        };
        if segment > scrub.segment {
            (scrub.segment, scrub.offset) = (segment, 0);
        }
        let (passed, next) = self.pass_stripes(segment, scrub.offset, bytes_per_second, locks)?;
        (scrub.segment, scrub.offset) = match next {
            Some(offset) => (segment, offset),
            None => (SegmentId(segment.0.saturating_add(1)), 0),
        };
        add_counted(scrub, &passed.counted);
        self.note_found_on(passed.found.clone());
        self.passed.note(segment, passed);
        Ok(true)
    }

    /// Inspects the stripes of a segment from an offset on, as many as this rate allows at once. Returns the outcome,
    /// and the offset to continue at if the segment has more.
    pub(super) fn pass_stripes(
        &self,
        segment: SegmentId,
        from: u64,
        bytes_per_second: Option<u64>,
        locks: &dyn InodeLocks,
    ) -> Result<(Passed, Option<u64>), CommitError> {
        // Before anything is read or written: a file that was opened earlier need not be the one that has the name.
        self.stripes.writer().close_replaced_files(segment);
        let mut passed = Passed::default();
        let rest = |pause| self.rest_of_scrub(pause);
        let pace = Pace {
            bytes_per_second: &AtomicU64::new(bytes_per_second.unwrap_or(0)),
            wait: &rest,
        };
        let restored = self.rebuild.restore_files(segment, &pace)?;
        passed.counted.repaired += restored.values().sum::<u64>();
        add_defects(&mut passed.found, restored);
        // Taken before the search for backrefs, so that no stripe of the run is freed meanwhile.
        let pin = self.stripes.pins().pin();
        let run = self.next_run(segment, from, batch_bytes(bytes_per_second))?;
        let before = self
            .stripes
            .segments()
            .record(segment)
            .map(|record| record.slots);
        let verdicts = self
            .stripes
            .inspector()
            .inspect(&run.live, Remedy::Repair)?;
        let after = self
            .stripes
            .segments()
            .record(segment)
            .map(|record| record.slots);
        if before != after {
            // The segment moved to other members meanwhile. Shards that were not found may be there.
            return Ok((passed, Some(from)));
        }
        self.note_lost(&verdicts)?;
        for verdict in &verdicts {
            let add = |pieces: &mut DefectCounts, shards: &ShardSet| -> Result<(), CommitError> {
                let holders = self.holders_of(segment, verdict.stripe, shards)?;
                add_defects(pieces, holders.into_iter().map(|member| (member, 1)));
                Ok(())
            };
            add(&mut passed.found, &verdict.found)?;
            add(&mut passed.unread, &verdict.unread)?;
        }
        drop(pin);
        for verdict in &verdicts {
            self.count_verdict(&mut passed, verdict, locks)?;
        }
        Ok((passed, run.has_more.then_some(run.end)))
    }

    /// Counts the outcome of the inspection of a stripe. Rewrites a stripe whose parity does not match its data. Also
    /// rewrites a stripe whose unrecoverable ranges no file holds. All shards of the new stripe are right. Bytes stay where
    /// they are if they would survive fewer losses in it than with the shards of the old one that can be trusted.
    fn count_verdict(
        &self,
        passed: &mut Passed,
        verdict: &Verdict,
        locks: &dyn InodeLocks,
    ) -> Result<(), CommitError> {
        let stripe = verdict.stripe;
        let scrub = &mut passed.counted;
        scrub.bytes += verdict.bytes;
        scrub.repaired += verdict.repaired;
        let lost = self.catalog.live_within(stripe, &verdict.lost)?;
        let wrong = wrong_in(verdict) + u64::from(verdict.inconsistent.is_some());
        if let Some(inconsistent) = &verdict.inconsistent {
            tracing::warn!("{inconsistent}; its bytes are to be rewritten");
        }
        let is_loss_dead = verdict.is_lost_for_good && !verdict.lost.is_empty() && lost == 0;
        if is_loss_dead {
            tracing::warn!(
                %stripe,
                "parity cannot replace bytes that no file holds any more; the rest is to be rewritten"
            );
        }
        let is_to_move = is_loss_dead || verdict.inconsistent.is_some();
        // The other shards of a stripe with dead losses are right.
        let floor = match &verdict.inconsistent {
            Some(inconsistent) => Floor::Trusted(inconsistent.suspects),
            None => Floor::Written,
        };
        if is_to_move {
            match self.compaction.rewrite(stripe, locks, floor)? {
                Rewritten::Whole => {
                    scrub.repaired += wrong.max(1);
                    return Ok(());
                }
                Rewritten::Waits { lacks_space } => {
                    passed.waiting += 1;
                    passed.lacks_space |= lacks_space;
                    tracing::warn!(
                        %stripe,
                        "not rewritten: with the members and the room there are, its bytes would survive fewer losses; a later \
                         scrub tries again"
                    );
                }
                Rewritten::No => {}
            }
        }
        scrub.wrong += wrong;
        scrub.missing += verdict.missing + verdict.gone;
        scrub.lost += lost;
        Ok(())
    }

    /// Waits. Returns whether the scrub has to continue.
    fn rest_of_scrub(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        let is_to_stop = || self.is_to_stop.load(Ordering::SeqCst);
        while Instant::now() < until && !is_to_stop() {
            std::thread::sleep(MAX_REST.min(until.saturating_duration_since(Instant::now())));
        }
        !is_to_stop()
    }

    pub(super) fn next_run(
        &self,
        segment: SegmentId,
        from: u64,
        most_bytes: u64,
    ) -> Result<StripeRun, CommitError> {
        let (_, end) = key::segment_stripes(segment);
        let from = key::segment_stripe(segment, from);
        let total = self
            .stripes
            .segments()
            .record(segment)
            .map_or(1, |record| record.slots.len() as u64);
        let found = self.meta.scan(&from, &end, STRIPES_AT_ONCE)?;
        let mut run = StripeRun {
            live: Vec::new(),
            end: 0,
            has_more: false,
        };
        let mut bytes = 0;
        for (place, value) in &found {
            let (_, offset) = key::parse_segment_stripe(place)?;
            let SegmentStripe(stripe) = SegmentStripe::decode(value)?;
            let height = self
                .records
                .stripe(stripe)?
                .map_or(0, |record| record.height);
            bytes += u64::from(height) * total;
            if bytes > most_bytes && !run.live.is_empty() {
                run.end = offset;
                run.has_more = true;
                return Ok(run);
            }
            if self.catalog.has_backref(stripe)? {
                run.live.push(stripe);
            }
        }
        if let Some((last, _)) = found.last() {
            let next = successor(last);
            run.has_more = !self.meta.scan(&next, &end, 1)?.is_empty();
            run.end = key::parse_segment_stripe(last)?.1.saturating_add(1);
        }
        Ok(run)
    }

    /// Notes which bytes of some stripes are lost, no matter which members return.
    fn note_lost(&self, verdicts: &[Verdict]) -> Result<(), CommitError> {
        let mut batch = Batch::default();
        for verdict in verdicts {
            let key = key::lost(verdict.stripe);
            if verdict.is_lost_for_good {
                batch.put(key, LostBytes(verdict.lost.clone()).encode());
            } else if self.meta.get(&key)?.is_some() {
                batch.delete(key);
            }
        }
        if batch.iter().next().is_none() {
            return Ok(());
        }
        Ok(self.meta.apply_stripes(batch)?)
    }
}

/// Returns how many shards are in their files, and wrong.
fn wrong_in(verdict: &Verdict) -> u64 {
    (verdict.wrong.len() as u64).saturating_sub(verdict.gone)
}
