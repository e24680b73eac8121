//! One pass over the shards of a stripe: encode, reconstruct, verify, update.

use std::{borrow::Cow, sync::Arc};

use crate::{
    Accelerator, BLOCK_BYTES, Codec, CodecError, CodingTask, Item, Mismatch, Mode, Plan, Stores,
    Targets, WorkerPool,
    cpu_pass::CpuPass,
    job::{check_count, common_length},
    shard_columns::ShardColumns,
    shard_set::ShardSet,
};

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
    cpu: CpuPass<'p>,
    accelerator: Option<&'p dyn Accelerator>,
}

impl<'p> Pass<'p> {
    pub(super) fn new(codec: &'p Codec) -> Self {
        Self {
            cpu: CpuPass {
                codec,
                stores: None,
                workers: None,
            },
            accelerator: None,
        }
    }

    /// Says where results are written to. Otherwise that depends on whether the shards of this pass
    /// would fit the cache.
    pub fn stores(self, stores: Stores) -> Self {
        let stores = Some(stores);
        Self {
            cpu: CpuPass { stores, ..self.cpu },
            ..self
        }
    }

    /// Splits big passes over a pool of threads, by columns, without copying.
    pub fn workers(self, workers: &'p dyn WorkerPool) -> Self {
        let workers = Some(workers);
        Self {
            cpu: CpuPass {
                workers,
                ..self.cpu
            },
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
        self.assign(&self.cpu.codec.encode, data, parity)
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
        let plan = &self.cpu.codec.encode;
        let shard_bytes = data.first().map_or(0, |shard| shard.len());
        if self.accelerator_for(plan, shard_bytes).is_some() {
            self.encoding(data, parity, checksums)?.compute();
            return Ok(());
        }
        let piece =
            ShardColumns::new(plan, data, parity, Mode::Assign)?.with_checksums(checksums)?;
        self.cpu.run_pieces(piece);
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
        self.task(&self.cpu.codec.encode, item)
    }

    /// Computes lost shards, data and parity alike, in one pass over k present ones.
    ///
    /// Both lists pair a shard's index with its bytes, in any order. Of more present shards than needed
    /// those with the lowest indices are used. Shards may be in neither list.
    ///
    /// # Errors
    ///
    /// [`CodecError::TooFewShards`] if the present shards do not suffice; [`CodecError::ShardIndex`],
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
        self.task(&plan, item).map(Some)
    }

    /// Returns by which plan lost shards are computed, from what, and where to; nothing if none are lost.
    fn erased<'s, 't>(
        self,
        present: &[(usize, &'s [u8])],
        lost: &'t mut [(usize, &mut [u8])],
    ) -> Result<Option<Erased<'s, 't>>, CodecError> {
        let k = self.cpu.codec.geometry().data_shards();
        let all = present.iter().map(|p| p.0).chain(lost.iter().map(|l| l.0));
        self.cpu.codec.geometry().check_indices(all)?;
        if present.len() < k {
            return Err(CodecError::TooFewShards {
                present: present.len(),
                needed: k,
            });
        }
        let present = ascending(present);
        let survival = self.cpu.codec.survival();
        let chosen = survival.choose(present.iter().map(|shard| shard.0))?;
        let present_lengths = present.iter().map(|shard| shard.1.len());
        common_length(present_lengths.chain(lost.iter().map(|shard| shard.1.len())))?;
        if lost.is_empty() {
            return Ok(None);
        }
        let is_chosen = |shard: &&(usize, &[u8])| chosen.binary_search(&shard.0).is_ok();
        let used: Vec<(usize, &[u8])> = present.iter().filter(is_chosen).copied().collect();
        let plan = self.cpu.codec.decoder.plan(set_of(&used), set_of(lost));
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
        check_count(
            "total",
            shards.len(),
            self.cpu.codec.geometry().total_shards(),
        )?;
        let shard_bytes = common_length(shards.iter().map(|shard| shard.len()))?;
        if self
            .accelerator_for(&self.cpu.codec.encode, shard_bytes)
            .is_some()
        {
            let mut comparison = self.comparison(shards)?;
            comparison.compute();
            return Ok(comparison.into_mismatches());
        }
        let blocks = shard_bytes.div_ceil(BLOCK_BYTES);
        let k = self.cpu.codec.geometry().data_shards();
        let (data, parity) = shards.split_at(k);
        let mut wrong = vec![false; parity.len() * blocks];
        self.cpu.compare(data, parity, &mut wrong);
        Ok(Mismatch::all(&wrong, k, blocks))
    }

    /// Returns the task of [`Self::mismatches`], to be computed later; [`CodingTask::into_mismatches`] has the result.
    ///
    /// # Errors
    ///
    /// Those of [`Self::verify`].
    pub fn comparison<'t>(self, shards: &[&'t [u8]]) -> Result<CodingTask<'p, 't>, CodecError> {
        check_count(
            "total",
            shards.len(),
            self.cpu.codec.geometry().total_shards(),
        )?;
        let (data, parity) = shards.split_at(self.cpu.codec.geometry().data_shards());
        self.task(&self.cpu.codec.encode, Item::compared(data, parity))
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
        let Some(plan) = self.cpu.codec.update_plan(data_shard) else {
            let total = self.cpu.codec.geometry().data_shards();
            return Err(CodecError::ShardIndex {
                index: data_shard,
                total,
            });
        };
        check_count(
            "parity",
            parity.len(),
            self.cpu.codec.geometry().parity_shards(),
        )?;
        self.cpu.run(plan, &[delta], parity, Mode::Add)
    }

    fn check_encode(self, data: &[&[u8]], parity: &[&mut [u8]]) -> Result<(), CodecError> {
        check_count("data", data.len(), self.cpu.codec.geometry().data_shards())?;
        check_count(
            "parity",
            parity.len(),
            self.cpu.codec.geometry().parity_shards(),
        )
    }

    fn check_checksums(&self, checksums: &[&mut [u32]]) -> Result<(), CodecError> {
        let needed = self.cpu.codec.geometry().total_shards();
        check_count("total", checksums.len(), needed)
    }

    /// Returns the task to apply a plan to an item.
    fn task<'t>(self, plan: &Arc<Plan>, item: Item<'t>) -> Result<CodingTask<'p, 't>, CodecError> {
        let accelerator = self.accelerator_for(plan, item.shard_bytes());
        CodingTask::new((self.cpu, accelerator), plan, item)
    }

    /// Returns the accelerator that decides where a pass is computed, if there is a choice.
    fn accelerator_for(self, plan: &Plan, shard_bytes: usize) -> Option<&'p dyn Accelerator> {
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
            return self.cpu.run(plan, sources, targets, Mode::Assign);
        }
        self.task(plan, Item::written(sources, targets))?.compute();
        Ok(())
    }
}

impl Codec {
    /// Returns a pass over one stripe, to be told how to go about it.
    pub fn pass(&self) -> Pass<'_> {
        Pass::new(self)
    }

    /// [`Pass::encode`], the usual way.
    ///
    /// # Errors
    ///
    /// As for [`Pass::encode`].
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), CodecError> {
        self.pass().encode(data, parity)
    }

    /// [`Pass::reconstruct`], the usual way.
    ///
    /// # Errors
    ///
    /// As for [`Pass::reconstruct`].
    pub fn reconstruct(
        &self,
        present: &[(usize, &[u8])],
        lost: &mut [(usize, &mut [u8])],
    ) -> Result<(), CodecError> {
        self.pass().reconstruct(present, lost)
    }

    /// [`Pass::verify`], the usual way.
    ///
    /// # Errors
    ///
    /// As for [`Pass::verify`].
    pub fn verify(&self, shards: &[&[u8]]) -> Result<Vec<usize>, CodecError> {
        self.pass().verify(shards)
    }

    /// [`Pass::update`], the usual way.
    ///
    /// # Errors
    ///
    /// As for [`Pass::update`].
    pub fn update(
        &self,
        data_shard: usize,
        delta: &[u8],
        parity: &mut [&mut [u8]],
    ) -> Result<(), CodecError> {
        self.pass().update(data_shard, delta, parity)
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
