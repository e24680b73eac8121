//! A batch of a rebuild: its stripes, the reads for them, and their distribution to the stripes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::super::layout;
use super::super::segment_handle::SegmentHandle;
use super::super::tally::survival;
use super::incomplete::{IncompleteStripe, RebuildTarget};
use crate::codec::Codec;
use crate::format::record::ShardSums;
use crate::format::{MemberIndex, ShardIndex};
use crate::store::{Buffer, Op};

/// Pieces that lie no farther apart are read as one run.
const MAX_GAP_BYTES: u64 = 64 << 10;

/// Stripes near to each other in the files of their segment.
pub(super) struct RebuildRun<'a> {
    pub(super) stripes: &'a [IncompleteStripe],
    pub(super) range: Range<u64>,
}

impl RebuildRun<'_> {
    pub(super) fn len(&self) -> usize {
        usize::try_from(self.range.end - self.range.start).expect("a batch fits in memory")
    }

    /// Returns where in the run's buffers a stripe's rows are.
    pub(super) fn rows_of(&self, incomplete: &IncompleteStripe) -> Range<usize> {
        let start =
            usize::try_from(incomplete.start() - self.range.start).expect("it is in the run");
        start..start + incomplete.height()
    }
}

/// The source of the bytes of a stripe's lost shards.
pub(super) enum Source {
    /// The shards can be read themselves.
    Copies,
    /// They are computed from these.
    Others(Vec<ShardIndex>),
    /// Too few are known to be there.
    Unsure,
}

/// The work to do for one stripe.
pub(super) struct StripeRebuild<'a> {
    pub(super) incomplete: &'a IncompleteStripe,
    pub(super) source: &'a Source,
    pub(super) present: Vec<(usize, &'a [u8])>,
    pub(super) outputs: Vec<(usize, &'a mut [u8])>,
    /// The checksums of outputs that nothing is known of yet.
    pub(super) added: Vec<(ShardIndex, ShardSums)>,
    /// True if the outputs have been computed together with those of other stripes.
    pub(super) is_computed: bool,
    pub(super) is_right: bool,
}

/// A batch with all that is needed to go over it.
pub(super) struct Batch<'a> {
    pub(super) segment: Arc<SegmentHandle>,
    pub(super) codec: Arc<Codec>,
    pub(super) targets: &'a [RebuildTarget],
    pub(super) runs: Vec<RebuildRun<'a>>,
    /// For each stripe of each run.
    sources: Vec<Vec<Source>>,
}

/// The shards that were read: of a run, in a slot.
pub(super) type Inputs = BTreeMap<(usize, usize), Buffer>;

/// Returns how many of some stripes, in disk order, make a batch that has at most so many bytes in each slot:
/// one at least, if there are any.
pub(super) fn first_batch(stripes: &[IncompleteStripe], most_bytes: u64) -> usize {
    let mut bytes = 0;
    for (at, incomplete) in stripes.iter().enumerate() {
        let gap = match at.checked_sub(1) {
            Some(before) => incomplete.start() - stripes[before].end(),
            None => 0,
        };
        bytes += gap.min(MAX_GAP_BYTES) + u64::from(incomplete.record.height);
        if at > 0 && bytes > most_bytes {
            return at;
        }
    }
    stripes.len()
}

/// Joins stripes that are near to each other.
fn runs(stripes: &[IncompleteStripe]) -> Vec<RebuildRun<'_>> {
    let near = |a: &IncompleteStripe, b: &IncompleteStripe| b.start() <= a.end() + MAX_GAP_BYTES;
    let run = |stripes: &[IncompleteStripe]| stripes[0].start()..stripes[stripes.len() - 1].end();
    stripes
        .chunk_by(near)
        .map(|stripes| RebuildRun {
            stripes,
            range: run(stripes),
        })
        .collect()
}

impl<'a> Batch<'a> {
    /// Plans how stripes are rebuilt onto the targets, with the members that are live.
    pub(super) fn new(
        segment: &Arc<SegmentHandle>,
        codec: &Arc<Codec>,
        stripes: &'a [IncompleteStripe],
        targets: &'a [RebuildTarget],
        live: &[MemberIndex],
    ) -> Self {
        // Another part of the members for each segment, so that all of them have their share.
        let total = segment.record.slots.len();
        let first = usize::try_from(segment.id.0 % total.max(1) as u64).unwrap_or(0);
        let order: Vec<usize> = (0..total).map(|slot| (slot + first) % total).collect();
        let runs = runs(stripes);
        let sources = runs
            .iter()
            .map(|run| {
                let source = |incomplete| source_of(segment, incomplete, &order, live);
                run.stripes.iter().map(source).collect()
            })
            .collect();
        Self {
            segment: Arc::clone(segment),
            codec: Arc::clone(codec),
            targets,
            runs,
            sources,
        }
    }

    /// Returns the slot that holds a shard of a stripe.
    fn slot_of(&self, incomplete: &IncompleteStripe, shard: ShardIndex) -> usize {
        self.segment
            .record
            .slot_of(shard, incomplete.record.rotation)
    }

    fn is_implied(&self, incomplete: &IncompleteStripe, shard: ShardIndex) -> bool {
        let data_shards = usize::from(self.segment.record.data_shards);
        incomplete.record.is_implied(shard, data_shards)
    }

    /// Returns the shards of a stripe that are zeros and lie nowhere.
    fn implied<'s>(
        &'s self,
        incomplete: &'s IncompleteStripe,
    ) -> impl Iterator<Item = ShardIndex> + 's {
        layout::shards(&self.segment.record).filter(|shard| self.is_implied(incomplete, *shard))
    }

    /// Returns the height of the tallest stripe with shards that are zeros.
    pub(super) fn tallest_implied(&self) -> usize {
        let stripes = self.runs.iter().flat_map(|run| run.stripes);
        let short = stripes.filter(|incomplete| self.implied(incomplete).next().is_some());
        short.map(IncompleteStripe::height).max().unwrap_or(0)
    }

    /// Returns which slots are to be read of which run.
    pub(super) fn wanted(&self) -> BTreeSet<(usize, usize)> {
        let mut wanted = BTreeSet::new();
        for (index, (run, sources)) in self.runs.iter().zip(&self.sources).enumerate() {
            for (incomplete, source) in run.stripes.iter().zip(sources) {
                for shard in source.shards(incomplete) {
                    wanted.insert((index, self.slot_of(incomplete, shard)));
                }
            }
        }
        wanted
    }

    /// Deals the inputs and outputs out to the stripes.
    pub(super) fn works<'w>(
        &'w self,
        inputs: &'w Inputs,
        zeros: &'w [u8],
        outputs: &'w mut [Vec<Buffer>],
    ) -> Vec<StripeRebuild<'w>> {
        let mut works = Vec::new();
        for ((index, run), outputs) in self.runs.iter().enumerate().zip(outputs) {
            let first = works.len();
            for (incomplete, source) in run.stripes.iter().zip(&self.sources[index]) {
                let rows = run.rows_of(incomplete);
                let read = |shard: ShardIndex| {
                    let slot = self.slot_of(incomplete, shard);
                    let bytes = &inputs.get(&(index, slot))?[rows.clone()];
                    Some((usize::from(shard.0), bytes))
                };
                let mut present: Vec<_> = source.shards(incomplete).filter_map(read).collect();
                if matches!(source, Source::Others(_)) {
                    let zeros = &zeros[..incomplete.height().min(zeros.len())];
                    let implied = self.implied(incomplete);
                    present.extend(implied.map(|shard| (usize::from(shard.0), zeros)));
                }
                works.push(StripeRebuild {
                    incomplete,
                    source,
                    present,
                    outputs: Vec::new(),
                    added: Vec::new(),
                    is_computed: false,
                    is_right: false,
                });
            }
            for (target, output) in self.targets.iter().zip(outputs) {
                let mut rest = &mut output[..];
                let mut at = 0;
                for work in &mut works[first..] {
                    let rows = run.rows_of(work.incomplete);
                    let (_, tail) = rest.split_at_mut(rows.start - at);
                    let (mine, tail) = tail.split_at_mut(rows.len());
                    (rest, at) = (tail, rows.end);
                    if let Some(shard) = work.incomplete.shard_in(&self.segment.record, target.slot)
                    {
                        work.outputs.push((usize::from(shard.0), mine));
                    }
                }
            }
        }
        works
    }

    pub(super) fn write_op(&self, run: &RebuildRun<'_>, output: &Bytes, rows: Range<usize>) -> Op {
        Op::Write {
            name: Arc::clone(&self.segment.name),
            offset: run.range.start + rows.start as u64,
            data: output.slice(rows),
        }
    }
}

impl Source {
    /// Returns the shards that are to be read.
    fn shards(&self, incomplete: &IncompleteStripe) -> impl Iterator<Item = ShardIndex> + use<> {
        match self {
            Self::Copies => incomplete.shards.iter().collect::<Vec<_>>(),
            Self::Others(shards) => shards.clone(),
            Self::Unsure => Vec::new(),
        }
        .into_iter()
    }
}

/// Chooses what to read for a stripe, from slots in the given order.
fn source_of(
    segment: &SegmentHandle,
    incomplete: &IncompleteStripe,
    order: &[usize],
    live: &[MemberIndex],
) -> Source {
    let IncompleteStripe { record, shards, .. } = incomplete;
    let data_shards = usize::from(segment.record.data_shards);
    let is_readable = |shard: ShardIndex| {
        let member = segment.member_of(record, shard);
        record.written.contains(shard) && member.is_some_and(|member| live.contains(&member))
    };
    if shards.iter().all(is_readable) {
        return Source::Copies;
    }
    let index = |shard: ShardIndex| usize::from(shard.0);
    let implied: Vec<usize> = layout::shards(&segment.record)
        .filter(|&shard| record.is_implied(shard, data_shards))
        .map(index)
        .collect();
    let others = order
        .iter()
        .filter_map(|&slot| segment.record.shard_in(slot, record.rotation))
        .filter(|&shard| is_readable(shard) && !shards.contains(shard));
    let others = survival(&segment.record).useful(&implied, others.map(index));
    if implied.len() + others.len() < data_shards {
        Source::Unsure
    } else {
        Source::Others(others.into_iter().map(layout::shard).collect())
    }
}
