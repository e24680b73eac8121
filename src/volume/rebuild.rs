//! Writing lost shards anew, many stripes at a time.
//!
//! 1. The stripes of a segment are taken in disk order, as many at once as may be in memory. What is
//!    near to each other in the segment's files is read and written as one run.
//! 2. Read all runs from all members at once: the shard itself where it can still be read, else as many
//!    others as decoding needs.
//! 3. Reconstruct, stripe by stripe on all threads for computing, and compare what comes out with its
//!    checksums. What went in is not compared: wrong bytes in make wrong bytes out. A stripe that does
//!    not come out right is read again, with all the care that other readers have.
//! 4. Write what is right, in long runs, to all members at once.
//!
//! Nothing live is overwritten: a shard that is written here is in no record as written, or goes to a
//! file that its segment does not name yet. Making that durable, and then saying so in the records, is
//! up to the caller.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::layout::{self, slot_of};
use super::read::Rows;
use super::segments::{Need, SegmentHandle};
use super::{Core, VolumeError};
use crate::codec::{Codec, Crew};
use crate::format::record::{Segment, ShardSet, Stripe};
use crate::format::{BLOCK_SIZE, MemberIndex, SegmentId, ShardIndex, StripeId};
use crate::store::{Buffer, Op, Store, StoreError, StoreErrorKind};

/// Memory for one batch of stripes: what is read of them, and what is written.
const BATCH_BYTES: u64 = 64 << 20;

/// What lies no farther apart is read as one run.
const MAX_GAP_BYTES: u64 = 64 << 10;

/// A slot of a segment, and the member on which its shards are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The slot.
    pub slot: usize,
    /// The member.
    pub member: MemberIndex,
}

/// A stripe, and which of its shards are to be written.
#[derive(Clone, Copy, Debug)]
pub struct Lacking {
    /// Its number.
    pub stripe: StripeId,
    /// Its record.
    pub record: Stripe,
    /// The shards; each lies in the slot of a target.
    pub shards: ShardSet,
}

impl Lacking {
    fn start(&self) -> u64 {
        self.record.offset
    }

    fn end(&self) -> u64 {
        self.record.offset + u64::from(self.record.height)
    }

    fn height(&self) -> usize {
        self.record.height as usize
    }

    /// Returns the bytes that are to be written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shards.len() as u64 * u64::from(self.record.height)
    }

    /// Returns the shard that lies in a slot, if it is to be written.
    fn shard_in(&self, slot: usize, total_shards: usize) -> Option<ShardIndex> {
        let shard = shard_of(slot, self.record.rotation, total_shards);
        self.shards.contains(shard).then_some(shard)
    }
}

/// Returns the shard of a stripe that lies in a slot.
fn shard_of(slot: usize, rotation: u8, total_shards: usize) -> ShardIndex {
    let back = total_shards - usize::from(rotation) % total_shards;
    layout::shard((slot + back) % total_shards)
}

/// What became of a batch of stripes.
#[derive(Debug, Default)]
pub struct Rebuilt {
    /// The stripes whose shards were written, and those shards; not synced.
    pub written: Vec<(StripeId, ShardSet)>,
    /// The stripes whose shards could not be had, and why.
    pub failed: Vec<(StripeId, VolumeError)>,
}

/// Why shards could not be written to a member.
#[derive(Clone, Debug, thiserror::Error)]
#[error("member {member} does not take the shards")]
pub struct TargetFailed {
    /// The member.
    pub member: MemberIndex,
    /// What it answered.
    #[source]
    pub source: StoreError,
}

/// Stripes near to each other in the files of their segment.
struct Run<'a> {
    stripes: &'a [Lacking],
    range: Range<u64>,
}

impl Run<'_> {
    fn len(&self) -> usize {
        usize::try_from(self.range.end - self.range.start).expect("a batch fits in memory")
    }

    /// Returns where in the run's buffers a stripe's rows are.
    fn rows_of(&self, lacking: &Lacking) -> Range<usize> {
        let start = usize::try_from(lacking.start() - self.range.start).expect("it is in the run");
        start..start + lacking.height()
    }
}

/// Where the bytes of a stripe's lost shards come from.
enum Source {
    /// The shards can be read themselves.
    Copies,
    /// They are computed from these.
    Others(Vec<ShardIndex>),
    /// Too few are known to be there.
    Unsure,
}

/// What there is to do for one stripe.
struct Work<'a> {
    lacking: &'a Lacking,
    source: &'a Source,
    present: Vec<(usize, &'a [u8])>,
    outputs: Vec<(usize, &'a mut [u8])>,
    is_right: bool,
}

/// A batch with all that is needed to go over it.
struct Batch<'a> {
    segment: Arc<SegmentHandle>,
    codec: Arc<Codec>,
    targets: &'a [Target],
    runs: Vec<Run<'a>>,
    /// For each stripe of each run.
    sources: Vec<Vec<Source>>,
}

/// The shards that were read: of a run, in a slot.
type Inputs = BTreeMap<(usize, usize), Buffer>;

/// Cuts stripes, in disk order, into batches that may be in memory at once.
#[must_use]
pub(crate) fn batches(
    segment: &Segment,
    stripes: &[Lacking],
    target_count: usize,
) -> Vec<Range<usize>> {
    let rows = usize::from(segment.data_shards) + target_count;
    let limit = BATCH_BYTES / rows as u64;
    let mut batches = Vec::new();
    let mut first = 0;
    let mut bytes = 0;
    for (at, lacking) in stripes.iter().enumerate() {
        let gap = match at.checked_sub(1) {
            Some(before) if at > first => lacking.start() - stripes[before].end(),
            _ => 0,
        };
        let more = gap.min(MAX_GAP_BYTES) + u64::from(lacking.record.height);
        if at > first && bytes + more > limit {
            batches.push(first..at);
            (first, bytes) = (at, 0);
        }
        bytes += more;
    }
    if first < stripes.len() {
        batches.push(first..stripes.len());
    }
    batches
}

/// Joins stripes that are near to each other.
fn runs(stripes: &[Lacking]) -> Vec<Run<'_>> {
    let near = |a: &Lacking, b: &Lacking| b.start() <= a.end() + MAX_GAP_BYTES;
    let run = |stripes: &[Lacking]| stripes[0].start()..stripes[stripes.len() - 1].end();
    stripes
        .chunk_by(near)
        .map(|stripes| Run {
            stripes,
            range: run(stripes),
        })
        .collect()
}

/// Returns the ranges of a segment's files that stripes take, neighbours joined.
fn ranges(stripes: &[Lacking]) -> Vec<Range<u64>> {
    let touch = |a: &Lacking, b: &Lacking| b.start() == a.end();
    let joined = stripes.chunk_by(touch);
    joined
        .map(|stripes| stripes[0].start()..stripes[stripes.len() - 1].end())
        .collect()
}

impl Core {
    /// Returns the members to which a slot of a segment could be moved, the best first: those with most
    /// room, as for a new segment.
    pub(super) fn homes_for_slot(&self, segment: &Segment, bytes: u64) -> Vec<MemberIndex> {
        let leaving = self.members.leaving();
        let mut candidates = self.segments.candidates(Need::New);
        candidates.retain(|candidate| {
            !segment.slots.contains(&Some(candidate.member))
                && !leaving.contains(&candidate.member)
                && candidate.available >= bytes
        });
        candidates.sort_by_key(|candidate| {
            let room = std::cmp::Reverse(candidate.available);
            (room, candidate.taken, candidate.member)
        });
        candidates.into_iter().map(|found| found.member).collect()
    }

    /// Makes ready the file of a segment on a member, with room for the stripes: a new one, unless the
    /// segment has the member already.
    pub(super) fn make_rebuild_file(
        &self,
        segment: SegmentId,
        member: MemberIndex,
        stripes: &[Lacking],
    ) -> Result<(), TargetFailed> {
        let Some(handle) = self.segments.get(segment) else {
            return Ok(());
        };
        let (name, len) = (Arc::clone(&handle.name), handle.record.len);
        let is_new = !handle.record.slots.contains(&Some(member));
        let ranges = ranges(stripes);
        let made = self.members.call(member, "create", move |store| {
            make_file(store, &name, len, is_new, &ranges)
        });
        made.map_err(|source| {
            if is_new {
                self.segments.remove_files(&handle, std::iter::once(member));
            }
            TargetFailed { member, source }
        })
    }

    /// Gives up the file of a segment on a member that the segment does not have.
    pub(super) fn drop_rebuild_file(&self, segment: SegmentId, member: MemberIndex) {
        if let Some(handle) = self.segments.get(segment)
            && !handle.record.slots.contains(&Some(member))
        {
            self.segments.remove_files(&handle, std::iter::once(member));
        }
    }

    /// Makes the shards durable that were written to a member.
    pub(super) fn sync_rebuild_file(
        &self,
        segment: SegmentId,
        member: MemberIndex,
    ) -> Result<(), TargetFailed> {
        let Some(handle) = self.segments.get(segment) else {
            return Ok(());
        };
        let name = Arc::clone(&handle.name);
        let outcomes = self.members.run(vec![(member, Op::Sync { name })]);
        let mut failures = outcomes.into_iter().filter_map(Result::err);
        match failures.next() {
            Some(source) => Err(TargetFailed { member, source }),
            None => Ok(()),
        }
    }

    /// Writes the shards of some stripes of a segment, in disk order, to the targets.
    pub(super) fn rebuild(
        &self,
        segment: SegmentId,
        stripes: &[Lacking],
        targets: &[Target],
    ) -> Result<Rebuilt, TargetFailed> {
        let Some(handle) = self.segments.get(segment) else {
            return Ok(Rebuilt::default());
        };
        let codec = match self.codec_of(&handle.record) {
            Ok(codec) => codec,
            Err(source) => {
                let failed = |lacking: &Lacking| {
                    let (stripe, source) = (lacking.stripe, source.clone());
                    (stripe, VolumeError::Codec { stripe, source })
                };
                return Ok(Rebuilt {
                    written: Vec::new(),
                    failed: stripes.iter().map(failed).collect(),
                });
            }
        };
        let batch = self.plan_batch(handle, codec, stripes, targets);
        let inputs = self.read_inputs(&batch);
        let zeros = self.pool.zeroed(batch.tallest_implied());
        let mut outputs: Vec<Vec<Buffer>> = batch
            .runs
            .iter()
            .map(|run| {
                targets
                    .iter()
                    .map(|_| self.pool.buffer(run.len()))
                    .collect()
            })
            .collect();
        let rebuilt = self.compute(&batch, &inputs, &zeros, &mut outputs);
        drop(inputs);
        self.write_outputs(&batch, outputs, &rebuilt)?;
        Ok(rebuilt)
    }

    fn plan_batch<'a>(
        &self,
        segment: Arc<SegmentHandle>,
        codec: Arc<Codec>,
        stripes: &'a [Lacking],
        targets: &'a [Target],
    ) -> Batch<'a> {
        let live = self.members.live();
        // Another part of the members for each segment, so that all of them have their share.
        let total = layout::total_shards(&segment.record);
        let first = usize::try_from(segment.id.0 % total.max(1) as u64).unwrap_or(0);
        let order: Vec<usize> = (0..total).map(|slot| (slot + first) % total).collect();
        let runs = runs(stripes);
        let sources = runs
            .iter()
            .map(|run| {
                let source = |lacking| source_of(&segment, lacking, &order, &live);
                run.stripes.iter().map(source).collect()
            })
            .collect();
        Batch {
            segment,
            codec,
            targets,
            runs,
            sources,
        }
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
        for (place, outcome) in places.into_iter().zip(self.members.run(ops)) {
            match outcome {
                Ok(Some(buffer)) => {
                    inputs.insert(place, buffer);
                }
                Ok(None) => {}
                Err(error) => log::debug!("segment {}: {error}", batch.segment.id),
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
    ) -> Rebuilt {
        let works = batch.works(inputs, zeros, outputs);
        let alone = works.len() == 1;
        let works: Vec<Mutex<Work<'_>>> = works.into_iter().map(Mutex::new).collect();
        self.workers.run(works.len(), &|index| {
            // Each index is run once, so the lock is never waited for.
            let mut work = works[index].lock();
            work.is_right = self.work_out(batch, &mut work, alone);
        });
        let mut rebuilt = Rebuilt::default();
        for work in works {
            let mut work = work.into_inner();
            let stripe = work.lacking.stripe;
            let done = if work.is_right {
                Ok(())
            } else {
                self.rebuild_carefully(&mut work)
            };
            match done {
                Ok(()) => rebuilt.written.push((stripe, work.lacking.shards)),
                Err(error) => rebuilt.failed.push((stripe, error)),
            }
        }
        rebuilt
    }

    /// Computes the shards of one stripe; returns whether they are right.
    fn work_out(&self, batch: &Batch<'_>, work: &mut Work<'_>, alone: bool) -> bool {
        match work.source {
            Source::Unsure => return false,
            Source::Copies => {
                for (shard, output) in &mut work.outputs {
                    let Some((_, bytes)) = work.present.iter().find(|(of, _)| of == shard) else {
                        return false;
                    };
                    output.copy_from_slice(bytes);
                }
            }
            Source::Others(_) => {
                let pass = if alone {
                    self.pass(&batch.codec)
                } else {
                    // The threads are at work on other stripes.
                    let pass = batch.codec.pass();
                    pass.accelerator(self.accelerator.as_deref())
                };
                // Too few, if one could not be read.
                if pass.reconstruct(&work.present, &mut work.outputs).is_err() {
                    return false;
                }
            }
        }
        let stripe = work.lacking.stripe;
        work.outputs.iter().all(|(shard, bytes)| {
            let sums = self.catalog.sums(stripe, layout::shard(*shard));
            let sums = sums.ok().flatten();
            sums.is_some_and(|sums| bytes.chunks(BLOCK_SIZE).map(crc32c::crc32c).eq(sums.0))
        })
    }

    /// Reads the shards of a stripe as a reader would who found its blocks wrong.
    fn rebuild_carefully(&self, work: &mut Work<'_>) -> Result<(), VolumeError> {
        let lacking = work.lacking;
        let located = self.locate(lacking.stripe)?;
        let wanted: Vec<Rows> = work
            .outputs
            .iter()
            .map(|(shard, _)| Rows {
                shard: layout::shard(*shard),
                range: 0..lacking.height(),
            })
            .collect();
        let fetched = self
            .fetch(&located, &wanted)
            .inspect_err(|error| self.note_lost(&located, &wanted, error))?;
        for ((_, output), bytes) in work.outputs.iter_mut().zip(fetched) {
            output.copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn write_outputs(
        &self,
        batch: &Batch<'_>,
        outputs: Vec<Vec<Buffer>>,
        rebuilt: &Rebuilt,
    ) -> Result<(), TargetFailed> {
        let right: BTreeSet<StripeId> = rebuilt.written.iter().map(|(stripe, _)| *stripe).collect();
        let total = layout::total_shards(&batch.segment.record);
        let mut ops = Vec::new();
        for (run, outputs) in batch.runs.iter().zip(outputs) {
            for (target, output) in batch.targets.iter().zip(outputs) {
                let output = output.freeze();
                let is_right = |lacking: &&Lacking| {
                    right.contains(&lacking.stripe)
                        && lacking.shard_in(target.slot, total).is_some()
                };
                let rows = run.stripes.iter().filter(is_right);
                for rows in joined(rows.map(|lacking| run.rows_of(lacking))) {
                    ops.push((target.member, batch.write_op(run, &output, rows)));
                }
            }
        }
        let members: Vec<MemberIndex> = ops.iter().map(|(member, _)| *member).collect();
        for (member, outcome) in members.into_iter().zip(self.members.run(ops)) {
            if let Err(source) = outcome {
                return Err(TargetFailed { member, source });
            }
        }
        Ok(())
    }
}

impl Batch<'_> {
    fn total_shards(&self) -> usize {
        layout::total_shards(&self.segment.record)
    }

    fn is_implied(&self, lacking: &Lacking, shard: ShardIndex) -> bool {
        let data_shards = usize::from(self.segment.record.data_shards);
        lacking.record.is_implied(shard, data_shards)
    }

    /// Returns the shards of a stripe that are zeros and lie nowhere.
    fn implied<'s>(&'s self, lacking: &'s Lacking) -> impl Iterator<Item = ShardIndex> + 's {
        layout::shards(&self.segment.record).filter(|shard| self.is_implied(lacking, *shard))
    }

    /// Returns the height of the tallest stripe with shards that are zeros.
    fn tallest_implied(&self) -> usize {
        let stripes = self.runs.iter().flat_map(|run| run.stripes);
        let short = stripes.filter(|lacking| self.implied(lacking).next().is_some());
        short.map(Lacking::height).max().unwrap_or(0)
    }

    /// Returns which slots are to be read of which run.
    fn wanted(&self) -> BTreeSet<(usize, usize)> {
        let total = self.total_shards();
        let mut wanted = BTreeSet::new();
        for (index, (run, sources)) in self.runs.iter().zip(&self.sources).enumerate() {
            for (lacking, source) in run.stripes.iter().zip(sources) {
                for shard in source.shards(lacking) {
                    wanted.insert((index, slot_of(shard, lacking.record.rotation, total)));
                }
            }
        }
        wanted
    }

    /// Deals the inputs and outputs out to the stripes.
    fn works<'w>(
        &'w self,
        inputs: &'w Inputs,
        zeros: &'w [u8],
        outputs: &'w mut [Vec<Buffer>],
    ) -> Vec<Work<'w>> {
        let total = self.total_shards();
        let mut works = Vec::new();
        for ((index, run), outputs) in self.runs.iter().enumerate().zip(outputs) {
            let first = works.len();
            for (lacking, source) in run.stripes.iter().zip(&self.sources[index]) {
                let rows = run.rows_of(lacking);
                let read = |shard: ShardIndex| {
                    let slot = slot_of(shard, lacking.record.rotation, total);
                    let bytes = &inputs.get(&(index, slot))?[rows.clone()];
                    Some((usize::from(shard.0), bytes))
                };
                let mut present: Vec<_> = source.shards(lacking).filter_map(read).collect();
                if matches!(source, Source::Others(_)) {
                    let zeros = &zeros[..lacking.height().min(zeros.len())];
                    let implied = self.implied(lacking);
                    present.extend(implied.map(|shard| (usize::from(shard.0), zeros)));
                }
                works.push(Work {
                    lacking,
                    source,
                    present,
                    outputs: Vec::new(),
                    is_right: false,
                });
            }
            for (target, output) in self.targets.iter().zip(outputs) {
                let mut rest = &mut output[..];
                let mut at = 0;
                for work in &mut works[first..] {
                    let rows = run.rows_of(work.lacking);
                    let (_, tail) = rest.split_at_mut(rows.start - at);
                    let (mine, tail) = tail.split_at_mut(rows.len());
                    (rest, at) = (tail, rows.end);
                    if let Some(shard) = work.lacking.shard_in(target.slot, total) {
                        work.outputs.push((usize::from(shard.0), mine));
                    }
                }
            }
        }
        works
    }

    fn write_op(&self, run: &Run<'_>, output: &Bytes, rows: Range<usize>) -> Op {
        Op::Write {
            name: Arc::clone(&self.segment.name),
            offset: run.range.start + rows.start as u64,
            data: output.slice(rows),
        }
    }
}

impl Source {
    /// Returns the shards that are to be read.
    fn shards(&self, lacking: &Lacking) -> impl Iterator<Item = ShardIndex> + use<> {
        match self {
            Self::Copies => lacking.shards.iter().collect::<Vec<_>>(),
            Self::Others(shards) => shards.clone(),
            Self::Unsure => Vec::new(),
        }
        .into_iter()
    }
}

/// Chooses what to read for a stripe, from slots in the given order.
fn source_of(
    segment: &SegmentHandle,
    lacking: &Lacking,
    order: &[usize],
    live: &[MemberIndex],
) -> Source {
    let Lacking { record, shards, .. } = lacking;
    let data_shards = usize::from(segment.record.data_shards);
    let is_readable = |shard: ShardIndex| {
        let member = segment.member_of(record, shard);
        record.written.contains(shard) && member.is_some_and(|member| live.contains(&member))
    };
    if shards.iter().all(is_readable) {
        return Source::Copies;
    }
    let implied = layout::shards(&segment.record)
        .filter(|&shard| record.is_implied(shard, data_shards))
        .count();
    let needed = data_shards - implied;
    let others = order
        .iter()
        .map(|&slot| shard_of(slot, record.rotation, order.len()))
        .filter(|&shard| is_readable(shard) && !shards.contains(shard));
    let others: Vec<ShardIndex> = others.take(needed).collect();
    if others.len() < needed {
        Source::Unsure
    } else {
        Source::Others(others)
    }
}

/// Joins ranges, in order, that touch.
fn joined(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

/// Makes a file, or makes it as long as it is to be, and reserves the space of ranges of it.
fn make_file(
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
        Err(error) if error.kind() == StoreErrorKind::NotFound => {
            store.create(name, 0)?;
            store.truncate(name, len)?;
        }
        Err(error) => return Err(error),
    }
    ranges
        .iter()
        .try_for_each(|range| store.reserve(name, range.start, range.end - range.start))
}
