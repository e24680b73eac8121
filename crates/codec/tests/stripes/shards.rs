//! Random stripes, and what is reconstructed of them.

use cauchyfs_codec::Codec;
use rand::{RngExt, rngs::StdRng};

/// All k+m shards of a random stripe.
pub(crate) fn stripe(codec: &Codec, rng: &mut StdRng, length: usize) -> Vec<Vec<u8>> {
    let mut shards = vec![vec![0; length]; codec.geometry().total_shards()];
    let (data, parity) = shards.split_at_mut(codec.geometry().data_shards());
    for shard in &mut *data {
        rng.fill(&mut shard[..]);
    }
    let data: Vec<&[u8]> = data.iter().map(|shard| &shard[..]).collect();
    let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(|shard| &mut shard[..]).collect();
    codec.encode(&data, &mut parity).expect("shards fit");
    shards
}

/// Reconstructs `lost` from the shards in `present` and compares; `seed` is that of the stripe.
pub(crate) fn check(
    codec: &Codec,
    seed: u64,
    shards: &[Vec<u8>],
    present: &[usize],
    lost: &[usize],
) {
    let given: Vec<(usize, &[u8])> = present.iter().map(|&i| (i, &shards[i][..])).collect();
    let mut back = vec![vec![0xEE; shards[0].len()]; lost.len()];
    let mut targets: Vec<(usize, &mut [u8])> = lost
        .iter()
        .copied()
        .zip(back.iter_mut().map(|b| &mut b[..]))
        .collect();
    codec
        .reconstruct(&given, &mut targets)
        .expect("k shards are enough");
    for (&index, back) in lost.iter().zip(&back) {
        assert!(
            *back == shards[index],
            "seed {seed:#x}: {} {} on {}, {} bytes: shard {index} from {present:?}",
            codec.code(),
            codec.geometry(),
            codec.engine().name(),
            back.len(),
        );
    }
}

/// The members of a bit set below `total`.
pub(crate) fn members(set: u32, total: usize) -> Vec<usize> {
    (0..total).filter(|&i| set >> i & 1 == 1).collect()
}
