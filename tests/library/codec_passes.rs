//! However a pass goes about it, the bytes are the same.

use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

use cauchyfs::{
    codec::{
        BLOCK_BYTES, CodeId, Codec, CodecError, Geometry, Mismatch, Pass, Stores, WorkerPool,
        engines, select,
    },
    workers::Workers,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const SEED: u64 = 0xBA55;

fn codec(k: usize, m: usize) -> Codec {
    let geometry = Geometry::new(k, m).expect("valid");
    Codec::new(
        CodeId::RS_CAUCHY,
        geometry,
        select("auto").expect("always there"),
    )
    .expect("known")
}

fn random_shards(count: usize, length: usize) -> Vec<Vec<u8>> {
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut shards = vec![vec![0; length]; count];
    for shard in &mut shards {
        rng.fill(&mut shard[..]);
    }
    shards
}

fn slices(shards: &[Vec<u8>]) -> Vec<&[u8]> {
    shards.iter().map(|shard| &shard[..]).collect()
}

fn slices_mut(shards: &mut [Vec<u8>]) -> Vec<&mut [u8]> {
    shards.iter_mut().map(|shard| &mut shard[..]).collect()
}

fn encoded(pass: Pass<'_>, data: &[Vec<u8>], m: usize) -> Vec<Vec<u8>> {
    let mut parity = vec![vec![0xEE; data[0].len()]; m];
    pass.encode(&slices(data), &mut slices_mut(&mut parity))
        .expect("shards fit");
    parity
}

/// Takes all data out of parity again, shard by shard.
fn updated(pass: Pass<'_>, data: &[Vec<u8>], parity: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut parity = parity.to_vec();
    for (shard, delta) in data.iter().enumerate() {
        pass.update(shard, delta, &mut slices_mut(&mut parity))
            .expect("shards fit");
    }
    parity
}

/// Runs pieces in reverse on the caller's thread, and counts them.
#[derive(Debug, Default)]
struct Backwards(AtomicUsize);

impl WorkerPool for Backwards {
    fn width(&self) -> usize {
        7
    }

    fn run(&self, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
        self.0.fetch_add(pieces, Ordering::Relaxed);
        (0..pieces).rev().for_each(work);
    }
}

/// Lengths around those where passes are split, which is every 256 KiB of all shards together.
fn lengths() -> impl Iterator<Item = usize> {
    let around = |length: usize| [length - 1, length, length + 1];
    [
        BLOCK_BYTES,
        5 * BLOCK_BYTES,
        (256 << 10) / 3,
        256 << 10,
        700_000,
    ]
    .into_iter()
    .flat_map(around)
}

#[test]
fn parallelism_and_streaming_stores_change_no_byte() {
    for code in CodeId::all() {
        let geometry = Geometry::new(4, 2).expect("valid");
        let engine = select("auto").expect("always there");
        let code = code.for_geometry(geometry).expect("4+2 fits every code");
        check_crews(&Codec::new(code, geometry, engine).expect("it fits"));
    }
}

fn check_crews(codec: &Codec) {
    let workers = Workers::new(3).expect("threads");
    let backwards = Backwards::default();
    for length in lengths() {
        let data = random_shards(4, length);
        let expected = encoded(codec.pass().stores(Stores::Cached), &data, 2);
        assert!(encoded(codec.pass(), &data, 2) == expected, "{length}");
        for pool in [&workers as &dyn WorkerPool, &backwards] {
            let what = || format!("{} {length} {pool:?}", codec.code());
            let pass = codec.pass().workers(pool);
            assert!(encoded(pass, &data, 2) == expected, "{}", what());
            assert!(
                updated(pass, &data, &expected) == vec![vec![0; length]; 2],
                "{}",
                what()
            );
            let pass = pass.stores(Stores::Streaming);
            assert!(encoded(pass, &data, 2) == expected, "{}", what());
        }
    }
    assert!(
        backwards.0.into_inner() > 0,
        "no pass was long enough to be split"
    );
}

#[test]
fn small_passes_stay_on_the_callers_thread() {
    let codec = codec(4, 2);
    let backwards = Backwards::default();
    let data = random_shards(4, 16 << 10);
    encoded(codec.pass().workers(&backwards), &data, 2);
    assert_eq!(backwards.0.into_inner(), 0);
}

#[test]
fn parallel_reconstruction_and_verification_match_one_thread() {
    let codec = codec(3, 2);
    let backwards = Backwards::default();
    let data = random_shards(3, 300_000);
    let mut shards = data.clone();
    shards.extend(encoded(codec.pass(), &data, 2));
    let pass = codec.pass().workers(&backwards);

    let mut lost = vec![vec![0; 300_000]; 2];
    let (first, second) = lost.split_at_mut(1);
    let present = [(1, &shards[1][..]), (4, &shards[4]), (2, &shards[2])];
    pass.reconstruct(&present, &mut [(3, &mut first[0]), (0, &mut second[0])])
        .expect("3 shards");
    assert!(lost[0] == shards[3] && lost[1] == shards[0]);

    assert_eq!(pass.verify(&slices(&shards)), Ok(vec![]));
    for at in [0, 99_999, 299_999] {
        shards[4][at] ^= 1;
        assert_eq!(pass.verify(&slices(&shards)), Ok(vec![4]), "byte {at}");
        let wrong = Mismatch {
            shard: 4,
            block: at / BLOCK_BYTES,
        };
        assert_eq!(pass.mismatches(&slices(&shards)), Ok(vec![wrong]));
        shards[4][at] ^= 1;
    }
}

#[test]
fn checksums_of_every_block_come_with_the_same_parity_with_every_code_on_every_engine() {
    for code in CodeId::all() {
        for engine in engines() {
            let geometry = Geometry::new(5, 3).expect("valid");
            let code = code.for_geometry(geometry).expect("5+3 fits every code");
            let codec = Codec::new(code, geometry, engine).expect("it fits");
            for length in [
                0,
                1,
                BLOCK_BYTES - 1,
                BLOCK_BYTES,
                3 * BLOCK_BYTES + 77,
                300_000,
            ] {
                check_checksums(&codec, length);
            }
        }
    }
}

/// Encodes with checksums, on one thread and on several, and compares.
fn check_checksums(codec: &Codec, length: usize) {
    let backwards = Backwards::default();
    let data = random_shards(5, length);
    let expected = encoded(codec.pass(), &data, 3);
    let what = || format!("{} {} {length}", codec.code(), codec.engine().name());
    for pass in [codec.pass(), codec.pass().workers(&backwards)] {
        let mut parity = vec![vec![0; length]; 3];
        let mut sums = vec![vec![0; length.div_ceil(BLOCK_BYTES)]; 8];
        let mut lists: Vec<&mut [u32]> = sums.iter_mut().map(|l| &mut l[..]).collect();
        pass.encode_with_checksums(&slices(&data), &mut slices_mut(&mut parity), &mut lists)
            .expect("shards fit");
        assert!(parity == expected, "{}", what());
        for (shard, sums) in data.iter().chain(&parity).zip(&sums) {
            let blocks = shard.chunks(BLOCK_BYTES).map(crc32c::crc32c);
            assert!(blocks.eq(sums.iter().copied()), "{}", what());
        }
    }
}

#[test]
fn checksum_lists_that_do_not_fit_are_refused() {
    let codec = codec(1, 1);
    let mut parity = vec![0; BLOCK_BYTES + 1];
    let data = vec![1; BLOCK_BYTES + 1];
    let mut encode = |lists: &mut [&mut [u32]]| {
        codec
            .pass()
            .encode_with_checksums(&[&data], &mut [&mut parity], lists)
    };
    assert_eq!(
        encode(&mut [&mut [0; 2]]),
        Err(CodecError::ShardCount {
            kind: "total",
            seen: 1,
            needed: 2
        })
    );
    assert_eq!(
        encode(&mut [&mut [0; 2], &mut [0; 1]]),
        Err(CodecError::ShardLength { seen: 1, needed: 2 })
    );
    assert_eq!(encode(&mut [&mut [0; 2], &mut [0; 2]]), Ok(()));
}

/// Engines may decode in another way than they encode, and past the cache in yet another.
#[test]
fn lost_data_comes_back_on_every_engine_at_any_length_with_either_kind_of_stores() {
    for engine in engines() {
        for (k, m) in [(4, 2), (5, 3), (10, 4), (7, 7), (20, 10), (13, 11)] {
            let geometry = Geometry::new(k, m).expect("valid");
            let codec = Codec::new(CodeId::RS_CAUCHY, geometry, engine).expect("known");
            for length in [1, 63, 64, 200, 1000, 4096 + 320 + 7] {
                let mut shards = random_shards(k, length);
                shards.extend(encoded(codec.pass(), &shards, m));
                // With data shard 0 and without it, and with fewer lost than can be.
                for (first, count) in [(0, k.min(m)), (k - k.min(m), k.min(m)), (1, 2)] {
                    for stores in [Stores::Cached, Stores::Streaming] {
                        check_lost(codec.pass().stores(stores), &shards, first..first + count);
                    }
                }
            }
        }
    }
}

/// Reconstructs lost shards into memory that is aligned to any register, and compares.
fn check_lost(pass: Pass<'_>, shards: &[Vec<u8>], lost: Range<usize>) {
    const ALIGNMENT: usize = 64;
    let length = shards[0].len();
    let mut buffers = vec![vec![0xEE; length + ALIGNMENT]; lost.len()];
    let aligned = |buffer: &[u8]| buffer.as_ptr().align_offset(ALIGNMENT);
    let present = shards.iter().enumerate();
    let present: Vec<(usize, &[u8])> = present
        .filter(|(index, _)| !lost.contains(index))
        .map(|(index, shard)| (index, &shard[..]))
        .collect();
    let mut targets: Vec<(usize, &mut [u8])> = lost
        .clone()
        .zip(&mut buffers)
        .map(|(index, buffer)| {
            let start = aligned(buffer);
            (index, &mut buffer[start..start + length])
        })
        .collect();
    pass.reconstruct(&present, &mut targets)
        .expect("enough are present");
    for (index, target) in &targets {
        assert!(
            **target == shards[*index][..],
            "seed {SEED:#x}: {pass:?}: {length} bytes of shard {index} without {lost:?}"
        );
    }
}
