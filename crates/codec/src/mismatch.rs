//! The result of comparing parity shards with what the data calls for.

/// A block of a parity shard that differs from what the data shards call for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// The index of the shard.
    pub shard: usize,
    /// The index of the block, of [`BLOCK_BYTES`](crate::BLOCK_BYTES), in the shard.
    pub block: usize,
}

impl Mismatch {
    /// Returns those of parities from shard `first` on, given whether each of so many blocks of them is wrong.
    pub(super) fn all(wrong: &[bool], first: usize, blocks: usize) -> Vec<Self> {
        let found = wrong.iter().enumerate().filter(|(_, is_wrong)| **is_wrong);
        let mismatch = |(at, _)| Self {
            shard: first + at / blocks,
            block: at % blocks,
        };
        found.map(mismatch).collect()
    }
}
