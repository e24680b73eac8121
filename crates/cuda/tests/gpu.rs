//! Real GPUs against the scalar engine. Without one, these tests say so and pass.

#[path = "gpu/random.rs"]
mod random;

use std::ops::Range;

use cauchyfs_codec::{
    BLOCK_BYTES, CodeId, Codec, Geometry, Item, Job, Matrix, Mode, Plan, Targets, field, select,
};
use cauchyfs_cuda::{Device, DeviceError, Gpu, Lane, MatrixBatch};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};

/// Returns the first GPU; none, and says so, if there is none.
fn gpu() -> Option<Gpu> {
    match Gpu::all() {
        Ok(gpus) => gpus.into_iter().next(),
        Err(error) if error.is_absence() => {
            println!("skipped: no CUDA device ({error})");
            None
        }
        Err(error) => panic!("there is a GPU, but: {error}"),
    }
}

fn cauchy(k: usize, m: usize) -> Matrix {
    Matrix::cauchy(Geometry::new(k, m).expect("valid"))
}

/// The generator of `rs-fft`, which a kernel of its own encodes by if there are 9 to 16 parity shards.
fn generator_of_transforms(k: usize, m: usize) -> Matrix {
    let geometry = Geometry::new(k, m).expect("valid");
    let engine = select("scalar").expect("everywhere");
    let codec = Codec::new(CodeId::RS_FFT, geometry, engine).expect("valid");
    codec.generator().clone()
}

/// Returns the matrix that computes the `lost` shards from the first k others.
fn decode(generator: &Matrix, lost: &[usize]) -> Matrix {
    let (k, m) = (generator.columns(), generator.rows());
    let all: Vec<usize> = (0..k).collect();
    let rows = Matrix::from_fn(k + m, k, |row, column| match row.checked_sub(k) {
        None => u8::from(row == column),
        Some(parity) => generator.at(parity, column),
    });
    let used: Vec<usize> = (0..k + m).filter(|s| !lost.contains(s)).take(k).collect();
    let inverse = rows.select(&used, &all).inverse();
    let inverse = inverse.expect("any k shards determine the others");
    rows.select(lost, &all).times(&inverse)
}

/// The layout of shards in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ShardLayout {
    /// One behind the other, as in stripe buffers.
    Adjacent,
    /// With bytes between them, so that they begin anywhere.
    Scattered,
}

/// A batch to be run, and what is to be seen afterwards.
#[derive(Clone)]
struct CodingBatch {
    matrix: Matrix,
    bytes: usize,
    items: usize,
    place: ShardLayout,
    /// For each item, all sources and then all targets.
    memory: Vec<u8>,
}

impl CodingBatch {
    fn new(matrix: &Matrix, bytes: usize, items: usize, place: ShardLayout, seed: u64) -> Self {
        let mut batch = Self {
            matrix: matrix.clone(),
            bytes,
            items,
            place,
            memory: Vec::new(),
        };
        batch.memory = vec![0; items * batch.item_bytes()];
        StdRng::seed_from_u64(seed).fill(&mut batch.memory[..]);
        batch
    }

    fn shards(&self) -> usize {
        self.matrix.rows() + self.matrix.columns()
    }

    fn gap(&self) -> usize {
        if self.place == ShardLayout::Adjacent {
            0
        } else {
            3
        }
    }

    fn item_bytes(&self) -> usize {
        self.shards() * (self.bytes + self.gap())
    }

    fn range(&self, shard: usize) -> Range<usize> {
        let start = shard * (self.bytes + self.gap());
        start..start + self.bytes
    }

    /// Fills in all targets, as the scalar engine computes them.
    fn complete(&mut self) {
        let plan = Plan::new(self.matrix.clone());
        let engine = select("scalar").expect("everywhere");
        let (item_bytes, step) = (self.item_bytes(), self.bytes + self.gap());
        for item in self.memory.chunks_mut(item_bytes) {
            let (sources, targets) = item.split_at_mut(self.matrix.columns() * step);
            let sources: Vec<&[u8]> = sources.chunks(step).map(|s| &s[..self.bytes]).collect();
            let mut targets: Vec<&mut [u8]> = targets
                .chunks_mut(step)
                .map(|t| &mut t[..self.bytes])
                .collect();
            let job = Job::new(&plan, &sources, &mut targets, Mode::Assign);
            job.expect("fits").run(engine);
        }
    }

    /// Runs the batch; returns all sums.
    fn run(&mut self, lane: &mut dyn Lane, with_sums: bool) -> Result<Vec<u32>, DeviceError> {
        let blocks = self.bytes.div_ceil(BLOCK_BYTES);
        let (shards, columns, bytes) = (self.shards(), self.matrix.columns(), self.bytes);
        let mut sums = vec![0xEEEE_EEEE; self.items * shards * blocks];
        let (item_bytes, step) = (self.item_bytes(), self.bytes + self.gap());
        let mut lists = sums.chunks_mut(shards * blocks);
        let items = self.memory.chunks_mut(item_bytes).map(|item| {
            let (sources, targets) = item.split_at_mut(columns * step);
            let lists = lists.next().expect("as many as items");
            Item {
                sources: sources.chunks(step).map(|s| &s[..bytes]).collect(),
                targets: Targets::Written(
                    targets.chunks_mut(step).map(|t| &mut t[..bytes]).collect(),
                ),
                sums: if with_sums {
                    lists.chunks_mut(blocks).collect()
                } else {
                    Vec::new()
                },
            }
        });
        let mut items: Vec<Item> = items.collect();
        lane.run(&mut MatrixBatch {
            matrix: &self.matrix,
            items: &mut items,
        })?;
        drop(items);
        Ok(sums)
    }

    /// Compares the targets; returns for each item which of their blocks are wrong.
    fn compare(&self, lane: &mut dyn Lane) -> Result<Vec<Vec<bool>>, DeviceError> {
        let columns = self.matrix.columns();
        let items = self.memory.chunks(self.item_bytes()).map(|item| Item {
            sources: (0..columns).map(|s| &item[self.range(s)]).collect(),
            targets: Targets::Compared {
                shards: (columns..self.shards())
                    .map(|s| &item[self.range(s)])
                    .collect(),
                wrong: vec![false; self.matrix.rows() * self.bytes.div_ceil(BLOCK_BYTES)],
            },
            sums: Vec::new(),
        });
        let mut items: Vec<Item> = items.collect();
        lane.run(&mut MatrixBatch {
            matrix: &self.matrix,
            items: &mut items,
        })?;
        let verdicts = items.into_iter().map(|item| match item.targets {
            Targets::Compared { wrong, .. } => wrong,
            Targets::Written(_) => Vec::new(),
        });
        Ok(verdicts.collect())
    }
}

/// Runs a batch of a matrix, and compares every byte and sum with what the CPU computes.
fn check(
    lane: &mut dyn Lane,
    matrix: &Matrix,
    bytes: usize,
    items: usize,
    place: ShardLayout,
    seed: u64,
) {
    let batch = CodingBatch::new(matrix, bytes, items, place, seed);
    check_batch(lane, &batch, seed, |batch, lane, with_sums| {
        batch.run(lane, with_sums)
    });
}

/// Does the same with copies of a batch, which `run` runs.
fn check_batch(
    lane: &mut dyn Lane,
    batch: &CodingBatch,
    seed: u64,
    run: impl Fn(&mut CodingBatch, &mut dyn Lane, bool) -> Result<Vec<u32>, DeviceError>,
) {
    let CodingBatch {
        matrix,
        bytes,
        items,
        place,
        ..
    } = batch;
    let what = format!("seed {seed}, {bytes} bytes, {items} items, {place:?}, {matrix:?}");
    let mut expected = batch.clone();
    expected.complete();
    for with_sums in [false, true] {
        let mut batch = batch.clone();
        let sums = run(&mut batch, lane, with_sums);
        let sums = sums.unwrap_or_else(|error| panic!("{error}: {what}"));
        assert!(batch.memory == expected.memory, "{what}");
        if !with_sums {
            assert!(sums.iter().all(|&sum| sum == 0xEEEE_EEEE), "{what}");
            continue;
        }
        let blocks = expected
            .memory
            .chunks(expected.item_bytes())
            .flat_map(|item| {
                let shards = (0..expected.shards()).map(|shard| &item[expected.range(shard)]);
                shards.flat_map(|shard| shard.chunks(BLOCK_BYTES))
            });
        let right: Vec<u32> = blocks.map(crc32c::crc32c).collect();
        assert!(sums == right, "{what}");
    }
}

/// Every set of at most m lost shards of a stripe.
fn patterns(k: usize, m: usize) -> Vec<Vec<usize>> {
    let sets = 1u32..1 << (k + m);
    let sets = sets.filter(|set| set.count_ones() as usize <= m);
    sets.map(|set| (0..k + m).filter(|shard| set >> shard & 1 == 1).collect())
        .collect()
}

#[test]
fn every_erasure_pattern_of_small_geometries_is_decoded() {
    let Some(gpu) = gpu() else { return };
    let mut lane = gpu.lane().expect("a lane");
    for (k, m) in [(1, 1), (2, 1), (1, 3), (3, 2), (4, 2), (4, 3)] {
        for (number, lost) in patterns(k, m).iter().enumerate() {
            let matrix = decode(&cauchy(k, m), lost);
            if number % 2 == 0 {
                gpu.prepare(&matrix, false).expect("compiles");
            }
            check(&mut *lane, &matrix, 5001, 2, ShardLayout::Adjacent, 1);
        }
    }
}

#[test]
fn random_patterns_of_wide_geometries_are_decoded() {
    let Some(gpu) = gpu() else { return };
    let mut lane = gpu.lane().expect("a lane");
    for seed in 0..3 {
        let mut random = StdRng::seed_from_u64(seed);
        for (k, m) in [(10, 4), (20, 8), (32, 16), (64, 16), (40, 33)] {
            let mut shards: Vec<usize> = (0..k + m).collect();
            shards.shuffle(&mut random);
            let mut lost = shards[..random.random_range(1..=m)].to_vec();
            lost.sort_unstable();
            for matrix in [
                cauchy(k, m),
                generator_of_transforms(k, m),
                decode(&cauchy(k, m), &lost),
            ] {
                check(&mut *lane, &matrix, 9000, 2, ShardLayout::Scattered, seed);
                gpu.prepare(&matrix, false).expect("compiles");
                check(&mut *lane, &matrix, 9000, 2, ShardLayout::Scattered, seed);
            }
        }
    }
}

#[test]
fn every_length_is_computed_wherever_shards_begin() {
    let Some(gpu) = gpu() else { return };
    let mut lane = gpu.lane().expect("a lane");
    let matrices = [
        cauchy(3, 2),
        cauchy(2, 6),
        cauchy(3, 11),
        generator_of_transforms(9, 9),
    ];
    for matrix in matrices {
        for prepared in [false, true] {
            if prepared {
                gpu.prepare(&matrix, false).expect("compiles");
            }
            let lengths = (1..70).chain([255, 256, 257, 4095, 4096, 4097, 12_288, 65_537]);
            for bytes in lengths {
                for place in [ShardLayout::Adjacent, ShardLayout::Scattered] {
                    check(&mut *lane, &matrix, bytes, 3, place, bytes as u64);
                }
            }
        }
    }
}

#[test]
fn batches_larger_than_a_lane_are_computed_pinned_or_not() {
    let Some(gpu) = gpu() else { return };
    let mut lane = gpu.lane().expect("a lane");
    for (k, m, bytes, items) in [
        (10, 4, (3 << 20) + 5, 3),
        (4, 2, 1 << 20, 20),
        (4, 2, 4096, 4000),
        (32, 16, 1 << 20, 2),
    ] {
        let matrix = cauchy(k, m);
        for place in [ShardLayout::Adjacent, ShardLayout::Scattered] {
            let mut expected = CodingBatch::new(&matrix, bytes, items, place, 7);
            let mut batch = CodingBatch::new(&matrix, bytes, items, place, 7);
            expected.complete();
            gpu.pin(&mut batch.memory).expect("may be pinned");
            batch.run(&mut *lane, true).expect("runs");
            gpu.unpin(&mut batch.memory).expect("was pinned");
            assert!(batch.memory == expected.memory, "{k}+{m} {bytes} {place:?}");
            let mut batch = CodingBatch::new(&matrix, bytes, items, place, 7);
            batch.run(&mut *lane, false).expect("runs");
            assert!(batch.memory == expected.memory, "{k}+{m} {bytes} {place:?}");
        }
    }
}

/// Pinned memory is copied by other calls, many shards at once.
#[test]
fn pinned_shards_of_every_length_are_computed_wherever_they_begin() {
    let Some(gpu) = gpu() else { return };
    let mut lane = gpu.lane().expect("a lane");
    for bytes in [1, 255, 256, 4095, 4096, 65_536, 65_537, 300_000] {
        for (k, m, items) in [(3, 2, 17), (10, 4, 1)] {
            for place in [ShardLayout::Adjacent, ShardLayout::Scattered] {
                let batch = CodingBatch::new(&cauchy(k, m), bytes, items, place, bytes as u64);
                check_batch(
                    &mut *lane,
                    &batch,
                    bytes as u64,
                    |batch, lane, with_sums| {
                        gpu.pin(&mut batch.memory).expect("may be pinned");
                        let sums = batch.run(lane, with_sums);
                        gpu.unpin(&mut batch.memory).expect("was pinned");
                        sums
                    },
                );
            }
        }
    }
}

#[test]
fn results_of_more_items_than_a_lane_has_room_for_are_handed_over_in_time() {
    let Some(gpu) = gpu() else { return };
    let mut lane = gpu.lane().expect("a lane");
    check(
        &mut *lane,
        &cauchy(4, 2),
        256,
        230_000,
        ShardLayout::Adjacent,
        5,
    );
}

#[test]
fn comparing_finds_every_planted_damage_and_nothing_else() {
    let Some(gpu) = gpu() else { return };
    let mut lane = gpu.lane().expect("a lane");
    let mut random = StdRng::seed_from_u64(11);
    for (k, m, bytes) in [
        (4, 2, 100),
        (10, 4, 70_001),
        (20, 8, 4096),
        (32, 16, 1 << 20),
        (5, 18, 77),
        (2, 2, 24 << 20),
        (17, 10, 70_001),
    ] {
        let blocks = usize::div_ceil(bytes, BLOCK_BYTES);
        let matrix = if (k, m) == (17, 10) {
            generator_of_transforms(k, m)
        } else {
            cauchy(k, m)
        };
        for prepared in [false, true] {
            if prepared {
                gpu.prepare(&matrix, true).expect("compiles");
            }
            let mut batch = CodingBatch::new(&matrix, bytes, 3, ShardLayout::Scattered, 12);
            batch.complete();
            let sound = vec![vec![false; m * blocks]; 3];
            assert_eq!(batch.compare(&mut *lane), Ok(sound.clone()), "{k}+{m}");
            for _ in 0..10 {
                let (item, row) = (random.random_range(0..3), random.random_range(0..m));
                let at = random.random_range(0..bytes);
                let place = item * batch.item_bytes() + batch.range(k + row).start + at;
                let bit = 1 << random.random_range(0..8);
                batch.memory[place] ^= bit;
                let mut expected = sound.clone();
                expected[item][row * blocks + at / BLOCK_BYTES] = true;
                let seen = batch.compare(&mut *lane);
                assert_eq!(
                    seen,
                    Ok(expected),
                    "{k}+{m}: item {item}, row {row}, byte {at}"
                );
                batch.memory[place] ^= bit;
            }
            // A wrong source shows in every target at its place, since no coefficient is zero.
            batch.memory[0] ^= 0x80;
            let mut expected = sound.clone();
            expected[0]
                .iter_mut()
                .step_by(blocks)
                .for_each(|wrong| *wrong = true);
            assert_eq!(batch.compare(&mut *lane), Ok(expected), "{k}+{m}");
        }
    }
}

/// Lost data shards in a row from a multiple of 16 on have the kernel that encodes by transforms.
#[test]
fn whole_chunks_of_lost_data_are_computed() {
    let Some(gpu) = gpu() else { return };
    let mut lane = gpu.lane().expect("a lane");
    for (k, first) in [(16, 0), (24, 0), (32, 16), (64, 0), (64, 48), (104, 80)] {
        let lost: Vec<usize> = (first..first + 16).collect();
        let matrix = decode(&generator_of_transforms(k, 16), &lost);
        gpu.prepare(&matrix, false).expect("compiles");
        for (bytes, items) in [(1, 3), (9000, 3), (3 * 8192 + 5, 120)] {
            let seed = (k + first) as u64;
            check(
                &mut *lane,
                &matrix,
                bytes,
                items,
                ShardLayout::Scattered,
                seed,
            );
        }
    }
}

/// Blocks of the kernel that encodes by transforms share out tiles of 8192 bytes of each shard. The pieces of these batches
/// have 240 tiles at least, and those of the first 600. So all blocks of a device with fewer multiprocessors take several.
#[test]
fn blocks_go_on_to_further_tiles() {
    const TILE_BYTES: usize = 8192;
    let Some(gpu) = gpu() else { return };
    let mut lane = gpu.lane().expect("a lane");
    // The sources are three groups, two full ones, and four of which the last lacks a source.
    for (k, m, bytes, items) in [
        (17, 9, TILE_BYTES + 5, 300),
        (16, 16, 3 * TILE_BYTES + 5, 120),
        (31, 13, 3 * TILE_BYTES + 5, 120),
    ] {
        let matrix = generator_of_transforms(k, m);
        let seed = (k * m) as u64;
        gpu.prepare(&matrix, false).expect("compiles");
        let place = ShardLayout::Scattered;
        check(&mut *lane, &matrix, bytes, items, place, seed);
        gpu.prepare(&matrix, true).expect("compiles");
        let mut batch = CodingBatch::new(&matrix, bytes, items, place, seed);
        batch.complete();
        let blocks = bytes.div_ceil(BLOCK_BYTES);
        let sound = vec![vec![false; m * blocks]; items];
        assert_eq!(batch.compare(&mut *lane), Ok(sound.clone()), "{k}+{m}");
        // The first and the last item of the batch, and those beside the middle, where it is cut if it is cut in two.
        for item in [0, 1, items / 2 - 1, items / 2, items - 1] {
            let mut expected = sound.clone();
            for (row, at) in [(0, 0), (m / 2, TILE_BYTES), (m - 1, bytes - 1)] {
                let place = item * batch.item_bytes() + batch.range(k + row).start + at;
                batch.memory[place] ^= 1;
                expected[item][row * blocks + at / BLOCK_BYTES] = true;
            }
            let found = batch.compare(&mut *lane);
            assert!(found == Ok(expected), "{k}+{m}: item {item}: {found:?}");
            for (row, at) in [(0, 0), (m / 2, TILE_BYTES), (m - 1, bytes - 1)] {
                let place = item * batch.item_bytes() + batch.range(k + row).start + at;
                batch.memory[place] ^= 1;
            }
        }
    }
}

#[test]
fn lanes_side_by_side_do_not_disturb_each_other() {
    let Some(gpu) = gpu() else { return };
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let gpu = &gpu;
            scope.spawn(move || {
                let mut lane = gpu.lane().expect("a lane");
                for round in 0..10 {
                    let matrix = cauchy(6, 3);
                    check(
                        &mut *lane,
                        &matrix,
                        300_000,
                        9,
                        ShardLayout::Adjacent,
                        10 * thread + round,
                    );
                }
            });
        }
    });
}

#[test]
fn a_refused_call_is_an_error_that_the_device_outlives() {
    let Some(gpu) = gpu() else { return };
    let mut lane = gpu.lane().expect("a lane");
    let mut memory = vec![0; 1 << 20];
    let refused = gpu.unpin(&mut memory).expect_err("it was never pinned");
    assert!(!refused.is_final(), "{refused}");
    assert!(refused.to_string().contains("CUDA_ERROR_"), "{refused}");
    check(&mut *lane, &cauchy(4, 2), 4096, 1, ShardLayout::Adjacent, 1);
}

/// A device copies from one registration at a time: what lies in two of them is refused, with everything
/// before it under way.
#[test]
fn a_batch_that_fails_half_way_leaves_its_memory_alone_and_the_lane_goes_on() {
    let Some(gpu) = gpu() else { return };
    let mut lane = gpu.lane().expect("a lane");
    let matrix = cauchy(4, 2);
    let mut batch = CodingBatch::new(&matrix, 1 << 20, 40, ShardLayout::Adjacent, 21);
    let inside = 39 * batch.item_bytes() + (2 << 20);
    let border = inside + batch.memory[inside..].as_ptr().align_offset(4096);
    let (front, back) = batch.memory.split_at_mut(border);
    gpu.pin(front).expect("may be pinned");
    gpu.pin(back).expect("may be pinned");
    let failed = batch.run(&mut *lane, true);
    let left = batch.memory.clone();
    check(&mut *lane, &matrix, 1 << 20, 9, ShardLayout::Adjacent, 22);
    assert!(batch.memory == left, "nothing comes late");
    let (front, back) = batch.memory.split_at_mut(border);
    gpu.unpin(front).expect("was pinned");
    gpu.unpin(back).expect("was pinned");
    let failed = failed.expect_err("sources of the last item lie in two registrations");
    assert!(!failed.is_final(), "{failed}");
    let mut expected = CodingBatch::new(&matrix, 1 << 20, 40, ShardLayout::Adjacent, 21);
    expected.complete();
    batch.run(&mut *lane, true).expect("runs");
    assert!(batch.memory == expected.memory);
}

#[test]
fn zero_coefficients_and_plain_copies_are_right_too() {
    let Some(gpu) = gpu() else { return };
    let mut lane = gpu.lane().expect("a lane");
    for matrix in [
        Matrix::from_fn(2, 3, |_, _| 0),
        Matrix::from_fn(3, 3, |row, column| u8::from(row == column)),
        Matrix::from_fn(1, 9, |_, column| {
            field::affine_map(77).to_le_bytes()[column % 8]
        }),
    ] {
        check(&mut *lane, &matrix, 1000, 2, ShardLayout::Adjacent, 3);
        gpu.prepare(&matrix, false).expect("compiles");
        check(&mut *lane, &matrix, 1000, 2, ShardLayout::Adjacent, 3);
    }
}
