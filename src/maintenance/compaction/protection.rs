//! The losses that bytes survive where they are, and in the stripes to which they would move.

use super::Compaction;
use super::moves::Floor;
use crate::format::record::ShardSet;
use crate::format::{MemberIndex, StripeId};
use crate::stripes::{Tally, member_of};
use crate::transaction::CommitError;

impl Compaction {
    /// Returns how many losses all bytes of a stripe survive in new ones with the members that take shards.
    pub(in crate::maintenance) fn attainable_for(
        &self,
        stripe: StripeId,
    ) -> Result<i16, CommitError> {
        let mut least = i16::MAX;
        for run in self.live_runs(stripe)? {
            let code = self.catalog.code_of(self.stripes.classes(), run.ino)?;
            least = least.min(self.stripes.writer().attainable(&code));
        }
        Ok(least)
    }

    /// Returns how many losses the bytes of a stripe survive as `floor` counts its shards. Those in memory alone need to
    /// survive none.
    pub(super) fn losses_survived(
        &self,
        stripe: StripeId,
        floor: Floor,
    ) -> Result<i16, CommitError> {
        let membership = self.members.membership();
        let mut counted = membership.live();
        if floor.counts_absent() {
            let awaited = membership.awaited().into_iter();
            counted.extend(awaited.map(|(member, _)| member));
        }
        let suspects = match floor {
            Floor::Trusted(suspects) => suspects,
            Floor::Written | Floor::Online => ShardSet::default(),
        };
        let survived = self.losses_survived_with(stripe, &counted, &suspects)?;
        Ok(survived.unwrap_or(0))
    }

    /// Returns how many losses a stripe survives with its shards on some members, without `suspects`. Returns `None` for one in
    /// memory alone.
    pub(super) fn losses_survived_with(
        &self,
        stripe: StripeId,
        counted: &[MemberIndex],
        suspects: &ShardSet,
    ) -> Result<Option<i16>, CommitError> {
        let Some(record) = self.records.stripe(stripe)? else {
            return Ok(None);
        };
        let segment = self.stripes.segments().record(record.segment);
        Ok(segment.map(|segment| {
            let is_there = |shard| {
                let member = member_of(&segment, &record, shard);
                let is_trusted = record.written.contains(shard) && !suspects.contains(shard);
                is_trusted && member.is_some_and(|it| counted.contains(&it))
            };
            Tally::of(&segment, &record, is_there).losses_tolerated()
        }))
    }
}
