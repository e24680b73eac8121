//! From a sealed stripe to shards on members and records in the index.
//!
//! 1. Cut the payload into data shards. Encode parity and take the checksums of all blocks in one pass over them, on
//!    the threads that the whole daemon shares for computing. Where devices do that, several stripes that wait are
//!    encoded by one call, and then wait to be written, by any thread.
//! 2. Take the reserved place; write all shards to their members at once.
//! 3. If members failed meanwhile and others can take their place, write the stripe again elsewhere:
//!    a place is never written twice, so nothing of the first attempt can be mistaken for it.
//! 4. Note what is to be synced, then put the records into the index. In this order, a sync that takes the
//!    records finds the shards among what is to be synced. Shards that a sync in between finds lost wait for the
//!    records, and are reported by the next sync.

use std::sync::Arc;

use bytes::Bytes;
use scopeguard::{ScopeGuard, guard_on_unwind};

use super::Writer;
use crate::format::record::ShardSet;
use crate::format::{MemberIndex, ShardIndex, StripeClass};
use crate::store::{Op, Outcome, StoreError, StoreErrorKind};
use crate::stripes::buffers::Sealed;
use crate::stripes::dirty::Replacements;
use crate::stripes::encoded::Encoded;
use crate::stripes::error::StripeError;
use crate::stripes::layout;
use crate::stripes::records::{FlushedStripe, LostShard};
use crate::stripes::segment_handle::SegmentHandle;
use crate::stripes::segments::{Allocated, Need, Reservation};

/// The result of one attempt to write a stripe.
struct Attempt {
    place: Allocated,
    rotation: u8,
    written: Vec<(ShardIndex, MemberIndex)>,
    /// The count of replaced files before the first shard was written.
    before: Replacements,
    last_error: Option<StoreError>,
}

impl Attempt {
    fn has(&self, shard: ShardIndex) -> bool {
        self.written.iter().any(|(written, _)| *written == shard)
    }
}

impl Writer {
    /// Flushes one stripe, and tells every waiting thread what became of it.
    pub(crate) fn flush(&self, sealed: &Arc<Sealed>) {
        let unwinding = guard_on_unwind((), |()| {
            let stripe = sealed.stripe;
            self.buffers
                .done(sealed, Err(StripeError::Panicked { stripe }));
        });
        let span = tracing::debug_span!("flush", stripe = %sealed.stripe);
        let outcome = span.in_scope(|| self.write_and_record(sealed));
        ScopeGuard::into_inner(unwinding);
        match &outcome {
            Ok(()) => {}
            Err(error @ StripeError::NoSpace { .. }) => {
                // It is tried again with every commit, and those say that they find no space.
                tracing::debug!("stripe {} waits for space: {error}", sealed.stripe);
            }
            Err(error) => tracing::error!(stripe = %sealed.stripe, "cannot be flushed: {error}"),
        }
        self.buffers.done(sealed, outcome);
    }

    fn write_and_record(&self, sealed: &Sealed) -> Result<(), StripeError> {
        let mut code = Arc::clone(&sealed.code);
        let mut reservation = sealed.take_reservation();
        if self.takes_code_of_volume(sealed) {
            code = self.code_at_present(&code);
        }
        if !Arc::ptr_eq(&code, &sealed.code)
            && let Some(reserved) = reservation.take()
        {
            self.segments.release(reserved)?;
        }
        let encoded = match sealed.take_encoded() {
            Some(encoded) if Arc::ptr_eq(&code, &sealed.code) => encoded,
            _ => self.encoder.encode(sealed, &code)?,
        };
        let written = self.write(&encoded, reservation);
        let (encoded, attempt) = match written {
            // Members may have become too few for its code since it was opened.
            Err(StripeError::Failed { .. } | StripeError::NotWritten { .. })
                if self.takes_code_of_volume(sealed) =>
            {
                let encoded = self.encoder.encode(sealed, self.classes.volume())?;
                let attempt = self.write(&encoded, None)?;
                (encoded, attempt)
            }
            written => (encoded, written?),
        };
        let segment = attempt.place.segment.id;
        let recorded = self.record(&encoded, &attempt, sealed.class);
        let completed = self.segments.complete(segment);
        recorded.and(completed)
    }

    /// Returns whether a stripe with the code of a directory can have that of the volume instead.
    fn takes_code_of_volume(&self, sealed: &Sealed) -> bool {
        let volume = self.classes.volume();
        !Arc::ptr_eq(&sealed.code, volume) && sealed.payload_len <= volume.capacity()
    }

    /// Encodes a stripe that is about to be flushed, and some that wait to be, by one call; returns these to the queue,
    /// so that other threads can write them.
    pub(super) fn encode_ahead(&self, sealed: &Arc<Sealed>) {
        if sealed.is_encoded() {
            return;
        }
        let others = self.buffers.take_unencoded(&sealed.code);
        let all = || std::iter::once(sealed).chain(&others);
        let unwinding = guard_on_unwind((), |()| {
            for sealed in all() {
                let stripe = sealed.stripe;
                self.buffers
                    .done(sealed, Err(StripeError::Panicked { stripe }));
            }
        });
        self.encoder.encode_all(&sealed.code, all());
        ScopeGuard::into_inner(unwinding);
        self.buffers.requeue(others);
    }

    /// Writes the shards, again and elsewhere as long as that promises more of them on members.
    fn write(
        &self,
        encoded: &Encoded,
        mut reservation: Option<Reservation>,
    ) -> Result<Attempt, StripeError> {
        let mut best: Option<Attempt> = None;
        // Every further try follows the failure or the filling up of at least one member.
        for _ in 0..=2 * self.members.membership().count() {
            let place = match self.place(encoded, reservation.take()) {
                Ok(place) => place,
                Err(error) => return self.accept(encoded, best).map_err(|_| error),
            };
            let attempt = self.write_at(encoded, place);
            let failed = attempt.last_error.is_some();
            let worth = |attempt: &Attempt| {
                let tolerated = Self::losses_tolerated(encoded, |shard| attempt.has(shard));
                (tolerated, attempt.written.len())
            };
            let better = best.as_ref().is_none_or(|b| worth(&attempt) > worth(b));
            let worse = if better {
                best.replace(attempt)
            } else {
                Some(attempt)
            };
            if let Some(worse) = worse {
                self.give_up(encoded, &worse)?;
            }
            if !failed {
                break;
            }
        }
        self.accept(encoded, best)
    }

    /// Accepts the best attempt, if the stripe can be read back from it.
    fn accept(&self, encoded: &Encoded, best: Option<Attempt>) -> Result<Attempt, StripeError> {
        let geometry = encoded.code.geometry();
        let implied = geometry.total_shards() - encoded.shards.len();
        let needed = geometry.data_shards() - implied;
        match best {
            Some(attempt) if Self::losses_tolerated(encoded, |shard| attempt.has(shard)) >= 0 => {
                Ok(attempt)
            }
            other => {
                if let Some(attempt) = &other {
                    self.give_up(encoded, attempt)?;
                }
                let written = other.as_ref().map_or(0, |attempt| attempt.written.len());
                let source = other.and_then(|attempt| attempt.last_error);
                if source.as_ref().map(StoreError::kind) == Some(StoreErrorKind::NoSpace) {
                    let needed = geometry.total_shards();
                    return Err(StripeError::NoSpace { needed });
                }
                Err(StripeError::NotWritten {
                    stripe: encoded.stripe,
                    written,
                    needed,
                    source,
                })
            }
        }
    }

    /// Returns how many losses a stripe survives of which some shards are written; negative if it cannot be read.
    fn losses_tolerated(encoded: &Encoded, is_written: impl Fn(ShardIndex) -> bool) -> i16 {
        let existing: ShardSet = encoded.shards.iter().map(|(shard, _)| *shard).collect();
        let survival = encoded.code.survival();
        survival.losses_tolerated(|index| {
            let shard = layout::shard(index);
            !existing.contains(shard) || is_written(shard)
        })
    }

    /// Finds the place that keeps most shards; a reserved one, if no better is to be had.
    fn place(
        &self,
        encoded: &Encoded,
        reservation: Option<Reservation>,
    ) -> Result<Allocated, StripeError> {
        let height = encoded.height as u64;
        let reserved = match reservation {
            Some(reserved) if self.segments.is_fit(&reserved) => reserved,
            Some(reserved) => match self.segments.reserve(&encoded.code, Need::Accepted) {
                Ok(better) => {
                    self.segments.release(reserved)?;
                    better
                }
                Err(_) => reserved,
            },
            None => self.segments.reserve(&encoded.code, Need::Accepted)?,
        };
        Ok(self.segments.allocate(reserved, height))
    }

    fn write_at(&self, encoded: &Encoded, place: Allocated) -> Attempt {
        let live = self.members.membership().live();
        let rotation = Self::rotation(encoded, &place.segment, &live);
        let stripe = encoded.record(
            (place.segment.id, place.offset),
            rotation,
            ShardSet::default(),
        );
        let target = |(shard, bytes): &(ShardIndex, Bytes)| {
            let member = place.segment.member_of(&stripe, *shard)?;
            live.contains(&member)
                .then(|| (*shard, member, bytes.clone()))
        };
        let targets: Vec<_> = encoded.shards.iter().filter_map(target).collect();
        let before = self.dirty.replacements();
        let outcomes = self.write_shards(&place, &targets);
        let mut attempt = Attempt {
            place,
            rotation,
            written: Vec::new(),
            before,
            last_error: None,
        };
        for ((shard, member, _), outcome) in targets.into_iter().zip(outcomes) {
            match outcome {
                Ok(_) => attempt.written.push((shard, member)),
                Err(error) => {
                    match error.kind() {
                        StoreErrorKind::NoSpace => self.segments.set_full(member),
                        StoreErrorKind::NotFound | StoreErrorKind::Foreign => {
                            self.segments.set_damaged(attempt.place.segment.id);
                        }
                        // Any other error took the member out.
                        _ => {}
                    }
                    attempt.last_error = Some(error);
                }
            }
        }
        attempt
    }

    /// Writes shards; those that find no space once more, in the space that is kept back for them.
    fn write_shards(
        &self,
        place: &Allocated,
        targets: &[(ShardIndex, MemberIndex, Bytes)],
    ) -> Vec<Outcome> {
        let write = |(_, member, data): &(ShardIndex, MemberIndex, Bytes)| {
            let name = Arc::clone(&place.segment.name);
            (
                *member,
                Op::Write {
                    name,
                    offset: place.offset,
                    data: data.clone(),
                },
            )
        };
        let mut outcomes = self.members.io().run(targets.iter().map(write).collect());
        let is_full = |outcome: &Outcome| {
            let error = outcome.as_ref().err();
            error.is_some_and(|error| error.kind() == StoreErrorKind::NoSpace)
        };
        let again: Vec<usize> = (0..targets.len())
            .filter(|&at| is_full(&outcomes[at]) && self.segments.give_ballast(targets[at].1))
            .collect();
        let ops = again.iter().map(|&at| write(&targets[at])).collect();
        for (at, outcome) in again.into_iter().zip(self.members.io().run(ops)) {
            outcomes[at] = outcome;
        }
        outcomes
    }

    /// Leaves a place that a better one was found for.
    fn give_up(&self, encoded: &Encoded, attempt: &Attempt) -> Result<(), StripeError> {
        let place = &attempt.place;
        self.segments.punch(
            place.segment.id,
            place.offset,
            layout::stripe_bytes(encoded.height),
        );
        self.segments.complete(place.segment.id)
    }

    /// Returns whether the volume has enough members for a class, absent ones included.
    fn can_house(&self, class: StripeClass) -> bool {
        let code = self.classes.get(class);
        let count = self.members.membership().count();
        code.is_some_and(|code| code.geometry().total_shards() <= count)
    }

    /// Records a stripe with bytes of files of a class. One of another class is noted, so that a rebuild moves its bytes,
    /// unless the volume has too few members for that.
    fn record(
        &self,
        encoded: &Encoded,
        attempt: &Attempt,
        class: StripeClass,
    ) -> Result<(), StripeError> {
        let place = &attempt.place;
        let segment = place.segment.id;
        let stripe = encoded.stripe;
        let mut written = ShardSet::default();
        attempt
            .written
            .iter()
            .for_each(|&(shard, _)| written.insert(shard));
        let flushed = FlushedStripe {
            stripe,
            record: encoded.record((segment, place.offset), attempt.rotation, written),
            sums: encoded.sums.clone(),
            segment: place.segment.record.clone(),
            fresh: !self.segments.is_recorded(segment),
            is_misplaced: encoded.code.class() != class && self.can_house(class),
        };
        let lost =
            |&(shard, member): &(ShardIndex, MemberIndex)| (member, LostShard { stripe, shard });
        let written = attempt.written.iter().map(lost);
        self.dirty.add(&place.segment, written, attempt.before);
        let recorded = self.records.put_flushed(flushed);
        recorded.map_err(|source| StripeError::NotRecorded { stripe, source })?;
        self.segments.set_recorded(segment);
        Ok(())
    }

    /// Returns how far to rotate a stripe: by one slot more than the stripe before, so that parity is spread evenly.
    /// Where slots cannot be written, the rotation makes such shards fall on them that the stripe lacks least.
    fn rotation(encoded: &Encoded, segment: &SegmentHandle, live: &[MemberIndex]) -> u8 {
        let total = encoded.code.geometry().total_shards();
        let usual = usize::try_from(encoded.stripe.0 % total as u64).unwrap_or(0);
        let writable = |slot: &Option<MemberIndex>| slot.is_some_and(|m| live.contains(&m));
        let writable: Vec<bool> = segment.record.slots.iter().map(writable).collect();
        let rotation = |turn: usize| layout::shard((usual + turn) % total).0;
        let reached = |&rotation: &u8| {
            let is_reached = |shard| writable[segment.record.slot_of(shard, rotation)];
            let shards = encoded.shards.iter().map(|(shard, _)| *shard);
            let count = shards.filter(|&shard| is_reached(shard)).count();
            (Self::losses_tolerated(encoded, is_reached), count)
        };
        let first = rotation(0);
        if writable.iter().all(|&writable| writable) {
            return first;
        }
        let mut best = (reached(&first), first);
        for turn in (1..total).map(rotation) {
            let reached = reached(&turn);
            if reached > best.0 {
                best = (reached, turn);
            }
        }
        best.1
    }
}
