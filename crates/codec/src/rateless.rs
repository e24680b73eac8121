//! The random code: coded packets without end, each the sum of a random half of the source packets.
//!
//! A message is k source packets. Coded packet i is the XOR of those that row i selects, and [`RandomCode`] computes
//! row i from a seed and i alone. Any coded packets whose rows have rank k give the message back: k + 10 of them do so
//! in 999 of 1,000 cases, whatever k is. [`RandomCodec`] encodes and decodes; [`Method`] names the ways to decode.
//!
//! # Invariants
//!
//! - Every method accepts the same sets of packets, and gives the same bytes.
//! - A set without full rank is refused with its rank, and its targets stay as they are.
//! - Packets are trusted: a caller that reads them from a disk compares checksums first.

mod bulk;
mod code;
mod codec;
mod columns;
mod eliminate;
mod error;
mod incremental;
mod lanes;
mod packets;
mod parts;
mod rows;
mod select;
mod serial;
mod words;

pub use bulk::{Bulk, Numbers};
pub use code::{Form, RandomCode};
pub use codec::{Method, RandomCodec};
pub(super) use eliminate::eliminate;
pub use error::RatelessError;
pub use incremental::{Echelon, IncrementalDecoder};
pub use lanes::BitLanes;
pub(super) use lanes::eliminate_lanes;
pub use rows::BitRows;
pub(super) use select::ENTRIES_AT_ONCE;
pub use select::{Selection, SelectionJob};

/// The fewest source packets of a message.
pub const LEAST_PACKETS: usize = 2;

/// The most source packets of a message.
pub const MOST_PACKETS: usize = 4096;
