//! The guarantees of `rs-fft`, with every engine.

use cauchyfs_codec::{CodeId, Codec, Engine, Geometry, Stores, engines, field, select};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};

use shards::{members, stripe};

#[path = "stripes/shards.rs"]
mod shards;

const SEED: u64 = 0xFF7;

fn codec(k: usize, m: usize, engine: &'static dyn Engine) -> Codec {
    let geometry = Geometry::new(k, m).expect("valid");
    Codec::new(CodeId::RS_FFT, geometry, engine).expect("known code")
}

fn best() -> &'static dyn Engine {
    select("auto").expect("always there")
}

/// Reconstructs `lost` from the shards in `present` and compares.
fn check(codec: &Codec, shards: &[Vec<u8>], present: &[usize], lost: &[usize]) {
    shards::check(codec, SEED, shards, present, lost);
}

/// The point of an index, by CODING.md.
fn point(index: usize) -> u8 {
    let basis = [1, 214, 152, 146, 86, 200, 88, 230];
    let bits = (0..8).filter(|bit| index >> bit & 1 == 1);
    bits.fold(0, |point, bit| point ^ basis[bit])
}

/// The share of data shard `shard` in parity `row` by Lagrange's interpolation: the value at the data shard's
/// point of the polynomial that is 1 at the parity's and 0 at the other points of the subspace.
fn coefficient(m: usize, row: usize, shard: usize) -> u8 {
    let span = m.next_power_of_two();
    let own = point(span + shard);
    let others = (0..span).filter(|&other| other != row);
    others.fold(1, |product, other| {
        let factor = field::div(own ^ point(other), point(row) ^ point(other));
        field::mul(product, factor)
    })
}

#[test]
fn parities_are_the_interpolation_that_the_design_states_on_every_engine() {
    for engine in engines() {
        for (k, m) in [
            (1, 1),
            (4, 2),
            (10, 4),
            (20, 10),
            (32, 16),
            (32, 32),
            (64, 16),
        ] {
            let codec = codec(k, m, engine);
            let shards = stripe(&codec, &mut StdRng::seed_from_u64(SEED), 1100);
            for row in 0..m {
                for at in [0, 1, 255, 256, 1098, 1099] {
                    let term = |c| field::mul(coefficient(m, row, c), shards[c][at]);
                    let sum = (0..k).fold(0, |sum, c| sum ^ term(c));
                    assert_eq!(shards[k + row][at], sum, "{k}+{m} {row} {at}, {engine:?}");
                }
            }
        }
    }
}

/// CRC32C of all parity shards of a pattern, one after the other: volumes hold such bytes.
#[test]
fn golden_parities_stay_as_they_are() {
    let golden = [
        (4, 2, 0x366a_1e43),
        (10, 4, 0xd323_7e6e),
        (20, 10, 0xc57b_a810),
        (32, 16, 0x365e_37ed),
        (64, 16, 0x3d48_31e7),
        (128, 64, 0x0065_a31b),
        (200, 55, 0xf9cc_c9d4),
    ];
    for engine in engines() {
        for (k, m, expected) in golden {
            let byte = |shard: usize, i: usize| ((shard * 131 + i * 29) % 256).to_le_bytes()[0];
            let data = (0..k).map(|c| (0..600).map(|i| byte(c, i)).collect());
            let data: Vec<Vec<u8>> = data.collect();
            let data: Vec<&[u8]> = data.iter().map(|shard| &shard[..]).collect();
            let mut parity = vec![vec![0; 600]; m];
            let mut targets: Vec<&mut [u8]> = parity.iter_mut().map(|row| &mut row[..]).collect();
            codec(k, m, engine)
                .encode(&data, &mut targets)
                .expect("shards fit");
            let found = crc32c::crc32c(&parity.concat());
            assert_eq!(found, expected, "{k}+{m} {}: {found:#010x}", engine.name());
        }
    }
}

#[test]
fn every_erasure_pattern_of_small_geometries_is_reconstructed_by_every_engine() {
    for engine in engines() {
        for (k, m) in [(1, 1), (2, 3), (5, 3), (6, 4), (3, 6), (4, 5)] {
            let codec = codec(k, m, engine);
            let shards = stripe(&codec, &mut StdRng::seed_from_u64(SEED), 530);
            let patterns = 0..1u32 << (k + m);
            for lost in patterns.filter(|lost| lost.count_ones() as usize <= m) {
                let (present, lost) = (members(!lost, k + m), members(lost, k + m));
                check(&codec, &shards, &present, &lost);
            }
        }
    }
}

/// The last ones are so wide that matrices compute them; of them, some data stands between parities.
#[test]
fn random_erasures_of_wide_geometries_are_reconstructed_by_every_engine() {
    let wide = [
        (8, 8),
        (20, 10),
        (32, 16),
        (32, 32),
        (64, 16),
        (9, 40),
        (128, 64),
        (200, 55),
        (150, 70),
    ];
    for engine in engines() {
        let mut rng = StdRng::seed_from_u64(SEED);
        for (k, m) in wide {
            let codec = codec(k, m, engine);
            let shards = stripe(&codec, &mut rng, 1500);
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
fn every_length_and_streaming_stores_give_the_bytes_that_scalar_gives() {
    let scalar = select("scalar").expect("always there");
    for length in (0..1200).step_by(7).chain([4096, 70_001]) {
        let expected = stripe(
            &codec(9, 9, scalar),
            &mut StdRng::seed_from_u64(SEED),
            length,
        );
        let data: Vec<&[u8]> = expected[..9].iter().map(|shard| &shard[..]).collect();
        for engine in engines() {
            for stores in [Stores::Cached, Stores::Streaming] {
                let mut parity = vec![vec![0xEE; length]; 9];
                let mut rows: Vec<&mut [u8]> = parity.iter_mut().map(|row| &mut row[..]).collect();
                let codec = codec(9, 9, engine);
                codec
                    .pass()
                    .stores(stores)
                    .encode(&data, &mut rows)
                    .expect("shards fit");
                assert!(
                    parity == expected[9..],
                    "{length} {} {stores:?}",
                    engine.name()
                );
            }
        }
    }
}

#[test]
fn wrong_parities_are_found_and_updates_keep_parities_right() {
    let codec = codec(32, 16, best());
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut shards = stripe(&codec, &mut rng, 9000);
    let (data, parity) = shards.split_at_mut(32);
    let mut delta = vec![0; 9000];
    rng.fill(&mut delta[..]);
    data[7]
        .iter_mut()
        .zip(&delta)
        .for_each(|(byte, delta)| *byte ^= delta);
    let mut rows: Vec<&mut [u8]> = parity.iter_mut().map(|row| &mut row[..]).collect();
    codec.update(7, &delta, &mut rows).expect("shards fit");
    let slices =
        |shards: &[Vec<u8>]| codec.verify(&shards.iter().map(|s| &s[..]).collect::<Vec<_>>());
    assert_eq!(slices(&shards).expect("fits"), [0; 0]);
    shards[40][8999] ^= 1;
    assert_eq!(slices(&shards).expect("fits"), [40]);
}
