//! Counts the losses that every stripe still tolerates, by reading all of its shards.

use std::collections::BTreeMap;

use super::super::redundancy::RedundancyRow;
use super::BATCH_BYTES;
use super::Scrubber;
use crate::format::record::{Segment, ShardSet};
use crate::format::{MemberIndex, SegmentId, StripeClass, StripeId};
use crate::stripes::{Inconsistent, Remedy, Verdict, member_of, survival};
use crate::transaction::CommitError;

/// Shards of one file that are wrong, or are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongShards {
    /// The member.
    pub member: MemberIndex,
    /// The segment whose file it is.
    pub segment: SegmentId,
    /// The number of shards in it.
    pub shards: u64,
}

/// The result of reading every shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadShards {
    /// Bytes of shards that were read.
    pub bytes: u64,
    /// Shards that are wrong, by member and segment.
    pub wrong: Vec<WrongShards>,
    /// Stripes whose parity does not match the data, and where.
    pub inconsistent: Vec<Inconsistent>,
    /// The number of wrong pages and heads in the copies of the index, by member.
    pub index_pages: BTreeMap<MemberIndex, u64>,
    /// The number of stripes by the losses that they tolerate, as read; the most endangered first. A shard counts if
    /// all of it is right.
    pub rows: Vec<RedundancyRow>,
}

impl Scrubber {
    /// Reads every shard of every stripe that an extent refers to, and all copies of the index. Writes nothing, because
    /// the volume was opened to look. Notes unrecoverable ranges for
    /// [`RedundancyCounter::redundancy`](super::super::RedundancyCounter::redundancy). Tells `on_progress` how many bytes
    /// of segment files it has passed, and how many there are.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn read_all_shards(
        &self,
        mut on_progress: impl FnMut(u64, u64),
    ) -> Result<ReadShards, CommitError> {
        let mut read = ReadShards {
            index_pages: self.replicas.survey()?,
            ..ReadShards::default()
        };
        let mut wrong: BTreeMap<(MemberIndex, SegmentId), u64> = BTreeMap::new();
        let mut rows: BTreeMap<i16, RedundancyRow> = BTreeMap::new();
        let files = |record: &Segment| record.slots.iter().flatten().count() as u64;
        let mut segments = self.stripes.segments().records();
        segments.sort_unstable_by_key(|(segment, _)| *segment);
        let lens = segments
            .iter()
            .map(|(_, record)| files(record) * record.len);
        let (mut passed, total) = (0, lens.sum());
        for (segment, record) in segments {
            let mut from = 0;
            loop {
                let _pin = self.stripes.pins().pin();
                let run = self.next_run(segment, from, BATCH_BYTES)?;
                for verdict in self
                    .stripes
                    .inspector()
                    .inspect(&run.live, Remedy::Report)?
                {
                    read.bytes += verdict.bytes;
                    for member in self.holders_of(segment, verdict.stripe, &verdict.wrong)? {
                        *wrong.entry((member, segment)).or_default() += 1;
                    }
                    self.add_to_rows(segment, &verdict, &mut rows)?;
                    read.inconsistent.extend(verdict.inconsistent);
                }
                if !run.has_more {
                    break;
                }
                from = run.end;
                on_progress(passed + files(&record) * from.min(record.len), total);
            }
            passed += files(&record) * record.len;
            on_progress(passed, total);
        }
        let list = |((member, segment), shards)| WrongShards {
            member,
            segment,
            shards,
        };
        read.wrong = wrong.into_iter().map(list).collect();
        read.rows = rows.into_values().collect();
        Ok(read)
    }

    /// Returns the members that should have some shards of a stripe.
    pub(super) fn holders_of(
        &self,
        segment: SegmentId,
        stripe: StripeId,
        shards: &ShardSet,
    ) -> Result<Vec<MemberIndex>, CommitError> {
        if shards.is_empty() {
            return Ok(Vec::new());
        }
        let record = self.records.stripe(stripe)?;
        let (Some(record), Some(segment)) = (record, self.stripes.segments().record(segment))
        else {
            return Ok(Vec::new());
        };
        Ok(shards
            .iter()
            .filter_map(|shard| member_of(&segment, &record, shard))
            .collect())
    }

    fn add_to_rows(
        &self,
        segment: SegmentId,
        verdict: &Verdict,
        rows: &mut BTreeMap<i16, RedundancyRow>,
    ) -> Result<(), CommitError> {
        let gone = verdict.wrong.len() as u64 + verdict.missing;
        let gone = usize::try_from(gone).unwrap_or(usize::MAX);
        let segment = self.stripes.segments().record(segment);
        let promised = match &segment {
            Some(record) if record.class != StripeClass::VOLUME => survival(record).guaranteed(),
            _ => self.members.shape().survival().guaranteed(),
        };
        let survival = segment.map(|segment| survival(&segment));
        let as_written = survival.map_or(promised, crate::codec::Survival::guaranteed);
        let mut losses_tolerated = survival.map_or(0, |survival| survival.after(gone));
        if self.catalog.live_within(verdict.stripe, &verdict.lost)? > 0 {
            losses_tolerated = losses_tolerated.min(-1);
        } else if losses_tolerated < 0 {
            // Other blocks of each shard are wrong, or no file holds the lost bytes. All else can be read, and no
            // further loss is tolerated.
            losses_tolerated = 0;
        }
        let fresh = RedundancyRow::empty(losses_tolerated);
        let row = rows.entry(losses_tolerated).or_insert(fresh);
        row.stripes += 1;
        let is_as_promised = usize::try_from(losses_tolerated).is_ok_and(|it| it >= promised);
        row.as_promised += u64::from(is_as_promised);
        let is_as_written = usize::try_from(losses_tolerated).is_ok_and(|it| it >= as_written);
        row.of_older_code += u64::from(is_as_written && !is_as_promised);
        row.missing += verdict.missing + verdict.gone;
        let live = self.catalog.live_in(verdict.stripe)?;
        let record = self.records.stripe(verdict.stripe)?;
        row.bytes += live;
        row.dead += record.map_or(0, |it| u64::from(it.payload_len).saturating_sub(live));
        Ok(())
    }
}
