//! Reading ahead: whole stripes into the cache, on threads of its own.
//!
//! A stripe is read whole by one thread at a time. A reader that meets a stripe that is being read waits for it.
//! One that meets a stripe that is still to be read reads the stripe itself.

use std::collections::{HashSet, VecDeque};

use parking_lot::{Condvar, Mutex};

use crate::format::StripeId;

/// Stripes that may wait to be read ahead; more are dropped, since reading ahead too far evicts
/// what is about to be used.
const MAX_QUEUED: usize = 4;

#[derive(Debug, Default)]
struct PrefetchQueue {
    queue: VecDeque<StripeId>,
    running: HashSet<StripeId>,
    closed: bool,
}

/// The right to read a stripe whole; when it is dropped, the stripe is in the cache, or could not be
/// read.
#[derive(Debug)]
#[must_use = "others wait for the stripe while this is kept"]
pub(crate) struct Claim<'a> {
    prefetch: &'a Prefetch,
    stripe: StripeId,
}

impl Claim<'_> {
    /// Returns the stripe.
    pub(crate) fn stripe(&self) -> StripeId {
        self.stripe
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.prefetch.state.lock().running.remove(&self.stripe);
        self.prefetch.finished.notify_all();
    }
}

/// The thread whose turn it is to read a stripe whole.
#[derive(Debug)]
pub(crate) enum Turn<'a> {
    /// Another thread has just read it.
    Done,
    /// The caller's.
    Caller(Claim<'a>),
    /// No thread wants it whole.
    NotWanted,
}

/// The stripes to be read ahead, and those that are being read.
#[derive(Debug, Default)]
pub(crate) struct Prefetch {
    state: Mutex<PrefetchQueue>,
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

    /// Waits while another thread reads the stripe. Otherwise returns whose turn it is to read it: the caller's, if it
    /// was waiting to be read ahead or `wanted` whole.
    pub(crate) fn join(&self, stripe: StripeId, wanted: bool) -> Turn<'_> {
        let mut state = self.state.lock();
        if state.running.contains(&stripe) {
            while state.running.contains(&stripe) {
                self.finished.wait(&mut state);
            }
            return Turn::Done;
        }
        let waiting = state.queue.len();
        state.queue.retain(|queued| *queued != stripe);
        if waiting == state.queue.len() && !wanted {
            return Turn::NotWanted;
        }
        state.running.insert(stripe);
        Turn::Caller(Claim {
            prefetch: self,
            stripe,
        })
    }

    /// Waits for the next stripe to read; `None` once closed.
    pub(crate) fn next(&self) -> Option<Claim<'_>> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(stripe) = state.queue.pop_front() {
                state.running.insert(stripe);
                return Some(Claim {
                    prefetch: self,
                    stripe,
                });
            }
            self.work.wait(&mut state);
        }
    }

    /// Ends all waiting for work.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_all();
    }
}
