//! Reconstructing blocks from the other shards, and repairing the wrong ones in passing.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::lost::{Lost, shift};
use super::{Fetched, ShardReader};
use crate::format::{BLOCK_SIZE, ShardIndex};
use crate::membership::{Access, Wait};
use crate::store::{Buffer, Op};
use crate::stripes::error::StripeError;
use crate::stripes::layout;
use crate::stripes::locator::{Located, Rows, mismatches};
use crate::stripes::ranges::joined;

/// Rows of shards that were read and are right.
pub(super) type Have<'a> = [(&'a Rows, Bytes)];

/// Rows of a shard that were read and are wrong.
#[derive(Clone, Debug)]
struct Wrong {
    shard: ShardIndex,
    ranges: Vec<Range<usize>>,
}

/// The shards of some rows that are right, as many as decoding needs and none that does not help, and those found wrong.
struct Gathered {
    present: Vec<(ShardIndex, Bytes)>,
    wrong: Vec<Wrong>,
}

impl Gathered {
    /// Returns those of `others` that decoding needs besides: see [`Survival::useful`](crate::codec::Survival::useful).
    fn useful(&self, located: &Located, others: &[ShardIndex]) -> Vec<ShardIndex> {
        let index = |shard: &ShardIndex| usize::from(shard.0);
        let have: Vec<usize> = self.present.iter().map(|(shard, _)| index(shard)).collect();
        let survival = located.codec.survival();
        let useful = survival.useful(&have, others.iter().map(index));
        useful.into_iter().map(layout::shard).collect()
    }
}

impl ShardReader {
    /// Reconstructs what is lost, with the help of what is there.
    pub(super) fn decode_into(
        &self,
        located: &Located,
        have: &Have<'_>,
        lost: &mut [Lost<'_>],
    ) -> Result<(), StripeError> {
        for rows in joined(lost.iter().flat_map(|lost| lost.ranges.clone())) {
            let is_hit = |lost: &Lost<'_>| lost.ranges.iter().any(|range| overlaps(range, &rows));
            let mut hit: Vec<_> = lost.iter_mut().filter(|lost| is_hit(lost)).collect();
            let shards: Vec<ShardIndex> = hit.iter().map(|lost| lost.rows.shard).collect();
            let wrong: Vec<Wrong> = hit
                .iter()
                .filter(|lost| lost.wrong)
                .map(|lost| Wrong {
                    shard: lost.rows.shard,
                    ranges: lost.ranges.clone(),
                })
                .collect();
            let decoded = self.decode(located, &rows, &shards, &wrong, have)?;
            for (lost, decoded) in hit.iter_mut().zip(decoded) {
                lost.take(&rows, decoded);
            }
        }
        Ok(())
    }

    /// Returns rows of lost shards, in their order, computed from others.
    ///
    /// If too few shards are right throughout the rows, each block is tried on its own: another
    /// shard may be wrong in each of them.
    fn decode(
        &self,
        located: &Located,
        rows: &Range<usize>,
        lost: &[ShardIndex],
        wrong: &[Wrong],
        have: &Have<'_>,
    ) -> Result<Vec<Buffer>, StripeError> {
        match self.decode_at_once(located, rows, lost, wrong, have) {
            Err(StripeError::TooFewShards { .. }) if rows.len() > BLOCK_SIZE => {}
            other => return other,
        }
        let mut whole: Vec<Buffer> = lost.iter().map(|_| self.pool.buffer(rows.len())).collect();
        for start in rows.clone().step_by(BLOCK_SIZE) {
            let block = start..start + BLOCK_SIZE;
            let wrong: Vec<Wrong> = wrong
                .iter()
                .filter_map(|wrong| wrong.within(&block))
                .collect();
            let decoded = self.decode_at_once(located, &block, lost, &wrong, have)?;
            for (whole, decoded) in whole.iter_mut().zip(decoded) {
                whole[shift(&block, rows.start)].copy_from_slice(&decoded);
            }
        }
        Ok(whole)
    }

    fn decode_at_once(
        &self,
        located: &Located,
        rows: &Range<usize>,
        lost: &[ShardIndex],
        wrong: &[Wrong],
        have: &Have<'_>,
    ) -> Result<Vec<Buffer>, StripeError> {
        let gathered = self.gather(located, rows, lost, have)?;
        let found_wrong = gathered.wrong.iter().map(|wrong| wrong.shard);
        let targets: Vec<ShardIndex> = lost.iter().copied().chain(found_wrong).collect();
        let mut decoded: Vec<Buffer> = targets
            .iter()
            .map(|_| self.pool.buffer(rows.len()))
            .collect();
        let present: Vec<(usize, &[u8])> = gathered
            .present
            .iter()
            .map(|(shard, bytes)| (usize::from(shard.0), &**bytes))
            .collect();
        self.decodes.fetch_add(1, Ordering::Relaxed);
        let is_right = self.coder.compute_verified(&located.codec, |pass| {
            let mut outputs: Vec<(usize, &mut [u8])> = targets
                .iter()
                .zip(&mut decoded)
                .map(|(shard, bytes)| (usize::from(shard.0), &mut **bytes))
                .collect();
            let reconstructed = pass.reconstruct(&present, &mut outputs);
            reconstructed.map_err(|source| StripeError::Codec {
                stripe: located.id,
                source,
            })?;
            self.are_right(located, rows, targets.iter().copied().zip(&decoded))
        })?;
        if !is_right {
            return Err(StripeError::BadRecord {
                stripe: located.id,
                what: "reconstructed bytes do not match",
            });
        }
        for wrong in wrong.iter().chain(&gathered.wrong) {
            if let Some(at) = targets.iter().position(|&shard| shard == wrong.shard) {
                self.repair(located, rows, wrong, &decoded[at]);
            }
        }
        decoded.truncate(lost.len());
        Ok(decoded)
    }

    /// Takes what was read already, and reads as many more shards as decoding needs, all at once. Reads others in place
    /// of those that turn out to be wrong.
    fn gather(
        &self,
        located: &Located,
        rows: &Range<usize>,
        lost: &[ShardIndex],
        have: &Have<'_>,
    ) -> Result<Gathered, StripeError> {
        let needed = located.data_shards();
        let mut gathered = Gathered {
            present: Vec::with_capacity(needed),
            wrong: Vec::new(),
        };
        let shards = layout::shards(&located.segment.record);
        let mut untried = Vec::new();
        for shard in shards.filter(|shard| !lost.contains(shard)) {
            match self.already_read(located, rows, shard, have) {
                Some(bytes) if !gathered.useful(located, &[shard]).is_empty() => {
                    gathered.present.push((shard, bytes));
                }
                Some(_) => {}
                None => untried.push(shard),
            }
        }
        self.gather_from(located, rows, &mut untried, Wait::HedgeDelay, &mut gathered)?;
        // The untried shards that remain are the slow ones.
        self.gather_from(located, rows, &mut untried, Wait::Full, &mut gathered)?;
        if gathered.present.len() < needed {
            let present = gathered.present.len();
            return Err(StripeError::TooFewShards {
                stripe: located.id,
                present,
                needed,
            });
        }
        Ok(gathered)
    }

    /// Reads as many of the `untried` shards as decoding needs; those whose members are slow stay untried.
    fn gather_from(
        &self,
        located: &Located,
        rows: &Range<usize>,
        untried: &mut Vec<ShardIndex>,
        patience: Wait,
        gathered: &mut Gathered,
    ) -> Result<(), StripeError> {
        let mut slow = Vec::new();
        loop {
            let batch = gathered.useful(located, untried);
            if batch.is_empty() {
                break;
            }
            untried.retain(|shard| !batch.contains(shard));
            let wanted: Vec<Rows> = batch
                .into_iter()
                .map(|shard| Rows {
                    shard,
                    range: rows.clone(),
                })
                .collect();
            let fetched = self.fetch_directly(located, &wanted, patience)?;
            for (rows, fetched) in wanted.iter().zip(fetched) {
                let shard = rows.shard;
                match fetched {
                    Fetched::Good(bytes) => gathered.present.push((shard, bytes.freeze())),
                    Fetched::Bad(_, ranges) => gathered.wrong.push(Wrong { shard, ranges }),
                    Fetched::Absent => {}
                    Fetched::Slow => slow.push(shard),
                }
            }
        }
        untried.append(&mut slow);
        Ok(())
    }

    /// Returns rows of a shard that need not be read, because they just were, or are in the cache.
    fn already_read(
        &self,
        located: &Located,
        rows: &Range<usize>,
        shard: ShardIndex,
        have: &Have<'_>,
    ) -> Option<Bytes> {
        let covers = |held: &Rows| {
            held.shard == shard && held.range.start <= rows.start && rows.end <= held.range.end
        };
        if let Some((held, bytes)) = have.iter().find(|(held, _)| covers(held)) {
            return Some(bytes.slice(shift(rows, held.range.start)));
        }
        let cached = self.cache.get(located.id, shard)?;
        Some(cached.slice(rows.clone()))
    }

    /// Checks reconstructed rows of shards like any others. If they are wrong, there are three possible causes: shards
    /// that count as right are wrong, the checksums themselves are, or the device that computed the rows is.
    fn are_right<'b>(
        &self,
        located: &Located,
        rows: &Range<usize>,
        mut shards: impl Iterator<Item = (ShardIndex, &'b Buffer)>,
    ) -> Result<bool, StripeError> {
        shards.try_fold(true, |right, (shard, bytes)| {
            if !right || located.is_implied(shard) {
                return Ok(right);
            }
            let rows = Rows {
                shard,
                range: rows.clone(),
            };
            let sums = self.locator.sums_of(located, &rows)?;
            Ok(sums.is_some_and(|sums| mismatches(&rows, bytes, &sums).is_empty()))
        })
    }

    /// Writes reconstructed blocks over the wrong ones; says in the log whether that succeeded.
    fn repair(&self, located: &Located, rows: &Range<usize>, wrong: &Wrong, decoded: &Buffer) {
        let member = self.reachable(located, wrong.shard);
        let Some(member) = member.filter(|_| self.members.access() == Access::ReadWrite) else {
            return;
        };
        let Some(wrong) = wrong.within(rows) else {
            return;
        };
        let write = |range: &Range<usize>| {
            let data = self
                .pool
                .copy_of(&decoded[shift(range, rows.start)])
                .freeze();
            let name = Arc::clone(&located.segment.name);
            (
                member,
                Op::Write {
                    name,
                    offset: located.record.offset + range.start as u64,
                    data,
                },
            )
        };
        let outcomes = self
            .members
            .io()
            .run(wrong.ranges.iter().map(write).collect());
        let repaired = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        self.dirty.touch(&located.segment, member);
        let total = outcomes.len();
        let id = (located.id, wrong.shard);
        self.damage.note_repaired(id, repaired, || {
            let path = self.members.membership().path(member);
            let file = &located.segment.name;
            let start = wrong.ranges.first().map_or(0, |range| range.start as u64);
            let offset = located.record.offset + start;
            format!(
                "repaired {repaired} of the {total} ranges that were read, on member {member}: {path}/{file} from offset \
                 {offset}"
            )
        });
    }
}

impl Wrong {
    /// Returns what of it lies in `rows`, if anything does.
    fn within(&self, rows: &Range<usize>) -> Option<Self> {
        let clip = |range: &Range<usize>| range.start.max(rows.start)..range.end.min(rows.end);
        let ranges: Vec<_> = self
            .ranges
            .iter()
            .map(clip)
            .filter(|r| !r.is_empty())
            .collect();
        (!ranges.is_empty()).then_some(Self {
            shard: self.shard,
            ranges,
        })
    }
}

fn overlaps(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}
