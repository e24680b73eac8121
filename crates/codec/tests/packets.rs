//! The codes that XOR packets keep what `rs-cauchy` keeps.

use cauchyfs_codec::{
    BLOCK_BYTES, CodeId, Codec, CodecError, Engine, Geometry, engines, select, study,
};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};

use shards::members;

#[path = "stripes/shards.rs"]
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
    CodeId::all()
        .filter(|&code| ![CodeId::RS_CAUCHY, CodeId::RS_FFT, CodeId::RANDOM_GF2].contains(&code))
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
fn random_erasures_of_the_widest_geometries_are_reconstructed_by_every_engine() {
    for engine in engines() {
        let mut rng = StdRng::seed_from_u64(SEED);
        for (code, k, m) in [(4, 12, 4), (5, 26, 6), (6, 56, 8), (7, 24, 8), (8, 32, 16)] {
            let codec = codec(CodeId(code), k, m, engine);
            let shards = stripe(&codec, BLOCK_BYTES);
            for _ in 0..2 {
                let mut order: Vec<usize> = (0..k + m).collect();
                order.shuffle(&mut rng);
                let (lost, present) = order.split_at(m);
                check(&codec, &shards, present, lost);
            }
        }
    }
}

/// Shards at odd addresses inside longer buffers, so that writes beyond them show.
#[test]
fn every_engine_codes_shards_at_any_address_and_writes_nothing_beyond_them() {
    const MARGIN: usize = 80;
    let mut rng = StdRng::seed_from_u64(SEED);
    for code in packet_codes() {
        for length in [1, 5000, BLOCK_BYTES, 3 * BLOCK_BYTES, 2 * BLOCK_BYTES + 99] {
            let expected = stripe(&codec(code, 5, 3, best()), length);
            for engine in engines() {
                let codec = codec(code, 5, 3, engine);
                let offsets: Vec<usize> = (0..8).map(|_| rng.random_range(0..MARGIN)).collect();
                let mut buffers: Vec<Vec<u8>> = vec![vec![0xEE; length + MARGIN]; 8];
                for (i, buffer) in buffers.iter_mut().enumerate().take(5) {
                    buffer[offsets[i]..offsets[i] + length].copy_from_slice(&expected[i]);
                }
                let (data, parity) = buffers.split_at_mut(5);
                let at = |i: usize| offsets[i]..offsets[i] + length;
                let data: Vec<&[u8]> = (0..5).map(|i| &data[i][at(i)]).collect();
                let mut targets: Vec<&mut [u8]> = parity
                    .iter_mut()
                    .zip(5..)
                    .map(|(buffer, i)| &mut buffer[at(i)])
                    .collect();
                codec.encode(&data, &mut targets).expect("shards fit");
                for (i, buffer) in buffers.iter().enumerate() {
                    let what = format!("{code} {length} {} shard {i}", engine.name());
                    assert!(buffer[at(i)] == expected[i], "{what}");
                    let (before, rest) = buffer.split_at(offsets[i]);
                    let outside = before.iter().chain(&rest[length..]);
                    assert!(outside.copied().all(|byte| byte == 0xEE), "{what}");
                }
            }
        }
    }
}

/// Computes parity as FORMAT.md and CODING.md describe it, bit by bit and without the library. The
/// points of parity r and data c are k+r and c where no others were searched for.
#[test]
fn parity_is_the_sum_of_products_in_the_field_of_w_bits() {
    for (width, polynomial) in [(4, 0x13), (5, 0x25), (6, 0x43), (7, 0x89), (8, 0x11d)] {
        let (k, m) = (7, 3);
        let matrix = matrix_by_the_book(width, polynomial, k, m);
        let shards = stripe(&codec(CodeId(width.into()), k, m, best()), BLOCK_BYTES);
        let w = usize::from(width);
        let packet = BLOCK_BYTES / w / 8 * 8;
        let symbol = |shard: usize, bit: usize| {
            let bits =
                (0..w).map(|i| u32::from(shards[shard][i * packet + bit / 8] >> (bit % 8) & 1));
            bits.enumerate()
                .fold(0, |symbol, (i, bit)| symbol | bit << i)
        };
        for bit in 0..8 * packet {
            for (r, row) in matrix.iter().enumerate() {
                let products = row.iter().zip(0..);
                let sum = products.fold(0, |sum, (&e, c)| {
                    sum ^ times(width, polynomial, e, symbol(c, bit))
                });
                let parity = symbol(k + r, bit);
                assert_eq!(parity, sum, "w = {width}, parity {r}, bit {bit}");
            }
        }
    }
}

fn times(width: u16, polynomial: u32, a: u32, b: u32) -> u32 {
    let mut product = (0..width).fold(0, |sum, i| sum ^ if b >> i & 1 == 1 { a << i } else { 0 });
    for i in (width..2 * width).rev() {
        if product >> i & 1 == 1 {
            product ^= polynomial << (i - width);
        }
    }
    product
}

/// Returns the matrix of 1/(k+r + c), with each column divided by its entry in row 0. Then each row
/// is divided by the one of its entries that leaves fewest bits set in the bit matrices.
fn matrix_by_the_book(width: u16, polynomial: u32, k: usize, m: usize) -> Vec<Vec<u32>> {
    let times = |a, b| times(width, polynomial, a, b);
    let divided = |a: u32, b: u32| {
        (0..1 << width)
            .find(|&quotient| times(quotient, b) == a)
            .expect("b is not 0")
    };
    let point = |i: usize| u32::try_from(i).expect("small");
    let entry = |r: usize, c: usize| divided(1, point(k + r) ^ point(c));
    let ones = |e: u32| {
        (0..width)
            .map(|i| times(e, 1 << i).count_ones())
            .sum::<u32>()
    };
    let rows = (0..m).map(|r| {
        let row: Vec<u32> = (0..k).map(|c| divided(entry(r, c), entry(0, c))).collect();
        let choices = row
            .iter()
            .map(|&by| row.iter().map(|&e| divided(e, by)).collect::<Vec<u32>>());
        choices
            .min_by_key(|row| row.iter().map(|&e| ones(e)).sum::<u32>())
            .expect("k is not 0")
    });
    rows.collect()
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
fn verify_and_update_agree_with_a_full_encoding() {
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
            let codec = codec(CodeId(number.into()), k, m, engine);
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
