//! Every engine that this CPU can run computes the same bytes as the scalar one.

use cauchyfs_codec::{
    CodeId, Codec, Engine, Geometry, Job, Matrix, Mode, Plan, Stores, candidates, engines, select,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const SEED: u64 = 0x00CA_0C41;

/// Every tail of every register, behind any number of whole ones.
const LENGTHS: std::ops::RangeInclusive<usize> = 0..=4096;

/// Longer shards are tried with one geometry only.
const MANY_GEOMETRIES: usize = 600;

fn others() -> Vec<&'static dyn Engine> {
    let found: Vec<_> = engines()
        .filter(|engine| engine.name() != "scalar")
        .collect();
    for candidate in candidates()
        .iter()
        .filter(|candidate| candidate.detect().is_none())
    {
        println!("skipped: this CPU cannot run {}", candidate.name());
    }
    found
}

fn bytes(rng: &mut StdRng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rng.fill(&mut bytes[..]);
    bytes
}

/// Shards inside longer buffers, so that they start at odd addresses and writes beyond them show.
struct Shards {
    buffers: Vec<Vec<u8>>,
    offsets: Vec<usize>,
    length: usize,
}

impl Shards {
    const MARGIN: usize = 80;

    fn random(rng: &mut StdRng, count: usize, length: usize) -> Self {
        let buffers: Vec<Vec<u8>> = (0..count)
            .map(|_| bytes(rng, length + Self::MARGIN))
            .collect();
        // Half of them aligned to the widest register, since engines may treat those differently.
        let aligned = |buffer: &[u8]| buffer.as_ptr().align_offset(64);
        let align = rng.random_bool(0.5);
        let mut offset = |buffer: &[u8]| {
            if align {
                aligned(buffer)
            } else {
                rng.random_range(0..=64)
            }
        };
        let offsets = buffers.iter().map(|buffer| offset(buffer)).collect();
        Self {
            buffers,
            offsets,
            length,
        }
    }

    fn slices(&self) -> Vec<&[u8]> {
        let placed = self.buffers.iter().zip(&self.offsets);
        placed
            .map(|(buffer, &offset)| &buffer[offset..offset + self.length])
            .collect()
    }

    fn slices_mut(&mut self) -> Vec<&mut [u8]> {
        let placed = self.buffers.iter_mut().zip(&self.offsets);
        placed
            .map(|(buffer, &offset)| &mut buffer[offset..offset + self.length])
            .collect()
    }
}

/// Runs one plan on two engines and compares whole buffers, margins included.
fn compare(engine: &dyn Engine, plan: &Plan, mode: Mode, sources: &Shards, targets: &mut Shards) {
    let before = targets.buffers.clone();
    let mut run = |engine: &dyn Engine, stores| {
        // Copied into the same places, so that their alignment stays.
        for (buffer, before) in targets.buffers.iter_mut().zip(&before) {
            buffer.copy_from_slice(before);
        }
        let sources = sources.slices();
        let mut slices = targets.slices_mut();
        let job = Job::new(plan, &sources, &mut slices, mode).expect("shards fit");
        engine.run(&mut job.with_stores(stores));
        targets.buffers.clone()
    };
    let scalar = select("scalar").expect("scalar runs everywhere");
    let expected = run(scalar, Stores::Cached);
    for stores in [Stores::Cached, Stores::Streaming] {
        assert!(
            run(engine, stores) == expected,
            "seed {SEED:#x}: {} differs from scalar with {:?}, {mode:?}, {stores:?}, {} bytes at {:?}",
            engine.name(),
            plan.matrix(),
            sources.length,
            sources.offsets,
        );
    }
}

fn random_matrix(rng: &mut StdRng, rows: usize, columns: usize) -> Matrix {
    // A third zeros and ones, since engines may treat them specially.
    Matrix::from_fn(rows, columns, |_, _| match rng.random_range(0..6) {
        0 => 0,
        1 => 1,
        _ => rng.random(),
    })
}

#[test]
fn every_engine_agrees_with_scalar_on_every_length_at_any_alignment() {
    for engine in others() {
        let mut rng = StdRng::seed_from_u64(SEED);
        for length in LENGTHS {
            let all = [(4, 2), (1, 1), (5, 3), (10, 4), (3, 7)];
            let geometries = if length <= MANY_GEOMETRIES {
                &all[..]
            } else {
                &all[..1]
            };
            for &(k, m) in geometries {
                let plan = Plan::new(Matrix::cauchy(Geometry::new(k, m).expect("valid")));
                let sources = Shards::random(&mut rng, k, length);
                let mut targets = Shards::random(&mut rng, m, length);
                compare(engine, &plan, Mode::Assign, &sources, &mut targets);
                compare(engine, &plan, Mode::Add, &sources, &mut targets);
            }
        }
    }
}

#[test]
fn every_engine_agrees_with_scalar_on_every_shape_of_small_matrix() {
    for engine in others() {
        let mut rng = StdRng::seed_from_u64(SEED);
        for rows in 1..=13 {
            for columns in 1..=17 {
                for matrix in [
                    random_matrix(&mut rng, rows, columns),
                    Matrix::from_fn(rows, columns, |_, _| 0),
                    Matrix::from_fn(rows, columns, |_, _| 1),
                    Matrix::from_fn(rows, columns, |row, _| u8::from(row == 0)),
                ] {
                    let length = rng.random_range(0..=600);
                    let sources = Shards::random(&mut rng, columns, length);
                    let mut targets = Shards::random(&mut rng, rows, length);
                    compare(
                        engine,
                        &Plan::new(matrix),
                        Mode::Assign,
                        &sources,
                        &mut targets,
                    );
                }
            }
        }
    }
}

#[test]
fn every_engine_agrees_with_scalar_on_every_single_coefficient() {
    for engine in others() {
        let mut rng = StdRng::seed_from_u64(SEED);
        for coefficient in 0..=255 {
            let plan = Plan::new(Matrix::from_fn(1, 1, |_, _| coefficient));
            let mut sources = Shards::random(&mut rng, 1, 256);
            for (byte, place) in (0..=255).zip(sources.slices_mut().remove(0)) {
                *place = byte;
            }
            let mut targets = Shards::random(&mut rng, 1, 256);
            compare(engine, &plan, Mode::Assign, &sources, &mut targets);
        }
    }
}

#[test]
fn every_engine_agrees_with_scalar_on_long_shards_of_wide_geometries() {
    for engine in others() {
        let mut rng = StdRng::seed_from_u64(SEED);
        for (k, m) in [
            (16, 4),
            (20, 10),
            (32, 16),
            (64, 16),
            (1, 254),
            (254, 1),
            (128, 127),
        ] {
            let plan = Plan::new(Matrix::cauchy(Geometry::new(k, m).expect("valid")));
            let length = rng.random_range(2000..5000);
            let sources = Shards::random(&mut rng, k, length);
            let mut targets = Shards::random(&mut rng, m, length);
            compare(engine, &plan, Mode::Assign, &sources, &mut targets);
        }
    }
}

/// So long that every kind of loop and tile is gone through many times.
#[test]
fn every_engine_agrees_with_scalar_on_shards_of_up_to_300_000_bytes() {
    let mut rng = StdRng::seed_from_u64(SEED);
    for (k, m) in [(2, 1), (4, 2), (10, 4), (5, 13), (3, 20)] {
        let plan = Plan::new(Matrix::cauchy(Geometry::new(k, m).expect("valid")));
        let length = rng.random_range(5_000..300_000);
        let sources = Shards::random(&mut rng, k, length);
        let mut targets = Shards::random(&mut rng, m, length);
        for engine in others() {
            for mode in [Mode::Assign, Mode::Add] {
                compare(engine, &plan, mode, &sources, &mut targets);
            }
        }
    }
}

/// Decode matrices have other shapes than generators: with parity 0 for example, the rows add up to
/// little, which engines make use of.
#[test]
fn every_engine_agrees_with_scalar_on_decode_matrices_that_replace_or_add() {
    let scalar = select("scalar").expect("scalar runs everywhere");
    let mut rng = StdRng::seed_from_u64(SEED);
    for (k, m) in [(4, 2), (10, 4), (40, 4), (20, 17)] {
        let geometry = Geometry::new(k, m).expect("valid");
        let codec = Codec::new(CodeId::RS_CAUCHY, geometry, scalar).expect("known code");
        for first in [0, 1] {
            // From all parities, and from all but parity 0.
            let count = m - first;
            let lost: Vec<usize> = (1..=count).collect();
            let used: Vec<usize> = (0..k + m)
                .filter(|shard| !lost.contains(shard) && (first == 0 || *shard != k))
                .collect();
            let matrix = codec.decode_matrix(&used, &lost).expect("k shards");
            let plan = Plan::new(matrix);
            let sources = Shards::random(&mut rng, k, 1111);
            let mut targets = Shards::random(&mut rng, count, 1111);
            for engine in others() {
                for mode in [Mode::Assign, Mode::Add] {
                    compare(engine, &plan, mode, &sources, &mut targets);
                }
            }
        }
    }
}

#[test]
fn every_engine_writes_the_plain_xor_of_all_sources_to_every_target() {
    let mut rng = StdRng::seed_from_u64(SEED);
    for length in [0, 1, 63, 64, 255, 256, 257, 600, 4096] {
        let plan = Plan::new(random_matrix(&mut rng, 3, 5));
        let sources = Shards::random(&mut rng, 5, length);
        let xor = |i| {
            sources
                .slices()
                .iter()
                .fold(0, |sum, source| sum ^ source[i])
        };
        let expected: Vec<u8> = (0..length).map(xor).collect();
        for engine in engines() {
            for stores in [Stores::Cached, Stores::Streaming] {
                let mut targets = Shards::random(&mut rng, 3, length);
                let (sources, mut slices) = (sources.slices(), targets.slices_mut());
                let job = Job::new(&plan, &sources, &mut slices, Mode::Assign).expect("fits");
                engine.run_plain(&mut job.with_stores(stores));
                assert!(
                    slices.iter().all(|t| *t == expected),
                    "{} {length}",
                    engine.name()
                );
            }
        }
    }
}

#[test]
fn the_automatic_choice_is_the_first_engine_that_runs_here() {
    let first = engines().next().expect("scalar runs everywhere").name();
    assert_eq!(select("auto").expect("always there").name(), first);
    assert_eq!(select("cpu").expect("always there").name(), first);
}

#[test]
fn every_engine_is_selected_by_its_own_name_or_refused_with_the_usable_ones() {
    for candidate in candidates() {
        match (candidate.detect(), select(candidate.name())) {
            (Some(_), Ok(engine)) => assert_eq!(engine.name(), candidate.name()),
            (None, Err(error)) => assert!(error.to_string().contains("scalar"), "{error}"),
            (detected, selected) => panic!("{candidate:?}: {detected:?} but {selected:?}"),
        }
    }
    let error = select("abacus").expect_err("there is no such engine");
    assert!(error.to_string().contains("auto, cpu"), "{error}");
}

#[test]
fn codecs_on_all_engines_fill_the_same_stripe() {
    let geometry = Geometry::new(6, 3).expect("valid");
    let mut rng = StdRng::seed_from_u64(SEED);
    let data = Shards::random(&mut rng, 6, 4096);
    let parities: Vec<_> = engines()
        .map(|engine| {
            let codec = Codec::new(CodeId::RS_CAUCHY, geometry, engine).expect("known code");
            let mut parity = vec![vec![0; 4096]; 3];
            let mut targets: Vec<&mut [u8]> = parity.iter_mut().map(|p| &mut p[..]).collect();
            codec
                .encode(&data.slices(), &mut targets)
                .expect("shards fit");
            parity
        })
        .collect();
    assert!(parities.windows(2).all(|pair| pair[0] == pair[1]));
}
