//! Sets of shards.

/// A set of shard indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct ShardSet([u64; 4]);

impl ShardSet {
    /// Adds a shard; returns whether it was not in the set before.
    ///
    /// # Panics
    ///
    /// If the index is 256 or more, which no geometry reaches.
    pub(super) fn insert(&mut self, index: usize) -> bool {
        let new = !self.contains(index);
        self.0[index / 64] |= 1 << (index % 64);
        new
    }

    pub(super) fn contains(self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 == 1
    }

    /// Returns the members, in ascending order.
    pub(super) fn indices(self) -> Vec<usize> {
        (0..256).filter(|&index| self.contains(index)).collect()
    }
}
