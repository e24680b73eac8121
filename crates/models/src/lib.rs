//! Models of the concurrent parts of the filesystem, for tests alone.
//!
//! Each model runs a few threads over a part of the product and checks its promises. The threads are coroutines of
//! `shuttle`: at each lock, wait and wake-up a scheduler chooses the next one to run. [`explore`] tries many schedules.
//!
//! | model | source | promises |
//! | --- | --- | --- |
//! | [`group_commit`] | `src/transaction/group.rs` | a commit that contains its change answers every caller; errors reach all who shared the commit |
//!
//! # How the sources get here
//!
//! The modules below compile the files of the product themselves, not copies. This crate goes by the name
//! `parking_lot` as well, so the imports in these files find the locks of shuttle. The product needs no change
//! for it. A module has a stand-in here if it brings in files, members or the index.
//!
//! # Limits
//!
//! - Shuttle runs one thread at a time, so all memory is sequentially consistent. A model finds a wrong order of
//!   operations, and no ordering of an atomic that is too weak.
//! - Schedules are drawn at random. A passing model is evidence, and no proof.
//! - A lock is not poisoned, and a wait has no spurious wake-up: `parking_lot` promises the same.

// The unit tests of the shared sources stay out: they need the whole room around them.
#![cfg(not(test))]

extern crate self as parking_lot;

mod explore;
pub mod group_commit;
mod locks;

pub use explore::explore;
pub use locks::{Condvar, Mutex, MutexGuard};

/// The room of transactions, as far as it is modelled.
#[path = "../../../src/transaction"]
mod transaction {
    use std::sync::Arc;

    /// Stands in for the error of the product, which names the errors of all lower rooms.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(crate) enum CommitError {
        /// The failure of a commit.
        Poisoned {
            /// The cause.
            reason: Arc<str>,
        },
    }

    pub(crate) mod group;
}
