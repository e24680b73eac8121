//! The interface of coding to a pool of threads. This crate knows no threads itself.

use std::fmt;

/// Threads that run pieces of one piece of work side by side.
pub trait Crew: Sync + fmt::Debug {
    /// Returns how many pieces can run at once, the caller's own included.
    fn width(&self) -> usize;

    /// Calls `work` once with every number below `pieces`, in any order, on any thread, and returns
    /// when all calls have returned.
    fn run(&self, pieces: usize, work: &(dyn Fn(usize) + Sync));
}
