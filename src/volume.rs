//! Segments and stripes on the members of one volume.
//!
//! Bytes of any files are appended to stripe buffers, and flushed as `data_shards + parity_shards` shards to the
//! members of a segment. They are read back from whichever shards are left. This module knows nothing of files or
//! names ([`crate::fs`]). [`StripeRecords`] keeps its records in [`crate::meta`].
//!
//! # Invariants
//!
//! - Nothing live is overwritten in place: an offset of a segment is allocated once (P4). The one
//!   exception is a block that failed its checksum, which is overwritten with what was right.
//! - A byte is accepted only when room for its whole stripe is reserved (P8).
//! - A block is used only after its checksum matched (P2).
//! - [`Volume::sync`] reports shards on a member that failed before they were synced. They are taken out of their
//!   records before anything that names them is acknowledged (P1).
//!
//! # Locks
//!
//! In this order: the open stripe (`buffers::open`), the buffers' state, the segment writer, the table of segments, the
//! files to sync. None of them is held across I/O. Pins, cache and prefetch queue are taken alone. `dirty::syncing` is
//! held through a sync, I/O included, and by syncs only.

use std::collections::BTreeMap;
use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use crate::codec::{Accelerator, CodecError, Engine};
use crate::format::record::{Segment, Stripe};
use crate::format::{MemberIndex, SegmentId, StripeId};
use crate::members::Members;
use crate::store::Pinner;
use crate::workers::{Threads, Workers};

mod buffers;
mod cache;
mod census;
mod damage;
mod dirty;
mod encoded;
mod encoder;
mod error;
mod inspector;
mod inventory;
mod layout;
mod locator;
mod pins;
mod placement;
mod prefetch;
mod ranges;
mod reader;
mod rebuilder;
mod records;
mod segment_handle;
mod segment_io;
mod segments;
mod shard_reader;
mod shared;
mod space;
mod stripe_coder;
mod unrecoverable;
mod writer;

pub use buffers::{Fresh, Hold, Placed, Unjournaled};
pub use census::{Census, SegmentCensus, SegmentFiles};
pub use error::VolumeError;
pub use inspector::{Inconsistent, Remedy, Verdict};
pub use pins::Pin;
pub use rebuilder::{Lacking, Rebuilt, Target, TargetFailed};
pub use records::{FlushedStripe, LostShard, StripeRecords};
pub use space::{Load, Space};

pub(crate) use layout::{Tally, member_of};
pub(crate) use pins::Moment;
pub(crate) use ranges::joined;

use self::damage::Damage;
use self::inspector::Inspector;
use self::inventory::FileInventory;
use self::pins::Pins;
use self::reader::Reader;
use self::rebuilder::{Limits, ShardRebuilder};
use self::segments::Segments;
use self::shared::Shared;
use self::space::SpaceMeter;
use self::stripe_coder::StripeCoder;
use self::writer::Writer;

/// The options with which a volume is run.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// The engine that computes parity.
    pub engine: &'static dyn Engine,
    /// Bytes that stripe buffers may take together; at least two of them are had in any case.
    pub buffer_bytes: usize,
    /// Bytes of shards read ahead or decoded that are kept.
    pub cache_bytes: usize,
    /// Threads that flush, and as many that read ahead. With 0 there are none: the caller that fills or syncs
    /// stripes flushes them, in the same order in every run, and nothing is read ahead.
    pub threads: usize,
    /// The threads on which stripes are encoded and decoded, shared by all volumes that do so.
    pub workers: Arc<Workers>,
    /// A device that may compute parity in the engine's place, or chooses for each stripe which of them does.
    pub accelerator: Option<Arc<dyn Accelerator>>,
    /// The device driver that is told of the memory in which stripes are coded.
    pub pinner: Option<Arc<dyn Pinner>>,
}

/// A reason why a volume cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The volume's code is not known.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The system gives no more threads, or no memory for their stacks.
    #[error("cannot start a thread: {0}")]
    Threads(#[source] io::Error),
}

/// The stripes of one volume: the parts that write, read, inspect and rebuild them.
pub struct Volume {
    coder: Arc<StripeCoder>,
    segments: Arc<Segments>,
    writer: Arc<Writer>,
    reader: Arc<Reader>,
    inspector: Inspector,
    rebuilder: ShardRebuilder,
    inventory: FileInventory,
    space: SpaceMeter,
    damage: Arc<Damage>,
    pins: Pins,
    threads: Threads,
}

impl Volume {
    /// Starts from the segments in the index. Reads and writes nothing yet.
    ///
    /// # Errors
    ///
    /// If the volume's code is not known, or the system gives no more threads.
    pub fn open(
        members: Arc<Members>,
        records: Arc<StripeRecords>,
        segments: Vec<(SegmentId, Segment)>,
        options: &VolumeOptions,
    ) -> Result<Self, OpenError> {
        let volume = Self::new(members, records, segments, options)?;
        // If one cannot be started, dropping the volume ends the others.
        let started = volume.start_threads(options.threads);
        started.map_err(OpenError::Threads)?;
        Ok(volume)
    }

    /// Composes the parts.
    fn new(
        members: Arc<Members>,
        records: Arc<StripeRecords>,
        segments: Vec<(SegmentId, Segment)>,
        options: &VolumeOptions,
    ) -> Result<Self, CodecError> {
        let shared = Shared::new(&members, records, segments, options)?;
        let has_threads = options.threads > 0;
        let limits = Limits {
            buffer_bytes: options.buffer_bytes,
            reads_ahead: has_threads,
        };
        Ok(Self {
            writer: Arc::new(shared.writer(has_threads)),
            reader: Arc::new(shared.reader(has_threads)),
            inspector: shared.inspector(),
            rebuilder: shared.rebuilder(limits),
            inventory: FileInventory::new(Arc::clone(&members), Arc::clone(&shared.segments)),
            space: SpaceMeter::new(members, Arc::clone(&shared.segments)),
            coder: shared.coder,
            segments: shared.segments,
            damage: shared.damage,
            pins: Pins::default(),
            threads: Threads::default(),
        })
    }

    /// Starts `count` threads that flush, and as many that read ahead.
    ///
    /// # Errors
    ///
    /// If the system gives no more threads; those that were started go on.
    fn start_threads(&self, count: usize) -> io::Result<()> {
        (0..count).try_for_each(|_| {
            let writer = Arc::clone(&self.writer);
            self.threads
                .start("flush", move || writer.flush_forever())?;
            let reader = Arc::clone(&self.reader);
            self.threads
                .start("read-ahead", move || reader.read_ahead_forever())
        })
    }

    /// Copies as much of `data` as fits into the open stripe, at least a byte; call again with the
    /// rest. The bytes can be read at once, and are on members after [`Volume::wait_flushed`].
    ///
    /// Blocks while all buffers are on their way to the members.
    ///
    /// # Errors
    ///
    /// [`VolumeError::NoSpace`] if there is no room for another stripe; anything else means that the
    /// volume takes no more bytes.
    pub fn append(&self, data: &[u8]) -> Result<(Placed, Hold), VolumeError> {
        self.writer.append(data)
    }

    /// Like [`Volume::append`], but never waits and never opens a stripe: `None` if no stripe is open that
    /// has room for a part of `data`.
    #[must_use]
    pub fn append_at_once(&self, data: &[u8]) -> Option<(Placed, Hold)> {
        self.writer.append_at_once(data)
    }

    /// Opens a stripe, if none is open; waits as [`Volume::append`] does.
    ///
    /// # Errors
    ///
    /// As for [`Volume::append`].
    pub fn open_stripe(&self) -> Result<(), VolumeError> {
        self.writer.open_stripe()
    }

    /// Puts `payload` into a stripe of its own, which goes on its way to the members at once; it may
    /// use the room that is kept back for compaction.
    ///
    /// # Errors
    ///
    /// As for [`Volume::append`].
    ///
    /// # Panics
    ///
    /// If `payload` is longer than [`Volume::stripe_capacity`].
    pub fn append_stripe(&self, payload: &[u8]) -> Result<(StripeId, Hold), VolumeError> {
        self.writer.append_stripe(payload)
    }

    /// Sends the open stripe, however short, on its way to the members.
    pub fn seal(&self) {
        self.writer.seal();
    }

    /// Waits until all stripes sealed before the call are written and recorded; not synced.
    ///
    /// # Errors
    ///
    /// [`VolumeError::NoSpace`] if one of them found none: it can be read, and waits for
    /// [`Volume::retry`]. Anything else that kept one of them, or an earlier one, from being so.
    pub fn wait_flushed(&self) -> Result<(), VolumeError> {
        self.writer.wait_flushed()
    }

    /// Returns whether a stripe found no space to be flushed to, so that no other is opened.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.writer.is_stuck()
    }

    /// Lets stripes that found no space try again.
    pub fn retry(&self) {
        self.writer.retry();
    }

    /// Returns the stripes that found no space and to which no reference is about to be added.
    #[must_use]
    pub fn stuck(&self) -> Vec<StripeId> {
        self.writer.stuck()
    }

    /// Forgets the bytes of a stripe of [`Volume::stuck`] that nothing refers to.
    pub fn discard(&self, stripe: StripeId) {
        self.writer.discard(stripe);
    }

    /// Returns the bytes of the open stripe that no earlier call returned, if they are at most
    /// `limit`. The caller puts them into the journal.
    #[must_use]
    pub fn unjournaled(&self, limit: usize) -> Fresh {
        self.writer.unjournaled(limit)
    }

    /// Takes the bytes of a stripe that were in the journal only. They can be read at once; unless
    /// the volume is read-only they are flushed, under the stripe's old number.
    ///
    /// # Errors
    ///
    /// If too few members are left, or no segment can be numbered.
    pub fn restore(&self, stripe: StripeId, payload: &[u8]) -> Result<(), VolumeError> {
        self.writer.restore(stripe, payload)
    }

    /// Makes all shards durable that were written before the call, on all members at once.
    ///
    /// Returns those that did not become so, because their member failed: the caller takes them out
    /// of their records and syncs again before it acknowledges anything. A stripe without a
    /// record has its lost shards reported once it is.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn sync(&self) -> Result<Vec<LostShard>, VolumeError> {
        self.writer.sync()
    }

    /// Fills `out` with the bytes at `offset` of a stripe, from memory or from members. Blocks that are lost or
    /// wrong are reconstructed; wrong ones are also repaired on their member.
    ///
    /// # Errors
    ///
    /// [`VolumeError::TooFewShards`] if more is lost than parity replaces; `out` is unspecified then.
    pub fn read(&self, stripe: StripeId, offset: u32, out: &mut [u8]) -> Result<(), VolumeError> {
        self.reader.read(stripe, offset, out)
    }

    /// Inspects all shards of some stripes of one segment, in the order in which they lie there, and applies
    /// `remedy` to wrong ones. Stripes that are not on members are left out.
    ///
    /// The caller holds a [`Pin`] from before it saw that something refers to each of them.
    ///
    /// # Errors
    ///
    /// If the index cannot be read, or its records make no sense.
    pub fn inspect(
        &self,
        stripes: &[StripeId],
        remedy: Remedy,
    ) -> Result<Vec<Verdict>, VolumeError> {
        self.inspector.inspect(stripes, remedy)
    }

    /// Asks for a whole stripe to be read into the cache. Never blocks, and may do nothing.
    pub fn prefetch(&self, stripe: StripeId) {
        self.reader.prefetch(stripe);
    }

    /// Returns a pin: see [`Pin`].
    pub fn pin(&self) -> Pin {
        self.pins.pin()
    }

    /// Returns a moment between the pins taken so far and those to come.
    pub(crate) fn moment(&self) -> Moment {
        self.pins.moment()
    }

    /// Returns whether no pin from before `moment` is held.
    pub(crate) fn has_passed(&self, moment: Moment) -> bool {
        self.pins.passed(moment)
    }

    /// Returns whether bytes or references may still be added to a stripe.
    #[must_use]
    pub fn is_busy(&self, stripe: StripeId) -> bool {
        self.writer.is_busy(stripe)
    }

    /// Returns whether stripes may still be added to a segment.
    #[must_use]
    pub fn is_writing(&self, segment: SegmentId) -> bool {
        self.segments.is_writing(segment)
    }

    /// Gives back the space of a stripe whose records are gone for good.
    pub fn free_stripe(&self, record: &Stripe) {
        self.segments.free_stripe(record);
    }

    /// Gives back the space of a range of a segment in which no record names anything.
    pub fn free_range(&self, segment: SegmentId, range: Range<u64>) {
        self.segments.free_range(segment, range);
    }

    /// Notes what the stripes of a segment take of each of its files: less than its length, if some of
    /// them are gone.
    pub fn set_taken(&self, segment: SegmentId, bytes: u64) {
        self.segments.set_taken(segment, bytes);
    }

    /// Removes the files of a segment whose record is gone for good.
    pub fn remove_segment(&self, segment: SegmentId) {
        self.segments.remove(segment);
    }

    /// Removes segment files that nothing names, and cuts off what lies behind a segment's end. To be
    /// called with what is there once everything that a crash left to recover is in the index, and
    /// before anything else is written.
    pub fn remove_strays(&self, census: &Census) {
        self.inventory.remove_strays(census);
    }

    /// Cuts a segment that was being written when the volume was last used to its `used` bytes.
    ///
    /// # Errors
    ///
    /// If its new record cannot be taken.
    pub fn cut_segment(&self, segment: SegmentId, used: u64) -> Result<(), VolumeError> {
        self.segments.cut_unfinished(segment, used)
    }

    /// Sends what is in memory on its way, and adds no more stripes to the segments that are being written.
    ///
    /// # Errors
    ///
    /// If the final record of one cannot be taken.
    pub fn retire_segments(&self) -> Result<(), VolumeError> {
        self.writer.retire_segments()
    }

    /// Returns the members to which a slot of a segment could be moved that takes so many bytes, the best
    /// first.
    #[must_use]
    pub fn homes_for_slot(&self, segment: &Segment, bytes: u64) -> Vec<MemberIndex> {
        self.rebuilder.homes_for_slot(segment, bytes)
    }

    /// Makes ready the file of a segment on a member, with room for stripes that are to be rebuilt there.
    ///
    /// # Errors
    ///
    /// If the member does not do so; nothing is left of a new file then.
    pub fn make_rebuild_file(
        &self,
        segment: SegmentId,
        member: MemberIndex,
        stripes: &[Lacking],
    ) -> Result<(), TargetFailed> {
        self.rebuilder.make_rebuild_file(segment, member, stripes)
    }

    /// Returns what each member that takes new segments has of them, and room for.
    #[must_use]
    pub fn loads(&self) -> BTreeMap<MemberIndex, Load> {
        self.space.loads()
    }

    /// Removes the file of a segment from a member that it is not on any more, durably.
    pub fn remove_file(&self, segment: SegmentId, member: MemberIndex) {
        self.segments.remove_file(segment, member);
    }

    /// Removes the file of a segment from a member that the segment does not name.
    pub fn drop_rebuild_file(&self, segment: SegmentId, member: MemberIndex) {
        self.rebuilder.drop_rebuild_file(segment, member);
    }

    /// Writes lost shards of some stripes of a segment, in disk order, to the targets. It reads or reconstructs as many
    /// at once as may be in memory. It takes no more than `most_bytes` at a time, unless one stripe has more. `heed`
    /// gets the result for each; once it breaks, nothing more is written.
    ///
    /// # Errors
    ///
    /// If a target does not take them.
    pub fn rebuild(
        &self,
        segment: SegmentId,
        stripes: &[Lacking],
        targets: &[Target],
        most_bytes: &dyn Fn() -> u64,
        heed: &mut dyn FnMut(Rebuilt) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, TargetFailed> {
        self.rebuilder
            .rebuild(segment, stripes, targets, most_bytes, heed)
    }

    /// Makes durable what was rebuilt on a member.
    ///
    /// # Errors
    ///
    /// If the member failed.
    pub fn sync_rebuild_file(
        &self,
        segment: SegmentId,
        member: MemberIndex,
    ) -> Result<(), TargetFailed> {
        self.rebuilder.sync_rebuild_file(segment, member)
    }

    /// Gives back the space on targets of a stripe whose records went while it was rebuilt.
    pub fn free_rebuilt(&self, record: &Stripe, targets: &[Target]) {
        self.rebuilder.free_rebuilt(record, targets);
    }

    /// Forgets what was found out about a member, since another directory has its place.
    pub fn forget_member(&self, member: MemberIndex) {
        self.segments.forget_member(member);
        self.inventory.forget();
    }

    /// Takes a segment for being on these members from now on. It is not being written, and the caller
    /// keeps other threads from changing it.
    pub fn set_slots(&self, segment: SegmentId, slots: Vec<Option<MemberIndex>>) {
        self.segments.set_slots(segment, slots);
    }

    /// Returns a segment that the index names.
    #[must_use]
    pub fn segment(&self, segment: SegmentId) -> Option<Segment> {
        self.segments.record(segment)
    }

    /// Returns all segments, in no order.
    #[must_use]
    pub fn segments(&self) -> Vec<(SegmentId, Segment)> {
        self.segments.records()
    }

    /// Lists the segment files of all online members.
    #[must_use]
    pub fn census(&self) -> Census {
        self.inventory.census()
    }

    /// Asks the members of a segment how long their files of it are at this moment. `None` if the segment is gone, or
    /// an online member does not answer.
    #[must_use]
    pub fn look_at_files(&self, segment: SegmentId) -> Option<SegmentFiles> {
        self.inventory.look_at_files(segment)
    }

    /// As [`Volume::census`], but a member that does not answer in a moment counts with its last answer, and with the
    /// files made since.
    #[must_use]
    pub fn census_at_once(&self) -> Census {
        self.inventory.census_at_once()
    }

    /// Says whether segment files on online members are known to be gone or too short.
    #[must_use]
    pub fn lacks_files(&self) -> bool {
        self.damage.lacks_files()
    }

    /// Takes note of whether segment files on online members are gone or too short.
    pub fn set_lacks_files(&self, lacks_files: bool) {
        self.damage.set_lacks_files(lacks_files);
    }

    /// Measures the online members; asks each of them.
    #[must_use]
    pub fn space(&self) -> Space {
        self.space.measure()
    }

    /// Returns how much of a member the index may not take.
    #[must_use]
    pub fn kept(&self, space: crate::store::Space) -> u64 {
        self.space.kept_from_index(space)
    }

    /// Returns the payload bytes of a full stripe.
    #[must_use]
    pub fn stripe_capacity(&self) -> usize {
        self.writer.stripe_capacity()
    }

    /// Returns how many wrong ranges of blocks were repaired since the volume was opened.
    #[must_use]
    pub fn mended(&self) -> u64 {
        self.damage.repaired_ranges()
    }

    /// Returns the bytes of stripes' payloads that could not be decoded when they were last looked at, since
    /// the volume was opened.
    #[must_use]
    pub fn undecodable(&self) -> BTreeMap<StripeId, Vec<Range<u32>>> {
        self.damage.unrecoverable().all()
    }

    /// Says whether more stripes have such bytes than [`Volume::undecodable`] returns.
    #[must_use]
    pub fn undecodable_is_cut(&self) -> bool {
        self.damage.unrecoverable().is_truncated()
    }

    /// Starts a pass over all stripes. The count of lost ranges beyond those that can be remembered begins again at
    /// zero.
    pub fn begin_to_look(&self) {
        self.damage.unrecoverable().begin_pass();
    }

    /// Ends the pass over all stripes, if one was begun.
    pub fn end_looking(&self) {
        self.damage.unrecoverable().end_pass();
    }

    /// Forgets the lost bytes of a stripe that is gone.
    pub fn forget_undecodable(&self, stripe: StripeId) {
        self.damage.unrecoverable().forget(stripe);
    }

    /// Takes note of bytes of a stripe's payload that are known to be lost.
    pub fn note_undecodable(&self, stripe: StripeId, lost: &[Range<u32>]) {
        self.damage.unrecoverable().add(stripe, lost);
    }

    /// Counts the changes of the result of [`Volume::undecodable`].
    #[must_use]
    pub fn undecodable_changes(&self) -> u64 {
        self.damage.unrecoverable().changes()
    }

    /// Returns the name of the engine that codes on the CPU.
    #[must_use]
    pub fn engine_name(&self) -> &'static str {
        self.coder.engine_name()
    }

    /// Writes out what was accepted, and cuts the segments being written to what is used of them.
    /// Nothing is accepted afterwards. The records that this makes are the caller's to commit.
    ///
    /// # Errors
    ///
    /// The error that kept a stripe from being flushed.
    pub fn finish(&self) -> Result<(), VolumeError> {
        self.writer.finish()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.writer.close();
        self.reader.close();
        self.threads.wait();
    }
}

#[cfg(test)]
mod tests;
