//! Many operations on many stores at once, each bounded in time.
//!
//! [`Executor::run`] starts all requests of a batch together and returns when each has answered or
//! its store has been silent for the timeout. A store that answers something is given the whole
//! timeout again: being slow under a long queue is not being hung. Where the kernel has `io_uring`,
//! reads, writes and syncs of open files go to it from the calling thread itself, with no other
//! thread woken. Everything else runs on worker threads, a few for each store, so that one hung
//! store delays no other. Small operations on files in memory ([`Store::is_in_memory`]) run on the calling thread.
//!
//! [`Executor::run_hedged`] is for data that other stores have as well. It goes on without a store that does not
//! answer within the hedge delay, and asks that store for nothing more until it has answered.
//!
//! # Invariants
//!
//! - Memory and descriptors of an operation that was given up live until it answers after all.
//! - A store on which [`MAX_ABANDONED`] operations hang gets no more of them: further requests
//!   fail at once, so a dead mount costs a bounded number of threads and buffers.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Store, StoreError, StoreErrorKind, StoreRef};
use hedge::HedgeDelay;
use job::RequestInFlight;
use pools::WorkerPools;
use rings::Rings;
use watch::Leniency;

mod hedge;
mod job;
mod pools;
mod request;
mod ring;
mod rings;
mod watch;

pub use request::{Op, Outcome, StoreRequest};
pub use watch::MAX_ABANDONED;

/// The method by which an [`Executor`] runs operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutorKind {
    /// The kernel's `io_uring` if it lets us, else worker threads.
    Auto,
    /// `io_uring`; falls back to worker threads, with a warning, where the kernel refuses it.
    Uring,
    /// Worker threads.
    Threads,
    /// The calling thread, one request after the other and without a timeout: the same order of
    /// calls in every run, for tests.
    Inline,
}

/// The most bytes of a batch that the calling thread copies to or from files in memory by itself. That takes about as
/// long as it takes to wake another thread and be woken by it.
const COPIED_HERE: usize = 512 << 10;

/// Runs batches of operations; see the [module](self).
pub struct Executor {
    timeout: Duration,
    hedge_delay: Arc<HedgeDelay>,
    backend: Backend,
}

enum Backend {
    Inline,
    Threads(WorkerPools),
    Uring { rings: Rings, pools: WorkerPools },
}

impl Executor {
    /// Makes an executor whose stores are held to be hung when silent for `timeout`.
    #[must_use]
    pub fn new(kind: ExecutorKind, timeout: Duration) -> Self {
        let hedge_delay = Arc::new(HedgeDelay::new(timeout));
        let pools = || WorkerPools::new(timeout, Arc::clone(&hedge_delay));
        let threads = || Backend::Threads(pools());
        let backend = match kind {
            ExecutorKind::Inline => Backend::Inline,
            ExecutorKind::Threads => threads(),
            ExecutorKind::Auto | ExecutorKind::Uring => {
                match Rings::new(timeout, Arc::clone(&hedge_delay)) {
                    Ok(rings) => Backend::Uring {
                        rings,
                        pools: pools(),
                    },
                    Err(error) if kind == ExecutorKind::Auto => {
                        tracing::info!("no io_uring here ({error}), using threads");
                        threads()
                    }
                    Err(error) => {
                        tracing::warn!(
                            "io_uring was asked for but is refused ({error}), using threads"
                        );
                        threads()
                    }
                }
            }
        };
        Self {
            timeout,
            hedge_delay,
            backend,
        }
    }

    /// Returns how operations are run: never `Auto`.
    #[must_use]
    pub fn kind(&self) -> ExecutorKind {
        match self.backend {
            Backend::Inline => ExecutorKind::Inline,
            Backend::Threads(_) => ExecutorKind::Threads,
            Backend::Uring { .. } => ExecutorKind::Uring,
        }
    }

    /// Returns how long a store may be silent.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Runs all requests at once and returns what each came to, in their order.
    ///
    /// Requests of one batch may run in any order among themselves. One that does not answer in
    /// time comes to [`Hung`](crate::StoreErrorKind::Hung) and may still take effect later.
    #[must_use]
    pub fn run(&self, requests: Vec<StoreRequest>) -> Vec<Outcome> {
        self.run_sparing(requests, usize::MAX)
    }

    /// Runs all requests like [`Executor::run`], and gives up no more than `spare` silent stores. If
    /// more are silent at once, it is rather the machine that stalls: they are waited for twelve
    /// times as long.
    #[must_use]
    pub fn run_sparing(&self, requests: Vec<StoreRequest>, spare: usize) -> Vec<Outcome> {
        self.run_until(requests, spare, None)
    }

    fn run_until(
        &self,
        requests: Vec<StoreRequest>,
        spare: usize,
        deadline: Option<Instant>,
    ) -> Vec<Outcome> {
        let leniency = Leniency {
            timeout: self.timeout,
            spare,
            deadline,
        };
        let mut outcomes: Vec<Option<Outcome>> = requests.iter().map(|_| None).collect();
        let jobs = requests
            .into_iter()
            .enumerate()
            .map(|(index, request)| RequestInFlight::new(index, request));
        match &self.backend {
            Backend::Inline => run_here(jobs, &mut outcomes),
            Backend::Threads(pools) => {
                let others = run_in_memory(jobs.collect(), &mut outcomes);
                pools.run(others, leniency, &mut outcomes);
            }
            Backend::Uring { rings, pools } => {
                let others = run_in_memory(jobs.collect(), &mut outcomes);
                run_uring(rings, pools, others, leniency, &mut outcomes);
            }
        }
        let answered = outcomes.into_iter();
        answered
            .map(|outcome| outcome.expect("every job of a batch comes to something"))
            .collect()
    }

    /// Runs one request.
    ///
    /// # Errors
    ///
    /// Those of the operation, and [`Hung`](crate::StoreErrorKind::Hung).
    #[expect(clippy::missing_panics_doc, reason = "one outcome for one request")]
    pub fn run_one(&self, request: StoreRequest) -> Outcome {
        self.run(vec![request])
            .pop()
            .expect("one outcome for one request")
    }

    /// Says whether an operation that was given up has not answered yet: it may still take effect, and a
    /// process cannot end before its operations have.
    #[must_use]
    pub fn is_hanging(&self, store: &StoreRef) -> bool {
        match &self.backend {
            Backend::Inline => false,
            Backend::Threads(pools) => pools.is_hanging(store),
            Backend::Uring { rings, pools } => rings.is_hanging(store) || pools.is_hanging(store),
        }
    }

    /// Runs any work on a store, bounded in time like a request: listing, measuring, renaming.
    /// Work that hangs is left to itself. A store that gets other work done meanwhile is waited for
    /// twelve times as long.
    ///
    /// # Errors
    ///
    /// Those of `work`, and [`Hung`](crate::StoreErrorKind::Hung) with `action` in its text.
    pub fn call<T: Send + 'static>(
        &self,
        store: &StoreRef,
        action: &'static str,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.call_sparing(store, action, usize::MAX, work)
    }

    /// Runs any work like [`Executor::call`]; a store that cannot be spared, with `spare` 0, is waited
    /// for as long as in [`Executor::run_sparing`].
    ///
    /// # Errors
    ///
    /// As [`Executor::call`].
    pub fn call_sparing<T: Send + 'static>(
        &self,
        store: &StoreRef,
        action: &'static str,
        spare: usize,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        match &self.backend {
            Backend::Inline => work(&**store),
            Backend::Threads(pools) | Backend::Uring { pools, .. } => {
                pools.call(store, action, spare, work)
            }
        }
    }

    /// Runs all requests, and waits for the hedge delay: those that have not answered then come to
    /// [`Slow`](crate::StoreErrorKind::Slow), and their stores are [slow](Executor::is_slow) until
    /// they have answered. They are to change nothing, since they may take effect later.
    #[must_use]
    pub fn run_hedged(&self, requests: Vec<StoreRequest>, spare: usize) -> Vec<Outcome> {
        let deadline = Instant::now() + self.hedge_delay.get();
        let outcomes = self.run_until(requests, spare, Some(deadline));
        let is_slow = |outcome: &Outcome| {
            let error = outcome.as_ref().err();
            error.is_some_and(|error| error.kind() == StoreErrorKind::Slow)
        };
        if !outcomes.iter().any(is_slow) {
            self.hedge_delay.note_timely();
        }
        outcomes
    }

    /// Runs any work like [`Executor::call`], and waits for the hedge delay.
    ///
    /// # Errors
    ///
    /// Those of `work`, and [`Slow`](crate::StoreErrorKind::Slow).
    pub fn call_hedged<T: Send + 'static>(
        &self,
        store: &StoreRef,
        action: &'static str,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        match &self.backend {
            Backend::Inline => work(&**store),
            Backend::Threads(pools) | Backend::Uring { pools, .. } => {
                pools.call_hedged(store, action, self.hedge_delay.get(), work)
            }
        }
    }

    /// Says whether an operation without a waiting caller has not answered yet.
    #[must_use]
    pub fn is_slow(&self, store: &StoreRef) -> bool {
        self.has_slow() && self.left_since(store).is_some()
    }

    /// Returns, for each store, the error with which it must be given up because it has been slow for too
    /// long. If that were more than `spare`, they are tolerated as in [`Executor::run_sparing`].
    #[must_use]
    pub fn overdue(&self, stores: &[StoreRef], spare: usize) -> Vec<Option<StoreError>> {
        let leniency = Leniency {
            timeout: self.timeout,
            spare,
            deadline: None,
        };
        let silence = |store| self.left_since(store).map(|since| since.elapsed());
        let silent: Vec<_> = stores.iter().map(silence).collect();
        let is_over = |limit: Duration| {
            move |silence: &Option<Duration>| silence.is_some_and(|silence| silence >= limit)
        };
        let limit = if silent.iter().filter(|s| is_over(self.timeout)(s)).count() > spare {
            leniency.stall_limit()
        } else {
            self.timeout
        };
        let hung = |store: &StoreRef| StoreError::hung(store.label(), "read", "directory", limit);
        let judged = stores.iter().zip(&silent);
        judged
            .map(|(store, silence)| is_over(limit)(silence).then(|| hung(store)))
            .collect()
    }

    /// Says whether any store may be slow, at the cost of a look at a number or two.
    #[must_use]
    pub fn has_slow(&self) -> bool {
        match &self.backend {
            Backend::Inline => false,
            Backend::Threads(pools) => pools.has_left(),
            Backend::Uring { rings, pools } => rings.has_left() || pools.has_left(),
        }
    }

    fn left_since(&self, store: &StoreRef) -> Option<Instant> {
        match &self.backend {
            Backend::Inline => None,
            Backend::Threads(pools) => pools.left_since(store),
            Backend::Uring { rings, pools } => {
                let both = rings.left_since(store).into_iter();
                both.chain(pools.left_since(store)).min()
            }
        }
    }
}

/// Runs jobs on this thread, one after the other.
fn run_here(jobs: impl IntoIterator<Item = RequestInFlight>, outcomes: &mut [Option<Outcome>]) {
    for job in jobs {
        let index = job.index;
        outcomes[index] = Some(job.run());
    }
}

/// Runs the jobs on files in memory on this thread, if they copy few bytes: waking other threads would take longer.
/// Returns the jobs that are left.
fn run_in_memory(
    jobs: Vec<RequestInFlight>,
    outcomes: &mut [Option<Outcome>],
) -> Vec<RequestInFlight> {
    let (in_memory, mut others): (Vec<_>, Vec<_>) =
        jobs.into_iter().partition(RequestInFlight::is_in_memory);
    let copied: usize = in_memory.iter().map(RequestInFlight::copied_bytes).sum();
    if copied <= COPIED_HERE {
        run_here(in_memory, outcomes);
    } else {
        others.extend(in_memory);
    }
    others
}

/// Gives the kernel what it can do itself, and the rest to the worker threads.
fn run_uring(
    rings: &Rings,
    pools: &WorkerPools,
    jobs: Vec<RequestInFlight>,
    leniency: Leniency,
    outcomes: &mut [Option<Outcome>],
) {
    let mut others = Vec::new();
    let mut direct = Vec::new();
    for job in jobs {
        match job.raw() {
            Some(file) => direct.push((job, file)),
            None => others.push(job),
        }
    }
    if direct.is_empty() {
        return pools.run(others, leniency, outcomes);
    }
    // The threads start first, so that both work at the same time.
    let batch = (!others.is_empty()).then(|| pools.start(others, leniency, outcomes));
    let unfinished = rings.run(direct, leniency, outcomes);
    if let Some(mut batch) = batch {
        pools.finish(&mut batch, outcomes);
    }
    pools.run(unfinished, leniency, outcomes);
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("kind", &self.kind())
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
