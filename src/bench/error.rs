//! The reasons why nothing could be measured.

use crate::codec::{CodecError, Geometry, rateless::RatelessError};
use crate::cuda::DeviceError;
use crate::workers::WorkersError;

/// The most threads that are measured at once.
pub(super) const MOST_THREADS: usize = 256;

/// The most stripes that are handed over by one call.
pub(super) const MOST_STRIPES: usize = 1024;

/// The reason why nothing could be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// No codec can do what was asked for.
    #[error(transparent)]
    Codec(#[from] CodecError),

    /// The plan has no row of that kind.
    #[error("shards of {seen} bytes asked for; between 1 byte and 256 MiB can be measured")]
    ShardBytes {
        /// The length asked for.
        seen: usize,
    },

    /// Rows need at least one thread, and not so many that the system gives out before.
    #[error("{seen} threads asked for; between 1 and {MOST_THREADS} can be measured")]
    Threads {
        /// The number asked for.
        seen: usize,
    },

    /// A call takes at least one stripe, and not so many that memory runs out before.
    #[error("{seen} stripes for each call asked for; between 1 and {MOST_STRIPES} can be measured")]
    Stripes {
        /// The number asked for.
        seen: usize,
    },

    /// Stripes of that size and number do not fit this machine.
    #[error(
        "{needed} bytes are needed for the stripes of {geometry}, and this machine has {limit} to spare"
    )]
    Memory {
        /// Data and parity shards of each.
        geometry: Geometry,
        /// Bytes for the stripes of all threads.
        needed: usize,
        /// Half of this machine's memory, in bytes.
        limit: usize,
    },

    /// The system gave less than that.
    #[error("the system does not give the {needed} bytes that the stripes of {geometry} take")]
    NoMemory {
        /// Data and parity shards of each.
        geometry: Geometry,
        /// Bytes for the stripes of all threads.
        needed: usize,
    },

    /// GPUs were asked for, and there are none, or one failed.
    #[error("cannot measure GPUs: {0}")]
    Device(#[from] DeviceError),

    /// The GPU failed, and what was measured was in part done by the CPU.
    #[error("a GPU failed while it was measured")]
    NotOnGpu,

    /// No random code can do what was asked for.
    #[error(transparent)]
    Rateless(#[from] RatelessError),

    /// A decoder of the random code gave wrong bytes.
    #[error("a decoder gave other bytes than were encoded")]
    NotDecoded,

    /// A worker left parity that the code does not call for.
    #[error("stripes were encoded with other parity than the code calls for")]
    WrongParity,

    /// Messages in bulk do not fit this machine.
    #[error("{needed} bytes are needed for the messages, and this machine has {limit} to spare")]
    MessageMemory {
        /// Bytes for all packets and targets.
        needed: usize,
        /// A quarter of this machine's memory, in bytes.
        limit: usize,
    },

    /// The system gave less memory than that.
    #[error("the system does not give {bytes} bytes for messages")]
    NoRoom {
        /// Bytes asked for.
        bytes: usize,
    },

    /// The system gave no pool of threads.
    #[error(transparent)]
    NoWorkers(#[from] WorkersError),

    /// The system gave no thread to measure on.
    #[error("the system gives no more threads")]
    NoThread(#[source] std::io::Error),
}
