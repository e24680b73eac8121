//! Computation of the wrong or missing parts of one stripe from its intact shards, range by range. Comparison of
//! whole stripes with the code, all at once.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Inspector;
use super::findings::{Fixed, FoundShard, Restored};
use crate::codec::{BLOCK_BYTES, CodecError, CodingTask, Mismatch};
use crate::format::BLOCK_SIZE;
use crate::format::record::ShardSet;
use crate::stripes::error::StripeError;
use crate::stripes::layout;
use crate::stripes::locator::{Located, Rows};
use crate::stripes::ranges::joined;

impl Inspector {
    /// Computes what is not right of a stripe.
    ///
    /// # Errors
    ///
    /// If checksums cannot be looked up, or the codec refuses the shards.
    pub(super) fn restore_shards(
        &self,
        located: &Located,
        found: &[FoundShard],
    ) -> Result<Restored, StripeError> {
        let mut restored = Restored::default();
        for (shard, found) in found.iter().enumerate() {
            if !matches!(found, FoundShard::Right(_)) {
                let bytes = match found.bytes() {
                    Some(bytes) => self.pool.copy_of(bytes),
                    None => self.pool.buffer(located.height()),
                };
                restored.fixed.push(Fixed {
                    shard,
                    bytes,
                    ranges: Vec::new(),
                    is_whole: true,
                });
            }
        }
        for rows in stretches(located.height(), found) {
            if !found.iter().all(|found| found.is_right_in(&rows)) {
                self.restore_rows(located, found, &rows, &mut restored)?;
            }
        }
        restored.inconsistent = joined(restored.inconsistent);
        restored.lost = joined(restored.lost);
        Ok(restored)
    }

    /// Computes rows throughout which the same shards are right.
    fn restore_rows(
        &self,
        located: &Located,
        found: &[FoundShard],
        rows: &Range<usize>,
        restored: &mut Restored,
    ) -> Result<(), StripeError> {
        let right = |shard: usize| found[shard].is_right_in(rows);
        let present: Vec<(usize, &[u8])> = (0..found.len())
            .filter(|&shard| right(shard))
            .filter_map(|shard| Some((shard, &found[shard].bytes()?[rows.clone()])))
            .collect();
        let (survival, needed) = (located.codec.survival(), located.data_shards());
        let indices = present.iter().map(|(shard, _)| *shard);
        if survival.rank(indices.clone()) < needed {
            let is_written = |shard: &usize| {
                let shard = layout::shard(*shard);
                located.record.written.contains(shard)
            };
            let away = (0..found.len()).filter(|&shard| matches!(found[shard], FoundShard::Away));
            let could_return = away.filter(is_written);
            restored.is_lost_for_good |= survival.rank(indices.chain(could_return)) < needed;
            for fixed in &mut restored.fixed {
                if !right(fixed.shard) {
                    fixed.is_whole = false;
                    restored
                        .lost
                        .extend(located.payload_range(layout::shard(fixed.shard), rows));
                }
            }
            return Ok(());
        }
        // Without checksums, nothing says that it is wrong.
        let is_wrong = |shard: usize, bytes: &[u8]| {
            let checked = Rows {
                shard: layout::shard(shard),
                range: rows.clone(),
            };
            self.is_wrong(located, &checked, bytes)
        };
        let fixed = &mut restored.fixed;
        self.coder.compute_verified(&located.codec, |pass| {
            let mut outputs: Vec<(usize, &mut [u8])> = fixed
                .iter_mut()
                .filter(|fixed| !right(fixed.shard))
                .map(|fixed| (fixed.shard, &mut fixed.bytes[rows.clone()]))
                .collect();
            let reconstructed = pass.reconstruct(&present, &mut outputs);
            reconstructed.map_err(|source| StripeError::Codec {
                stripe: located.id,
                source,
            })?;
            let mut outputs = outputs.iter();
            outputs.try_fold(true, |so_far, (shard, bytes)| {
                Ok(so_far && !is_wrong(*shard, bytes)?)
            })
        })?;
        let mut unlike_their_sums = ShardSet::default();
        for fixed in &mut restored.fixed {
            if right(fixed.shard) {
                continue;
            }
            if is_wrong(fixed.shard, &fixed.bytes[rows.clone()])? {
                unlike_their_sums.insert(layout::shard(fixed.shard));
                restored.inconsistent.push(in_shards(rows));
                restored.is_lost_for_good = true;
                fixed.is_whole = false;
                restored
                    .lost
                    .extend(located.payload_range(layout::shard(fixed.shard), rows));
            } else {
                fixed.ranges.push(rows.clone());
            }
        }
        if unlike_their_sums.is_empty() {
            return Ok(());
        }
        // Data that is right tells which parities are not. Otherwise one of those that are there is not.
        let one = present.iter().map(|(shard, _)| *shard);
        let one = one.filter(|shard| *shard >= needed).take(1);
        restored.suspect(if (0..needed).all(right) {
            unlike_their_sums
        } else {
            one.map(layout::shard).collect()
        });
        Ok(())
    }

    /// Notes in which blocks of stripes parity is not what the code makes of the data, in stripes whose shards are all
    /// available by now.
    ///
    /// # Errors
    ///
    /// If the codec refuses the shards.
    pub(super) fn hold_against_code(
        &self,
        stripes: &[Located],
        found: &[Vec<FoundShard>],
        restored: &mut [Restored],
    ) -> Result<(), StripeError> {
        let of_stripes = stripes.iter().zip(found).zip(&*restored).enumerate();
        let whole: Vec<Whole<'_>> = of_stripes
            .filter(|(_, (_, restored))| restored.fixed.iter().all(|fixed| fixed.is_whole))
            .map(|(at, ((located, found), restored))| Whole::new(at, located, found, restored))
            .collect();
        let mut tasks = Vec::with_capacity(whole.len());
        for whole in &whole {
            let pass = self.coder.pass(&whole.located.codec);
            let task = pass.comparison(&whole.shards);
            tasks.push(task.map_err(|source| whole.refused(source))?);
        }
        CodingTask::compute_all(&mut tasks);
        let mut inconsistent = Vec::new();
        let mut clean = Vec::new();
        let mut is_device_wrong = false;
        for (whole, task) in whole.iter().zip(tasks) {
            let mismatches = task.into_mismatches();
            if mismatches.is_empty() {
                clean.push(whole);
            } else {
                let mismatches = self.compare_again(whole, mismatches)?;
                is_device_wrong |= mismatches.is_empty();
                inconsistent.push((whole.at, mismatches));
            }
        }
        // A device that reports differences that do not exist may also miss real ones.
        for whole in clean.into_iter().filter(|_| is_device_wrong) {
            let pass = self.coder.pass(&whole.located.codec).accelerator(None);
            let compared = pass.mismatches(&whole.shards);
            let mismatches = compared.map_err(|source| whole.refused(source))?;
            inconsistent.push((whole.at, mismatches));
        }
        for (at, mismatches) in inconsistent {
            restored[at].inconsistent = joined(mismatches.iter().map(rows_of));
            for suspects in suspects_of(&mismatches) {
                restored[at].suspect(suspects);
            }
        }
        Ok(())
    }

    /// Returns the mismatches that are there if not only a device sees them.
    fn compare_again(
        &self,
        whole: &Whole<'_>,
        mut mismatches: Vec<Mismatch>,
    ) -> Result<Vec<Mismatch>, StripeError> {
        self.coder.repeat_on_cpu(&whole.located.codec, |pass| {
            let compared = pass.mismatches(&whole.shards);
            mismatches = compared.map_err(|source| whole.refused(source))?;
            Ok(mismatches.is_empty())
        })?;
        Ok(mismatches)
    }
}

/// A stripe whose shards are all available.
struct Whole<'a> {
    /// The index of the stripe among those of the call.
    at: usize,
    located: &'a Located,
    shards: Vec<&'a [u8]>,
}

impl<'a> Whole<'a> {
    fn new(
        at: usize,
        located: &'a Located,
        found: &'a [FoundShard],
        restored: &'a Restored,
    ) -> Self {
        let fixed = |shard: usize| restored.fixed.iter().find(|fixed| fixed.shard == shard);
        let bytes = |(shard, found): (usize, &'a FoundShard)| match fixed(shard) {
            Some(fixed) => Some(&fixed.bytes[..]),
            None => found.bytes().map(|bytes| &bytes[..]),
        };
        Self {
            at,
            located,
            shards: found.iter().enumerate().filter_map(bytes).collect(),
        }
    }

    fn refused(&self, source: CodecError) -> StripeError {
        let stripe = self.located.id;
        StripeError::Codec { stripe, source }
    }
}

/// Returns the parities that cannot be trusted, of each block.
fn suspects_of(mismatches: &[Mismatch]) -> impl Iterator<Item = ShardSet> {
    let mut by_block: BTreeMap<usize, ShardSet> = BTreeMap::new();
    for mismatch in mismatches {
        let suspects = by_block.entry(mismatch.block).or_default();
        suspects.insert(layout::shard(mismatch.shard));
    }
    by_block.into_values()
}

/// Returns the rows of a block.
fn rows_of(mismatch: &Mismatch) -> Range<u32> {
    let start = mismatch.block * BLOCK_BYTES;
    in_shards(&(start..start + BLOCK_BYTES))
}

/// Cuts the rows of a stripe where a shard begins or ends to be wrong.
fn stretches(height: usize, found: &[FoundShard]) -> Vec<Range<usize>> {
    let mut cuts = vec![0, height];
    for found in found {
        if let FoundShard::Wrong(_, ranges) = found {
            cuts.extend(ranges.iter().flat_map(|range| [range.start, range.end]));
        }
    }
    cuts.sort_unstable();
    cuts.dedup();
    debug_assert!(cuts.iter().all(|cut| cut.is_multiple_of(BLOCK_SIZE)));
    cuts.windows(2).map(|ends| ends[0]..ends[1]).collect()
}

fn in_shards(rows: &Range<usize>) -> Range<u32> {
    layout::stripe_bytes(rows.start)..layout::stripe_bytes(rows.end)
}
