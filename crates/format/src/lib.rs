#![doc = include_str!("FORMAT.md")]

pub mod code_number;
mod error;
pub mod event;
pub mod files;
pub mod frame;
pub mod id;
pub mod journal;
pub mod key;
pub mod record;
pub mod superblock;
pub mod wire;

pub use error::{FormatError, NameFault};
pub use id::{
    Cookie, Epoch, Generation, Ino, Lsn, MemberId, MemberIndex, QuotaId, SegmentId, ShardIndex,
    StripeClass, StripeId, VolumeId,
};
pub use record::Record;

/// Bytes in a block: the unit of checksums and of alignment.
pub const BLOCK_SIZE: usize = 4096;

/// Version of the on-disk format that this build writes.
pub const FORMAT_VERSION: u16 = 1;

/// Longest name of a directory entry or an extended attribute, in bytes.
pub const NAME_MAX: usize = 255;

/// Longest target of a symbolic link, in bytes.
pub const TARGET_MAX: usize = 4095;
