//! Copies of the readable stripes of a segment that has unreadable ones, or records that do not agree.
//!
//! The slots of such a segment stay as they are. The live bytes of its readable stripes are copied into new ones on the
//! online members, as compaction does, and the old ones die. The others stay where they are as long as something refers
//! to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::outcome::SegmentOutcome;
use super::round::Round;
use crate::format::record::{Segment, Stripe};
use crate::format::{MemberIndex, SegmentId, ShardIndex, StripeId};
use crate::maintenance::compaction::Compaction;
use crate::maintenance::pace::PacedStep;
use crate::maintenance::reaper::Reaper;
use crate::maintenance::rebuild_status::Obstacle;
use crate::maintenance::rebuild_status::RebuildStatus;
use crate::maintenance::room::has_room;
use crate::membership::Members;
use crate::stripes::{Stripes, Tally, member_of};
use crate::transaction::CommitError;
use crate::transaction::catalog::Catalog;
use crate::transaction::foreground::Foreground;

/// Stripe that is worth copying.
#[derive(Clone, Copy, Debug)]
struct Endangered {
    stripe: StripeId,
    payload_bytes: usize,
    /// Bytes of all its shards.
    shard_bytes: u64,
    /// Bytes of the shards that it lacks.
    lacking_bytes: u64,
}

/// Copying of readable stripes out of segments that cannot be rebuilt.
pub(super) struct CopyOut {
    pub(super) members: Arc<Members>,
    pub(super) stripes: Arc<Stripes>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) foreground: Arc<Foreground>,
    pub(super) status: Arc<RebuildStatus>,
    pub(super) compaction: Arc<Compaction>,
    pub(super) reaper: Arc<Reaper>,
}

impl CopyOut {
    /// Copies the readable stripes of a segment into new ones, if they lack shards that the new ones would have.
    pub(super) fn copy(
        &self,
        segment: SegmentId,
        round: &Round<'_>,
    ) -> Result<SegmentOutcome, CommitError> {
        let nothing = Ok(SegmentOutcome::Blocked(Obstacle::Unreadable));
        let Some(locks) = round.locks else {
            return nothing;
        };
        let capacity = self.stripes.writer().stripe_capacity();
        let endangered = self.endangered_in(segment)?;
        let mut copied = false;
        for stripes in packs(&endangered, capacity) {
            // The room kept back is not for this, because copying frees no space on the full members.
            if !has_room(&self.stripes, capacity as u64) {
                if copied {
                    break;
                }
                return Ok(SegmentOutcome::Blocked(Obstacle::NoRoom));
            }
            let step = PacedStep::begin(&self.foreground);
            let victims = stripes.iter().map(|found| found.stripe).collect();
            match self.compaction.move_stripes(victims, locks) {
                Err(CommitError::NoSpace) if copied => break,
                Err(CommitError::NoSpace) => return Ok(SegmentOutcome::Blocked(Obstacle::NoRoom)),
                moved => moved?,
            };
            let mut bytes = 0;
            for found in stripes {
                if !self.catalog.has_backref(found.stripe)? {
                    copied = true;
                    bytes += found.lacking_bytes;
                }
            }
            self.status.add_written(bytes, 0, round.elapsed());
            let written = stripes.iter().map(|found| found.shard_bytes).sum();
            if !step.rest(round.pace, written) {
                return Ok(SegmentOutcome::Stopped);
            }
        }
        if !copied {
            return nothing;
        }
        // The next plan must not count the old stripes.
        self.reaper.free_dead()?;
        Ok(SegmentOutcome::Improved)
    }

    /// Returns the stripes of a segment that something refers to and that tolerate fewer losses than new ones would,
    /// the worst first.
    fn endangered_in(&self, segment: SegmentId) -> Result<Vec<Endangered>, CommitError> {
        let found = self.stripes.inventory().files_of(segment);
        let (Some(record), Some(files)) = (self.stripes.segments().record(segment), found) else {
            return Ok(Vec::new());
        };
        let draining = self.members.membership().draining();
        let online = self.members.membership().live().into_iter();
        let homes = online.filter(|member| !draining.contains(member)).count();
        let shape = self.members.shape();
        let vacant = shape.geometry().total_shards().saturating_sub(homes);
        let attainable = shape.survival().after(vacant);
        let mut endangered = Vec::new();
        // A stripe that reads serve is copied even where the records of others do not agree with it.
        let stripes: BTreeMap<StripeId, Stripe> = self
            .catalog
            .listed_in(segment)?
            .stripes
            .into_iter()
            .collect();
        for (id, stripe) in stripes {
            let tally = |counts: &dyn Fn(MemberIndex) -> bool| tally_of(&record, &stripe, counts);
            let online = tally(&|member| files.hold(member, &stripe));
            let staying =
                tally(&|member| files.hold(member, &stripe) && !draining.contains(&member));
            let is_worth_it =
                online.losses_tolerated() >= 0 && staying.losses_tolerated() < attainable;
            if is_worth_it && !self.stripes.writer().is_busy(id) && self.catalog.has_backref(id)? {
                let lacking = staying.existing.saturating_sub(staying.present) as u64;
                let height = u64::from(stripe.height);
                let found = Endangered {
                    stripe: id,
                    payload_bytes: stripe.payload_len as usize,
                    shard_bytes: staying.existing as u64 * height,
                    lacking_bytes: lacking * height,
                };
                endangered.push((staying.losses_tolerated(), found));
            }
        }
        endangered.sort_by_key(|(tolerated, _)| *tolerated);
        Ok(endangered.into_iter().map(|(_, found)| found).collect())
    }
}

fn tally_of(segment: &Segment, stripe: &Stripe, counts: &dyn Fn(MemberIndex) -> bool) -> Tally {
    let is_there = |shard: ShardIndex| {
        stripe.written.contains(shard) && member_of(segment, stripe, shard).is_some_and(counts)
    };
    Tally::of(segment, stripe, is_there)
}

/// Divides stripes into groups of which each fits into one new stripe.
fn packs(stripes: &[Endangered], capacity: usize) -> Vec<&[Endangered]> {
    let mut packs = Vec::new();
    let (mut first, mut bytes) = (0, 0);
    for (at, found) in stripes.iter().enumerate() {
        if at > first && bytes + found.payload_bytes > capacity {
            packs.push(&stripes[first..at]);
            (first, bytes) = (at, 0);
        }
        bytes += found.payload_bytes;
    }
    if first < stripes.len() {
        packs.push(&stripes[first..]);
    }
    packs
}
