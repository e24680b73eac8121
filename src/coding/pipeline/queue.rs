//! Items that wait for a lane, and the batches they leave in.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::loan::Loan;

/// The most bytes of a batch of more than one item: about four milliseconds of a bus, beside which what a
/// batch and the pieces it travels in cost by themselves is little.
pub(super) const MOST_BYTES: usize = 192 << 20;

/// The most items of a batch.
pub(super) const MOST_ITEMS: usize = 64;

/// Batches below so many bytes are not made smaller only to give idle lanes some.
const LEAST_BYTES: usize = 4 << 20;

/// Loans that wait for lanes.
pub(super) struct Queue<R> {
    state: Mutex<QueueState<R>>,
    work: Condvar,
    /// For lanes that cannot work now.
    rested: Condvar,
}

struct QueueState<R> {
    waiting: VecDeque<Loan<R>>,
    /// Lanes that may come for a batch.
    lanes: usize,
    /// Those of them that sleep.
    idle: usize,
    closed: bool,
}

impl<R> Queue<R> {
    /// Returns an empty queue for so many lanes.
    pub(super) fn new(lanes: usize) -> Self {
        Self {
            state: Mutex::new(QueueState {
                waiting: VecDeque::new(),
                lanes,
                idle: 0,
                closed: lanes == 0,
            }),
            work: Condvar::new(),
            rested: Condvar::new(),
        }
    }

    /// Adds loans; they are dropped if no lane would ever take them.
    pub(super) fn push(&self, loans: Vec<Loan<R>>) {
        let mut state = self.state.lock();
        if state.closed {
            drop(state); // a thread that is woken by this need not wait for the lock
            drop(loans);
            return;
        }
        let useful = loans.len().min(state.idle);
        state.waiting.extend(loans);
        drop(state);
        for _ in 0..useful {
            self.work.notify_one();
        }
    }

    /// Returns whether loans are taken.
    pub(super) fn is_open(&self) -> bool {
        !self.state.lock().closed
    }

    /// Waits for the next batch, of one loan or more; `None` once the queue is closed, or when `is_over` for this lane.
    pub(super) fn next_batch(&self, is_over: impl Fn() -> bool) -> Option<Vec<Loan<R>>> {
        let mut state = self.state.lock();
        loop {
            if state.closed || is_over() {
                return None;
            }
            if !state.waiting.is_empty() {
                return Some(state.take_batch());
            }
            state.idle += 1;
            self.work.wait(&mut state);
            state.idle -= 1;
        }
    }

    /// Keeps a lane that cannot work for so long, as if it had left. Returns whether it is to try again: the queue is
    /// open, and `is_over` not for this lane.
    pub(super) fn rest(&self, time: Duration, is_over: impl Fn() -> bool) -> bool {
        self.leave();
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.closed && !is_over() && Instant::now() < until {
            self.rested.wait_until(&mut state, until);
        }
        state.lanes += 1;
        !state.closed && !is_over()
    }

    /// Lets all lanes see whether it is over for them.
    pub(super) fn wake_all(&self) {
        self.work.notify_all();
        self.rested.notify_all();
    }

    /// Takes note that a lane comes no more; with the last of them the queue is closed.
    pub(super) fn leave(&self) {
        let mut state = self.state.lock();
        state.lanes -= 1;
        let last = state.lanes == 0;
        drop(state);
        if last {
            self.close();
        } else {
            // It may have been woken for a loan that another lane has to take now.
            self.work.notify_one();
        }
    }

    /// Takes no more loans, and drops those that wait.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        drop(waiting);
        self.wake_all();
    }

    /// Returns how many lanes may come for a batch.
    #[cfg(test)]
    pub(super) fn lanes(&self) -> usize {
        self.state.lock().lanes
    }

    /// Returns how many loans wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }
}

impl<R> QueueState<R> {
    /// Takes the loan that waits longest, and its share of those that are like it.
    fn take_batch(&mut self) -> Vec<Loan<R>> {
        let Some(first) = self.waiting.pop_front() else {
            return Vec::new();
        };
        let alike = self.waiting.iter().filter(|other| is_alike(&first, other));
        let share = (1 + alike.count()).div_ceil(1 + self.idle);
        let item_bytes = first.item().total_bytes().max(1);
        let count = share
            .max(LEAST_BYTES / item_bytes)
            .min(MOST_BYTES / item_bytes)
            .clamp(1, MOST_ITEMS);
        let mut batch = vec![first];
        let mut at = 0;
        while batch.len() < count && at < self.waiting.len() {
            if is_alike(&batch[0], &self.waiting[at]) {
                batch.extend(self.waiting.remove(at));
            } else {
                at += 1;
            }
        }
        batch
    }
}

/// Returns whether two loans can go in one batch.
fn is_alike<R>(one: &Loan<R>, other: &Loan<R>) -> bool {
    let (a, b) = (one.item(), other.item());
    a.shard_bytes() == b.shard_bytes()
        && a.is_compared() == b.is_compared()
        && a.sums.is_empty() == b.sums.is_empty()
        && one.matrix() == other.matrix()
}
