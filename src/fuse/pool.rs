//! A bounded pool of threads for requests that wait for disks.
//!
//! The threads that read requests from the kernel must not wait for a sync, or a handful of them
//! would stop everything else. Replies may be sent from any thread, so such requests move here.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread::JoinHandle;

use parking_lot::Mutex;

/// How many requests wait at once; group commit lets all of them share one sync.
const WORKERS: usize = 16;

/// How many may queue behind those.
const QUEUE: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs on threads of its own; dropping it waits for all that were accepted.
pub(super) struct SlowPool {
    queue: Option<SyncSender<Job>>,
    workers: Vec<JoinHandle<()>>,
}

impl SlowPool {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub(super) fn start() -> io::Result<Self> {
        let (queue, jobs) = mpsc::sync_channel::<Job>(QUEUE);
        let jobs = Arc::new(Mutex::new(jobs));
        let workers = (0..WORKERS)
            .map(|number| {
                let jobs = Arc::clone(&jobs);
                std::thread::Builder::new()
                    .name(format!("slow-{number}"))
                    .spawn(move || work_off(&jobs))
            })
            .collect::<io::Result<_>>()?;
        Ok(Self {
            queue: Some(queue),
            workers,
        })
    }

    /// Runs `job` on a worker; when the queue is full, right here, which slows the source down.
    ///
    /// A job must not unwind: requests catch their panics themselves.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let queue = self.queue.as_ref().expect("taken by drop alone");
        match queue.try_send(Box::new(job)) {
            Ok(()) => {}
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => job(),
        }
    }

    /// Runs `job`, which waits for requests that are yet to be served, on a worker; when the queue is
    /// full, on a thread of its own. Callers have one job each under way, so there is an end to them.
    pub(super) fn run_apart(&self, job: impl FnOnce() + Send + 'static) {
        let queue = self.queue.as_ref().expect("taken by drop alone");
        let Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) =
            queue.try_send(Box::new(job))
        else {
            return;
        };
        let started = std::thread::Builder::new()
            .name("slow-apart".to_owned())
            .spawn(job);
        if let Err(error) = started {
            log::error!("a request is answered with EIO, since no thread can be started: {error}");
        }
    }
}

impl Drop for SlowPool {
    fn drop(&mut self) {
        self.queue = None;
        for worker in self.workers.drain(..) {
            if worker.join().is_err() {
                log::error!("a worker for slow requests panicked");
            }
        }
    }
}

fn work_off(jobs: &Mutex<Receiver<Job>>) {
    loop {
        // Bound first: the guard must be gone before the job runs.
        let next = jobs.lock().recv();
        match next {
            Ok(job) => job(),
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
}
