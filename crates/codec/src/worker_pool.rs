//! The interface of coding to a pool of threads. This crate knows no threads itself.

use std::fmt;

/// Threads that run the parts of one computation side by side.
pub trait WorkerPool: Sync + fmt::Debug {
    /// Returns how many parts can run at once, the caller's own included.
    fn width(&self) -> usize;

    /// Calls `work` once with every number below `parts`, in any order, on any thread, and returns when all calls have
    /// returned.
    fn run(&self, parts: usize, work: &(dyn Fn(usize) + Sync));
}
