//! What coding needs of hardware beside the CPU, without knowing any.

use std::fmt;

/// One stripe, or columns of one, for a matrix to be applied to: one source per column, one target per
/// row, all of them equally long.
#[derive(Default)]
pub struct Item<'a> {
    /// What the matrix is applied to.
    pub sources: Vec<&'a [u8]>,
    /// What comes of it.
    pub targets: Targets<'a>,
    /// If asked for, one list per shard, sources first, then targets, of one CRC32C per block of
    /// [`BLOCK_BYTES`](crate::codec::BLOCK_BYTES); else empty. A shard's last block may be short.
    pub sums: Vec<&'a mut [u32]>,
}

/// What is done with the result.
pub enum Targets<'a> {
    /// It replaces what these hold.
    Written(Vec<&'a mut [u8]>),
    /// It is compared with these.
    Compared {
        /// What should come of it.
        shards: Vec<&'a [u8]>,
        /// Whether each of them differs from what came of it; false at first.
        wrong: Vec<bool>,
    },
}

impl Default for Targets<'_> {
    fn default() -> Self {
        Self::Written(Vec::new())
    }
}

impl Targets<'_> {
    /// Returns how many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Written(shards) => shards.len(),
            Self::Compared { shards, .. } => shards.len(),
        }
    }
}

impl Item<'_> {
    /// Returns the length of every shard, in bytes.
    #[must_use]
    pub fn shard_bytes(&self) -> usize {
        self.sources.first().map_or(0, |source| source.len())
    }

    /// Returns whether targets are compared, and not written.
    #[must_use]
    pub fn is_compared(&self) -> bool {
        matches!(self.targets, Targets::Compared { .. })
    }
}

/// Shows the numbers of an item, not its bytes.
impl fmt::Debug for Item<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item")
            .field("sources", &self.sources.len())
            .field("targets", &self.targets.count())
            .field("shard_bytes", &self.shard_bytes())
            .field("is_compared", &self.is_compared())
            .field("has_sums", &!self.sums.is_empty())
            .finish()
    }
}
