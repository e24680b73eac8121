//! Callers that wait for a scrub begun by another one.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counter of the waiting callers.
#[derive(Debug, Default)]
pub(super) struct Followers(AtomicUsize);

/// Guard of a waiting caller.
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
