//! The part of the missing shards that a rebuild restores.

/// Part of the missing shards that a rebuild restores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebuildScope {
    /// All missing shards. Those of absent members go to other members, and drained members lose theirs.
    Everything,
    /// The shards that online members lack. Nothing moves, and shards of absent members wait for their return.
    Online,
}
