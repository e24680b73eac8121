//! The guarantees of a codec for its stripes, with every engine.

use cauchyfs_codec::{CodeId, Codec, CodecError, Engine, Geometry, Matrix, engines, field, select};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};

use shards::{members, stripe};

#[path = "stripes/shards.rs"]
mod shards;

const SEED: u64 = 0x5714_17E5;

fn geometry(k: usize, m: usize) -> Geometry {
    Geometry::new(k, m).expect("valid")
}

fn codec(k: usize, m: usize, engine: &'static dyn Engine) -> Codec {
    Codec::new(CodeId::RS_CAUCHY, geometry(k, m), engine).expect("known code")
}

/// The generators of the codes that multiply bytes.
fn generators(k: usize, m: usize) -> impl Iterator<Item = Matrix> {
    let codes = [CodeId::RS_CAUCHY, CodeId::RS_FFT].into_iter();
    codes.map(move |code| {
        let made = Codec::new(
            code,
            geometry(k, m),
            select("scalar").expect("always there"),
        );
        made.expect("known code").generator().clone()
    })
}

fn best(k: usize, m: usize) -> Codec {
    codec(k, m, select("auto").expect("always there"))
}

/// Reconstructs `lost` from the shards in `present` and compares.
fn check(codec: &Codec, shards: &[Vec<u8>], present: &[usize], lost: &[usize]) {
    shards::check(codec, SEED, shards, present, lost);
}

#[test]
fn every_erasure_pattern_of_small_geometries_is_reconstructed_by_every_engine() {
    for engine in engines() {
        let mut rng = StdRng::seed_from_u64(SEED);
        for k in 1..=6 {
            for m in 1..=4 {
                let codec = codec(k, m, engine);
                let shards = stripe(&codec, &mut rng, 97);
                let patterns = 0..1u32 << (k + m);
                for lost in patterns.filter(|lost| lost.count_ones() as usize <= m) {
                    check(
                        &codec,
                        &shards,
                        &members(!lost, k + m),
                        &members(lost, k + m),
                    );
                }
            }
        }
    }
}

#[test]
fn any_exact_k_shards_of_10_plus_4_give_back_all_others_on_every_engine() {
    for engine in engines() {
        let codec = codec(10, 4, engine);
        let shards = stripe(&codec, &mut StdRng::seed_from_u64(SEED), 64);
        for present in (0..1u32 << 14).filter(|present| present.count_ones() == 10) {
            check(
                &codec,
                &shards,
                &members(present, 14),
                &members(!present, 14),
            );
        }
    }
}

/// Shards of more bytes than any engine works on at once; of some geometries, engines without GFNI add
/// up the sources in two goes.
#[test]
fn random_erasures_of_wide_geometries_are_reconstructed_by_every_engine() {
    for engine in engines() {
        let mut rng = StdRng::seed_from_u64(SEED);
        for (k, m) in [
            (16, 4),
            (20, 10),
            (32, 16),
            (40, 4),
            (64, 16),
            (200, 55),
            (3, 252),
            (254, 1),
        ] {
            let codec = codec(k, m, engine);
            let shards = stripe(&codec, &mut rng, 600);
            for lost_count in [m, rng.random_range(1..=m), m.min(2)] {
                let mut order: Vec<usize> = (0..k + m).collect();
                order.shuffle(&mut rng);
                let (lost, present) = order.split_at(lost_count);
                check(&codec, &shards, present, lost);
            }
            // Data alone, with all parities to make up for it.
            let lost: Vec<usize> = (0..k.min(m)).collect();
            let present: Vec<usize> = (k.min(m)..k + m).collect();
            check(&codec, &shards, &present, &lost);
        }
    }
}

#[test]
fn some_of_the_missing_shards_can_be_asked_for_alone() {
    let codec = best(5, 3);
    let shards = stripe(&codec, &mut StdRng::seed_from_u64(SEED), 200);
    for lost in members(0xff, 8) {
        let present: Vec<usize> = (0..8)
            .filter(|&i| i != lost && i != (lost + 3) % 8)
            .collect();
        check(&codec, &shards, &present, &[lost]);
    }
}

/// Any k shards give back the others exactly if no square submatrix of the generator is singular.
/// Each determinant is expanded along its first row into determinants already known.
#[test]
fn no_square_submatrix_is_singular_up_to_20_shards() {
    for total in 2..=20usize {
        for (k, generator) in (1..total).flat_map(|k| generators(k, total - k).map(move |g| (k, g)))
        {
            let mut minors = vec![1; 1 << total];
            for rows in 1..1usize << (total - k) {
                let row = rows.trailing_zeros() as usize;
                let others = rows & (rows - 1);
                let columns = 1..1usize << k;
                for columns in columns.filter(|set| set.count_ones() == rows.count_ones()) {
                    let chosen = (0..k).filter(|c| columns >> c & 1 == 1);
                    let minor = chosen.fold(0, |sum, c| {
                        let rest = minors[others << k | columns & !(1 << c)];
                        sum ^ field::mul(generator.at(row, c), rest)
                    });
                    assert_ne!(minor, 0, "{k}+{}: {rows:#b} {columns:#b}", total - k);
                    minors[rows << k | columns] = minor;
                }
            }
        }
    }
}

#[test]
fn sampled_square_submatrices_of_wide_generators_invert() {
    let mut rng = StdRng::seed_from_u64(SEED);
    for (k, m) in [(128, 127), (64, 16), (240, 15), (30, 30), (200, 55)] {
        for (_, generator) in (0..20).flat_map(|_| generators(k, m).enumerate()) {
            let size = rng.random_range(1..=k.min(m).min(24));
            let rows = rand::seq::index::sample(&mut rng, m, size).into_vec();
            let columns = rand::seq::index::sample(&mut rng, k, size).into_vec();
            let square = generator.select(&rows, &columns);
            assert!(
                square.inverse().is_some(),
                "seed {SEED:#x}: {k}+{m} {rows:?} {columns:?}"
            );
        }
    }
}

#[test]
fn verify_names_exactly_the_parities_that_are_wrong() {
    for engine in engines() {
        let codec = codec(4, 3, engine);
        let mut shards = stripe(&codec, &mut StdRng::seed_from_u64(SEED), 40_000);
        let verify = |shards: &[Vec<u8>]| {
            let slices: Vec<&[u8]> = shards.iter().map(|shard| &shard[..]).collect();
            codec.verify(&slices).expect("shards fit")
        };
        assert!(verify(&shards).is_empty());
        for at in [0, 16_383, 16_384, 39_999] {
            shards[5][at] ^= 1;
            assert_eq!(verify(&shards), [5], "byte {at}");
            shards[6][39_999 - at] ^= 0x80;
            assert_eq!(verify(&shards), [5, 6], "byte {at}");
            shards[5][at] ^= 1;
            shards[6][39_999 - at] ^= 0x80;
            shards[2][at] ^= 4;
            assert_eq!(verify(&shards), [4, 5, 6], "byte {at}");
            shards[2][at] ^= 4;
        }
        assert!(verify(&shards).is_empty());
    }
}

#[test]
fn an_update_leaves_the_parities_of_a_full_encoding() {
    let mut rng = StdRng::seed_from_u64(SEED);
    for engine in engines() {
        let codec = codec(7, 5, engine);
        let mut shards = stripe(&codec, &mut rng, 333);
        for changed in 0..7 {
            let mut delta = vec![0; 333];
            rng.fill(&mut delta[..]);
            for (byte, change) in shards[changed].iter_mut().zip(&delta) {
                *byte ^= change;
            }
            let parity = shards[7..].iter_mut();
            let mut parity: Vec<&mut [u8]> = parity.map(|shard| &mut shard[..]).collect();
            codec
                .update(changed, &delta, &mut parity)
                .expect("shards fit");
            let slices: Vec<&[u8]> = shards.iter().map(|shard| &shard[..]).collect();
            assert_eq!(
                codec.verify(&slices),
                Ok(vec![]),
                "{} {changed}",
                engine.name()
            );
        }
    }
}

#[test]
fn empty_shards_are_coded_without_complaint() {
    let codec = best(3, 2);
    codec
        .encode(&[&[], &[], &[]], &mut [&mut [], &mut []])
        .expect("no byte is fine");
    assert_eq!(codec.verify(&[&[][..]; 5]), Ok(vec![]));
    let present: [(usize, &[u8]); 3] = [(0, &[]), (2, &[]), (4, &[])];
    codec
        .reconstruct(&present, &mut [(1, &mut [])])
        .expect("no byte is fine");
    codec
        .reconstruct(&present, &mut [])
        .expect("no lost shard is fine");
}

#[test]
fn calls_that_make_no_sense_are_refused_with_the_reason() {
    let codec = best(2, 1);
    let (a, b) = (&[1u8, 2][..], &[3u8, 4][..]);
    let mut p = [0; 2];
    let mut short = [0; 1];
    let count = |kind, seen, needed| Err(CodecError::ShardCount { kind, seen, needed });

    assert_eq!(codec.encode(&[a], &mut [&mut p]), count("data", 1, 2));
    assert_eq!(codec.encode(&[a, b], &mut []), count("parity", 0, 1));
    let length = Err(CodecError::ShardLength { seen: 1, needed: 2 });
    assert_eq!(codec.encode(&[a, b], &mut [&mut short]), length);
    assert_eq!(
        codec.verify(&[a, b]),
        Err(CodecError::ShardCount {
            kind: "total",
            seen: 2,
            needed: 3
        })
    );

    let few = Err(CodecError::TooFewShards {
        present: 1,
        needed: 2,
    });
    assert_eq!(codec.reconstruct(&[(0, a)], &mut [(1, &mut p)]), few);
    let twice = Err(CodecError::DuplicateShard { index: 0 });
    assert_eq!(
        codec.reconstruct(&[(0, a), (0, b)], &mut [(1, &mut p)]),
        twice
    );
    assert_eq!(
        codec.reconstruct(&[(0, a), (1, b)], &mut [(0, &mut p)]),
        twice
    );
    let beyond = Err(CodecError::ShardIndex { index: 3, total: 3 });
    assert_eq!(
        codec.reconstruct(&[(0, a), (1, b)], &mut [(3, &mut p)]),
        beyond
    );
    assert_eq!(
        codec.reconstruct(&[(0, a), (1, b)], &mut [(2, &mut short)]),
        length
    );

    assert_eq!(
        codec.update(2, a, &mut [&mut p]),
        Err(CodecError::ShardIndex { index: 2, total: 2 })
    );
    assert_eq!(codec.update(1, a, &mut []), count("parity", 0, 1));
    assert_eq!(
        codec.update(1, a, &mut [&mut short]),
        Err(CodecError::ShardLength { seen: 1, needed: 2 })
    );
}

#[test]
fn unknown_codes_are_refused_by_number_and_by_name() {
    let engine = select("auto").expect("always there");
    let error = Codec::new(CodeId(999), geometry(4, 2), engine).expect_err("no such code");
    assert_eq!(error, CodecError::UnknownCodeNumber { number: 999 });
    let error = CodeId::from_name("rs-vandermonde").expect_err("no such code");
    assert!(error.to_string().contains("rs-cauchy"), "{error}");
}
