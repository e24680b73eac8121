//! Models of the concurrent parts of the filesystem, for tests alone.
//!
//! Each model runs a few threads over a part of the product and checks its promises. The threads are coroutines of
//! `shuttle`: at each lock, wait and wake-up a scheduler chooses the next one to run. [`explore`] tries many schedules.
//!
//! | model | source | promises |
//! | --- | --- | --- |
//! | [`group_commit`] | `src/transaction/group.rs` | a commit that contains its change answers every caller; errors reach all who shared the commit |
//! | [`pins`] | `src/stripes/pins.rs` | nothing is freed under a pin; all is freed once the pins are gone |
//! | [`buffers`] | `src/stripes/buffers.rs` | a write can be read from its buffer or by its record at any time; one thread flushes a stripe |
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
//! - Atomics are those of the standard library, so no switch happens at them. In these sources that hides nothing: between
//!   two locks a thread uses one atomic at most.
//! - Schedules are drawn at random. A passing model is evidence, and no proof.
//! - A commit that panics is left to the unit test of its source, because shuttle reports each panic as a failure. So is
//!   the encoding of stripes in batches that panics.
//! - A lock is not poisoned, and a wait has no spurious wake-up: `parking_lot` promises the same.

// The unit tests of the shared sources stay out: they need the whole room around them.
#![cfg(not(test))]

extern crate self as parking_lot;

use cauchyfs_format as format;
use cauchyfs_store as store;

pub mod buffers;
mod explore;
pub mod group_commit;
mod locks;
pub mod pins;

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

/// The room of stripes, as far as it is modelled.
#[path = "../../../src/stripes"]
#[expect(
    dead_code,
    unreachable_pub,
    reason = "the product uses and exports more of it"
)]
mod stripes {
    pub(crate) mod buffers;
    mod encoded;
    mod layout;
    pub(crate) mod pins;

    pub(crate) use error::StripeError;

    /// Stands in for the errors of the product, which name those of the rooms below.
    pub(crate) mod error {
        use crate::format::StripeId;

        /// The failures that the buffers tell apart or make.
        #[derive(Clone, Debug)]
        pub(crate) enum StripeError {
            /// A stripe found no space.
            NoSpace {
                /// Members that it needs.
                needed: usize,
            },
            /// A read beyond the end of a stripe.
            BadRecord {
                /// The stripe.
                stripe: StripeId,
                /// The contradiction.
                what: &'static str,
            },
            /// The buffers are closed.
            Closed,
        }
    }

    /// Stands in for the classes of stripes, whose codes come from the room below.
    pub(crate) mod classes {
        /// The numbers of shards of a code.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Geometry;

        impl Geometry {
            /// Returns the number of data shards.
            #[expect(clippy::unused_self, reason = "as in the product")]
            pub(crate) fn data_shards(self) -> usize {
                1
            }
        }

        /// The code of one class of stripes.
        #[derive(Debug)]
        pub(crate) struct ClassCode {
            /// Payload bytes of a full stripe.
            pub(crate) capacity: usize,
        }

        impl ClassCode {
            /// Returns the payload bytes of a full stripe.
            pub(crate) fn capacity(&self) -> usize {
                self.capacity
            }

            /// Returns the numbers of shards.
            #[expect(clippy::unused_self, reason = "as in the product")]
            pub(crate) fn geometry(&self) -> Geometry {
                Geometry
            }
        }
    }

    /// Stands in for the segments, which take room on members.
    pub(crate) mod segments {
        /// Room for one stripe.
        #[derive(Debug)]
        pub(crate) struct Reservation;
    }
}

/// The threads of the product, as far as it is modelled.
mod workers {
    /// The number of values. There are more threads, so that some share one.
    const SLOTS: usize = 3;

    /// Stands in for the values by thread of the product, whose threads are none of shuttle's.
    #[derive(Debug, Default)]
    pub(crate) struct ByThread<T>([T; SLOTS]);

    impl<T> ByThread<T> {
        /// Returns the value of the calling thread, which is always the same.
        pub(crate) fn own(&self) -> &T {
            &self.0[usize::from(shuttle::current::me()) % SLOTS]
        }

        /// Returns all values.
        pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
            self.0.iter()
        }
    }
}
