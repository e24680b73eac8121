//! Counts of the requests and bytes of a mount, as they cross the control socket.

use serde::{Deserialize, Serialize};

use crate::store::Operations;

/// Counts since the volume was mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ActivityReport {
    /// Bytes of files that the kernel read from the daemon; the page cache serves more.
    pub(crate) bytes_read: u64,
    /// Bytes of files that the kernel wrote to the daemon.
    pub(crate) bytes_written: u64,
    /// Requests of the kernel.
    pub(crate) requests: u64,
    /// Requests that were answered with an error.
    pub(crate) requests_failed: u64,
    /// The members that are online. None are named while the volume is away.
    pub(crate) members: Vec<MemberActivity>,
}

/// The operations of a member since its directory was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberActivity {
    pub(crate) index: u16,
    pub(crate) reads: OperationsReport,
    /// Writes and syncs.
    pub(crate) writes: OperationsReport,
}

/// Operations of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OperationsReport {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    /// The sum of the times from a request to its answer. It includes the time until a late answer is noticed.
    pub(crate) microseconds: u64,
}

impl From<Operations> for OperationsReport {
    fn from(operations: Operations) -> Self {
        Self {
            count: operations.count,
            bytes: operations.bytes,
            microseconds: u64::try_from(operations.time.as_micros()).unwrap_or(u64::MAX),
        }
    }
}
