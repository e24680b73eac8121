//! The effect of a power cut on what was not synced.

/// The unsynced writes that survive a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutPolicy {
    /// All of them: as if everything had just been synced.
    Keep,
    /// None of them.
    Drop,
    /// Each 512-byte sector of each write, each change of a length, and each removal survives or
    /// not at random, whatever came before or after it. The same seed decides the same way.
    Reorder(u64),
}
