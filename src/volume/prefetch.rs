//! Reading ahead: whole stripes into the cache, on threads of its own.
//!
//! A reader who meets a stripe that is being read ahead waits for it instead of reading it twice.

use std::collections::{HashSet, VecDeque};

use parking_lot::{Condvar, Mutex};

use crate::format::StripeId;

/// Stripes that may wait to be read ahead; more are dropped, since reading ahead too far evicts
/// what is about to be used.
const MAX_QUEUED: usize = 4;

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<StripeId>,
    running: HashSet<StripeId>,
    closed: bool,
}

/// What is to be read ahead, and what is being so.
#[derive(Debug, Default)]
pub(crate) struct Prefetch {
    state: Mutex<State>,
    work: Condvar,
    finished: Condvar,
}

impl Prefetch {
    /// Asks for a stripe, unless there is enough to do already.
    pub(crate) fn ask(&self, stripe: StripeId) {
        let mut state = self.state.lock();
        let known = state.running.contains(&stripe) || state.queue.contains(&stripe);
        if !known && !state.closed && state.queue.len() < MAX_QUEUED {
            state.queue.push_back(stripe);
            self.work.notify_one();
        }
    }

    /// Waits while the stripe is being read ahead; says whether it was.
    pub(crate) fn wait_for(&self, stripe: StripeId) -> bool {
        let mut state = self.state.lock();
        let running = state.running.contains(&stripe);
        while state.running.contains(&stripe) {
            self.finished.wait(&mut state);
        }
        running
    }

    /// Waits for the next stripe to read; `None` once closed.
    pub(crate) fn next(&self) -> Option<StripeId> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(stripe) = state.queue.pop_front() {
                state.running.insert(stripe);
                return Some(stripe);
            }
            self.work.wait(&mut state);
        }
    }

    /// The stripe is in the cache, or could not be read.
    pub(crate) fn done(&self, stripe: StripeId) {
        self.state.lock().running.remove(&stripe);
        self.finished.notify_all();
    }

    /// Ends all waiting for work.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_all();
    }
}
