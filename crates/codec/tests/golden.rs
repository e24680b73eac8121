//! Parity bytes that must never change, because volumes hold them.

use cauchyfs_codec::{CodeId, Codec, Geometry, engines};

/// Byte `i` of data shard `shard`: a fixed pattern that every version of this test must keep.
fn pattern(shard: usize, i: usize) -> u8 {
    ((shard * 131 + i * 29 + (i >> 3) * shard) % 256).to_le_bytes()[0]
}

/// A GF(2⁸) product from nothing but the polynomial, one bit at a time.
fn product(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut sum) = (u32::from(a), b, 0);
    while b > 0 {
        if b & 1 == 1 {
            sum ^= a;
        }
        a <<= 1;
        if a & 0x100 != 0 {
            a ^= 0x11d;
        }
        b >>= 1;
    }
    u8::try_from(sum).expect("reduced below 0x100")
}

/// The quotient, found by trying every byte.
fn quotient(a: u8, b: u8) -> u8 {
    (0..=255)
        .find(|&q| product(q, b) == a)
        .expect("b is not zero")
}

/// The matrix as the design states it, computed without the library.
fn coefficient(k: usize, row: usize, column: usize) -> u8 {
    let byte = |i: usize| u8::try_from(i).expect("k + m is at most 255");
    let raw = |r: usize, c: usize| quotient(1, byte((k + r) ^ c));
    let by_column = |r: usize, c: usize| quotient(raw(r, c), raw(0, c));
    quotient(by_column(row, column), by_column(row, 0))
}

#[test]
fn the_generator_is_the_one_the_design_states() {
    for (k, m) in [
        (1, 1),
        (2, 1),
        (4, 2),
        (5, 3),
        (10, 4),
        (16, 4),
        (20, 10),
        (251, 4),
    ] {
        let geometry = Geometry::new(k, m).expect("valid");
        let codec = Codec::new(
            CodeId::RS_CAUCHY,
            geometry,
            engines().next().expect("scalar"),
        )
        .expect("known code");
        for row in 0..m {
            for column in 0..k {
                let expected = coefficient(k, row, column);
                assert_eq!(
                    codec.generator().at(row, column),
                    expected,
                    "{k}+{m} {row},{column}"
                );
            }
        }
    }
}

#[test]
fn parity_is_the_schoolbook_sum_on_every_engine() {
    for engine in engines() {
        for (k, m) in [(4, 2), (10, 4)] {
            let parity = encode(k, m, engine);
            for (row, parity) in parity.iter().enumerate() {
                for (i, &byte) in parity.iter().enumerate() {
                    let term = |c| product(coefficient(k, row, c), pattern(c, i));
                    let sum = (0..k).fold(0, |sum, c| sum ^ term(c));
                    assert_eq!(byte, sum, "{} {k}+{m} row {row} byte {i}", engine.name());
                }
            }
        }
    }
}

#[test]
fn golden_parities_stay_as_they_are() {
    // CRC32C of each parity shard of 72 bytes.
    let golden: [(usize, usize, &[u32]); 4] = [
        (1, 1, &[0xd8a0_01af]),
        (4, 2, &[0x97cc_7213, 0x4a28_1f2a]),
        (10, 4, &[0xb0fc_da77, 0xdf69_f345, 0xccd9_c925, 0x5edc_766f]),
        (
            20,
            10,
            &[
                0x4389_38dd,
                0x487a_f81a,
                0x3309_c61b,
                0x8676_207b,
                0x6e2a_7b46,
                0x134e_2de6,
                0xfd59_b30b,
                0x845a_0277,
                0x8916_ccd5,
                0xdba1_b824,
            ],
        ),
    ];
    for engine in engines() {
        for (k, m, expected) in golden {
            let parity = encode(k, m, engine);
            let sums: Vec<u32> = parity.iter().map(|shard| crc32c::crc32c(shard)).collect();
            assert_eq!(sums, expected, "{} {k}+{m}: {sums:#010x?}", engine.name());
        }
    }
}

fn encode(k: usize, m: usize, engine: &'static dyn cauchyfs_codec::Engine) -> Vec<Vec<u8>> {
    let geometry = Geometry::new(k, m).expect("valid");
    let codec = Codec::new(CodeId::RS_CAUCHY, geometry, engine).expect("known code");
    let data: Vec<Vec<u8>> = (0..k)
        .map(|c| (0..72).map(|i| pattern(c, i)).collect())
        .collect();
    let data: Vec<&[u8]> = data.iter().map(|shard| &shard[..]).collect();
    let mut parity = vec![vec![0; 72]; m];
    let mut targets: Vec<&mut [u8]> = parity.iter_mut().map(|shard| &mut shard[..]).collect();
    codec.encode(&data, &mut targets).expect("shards fit");
    parity
}
