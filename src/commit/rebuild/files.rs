//! Restores files of one segment that are gone or too short, for a caller that finds them while it does other work.

use std::collections::BTreeMap;

use super::super::{CommitError, Pace, Pipeline};
use super::plan::{self, Need};
use super::{Round, Step, Which};
use crate::format::{MemberIndex, SegmentId};
use crate::volume::LostShard;

impl Pipeline {
    /// Rewrites the lacking bytes of files of a segment that are gone or too short, each on its member. Returns how
    /// many shards of each member are there again; none if a rebuild is under way, which does the same.
    ///
    /// The file is durable before a record says so. Until then a newly created file counts for nothing.
    pub(in crate::commit) fn restore_files(
        &self,
        segment: SegmentId,
        pace: &Pace<'_>,
    ) -> Result<BTreeMap<MemberIndex, u64>, CommitError> {
        let slots = self.slots_without_file(segment);
        if slots.is_empty() {
            return Ok(BTreeMap::new());
        }
        let Some(_baton) = self.rebuilding.baton.try_lock() else {
            return Ok(BTreeMap::new());
        };
        let need = Need::of_files(segment, slots.iter().copied());
        self.close_segments(std::slice::from_ref(&need))?;
        let lost = self.shards_not_there(segment, &slots)?;
        let mut round = Round::new(Which::All, pace, None);
        // The reported progress is about the last rebuild, not about this.
        let told = *self.rebuilding.progress.lock();
        let step = self.rebuild_segment(&need, &mut round);
        *self.rebuilding.progress.lock() = told;
        if step? != Step::Done {
            return Ok(BTreeMap::new());
        }
        let mut restored = BTreeMap::new();
        for (member, LostShard { stripe, shard }) in lost {
            let record = self.records.stripe(stripe)?;
            if record.is_some_and(|record| record.written.contains(shard)) {
                self.members.count_wrong(member, 1);
                *restored.entry(member).or_default() += 1;
            }
        }
        Ok(restored)
    }

    /// Returns the slots of a segment whose members are online, but have no file of its length.
    fn slots_without_file(&self, segment: SegmentId) -> Vec<usize> {
        let found = self.volume.look_at_files(segment);
        let (Some(record), Some(files)) = (self.volume.segment(segment), found) else {
            return Vec::new();
        };
        let lacks_file = |slot: &usize| {
            let member = record.slots[*slot].filter(|member| files.are_known_of(*member));
            member.is_some_and(|member| files.len(member) < Some(record.len))
        };
        (0..record.slots.len()).filter(lacks_file).collect()
    }

    /// Returns the shards in some slots that are in the records, but not in the files, with the members that
    /// should have them.
    fn shards_not_there(
        &self,
        segment: SegmentId,
        slots: &[usize],
    ) -> Result<Vec<(MemberIndex, LostShard)>, CommitError> {
        let found = self.volume.look_at_files(segment);
        let (Some(record), Some(files)) = (self.volume.segment(segment), found) else {
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
