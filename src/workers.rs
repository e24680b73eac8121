//! The threads that the whole process shares for computing: as many as asked for, never more.

use crate::codec::Crew;

/// A bounded pool of threads. Work that is handed in while all are busy waits its turn, except for
/// the share that the calling thread does itself.
#[derive(Debug)]
pub struct Workers {
    pool: rayon::ThreadPool,
    width: usize,
}

impl Workers {
    /// Starts the threads: one fewer than `width`, since the caller of [`Crew::run`] works too.
    ///
    /// # Errors
    ///
    /// If the system gives no more threads.
    ///
    /// # Panics
    ///
    /// If `width` is 0.
    pub fn new(width: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        assert!(width > 0, "a caller is always one thread");
        let builder = rayon::ThreadPoolBuilder::new().num_threads((width - 1).max(1));
        let pool = builder
            .thread_name(|index| format!("worker-{index}"))
            .build()?;
        Ok(Self { pool, width })
    }
}

impl Crew for Workers {
    fn width(&self) -> usize {
        self.width
    }

    fn run(&self, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
        if self.width == 1 || pieces <= 1 {
            (0..pieces).for_each(work);
            return;
        }
        self.pool.in_place_scope(|scope| {
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
        for width in 1..=5 {
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
