//! The options for serving a mount.

use std::sync::Arc;

use super::mount::MountFlavor;
use super::operation_counts::OperationCounts;
use super::waiting::OnFailure;

/// The options for serving a mount.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The options of the mount.
    pub flavor: MountFlavor,
    /// Threads that read requests; 0 for one per CPU and two more.
    pub threads: usize,
    /// Let the kernel collect small writes.
    pub writeback: bool,
    /// Have the kernel request each open of a regular file.
    pub open_requests: bool,
    /// The way on which requests are to come.
    pub transport: TransportChoice,
    /// The fate of requests of programs while the volume has too few members.
    pub on_failure: OnFailure,
    /// The place where requests are counted; none if they are not.
    pub counts: Option<Arc<OperationCounts>>,
}

impl ServeOptions {
    /// Returns the number of threads that read requests over `/dev/fuse`.
    pub(super) fn request_threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from) + 2,
            threads => threads,
        }
    }
}

/// The way on which requests are to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Over `io_uring` where the kernel offers that, else over `/dev/fuse`.
    #[default]
    Auto,
    /// Over `io_uring` or not at all.
    Uring,
    /// Over `/dev/fuse`.
    Classic,
}
