//! The records of stripes and segments, as the volume's catalog; and the counters.
//!
//! Every change here goes through [`Meta::apply_stripes`]. So a commit can take the records of stripes apart from all
//! others, after the changes that name those stripes: see [`super::sync`](super). The inode counter is the one
//! exception: it goes with the inodes.

use std::sync::Arc;

use parking_lot::Mutex;

use super::CommitError;
use crate::format::record::{
    Counter, RepairNote, Segment, SegmentStripe, ShardSet, ShardSums, Stripe,
};
use crate::format::{Ino, Record, SegmentId, ShardIndex, StripeId, key};
use crate::meta::{Batch, Meta};
use crate::volume::{Catalog, CatalogError, FlushedStripe, LostShard, Tally};

/// The distance that a counter on disk runs ahead of the numbers in use.
const STRIPES_AHEAD: u64 = 1024;
const SEGMENTS_AHEAD: u64 = 64;
const INODES_AHEAD: u64 = 4096;

/// Records of stripes changed in one go: less than a journal record takes.
const EDITED_AT_ONCE: usize = 1024;

/// Numbers that are in the index already and can be given out.
#[derive(Debug)]
struct Numbers {
    next: u64,
    end: u64,
}

/// The records of stripes and segments, and the counters.
pub(super) struct Records {
    meta: Arc<Meta>,
    stripes: Mutex<Numbers>,
    segments: Mutex<Numbers>,
    inodes: Mutex<Numbers>,
    /// Segments that got their final record; one may be empty by now.
    finished: Mutex<Vec<SegmentId>>,
    /// Held by a thread that changes or removes an existing record of a stripe, from reading it on.
    editing: Mutex<()>,
}

impl Records {
    /// Reads the counters.
    pub(super) fn open(meta: Arc<Meta>) -> Result<Self, CommitError> {
        let numbers = |name, least| -> Result<_, CommitError> {
            let stored = meta.get(&key::counter(name))?;
            let next = stored
                .map_or(Ok(Counter(least)), |value| Counter::decode(&value))?
                .0;
            Ok(Mutex::new(Numbers { next, end: next }))
        };
        Ok(Self {
            stripes: numbers(key::NEXT_STRIPE, 1)?,
            segments: numbers(key::NEXT_SEGMENT, 1)?,
            inodes: numbers(key::NEXT_INO, Ino::ROOT.0 + 1)?,
            finished: Mutex::default(),
            editing: Mutex::default(),
            meta,
        })
    }

    /// Returns a number that no inode had before.
    pub(super) fn next_ino(&self) -> Result<Ino, CommitError> {
        let apply = |batch| self.meta.apply(batch);
        next(&self.inodes, key::NEXT_INO, INODES_AHEAD, apply).map(Ino)
    }

    /// Takes the segments that got their final record since the last call.
    pub(super) fn take_finished(&self) -> Vec<SegmentId> {
        std::mem::take(&mut self.finished.lock())
    }

    /// Returns a stripe's record.
    pub(super) fn stripe(&self, stripe: StripeId) -> Result<Option<Stripe>, CommitError> {
        let found = self.meta.get(&key::stripe(stripe))?;
        Ok(found.map(|value| Stripe::decode(&value)).transpose()?)
    }

    /// Takes shards that did not become durable out of the records of their stripes. Returns the
    /// first stripe that has too few shards left, if there is one.
    pub(super) fn forget_shards(
        &self,
        lost: &[LostShard],
        segment_of: impl Fn(SegmentId) -> Option<Segment>,
    ) -> Result<Option<StripeId>, CommitError> {
        let _editing = self.editing.lock();
        let mut batch = Batch::default();
        let mut unreadable = None;
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
                unreadable.get_or_insert(stripe);
            }
        }
        self.meta.apply_stripes(batch)?;
        Ok(unreadable)
    }

    /// Notes shards of stripes that are durable now.
    pub(super) fn restore_shards(
        &self,
        restored: &[(StripeId, ShardSet)],
        segment_of: impl Fn(SegmentId) -> Option<Segment>,
    ) -> Result<(), CommitError> {
        for some in restored.chunks(EDITED_AT_ONCE) {
            let _editing = self.editing.lock();
            let mut batch = Batch::default();
            for (stripe, shards) in some {
                // It may be dead by now.
                let Some(old) = self.stripe(*stripe)? else {
                    continue;
                };
                let Some(segment) = segment_of(old.segment) else {
                    continue;
                };
                let mut new = old;
                shards.iter().for_each(|shard| new.written.insert(shard));
                batch.put(key::stripe(*stripe), new.encode());
                note_repair(&mut batch, *stripe, &segment, Some(&old), &new);
            }
            self.meta.apply_stripes(batch)?;
        }
        Ok(())
    }

    /// Puts the record of a segment that is on other members from now on.
    pub(super) fn put_segment(
        &self,
        segment: SegmentId,
        record: &Segment,
    ) -> Result<(), CommitError> {
        let mut batch = Batch::default();
        batch.put(key::segment(segment), record.encode());
        Ok(self.meta.apply_stripes(batch)?)
    }

    /// Removes all records of a dead stripe, and that of its segment if `with_segment`.
    pub(super) fn remove(
        &self,
        stripe: StripeId,
        record: &Stripe,
        segment: &Segment,
        with_segment: bool,
    ) -> Result<(), CommitError> {
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
        Ok(self.meta.apply_stripes(batch)?)
    }

    /// Removes the record of an empty segment.
    pub(super) fn remove_segment(&self, segment: SegmentId) -> Result<(), CommitError> {
        let mut batch = Batch::default();
        batch.delete(key::segment(segment));
        Ok(self.meta.apply_stripes(batch)?)
    }
}

impl Catalog for Records {
    fn stripe(&self, stripe: StripeId) -> Result<Option<Stripe>, CatalogError> {
        Self::stripe(self, stripe).map_err(|error| error.for_catalog())
    }

    fn sums(&self, stripe: StripeId, shard: ShardIndex) -> Result<Option<ShardSums>, CatalogError> {
        let read = || -> Result<_, CommitError> {
            let found = self.meta.get(&key::sums(stripe, shard))?;
            Ok(found.map(|value| ShardSums::decode(&value)).transpose()?)
        };
        read().map_err(|error| error.for_catalog())
    }

    fn next_stripe(&self) -> Result<StripeId, CatalogError> {
        let apply = |batch| self.meta.apply_stripes(batch);
        let number = next(&self.stripes, key::NEXT_STRIPE, STRIPES_AHEAD, apply);
        number.map(StripeId).map_err(|error| error.for_catalog())
    }

    fn next_segment(&self) -> Result<SegmentId, CatalogError> {
        let apply = |batch| self.meta.apply_stripes(batch);
        let number = next(&self.segments, key::NEXT_SEGMENT, SEGMENTS_AHEAD, apply);
        number.map(SegmentId).map_err(|error| error.for_catalog())
    }

    fn flushed(&self, flushed: FlushedStripe) -> Result<(), CatalogError> {
        let FlushedStripe {
            stripe,
            record,
            sums,
            segment,
            fresh,
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
        self.meta
            .apply_stripes(batch)
            .map_err(|error| CommitError::from(error).for_catalog())
    }

    fn finished(&self, segment: SegmentId, record: &Segment) -> Result<(), CatalogError> {
        let mut batch = Batch::default();
        batch.put(key::segment(segment), record.encode());
        let applied = self.meta.apply_stripes(batch);
        applied.map_err(|error| CommitError::from(error).for_catalog())?;
        self.finished.lock().push(segment);
        Ok(())
    }
}

/// Gives out the next number; moves the counter in the index on before the numbers it covers.
fn next<E: Into<CommitError>>(
    numbers: &Mutex<Numbers>,
    name: &str,
    ahead: u64,
    apply: impl FnOnce(Batch) -> Result<(), E>,
) -> Result<u64, CommitError> {
    let mut numbers = numbers.lock();
    if numbers.next == numbers.end {
        // Counters as read are at most half of what 64 bits hold.
        let end = numbers.end.saturating_add(ahead);
        let mut batch = Batch::default();
        batch.put(key::counter(name), Counter(end).encode());
        apply(batch).map_err(Into::into)?;
        numbers.end = end;
    }
    numbers.next += 1;
    Ok(numbers.next - 1)
}

fn losses_tolerated(segment: &Segment, record: &Stripe) -> i16 {
    Tally::of(segment, record, |shard| record.written.contains(shard)).losses_tolerated()
}

fn repair_key(stripe: StripeId, segment: &Segment, record: &Stripe) -> bytes::Bytes {
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
