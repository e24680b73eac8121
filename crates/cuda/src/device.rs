//! The interface of a device, for callers that have work for it.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use cauchyfs_codec::{Item, Matrix};

/// The reason why a device did not do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// This program was built without a driver.
    #[error("this program was built without support for CUDA")]
    NotBuilt,

    /// There is no driver.
    #[error("no CUDA driver: libcuda.so.1 cannot be loaded")]
    NoDriver,

    /// There is a driver, but it cannot be used.
    #[error("the CUDA driver cannot be used: {reason}")]
    BadDriver {
        /// The attempt, and its result.
        reason: String,
    },

    /// There is a driver, but nothing for it to drive.
    #[error("no CUDA device")]
    NoDevice,

    /// One operation failed. The next may succeed: memory that was short may be free again.
    #[error("cannot {operation}: {reason}")]
    Failed {
        /// The operation that failed.
        operation: &'static str,
        /// The driver's explanation.
        reason: String,
    },

    /// The device is lost: nothing succeeds on it any more while this process lives.
    #[error("device lost: cannot {operation}: {reason}")]
    Lost {
        /// The operation that failed.
        operation: &'static str,
        /// The driver's explanation.
        reason: String,
    },
}

impl DeviceError {
    /// Returns whether it only says that this machine has no GPU for us.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NotBuilt | Self::NoDriver | Self::NoDevice)
    }

    /// Returns whether trying again on this device is in vain.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::NotBuilt
            | Self::NoDriver
            | Self::BadDriver { .. }
            | Self::NoDevice
            | Self::Lost { .. } => true,
            Self::Failed { .. } => false,
        }
    }
}

/// A batch: one matrix, to be applied to all items. These are alike: equally long, and all or none of
/// them compared, and with sums.
#[derive(Debug)]
pub struct MatrixBatch<'w, 'a> {
    /// One row per target, one column per source.
    pub matrix: &'w Matrix,
    /// The items that the matrix is applied to; at least one, and none of them empty.
    pub items: &'w mut [Item<'a>],
}

/// The program with which a device applied a matrix: equal where the same device ran the same kernel with the same
/// coefficients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Program(u64);

impl Program {
    /// Returns the program that `parts` tell from all others: device, matrix, kernel.
    #[must_use]
    pub fn of(parts: impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        parts.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Something beside the CPU that applies matrices to items.
///
/// Items may lie anywhere in memory, at any alignment; those whose memory was [pinned](Self::pin)
/// travel faster, and those whose shards are adjacent faster still.
pub trait Device: Send + Sync + fmt::Debug {
    /// Returns the name for people.
    fn name(&self) -> &str;

    /// Makes one more lane; what it needs on the device and of page-locked memory is allocated here and
    /// bounded.
    ///
    /// # Errors
    ///
    /// If the device is lost, or has too little memory left.
    fn lane(&self) -> Result<Box<dyn Lane>, DeviceError>;

    /// Lets the device read and write this memory by itself from now on. It must not be unmapped
    /// before [`Self::unpin`]. Empty memory needs none of it and is accepted.
    ///
    /// # Errors
    ///
    /// If the system does not allow so much memory to be locked; it can be used nevertheless.
    fn pin(&self, memory: &mut [u8]) -> Result<(), DeviceError>;

    /// Takes [`Self::pin`] of the same memory back. No item that lies in it is being worked on.
    ///
    /// # Errors
    ///
    /// If it was not pinned, or the device is lost.
    fn unpin(&self, memory: &mut [u8]) -> Result<(), DeviceError>;
}

/// One of several ways into a device that work side by side, each used by one thread at a time.
pub trait Lane: Send {
    /// Applies a matrix to all items of a batch, and returns when all of it has been done: all targets
    /// and sums are in place then. Sleeps while it waits. Returns what it was done with.
    ///
    /// # Errors
    ///
    /// If anything failed; targets and sums are unspecified then, and nothing touches the items any
    /// more after the return.
    fn run(&mut self, work: &mut MatrixBatch<'_, '_>) -> Result<Program, DeviceError>;
}
