//! The threads that the whole process shares for computing: as many as asked for, never more. And
//! [`Threads`] of all other kinds.

use std::sync::Arc;

use crate::codec::WorkerPool;

mod by_thread;
mod threads;

pub use by_thread::ByThread;
pub use threads::{Threads, use_every_cpu};

/// The reason why there are no workers: the system gives no more threads.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot start {width} threads for computing")]
pub struct WorkersError {
    width: usize,
    source: Arc<rayon::ThreadPoolBuildError>,
}

/// A bounded pool of threads. Work that is handed in while all are busy waits its turn, except for
/// the share that the calling thread does itself.
#[derive(Debug)]
pub struct Workers {
    /// None where the caller is the only one to work.
    pool: Option<rayon::ThreadPool>,
    width: usize,
}

impl Workers {
    /// Starts the threads: one fewer than `width`, since the caller of [`WorkerPool::run`] works too. A width
    /// of 0 counts as 1.
    ///
    /// # Errors
    ///
    /// [`WorkersError`] if the system gives no more threads.
    pub fn new(width: usize) -> Result<Self, WorkersError> {
        if width <= 1 {
            return Ok(Self {
                pool: None,
                width: 1,
            });
        }
        let builder = rayon::ThreadPoolBuilder::new().num_threads(width - 1);
        let pool = builder
            .thread_name(|index| format!("worker-{index}"))
            .build();
        let pool = pool.map_err(|source| WorkersError {
            width,
            source: Arc::new(source),
        })?;
        Ok(Self {
            pool: Some(pool),
            width,
        })
    }
}

impl WorkerPool for Workers {
    fn width(&self) -> usize {
        self.width
    }

    fn run(&self, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
        let Some(pool) = self.pool.as_ref().filter(|_| pieces > 1) else {
            (0..pieces).for_each(work);
            return;
        };
        pool.in_place_scope(|scope| {
            for piece in 1..pieces {
                scope.spawn(move |_| work(piece));
            }
            work(0);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_piece_runs_exactly_once_for_every_width_and_count() {
        for width in 0..=5 {
            let workers = Workers::new(width).expect("threads");
            for pieces in 0..20 {
                let calls: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
                workers.run(pieces, &|piece| {
                    calls[piece].fetch_add(1, Ordering::Relaxed);
                });
                let counts = calls.iter().map(|calls| calls.load(Ordering::Relaxed));
                assert!(
                    counts.clone().all(|count| count == 1),
                    "{width}: {counts:?}"
                );
            }
        }
    }

    #[test]
    fn callers_on_many_threads_share_one_pool() {
        let workers = Workers::new(3).expect("threads");
        let total = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    workers.run(10, &|piece| {
                        total.fetch_add(piece, Ordering::Relaxed);
                    });
                });
            }
        });
        assert_eq!(total.load(Ordering::Relaxed), 8 * 45);
    }
}
