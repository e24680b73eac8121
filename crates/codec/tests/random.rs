//! The guarantees of `random-gf2`, with every engine.

use cauchyfs_codec::{BLOCK_BYTES, CodeId, Codec, CodecError, Engine, Geometry, engines, select};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const SEED: u64 = 0x5EED_0F2F;

fn code(k: usize, m: usize) -> (CodeId, Geometry) {
    let geometry = Geometry::new(k, m).expect("valid");
    let code = CodeId::RANDOM_GF2
        .for_geometry(geometry)
        .expect("there are rows");
    (code, geometry)
}

fn codec(k: usize, m: usize, engine: &'static dyn Engine) -> Codec {
    let (code, geometry) = code(k, m);
    Codec::new(code, geometry, engine).expect("known code")
}

/// Returns the codec on every engine.
fn codecs(k: usize, m: usize) -> impl Iterator<Item = Codec> {
    let (code, geometry) = code(k, m);
    engines().map(move |engine| Codec::new(code, geometry, engine).expect("known code"))
}

/// Returns a stripe of random data with its parity, which is the XOR that the rows say.
fn stripe(codec: &Codec, rng: &mut StdRng, len: usize) -> Vec<Vec<u8>> {
    let (k, m) = (
        codec.geometry().data_shards(),
        codec.geometry().parity_shards(),
    );
    let mut shards = vec![vec![0; len]; k + m];
    let (data, parity) = shards.split_at_mut(k);
    for shard in &mut *data {
        rng.fill(&mut shard[..]);
    }
    let sources: Vec<&[u8]> = data.iter().map(|shard| &shard[..]).collect();
    let mut targets: Vec<&mut [u8]> = parity.iter_mut().map(|shard| &mut shard[..]).collect();
    codec.encode(&sources, &mut targets).expect("they fit");
    for (row, parity) in parity.iter().enumerate() {
        let mut expected = vec![0; len];
        for (column, shard) in data.iter().enumerate() {
            match codec.generator().at(row, column) {
                0 => {}
                1 => expected
                    .iter_mut()
                    .zip(shard)
                    .for_each(|(sum, byte)| *sum ^= byte),
                other => panic!("coefficient {other}"),
            }
        }
        assert!(
            *parity == expected,
            "{}, parity {row}",
            codec.engine().name()
        );
    }
    shards
}

/// Reconstructs the lost shards of a pattern, or sees that it is refused and nothing is written.
fn check(codec: &Codec, shards: &[Vec<u8>], lost: u64) {
    let is_lost = |index: &usize| lost >> index & 1 == 1;
    let present: Vec<(usize, &[u8])> = (0..shards.len())
        .filter(|index| !is_lost(index))
        .map(|index| (index, &shards[index][..]))
        .collect();
    let mut found: Vec<(usize, Vec<u8>)> = (0..shards.len())
        .filter(is_lost)
        .map(|index| (index, vec![0xa5; shards[index].len()]))
        .collect();
    let mut targets: Vec<(usize, &mut [u8])> = found
        .iter_mut()
        .map(|(index, shard)| (*index, &mut shard[..]))
        .collect();
    let named = format!(
        "{} {}, lost {lost:b}",
        codec.engine().name(),
        codec.geometry()
    );
    let result = codec.reconstruct(&present, &mut targets);
    if codec.survival().is_decodable(|index| !is_lost(&index)) {
        assert_eq!(result, Ok(()), "{named}");
        for (index, shard) in found {
            assert!(shard == shards[index], "{named}, shard {index}");
        }
    } else {
        let needed = codec.geometry().data_shards();
        let present = match result {
            Err(CodecError::TooFewShards { present, .. }) if present < needed => present,
            other => panic!("{named}: {other:?}"),
        };
        assert!(present < needed, "{named}");
        assert!(
            found
                .iter()
                .all(|(_, shard)| shard.iter().all(|&byte| byte == 0xa5)),
            "{named}"
        );
    }
}

#[test]
fn every_pattern_of_small_geometries_is_decoded_or_refused_by_every_engine() {
    for (k, m) in [(2, 2), (4, 2), (4, 4), (5, 3), (3, 6)] {
        let mut rng = StdRng::seed_from_u64(SEED);
        for codec in codecs(k, m) {
            let shards = stripe(&codec, &mut rng, 97);
            (0..1 << (k + m)).for_each(|lost| check(&codec, &shards, lost));
        }
    }
}

#[test]
fn wide_geometries_and_odd_lengths_are_decoded_by_every_engine() {
    for (k, m, len) in [(10, 4, 2 * BLOCK_BYTES + 7), (48, 16, 1000), (33, 6, 4096)] {
        let mut rng = StdRng::seed_from_u64(SEED + 1);
        for codec in codecs(k, m) {
            let shards = stripe(&codec, &mut rng, len);
            for _ in 0..40 {
                let count = rng.random_range(1..=m);
                let lost =
                    (0..count).fold(0, |lost: u64, _| lost | 1 << rng.random_range(0..k + m));
                check(&codec, &shards, lost);
            }
        }
    }
}

#[test]
fn wrong_parity_is_found_and_changes_of_data_bring_it_up_to_date() {
    for codec in codecs(10, 4) {
        let mut rng = StdRng::seed_from_u64(SEED + 2);
        let mut shards = stripe(&codec, &mut rng, 300);
        let verify = |shards: &[Vec<u8>]| {
            let slices: Vec<&[u8]> = shards.iter().map(|shard| &shard[..]).collect();
            codec.verify(&slices).expect("they fit")
        };
        assert_eq!(verify(&shards), [0; 0]);
        shards[12][299] ^= 1;
        assert_eq!(verify(&shards), [12]);
        shards[12][299] ^= 1;
        let delta: Vec<u8> = (0..300).map(|_| rng.random()).collect();
        shards[3]
            .iter_mut()
            .zip(&delta)
            .for_each(|(byte, change)| *byte ^= change);
        assert_ne!(verify(&shards), [0; 0]);
        let mut parity: Vec<&mut [u8]> = shards[10..]
            .iter_mut()
            .map(|shard| &mut shard[..])
            .collect();
        codec.update(3, &delta, &mut parity).expect("they fit");
        assert_eq!(verify(&shards), [0; 0]);
    }
}

#[test]
fn shards_that_depend_on_each_other_give_no_matrix() {
    let codec = codec(4, 4, select("scalar").expect("always there"));
    let row = codec.generator().row(0).to_vec();
    let mut used: Vec<usize> = (0..4).filter(|&shard| row[shard] == 1).collect();
    let lost = (0..4).find(|&shard| row[shard] == 0).expect("three ones");
    used.push(4);
    let refused = codec.decode_matrix(&used, &[lost]).expect_err("of rank 3");
    assert_eq!(
        refused,
        CodecError::TooFewShards {
            present: 3,
            needed: 4
        }
    );
    used[3] = 5;
    assert!(codec.decode_matrix(&used, &[lost]).is_ok());
}

/// The bytes of a stripe of 4+4 never change. Data shard c is the byte 1 << c.
#[test]
fn the_bytes_of_a_stripe_are_these() {
    let codec = codec(4, 4, select("auto").expect("always there"));
    let data = [[1], [2], [4], [8]];
    let sources: Vec<&[u8]> = data.iter().map(|shard| &shard[..]).collect();
    let mut parity = [[0]; 4];
    let mut targets: Vec<&mut [u8]> = parity.iter_mut().map(|shard| &mut shard[..]).collect();
    codec.encode(&sources, &mut targets).expect("they fit");
    assert_eq!(codec.code(), CodeId(3 | 3 << 16 | 3881 << 24));
    assert_eq!(parity, [[0x0e], [0x0b], [0x07], [0x0d]]);
}
