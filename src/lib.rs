//! CauchyFS: a POSIX filesystem over k+m directories, any m of which may die.
//!
//! The layers, top to bottom; a module uses only those below it (`tests/tidy.rs` enforces it):
//!
//! ```text
//! cli ─► control ─► fuse ─► fs ─► maintenance ─► transaction ─► stripes ─► metadata ─► membership ─► store ─► (files)
//!                                                                   │
//!                                                                   └─► coding ─► codec, cuda
//! All rooms from cli to membership use format. The crates codec and format are pure: no files, no clock, no threads.
//! ```
//!
//! [`events`] is a log beside these: control writes and reads it, and it uses the members alone.
//!
//! [`codec`], [`cuda`], [`mod@format`] and [`store`] are crates of their own, so the compiler keeps them from naming
//! anything above. [`coding`] shares the work of the codec out among the CPU and GPUs, [`workers`] are its threads on the
//! CPU, and [`mod@bench`] measures it.

pub use cauchyfs_codec as codec;
pub use cauchyfs_cuda as cuda;
pub use cauchyfs_format as format;
pub use cauchyfs_store as store;

pub mod bench;
pub mod cli;
pub mod coding;
mod control;
pub mod events;
pub mod fs;
pub mod fuse;
pub mod maintenance;
pub mod membership;
pub mod metadata;
pub mod rate_limit;
pub mod stripes;
pub mod transaction;
pub mod workers;
