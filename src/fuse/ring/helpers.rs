//! Threads that move data where that takes longer than handing it over.
//!
//! The threads of a queue share a CPU for most of the time, and one process reads ahead over one queue. Long reads and
//! writes would follow one another there.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::fuse::protocol::opcode;
use crate::fuse::request::Request;
use crate::workers::Threads;

/// The time that it takes to hand a request to another thread, and its answer back: two wake-ups, rounded up.
const HANDOVER: Duration = Duration::from_micros(150);

/// The time from which small writes move. They take longer than [`HANDOVER`] only while they wait. Waits for the lock of
/// their file, or for the CPU, are short, and a handover adds to them; those for a slow member are not.
const STALL: Duration = Duration::from_millis(5);

/// The pace of small writes, before that of large ones.
const SMALL_WRITE: usize = 2;

/// The length from which a request is a large one.
const LARGE: usize = 32 << 10;

/// The weight of the last request in the mean: one in so many.
const WEIGHT: u64 = 8;

type Job = Box<dyn FnOnce() + Send>;

/// The threads.
pub(super) struct Helpers {
    jobs: Mutex<Sender<Job>>,
    /// Helpers without a job. Others may wait for a member, and what queued behind them would wait as well.
    idle: Arc<AtomicUsize>,
    paces: [Pace; 4],
}

/// Running mean of the time that requests of one kind take, in nanoseconds.
#[derive(Default)]
struct Pace(AtomicU64);

impl Pace {
    fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX / WEIGHT);
        let mean = self.0.load(Ordering::Relaxed);
        // Lost updates of other threads do not matter.
        let mean = mean - mean / WEIGHT + took / WEIGHT;
        self.0.store(mean, Ordering::Relaxed);
    }

    /// Returns whether requests take longer than `limit`.
    fn exceeds(&self, limit: Duration) -> bool {
        Duration::from_nanos(self.0.load(Ordering::Relaxed)) > limit
    }
}

impl Helpers {
    /// Starts `count` threads.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub(super) fn start(threads: &Threads, count: usize) -> io::Result<Self> {
        let (jobs, queued) = mpsc::channel::<Job>();
        let queued = Arc::new(Mutex::new(queued));
        let idle = Arc::new(AtomicUsize::new(count));
        for number in 0..count {
            let (queued, idle) = (Arc::clone(&queued), Arc::clone(&idle));
            threads.start(format!("data-{number}"), move || {
                loop {
                    // Bound first: the guard must be gone before the job runs.
                    let next = queued.lock().recv();
                    match next {
                        Ok(job) => job(),
                        Err(_) => return,
                    }
                    idle.fetch_add(1, Ordering::Relaxed);
                }
            })?;
        }
        Ok(Self {
            jobs: Mutex::new(jobs),
            idle,
            paces: Default::default(),
        })
    }

    /// Runs `serve` here, or on an idle helper if requests of this kind took long lately.
    pub(super) fn run(
        self: &Arc<Self>,
        request: Request,
        serve: impl FnOnce(Request) + Send + 'static,
    ) {
        let Some(kind) = kind(&request) else {
            return serve(request);
        };
        let timed = {
            let helpers = Arc::clone(self);
            move || {
                let started = Instant::now();
                serve(request);
                helpers.paces[kind].note(started.elapsed());
            }
        };
        let limit = if kind == SMALL_WRITE { STALL } else { HANDOVER };
        if !self.paces[kind].exceeds(limit) || !self.take_helper() {
            return timed();
        }
        let sent = self.jobs.lock().send(Box::new(timed));
        if let Err(mpsc::SendError(job)) = sent {
            job();
        }
    }

    /// Reserves a helper for one job, if one is idle.
    fn take_helper(&self) -> bool {
        let fewer = |idle: usize| idle.checked_sub(1);
        self.idle
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer)
            .is_ok()
    }
}

/// Returns which of the paces counts for a request, none if it moves no data.
fn kind(request: &Request) -> Option<usize> {
    let is_large = |len: usize| usize::from(len >= LARGE);
    match request.header().opcode {
        opcode::READ => Some(is_large(request.data_len())),
        opcode::WRITE => Some(SMALL_WRITE + is_large(request.data_len())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_follows_the_time_of_the_last_requests() {
        let pace = Pace::default();
        for _ in 0..100 {
            pace.note(HANDOVER * 4);
        }
        assert!(pace.exceeds(HANDOVER), "they wait for a lock");
        assert!(!pace.exceeds(STALL), "and for no member");
        for _ in 0..100 {
            pace.note(STALL * 4);
        }
        assert!(pace.exceeds(STALL));
        for _ in 0..100 {
            pace.note(HANDOVER / 4);
        }
        assert!(!pace.exceeds(HANDOVER));
    }
}
