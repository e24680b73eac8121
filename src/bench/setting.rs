//! The conditions of a measurement.

use serde::Serialize;

use crate::codec::Stores;

/// An operation on stripes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// All parity from all data.
    Encode,
    /// As many data shards as there are parities, from all others: the worst case.
    Decode,
    /// All parity compared with what the data calls for.
    Verify,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Encode, Self::Decode, Self::Verify];
}

/// The memory that stripes lie in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkingSet {
    /// One stripe over and over, in the nearest cache that it fits.
    Warm,
    /// Stripes in turn, 256 MiB of them, so that each comes from memory.
    Cold,
    /// 2 GiB of them in the memory of a GPU, where they stay.
    Device,
    /// As with [`Self::Cold`], in memory that GPUs read and write by themselves. Encoding computes checksums,
    /// too, as in the filesystem.
    Pinned,
    /// The same in any memory, for GPUs.
    Pageable,
}

impl WorkingSet {
    /// Those of engines of the CPU.
    pub const OF_CPU: [Self; 2] = [Self::Warm, Self::Cold];

    /// Those of GPUs.
    pub const OF_GPU: [Self; 3] = [Self::Device, Self::Pinned, Self::Pageable];

    /// Returns whether stripes are coded by GPUs.
    #[must_use]
    pub fn is_of_gpu(self) -> bool {
        Self::OF_GPU.contains(&self)
    }

    /// Bytes of all stripes of a cold run.
    const COLD_BYTES: usize = 256 << 20;

    /// Returns whether stripes go to GPUs and come back, call by call.
    pub(super) fn is_over_bus(self) -> bool {
        matches!(self, Self::Pinned | Self::Pageable)
    }

    /// Returns how many stripes of that size each of so many threads rotates over.
    pub(super) fn stripes(self, stripe_bytes: usize, threads: usize) -> usize {
        match self {
            Self::Warm => 1,
            Self::Device => 0,
            Self::Cold | Self::Pinned | Self::Pageable => {
                (Self::COLD_BYTES / threads / stripe_bytes).max(2)
            }
        }
    }

    /// Returns where targets are stored to.
    pub(super) fn stores(self) -> Stores {
        match self {
            Self::Warm => Stores::Cached,
            Self::Cold | Self::Device | Self::Pinned | Self::Pageable => Stores::Streaming,
        }
    }
}

/// The conditions of a measurement, whatever the codec.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Length of a shard, in bytes.
    pub shard_bytes: usize,
    /// Threads, each with stripes of its own.
    pub threads: usize,
    /// The memory that stripes lie in.
    pub working_set: WorkingSet,
    /// Stripes that a thread hands over by one call, to GPUs.
    pub stripes: usize,
    /// The operation on them.
    pub operation: Operation,
}
