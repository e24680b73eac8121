//! Counts stripes by the segment files that the members list.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{ControlFlow, Range};

use super::live::KnownLives;
use super::stretch_len::StretchId;
use super::stretches::{Stretch, Stretches};
use super::{LostStripe, Redundancy, RedundancyCounter, RedundancyRow};
use crate::format::key::{self, KeyRange};
use crate::format::record::{Backref, Stripe};
use crate::format::{Record, SegmentId, StripeId};
use crate::stripes::{Census, SegmentCensus, Stripes, joined};
use crate::transaction::CommitError;
use crate::transaction::catalog::successor;
use crate::transaction::live::LiveBytes;

/// The most stripes counted at once.
const STRIPES_AT_ONCE: usize = 4096;

impl RedundancyCounter {
    /// Counts the changes since `stretches` were counted.
    pub(super) fn count_redundancy(
        &self,
        stretches: &mut Stretches,
    ) -> Result<Redundancy, CommitError> {
        // Taken before anything is read, so that later changes are counted by the next count.
        let dirty = self.meta.take_dirty_groups();
        let known = self.stripes.segments().records();
        let (census, segments) = take_census(&self.stripes);
        self.note_files(known, &census);
        let mut count = Count::new(self, segments);
        let outdated = stretches.outdated(dirty, &count.segments, &count.unrecoverable_ranges);
        let counted = match &outdated {
            None => self.count_in(&mut count, stretches, key::stripes()),
            Some(outdated) => self
                .limits
                .stretch_len()
                .ranges_of(outdated)
                .into_iter()
                .try_for_each(|range| self.count_in(&mut count, stretches, range)),
        };
        if let Err(error) = counted.and_then(|()| count.look_again()) {
            *stretches = Stretches::new(self.limits);
            return Err(error);
        }
        Ok(count.finish(stretches, &outdated.unwrap_or_default()))
    }

    /// Counts the stripes whose keys are in a range; looks up their live bytes only where they are not known.
    fn count_in(
        &self,
        count: &mut Count<'_>,
        stretches: &Stretches,
        (mut from, end): KeyRange,
    ) -> Result<(), CommitError> {
        let mut stripes = Vec::new();
        loop {
            self.read_stripes(&from, &end, &mut stripes)?;
            let Some(&(last, _)) = stripes.last() else {
                return Ok(());
            };
            let is_known = |stripe: StripeId| stretches.live_in(stripe).is_some();
            for run in stripes.chunk_by(|(a, _), (b, _)| is_known(*a) == is_known(*b)) {
                let lives = run.iter().map(|(stripe, _)| stretches.live_in(*stripe));
                match lives.collect::<Option<Vec<u64>>>() {
                    Some(lives) => {
                        for ((stripe, record), live) in run.iter().zip(lives) {
                            count.add(*stripe, record, live)?;
                        }
                    }
                    None => self.count_stripes(count, run)?,
                }
            }
            from = successor(&key::stripe(last));
        }
    }

    /// Reads the first of the records of stripes in a range.
    fn read_stripes(
        &self,
        from: &[u8],
        end: &[u8],
        stripes: &mut Vec<(StripeId, Stripe)>,
    ) -> Result<(), CommitError> {
        stripes.clear();
        self.catalog.visit(from, end, |key, value| {
            stripes.push((key::parse_stripe(key)?, Stripe::decode(value)?));
            Ok(if stripes.len() < STRIPES_AT_ONCE {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            })
        })
    }

    /// Counts some stripes, in order, beside the backrefs that tell their live bytes.
    fn count_stripes(
        &self,
        count: &mut Count<'_>,
        stripes: &[(StripeId, Stripe)],
    ) -> Result<(), CommitError> {
        let (Some((first, _)), Some((last, _))) = (stripes.first(), stripes.last()) else {
            return Ok(());
        };
        let (from, end) = (key::backrefs(*first).0, key::backrefs(*last).1);
        let mut stripes = stripes.iter().peekable();
        let mut live = LiveBytes::default();
        self.catalog.visit(&from, &end, |key, value| {
            let (stripe, _, _) = key::parse_backref(key)?;
            while let Some((before, record)) = stripes.next_if(|(id, _)| *id < stripe) {
                count.add(*before, record, live.take())?;
            }
            // One without a record is in memory.
            if stripes.peek().is_some_and(|(id, _)| *id == stripe) {
                live.add(&Backref::decode(value)?);
            }
            Ok::<_, CommitError>(ControlFlow::Continue(()))
        })?;
        for (stripe, record) in stripes {
            count.add(*stripe, record, live.take())?;
        }
        Ok(())
    }
}

/// A count that is being made.
struct Count<'c> {
    counter: &'c RedundancyCounter,
    unrecoverable_ranges: BTreeMap<StripeId, Vec<Range<u32>>>,
    segments: HashMap<SegmentId, SegmentCensus>,
    stretches: BTreeMap<StretchId, StretchCount>,
    lives: KnownLives,
    unrecoverable: Vec<LostStripe>,
    /// Stripes with their live bytes that lack shards in segments written meanwhile. Their files may be younger than
    /// the census.
    doubtful: Vec<(StripeId, Stripe, u64)>,
}

/// A stretch that is being counted.
#[derive(Debug, Default)]
struct StretchCount {
    rows: BTreeMap<i16, RedundancyRow>,
    /// The live bytes of its stripes in each segment.
    segments: BTreeMap<SegmentId, u64>,
    /// Set if the next count must count it again, even without a change.
    is_provisional: bool,
}

impl<'c> Count<'c> {
    fn new(counter: &'c RedundancyCounter, segments: HashMap<SegmentId, SegmentCensus>) -> Self {
        Self {
            counter,
            unrecoverable_ranges: counter.stripes.damage().unrecoverable().all(),
            segments,
            stretches: BTreeMap::new(),
            lives: KnownLives::new(counter.limits),
            unrecoverable: Vec::new(),
            doubtful: Vec::new(),
        }
    }

    /// Counts the doubtful stripes by a new census.
    fn look_again(&mut self) -> Result<(), CommitError> {
        if self.doubtful.is_empty() {
            return Ok(());
        }
        self.segments = take_census(&self.counter.stripes).1;
        for (stripe, record, live) in std::mem::take(&mut self.doubtful) {
            self.count(stripe, &record, live)?;
            self.stretch(stripe).is_provisional = true;
        }
        Ok(())
    }

    /// Counts a stripe with so many live bytes; a dead one holds nothing that can be lost.
    fn add(&mut self, stripe: StripeId, record: &Stripe, live: u64) -> Result<(), CommitError> {
        self.lives.set(stripe, live);
        if live == 0 {
            return Ok(());
        }
        let segment = self.segments.get(&record.segment);
        let is_whole = segment.is_some_and(|segment| segment.is_whole(record));
        let is_fresh =
            segment.is_none() || self.counter.stripes.segments().is_writing(record.segment);
        if is_fresh && !is_whole {
            self.doubtful.push((stripe, *record, live));
            Ok(())
        } else {
            self.count(stripe, record, live)
        }
    }

    fn stretch(&mut self, stripe: StripeId) -> &mut StretchCount {
        let id = self.counter.limits.stretch_len().stretch_of(stripe);
        self.stretches.entry(id).or_default()
    }

    fn count(&mut self, stripe: StripeId, record: &Stripe, live: u64) -> Result<(), CommitError> {
        // A stripe without a segment cannot be read at all.
        let segment = self.segments.get(&record.segment);
        let mut tolerated =
            segment.map_or(i16::MIN, |segment| segment.losses_surely_tolerated(record));
        let unrecoverable_ranges = self.unrecoverable_ranges.get(&stripe);
        if unrecoverable_ranges.is_some() {
            tolerated = tolerated.min(-1);
        }
        if tolerated < 0 {
            let everything = || std::iter::once(0..u32::MAX).collect();
            let absent = segment.map_or_else(everything, |segment| segment.lost_bytes(record));
            let found = unrecoverable_ranges.cloned().unwrap_or_default();
            let bytes: Vec<_> = absent.into_iter().chain(found).collect();
            if !self.are_held(stripe, record, live, &bytes)? {
                // All bytes that files hold can be read, but no further loss is tolerated.
                tolerated = 0;
            } else if self.unrecoverable.len() < self.counter.limits.max_listed {
                self.unrecoverable.push(LostStripe { stripe, bytes });
            }
        }
        let missing = segment.map_or(0, |segment| segment.missing_shards(record));
        let volume = self.counter.members.shape().survival().guaranteed();
        let promised = segment.map_or(volume, |segment| segment.losses_promised(volume));
        let is_as_promised = usize::try_from(tolerated).is_ok_and(|losses| losses >= promised);
        let as_written = segment.map_or(volume, SegmentCensus::losses_promised_when_written);
        let is_as_written = usize::try_from(tolerated).is_ok_and(|losses| losses >= as_written);
        let stretch = self.stretch(stripe);
        stretch.is_provisional |= tolerated < 0;
        *stretch.segments.entry(record.segment).or_default() += live;
        let row = RedundancyRow {
            losses_tolerated: tolerated,
            stripes: 1,
            bytes: live,
            dead: u64::from(record.payload_len).saturating_sub(live),
            missing,
            as_promised: u64::from(is_as_promised),
            of_older_code: u64::from(is_as_written && !is_as_promised),
        };
        add_row(&mut stretch.rows, &row);
        Ok(())
    }

    /// Returns whether files hold some of the lost bytes of a stripe with so many live bytes. Looks this up only if all
    /// lost bytes may be dead.
    fn are_held(
        &self,
        stripe: StripeId,
        record: &Stripe,
        live: u64,
        lost: &[Range<u32>],
    ) -> Result<bool, CommitError> {
        let lost = joined(lost.to_vec());
        let bytes: u64 = lost.iter().map(|r| u64::from(r.end - r.start)).sum();
        Ok(bytes + live > u64::from(record.payload_len)
            || self.counter.catalog.live_within(stripe, &lost)? > 0)
    }

    /// Adds the new counts to the known ones, of which some are outdated; returns all of it.
    fn finish(self, stretches: &mut Stretches, outdated: &BTreeSet<StretchId>) -> Redundancy {
        let mut rows = BTreeMap::new();
        let mut live = BTreeMap::new();
        let mut add_live = |segments: &BTreeMap<SegmentId, u64>| {
            for (segment, bytes) in segments {
                *live.entry(*segment).or_default() += bytes;
            }
        };
        for stretch in stretches.all() {
            stretch.rows.iter().for_each(|row| add_row(&mut rows, row));
            add_live(&stretch.segments);
        }
        for (id, count) in self.stretches {
            add_live(&count.segments);
            for row in count.rows.values() {
                add_row(&mut rows, row);
            }
            let counted = (!count.is_provisional).then(|| Stretch {
                rows: count.rows.into_values().collect(),
                segments: count.segments,
            });
            stretches.add(id, counted);
        }
        stretches.replace_lives(outdated, self.lives);
        stretches.complete();
        let mut unrecoverable = self.unrecoverable;
        unrecoverable.sort_by_key(|lost| lost.stripe);
        Redundancy {
            rows: rows.into_values().collect(),
            live,
            unrecoverable,
            is_cut: self.counter.stripes.damage().unrecoverable().is_truncated(),
        }
    }
}

/// Adds a row to the one that tolerates as many losses.
fn add_row(rows: &mut BTreeMap<i16, RedundancyRow>, row: &RedundancyRow) {
    let fresh = RedundancyRow::empty(row.losses_tolerated);
    let sum = rows.entry(row.losses_tolerated).or_insert(fresh);
    sum.stripes += row.stripes;
    sum.bytes += row.bytes;
    sum.dead += row.dead;
    sum.missing += row.missing;
    sum.as_promised += row.as_promised;
    sum.of_older_code += row.of_older_code;
}

/// Lists the segments, and then their files: a file is there before its segment is known.
fn take_census(stripes: &Stripes) -> (Census, HashMap<SegmentId, SegmentCensus>) {
    let segments = stripes.segments().records().into_iter();
    let census = stripes.inventory().quick_census();
    let of_segments = segments
        .map(|(id, record)| (id, census.of_segment(id, record)))
        .collect();
    (census, of_segments)
}

#[cfg(test)]
impl RedundancyCounter {
    /// Counts after something happened that a count which has begun does not see.
    pub(in crate::maintenance) fn redundancy_with(
        &self,
        meanwhile: impl FnOnce(),
    ) -> Result<Redundancy, CommitError> {
        let mut count = Count::new(self, take_census(&self.stripes).1);
        meanwhile();
        let mut stretches = Stretches::new(self.limits);
        self.count_in(&mut count, &stretches, key::stripes())?;
        count.look_again()?;
        Ok(count.finish(&mut stretches, &BTreeSet::new()))
    }

    /// Counts the changes since the last count, even if that was long ago.
    pub(in crate::maintenance) fn redundancy_now(&self) -> Result<Redundancy, CommitError> {
        self.count_redundancy(&mut self.counting.lock())
    }

    /// Returns how many stretches have to be counted, if it is not all; they are taken for counted then.
    pub(in crate::maintenance) fn outdated_stretches(&self) -> Option<usize> {
        let count = Count::new(self, take_census(&self.stripes).1);
        let mut stretches = self.counting.lock();
        let dirty = self.meta.take_dirty_groups();
        let outdated = stretches.outdated(dirty, &count.segments, &count.unrecoverable_ranges);
        outdated.map(|outdated| outdated.len())
    }

    /// Returns the number of stretches with remembered live bytes.
    pub(in crate::maintenance) fn stretches_of_known_life(&self) -> usize {
        self.counting.lock().lives_known()
    }

    /// Returns the number of stripes without known live bytes.
    pub(in crate::maintenance) fn stripes_of_unknown_life(&self) -> usize {
        let stretches = self.counting.lock();
        let mut unknown = 0;
        let mut look = |stripe| unknown += usize::from(stretches.live_in(stripe).is_none());
        self.catalog
            .for_each_stripe(|stripe, _| look(stripe))
            .unwrap();
        unknown
    }
}
