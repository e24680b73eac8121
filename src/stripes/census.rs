//! Segment files as the members list them, and the shards that they have room for (P6).

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::layout;
use super::tally::{Tally, survival};
use crate::format::record::{Segment, Stripe};
use crate::format::{MemberIndex, SegmentId, ShardIndex, StripeClass};
use crate::membership::UnverifiedCopies;

/// The segment files on the online members, and their lengths, as the members' directories list them.
#[derive(Clone, Debug, Default)]
pub struct Census {
    pub(super) files: Arc<HashMap<(MemberIndex, SegmentId), u64>>,
    /// The members of which it is not known whether their files hold what they should.
    pub(super) unverified: Arc<UnverifiedCopies>,
    /// The first segment that was not made yet when the members were asked.
    pub(super) next: SegmentId,
    /// Members that did not answer in time: what is listed of them is older, and this was the first segment
    /// then that was not made yet. They said of those made since that they made them.
    pub(super) silent: BTreeMap<MemberIndex, SegmentId>,
}

impl Census {
    /// Returns what is there of one segment, for counting many of its stripes.
    #[must_use]
    pub fn of_segment(&self, id: SegmentId, record: Segment) -> SegmentCensus {
        let len_of = |member: &Option<MemberIndex>| member.and_then(|member| self.len(member, id));
        let slots = record.slots.iter();
        let is_sure = |member: &MemberIndex| !self.unverified.contains_key(member);
        SegmentCensus {
            lens: slots.clone().map(len_of).collect(),
            sure: slots
                .map(|slot| slot.as_ref().is_none_or(is_sure))
                .collect(),
            record,
        }
    }

    /// Returns whether a member's segment file reaches as far as a shard of the stripe.
    #[must_use]
    pub fn holds(&self, member: MemberIndex, stripe: &Stripe) -> bool {
        self.len(member, stripe.segment)
            .is_some_and(|len| len >= end_of(stripe))
    }

    /// Returns the length of a member's file of a segment, or `None` if no online member has it. One that is too new
    /// to be listed counts as long enough for anything.
    #[must_use]
    pub fn len(&self, member: MemberIndex, segment: SegmentId) -> Option<u64> {
        let listed = self.files.get(&(member, segment)).copied();
        let is_newer = |next: &SegmentId| segment >= *next;
        listed.or_else(|| {
            self.silent
                .get(&member)
                .is_some_and(is_newer)
                .then_some(u64::MAX)
        })
    }

    /// Says whether the file of one of these segments is gone, or shorter than its record says, on a
    /// member of `live` that answered.
    #[must_use]
    pub fn lacks_files(&self, segments: &[(SegmentId, Segment)], live: &[MemberIndex]) -> bool {
        let is_lacking = |(id, record): &(SegmentId, Segment)| {
            let members = record.slots.iter().flatten();
            let mut held =
                members.filter(|member| live.contains(member) && !self.silent.contains_key(member));
            held.any(|member| self.len(*member, *id) < Some(record.len))
        };
        segments.iter().any(is_lacking)
    }

    /// Returns the segments with a file on some member.
    pub(super) fn files(&self) -> impl Iterator<Item = (MemberIndex, SegmentId)> + '_ {
        self.files.keys().copied()
    }
}

/// The files of one segment on the online members, as each of them reports at this moment. A [`Census`] may be older
/// than the return of a member.
#[derive(Clone, Debug)]
pub struct FileLengths {
    pub(super) lens: BTreeMap<MemberIndex, Option<u64>>,
}

impl FileLengths {
    /// Returns whether a member has the segment, and is online.
    #[must_use]
    pub fn are_known_of(&self, member: MemberIndex) -> bool {
        self.lens.contains_key(&member)
    }

    /// Returns the length of a member's file, or `None` if the member has none or is offline.
    #[must_use]
    pub fn len(&self, member: MemberIndex) -> Option<u64> {
        self.lens.get(&member).copied().flatten()
    }

    /// Returns whether a member's file reaches as far as a shard of a stripe of the segment.
    #[must_use]
    pub fn hold(&self, member: MemberIndex, stripe: &Stripe) -> bool {
        self.len(member).is_some_and(|len| len >= end_of(stripe))
    }
}

fn end_of(stripe: &Stripe) -> u64 {
    stripe.offset.saturating_add(u64::from(stripe.height))
}

/// The findings of a [`Census`] about one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentCensus {
    record: Segment,
    /// The length of each slot's file, if it is on an online member.
    lens: Vec<Option<u64>>,
    /// True if what each slot's file holds may be believed.
    sure: Vec<bool>,
}

impl SegmentCensus {
    /// Returns how many more shards a stripe can lose before its data is lost; negative if it is.
    ///
    /// A shard counts if it was written and the file that should hold it is on an online member, and long enough.
    #[must_use]
    pub fn losses_tolerated(&self, stripe: &Stripe) -> i16 {
        self.tally(stripe).losses_tolerated()
    }

    /// Returns how many losses its stripes are to survive, in a volume whose code survives so many.
    #[must_use]
    pub fn losses_promised(&self, of_volume: usize) -> usize {
        if self.record.class == StripeClass::VOLUME {
            of_volume
        } else {
            self.losses_promised_when_written()
        }
    }

    /// Returns how many losses its stripes were to survive when they were written, or got their last parity.
    #[must_use]
    pub fn losses_promised_when_written(&self) -> usize {
        survival(&self.record).guaranteed()
    }

    /// Returns how many shards of a stripe do not count.
    #[must_use]
    pub fn missing_shards(&self, stripe: &Stripe) -> u64 {
        let tally = self.tally(stripe);
        (tally.existing - tally.present) as u64
    }

    fn tally(&self, stripe: &Stripe) -> Tally {
        Tally::of(&self.record, stripe, |shard| self.has(stripe, shard))
    }

    /// The same, without the shards on stale copies, which may hold something else; no less than 0 if the data is there
    /// with them.
    #[must_use]
    pub fn losses_surely_tolerated(&self, stripe: &Stripe) -> i16 {
        let tolerated = self.losses_tolerated(stripe);
        let is_sure = |shard| self.sure.get(self.slot_of(stripe, shard)) == Some(&true);
        let sure = Tally::of(&self.record, stripe, |shard| {
            is_sure(shard) && self.has(stripe, shard)
        });
        tolerated.min(sure.losses_tolerated().max(0))
    }

    /// Says whether a stripe has all its shards.
    #[must_use]
    pub fn is_whole(&self, stripe: &Stripe) -> bool {
        self.tally(stripe).is_whole()
    }

    /// Returns which bytes of a stripe's payload are lost: those of data shards that are not there, if too
    /// few others are.
    #[must_use]
    pub fn lost_bytes(&self, stripe: &Stripe) -> Vec<Range<u32>> {
        if self.losses_tolerated(stripe) >= 0 {
            return Vec::new();
        }
        let data_shards = usize::from(self.record.data_shards);
        let absent = layout::shards(&self.record)
            .take(data_shards)
            .filter(|shard| !self.has(stripe, *shard));
        let rows = 0..stripe.height as usize;
        absent
            .filter_map(|shard| layout::payload_range(stripe, data_shards, shard, &rows))
            .collect()
    }

    /// Says whether a shard was written and its file is on an online member, and long enough.
    fn has(&self, stripe: &Stripe, shard: ShardIndex) -> bool {
        let len = self.lens.get(self.slot_of(stripe, shard));
        let len = len.copied().flatten();
        stripe.written.contains(shard) && len.is_some_and(|len| len >= end_of(stripe))
    }

    fn slot_of(&self, stripe: &Stripe, shard: ShardIndex) -> usize {
        self.record.slot_of(shard, stripe.rotation)
    }
}
