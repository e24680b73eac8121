//! Segment files that are gone, or too short for the shards written to them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;

use super::{MissingShards, RedundancyCounter, RedundancyRow, UnwrittenShards};
use crate::format::key::{self, KeyRange};
use crate::format::record::{RepairNote, Segment, Stripe};
use crate::format::{MemberIndex, Record, SegmentId, ShardIndex, StripeId};
use crate::stripes::{Census, member_of, survival};
use crate::transaction::CommitError;
use crate::transaction::catalog::successor;

/// The most reads of the ledger, because dead stripes leave it soon unless there are very many.
const MOST_LOOKS: usize = 16;

impl RedundancyCounter {
    /// Lists the segment files on online members that are gone, or too short for the shards that were written to them;
    /// by member and segment.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn missing_shards(&self) -> Result<Vec<MissingShards>, CommitError> {
        let census = self.stripes.inventory().census();
        let live = self.members.membership().live();
        let segments: HashMap<SegmentId, Segment> =
            self.stripes.segments().records().into_iter().collect();
        let mut missing: BTreeMap<(MemberIndex, SegmentId), u64> = BTreeMap::new();
        self.catalog.for_each_stripe(|_, record| {
            let Some(segment) = segments.get(&record.segment) else {
                return;
            };
            let holders = record
                .written
                .iter()
                .filter_map(|shard| member_of(segment, &record, shard));
            for member in holders.filter(|member| live.contains(member)) {
                if !census.holds(member, &record) {
                    *missing.entry((member, record.segment)).or_default() += 1;
                }
            }
        })?;
        let list = |((member, segment), shards)| MissingShards {
            member,
            segment,
            found: census.len(member, segment),
            shards,
        };
        Ok(missing.into_iter().map(list).collect())
    }

    /// Returns the segment files on online members, by member and segment, that lack shards of stripes which hold
    /// something. This includes shards that were never written there. It also includes those out of the records because
    /// they could not be rebuilt.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn files_lacking_shards(&self) -> Result<BTreeSet<(MemberIndex, SegmentId)>, CommitError> {
        let census = self.stripes.inventory().census();
        let live = self.members.membership().live();
        let segments: HashMap<SegmentId, Segment> =
            self.stripes.segments().records().into_iter().collect();
        let mut lacking = BTreeSet::new();
        let (from, end) = key::stripes();
        self.catalog.visit(&from, &end, |key, value| {
            let (stripe, record) = (key::parse_stripe(key)?, Stripe::decode(value)?);
            let Some(segment) = segments.get(&record.segment) else {
                return Ok(ControlFlow::Continue(()));
            };
            let total = segment.data_shards.saturating_add(segment.parity_shards);
            let shards = (0..total).map(ShardIndex);
            let lacks = |shard: ShardIndex| {
                let member = member_of(segment, &record, shard)?;
                let has = record.is_implied(shard, segment.data_shards.into())
                    || record.written.contains(shard) && census.holds(member, &record);
                (!has && live.contains(&member)).then_some((member, record.segment))
            };
            let mut found: Vec<_> = shards.filter_map(lacks).collect();
            found.retain(|file| !lacking.contains(file));
            if !found.is_empty() && self.catalog.has_backref(stripe)? {
                lacking.extend(found);
            }
            Ok::<_, CommitError>(ControlFlow::Continue(()))
        })?;
        Ok(lacking)
    }

    /// Counts the shards that no record places in a file, and lists at most so many of their stripes.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn unwritten_shards(&self, most_stripes: usize) -> Result<UnwrittenShards, CommitError> {
        let live = self.members.membership().live();
        let segments: HashMap<SegmentId, Segment> =
            self.stripes.segments().records().into_iter().collect();
        let mut unwritten = UnwrittenShards::default();
        let (from, end) = key::stripes();
        self.catalog.visit(&from, &end, |key, value| {
            let (stripe, record) = (key::parse_stripe(key)?, Stripe::decode(value)?);
            let Some(segment) = segments.get(&record.segment) else {
                return Ok(ControlFlow::Continue(()));
            };
            let total = segment.data_shards.saturating_add(segment.parity_shards);
            let lacking = (0..total).map(ShardIndex).filter(|shard| {
                let is_implied = record.is_implied(*shard, segment.data_shards.into());
                !is_implied && !record.written.contains(*shard)
            });
            let places: Vec<_> = lacking
                .map(|shard| member_of(segment, &record, shard))
                .filter(|member| member.is_none_or(|member| live.contains(&member)))
                .collect();
            if !places.is_empty() && self.catalog.has_backref(stripe)? {
                for member in places {
                    *unwritten
                        .places
                        .entry((record.segment, member))
                        .or_default() += 1;
                }
                if unwritten.stripes.len() < most_stripes {
                    unwritten.stripes.push(stripe);
                }
            }
            Ok::<_, CommitError>(ControlFlow::Continue(()))
        })?;
        Ok(unwritten)
    }

    /// Returns whether stripes are known to lack shards: written while members were away, or lost since; or their files
    /// turned out to be gone or too short. It counts nothing, so some of the stripes may be dead, and some of the files
    /// may hold no shard.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn may_lack_shards(&self) -> Result<bool, CommitError> {
        let (from, end) = key::repairs();
        let noted = !self.meta.scan(&from, &end, 1)?.is_empty();
        Ok(noted || self.stripes.damage().lacks_files())
    }

    /// Returns whether stripes that files refer to are known to lack shards. It counts only if segment files
    /// are gone or too short. If very many stripes are noted, it assumes that files refer to some of them.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn lacks_shards(&self) -> Result<bool, CommitError> {
        if self.notes_live_stripe()? {
            return Ok(true);
        }
        if !self.stripes.damage().lacks_files() {
            return Ok(false);
        }
        let rows = &self.redundancy()?.rows;
        Ok(!rows.iter().all(RedundancyRow::is_as_promised))
    }

    /// Returns whether data may be lost, so that it is worth counting. It judges by the noted shards that were never
    /// written or turned out bad, by missing files, and by absent members. It counts nothing, and takes some data for
    /// lost if there are very many notes.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn may_have_lost_data(&self) -> Result<bool, CommitError> {
        if self.stripes.damage().lacks_files() || self.has_lost_segments() {
            return Ok(true);
        }
        for (stripe, lost) in self.stripes.damage().unrecoverable().all() {
            if self.catalog.live_within(stripe, &lost)? > 0 {
                return Ok(true);
            }
        }
        let live = self.members.membership().live();
        let bearable = self.most_absent_of_a_segment();
        self.notes_stripe(key::repairs_below(bearable), |stripe, note| {
            let Some(record) = self.records.stripe(stripe)? else {
                return Ok(false);
            };
            let Some(segment) = self.stripes.segments().record(record.segment) else {
                return Ok(true);
            };
            let shards = record.written.iter();
            let left = shards.filter(|shard| {
                let member = member_of(&segment, &record, *shard);
                !note.missing.contains(*shard) && member.is_some_and(|m| live.contains(&m))
            });
            let data = usize::from(segment.data_shards);
            let implied = (0..segment.data_shards).map(ShardIndex);
            let implied = implied.filter(|shard| record.is_implied(*shard, data));
            let readable = left.chain(implied).map(|shard| usize::from(shard.0));
            Ok(survival(&segment).rank(readable) < data)
        })
    }

    /// Returns whether a stripe in the repair ledger holds something.
    fn notes_live_stripe(&self) -> Result<bool, CommitError> {
        self.notes_stripe(key::repairs(), |stripe, _| self.catalog.has_backref(stripe))
    }

    /// Returns whether a stripe in a range of the repair ledger satisfies `is_such`. Answers yes as well if there are
    /// too many notes to look at all of them.
    fn notes_stripe(
        &self,
        (mut from, end): KeyRange,
        mut is_such: impl FnMut(StripeId, &RepairNote) -> Result<bool, CommitError>,
    ) -> Result<bool, CommitError> {
        for _ in 0..MOST_LOOKS {
            let notes = self.meta.scan(&from, &end, self.limits.notes_at_once)?;
            for (note, value) in &notes {
                let (_, stripe) = key::parse_repair(note)?;
                if is_such(stripe, &RepairNote::decode(value)?)? {
                    return Ok(true);
                }
            }
            match notes.last() {
                Some((last, _)) if notes.len() == self.limits.notes_at_once => {
                    from = successor(last);
                }
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Returns whether segment files on online members are known to be gone or too short: since the volume was opened,
    /// counted, or read.
    #[must_use]
    pub fn lacks_files(&self) -> bool {
        self.stripes.damage().lacks_files()
    }

    /// Checks with one call to each member whether segment files are gone or too short.
    pub fn look_for_files(&self) {
        let segments = self.stripes.segments().records();
        self.note_files(segments, &self.stripes.inventory().census());
    }

    /// Notes it if segment files turned out to be gone or too short, by a census of which these segments were known
    /// before. Those that are being written are found when they are finished.
    pub(super) fn note_files(&self, mut segments: Vec<(SegmentId, Segment)>, census: &Census) {
        segments.retain(|(id, known)| {
            let is_as_it_was = self
                .stripes
                .segments()
                .record(*id)
                .is_some_and(|now| now == *known);
            is_as_it_was && !self.stripes.segments().is_writing(*id)
        });
        if census.lacks_files(&segments, &self.members.membership().live()) {
            self.stripes.damage().set_lacks_files(true);
        }
    }

    /// Returns the number of absent or unknown members of the segment that lacks most. No stripe has two shards on one
    /// member, so a stripe that tolerates as many losses is not lost without them.
    fn most_absent_of_a_segment(&self) -> u8 {
        let live = self.members.membership().live();
        let is_absent = |slot: &&Option<MemberIndex>| slot.is_none_or(|m| !live.contains(&m));
        let segments = self.stripes.segments().records();
        let absent = segments.iter().map(|(_, segment)| {
            let absent = segment.slots.iter().filter(is_absent).count();
            u8::try_from(absent).unwrap_or(u8::MAX)
        });
        absent.max().unwrap_or_default()
    }

    /// Returns whether there are segments of which more members are absent than all their stripes survive. It counts
    /// nothing; some stripes in them may be readable.
    #[must_use]
    pub fn has_lost_segments(&self) -> bool {
        let live = self.members.membership().live();
        let is_lost = |(_, segment): &(SegmentId, Segment)| {
            let holders = segment.slots.iter().flatten();
            let held = holders.filter(|member| live.contains(member)).count();
            held + survival(segment).guaranteed() < segment.slots.len()
        };
        self.stripes.segments().records().iter().any(is_lost)
    }
}
