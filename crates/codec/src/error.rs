//! The reasons why coding was refused.

/// The reason why a codec could not be made, or would not run. Retrying the same call changes
/// nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The numbers of shards form no code.
    #[error(
        "geometry {data}+{parity}: needs at least 1 data and 1 parity shard, and at most {most} together"
    )]
    Geometry {
        /// Data shards asked for.
        data: usize,
        /// Parity shards asked for.
        parity: usize,
        /// The most shards, data and parity together, that any geometry has.
        most: usize,
    },

    /// This code cannot have that many shards, though another code can.
    #[error("code {code}: geometry {data}+{parity} has more than {max} shards together")]
    GeometryTooWide {
        /// Name of the code.
        code: &'static str,
        /// Data shards asked for.
        data: usize,
        /// Parity shards asked for.
        parity: usize,
        /// The most shards, data and parity together, that the code can tell apart.
        max: usize,
    },

    /// `random-gf2` has no rows for so few or so many shards.
    #[error(
        "code random-gf2: geometry {data}+{parity}: needs at least {least} data shards and {least} to {most} parity shards"
    )]
    RandomGeometry {
        /// Data shards asked for.
        data: usize,
        /// Parity shards asked for.
        parity: usize,
        /// The fewest data shards, and the fewest parity shards.
        least: usize,
        /// The most parity shards.
        most: usize,
    },

    /// No rows were found that survive a loss.
    #[error("code random-gf2: no rows were found by which {data}+{parity} survives any loss")]
    NoRows {
        /// Data shards asked for.
        data: usize,
        /// Parity shards asked for.
        parity: usize,
    },

    /// A superblock or segment promises something else of its rows than holds for them.
    #[error(
        "code random-gf2: {stored} losses are stored as survived, and the rows survive {survived}"
    )]
    WrongRows {
        /// The losses that are stored as survived.
        stored: usize,
        /// The losses that the rows survive.
        survived: usize,
    },

    /// A superblock or segment names a code by a number that this version does not know.
    #[error("code number {number} is unknown to this version")]
    UnknownCodeNumber {
        /// The number seen.
        number: u64,
    },

    /// No code has this name.
    #[error("no code is called {name:?}; known: {known}")]
    UnknownCodeName {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },

    /// No engine has this name.
    #[error("no coding engine is called {name:?}; known: {known}")]
    UnknownEngine {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },

    /// The engine exists, but this machine cannot run it.
    #[error("this machine cannot run the coding engine {name}; it can run: {usable}")]
    EngineUnavailable {
        /// The engine asked for.
        name: &'static str,
        /// The engines that this machine can run.
        usable: String,
    },

    /// A call passed too many or too few shards of one kind.
    #[error("{seen} {kind} shards given, {needed} needed")]
    ShardCount {
        /// The kind of shards that were counted: `data`, `parity` or `total`.
        kind: &'static str,
        /// The number that was given.
        seen: usize,
        /// The number that the call needs.
        needed: usize,
    },

    /// Shards of one call differ in length.
    #[error("a shard of {seen} bytes among shards of {needed} bytes")]
    ShardLength {
        /// Bytes of the shard that differs.
        seen: usize,
        /// Bytes of the first shard of the call.
        needed: usize,
    },

    /// A shard index lies beyond the geometry.
    #[error("shard index {index} given, the geometry has {total} shards")]
    ShardIndex {
        /// The index given.
        index: usize,
        /// Shards of the geometry, data and parity together.
        total: usize,
    },

    /// One shard was named twice, or as both present and lost.
    #[error("shard {index} is named twice")]
    DuplicateShard {
        /// The shard.
        index: usize,
    },

    /// More shards are lost than parity can replace.
    #[error("{present} shards present, {needed} needed")]
    TooFewShards {
        /// Shards that were given as present.
        present: usize,
        /// Data shards of the geometry.
        needed: usize,
    },
}
