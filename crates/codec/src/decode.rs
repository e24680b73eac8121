//! From an erasure pattern to the one matrix that computes all lost shards from k present ones.

use std::{num::NonZeroUsize, ops::Range, sync::Arc};

use lru::LruCache;
use parking_lot::Mutex;

use crate::{
    CodeId, Geometry, Matrix, Plan, fft::decode_program, packets::Packets, schedule::Effort,
    shard_set::ShardSet, subspace::Layout, syndromes::Syndromes, width::Width,
};

/// Bytes that the plans in one cache may take together, roughly.
const CACHE_BYTES: usize = 4 << 20;

/// The plans of one generator other than to encode; decode plans used last are kept for the next stripe
/// that lost the same.
#[derive(Debug)]
pub(super) struct Decoder {
    code: CodeId,
    generator: Matrix,
    /// The generator of packets, for codes that work on those.
    packets: Option<(Width, Matrix)>,
    /// The points of the shards, for the code that transforms compute.
    layout: Option<Layout>,
    plans: Mutex<LruCache<(ShardSet, ShardSet), Arc<Plan>>>,
}

impl Decoder {
    pub(super) fn new(
        code: CodeId,
        geometry: Geometry,
        generator: Matrix,
        packets: Option<(Width, Matrix)>,
        layout: Option<Layout>,
    ) -> Self {
        let (k, m) = (geometry.data_shards(), geometry.parity_shards());
        // A plan holds a byte, a map and some table entries per coefficient; for packets a few times
        // that.
        let plan_bytes = if packets.is_some() { 128 } else { 24 } * k * m;
        let capacity = NonZeroUsize::new(CACHE_BYTES / plan_bytes).unwrap_or(NonZeroUsize::MIN);
        Self {
            code,
            generator,
            packets,
            layout,
            plans: Mutex::new(LruCache::new(capacity)),
        }
    }

    /// Returns the plan that computes the `lost` shards, in ascending order, from the `used` ones,
    /// in ascending order.
    ///
    /// # Panics
    ///
    /// Unless exactly k shards are used, these suffice, and all indices lie within the geometry.
    pub(super) fn plan(&self, used: ShardSet, lost: ShardSet) -> Arc<Plan> {
        // Two threads may both work out the same plan; that is cheaper than waiting under the lock.
        if let Some(plan) = self.plans.lock().get(&(used, lost)) {
            return Arc::clone(plan);
        }
        let plan = Arc::new(self.make(&used.indices(), &lost.indices()));
        self.plans.lock().put((used, lost), Arc::clone(&plan));
        plan
    }

    /// Returns the plan that turns a change of one data shard into changes of all parities.
    pub(super) fn update_plan(&self, data_shard: usize) -> Plan {
        let column = |generator: &Matrix, columns: Range<usize>| {
            let rows: Vec<usize> = (0..generator.rows()).collect();
            generator.select(&rows, &columns.collect::<Vec<usize>>())
        };
        let matrix = column(&self.generator, data_shard..data_shard + 1);
        let Some((width, generator)) = &self.packets else {
            return Plan::new(matrix);
        };
        let count = width.bits();
        let bits = column(generator, data_shard * count..(data_shard + 1) * count);
        Plan::with_packets(matrix, Packets::new(*width, &bits, Effort::Quick))
    }

    fn make(&self, used: &[usize], lost: &[usize]) -> Plan {
        let matrix = decode_matrix(&self.generator, used, lost);
        if let Some(layout) = self.layout {
            return Plan::new(matrix).with_program(decode_program(layout, used, lost));
        }
        let Some((width, generator)) = &self.packets else {
            // They take a first row and a first column of ones for granted.
            let is_normalised = self.code == CodeId::RS_CAUCHY;
            let syndromes = is_normalised.then(|| Syndromes::new(&self.generator, used, lost));
            return Plan::new(matrix).with_syndromes(syndromes.flatten());
        };
        // Bits are elements of every field, so packets decode like shards: w of them to a shard.
        let packets_of = |shards: &[usize]| {
            let count = width.bits();
            let packets = shards
                .iter()
                .flat_map(|shard| shard * count..(shard + 1) * count);
            packets.collect::<Vec<usize>>()
        };
        let bits = decode_matrix(generator, &packets_of(used), &packets_of(lost));
        Plan::with_packets(matrix, Packets::new(*width, &bits, Effort::Quick))
    }
}

/// Returns the matrix whose rows give the `lost` shards as sums over the `used` ones.
///
/// Only as many equations are solved as data shards are missing: with P the present data, D the
/// missing data and Q the parities used, parity `Q = C[Q,P]·P + C[Q,D]·D`. So
/// `D = C[Q,D]⁻¹·(Q + C[Q,P]·P)`, and a lost parity is its generator row with D put in.
pub(super) fn decode_matrix(generator: &Matrix, used: &[usize], lost: &[usize]) -> Matrix {
    let k = generator.columns();
    assert_eq!(used.len(), k, "a decode matrix needs k shards");
    let present: Vec<usize> = used.iter().copied().filter(|&shard| shard < k).collect();
    let missing: Vec<usize> = (0..k).filter(|shard| !present.contains(shard)).collect();
    let parities: Vec<usize> = used
        .iter()
        .filter(|&&shard| shard >= k)
        .map(|q| q - k)
        .collect();

    let solved = generator
        .select(&parities, &missing)
        .inverse()
        .expect("the shards used suffice");
    let from_present = solved.times(&generator.select(&parities, &present));
    // Row i gives missing data shard i: over the present data first, then over the parities.
    let missing_rows = Matrix::from_fn(missing.len(), k, |row, column| {
        match column.checked_sub(present.len()) {
            None => from_present.at(row, column),
            Some(parity) => solved.at(row, parity),
        }
    });
    let lost_parities: Vec<usize> = lost.iter().filter(|&&s| s >= k).map(|q| q - k).collect();
    let through_missing = generator
        .select(&lost_parities, &missing)
        .times(&missing_rows);
    let direct = generator.select(&lost_parities, &present);

    Matrix::from_fn(lost.len(), k, |row, column| {
        let position = |list: &[usize], shard| list.iter().position(|&s| s == shard);
        if let Some(i) = position(&missing, lost[row]) {
            return missing_rows.at(i, column);
        }
        let parity = lost[row] - k;
        let i = position(&lost_parities, parity).expect("present data shards are not lost");
        let known = if column < present.len() {
            direct.at(i, column)
        } else {
            0
        };
        known ^ through_missing.at(i, column)
    })
}
