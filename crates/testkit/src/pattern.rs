//! Bytes that can be told apart.

/// Bytes that one step of the generator makes.
const WORD: usize = size_of::<u64>();

/// Returns `len` bytes that depend on `seed` and on the offset in every place.
#[must_use]
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill_pattern(seed, 0, &mut bytes);
    bytes
}

/// Fills `out` with what [`pattern`] has from `offset` on.
///
/// # Panics
///
/// If `offset` is no multiple of 8.
pub fn fill_pattern(seed: u64, offset: u64, out: &mut [u8]) {
    assert!(
        offset.is_multiple_of(WORD as u64),
        "{offset} is within a word"
    );
    for (index, chunk) in out.chunks_mut(WORD).enumerate() {
        // splitmix64 of the position, written out because a generator of `rand` would start at the front for each part.
        let mut word = seed
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(offset / WORD as u64 + index as u64)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 32;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_two_seeds_differ_and_a_part_is_that_of_the_whole() {
        let whole = pattern(1, 1000);
        assert_ne!(whole, pattern(2, 1000));
        let mut part = vec![0; 37];
        fill_pattern(1, 64, &mut part);
        assert_eq!(part, whole[64..101]);
    }
}
