//! Every structure that lies on disk: encoders and decoders that never panic.
//!
//! Pure: no files, no clock, no threads. Numbers in values are little-endian; numbers in keys are
//! big-endian, so that the order of the bytes is the order of the numbers.

pub mod id;
pub mod record;

pub use id::{
    Cookie, Epoch, Generation, Ino, Lsn, MemberId, MemberIndex, SegmentId, ShardIndex, StripeId,
    VolumeId,
};

/// Bytes in a block: the unit of checksums and of alignment.
pub const BLOCK_SIZE: usize = 4096;

/// Version of the on-disk format that this build writes.
pub const FORMAT_VERSION: u16 = 1;
