//! Dropping parity shards of segments, because the volume has fewer of them by now.

use super::round::Round;
use super::widening;
use super::{PlanOutcome, Rebuild};
use crate::format::record::{Segment, Stripe};
use crate::format::{MemberIndex, SegmentId, ShardIndex, StripeId};
use crate::maintenance::pace::PacedStep;
use crate::stripes::{FileLengths, Tally, member_of, place_of};
use crate::transaction::CommitError;

impl Rebuild {
    /// Drops the parity shards that the code of the volume has no more, and frees their space.
    pub(super) fn narrow(&self, round: &Round<'_>) -> Result<PlanOutcome, CommitError> {
        let code = self.members.shape().stripe_code();
        let mut improved = false;
        for (segment, record) in self.stripes.segments().records() {
            if widening::narrowed(&record, code).is_none() {
                continue;
            }
            if (round.gives_way)() || self.members.membership().live() != round.online {
                return Ok(PlanOutcome::Outdated);
            }
            if self.stripes.segments().is_writing(segment) {
                continue;
            }
            let step = PacedStep::begin(&self.segments.foreground);
            improved |= self.narrow_segment(segment)?;
            if !step.rest(round.pace, 0) {
                return Ok(PlanOutcome::Stopped);
            }
        }
        Ok(PlanOutcome::Complete { improved })
    }

    /// Drops parity shards of one segment. Returns false if nothing was dropped: its records do not agree, or a stripe lacks
    /// one of the other shards, and needs these.
    fn narrow_segment(&self, segment: SegmentId) -> Result<bool, CommitError> {
        let code = self.members.shape().stripe_code();
        // Until the commit below, a crash brings back the record that names the dropped shards.
        let held = self.reaper.hold(segment);
        // The lock keeps others from removing, cutting or punching anything.
        let reaper = self.reaper.lock();
        let record = self.stripes.segments().record(segment);
        let narrow = record.as_ref().and_then(|it| widening::narrowed(it, code));
        let (Some(wide), Some(narrow)) = (record, narrow) else {
            return Ok(false);
        };
        let Some(stripes) = self.catalog.stripes_in(segment)? else {
            tracing::warn!("records of segment {segment} do not agree: its parity shards stay");
            return Ok(false);
        };
        let files = self.stripes.inventory().files_of(segment);
        let is_whole = |(id, stripe): &(StripeId, Stripe)| {
            let is_there = |shard: ShardIndex| {
                let member = member_of(&narrow, stripe, shard);
                let is_held = |files: &FileLengths| member.is_some_and(|it| files.hold(it, stripe));
                stripe.written.contains(shard) && files.as_ref().is_some_and(is_held)
            };
            let tally = Tally::of(&narrow, stripe, is_there);
            let lost = self.stripes.damage().unrecoverable();
            tally.present == tally.existing && !lost.overlaps(*id, &(0..stripe.payload_len))
        };
        if !stripes.iter().all(is_whole) {
            return Ok(false);
        }
        let numbers: Vec<StripeId> = stripes.iter().map(|(stripe, _)| *stripe).collect();
        let is_known = || {
            let segments = self.stripes.segments();
            segments.set_record(segment, narrow.clone());
        };
        self.records
            .drop_parity(segment, (&wide, &narrow), &numbers, is_known)?;
        drop(reaper);
        if let Err(error) = self.commits.sync() {
            held.keep();
            return Err(error);
        }
        // Only now does no record name the shards.
        self.stripes.segments().free_places(
            segment,
            stripes.iter().flat_map(|(_, stripe)| {
                let dropped = dropped_from(&wide, &narrow, stripe).into_iter();
                dropped.map(|member| (member, place_of(stripe)))
            }),
        );
        let mut reaper = self.reaper.lock();
        for member in wide.slots[narrow.slots.len()..].iter().flatten() {
            reaper.abandon_file(self.commits.group.next(), segment, *member);
        }
        Ok(true)
    }
}

/// Returns the members that keep a file of the segment, and held shards of a stripe that were dropped.
fn dropped_from(wide: &Segment, narrow: &Segment, stripe: &Stripe) -> Vec<MemberIndex> {
    let dropped = narrow.total_shards()..wide.total_shards();
    let dropped = dropped.filter_map(|shard| u8::try_from(shard).ok().map(ShardIndex));
    let holders = dropped.filter_map(|shard| member_of(wide, stripe, shard));
    holders
        .filter(|member| narrow.slots.contains(&Some(*member)))
        .collect()
}
