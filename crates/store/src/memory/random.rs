//! A small random number generator whose sequence is part of what a seed means.

/// `SplitMix64`: every seed is good, and the sequence never changes under a test's feet.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    /// Starts the sequence of `seed`.
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Tosses a coin.
    pub(super) fn flip(&mut self) -> bool {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) & 1 == 1
    }
}
