//! Who waits for a scrub that another one has begun.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many wait.
#[derive(Debug, Default)]
pub(super) struct Followers(AtomicUsize);

/// One who waits, until it is dropped.
#[derive(Debug)]
pub struct Follower<'a>(&'a Followers);

impl Followers {
    pub(super) fn join(&self) -> Follower<'_> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Follower(self)
    }

    pub(super) fn are_there(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}
