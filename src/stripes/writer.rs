//! Writing stripes: from bytes of files to shards on members.
//!
//! Bytes are appended to the open stripe. A full stripe is sealed, encoded, written to the members of a segment, and
//! recorded. Its shards become durable with the next [`Writer::sync`].

use std::sync::Arc;

use super::buffers::{Buffers, Hold, Opening, Placed, Unjournaled};
use super::classes::{ClassCode, Classes};
use super::dirty::{Dirty, Replacements};
use super::encoder::Encoder;
use super::error::StripeError;
use super::records::{LostShard, StripeRecords};
use super::segments::{Need, Reservation, Segments};
use crate::format::{SegmentId, StripeClass, StripeId};
use crate::membership::{Access, Members};

mod flush;

/// Writes stripes.
pub(crate) struct Writer {
    members: Arc<Members>,
    records: Arc<StripeRecords>,
    segments: Arc<Segments>,
    classes: Arc<Classes>,
    buffers: Arc<Buffers>,
    dirty: Arc<Dirty>,
    encoder: Encoder,
    /// False if no thread flushes: then callers that fill or sync stripes flush them, in the same order in every run.
    has_threads: bool,
}

impl Writer {
    /// Creates the part. With `has_threads`, threads call [`Writer::flush_forever`].
    pub(super) fn new(
        members: Arc<Members>,
        records: Arc<StripeRecords>,
        (segments, classes): (Arc<Segments>, Arc<Classes>),
        buffers: Arc<Buffers>,
        dirty: Arc<Dirty>,
        encoder: Encoder,
        has_threads: bool,
    ) -> Self {
        Self {
            members,
            records,
            segments,
            classes,
            buffers,
            dirty,
            encoder,
            has_threads,
        }
    }

    fn check_writable(&self) -> Result<(), StripeError> {
        match self.members.access() {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(StripeError::ReadOnly),
        }
    }

    /// Copies as much of `data` as fits into the open stripe of a class, at least a byte; call again with the rest. The bytes can
    /// be read at once, and are on members after [`Writer::wait_flushed`].
    ///
    /// Blocks while all buffers are on their way to the members.
    ///
    /// # Errors
    ///
    /// [`StripeError::NoSpace`] if there is no room for another stripe; anything else means that the volume takes no
    /// more bytes.
    pub(crate) fn append(
        &self,
        class: StripeClass,
        data: &[u8],
    ) -> Result<(Placed, Hold), StripeError> {
        self.check_writable()?;
        loop {
            if let Some(placed) = self.buffers.append(class, data) {
                return Ok(placed);
            }
            self.open_stripe(class)?;
        }
    }

    /// Appends like [`Writer::append`], but never waits and never opens a stripe: returns `None` if no stripe is open
    /// for the class that has room for a part of `data`.
    #[must_use]
    pub(crate) fn append_at_once(&self, class: StripeClass, data: &[u8]) -> Option<(Placed, Hold)> {
        self.buffers.append(class, data)
    }

    /// Opens a stripe for a class, if none is open; waits as [`Writer::append`] does.
    ///
    /// # Errors
    ///
    /// As for [`Writer::append`].
    pub(crate) fn open_stripe(&self, class: StripeClass) -> Result<(), StripeError> {
        let code = self.code_of(class)?;
        let prepare = || {
            let (reservation, code) = self.reserve(&code, Need::New)?;
            self.number(reservation, code)
        };
        let help = || self.flush_one_here();
        self.buffers.open_stripe(class, help, prepare)
    }

    /// Returns the code of a class.
    fn code_of(&self, class: StripeClass) -> Result<Arc<ClassCode>, StripeError> {
        let code = self.classes.get(class);
        code.ok_or(StripeError::UnknownClass { class })
    }

    /// Returns the code for a new stripe: that of the volume instead of one of directories while this lacks members and
    /// stripes of the volume would survive more losses.
    pub(crate) fn code_at_present(&self, code: &Arc<ClassCode>) -> Arc<ClassCode> {
        let volume = self.classes.volume();
        // A draining member leaves only once no stripe needs it. So it counts only if the volume lacks members without it.
        let shards = volume.geometry().total_shards();
        let homes = self.members.membership().homes(shards).len();
        let vacant = |code: &ClassCode| code.geometry().total_shards().saturating_sub(homes);
        let survived = |code: &ClassCode| code.survival().after(vacant(code));
        let is_lacking = vacant(code) > 0 && survived(code) < survived(volume);
        Arc::clone(if is_lacking { volume } else { code })
    }

    /// Reserves room for a stripe. While members are too few for the code of a directory, the stripe gets that of the
    /// volume.
    pub(super) fn reserve(
        &self,
        code: &Arc<ClassCode>,
        need: Need,
    ) -> Result<(Reservation, Arc<ClassCode>), StripeError> {
        let volume = self.classes.volume();
        let code = self.code_at_present(code);
        match self.segments.reserve(&code, need) {
            Ok(reservation) => Ok((reservation, code)),
            Err(StripeError::Failed { .. }) if !Arc::ptr_eq(&code, volume) => {
                Ok((self.segments.reserve(volume, need)?, Arc::clone(volume)))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns how many losses a new stripe survives with the members that take shards, whatever room they have.
    pub(crate) fn attainable(&self, code: &Arc<ClassCode>) -> i16 {
        let code = self.code_at_present(code);
        let shards = code.geometry().total_shards();
        let homes = self.members.membership().homes(shards).len();
        code.survival().after(shards.saturating_sub(homes))
    }

    /// Returns the room on the members, in stripes. `None` if a new stripe of compaction that has to survive `least` losses
    /// finds no place.
    pub(crate) fn room_for(&self, code: &Arc<ClassCode>, least: i16) -> Option<u64> {
        let code = self.code_at_present(code);
        self.segments.room_for(&code, least)
    }

    /// Puts `payload` into a stripe of its own, which is sealed at once. The stripe may use the room that is kept back
    /// for compaction. The place chosen for it survives `least` losses, but its members may fail or fill up until it is
    /// flushed. Calls `note` with its number before that.
    ///
    /// # Errors
    ///
    /// As for [`Writer::append`]; [`StripeError::LessProtected`] if members are too few for `least`. If `note` fails, nothing
    /// is written.
    ///
    /// # Panics
    ///
    /// If `payload` is longer than the capacity of the class.
    pub(crate) fn append_stripe<E: From<StripeError>>(
        &self,
        class: StripeClass,
        payload: &[u8],
        least: i16,
        note: impl FnOnce(StripeId) -> Result<(), E>,
    ) -> Result<(StripeId, Hold), E> {
        let code = self.code_of(class)?;
        assert!(
            payload.len() <= code.capacity(),
            "a payload longer than a stripe"
        );
        self.check_writable()?;
        self.buffers.check()?;
        let (reservation, code) = self.reserve(&code, Need::Compaction(least))?;
        let Opening {
            stripe,
            code,
            reservation,
        } = self.number(reservation, code)?;
        let hold = self.buffers.hold(stripe);
        if let Err(error) = note(stripe) {
            self.segments.release(reservation)?;
            return Err(error);
        }
        self.buffers
            .restore(class, (stripe, code), payload, Some(reservation));
        Ok((stripe, hold))
    }

    /// Gives the stripe a number for which room was reserved.
    fn number(
        &self,
        reservation: Reservation,
        code: Arc<ClassCode>,
    ) -> Result<Opening, StripeError> {
        match self.records.next_stripe() {
            Ok(stripe) => Ok(Opening {
                stripe,
                code,
                reservation,
            }),
            Err(source) => {
                self.segments.release(reservation)?;
                Err(StripeError::NoNumber(source))
            }
        }
    }

    /// Takes the bytes of a stripe of files of a class that were in the journal only. They can be read at once. Unless the volume is
    /// read-only they are flushed, under the stripe's old number.
    ///
    /// # Errors
    ///
    /// If too few members are left, or no segment can be numbered.
    pub(crate) fn restore(
        &self,
        class: StripeClass,
        stripe: StripeId,
        code: &Arc<ClassCode>,
        payload: &[u8],
    ) -> Result<(), StripeError> {
        if self.check_writable().is_err() {
            let kept = (stripe, Arc::clone(code));
            self.buffers.keep(class, kept, payload);
            return Ok(());
        }
        let (reservation, code) = match self.reserve(code, Need::Accepted) {
            Ok((reservation, code)) => (Some(reservation), code),
            // It waits for space like any other stripe that found none.
            Err(StripeError::NoSpace { .. }) => (None, Arc::clone(code)),
            Err(error) => return Err(error),
        };
        self.buffers
            .restore(class, (stripe, code), payload, reservation);
        Ok(())
    }

    /// Returns the payload bytes of a full stripe with the code of the volume.
    #[must_use]
    pub(crate) fn stripe_capacity(&self) -> usize {
        self.classes.volume().capacity()
    }

    /// Returns how many bytes were accepted that are not on the members yet.
    #[must_use]
    pub(crate) fn unwritten_bytes(&self) -> u64 {
        self.buffers.unwritten_bytes()
    }

    /// Returns whether a stripe is in memory, because it is not on the members yet.
    #[must_use]
    pub(crate) fn has_in_memory(&self, stripe: StripeId) -> bool {
        self.buffers.has(stripe)
    }

    /// Seals the open stripes, however short, so that they are flushed.
    pub(crate) fn seal(&self) {
        self.buffers.seal();
    }

    /// Returns the bytes of open stripes that no earlier call returned, at most `limit`. The caller puts them into the
    /// journal. Stripes with more are sealed.
    #[must_use]
    pub(crate) fn unjournaled(&self, limit: usize) -> Vec<Unjournaled> {
        self.buffers.unjournaled(limit)
    }

    /// Waits until all stripes sealed before the call are written and recorded; not synced.
    ///
    /// # Errors
    ///
    /// [`StripeError::NoSpace`] if one of them found none: it can be read, and waits for [`Writer::retry`]. Anything
    /// else that kept one of them, or an earlier one, from being so.
    pub(crate) fn wait_flushed(&self) -> Result<(), StripeError> {
        while self.flush_one_here() {}
        self.buffers.wait_flushed()
    }

    /// Returns whether a stripe found no space to be flushed to, so that no other is opened.
    #[must_use]
    pub(crate) fn is_stuck(&self) -> bool {
        self.buffers.is_stuck()
    }

    /// Lets stripes that found no space try again.
    pub(crate) fn retry(&self) {
        self.segments.forget_full();
        self.buffers.retry();
    }

    /// Returns the stripes that found no space and to which no reference is about to be added.
    #[must_use]
    pub(crate) fn stuck(&self) -> Vec<StripeId> {
        self.buffers.stuck()
    }

    /// Forgets the bytes of a stripe of [`Writer::stuck`] that nothing refers to.
    pub(crate) fn discard(&self, stripe: StripeId) {
        self.buffers.discard(stripe);
    }

    /// Returns whether bytes or references may still be added to a stripe.
    #[must_use]
    pub(crate) fn is_busy(&self, stripe: StripeId) -> bool {
        self.buffers.is_busy(stripe)
    }

    /// Makes all shards durable that were written before the call, on all members at once.
    ///
    /// Returns those that did not become so, because their member failed: the caller takes them out of their records
    /// and syncs again before it acknowledges anything. The lost shards of a stripe without a record are reported once
    /// it has one.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub(crate) fn sync(&self) -> Result<Vec<LostShard>, StripeError> {
        let mut lost = Vec::new();
        let mut early = Vec::new();
        for shard in self.dirty.sync(&self.members) {
            // Asked first: once a stripe has left the buffers, its record is in the index.
            let in_memory = self.buffers.has(shard.stripe);
            if in_memory && self.records.look_up(shard.stripe)?.is_none() {
                early.push(shard);
            } else {
                lost.push(shard);
            }
        }
        self.dirty.keep_lost(early);
        Ok(lost)
    }

    /// Closes the files of a segment that another program replaced while they were open. Every later operation reaches the
    /// files that have the names now. Their shards that are not durable are lost, which the next
    /// [`Writer::sync`] reports. No further stripe goes to the segment.
    ///
    /// All files of the segment are looked at before the call returns: two of them may have been exchanged.
    pub(crate) fn close_replaced_files(&self, segment: SegmentId) {
        let Some(handle) = self.segments.get(segment) else {
            return;
        };
        let replaced = self.dirty.close_replaced(&self.members, &handle);
        if replaced.is_empty() {
            return;
        }
        self.segments.set_damaged(segment);
        for member in replaced {
            let path = self.members.membership().path(member);
            tracing::warn!(
                "the file of segment {segment} on member {member} ({path}) is another one by now"
            );
        }
    }

    /// Returns the number of replaced files that were found so far.
    pub(crate) fn replacements(&self) -> Replacements {
        self.dirty.replacements()
    }

    /// Seals the open stripes, and adds no more stripes to the segments that are being written.
    ///
    /// # Errors
    ///
    /// If the final record of one cannot be taken.
    pub(crate) fn retire_segments(&self) -> Result<(), StripeError> {
        let retired = self.segments.retire_all();
        self.seal();
        retired
    }

    /// Writes out the accepted bytes, and cuts the segments being written to their used length. Nothing is accepted
    /// afterwards. The caller commits the records that this makes.
    ///
    /// # Errors
    ///
    /// The error that kept a stripe from being flushed.
    pub(crate) fn finish(&self) -> Result<(), StripeError> {
        self.seal();
        let flushed = self.wait_flushed();
        self.close();
        flushed.and(self.segments.retire_all())
    }

    /// Accepts nothing more, and ends [`Writer::flush_forever`].
    pub(super) fn close(&self) {
        self.buffers.close();
    }

    /// Flushes a stripe that is queued, if no thread does so; returns whether there was one.
    fn flush_one_here(&self) -> bool {
        let sealed = if self.has_threads {
            None
        } else {
            self.buffers.next(false)
        };
        let found = sealed.is_some();
        if let Some(sealed) = sealed {
            self.flush(&sealed);
        }
        found
    }

    /// Flushes sealed stripes until the writer is closed.
    pub(super) fn flush_forever(&self) {
        while let Some(sealed) = self.buffers.next(true) {
            if self.encoder.prefers_batches() {
                self.encode_ahead(&sealed);
            }
            self.flush(&sealed);
            self.segments.open_ahead();
        }
    }

    /// Returns whether any thread has one of the locks of the buffers.
    #[cfg(test)]
    pub(super) fn are_buffers_locked(&self) -> bool {
        self.buffers.are_locked()
    }
}
