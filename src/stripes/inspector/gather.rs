//! Reading the shards of stripes that lie one after the other, with as few operations as can be.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::Inspector;
use crate::format::{MemberIndex, ShardIndex};
use crate::store::{Op, Outcome, StoreErrorKind};
use crate::stripes::locator::Located;

/// Bytes that are read from a file at once.
const MAX_RUN_BYTES: u64 = 8 << 20;

/// The result of reading a shard.
#[derive(Clone, Debug)]
pub(super) enum Raw {
    Read(Bytes),
    /// The file is gone, or ends before the shard does.
    Gone,
    /// It was never written, or its member is away.
    Away,
}

/// One read: the shards of some stripes in one slot.
struct SlotRead {
    stripes: Range<usize>,
    slot: usize,
    member: MemberIndex,
}

impl Inspector {
    /// Reads all shards of stripes of one segment. Returns those of each stripe by their index; implied
    /// ones are not read, and [`Raw::Away`].
    pub(super) fn gather_all(&self, stripes: &[Located]) -> Vec<Vec<Raw>> {
        let total = |located: &Located| located.segment.record.total_shards();
        let mut raw: Vec<Vec<Raw>> = stripes
            .iter()
            .map(|located| vec![Raw::Away; total(located)])
            .collect();
        let runs = self.runs(stripes);
        let outcomes = self.members.io().run(
            runs.iter()
                .map(|run| self.read_run(stripes, &run.stripes, run.member))
                .collect(),
        );
        for (run, outcome) in runs.iter().zip(outcomes) {
            self.take_run(stripes, run, outcome, &mut raw);
        }
        raw
    }

    /// Returns the reads: for each slot whose member is online, the stripes that follow one another.
    fn runs(&self, stripes: &[Located]) -> Vec<SlotRead> {
        let Some(first) = stripes.first() else {
            return Vec::new();
        };
        let live = self.members.membership().live();
        let neighbours = neighbours(stripes);
        let slots = first.segment.record.slots.iter().enumerate();
        let mut runs = Vec::new();
        for (slot, member) in slots {
            let Some(member) = member.filter(|member| live.contains(member)) else {
                continue;
            };
            for run in &neighbours {
                if run.clone().any(|at| shard_in(&stripes[at], slot).is_some()) {
                    runs.push(SlotRead {
                        stripes: run.clone(),
                        slot,
                        member,
                    });
                }
            }
        }
        runs
    }

    fn read_run(
        &self,
        stripes: &[Located],
        run: &Range<usize>,
        member: MemberIndex,
    ) -> (MemberIndex, Op) {
        let (first, last) = (&stripes[run.start], &stripes[run.end - 1]);
        let end = last.record.offset + u64::from(last.record.height);
        let len = usize::try_from(end - first.record.offset).expect("a run fits memory");
        let op = Op::Read {
            name: Arc::clone(&first.segment.name),
            offset: first.record.offset,
            buf: self.pool.buffer(len),
        };
        (member, op)
    }

    fn take_run(
        &self,
        stripes: &[Located],
        run: &SlotRead,
        outcome: Outcome,
        raw: &mut [Vec<Raw>],
    ) {
        let in_slot = |at: usize| Some((at, shard_in(&stripes[at], run.slot)?));
        let shards: Vec<(usize, ShardIndex)> = run.stripes.clone().filter_map(in_slot).collect();
        let mut set = |at: usize, shard: ShardIndex, found| raw[at][usize::from(shard.0)] = found;
        match outcome {
            Ok(Some(buffer)) => {
                let bytes = buffer.freeze();
                let start = stripes[run.stripes.start].record.offset;
                for (at, shard) in shards {
                    let from = usize::try_from(stripes[at].record.offset - start)
                        .expect("a run fits memory");
                    let of_shard = bytes.slice(from..from + stripes[at].height());
                    set(at, shard, Raw::Read(of_shard));
                }
            }
            Err(error) if error.kind().lacks_file() => {
                for (at, shard) in shards {
                    set(at, shard, Raw::Gone);
                }
            }
            // Some of them may be there.
            Err(error) if error.kind() == StoreErrorKind::ShortRead => {
                let read =
                    |&(at, _): &(usize, _)| self.read_run(stripes, &(at..at + 1), run.member);
                let outcomes = self.members.io().run(shards.iter().map(read).collect());
                for ((at, shard), outcome) in shards.into_iter().zip(outcomes) {
                    match outcome {
                        Ok(Some(buffer)) => set(at, shard, Raw::Read(buffer.freeze())),
                        Err(error) if is_absence(error.kind()) => set(at, shard, Raw::Gone),
                        Ok(None) | Err(_) => {}
                    }
                }
            }
            Err(error) => tracing::debug!("{error}: its shards are not looked at"),
            Ok(None) => {}
        }
    }
}

fn is_absence(kind: StoreErrorKind) -> bool {
    kind.lacks_file() || kind == StoreErrorKind::ShortRead
}

/// Returns the shard of a stripe that lies in a slot, if one was written there.
fn shard_in(located: &Located, slot: usize) -> Option<ShardIndex> {
    let segment = &located.segment.record;
    let shard = segment.shard_in(slot, located.record.rotation)?;
    let is_there = located.record.written.contains(shard) && !located.is_implied(shard);
    is_there.then_some(shard)
}

/// Cuts stripes into runs without gaps.
fn neighbours(stripes: &[Located]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, located) in stripes.iter().enumerate() {
        let end = located.record.offset + u64::from(located.record.height);
        match runs.last_mut() {
            Some(run)
                if end_of(&stripes[run.end - 1]) == located.record.offset
                    && end - stripes[run.start].record.offset <= MAX_RUN_BYTES =>
            {
                run.end = at + 1;
            }
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

fn end_of(located: &Located) -> u64 {
    located.record.offset + u64::from(located.record.height)
}
