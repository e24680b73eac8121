//! An outsider computes the same parity from the same matrix.

use cauchyfs::{
    bench::Isal,
    codec::{CodeId, Codec, Geometry, select},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const SEED: u64 = 0x15A1;

#[test]
fn isal_agrees_on_parity_and_on_lost_shards_where_it_can_be_loaded() {
    let isal = match Isal::load() {
        Ok(isal) => isal,
        Err(error) => {
            println!("skipped: {error}");
            return;
        }
    };
    let mut rng = StdRng::seed_from_u64(SEED);
    for (k, m) in [(1, 1), (4, 2), (6, 3), (10, 4), (16, 4), (20, 10), (64, 16)] {
        let geometry = Geometry::new(k, m).expect("valid");
        let engine = select("auto").expect("always there");
        let codec = Codec::new(CodeId::RS_CAUCHY, geometry, engine).expect("known");
        for length in [64, 4096, 5000] {
            let mut data = vec![vec![0; length]; k];
            for shard in &mut data {
                rng.fill(&mut shard[..]);
            }
            let data: Vec<&[u8]> = data.iter().map(|shard| &shard[..]).collect();
            let mut parity = vec![vec![0; length]; m];
            let mut targets: Vec<&mut [u8]> = parity.iter_mut().map(|p| &mut p[..]).collect();
            codec.encode(&data, &mut targets).expect("shards fit");

            let mut theirs = vec![vec![0; length]; m];
            let mut targets: Vec<&mut [u8]> = theirs.iter_mut().map(|p| &mut p[..]).collect();
            isal.tables(codec.generator()).run(&data, &mut targets);
            assert!(
                theirs == parity,
                "seed {SEED:#x}: {geometry}, {length} bytes"
            );

            let lost: Vec<usize> = (0..k.min(m)).collect();
            let used: Vec<usize> = (lost.len()..lost.len() + k).collect();
            let matrix = codec.decode_matrix(&used, &lost).expect("k shards");
            let shards: Vec<&[u8]> = data
                .iter()
                .copied()
                .chain(parity.iter().map(|p| &p[..]))
                .collect();
            let sources: Vec<&[u8]> = used.iter().map(|&index| shards[index]).collect();
            let mut back = vec![vec![0; length]; lost.len()];
            let mut targets: Vec<&mut [u8]> = back.iter_mut().map(|b| &mut b[..]).collect();
            isal.tables(&matrix).run(&sources, &mut targets);
            assert!(
                back.iter().eq(&data[..lost.len()]),
                "seed {SEED:#x}: {geometry} {length}"
            );
        }
    }
}
