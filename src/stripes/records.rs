//! The records of stripes and segments.
//!
//! Every change here goes through [`RecordMap::apply_stripes`]. So a commit can take the records of stripes apart from
//! all others, after the changes that name those stripes.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::error::StripeError;
use super::past_units::PastUnits;
use super::rewrites::Rewrites;
use super::tally::Tally;
use crate::format::record::{RepairNote, Segment, SegmentStripe, ShardSet, ShardSums, Stripe};
use crate::format::{Record, SegmentId, ShardIndex, StripeClass, StripeId, key};
use crate::metadata::{Batch, Key, Numbers, RecordError, RecordMap};

/// The distance that a counter on disk runs ahead of the numbers in use.
const STRIPES_AHEAD: u64 = 1024;
const SEGMENTS_AHEAD: u64 = 64;

/// Records of stripes changed in one go: less than a journal record takes.
const EDITED_AT_ONCE: usize = 1024;

/// A shard that was written but did not become durable: for the records of stripes, it is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostShard {
    /// The stripe.
    pub stripe: StripeId,
    /// The shard of it.
    pub shard: ShardIndex,
}

/// Stripes that lost more shards than they can do without.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unreadable {
    /// The first with the code of the volume, if there is one.
    pub of_volume: Option<StripeId>,
    /// Those with codes of directories.
    pub of_directories: Vec<StripeId>,
}

/// Shards of a stripe that a rebuild wrote.
#[derive(Clone, Debug)]
pub struct WrittenShards {
    /// The stripe.
    pub stripe: StripeId,
    /// The shards.
    pub shards: ShardSet,
    /// The checksums of those that were added to the stripe.
    pub added: Vec<(ShardIndex, ShardSums)>,
}

/// The records of a stripe that was just written, not synced.
#[derive(Clone, Debug)]
pub struct FlushedStripe {
    /// Its number.
    pub stripe: StripeId,
    /// Its record.
    pub record: Stripe,
    /// The checksums of its shards, of those that could not be written too.
    pub sums: Vec<(ShardIndex, ShardSums)>,
    /// Its segment.
    pub segment: Segment,
    /// True if the segment may have no record yet.
    pub fresh: bool,
    /// True if it has bytes of files of another class, because members are too few for that.
    pub is_misplaced: bool,
}

/// The records of stripes and segments, and the source of their numbers.
pub struct StripeRecords {
    map: Arc<dyn RecordMap>,
    stripes: Numbers,
    segments: Numbers,
    /// Segments that got their final record; one may be empty by now.
    finished: Mutex<Vec<SegmentId>>,
    /// Held by a thread that changes or removes an existing record of a stripe, from reading it on.
    editing: Mutex<()>,
    rewrites: Rewrites,
    past_units: PastUnits,
}

impl StripeRecords {
    /// Reads the counters.
    ///
    /// # Errors
    ///
    /// If one cannot be read.
    pub fn open(map: Arc<dyn RecordMap>) -> Result<Self, RecordError> {
        Ok(Self {
            stripes: Numbers::open(&*map, key::NEXT_STRIPE, 1, STRIPES_AHEAD)?,
            segments: Numbers::open(&*map, key::NEXT_SEGMENT, 1, SEGMENTS_AHEAD)?,
            finished: Mutex::default(),
            editing: Mutex::default(),
            rewrites: Rewrites::new(Arc::clone(&map)),
            past_units: PastUnits::new(Arc::clone(&map)),
            map,
        })
    }

    /// Returns a number that no stripe had before, not even before a crash.
    pub(super) fn next_stripe(&self) -> Result<StripeId, RecordError> {
        let number = self.stripes.next(|batch| self.map.apply_stripes(batch));
        Ok(StripeId(number?))
    }

    /// Returns a number that no segment had before, not even before a crash.
    pub(super) fn next_segment(&self) -> Result<SegmentId, RecordError> {
        let number = self.segments.next(|batch| self.map.apply_stripes(batch));
        Ok(SegmentId(number?))
    }

    /// Returns a stripe's record, for an operation on the stripe.
    pub(super) fn look_up(&self, stripe: StripeId) -> Result<Option<Stripe>, StripeError> {
        let found = self.stripe(stripe);
        found.map_err(|source| StripeError::Lookup { stripe, source })
    }

    /// Returns the checksums of one shard.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn sums(
        &self,
        stripe: StripeId,
        shard: ShardIndex,
    ) -> Result<Option<ShardSums>, RecordError> {
        let found = self.map.get(&key::sums(stripe, shard))?;
        Ok(found.map(|value| ShardSums::decode(&value)).transpose()?)
    }

    /// Calls `check` with the checksums of some blocks of a shard, if the index has all of them. Nothing else is decoded.
    pub(super) fn with_block_sums<T>(
        &self,
        (stripe, shard): (StripeId, ShardIndex),
        blocks: Range<usize>,
        check: impl FnOnce(&mut dyn Iterator<Item = u32>) -> T,
    ) -> Result<Option<T>, StripeError> {
        let lookup = |source| StripeError::Lookup { stripe, source };
        let found = self.map.get(&key::sums(stripe, shard));
        let Some(value) = found.map_err(|error| lookup(error.into()))? else {
            return Ok(None);
        };
        let sums = ShardSums::decode_blocks(&value, blocks);
        let sums = sums.map_err(|error| lookup(error.into()))?;
        Ok(sums.map(|mut sums| check(&mut sums)))
    }

    /// Puts the records of a stripe that was just written. They are visible when this returns.
    pub(super) fn put_flushed(&self, flushed: FlushedStripe) -> Result<(), RecordError> {
        let FlushedStripe {
            stripe,
            record,
            sums,
            segment,
            fresh,
            is_misplaced,
        } = flushed;
        let mut batch = Batch::default();
        if fresh {
            batch.put(key::segment(record.segment), segment.encode());
        }
        batch.put(key::stripe(stripe), record.encode());
        batch.put(
            key::segment_stripe(record.segment, record.offset),
            SegmentStripe(stripe).encode(),
        );
        for (shard, sums) in sums {
            batch.put(key::sums(stripe, shard), sums.encode());
        }
        note_repair(&mut batch, stripe, &segment, None, &record);
        if is_misplaced {
            // With the record: a crash leaves both or neither.
            return self.rewrites.order_with(batch);
        }
        Ok(self.map.apply_stripes(batch)?)
    }

    /// Returns the orders to rewrite files.
    pub(crate) fn rewrites(&self) -> &Rewrites {
        &self.rewrites
    }

    /// Returns the stripe units that the volume had before.
    pub(crate) fn past_units(&self) -> &PastUnits {
        &self.past_units
    }

    /// Returns a number above those of all segments so far. After the next opening, all new ones have this number or a greater
    /// one.
    pub(crate) fn upcoming_segment(&self) -> SegmentId {
        SegmentId(self.segments.upcoming())
    }

    /// Puts the final record of a segment to which no stripe is added any more.
    pub(super) fn finish_segment(
        &self,
        segment: SegmentId,
        record: &Segment,
    ) -> Result<(), RecordError> {
        self.put_segment(segment, record)?;
        self.finished.lock().push(segment);
        Ok(())
    }

    /// Takes the segments that got their final record since the last call.
    #[must_use]
    pub fn take_finished(&self) -> Vec<SegmentId> {
        std::mem::take(&mut self.finished.lock())
    }

    /// Returns a stripe's record.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn stripe(&self, stripe: StripeId) -> Result<Option<Stripe>, RecordError> {
        let found = self.map.get(&key::stripe(stripe))?;
        Ok(found.map(|value| Stripe::decode(&value)).transpose()?)
    }

    /// Takes shards that did not become durable out of the records of their stripes. Returns the
    /// stripes that have too few shards left.
    ///
    /// # Errors
    ///
    /// If the index cannot be read, or takes no change.
    pub fn forget_shards(
        &self,
        lost: &[LostShard],
        segment_of: impl Fn(SegmentId) -> Option<Segment>,
    ) -> Result<Unreadable, RecordError> {
        let _editing = self.editing.lock();
        let mut batch = Batch::default();
        let mut unreadable = Unreadable::default();
        let mut lost = lost.to_vec();
        lost.sort_unstable_by_key(|lost| (lost.stripe, lost.shard));
        for of_stripe in lost.chunk_by(|a, b| a.stripe == b.stripe) {
            let stripe = of_stripe[0].stripe;
            // It may be dead by now, and its segment gone.
            let Some(old) = self.stripe(stripe)? else {
                continue;
            };
            let Some(segment) = segment_of(old.segment) else {
                continue;
            };
            let mut new = old;
            for lost in of_stripe {
                new.written.remove(lost.shard);
            }
            batch.put(key::stripe(stripe), new.encode());
            note_repair(&mut batch, stripe, &segment, Some(&old), &new);
            if losses_tolerated(&segment, &new) < 0 {
                if segment.class == StripeClass::VOLUME {
                    unreadable.of_volume.get_or_insert(stripe);
                } else {
                    unreadable.of_directories.push(stripe);
                }
            }
        }
        self.map.apply_stripes(batch)?;
        Ok(unreadable)
    }

    /// Notes shards of stripes that are durable now, with the checksums of those that were added to their stripes.
    ///
    /// # Errors
    ///
    /// If the index cannot be read, or takes no change.
    pub fn restore_shards(
        &self,
        restored: &[WrittenShards],
        segment_of: impl Fn(SegmentId) -> Option<Segment>,
    ) -> Result<(), RecordError> {
        for some in restored.chunks(EDITED_AT_ONCE) {
            let _editing = self.editing.lock();
            let mut batch = Batch::default();
            self.restore(&mut batch, some, &segment_of)?;
            self.map.apply_stripes(batch)?;
        }
        Ok(())
    }

    /// Notes parity that was added to all stripes of a segment and is durable, and then puts the record of the segment with it.
    /// That goes with the last of the stripes: a crash leaves at least one of them without the parity, which is then added
    /// again.
    ///
    /// # Errors
    ///
    /// If the index cannot be read, or takes no change.
    pub fn add_parity(
        &self,
        segment: SegmentId,
        wide: &Segment,
        added: &[WrittenShards],
    ) -> Result<(), RecordError> {
        let last = added.len().saturating_sub(EDITED_AT_ONCE);
        let (first, last) = added.split_at(last);
        let segment_of = |_| Some(wide.clone());
        self.restore_shards(first, segment_of)?;
        let _editing = self.editing.lock();
        let mut batch = Batch::default();
        self.restore(&mut batch, last, &segment_of)?;
        batch.put(key::segment(segment), wide.encode());
        Ok(self.map.apply_stripes(batch)?)
    }

    /// Adds to a batch that shards of stripes are durable now.
    fn restore(
        &self,
        batch: &mut Batch,
        restored: &[WrittenShards],
        segment_of: &dyn Fn(SegmentId) -> Option<Segment>,
    ) -> Result<(), RecordError> {
        for written in restored {
            let stripe = written.stripe;
            // It may be dead by now.
            let Some(old) = self.stripe(stripe)? else {
                continue;
            };
            let Some(segment) = segment_of(old.segment) else {
                continue;
            };
            let mut new = old;
            let shards = written.shards.iter();
            shards.for_each(|shard| new.written.insert(shard));
            for (shard, sums) in &written.added {
                batch.put(key::sums(stripe, *shard), sums.encode());
            }
            batch.put(key::stripe(stripe), new.encode());
            note_repair(batch, stripe, &segment, Some(&old), &new);
        }
        Ok(())
    }

    /// Takes parity shards out of the records of stripes of a segment, and then puts the record of the segment without them.
    /// `segment` and the stripes must be what they are called. Calls `is_known` before anything else changes these records.
    ///
    /// # Errors
    ///
    /// If the index cannot be read, or takes no change.
    pub fn drop_parity(
        &self,
        segment: SegmentId,
        (wide, narrow): (&Segment, &Segment),
        stripes: &[StripeId],
        is_known: impl FnOnce(),
    ) -> Result<(), RecordError> {
        let _editing = self.editing.lock();
        let dropped = narrow.total_shards()..wide.total_shards();
        let dropped = dropped.filter_map(|shard| u8::try_from(shard).ok().map(ShardIndex));
        let dropped: Vec<ShardIndex> = dropped.collect();
        for some in stripes.chunks(EDITED_AT_ONCE) {
            let mut batch = Batch::default();
            for stripe in some {
                // It may be dead by now.
                let Some(old) = self.stripe(*stripe)? else {
                    continue;
                };
                let mut new = old;
                for shard in &dropped {
                    new.written.remove(*shard);
                    batch.delete(key::sums(*stripe, *shard));
                }
                batch.put(key::stripe(*stripe), new.encode());
                batch.delete(repair_key(*stripe, wide, &old));
                note_repair(&mut batch, *stripe, narrow, None, &new);
            }
            self.map.apply_stripes(batch)?;
        }
        self.put_segment(segment, narrow)?;
        is_known();
        Ok(())
    }

    /// Puts the record of a segment that is on other members from now on.
    ///
    /// # Errors
    ///
    /// If the index cannot be read, or takes no change.
    pub fn put_segment(&self, segment: SegmentId, record: &Segment) -> Result<(), RecordError> {
        let mut batch = Batch::default();
        batch.put(key::segment(segment), record.encode());
        Ok(self.map.apply_stripes(batch)?)
    }

    /// Removes all records of a dead stripe, and that of its segment if `with_segment`.
    ///
    /// # Errors
    ///
    /// If the index cannot be read, or takes no change.
    pub fn remove(
        &self,
        stripe: StripeId,
        record: &Stripe,
        segment: &Segment,
        with_segment: bool,
    ) -> Result<(), RecordError> {
        let _editing = self.editing.lock();
        // The list of lacking shards may have changed since it was read.
        let newest = self.stripe(stripe)?;
        let record = newest.as_ref().unwrap_or(record);
        let mut batch = Batch::default();
        batch.delete(key::stripe(stripe));
        batch.delete(key::segment_stripe(record.segment, record.offset));
        let total = segment.data_shards.saturating_add(segment.parity_shards);
        (0..total).for_each(|shard| batch.delete(key::sums(stripe, ShardIndex(shard))));
        batch.delete(repair_key(stripe, segment, record));
        batch.delete(key::lost(stripe));
        if with_segment {
            batch.delete(key::segment(record.segment));
        }
        Ok(self.map.apply_stripes(batch)?)
    }

    /// Removes the record of an empty segment.
    ///
    /// # Errors
    ///
    /// If the index cannot be read, or takes no change.
    pub fn remove_segment(&self, segment: SegmentId) -> Result<(), RecordError> {
        let mut batch = Batch::default();
        batch.delete(key::segment(segment));
        Ok(self.map.apply_stripes(batch)?)
    }
}

fn losses_tolerated(segment: &Segment, record: &Stripe) -> i16 {
    Tally::of(segment, record, |shard| record.written.contains(shard)).losses_tolerated()
}

fn repair_key(stripe: StripeId, segment: &Segment, record: &Stripe) -> Key {
    key::repair(u8::try_from(losses_tolerated(segment, record)).ok(), stripe)
}

/// Puts a stripe that lacks shards into the repair ledger, in the place of its old note.
fn note_repair(
    batch: &mut Batch,
    stripe: StripeId,
    segment: &Segment,
    old: Option<&Stripe>,
    new: &Stripe,
) {
    if let Some(old) = old {
        batch.delete(repair_key(stripe, segment, old));
    }
    let data_shards = usize::from(segment.data_shards);
    let total = segment.data_shards.saturating_add(segment.parity_shards);
    let is_missing =
        |shard: &ShardIndex| !new.written.contains(*shard) && !new.is_implied(*shard, data_shards);
    let missing: ShardSet = (0..total).map(ShardIndex).filter(is_missing).collect();
    if !missing.is_empty() {
        batch.put(
            repair_key(stripe, segment, new),
            RepairNote { missing }.encode(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::MemberIndex;
    use crate::format::StripeClass;
    use crate::metadata::{Key, MemoryMap};

    const STRIPE: StripeId = StripeId(7);

    fn segment() -> Segment {
        Segment {
            class: StripeClass::VOLUME,
            data_shards: 2,
            parity_shards: 1,
            code: 1,
            len: 1 << 20,
            slots: (0..3).map(|slot| Some(MemberIndex(slot))).collect(),
            rotating: 3,
        }
    }

    fn shards(indices: impl IntoIterator<Item = u8>) -> ShardSet {
        indices.into_iter().map(ShardIndex).collect()
    }

    /// Returns records of one stripe that was flushed with these shards, and their map.
    fn flushed_with(written: ShardSet) -> (Arc<MemoryMap>, StripeRecords) {
        let map = Arc::new(MemoryMap::default());
        let records = StripeRecords::open(Arc::clone(&map) as _).unwrap();
        let record = Stripe {
            segment: SegmentId(1),
            offset: 4096,
            height: 4096,
            payload_len: 8192,
            rotation: 0,
            written,
        };
        let sums = (0..3).map(|shard| (ShardIndex(shard), ShardSums(vec![u32::from(shard)])));
        let flushed = FlushedStripe {
            stripe: STRIPE,
            record,
            sums: sums.collect(),
            segment: segment(),
            fresh: true,
            is_misplaced: false,
        };
        records.put_flushed(flushed).unwrap();
        (map, records)
    }

    fn repair_notes(map: &MemoryMap) -> Vec<ShardSet> {
        let (from, end) = key::repairs();
        let notes = map.range(from, end).into_iter();
        notes
            .map(|(_, value)| RepairNote::decode(&value).unwrap().missing)
            .collect()
    }

    #[test]
    fn a_repair_note_names_the_missing_shards_from_their_loss_until_they_are_restored() {
        let (map, records) = flushed_with(shards(0..3));
        assert!(repair_notes(&map).is_empty());
        let lost = |shard| LostShard {
            stripe: STRIPE,
            shard: ShardIndex(shard),
        };
        let segment_of = |_| Some(segment());
        let forgotten = records.forget_shards(&[lost(1)], segment_of);
        assert_eq!(forgotten.unwrap().of_volume, None, "one loss is tolerated");
        assert_eq!(repair_notes(&map), [shards([1])]);
        let forgotten = records.forget_shards(&[lost(2)], segment_of);
        assert_eq!(forgotten.unwrap().of_volume, Some(STRIPE), "two are not");
        assert_eq!(repair_notes(&map), [shards([1, 2])]);
        let restored = [WrittenShards {
            stripe: STRIPE,
            shards: shards([1, 2]),
            added: Vec::new(),
        }];
        records.restore_shards(&restored, segment_of).unwrap();
        assert!(repair_notes(&map).is_empty());
        let record = records.stripe(STRIPE).unwrap().unwrap();
        assert_eq!(record.written, shards(0..3));
    }

    #[test]
    fn a_removed_stripe_leaves_no_record() {
        for written in [shards(0..3), shards([0, 2])] {
            let (map, records) = flushed_with(written);
            let record = records.stripe(STRIPE).unwrap().unwrap();
            assert!(records.sums(STRIPE, ShardIndex(2)).unwrap().is_some());
            records.remove(STRIPE, &record, &segment(), true).unwrap();
            let (from, end) = (Key::from(vec![0]), Key::from(vec![u8::MAX; 16]));
            let left = map.range(from, end);
            assert!(left.is_empty(), "{left:?}");
        }
    }

    #[test]
    fn a_segment_is_reported_as_finished_once() {
        let (_, records) = flushed_with(shards(0..3));
        records.finish_segment(SegmentId(1), &segment()).unwrap();
        assert_eq!(records.take_finished(), [SegmentId(1)]);
        assert!(records.take_finished().is_empty());
    }
}
