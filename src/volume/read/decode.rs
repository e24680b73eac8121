//! Reconstructing blocks from the other shards, and mending the wrong ones in passing.

use std::ops::Range;
use std::sync::Arc;

use super::fetch::{Fetched, mismatches};
use super::{Located, Rows};
use crate::format::{BLOCK_SIZE, ShardIndex};
use crate::store::{Buffer, Op};
use crate::volume::{Core, VolumeError, layout};

/// What is lost of some rows of a shard.
#[derive(Clone, Debug, Default)]
pub(super) struct Loss {
    /// The ranges of bytes in the shard.
    pub(super) ranges: Vec<Range<usize>>,
    /// Whether they were read and are wrong, so that they can be mended; else they are absent.
    pub(super) wrong: bool,
}

/// Rows of a shard that were read and are wrong.
#[derive(Clone, Debug)]
struct Wrong {
    shard: ShardIndex,
    ranges: Vec<Range<usize>>,
}

/// The shards of some rows that are right, as many as decoding needs, and those found wrong.
struct Gathered {
    present: Vec<(ShardIndex, Buffer)>,
    wrong: Vec<Wrong>,
}

impl Core {
    /// Puts what is lost of each of `wanted` into its buffer.
    pub(super) fn decode_into(
        &self,
        located: &Located,
        wanted: &[Rows],
        losses: &[Loss],
        buffers: &mut [Buffer],
    ) -> Result<(), VolumeError> {
        for rows in union(losses.iter().flat_map(|loss| &loss.ranges)) {
            let is_hit = |loss: &Loss| loss.ranges.iter().any(|range| overlaps(range, &rows));
            let hit: Vec<usize> = (0..wanted.len()).filter(|&i| is_hit(&losses[i])).collect();
            let lost: Vec<ShardIndex> = hit.iter().map(|&i| wanted[i].shard).collect();
            let wrong: Vec<Wrong> = hit
                .iter()
                .filter(|&&i| losses[i].wrong)
                .map(|&i| Wrong {
                    shard: wanted[i].shard,
                    ranges: losses[i].ranges.clone(),
                })
                .collect();
            let decoded = self.decode(located, &rows, &lost, &wrong)?;
            for (&i, bytes) in hit.iter().zip(&decoded) {
                let have = &wanted[i].range;
                let both = have.start.max(rows.start)..have.end.min(rows.end);
                buffers[i][shift(&both, have.start)]
                    .copy_from_slice(&bytes[shift(&both, rows.start)]);
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
    ) -> Result<Vec<Buffer>, VolumeError> {
        match self.decode_at_once(located, rows, lost, wrong) {
            Err(VolumeError::TooFewShards { .. }) if rows.len() > BLOCK_SIZE => {}
            other => return other,
        }
        let mut whole: Vec<Buffer> = lost.iter().map(|_| self.pool.buffer(rows.len())).collect();
        for start in rows.clone().step_by(BLOCK_SIZE) {
            let block = start..start + BLOCK_SIZE;
            let wrong: Vec<Wrong> = wrong
                .iter()
                .filter_map(|wrong| wrong.within(&block))
                .collect();
            let decoded = self.decode_at_once(located, &block, lost, &wrong)?;
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
    ) -> Result<Vec<Buffer>, VolumeError> {
        let gathered = self.gather(located, rows, lost)?;
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
        let mut outputs: Vec<(usize, &mut [u8])> = targets
            .iter()
            .zip(&mut decoded)
            .map(|(shard, bytes)| (usize::from(shard.0), &mut **bytes))
            .collect();
        located
            .codec
            .pass()
            .crew(&*self.workers)
            .reconstruct(&present, &mut outputs)
            .map_err(|source| VolumeError::Codec {
                stripe: located.id,
                source,
            })?;
        for (&shard, bytes) in targets.iter().zip(&decoded) {
            self.check_decoded(
                located,
                &Rows {
                    shard,
                    range: rows.clone(),
                },
                bytes,
            )?;
        }
        for wrong in wrong.iter().chain(&gathered.wrong) {
            if let Some(at) = targets.iter().position(|&shard| shard == wrong.shard) {
                self.mend(located, rows, wrong, &decoded[at]);
            }
        }
        decoded.truncate(lost.len());
        Ok(decoded)
    }

    /// Reads as many shards as decoding needs, and others for those that turn out to be wrong.
    fn gather(
        &self,
        located: &Located,
        rows: &Range<usize>,
        lost: &[ShardIndex],
    ) -> Result<Gathered, VolumeError> {
        let needed = located.data_shards();
        let mut gathered = Gathered {
            present: Vec::with_capacity(needed),
            wrong: Vec::new(),
        };
        let shards = layout::shards(&located.segment.record);
        let mut untried: Vec<ShardIndex> = shards.filter(|shard| !lost.contains(shard)).collect();
        while gathered.present.len() < needed && !untried.is_empty() {
            let missing = needed - gathered.present.len();
            let batch = untried.drain(..missing.min(untried.len()));
            let wanted: Vec<Rows> = batch
                .map(|shard| Rows {
                    shard,
                    range: rows.clone(),
                })
                .collect();
            for (rows, fetched) in wanted.iter().zip(self.fetch_directly(located, &wanted)?) {
                let shard = rows.shard;
                match fetched {
                    Fetched::Good(bytes) => gathered.present.push((shard, bytes)),
                    Fetched::Bad(_, ranges) => gathered.wrong.push(Wrong { shard, ranges }),
                    Fetched::Absent => {}
                }
            }
        }
        if gathered.present.len() < needed {
            let present = gathered.present.len();
            return Err(VolumeError::TooFewShards {
                stripe: located.id,
                present,
                needed,
            });
        }
        Ok(gathered)
    }

    /// Checks reconstructed rows like any others: wrong ones mean that shards were taken for right
    /// that were not, or that the checksums themselves are wrong.
    fn check_decoded(
        &self,
        located: &Located,
        rows: &Rows,
        bytes: &[u8],
    ) -> Result<(), VolumeError> {
        let stripe = located.id;
        let unverified = VolumeError::BadRecord {
            stripe,
            what: "reconstructed bytes do not match",
        };
        if located.is_implied(rows.shard) {
            return Ok(());
        }
        let sums = self
            .sums_of(located, rows)?
            .ok_or_else(|| unverified.clone())?;
        if mismatches(rows, bytes, &sums).is_empty() {
            Ok(())
        } else {
            Err(unverified)
        }
    }

    /// Writes reconstructed blocks over the wrong ones; says in the log whether that succeeded.
    fn mend(&self, located: &Located, rows: &Range<usize>, wrong: &Wrong, decoded: &Buffer) {
        let member = self.reachable(located, wrong.shard);
        let Some(member) = member.filter(|_| self.is_writable()) else {
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
        let outcomes = self.members.run(wrong.ranges.iter().map(write).collect());
        let mended = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        self.dirty.touch(&located.segment, member);
        self.mended
            .fetch_add(mended as u64, std::sync::atomic::Ordering::Relaxed);
        log::warn!(
            "stripe {} shard {}: mended {mended} of {} ranges on member {member}",
            located.id,
            wrong.shard,
            outcomes.len()
        );
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

fn shift(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start - by..range.end - by
}

/// Joins ranges that touch or overlap.
fn union<'a>(ranges: impl Iterator<Item = &'a Range<usize>>) -> Vec<Range<usize>> {
    let mut sorted: Vec<Range<usize>> = ranges.cloned().collect();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in sorted {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn union_joins_neighbours_and_keeps_gaps() {
        let ranges = [8..12, 0..4, 4..8, 20..24, 22..30, 40..41];
        assert_eq!(union(ranges.iter()), [0..12, 20..30, 40..41]);
    }
}
