//! The rebuild of lost shards, many stripes at a time.
//!
//! 1. Take the stripes of a segment in disk order, in batches that may be in memory. Shards that are near to each
//!    other in the segment's files are read and written as one run.
//! 2. Read all runs from all members at once: the shard itself where it can still be read, else as many
//!    others as decoding needs.
//! 3. Reconstruct, stripe by stripe on all threads for computing, or all stripes by one call where a GPU does it.
//!    Compare the result with its checksums. The inputs are not compared, because wrong inputs give wrong results.
//!    A stripe whose result is wrong is read again, with all the care that other readers have.
//! 4. Write what is right, in long runs, to all members at once.
//!
//! If the volume has threads, the next batch goes through step 2 while this one goes through steps 3 and 4. So
//! the members that are read from are not idle while others are written to.
//!
//! Nothing live is overwritten: a shard that is written here is in no record as written, or goes to a
//! file that its segment does not name yet. The caller makes that durable, and then changes the records.

use std::collections::BTreeSet;
use std::iter;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, OnceLock};
use std::thread;

use parking_lot::Mutex;

use super::error::StripeError;
use super::layout;
use super::locator::{Locator, Rows};
use super::ranges::joined;
use super::records::WrittenShards;
use super::segment_handle::SegmentHandle;
use super::segments::{Need, Segments};
use super::shard_reader::ShardReader;
use super::stripe_coder::StripeCoder;
use crate::codec::{CodecError, CodingTask};
use crate::coding::SMALL_BYTES;
use crate::format::record::{Segment, Stripe};
use crate::format::{MemberIndex, SegmentId, StripeId};
use crate::membership::Members;
use crate::store::{Buffer, Op, Pool, Store, StoreError};
use batch::{Batch, Inputs, RebuildRun, Source, StripeRebuild, first_batch};

mod added;
mod batch;
mod incomplete;

pub use incomplete::{IncompleteStripe, RebuildTarget};

/// Parts of the memory for stripes of which a batch takes one at most: for what is read of its stripes, and
/// what is written. Two of them are under way at once, and others go on writing.
const BATCH_PARTS: usize = 4;

/// The result of rebuilding a batch of stripes.
#[derive(Debug, Default)]
pub struct RebuiltStripes {
    /// The bytes of shards that were to be written.
    pub bytes: u64,
    /// The stripes whose shards were written; not synced.
    pub written: Vec<WrittenShards>,
    /// The stripes whose shards could not be had, and why.
    pub failed: Vec<(StripeId, StripeError)>,
}

impl RebuiltStripes {
    /// None of the stripes, which have a code that cannot be used.
    fn nothing(stripes: &[IncompleteStripe], source: &CodecError) -> Self {
        let failed = |incomplete: &IncompleteStripe| {
            let (stripe, source) = (incomplete.stripe, source.clone());
            (stripe, StripeError::Codec { stripe, source })
        };
        Self {
            bytes: stripes.iter().map(IncompleteStripe::bytes).sum(),
            written: Vec::new(),
            failed: stripes.iter().map(failed).collect(),
        }
    }
}

/// The reason why shards could not be written to a member.
#[derive(Clone, Debug, thiserror::Error)]
#[error("member {member} does not take the shards")]
pub struct TargetError {
    /// The member.
    pub member: MemberIndex,
    /// The error that it answered.
    #[source]
    pub source: StoreError,
}

/// Returns the ranges of a segment's files that stripes take, neighbours joined.
fn ranges(stripes: &[IncompleteStripe]) -> Vec<Range<u64>> {
    let touch = |a: &IncompleteStripe, b: &IncompleteStripe| b.start() == a.end();
    let joined = stripes.chunk_by(touch);
    joined
        .map(|stripes| stripes[0].start()..stripes[stripes.len() - 1].end())
        .collect()
}

/// The limits of a [`ShardRebuilder`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Memory for stripe buffers and rebuilds together.
    pub(super) buffer_bytes: usize,
    /// True if a thread may read the next batch while one is computed and written.
    pub(super) reads_ahead: bool,
}

/// Writes lost shards of segments to members, from the shards that are left.
pub(crate) struct ShardRebuilder {
    members: Arc<Members>,
    segments: Arc<Segments>,
    locator: Arc<Locator>,
    shards: Arc<ShardReader>,
    coder: Arc<StripeCoder>,
    pool: Pool,
    /// Memory for each batch of stripes.
    batch_bytes: usize,
    reads_ahead: bool,
}

impl ShardRebuilder {
    /// Creates the part; it reads into memory of `pool`.
    pub(super) fn new(
        members: Arc<Members>,
        segments: Arc<Segments>,
        locator: Arc<Locator>,
        shards: Arc<ShardReader>,
        coder: Arc<StripeCoder>,
        pool: Pool,
        limits: Limits,
    ) -> Self {
        Self {
            members,
            segments,
            locator,
            shards,
            coder,
            pool,
            batch_bytes: limits.buffer_bytes / BATCH_PARTS,
            reads_ahead: limits.reads_ahead,
        }
    }

    /// Returns the members to which a slot of a segment could be moved that takes so many bytes, the best first: those
    /// with most room, as for a new segment.
    #[must_use]
    pub(crate) fn homes_for_slot(&self, segment: &Segment, bytes: u64) -> Vec<MemberIndex> {
        let draining = self.members.membership().draining();
        let mut candidates = self.segments.candidates(Need::New, segment.total_shards());
        candidates.retain(|candidate| {
            !segment.slots.contains(&Some(candidate.member))
                && !draining.contains(&candidate.member)
                && candidate.available >= bytes
        });
        candidates.sort_by_key(|candidate| {
            let room = std::cmp::Reverse(candidate.available);
            (room, candidate.taken, candidate.member)
        });
        candidates.into_iter().map(|found| found.member).collect()
    }

    /// Makes the file of a segment on a member, with room for stripes that are to be rebuilt there. It is a new file,
    /// unless the segment has the member already.
    ///
    /// # Errors
    ///
    /// If the member does not do so; nothing is left of a new file then.
    pub(crate) fn make_file(
        &self,
        segment: SegmentId,
        member: MemberIndex,
        stripes: &[IncompleteStripe],
    ) -> Result<(), TargetError> {
        let Some(handle) = self.segments.get(segment) else {
            return Ok(());
        };
        let (name, len) = (Arc::clone(&handle.name), handle.record.len);
        let is_new = !handle.record.slots.contains(&Some(member));
        let ranges = ranges(stripes);
        let made = self.members.io().call(member, "create", move |store| {
            make_file_with_room(store, &name, len, is_new, &ranges)
        });
        made.map_err(|source| {
            if is_new {
                self.segments.remove_file(segment, member);
            }
            TargetError { member, source }
        })
    }

    /// Removes the file of a segment from a member that the segment does not name. The segment may be gone by now.
    pub(crate) fn drop_file(&self, segment: SegmentId, member: MemberIndex) {
        let handle = self.segments.get(segment);
        let names = |handle: Arc<SegmentHandle>| handle.record.slots.contains(&Some(member));
        if !handle.is_some_and(names) {
            self.segments.remove_file(segment, member);
        }
    }

    /// Makes the shards durable that were rebuilt on a member.
    ///
    /// # Errors
    ///
    /// If the member failed.
    pub(crate) fn sync_file(
        &self,
        segment: SegmentId,
        member: MemberIndex,
    ) -> Result<(), TargetError> {
        let Some(handle) = self.segments.get(segment) else {
            return Ok(());
        };
        let name = Arc::clone(&handle.name);
        let outcomes = self.members.io().run(vec![(member, Op::Sync { name })]);
        let mut failures = outcomes.into_iter().filter_map(Result::err);
        match failures.next() {
            Some(source) => Err(TargetError { member, source }),
            None => Ok(()),
        }
    }

    /// Writes lost shards of some stripes of a segment, in disk order, to the targets. It reads or reconstructs as many
    /// at once as may be in memory. It takes no more than `most_bytes` at a time, unless one stripe has more. `on_batch`
    /// gets the result for each batch; once it breaks, nothing more is written. `record` is that of the segment as it will
    /// be: it may have more parity shards than the stripes were written with.
    ///
    /// # Errors
    ///
    /// If a target does not take them.
    pub(crate) fn rebuild(
        &self,
        (segment, record): (SegmentId, &Segment),
        stripes: &[IncompleteStripe],
        targets: &[RebuildTarget],
        most_bytes: &dyn Fn() -> u64,
        on_batch: &mut dyn FnMut(RebuiltStripes) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, TargetError> {
        if self.segments.get(segment).is_none() {
            return Ok(ControlFlow::Continue(()));
        }
        let handle = Arc::new(SegmentHandle::new(segment, record.clone()));
        let codec = match self.coder.codec_of(&handle.record) {
            Ok(codec) => codec,
            Err(source) => return Ok(on_batch(RebuiltStripes::nothing(stripes, &source))),
        };
        let rows = usize::from(handle.record.data_shards) + targets.len();
        let in_memory = (self.batch_bytes / rows) as u64;
        let mut rest = stripes;
        let mut batches = iter::from_fn(|| {
            let most = in_memory.min(most_bytes() / targets.len().max(1) as u64);
            let (first, others) = rest.split_at(first_batch(rest, most));
            rest = others;
            let live = self.members.membership().live();
            (!first.is_empty()).then(|| Batch::new(&handle, &codec, first, targets, &live))
        });
        let mut next = batches.next().map(|batch| (batch, None));
        while let Some((batch, inputs)) = next {
            let inputs = inputs.unwrap_or_else(|| self.read_inputs(&batch));
            let follower = batches.next();
            let ahead = OnceLock::new();
            let rebuilt = thread::scope(|scope| {
                if let Some(batch) = follower.as_ref().filter(|_| self.reads_ahead) {
                    let start = thread::Builder::new().name("rebuild-read".to_owned());
                    let read = || drop(ahead.set(self.read_inputs(batch)));
                    // The thread is not joined: see `Threads`. If no thread can be had, the batch is read later.
                    drop(start.spawn_scoped(scope, read));
                }
                self.finish_batch(&batch, inputs)
            });
            next = follower.map(|batch| (batch, ahead.into_inner()));
            if on_batch(rebuilt?).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Gives back the space on targets of a stripe whose records were removed while it was rebuilt.
    pub(crate) fn free_rebuilt(&self, record: &Stripe, targets: &[RebuildTarget]) {
        let place = layout::place_of(record);
        let places = targets.iter().map(|target| (target.member, place.clone()));
        self.segments.free_places(record.segment, places);
    }

    /// Reconstructs and writes a batch of which everything was read.
    fn finish_batch(
        &self,
        batch: &Batch<'_>,
        inputs: Inputs,
    ) -> Result<RebuiltStripes, TargetError> {
        let zeros = self.pool.zeroed(batch.tallest_implied());
        let buffers_for = |len: usize| {
            let targets = batch.targets.iter();
            targets.map(|_| self.pool.buffer(len)).collect()
        };
        let lens = batch.runs.iter().map(RebuildRun::len);
        let mut outputs: Vec<Vec<Buffer>> = lens.map(buffers_for).collect();
        let rebuilt = self.compute(batch, &inputs, &zeros, &mut outputs);
        drop(inputs);
        self.write_outputs(batch, outputs, &rebuilt)?;
        Ok(rebuilt)
    }

    /// Reads what the batch needs, from all members at once; what cannot be read is left out.
    fn read_inputs(&self, batch: &Batch<'_>) -> Inputs {
        let mut places = Vec::new();
        let mut ops = Vec::new();
        for (run, slot) in batch.wanted() {
            let Some(member) = batch.segment.record.slots[slot] else {
                continue;
            };
            places.push((run, slot));
            let op = Op::Read {
                name: Arc::clone(&batch.segment.name),
                offset: batch.runs[run].range.start,
                buf: self.pool.buffer(batch.runs[run].len()),
            };
            ops.push((member, op));
        }
        let mut inputs = Inputs::new();
        for (place, outcome) in places.into_iter().zip(self.members.io().run(ops)) {
            match outcome {
                Ok(Some(buffer)) => {
                    inputs.insert(place, buffer);
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(segment = %batch.segment.id, "{error}"),
            }
        }
        inputs
    }

    /// Fills the outputs; says which stripes are right there.
    fn compute(
        &self,
        batch: &Batch<'_>,
        inputs: &Inputs,
        zeros: &[u8],
        outputs: &mut [Vec<Buffer>],
    ) -> RebuiltStripes {
        let mut works = batch.works(inputs, zeros, outputs);
        if self.coder.prefers_batches() {
            self.reconstruct_all(batch, &mut works);
        }
        let alone = works.len() == 1;
        let works: Vec<Mutex<StripeRebuild<'_>>> = works.into_iter().map(Mutex::new).collect();
        self.coder.run(works.len(), &|index| {
            // Each index is run once, so the lock is never waited for.
            let mut work = works[index].lock();
            work.is_right = self.work_out(batch, &mut work, alone);
        });
        let mut rebuilt = RebuiltStripes::default();
        for work in works {
            let mut work = work.into_inner();
            let stripe = work.incomplete.stripe;
            rebuilt.bytes += work.incomplete.bytes();
            let done = if work.is_right {
                Ok(())
            } else {
                self.rebuild_carefully(batch, &mut work)
            };
            match done {
                Ok(()) => rebuilt.written.push(WrittenShards {
                    stripe,
                    shards: work.incomplete.shards,
                    added: work.added,
                }),
                Err(error) => rebuilt.failed.push((stripe, error)),
            }
        }
        rebuilt
    }

    /// Reconstructs the shards of all stripes by one call. Stripes that lack too much for it, and those so short that
    /// they stay on the CPU, are shared among threads.
    fn reconstruct_all(&self, batch: &Batch<'_>, works: &mut [StripeRebuild<'_>]) {
        let pass = self.coder.pass(&batch.codec);
        let computed = works
            .iter_mut()
            .filter(|work| matches!(work.source, Source::Others(_)))
            .filter(|work| !added::has_unknown(&self.locator, &batch.segment.record, work));
        let task = |work| {
            let StripeRebuild {
                present,
                outputs,
                is_computed,
                ..
            }: &mut StripeRebuild<'_> = work;
            let task = pass.reconstruction(present, outputs).ok()??;
            *is_computed = task.item().total_bytes() >= SMALL_BYTES;
            is_computed.then_some(task)
        };
        CodingTask::compute_all(
            &mut computed
                .filter_map(task)
                .collect::<Vec<CodingTask<'_, '_>>>(),
        );
    }

    /// Computes the shards of one stripe, unless that was done; returns whether they are right.
    fn work_out(&self, batch: &Batch<'_>, work: &mut StripeRebuild<'_>, alone: bool) -> bool {
        let segment = &batch.segment.record;
        match work.source {
            Source::Unsure => return false,
            Source::Copies if added::has_unknown(&self.locator, segment, work) => return false,
            Source::Copies => {
                for (shard, output) in &mut work.outputs {
                    let Some((_, bytes)) = work.present.iter().find(|(of, _)| of == shard) else {
                        return false;
                    };
                    output.copy_from_slice(bytes);
                }
            }
            Source::Others(_) if work.is_computed => {}
            Source::Others(_) if added::has_unknown(&self.locator, segment, work) => {
                let pass = batch.codec.pass();
                if !added::are_inputs_right(&self.locator, segment, work)
                    || pass.reconstruct(&work.present, &mut work.outputs).is_err()
                {
                    return false;
                }
            }
            Source::Others(_) => {
                let pass = if alone {
                    self.coder.pass(&batch.codec)
                } else {
                    // The threads are at work on other stripes.
                    self.coder.single_threaded_pass(&batch.codec)
                };
                // Too few, if one could not be read.
                if pass.reconstruct(&work.present, &mut work.outputs).is_err() {
                    return false;
                }
            }
        }
        self.are_outputs_right(segment, work)
    }

    /// Returns whether the outputs have their checksums. Those of parity shards of which none are known are noted.
    fn are_outputs_right(&self, segment: &Segment, work: &mut StripeRebuild<'_>) -> bool {
        let stripe = work.incomplete.stripe;
        work.added.clear();
        work.outputs.iter().all(|(shard, bytes)| {
            let (number, found) = (layout::shard(*shard), added::sums_of(bytes));
            let Ok(sums) = self.locator.sums(stripe, number) else {
                return false;
            };
            if sums.is_none() && *shard >= usize::from(segment.data_shards) {
                work.added.push((number, found));
                return true;
            }
            sums == Some(found)
        })
    }

    /// Reads the shards of a stripe as a reader would that found its blocks wrong.
    fn rebuild_carefully(
        &self,
        batch: &Batch<'_>,
        work: &mut StripeRebuild<'_>,
    ) -> Result<(), StripeError> {
        let segment = &batch.segment.record;
        if added::has_unknown(&self.locator, segment, work) {
            let from = (&*self.locator, &*self.shards);
            added::compute_carefully(from, &batch.codec, segment, work)?;
            let stripe = work.incomplete.stripe;
            let is_right = self.are_outputs_right(segment, work);
            return is_right.then_some(()).ok_or(StripeError::BadRecord {
                stripe,
                what: "the checksums of its parity do not go with its data",
            });
        }
        let incomplete = work.incomplete;
        let located = self.locator.locate(incomplete.stripe)?;
        let wanted: Vec<Rows> = work
            .outputs
            .iter()
            .map(|(shard, _)| Rows {
                shard: layout::shard(*shard),
                range: 0..incomplete.height(),
            })
            .collect();
        let fetched = self.shards.fetch_or_note(&located, &wanted)?;
        for ((_, output), bytes) in work.outputs.iter_mut().zip(fetched) {
            output.copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn write_outputs(
        &self,
        batch: &Batch<'_>,
        outputs: Vec<Vec<Buffer>>,
        rebuilt: &RebuiltStripes,
    ) -> Result<(), TargetError> {
        let right: BTreeSet<StripeId> = rebuilt
            .written
            .iter()
            .map(|written| written.stripe)
            .collect();
        let segment = &batch.segment.record;
        let mut ops = Vec::new();
        for (run, outputs) in batch.runs.iter().zip(outputs) {
            for (target, output) in batch.targets.iter().zip(outputs) {
                let output = output.freeze();
                let is_right = |incomplete: &&IncompleteStripe| {
                    right.contains(&incomplete.stripe)
                        && incomplete.shard_in(segment, target.slot).is_some()
                };
                let rows = run.stripes.iter().filter(is_right);
                for rows in joined(rows.map(|incomplete| run.rows_of(incomplete))) {
                    ops.push((target.member, batch.write_op(run, &output, rows)));
                }
            }
        }
        let members: Vec<MemberIndex> = ops.iter().map(|(member, _)| *member).collect();
        for (member, outcome) in members.into_iter().zip(self.members.io().run(ops)) {
            if let Err(source) = outcome {
                return Err(TargetError { member, source });
            }
        }
        Ok(())
    }
}

/// Makes a file, or makes it as long as it is to be, and reserves the space of ranges of it.
fn make_file_with_room(
    store: &dyn Store,
    name: &str,
    len: u64,
    is_new: bool,
    ranges: &[Range<u64>],
) -> Result<(), StoreError> {
    if is_new {
        store.remove(name)?;
    }
    match store.open_len(name) {
        Ok(found) if found >= len => {}
        Ok(_) => store.truncate(name, len)?,
        Err(error) if error.kind().lacks_file() => {
            store.create(name, 0)?;
            store.truncate(name, len)?;
        }
        Err(error) => return Err(error),
    }
    ranges
        .iter()
        .try_for_each(|range| store.reserve(name, range.start, range.end - range.start))
}
