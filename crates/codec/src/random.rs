//! Numbers that look random and are the same on every machine.

/// xorshift64. No version of it may change: `points.rs` has seeds, and each stands for the schedule that it finds.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// Starts anywhere; every seed gives another run of numbers.
    pub(super) fn new(seed: u32) -> Self {
        // Spread over all bits, and never 0, where xorshift would stay.
        Self((u64::from(seed) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `bound`, which must not be 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).unwrap_or(u64::MAX)).unwrap_or(0)
    }

    /// Returns true once in `count` times.
    pub(super) fn one_in(&mut self, count: u64) -> bool {
        self.next().is_multiple_of(count)
    }
}
