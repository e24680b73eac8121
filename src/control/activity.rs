//! Counts of the requests and bytes of a mount, as they cross the control socket.

use serde::{Deserialize, Serialize};

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
}
