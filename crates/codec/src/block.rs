//! The unit of checksums.

/// Bytes that one checksum covers, and that pieces are aligned to.
pub const BLOCK_BYTES: usize = 4096;
