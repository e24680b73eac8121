//! Columns of the shards of a job, which one thread goes over.

use crate::{
    BLOCK_BYTES, CodecError, Engine, Job, Mode, Plan, Stores,
    job::{check_count, common_length},
};

/// Bytes of all shards together that are checksummed and computed before the next: so many that
/// starting over costs little, and so few that they stay in the L2 cache in between.
const CHECKED_BYTES: usize = 256 << 10;

/// Shards, or the same columns of all of them, with a plan that they fit.
pub(super) struct ShardColumns<'a, 't> {
    plan: &'a Plan,
    mode: Mode,
    sources: Vec<&'a [u8]>,
    targets: Vec<&'t mut [u8]>,
    /// If asked for, one list per shard, sources first, of one sum per block.
    checksums: Vec<&'t mut [u32]>,
    shard_bytes: usize,
}

impl<'a, 't> ShardColumns<'a, 't> {
    /// Returns whole shards as one piece.
    ///
    /// # Errors
    ///
    /// As for [`Job::new`].
    pub(super) fn new(
        plan: &'a Plan,
        sources: &[&'a [u8]],
        targets: &'t mut [&mut [u8]],
        mode: Mode,
    ) -> Result<Self, CodecError> {
        let sources = sources.to_vec();
        let mut targets: Vec<&'t mut [u8]> = targets.iter_mut().map(|t| &mut **t).collect();
        let shard_bytes = Job::new(plan, &sources, &mut targets, mode)?.shard_bytes();
        Ok(Self {
            plan,
            mode,
            sources,
            targets,
            checksums: Vec::new(),
            shard_bytes,
        })
    }

    /// Asks for the checksums of all blocks, too.
    ///
    /// # Errors
    ///
    /// [`CodecError::ShardCount`] or [`CodecError::ShardLength`] unless there is a list per shard
    /// with a place per block.
    pub(super) fn with_checksums(
        mut self,
        checksums: &'t mut [&mut [u32]],
    ) -> Result<Self, CodecError> {
        check_count("total", checksums.len(), self.shard_count())?;
        let needed = self.shard_bytes.div_ceil(BLOCK_BYTES);
        let lengths = checksums.iter().map(|list| list.len());
        common_length(std::iter::once(needed).chain(lengths))?;
        self.checksums = checksums.iter_mut().map(|list| &mut **list).collect();
        Ok(self)
    }

    /// Returns how many sources and targets there are.
    pub(super) fn shard_count(&self) -> usize {
        self.sources.len() + self.targets.len()
    }

    /// Returns the length of each shard in this piece, in bytes.
    pub(super) fn shard_bytes(&self) -> usize {
        self.shard_bytes
    }

    /// Splits off pieces of `piece_bytes`, a multiple of [`BLOCK_BYTES`]; the last may be shorter.
    pub(super) fn split(mut self, piece_bytes: usize) -> Vec<Self> {
        let mut pieces = Vec::new();
        while self.shard_bytes > piece_bytes {
            pieces.push(self.split_off_front(piece_bytes));
        }
        pieces.push(self);
        pieces
    }

    /// Removes the first `bytes`, a multiple of [`BLOCK_BYTES`], and returns them.
    fn split_off_front(&mut self, bytes: usize) -> Self {
        let missing = "a piece is longer than what is split off it";
        let sources = self.sources.iter_mut();
        let targets = self.targets.iter_mut();
        let checksums = self.checksums.iter_mut();
        let front = Self {
            plan: self.plan,
            mode: self.mode,
            sources: sources
                .map(|s| s.split_off(..bytes).expect(missing))
                .collect(),
            targets: targets
                .map(|t| t.split_off_mut(..bytes).expect(missing))
                .collect(),
            checksums: checksums
                .map(|list| list.split_off_mut(..bytes / BLOCK_BYTES).expect(missing))
                .collect(),
            shard_bytes: bytes,
        };
        self.shard_bytes -= bytes;
        front
    }

    /// Computes all targets, and the checksums if they were asked for.
    pub(super) fn run(mut self, engine: &dyn Engine, stores: Stores) {
        if self.checksums.is_empty() {
            self.compute(engine, stores);
            return;
        }
        // A few blocks of every shard at a time: they are checksummed while they are in the cache,
        // where targets must therefore stay.
        let blocks = CHECKED_BYTES / self.shard_count() / BLOCK_BYTES;
        for mut tile in self.split(blocks.max(1) * BLOCK_BYTES) {
            tile.checksum_sources();
            tile.compute(engine, Stores::Cached);
            tile.checksum_targets();
        }
    }

    fn compute(&mut self, engine: &dyn Engine, stores: Stores) {
        let job = Job::new(self.plan, &self.sources, &mut self.targets, self.mode);
        let job = job.expect("checked when the piece was made");
        job.with_stores(stores).run(engine);
    }

    fn checksum_sources(&mut self) {
        for (source, list) in self.sources.iter().zip(&mut self.checksums) {
            checksum(source, list);
        }
    }

    fn checksum_targets(&mut self) {
        let lists = self.checksums.iter_mut().skip(self.sources.len());
        for (target, list) in self.targets.iter().zip(lists) {
            checksum(target, list);
        }
    }
}

/// Puts the checksum of every block of a shard into its list.
fn checksum(shard: &[u8], list: &mut [u32]) {
    for (block, sum) in shard.chunks(BLOCK_BYTES).zip(list) {
        *sum = crc32c::crc32c(block);
    }
}
