//! Restoring of single segment files that are gone or too short, for a scrub that finds them.

use std::collections::BTreeMap;

use super::Rebuild;
use super::outcome::SegmentOutcome;
use super::plan::{self, SegmentPlan};
use super::round::Round;
use super::scope::RebuildScope;
use crate::format::{MemberIndex, SegmentId};
use crate::maintenance::pace::Pace;
use crate::stripes::LostShard;
use crate::transaction::CommitError;

impl Rebuild {
    /// Rewrites the missing bytes of files of a segment that are gone or too short, each on its member. Returns the
    /// number of restored shards of each member. Does nothing during a rebuild, which does the same.
    ///
    /// The file is durable before a record says so. Until then a newly created file counts for nothing.
    pub(in crate::maintenance) fn restore_files(
        &self,
        segment: SegmentId,
        pace: &Pace<'_>,
    ) -> Result<BTreeMap<MemberIndex, u64>, CommitError> {
        let slots = self.slots_without_file(segment);
        if slots.is_empty() {
            return Ok(BTreeMap::new());
        }
        let Some(_working) = self.working.try_lock() else {
            return Ok(BTreeMap::new());
        };
        let plan = SegmentPlan::of_files(segment, slots.iter().copied());
        self.close_segments(std::slice::from_ref(&plan))?;
        let lost = self.written_shards_without_file(segment, &slots)?;
        let mut round = Round::new(RebuildScope::Everything, pace, None);
        // The reported progress belongs to the last rebuild, not to this work.
        let reported = self.status.progress();
        let outcome = self.segments.rebuild(&plan, &mut round);
        self.status.replace(reported);
        if outcome? != SegmentOutcome::Improved {
            return Ok(BTreeMap::new());
        }
        let mut restored = BTreeMap::new();
        for (member, LostShard { stripe, shard }) in lost {
            let record = self.records.stripe(stripe)?;
            if record.is_some_and(|record| record.written.contains(shard)) {
                self.members.io().count_wrong(member, 1);
                *restored.entry(member).or_default() += 1;
            }
        }
        Ok(restored)
    }

    /// Returns the slots of a segment whose members are online, but have no file of its length.
    fn slots_without_file(&self, segment: SegmentId) -> Vec<usize> {
        let found = self.stripes.inventory().files_of(segment);
        let (Some(record), Some(files)) = (self.stripes.segments().record(segment), found) else {
            return Vec::new();
        };
        let lacks_file = |slot: &usize| {
            let member = record.slots[*slot].filter(|member| files.are_known_of(*member));
            member.is_some_and(|member| files.len(member) < Some(record.len))
        };
        (0..record.slots.len()).filter(lacks_file).collect()
    }

    /// Returns the shards in some slots that their records call written although the files lack them, with the members
    /// that should have them.
    fn written_shards_without_file(
        &self,
        segment: SegmentId,
        slots: &[usize],
    ) -> Result<Vec<(MemberIndex, LostShard)>, CommitError> {
        let found = self.stripes.inventory().files_of(segment);
        let (Some(record), Some(files)) = (self.stripes.segments().record(segment), found) else {
            return Ok(Vec::new());
        };
        let mut lost = Vec::new();
        for (id, stripe) in self.catalog.stripes_in(segment)?.unwrap_or_default() {
            for &slot in slots {
                let shard = plan::shard_in(&record, &stripe, slot)
                    .filter(|shard| stripe.written.contains(*shard));
                let holder = record.slots[slot].filter(|member| !files.hold(*member, &stripe));
                lost.extend(
                    holder
                        .zip(shard)
                        .map(|(member, shard)| (member, LostShard { stripe: id, shard })),
                );
            }
        }
        Ok(lost)
    }
}
