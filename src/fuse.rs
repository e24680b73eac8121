//! The kernel's FUSE protocol, and a thin adapter from its requests to [`crate::fs`].
//!
//! `protocol` reads requests and lays out answers. A transport delivers each request in memory of its own, and sends the
//! answer: `device` does so over `/dev/fuse`, and `ring` over `io_uring`. `adapter` decides on which thread a request is worked on.
//! `memory` takes its place in a benchmark, and answers from memory.
//! [`Fs`](crate::fs::Fs) knows no FUSE types and fills buffers of its caller's, so the memory of any transport serves.
//!
//! [`serve()`] mounts and starts the threads; unmounting ends them, regardless of the process that does it. Afterwards
//! the caller closes the filesystem: that, and not unmounting, makes the last changes durable.

mod adapter;
mod answers;
mod callbacks;
mod convert;
mod device;
mod errno;
mod kernel;
mod kernel_cache;
mod memory;
pub mod mount;
pub mod mountinfo;
mod negotiate;
mod operation_counts;
mod page_cache;
mod pool;
mod protocol;
mod report;
mod request;
mod ring;
mod seek;
mod serve;
mod serve_options;
mod signals;
mod turns;
mod waiting;
pub mod walk;
mod without_volume;

pub use kernel_cache::KernelCache;
pub use memory::{PlainFiles, PlainShape};
pub use operation_counts::{BUCKETS, OperationCount, OperationCounts};
pub use request::one_line;
pub use serve::{Connection, Serving, Transport, serve, serve_memory};
pub use serve_options::{ServeOptions, TransportChoice};
pub use waiting::{OnFailure, WaitingRequests};
