//! The work on one segment.

use std::collections::{BTreeSet, HashMap};

use super::plan::{self, SegmentPlan};
use crate::format::record::{Segment, ShardSet, Stripe};
use crate::format::{MemberIndex, SegmentId, StripeId};
use crate::stripes::{FileLengths, IncompleteStripe, LostShard, RebuildTarget};

/// Work on one segment: the shards to write, and the members that get them.
pub(super) struct SegmentJob {
    pub(super) segment: SegmentId,
    pub(super) record: Segment,
    /// The slots, and the members that get their shards.
    pub(super) targets: Vec<RebuildTarget>,
    /// The stripes that lack shards, in disk order.
    pub(super) stripes: Vec<IncompleteStripe>,
    /// All its stripes, in disk order.
    pub(super) all: Vec<(StripeId, Stripe)>,
    /// The shards that a record calls written although their files lack them.
    pub(super) missing: Vec<LostShard>,
}

impl SegmentJob {
    /// Returns the job of writing what `targets` lack, by the `files` of the segment. Leaves out targets that lack
    /// nothing.
    pub(super) fn new(
        segment: SegmentId,
        record: Segment,
        all: Vec<(StripeId, Stripe)>,
        files: &FileLengths,
        targets: Vec<RebuildTarget>,
    ) -> Self {
        let mut job = Self {
            segment,
            record,
            targets,
            stripes: Vec::new(),
            all,
            missing: Vec::new(),
        };
        let mut incomplete = BTreeSet::new();
        for &(stripe, record) in &job.all {
            let mut shards = ShardSet::default();
            for target in &job.targets {
                let Some(shard) = plan::shard_in(&job.record, &record, target.slot) else {
                    continue;
                };
                if job.is_moved(target) || !record.written.contains(shard) {
                    shards.insert(shard);
                } else if !files.hold(target.member, &record) {
                    shards.insert(shard);
                    job.missing.push(LostShard { stripe, shard });
                } else {
                    continue;
                }
                incomplete.insert(target.slot);
            }
            if !shards.is_empty() {
                job.stripes.push(IncompleteStripe {
                    stripe,
                    record,
                    shards,
                });
            }
        }
        let mut targets = std::mem::take(&mut job.targets);
        let lacks_file = |target: &RebuildTarget| files.len(target.member) < Some(job.record.len);
        targets.retain(|target| {
            job.is_moved(target) || incomplete.contains(&target.slot) || lacks_file(target)
        });
        job.targets = targets;
        job
    }

    /// Returns the members that get a file of the segment and had none.
    pub(super) fn newcomers(&self) -> impl Iterator<Item = MemberIndex> + '_ {
        let targets = self.targets.iter().map(|target| target.member);
        targets.filter(|member| !self.record.slots.contains(&Some(*member)))
    }

    /// Returns whether the slot of a target moves to another member.
    pub(super) fn is_moved(&self, target: &RebuildTarget) -> bool {
        self.record.slots[target.slot] != Some(target.member)
    }

    /// Returns the part of some written bytes that leaves online members, by the number of slots: all slots of a segment
    /// take the same.
    pub(super) fn moved_part(&self, plan: &SegmentPlan, online: &[MemberIndex], bytes: u64) -> u64 {
        let holder = |target: &RebuildTarget| self.record.slots[target.slot];
        let moves = self.targets.iter().filter(|target| {
            let is_left = holder(target).is_some_and(|holder| online.contains(&holder));
            is_left && plan.moves.contains(&target.slot)
        });
        bytes * moves.count() as u64 / self.targets.len().max(1) as u64
    }

    /// Removes the missing shards from the known records of the stripes.
    pub(super) fn forget_missing(&mut self) {
        let mut missing: HashMap<StripeId, ShardSet> = HashMap::new();
        for lost in &self.missing {
            missing.entry(lost.stripe).or_default().insert(lost.shard);
        }
        for incomplete in &mut self.stripes {
            for shard in missing
                .get(&incomplete.stripe)
                .iter()
                .flat_map(|shards| shards.iter())
            {
                incomplete.record.written.remove(shard);
            }
        }
    }

    /// Returns the incomplete stripes with a shard for a target.
    pub(super) fn stripes_for(&self, target: &RebuildTarget) -> Vec<IncompleteStripe> {
        let has_shard = |incomplete: &&IncompleteStripe| {
            let shard = plan::shard_in(&self.record, &incomplete.record, target.slot);
            shard.is_some_and(|shard| incomplete.shards.contains(shard))
        };
        self.stripes.iter().filter(has_shard).copied().collect()
    }

    /// Returns the slots as they will be.
    pub(super) fn slots(&self) -> Vec<Option<MemberIndex>> {
        let mut slots = self.record.slots.clone();
        for target in &self.targets {
            slots[target.slot] = Some(target.member);
        }
        slots
    }
}
