//! The part of a pass that the CPU computes.

use parking_lot::Mutex;

use crate::{
    BLOCK_BYTES, Codec, CodecError, Job, Mode, Plan, Stores, WorkerPool,
    shard_columns::ShardColumns,
};

/// Bytes of each shard that are compared at once, so that the parities stay in cache.
const VERIFY_BYTES: usize = 16 << 10;

/// Shards of one pass that take more than this together are taken to exceed the cache.
const CACHE_BYTES: usize = 8 << 20;

/// The fewest bytes, of all shards together, that are worth waking another thread for.
const PIECE_BYTES: usize = 256 << 10;

const _: () = assert!(VERIFY_BYTES.is_multiple_of(BLOCK_BYTES));

/// The settings with which the CPU works on one stripe.
#[derive(Debug, Clone, Copy)]
pub(super) struct CpuPass<'p> {
    pub(super) codec: &'p Codec,
    pub(super) stores: Option<Stores>,
    pub(super) workers: Option<&'p dyn WorkerPool>,
}

impl CpuPass<'_> {
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

    /// Computes all targets, on this thread or the whole pool of threads.
    pub(super) fn run(
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
