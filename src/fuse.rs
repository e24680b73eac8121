//! A thin adapter from FUSE requests to [`crate::fs`].
//!
//! [`Fs`](crate::fs::Fs) knows no FUSE types and fills buffers of its caller's. So another transport (FUSE over
//! `io_uring`, for example) can stand beside `adapter` and share everything else here: mounting, the errno table,
//! the translation of values, and the pool for requests that wait.
//!
//! [`serve()`] mounts and starts the threads; unmounting ends them, regardless of the process that does it. Afterwards
//! the caller closes the filesystem: that, and not unmounting, makes the last changes durable.

mod adapter;
mod callbacks;
mod convert;
mod errno;
pub mod mount;
pub mod mountinfo;
mod negotiate;
mod page_cache;
mod pool;
mod request;
mod serve;
pub mod walk;

pub use request::one_line;
pub use serve::{Connection, ServeOptions, Serving, serve};
