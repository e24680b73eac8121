//! The values of the index: types, encoders and decoders.
//!
//! Every value begins with a version byte. Fields have fixed widths and are little-endian. The keys
//! are in [`crate::key`].

mod directory;
mod directory_code;
mod extent;
mod inode;
mod quota;
mod scrub;
mod segment;
mod small;
mod stripe;
mod value;

use super::FormatError;

pub use directory::{Dirent, Position};
pub use directory_code::DirectoryCode;
pub use extent::{Backref, Extent};
pub use inode::{FileKind, Inline, Inode, Timestamp};
pub use quota::{Quota, QuotaState, QuotaUsage};
pub use scrub::{LostBytes, Scrub};
pub use segment::{MAX_SEGMENT_BYTES, Segment, SegmentStripe};
pub use small::{Counter, Marker, Xattr};
pub use stripe::{MAX_STRIPE_BYTES, RepairNote, ShardSet, ShardSums, Stripe, greatest_height};
pub use value::Value;

/// A value of the index.
pub trait Record: Sized {
    /// Returns the value's bytes.
    fn encode(&self) -> Value;

    /// Reads a value back. Never panics, whatever the bytes.
    ///
    /// # Errors
    ///
    /// [`FormatError`] if the bytes are not exactly what [`encode`](Self::encode) makes.
    fn decode(bytes: &[u8]) -> Result<Self, FormatError>;
}

/// Version byte at the front of every value.
const VERSION: u8 = 1;

#[cfg(test)]
mod tests;
