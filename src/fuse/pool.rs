//! Bounded threads for requests that wait for disks, or for the kernel.
//!
//! The threads that read requests from the kernel must not wait for a sync, or a handful of them would stop everything
//! else. Only one of them at a time may make a commit for an fsync. Replies may be sent from any thread, so such requests move here. Requests that wait for *other requests* have
//! threads of their own. If they took all threads that wait for disks, those other requests could not be served, and
//! the mount would stand still for good.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender, TrySendError};

use parking_lot::Mutex;

use super::request::contain;
use crate::workers::Threads;

/// The number of requests that wait at once; group commit lets all of them share one sync.
const WORKERS: usize = 16;

/// The number of requests that may queue behind those.
const QUEUE: usize = 64;

/// The number of requests that wait for other requests at once. Any number may queue behind those: each is a
/// caller that waits, so there is an end to them, and they must not wait where requests are read.
const APART: usize = 4;

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs on threads of its own; dropping it waits for all that were accepted.
pub(super) struct SlowPool {
    queues: Option<Queues>,
    workers: Threads,
}

struct Queues {
    slow: SyncSender<Job>,
    apart: Sender<Job>,
}

impl SlowPool {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub(super) fn start() -> io::Result<Self> {
        let (slow, slow_jobs) = mpsc::sync_channel(QUEUE);
        let (apart, apart_jobs) = mpsc::channel();
        let workers = Threads::default();
        start_workers(&workers, "slow", WORKERS, slow_jobs)?;
        start_workers(&workers, "apart", APART, apart_jobs)?;
        Ok(Self {
            queues: Some(Queues { slow, apart }),
            workers,
        })
    }

    fn queues(&self) -> &Queues {
        self.queues.as_ref().expect("taken by drop alone")
    }

    /// Runs `job` on a worker; when the queue is full, right here, which slows the source down.
    ///
    /// A job must not wait for other requests.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        match self.queues().slow.try_send(Box::new(job)) {
            Ok(()) => {}
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => contain(job),
        }
    }

    /// Returns the workers for jobs that may wait for requests that are yet to be served.
    pub(super) fn apart(&self) -> Apart {
        Apart(self.queues().apart.clone())
    }
}

/// The workers for jobs that may wait for other requests; a job for the other workers may hold it.
pub(super) struct Apart(Sender<Job>);

impl Apart {
    /// Runs `job`.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        if let Err(mpsc::SendError(job)) = self.0.send(Box::new(job)) {
            contain(job);
        }
    }
}

impl Drop for SlowPool {
    fn drop(&mut self) {
        self.queues = None;
        self.workers.wait();
    }
}

fn start_workers(
    workers: &Threads,
    name: &str,
    count: usize,
    jobs: Receiver<Job>,
) -> io::Result<()> {
    let jobs = Arc::new(Mutex::new(jobs));
    (0..count).try_for_each(|number| {
        let jobs = Arc::clone(&jobs);
        workers.start(format!("{name}-{number}"), move || work_off(&jobs))
    })
}

fn work_off(jobs: &Mutex<Receiver<Job>>) {
    loop {
        // Bound first: the guard must be gone before the job runs.
        let next = jobs.lock().recv();
        match next {
            Ok(job) => contain(job),
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_job_runs_once_even_when_far_more_come_than_fit() {
        let done = Arc::new(AtomicUsize::new(0));
        let pool = SlowPool::start().unwrap();
        for _ in 0..10 * (QUEUE + WORKERS) {
            let done = Arc::clone(&done);
            pool.run(move || {
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(pool);
        assert_eq!(done.load(Ordering::Relaxed), 10 * (QUEUE + WORKERS));
    }

    #[test]
    fn jobs_that_panic_cost_no_worker() {
        let pool = SlowPool::start().unwrap();
        for _ in 0..2 * (QUEUE + WORKERS) {
            pool.run(|| panic!("on purpose"));
            pool.apart().run(|| panic!("on purpose"));
        }
        let (tell, told) = mpsc::channel();
        let last = tell.clone();
        pool.run(move || tell.send(()).unwrap());
        pool.apart().run(move || last.send(()).unwrap());
        for _ in 0..2 {
            told.recv_timeout(std::time::Duration::from_secs(60))
                .expect("a worker is left");
        }
    }

    #[test]
    fn jobs_that_wait_for_others_leave_workers_for_those() {
        let pool = SlowPool::start().unwrap();
        let (served, waited) = mpsc::channel();
        let waited = Arc::new(Mutex::new(waited));
        let (told, done) = mpsc::channel();
        let waiting = WORKERS + APART;
        for _ in 0..waiting {
            let (waited, told) = (Arc::clone(&waited), told.clone());
            pool.apart().run(move || {
                waited.lock().recv().unwrap();
                told.send(()).unwrap();
            });
        }
        for _ in 0..waiting {
            let served = served.clone();
            pool.run(move || served.send(()).unwrap());
        }
        for _ in 0..waiting {
            if let Err(error) = done.recv_timeout(std::time::Duration::from_secs(60)) {
                // Its workers would be waited for without end.
                std::mem::forget(pool);
                panic!("what a job waits for is not served: {error}");
            }
        }
    }
}
