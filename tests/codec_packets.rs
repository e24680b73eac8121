//! The codes that XOR packets keep what `rs-cauchy` keeps.

use cauchyfs::codec::{
    BLOCK_BYTES, CodeId, Codec, CodecError, Engine, Geometry, engines, select, study,
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};

use shards::members;

#[path = "codec_stripes/shards.rs"]
mod shards;

const SEED: u64 = 0xC25;

/// Our counts, in the order of the study.
const COUNTS: [usize; 10] = [48, 66, 91, 121, 241, 105, 153, 247, 354, 686];

/// Number of the code, k, m, and the sum.
const GOLDEN: [(u16, usize, usize, u32); 6] = [
    (4, 6, 4, 0xc610_52a7),
    (5, 4, 2, 0xd0f1_e079),
    (6, 10, 4, 0x55e4_34a3),
    (7, 3, 3, 0x2095_360b),
    (8, 4, 2, 0xbb73_fae1),
    (8, 7, 3, 0x3956_f65b),
];

fn packet_codes() -> impl Iterator<Item = CodeId> {
    CodeId::all().filter(|&code| code != CodeId::RS_CAUCHY)
}

fn codec(code: CodeId, k: usize, m: usize, engine: &'static dyn Engine) -> Codec {
    Codec::new(code, Geometry::new(k, m).expect("valid"), engine).expect("fits the code")
}

fn best() -> &'static dyn Engine {
    select("auto").expect("always there")
}

fn slices(shards: &[Vec<u8>]) -> Vec<&[u8]> {
    shards.iter().map(|shard| &shard[..]).collect()
}

/// All k+m shards of a random stripe.
fn stripe(codec: &Codec, length: usize) -> Vec<Vec<u8>> {
    shards::stripe(codec, &mut StdRng::seed_from_u64(SEED), length)
}

/// Reconstructs `lost` from the shards in `present` and compares.
fn check(codec: &Codec, shards: &[Vec<u8>], present: &[usize], lost: &[usize]) {
    shards::check(codec, SEED, shards, present, lost);
}

#[test]
fn every_engine_computes_the_bytes_that_scalar_does_at_every_kind_of_length() {
    let scalar = select("scalar").expect("always there");
    for code in packet_codes() {
        for (k, m) in [(1, 1), (4, 2), (5, 3), (10, 4)] {
            for length in [
                0,
                1,
                100,
                BLOCK_BYTES - 1,
                BLOCK_BYTES,
                2 * BLOCK_BYTES + 77,
            ] {
                let expected = stripe(&codec(code, k, m, scalar), length);
                for engine in engines() {
                    let shards = stripe(&codec(code, k, m, engine), length);
                    assert!(
                        shards == expected,
                        "{code} {k}+{m} {length} {}",
                        engine.name()
                    );
                }
            }
        }
    }
}

#[test]
fn every_erasure_pattern_of_small_geometries_is_reconstructed() {
    for code in packet_codes() {
        for (k, m) in [(1, 1), (1, 3), (2, 2), (3, 1), (4, 2), (5, 3), (6, 4)] {
            let codec = codec(code, k, m, best());
            let shards = stripe(&codec, BLOCK_BYTES + 33);
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

#[test]
fn random_erasures_of_the_widest_geometries_are_reconstructed() {
    let mut rng = StdRng::seed_from_u64(SEED);
    for (code, k, m) in [(4, 12, 4), (5, 26, 6), (6, 56, 8), (7, 24, 8), (8, 32, 16)] {
        let codec = codec(CodeId(code), k, m, best());
        let shards = stripe(&codec, BLOCK_BYTES);
        for _ in 0..3 {
            let mut order: Vec<usize> = (0..k + m).collect();
            order.shuffle(&mut rng);
            let (lost, present) = order.split_at(m);
            check(&codec, &shards, present, lost);
        }
    }
}

#[test]
fn blocks_are_coded_apart_from_each_other() {
    for code in packet_codes() {
        let codec = codec(code, 4, 2, best());
        let shards = stripe(&codec, 3 * BLOCK_BYTES + 50);
        for start in [0, BLOCK_BYTES, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES] {
            let end = (start + BLOCK_BYTES).min(shards[0].len());
            let block: Vec<Vec<u8>> = shards.iter().map(|s| s[start..end].to_vec()).collect();
            assert_eq!(
                codec.verify(&slices(&block)),
                Ok(vec![]),
                "{code} at {start}"
            );
            check(&codec, &block, &[1, 3, 4, 5], &[2, 0]);
        }
    }
}

#[test]
fn verify_and_update_agree_with_encoding_anew() {
    let mut rng = StdRng::seed_from_u64(SEED);
    for code in packet_codes() {
        let codec = codec(code, 4, 3, best());
        let mut shards = stripe(&codec, 9000);
        for changed in 0..4 {
            let mut delta = vec![0; 9000];
            rng.fill(&mut delta[..]);
            for (byte, change) in shards[changed].iter_mut().zip(&delta) {
                *byte ^= change;
            }
            let parity = shards[4..].iter_mut();
            let mut parity: Vec<&mut [u8]> = parity.map(|shard| &mut shard[..]).collect();
            codec
                .update(changed, &delta, &mut parity)
                .expect("shards fit");
            assert_eq!(
                codec.verify(&slices(&shards)),
                Ok(vec![]),
                "{code} {changed}"
            );
        }
        shards[5][4095] ^= 1;
        assert_eq!(codec.verify(&slices(&shards)), Ok(vec![5]), "{code}");
    }
}

#[test]
fn the_first_parity_is_plain_xor() {
    for code in packet_codes() {
        let shards = stripe(&codec(code, 5, 2, best()), 5000);
        for (i, &parity) in shards[5].iter().enumerate() {
            let sum = shards[..5].iter().fold(0, |sum, shard| sum ^ shard[i]);
            assert_eq!(parity, sum, "{code} byte {i}");
        }
    }
}

#[test]
fn more_shards_than_the_field_has_elements_are_refused() {
    for code in packet_codes() {
        let most = 1 << code.0;
        let codec = |total: usize| {
            let geometry = Geometry::new(total - 2, 2)?;
            Codec::new(code, geometry, best()).map(drop)
        };
        if most < 256 {
            assert_eq!(codec(most), Ok(()), "{code}");
            let error = codec(most + 1).expect_err("too wide");
            assert!(matches!(error, CodecError::GeometryTooWide { max, .. } if max == most));
        }
    }
}

/// XORs and copies per block of every shard, next to the best that the study of FAST '19 lists.
#[test]
fn schedules_take_fewer_operations_than_those_of_the_literature() {
    assert_eq!(study().count(), COUNTS.len());
    for (studied, here) in study().zip(COUNTS) {
        let (code, geometry) = (studied.code, studied.geometry);
        let codec = Codec::new(code, geometry, best()).expect("fits the code");
        let count = codec.packet_operations().expect("a code of packets");
        assert_eq!(count, here, "{code} {geometry}");
        assert!(count < studied.operations, "{code} {geometry}");
    }
}

#[test]
fn golden_parities_stay_as_they_are() {
    // CRC32C of the last parity shard, of two blocks and 77 bytes.
    for (number, k, m, expected) in GOLDEN {
        for engine in engines() {
            let codec = codec(CodeId(number), k, m, engine);
            let pattern = |shard: usize, i: usize| {
                ((shard * 131 + i * 29 + (i >> 5) * 7) % 251).to_le_bytes()[0]
            };
            let length = 2 * BLOCK_BYTES + 77;
            let data: Vec<Vec<u8>> = (0..k)
                .map(|shard| (0..length).map(|i| pattern(shard, i)).collect())
                .collect();
            let mut parity = vec![vec![0; length]; m];
            let mut targets: Vec<&mut [u8]> = parity.iter_mut().map(|p| &mut p[..]).collect();
            codec
                .encode(&slices(&data), &mut targets)
                .expect("shards fit");
            let sum = crc32c::crc32c(&parity[m - 1]);
            assert_eq!(
                sum,
                expected,
                "{} {}: {sum:#010x}",
                codec.code(),
                engine.name()
            );
        }
    }
}
