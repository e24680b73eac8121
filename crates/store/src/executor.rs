//! Many operations on many stores at once, each bounded in time.
//!
//! [`Executor::run`] starts all requests of a batch together and returns when each has answered or
//! its store has been silent for the timeout. A store that answers something is given the whole
//! timeout again: being slow under a long queue is not being hung. Where the kernel has `io_uring`,
//! reads, writes and syncs of open files go to it from the calling thread itself, with no other
//! thread woken. Everything else runs on worker threads, a few for each store, so that one hung
//! store delays no other.
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

use bytes::Bytes;

use super::{Buffer, Store, StoreError, StoreRef};
use hedge::HedgeDelay;
use job::Job;
use pools::WorkerPools;
use rings::Rings;
use watch::Leniency;

mod hedge;
mod job;
mod pools;
mod ring;
mod rings;
mod watch;

/// The number of operations that may hang on one store before it gets no more.
pub const MAX_ABANDONED: usize = 8;

/// One operation on a file of a store.
#[derive(Debug)]
pub enum Op {
    /// Fills `buf`, which comes back as the answer.
    Read {
        /// The file.
        name: Arc<str>,
        /// Offset in the file, in bytes.
        offset: u64,
        /// Decides how much is read.
        buf: Buffer,
    },
    /// [`Store::write_at`].
    Write {
        /// The file.
        name: Arc<str>,
        /// Offset in the file, in bytes.
        offset: u64,
        /// The bytes to write.
        data: Bytes,
    },
    /// [`Store::sync`].
    Sync {
        /// The file.
        name: Arc<str>,
    },
    /// [`Store::create`].
    Create {
        /// The file.
        name: Arc<str>,
        /// Its length in bytes.
        len: u64,
    },
    /// [`Store::remove`].
    Remove {
        /// The file.
        name: Arc<str>,
    },
    /// [`Store::punch`].
    Punch {
        /// The file.
        name: Arc<str>,
        /// Offset in the file, in bytes.
        offset: u64,
        /// The number of bytes.
        len: u64,
    },
    /// [`Store::probe`].
    Probe,
}

impl Op {
    /// Returns the file and a verb, for messages.
    fn describe(&self) -> (&str, &'static str) {
        match self {
            Self::Read { name, .. } => (name, "read"),
            Self::Write { name, .. } => (name, "write"),
            Self::Sync { name } => (name, "sync"),
            Self::Create { name, .. } => (name, "create"),
            Self::Remove { name } => (name, "remove"),
            Self::Punch { name, .. } => (name, "punch"),
            Self::Probe => ("directory", "find"),
        }
    }
}

/// One operation on one store.
#[derive(Debug)]
pub struct Request {
    /// The store that it goes to.
    pub store: StoreRef,
    /// The operation.
    pub op: Op,
}

impl Request {
    /// Reads into `buf`, all of it.
    #[must_use]
    pub fn read(store: &StoreRef, name: impl Into<Arc<str>>, offset: u64, buf: Buffer) -> Self {
        Self {
            store: Arc::clone(store),
            op: Op::Read {
                name: name.into(),
                offset,
                buf,
            },
        }
    }

    /// Writes all of `data`.
    #[must_use]
    pub fn write(store: &StoreRef, name: impl Into<Arc<str>>, offset: u64, data: Bytes) -> Self {
        Self {
            store: Arc::clone(store),
            op: Op::Write {
                name: name.into(),
                offset,
                data,
            },
        }
    }

    /// Makes a file durable.
    #[must_use]
    pub fn sync(store: &StoreRef, name: impl Into<Arc<str>>) -> Self {
        Self {
            store: Arc::clone(store),
            op: Op::Sync { name: name.into() },
        }
    }

    /// Makes a file of `len` bytes.
    #[must_use]
    pub fn create(store: &StoreRef, name: impl Into<Arc<str>>, len: u64) -> Self {
        Self {
            store: Arc::clone(store),
            op: Op::Create {
                name: name.into(),
                len,
            },
        }
    }

    /// Removes a file.
    #[must_use]
    pub fn remove(store: &StoreRef, name: impl Into<Arc<str>>) -> Self {
        Self {
            store: Arc::clone(store),
            op: Op::Remove { name: name.into() },
        }
    }

    /// Gives back the space of a range.
    #[must_use]
    pub fn punch(store: &StoreRef, name: impl Into<Arc<str>>, offset: u64, len: u64) -> Self {
        Self {
            store: Arc::clone(store),
            op: Op::Punch {
                name: name.into(),
                offset,
                len,
            },
        }
    }

    /// Checks that the directory is still the one that was opened.
    #[must_use]
    pub fn probe(store: &StoreRef) -> Self {
        Self {
            store: Arc::clone(store),
            op: Op::Probe,
        }
    }

    /// The error for an operation that did not answer.
    fn hung(store: &StoreRef, op: &Op, timeout: Duration) -> StoreError {
        let (name, action) = op.describe();
        StoreError::hung(store.label(), action, name, timeout)
    }

    /// The error for an operation whose caller does not wait any more.
    fn slow(store: &StoreRef, op: &Op) -> StoreError {
        let (name, action) = op.describe();
        StoreError::slow(store.label(), action, name)
    }
}

/// The result of one request: the filled buffer of a read, nothing for any other success.
pub type Outcome = Result<Option<Buffer>, StoreError>;

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
                        log::info!("no io_uring here ({error}), using threads");
                        threads()
                    }
                    Err(error) => {
                        log::warn!(
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
    /// time comes to [`Hung`](super::StoreErrorKind::Hung) and may still take effect later.
    #[must_use]
    pub fn run(&self, requests: Vec<Request>) -> Vec<Outcome> {
        self.run_sparing(requests, usize::MAX)
    }

    /// Runs all requests like [`Executor::run`], and gives up no more than `spare` silent stores. If
    /// more are silent at once, it is rather the machine that stalls: they are waited for twelve
    /// times as long.
    #[must_use]
    pub fn run_sparing(&self, requests: Vec<Request>, spare: usize) -> Vec<Outcome> {
        self.run_until(requests, spare, None)
    }

    fn run_until(
        &self,
        requests: Vec<Request>,
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
            .map(|(index, request)| Job::new(index, request));
        match &self.backend {
            Backend::Inline => jobs.for_each(|job| {
                let index = job.index;
                outcomes[index] = Some(job.run());
            }),
            Backend::Threads(pools) => pools.run(jobs.collect(), leniency, &mut outcomes),
            Backend::Uring { rings, pools } => {
                run_uring(rings, pools, jobs, leniency, &mut outcomes);
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
    /// Those of the operation, and [`Hung`](super::StoreErrorKind::Hung).
    #[expect(clippy::missing_panics_doc, reason = "one outcome for one request")]
    pub fn run_one(&self, request: Request) -> Outcome {
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
    /// Those of `work`, and [`Hung`](super::StoreErrorKind::Hung) with `action` in its text.
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
}

/// Gives the kernel what it can do itself, and the rest to the worker threads.
fn run_uring(
    rings: &Rings,
    pools: &WorkerPools,
    jobs: impl Iterator<Item = Job>,
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
    let mut batch = pools.start(others, leniency, outcomes);
    let unfinished = rings.run(direct, leniency, outcomes);
    pools.finish(&mut batch, outcomes);
    if !unfinished.is_empty() {
        pools.run(unfinished, leniency, outcomes);
    }
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
