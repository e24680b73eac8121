//! One pass over the shards of a stripe: encode, reconstruct, verify, update.

use std::{borrow::Cow, sync::Arc};

use parking_lot::Mutex;

use crate::{
    Accelerator, Codec, CodecError, CodingTask, Item, Job, Mode, Plan, Stores, Targets, WorkerPool,
    decode::ShardSet,
    plan::{check_count, common_length},
    shard_columns::{BLOCK_BYTES, ShardColumns},
};

/// Bytes of each shard that [`Pass::verify`] works on at once, so that its parities stay in cache.
const VERIFY_BYTES: usize = 16 << 10;

/// Shards of one pass that take more than this together are taken to exceed the cache.
const CACHE_BYTES: usize = 8 << 20;

/// The fewest bytes, of all shards together, that are worth waking another thread for.
const PIECE_BYTES: usize = 256 << 10;

const _: () = assert!(VERIFY_BYTES.is_multiple_of(BLOCK_BYTES));

/// A block of a parity shard that differs from what the data shards call for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// The index of the shard.
    pub shard: usize,
    /// The index of the block, of [`BLOCK_BYTES`], in the shard.
    pub block: usize,
}

impl Mismatch {
    /// Returns those of parities from shard `first` on, given whether each of so many blocks of them is wrong.
    pub(super) fn all(wrong: &[bool], first: usize, blocks: usize) -> Vec<Self> {
        let found = wrong.iter().enumerate().filter(|(_, is_wrong)| **is_wrong);
        let mismatch = |(at, _)| Self {
            shard: first + at / blocks,
            block: at % blocks,
        };
        found.map(mismatch).collect()
    }
}

/// A plan, what it is applied to, and where the result goes.
type Erased<'s, 't> = (Arc<Plan>, Vec<&'s [u8]>, Vec<&'t mut [u8]>);

/// The settings for work on one stripe. Made by [`Codec::pass`].
///
/// # Examples
///
/// ```
/// # use cauchyfs_codec::{self as codec, CodeId, Codec, CodecError, Geometry, Stores};
/// # let codec = Codec::new(CodeId::RS_CAUCHY, Geometry::new(1, 1)?, codec::select("auto")?)?;
/// // The stripe is written to disk next and not looked at again, so keep it out of the cache.
/// let mut mirror = [0; 3];
/// codec.pass().stores(Stores::Streaming).encode(&[b"abc"], &mut [&mut mirror])?;
/// assert_eq!(&mirror, b"abc");
/// # Ok::<(), CodecError>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Pass<'p> {
    codec: &'p Codec,
    stores: Option<Stores>,
    workers: Option<&'p dyn WorkerPool>,
    accelerator: Option<&'p dyn Accelerator>,
}

impl<'p> Pass<'p> {
    pub(super) fn new(codec: &'p Codec) -> Self {
        Self {
            codec,
            stores: None,
            workers: None,
            accelerator: None,
        }
    }

    /// Says where results are written to. Otherwise that depends on whether the shards of this pass
    /// would fit the cache.
    pub fn stores(self, stores: Stores) -> Self {
        Self {
            stores: Some(stores),
            ..self
        }
    }

    /// Splits big passes over a pool of threads, by columns, without copying.
    pub fn workers(self, workers: &'p dyn WorkerPool) -> Self {
        Self {
            workers: Some(workers),
            ..self
        }
    }

    /// Lets an accelerator decide what computes the pass. It has no part in [`Self::update`], nor in
    /// codes that work on packets.
    pub fn accelerator(self, accelerator: Option<&'p dyn Accelerator>) -> Self {
        Self {
            accelerator,
            ..self
        }
    }

    /// Computes all parity shards from all data shards.
    ///
    /// # Errors
    ///
    /// [`CodecError::ShardCount`] or [`CodecError::ShardLength`] if the shards do not fit the
    /// geometry or each other.
    pub fn encode(self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), CodecError> {
        self.check_encode(data, parity)?;
        self.assign(&self.codec.encode, data, parity)
    }

    /// Computes all parity shards, and the CRC32C of every block of [`BLOCK_BYTES`] of every shard
    /// while it is in the cache. A shard's last block may be short.
    ///
    /// `checksums` holds a list per shard, data first, each of one sum per block.
    ///
    /// # Errors
    ///
    /// [`CodecError::ShardCount`] or [`CodecError::ShardLength`] if the shards do not fit the
    /// geometry or each other, or the lists do not fit the shards. A list counts as a shard of as
    /// many blocks then.
    pub fn encode_with_checksums(
        self,
        data: &[&[u8]],
        parity: &mut [&mut [u8]],
        checksums: &mut [&mut [u32]],
    ) -> Result<(), CodecError> {
        self.check_encode(data, parity)?;
        self.check_checksums(checksums)?;
        let plan = &self.codec.encode;
        let shard_bytes = data.first().map_or(0, |shard| shard.len());
        if self.accelerator_for(plan, shard_bytes).is_some() {
            self.encoding(data, parity, checksums)?.compute();
            return Ok(());
        }
        let piece =
            ShardColumns::new(plan, data, parity, Mode::Assign)?.with_checksums(checksums)?;
        self.run_pieces(piece);
        Ok(())
    }

    /// Returns the task of [`Self::encode_with_checksums`], to be computed later.
    ///
    /// # Errors
    ///
    /// Those of [`Self::encode_with_checksums`].
    pub fn encoding<'t>(
        self,
        data: &[&'t [u8]],
        parity: &'t mut [&mut [u8]],
        checksums: &'t mut [&mut [u32]],
    ) -> Result<CodingTask<'p, 't>, CodecError> {
        self.check_encode(data, parity)?;
        self.check_checksums(checksums)?;
        let item = Item {
            sums: checksums.iter_mut().map(|list| &mut **list).collect(),
            ..Item::written(data, parity)
        };
        CodingTask::new(self, &self.codec.encode, item)
    }

    /// Computes lost shards, data and parity alike, in one pass over k present ones.
    ///
    /// Both lists pair a shard's index with its bytes, in any order. Of more than k present shards
    /// those with the lowest indices are used. Shards may be in neither list.
    ///
    /// # Errors
    ///
    /// [`CodecError::TooFewShards`] with fewer than k present shards; [`CodecError::ShardIndex`],
    /// [`CodecError::DuplicateShard`] or [`CodecError::ShardLength`] if the lists make no sense.
    /// Nothing is written then.
    pub fn reconstruct(
        self,
        present: &[(usize, &[u8])],
        lost: &mut [(usize, &mut [u8])],
    ) -> Result<(), CodecError> {
        let Some((plan, sources, mut targets)) = self.erased(present, lost)? else {
            return Ok(());
        };
        self.assign(&plan, &sources, &mut targets)
    }

    /// Returns the task of [`Self::reconstruct`], to be computed later; `None` if no shard is lost.
    ///
    /// # Errors
    ///
    /// Those of [`Self::reconstruct`].
    pub fn reconstruction<'t>(
        self,
        present: &[(usize, &'t [u8])],
        lost: &'t mut [(usize, &mut [u8])],
    ) -> Result<Option<CodingTask<'p, 't>>, CodecError> {
        let Some((plan, sources, targets)) = self.erased(present, lost)? else {
            return Ok(None);
        };
        let item = Item {
            sources,
            targets: Targets::Written(targets),
            sums: Vec::new(),
        };
        CodingTask::new(self, &plan, item).map(Some)
    }

    /// Returns by which plan lost shards are computed, from what, and where to; nothing if none are lost.
    fn erased<'s, 't>(
        self,
        present: &[(usize, &'s [u8])],
        lost: &'t mut [(usize, &mut [u8])],
    ) -> Result<Option<Erased<'s, 't>>, CodecError> {
        let k = self.codec.geometry().data_shards();
        let all = present.iter().map(|p| p.0).chain(lost.iter().map(|l| l.0));
        self.codec.geometry().check_indices(all)?;
        if present.len() < k {
            return Err(CodecError::TooFewShards {
                present: present.len(),
                needed: k,
            });
        }
        let present_lengths = present.iter().map(|shard| shard.1.len());
        common_length(present_lengths.chain(lost.iter().map(|shard| shard.1.len())))?;
        if lost.is_empty() {
            return Ok(None);
        }
        let used = &ascending(present)[..k];
        let plan = self.codec.decoder.plan(set_of(used), set_of(lost));
        let sources = used.iter().map(|shard| shard.1).collect();
        let targets = if lost.is_sorted_by_key(|shard| shard.0) {
            lost.iter_mut().map(|shard| &mut *shard.1).collect()
        } else {
            let mut sorted: Vec<_> = lost.iter_mut().collect();
            sorted.sort_unstable_by_key(|shard| shard.0);
            sorted.into_iter().map(|shard| &mut *shard.1).collect()
        };
        Ok(Some((plan, sources, targets)))
    }

    /// Returns the indices of the parity shards that differ from what the data shards call for;
    /// none if the stripe is sound. `shards` are all k+m, data first.
    ///
    /// A wrong data shard shows as a mismatch of every parity.
    ///
    /// # Errors
    ///
    /// [`CodecError::ShardCount`] or [`CodecError::ShardLength`] if the shards do not fit the
    /// geometry or each other.
    pub fn verify(self, shards: &[&[u8]]) -> Result<Vec<usize>, CodecError> {
        let mut wrong: Vec<usize> = self.mismatches(shards)?.iter().map(|m| m.shard).collect();
        wrong.dedup();
        Ok(wrong)
    }

    /// As [`Self::verify`], but says which blocks of each parity shard differ, in order of shards, then blocks.
    ///
    /// # Errors
    ///
    /// Those of [`Self::verify`].
    pub fn mismatches(self, shards: &[&[u8]]) -> Result<Vec<Mismatch>, CodecError> {
        check_count("total", shards.len(), self.codec.geometry().total_shards())?;
        let shard_bytes = common_length(shards.iter().map(|shard| shard.len()))?;
        if self
            .accelerator_for(&self.codec.encode, shard_bytes)
            .is_some()
        {
            let mut comparison = self.comparison(shards)?;
            comparison.compute();
            return Ok(comparison.into_mismatches());
        }
        let blocks = shard_bytes.div_ceil(BLOCK_BYTES);
        let k = self.codec.geometry().data_shards();
        let (data, parity) = shards.split_at(k);
        let mut wrong = vec![false; parity.len() * blocks];
        self.compare(data, parity, &mut wrong);
        Ok(Mismatch::all(&wrong, k, blocks))
    }

    /// Returns the task of [`Self::mismatches`], to be computed later; [`CodingTask::into_mismatches`] has the result.
    ///
    /// # Errors
    ///
    /// Those of [`Self::verify`].
    pub fn comparison<'t>(self, shards: &[&'t [u8]]) -> Result<CodingTask<'p, 't>, CodecError> {
        check_count("total", shards.len(), self.codec.geometry().total_shards())?;
        let (data, parity) = shards.split_at(self.codec.geometry().data_shards());
        CodingTask::new(self, &self.codec.encode, Item::compared(data, parity))
    }

    /// Notes which blocks of the parities are other than the data calls for, parity after parity.
    pub(super) fn compare(self, data: &[&[u8]], parity: &[&[u8]], wrong: &mut [bool]) {
        let shards: Vec<&[u8]> = data.iter().chain(parity).copied().collect();
        let shard_bytes = data.first().map_or(0, |shard| shard.len());
        let blocks = shard_bytes.div_ceil(BLOCK_BYTES);
        let pieces = self.piece_count(shards.len(), shard_bytes);
        let piece_bytes = shard_bytes.div_ceil(pieces).next_multiple_of(BLOCK_BYTES);
        wrong.fill(false);
        let wrong = Mutex::new(wrong);
        self.side_by_side(pieces, &|piece| {
            let start = shard_bytes.min(piece * piece_bytes);
            let end = shard_bytes.min(start + piece_bytes);
            let columns: Vec<&[u8]> = shards.iter().map(|shard| &shard[start..end]).collect();
            for (row, block) in self.wrong_blocks(&columns) {
                wrong.lock()[row * blocks + start / BLOCK_BYTES + block] = true;
            }
        });
    }

    /// Returns the rows of the generator that the given shards do not obey, and in which blocks.
    fn wrong_blocks(self, shards: &[&[u8]]) -> Vec<(usize, usize)> {
        let (data, parity) = shards.split_at(self.codec.geometry().data_shards());
        let shard_bytes = data[0].len();
        let tile_bytes = shard_bytes.clamp(1, VERIFY_BYTES);
        let mut expected = vec![0; tile_bytes * parity.len()];
        let mut wrong = Vec::new();
        for start in (0..shard_bytes).step_by(tile_bytes) {
            let end = shard_bytes.min(start + tile_bytes);
            let sources: Vec<&[u8]> = data.iter().map(|shard| &shard[start..end]).collect();
            let rows = expected.chunks_exact_mut(tile_bytes);
            let mut targets: Vec<&mut [u8]> = rows.map(|row| &mut row[..end - start]).collect();
            let job = Job::new(&self.codec.encode, &sources, &mut targets, Mode::Assign);
            job.expect("tiles of shards that fit the geometry")
                .run(self.codec.engine());
            for (row, target) in targets.iter().enumerate() {
                let there = &parity[row][start..end];
                // As a rule nothing differs, and the whole is compared faster than its blocks.
                if **target != *there {
                    let blocks = target.chunks(BLOCK_BYTES).zip(there.chunks(BLOCK_BYTES));
                    let differing = blocks.enumerate().filter(|(_, (a, b))| a != b);
                    wrong.extend(differing.map(|(block, _)| (row, start / BLOCK_BYTES + block)));
                }
            }
        }
        wrong
    }

    /// Brings all parity shards up to date with a change of one data shard: `delta` is the old
    /// content XOR the new.
    ///
    /// # Errors
    ///
    /// [`CodecError::ShardIndex`], [`CodecError::ShardCount`] or [`CodecError::ShardLength`] if the
    /// shards do not fit the geometry or each other. Nothing is written then.
    pub fn update(
        self,
        data_shard: usize,
        delta: &[u8],
        parity: &mut [&mut [u8]],
    ) -> Result<(), CodecError> {
        let Some(plan) = self.codec.update_plan(data_shard) else {
            let total = self.codec.geometry().data_shards();
            return Err(CodecError::ShardIndex {
                index: data_shard,
                total,
            });
        };
        check_count(
            "parity",
            parity.len(),
            self.codec.geometry().parity_shards(),
        )?;
        self.run(plan, &[delta], parity, Mode::Add)
    }

    fn check_encode(self, data: &[&[u8]], parity: &[&mut [u8]]) -> Result<(), CodecError> {
        check_count("data", data.len(), self.codec.geometry().data_shards())?;
        check_count(
            "parity",
            parity.len(),
            self.codec.geometry().parity_shards(),
        )
    }

    fn check_checksums(&self, checksums: &[&mut [u32]]) -> Result<(), CodecError> {
        let needed = self.codec.geometry().total_shards();
        check_count("total", checksums.len(), needed)
    }

    /// Returns who is to decide where a pass is computed, if that is a question.
    pub(super) fn accelerator_for(
        self,
        plan: &Plan,
        shard_bytes: usize,
    ) -> Option<&'p dyn Accelerator> {
        self.accelerator
            .filter(|_| plan.packets().is_none() && shard_bytes > 0)
    }

    /// Computes all targets, wherever is best.
    fn assign(
        self,
        plan: &Arc<Plan>,
        sources: &[&[u8]],
        targets: &mut [&mut [u8]],
    ) -> Result<(), CodecError> {
        let shard_bytes = sources.first().map_or(0, |source| source.len());
        if self.accelerator_for(plan, shard_bytes).is_none() {
            return self.run(plan, sources, targets, Mode::Assign);
        }
        CodingTask::new(self, plan, Item::written(sources, targets))?.compute();
        Ok(())
    }

    /// Computes all targets, on this thread or the whole pool of threads.
    fn run(
        self,
        plan: &Plan,
        sources: &[&[u8]],
        targets: &mut [&mut [u8]],
        mode: Mode,
    ) -> Result<(), CodecError> {
        let shard_count = sources.len() + targets.len();
        let shard_bytes = sources.first().map_or(0, |source| source.len());
        if self.piece_count(shard_count, shard_bytes) > 1 {
            self.run_pieces(ShardColumns::new(plan, sources, targets, mode)?);
            return Ok(());
        }
        let job = Job::new(plan, sources, targets, mode)?;
        let stores = self.stores_for(shard_count, shard_bytes);
        job.with_stores(stores).run(self.codec.engine());
        Ok(())
    }

    /// Computes all targets, and checksums if they were asked for, on this thread or the whole pool
    /// of threads.
    pub(super) fn run_pieces(self, piece: ShardColumns<'_, '_>) {
        let engine = self.codec.engine();
        let (shard_count, shard_bytes) = (piece.shard_count(), piece.shard_bytes());
        let stores = self.stores_for(shard_count, shard_bytes);
        let pieces = self.piece_count(shard_count, shard_bytes);
        let piece_bytes = shard_bytes.div_ceil(pieces).next_multiple_of(BLOCK_BYTES);
        let pieces = piece.split(piece_bytes.max(BLOCK_BYTES)).into_iter();
        let pieces: Vec<Mutex<Option<ShardColumns>>> =
            pieces.map(|piece| Mutex::new(Some(piece))).collect();
        self.side_by_side(pieces.len(), &|index| {
            // Each index is run once, so the lock is never waited for.
            if let Some(piece) = pieces[index].lock().take() {
                piece.run(engine, stores);
            }
        });
    }

    /// Returns where results of a pass over so many shards are written to.
    fn stores_for(self, shard_count: usize, shard_bytes: usize) -> Stores {
        let big = shard_count * shard_bytes > CACHE_BYTES;
        self.stores.unwrap_or(if big {
            Stores::Streaming
        } else {
            Stores::Cached
        })
    }

    /// Returns how many pieces to split shards into, so that each is worth a thread.
    fn piece_count(self, shard_count: usize, shard_bytes: usize) -> usize {
        let width = self.workers.map_or(1, WorkerPool::width);
        width.min(shard_count * shard_bytes / PIECE_BYTES).max(1)
    }

    fn side_by_side(self, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
        match self.workers {
            Some(workers) if pieces > 1 => workers.run(pieces, work),
            _ => (0..pieces).for_each(work),
        }
    }
}

/// Returns the shards in ascending order.
fn ascending<'s, 'b>(shards: &'s [(usize, &'b [u8])]) -> Cow<'s, [(usize, &'b [u8])]> {
    if shards.is_sorted_by_key(|shard| shard.0) {
        return Cow::Borrowed(shards);
    }
    let mut sorted = shards.to_vec();
    sorted.sort_unstable_by_key(|shard| shard.0);
    Cow::Owned(sorted)
}

/// Returns the indices of a list of shards.
fn set_of<Bytes>(shards: &[(usize, Bytes)]) -> ShardSet {
    let mut set = ShardSet::default();
    for (index, _) in shards {
        set.insert(*index);
    }
    set
}
