//! The limits of a filesystem.

use crate::format::{BLOCK_SIZE, NAME_MAX};

/// Largest size of a file, in bytes.
pub const SIZE_MAX: u64 = i64::MAX as u64;

/// Most bytes of a regular file that are kept in its inode record.
pub const INLINE_MAX: usize = 2048;

/// Most links of an inode.
pub const LINKS_MAX: u32 = i32::MAX as u32;

/// [`BLOCK_SIZE`] as it is reported.
pub(super) const BLOCK_BYTES: u32 = 4096;

/// [`NAME_MAX`] as it is reported.
pub(super) const NAME_BYTES: u32 = 255;

const _: () = assert!(BLOCK_BYTES as usize == BLOCK_SIZE && NAME_BYTES as usize == NAME_MAX);

/// Directories that a path may lead through; deeper ones are passed over.
pub const DEPTH_MAX: usize = 1 << 16;
