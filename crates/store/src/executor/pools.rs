//! Worker threads, a pool of them for each store.
//!
//! A pool has at most [`WORKERS`] threads that work, and as many again as hang: a hung worker is
//! replaced until [`MAX_ABANDONED`] hang. Idle workers end after a while.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::thread::{sched_getaffinity, sched_setaffinity};

use super::hedge::HedgeDelay;
use super::job::RequestInFlight;
use super::request::Outcome;
use super::watch::{Leniency, MAX_ABANDONED, Watch, key};
use crate::{Store, StoreError, StoreRef};

/// Threads of a pool that may work at the same time.
const WORKERS: usize = 8;

/// The time for which an idle worker waits for more work before it ends.
const IDLE: Duration = Duration::from_secs(20);

/// The pools of all stores that an executor has met.
#[derive(Debug)]
pub(super) struct WorkerPools {
    timeout: Duration,
    hedge_delay: Arc<HedgeDelay>,
    by_store: Mutex<HashMap<usize, Arc<WorkerPool>>>,
    /// The number of tasks without a waiting caller that are not overdue; readable without a lock.
    left: Arc<AtomicUsize>,
}

/// The queue and the workers of one store.
#[derive(Debug)]
struct WorkerPool {
    /// Keeps the address of the store, which is its key, from being used again.
    store: Weak<dyn Store>,
    state: Mutex<PoolState>,
    wake: Condvar,
    /// See [`WorkerPools`].
    left: Arc<AtomicUsize>,
    hedge_delay: Arc<HedgeDelay>,
}

#[derive(Default)]
struct PoolState {
    queue: VecDeque<Task>,
    next_task: u64,
    /// The numbers of the tasks that workers are at.
    running: Vec<u64>,
    /// Those of them that were given up.
    abandoned: Vec<u64>,
    /// Tasks without a waiting caller that are not overdue, and the time since which no caller waits.
    left: Vec<(u64, Instant)>,
    workers: usize,
    idle: usize,
    /// The time when a task last ended.
    heard: Option<Instant>,
    /// Set when the executor is dropped: workers end once the queue is empty.
    closed: bool,
}

impl std::fmt::Debug for PoolState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolState")
            .field("queued", &self.queue.len())
            .field("running", &self.running.len())
            .field("abandoned", &self.abandoned.len())
            .field("workers", &self.workers)
            .finish_non_exhaustive()
    }
}

/// Work for one worker; the closure sends the result to the waiting caller.
struct Task {
    number: u64,
    work: Box<dyn FnOnce() + Send>,
}

/// A batch whose jobs are in their pools.
pub(super) struct Started {
    watch: Watch,
    waiting: Vec<Waiting>,
    answers: Receiver<FinishedJob>,
    /// Keeps the channel open, so that waiting on it waits even if a worker panicked.
    _sender: Sender<FinishedJob>,
}

/// Work that is in a pool.
struct Called<T> {
    pool: Arc<WorkerPool>,
    task: u64,
    answer: Receiver<Result<T, StoreError>>,
}

struct Waiting {
    index: usize,
    key: usize,
    pool: Arc<WorkerPool>,
    task: u64,
    hung: StoreError,
    slow: StoreError,
}

struct FinishedJob {
    index: usize,
    when: Instant,
    outcome: Outcome,
}

impl WorkerPools {
    pub(super) fn new(timeout: Duration, hedge_delay: Arc<HedgeDelay>) -> Self {
        Self {
            timeout,
            hedge_delay,
            by_store: Mutex::default(),
            left: Arc::default(),
        }
    }

    /// Runs jobs and waits for them.
    pub(super) fn run(
        &self,
        jobs: Vec<RequestInFlight>,
        leniency: Leniency,
        outcomes: &mut [Option<Outcome>],
    ) {
        if jobs.is_empty() {
            return;
        }
        let mut batch = self.start(jobs, leniency, outcomes);
        self.finish(&mut batch, outcomes);
    }

    /// Puts jobs into their pools; those that no pool takes come to their error here.
    pub(super) fn start(
        &self,
        jobs: Vec<RequestInFlight>,
        leniency: Leniency,
        outcomes: &mut [Option<Outcome>],
    ) -> Started {
        let (sender, answers) = mpsc::channel();
        let mut batch = Started {
            watch: Watch::new(leniency),
            waiting: Vec::new(),
            answers,
            _sender: sender.clone(),
        };
        for job in jobs {
            let (index, key, pool) = (job.index, key(&job.store), self.pool(&job.store));
            let (hung, slow) = (job.hung(self.timeout), job.slow());
            match pool.submit(answering(job, sender.clone())) {
                Ok(task) => {
                    batch.watch.begin(key);
                    batch.waiting.push(Waiting {
                        index,
                        key,
                        pool,
                        task,
                        hung,
                        slow,
                    });
                }
                Err(Refused::Hung) => outcomes[index] = Some(Err(hung)),
                Err(Refused::NoThread(error)) => {
                    outcomes[index] = Some(Err(StoreError::from_io(
                        hung.label(),
                        "start a thread for",
                        hung.name(),
                        error,
                    )));
                }
            }
        }
        batch
    }

    /// Waits until each job of the batch answered, or its store is overdue, or the batch's deadline has passed.
    pub(super) fn finish(&self, batch: &mut Started, outcomes: &mut [Option<Outcome>]) {
        while !batch.waiting.is_empty() {
            let patience = batch.watch.patience(Instant::now()).unwrap_or(self.timeout);
            if let Ok(answer) = batch.answers.recv_timeout(patience) {
                batch.take(answer, outcomes);
                continue;
            }
            // A store is judged only after everything that it said was heard.
            while let Ok(answer) = batch.answers.try_recv() {
                batch.take(answer, outcomes);
            }
            if batch.watch.is_over(Instant::now()) {
                batch.leave(outcomes);
            }
            for key in batch.watch.overdue(Instant::now()) {
                batch.abandon(key, outcomes);
            }
        }
    }

    /// Runs any work in the pool of `store`.
    pub(super) fn call<T: Send + 'static>(
        &self,
        store: &StoreRef,
        action: &'static str,
        spare: usize,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let hung = || StoreError::hung(store.label(), action, "directory", self.timeout);
        let Called { pool, task, answer } = self.begin(store, action, work)?;
        let leniency = Leniency {
            timeout: self.timeout,
            spare,
            deadline: None,
        };
        let patience = if spare == 0 {
            leniency.stall_limit()
        } else {
            self.timeout
        };
        let end = Instant::now() + leniency.stall_limit();
        let mut heard = Instant::now();
        loop {
            let until = (heard + patience).min(end);
            let left = until.saturating_duration_since(Instant::now());
            if let Ok(result) = answer.recv_timeout(left) {
                return result;
            }
            // While the pool gets something else done, the work waits for its turn or is long.
            match pool.state.lock().heard {
                Some(last) if last > heard && Instant::now() < end => heard = last,
                _ => break,
            }
        }
        pool.abandon(task);
        Err(hung())
    }

    /// Runs any work in the pool of `store`, and waits for it no longer than for `patience`.
    pub(super) fn call_hedged<T: Send + 'static>(
        &self,
        store: &StoreRef,
        action: &'static str,
        patience: Duration,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let Called { pool, task, answer } = self.begin(store, action, work)?;
        answer.recv_timeout(patience).unwrap_or_else(|_| {
            pool.leave(task);
            Err(StoreError::slow(store.label(), action, "directory"))
        })
    }

    fn begin<T: Send + 'static>(
        &self,
        store: &StoreRef,
        action: &'static str,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<Called<T>, StoreError> {
        let pool = self.pool(store);
        let (sender, answer) = mpsc::channel();
        let held = Arc::clone(store);
        let submitted = pool.submit(Box::new(move || {
            // The receiver is gone if this took too long.
            let _ = sender.send(work(&*held));
        }));
        match submitted {
            Ok(task) => Ok(Called { pool, task, answer }),
            Err(Refused::Hung) => {
                let timeout = self.timeout;
                Err(StoreError::hung(
                    store.label(),
                    action,
                    "directory",
                    timeout,
                ))
            }
            Err(Refused::NoThread(error)) => Err(StoreError::from_io(
                store.label(),
                "start a thread for",
                action,
                error,
            )),
        }
    }

    /// Says whether a worker is still at an operation without a waiting caller.
    pub(super) fn is_hanging(&self, store: &StoreRef) -> bool {
        let pool = self.pool(store);
        let state = pool.state.lock();
        !state.abandoned.is_empty() || !state.left.is_empty()
    }

    /// Says whether there is an operation without a waiting caller on any store.
    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    /// Returns since when a store owes the answer to an operation without a waiting caller.
    pub(super) fn left_since(&self, store: &StoreRef) -> Option<Instant> {
        let pool = self.pool(store);
        let state = pool.state.lock();
        state.left.iter().map(|(_, since)| *since).min()
    }

    /// Returns the pool of a store, and forgets those of stores that are no more.
    fn pool(&self, store: &StoreRef) -> Arc<WorkerPool> {
        let mut pools = self.by_store.lock();
        if let Some(pool) = pools.get(&key(store)) {
            return Arc::clone(pool);
        }
        pools.retain(|_, pool| pool.store.strong_count() > 0);
        let pool = Arc::new(WorkerPool {
            store: Arc::downgrade(store),
            state: Mutex::default(),
            wake: Condvar::new(),
            left: Arc::clone(&self.left),
            hedge_delay: Arc::clone(&self.hedge_delay),
        });
        pools.insert(key(store), Arc::clone(&pool));
        pool
    }
}

impl Drop for WorkerPools {
    fn drop(&mut self) {
        for pool in self.by_store.get_mut().values() {
            pool.state.lock().closed = true;
            pool.wake.notify_all();
        }
    }
}

/// Wraps a job so that its outcome reaches the batch, if that still waits.
fn answering(job: RequestInFlight, sender: Sender<FinishedJob>) -> Box<dyn FnOnce() + Send> {
    Box::new(move || {
        let index = job.index;
        let outcome = job.run();
        // A batch that gave the job up is gone; the outcome frees its buffer here.
        let _ = sender.send(FinishedJob {
            index,
            when: Instant::now(),
            outcome,
        });
    })
}

impl Started {
    fn take(&mut self, answer: FinishedJob, outcomes: &mut [Option<Outcome>]) {
        // A job given up can answer at the last instant: its outcome is decided already.
        if let Some(at) = self
            .waiting
            .iter()
            .position(|waiting| waiting.index == answer.index)
        {
            let waiting = self.waiting.swap_remove(at);
            self.watch.answered(waiting.key, answer.when);
            outcomes[answer.index] = Some(answer.outcome);
        }
    }

    /// Goes on without what has not answered.
    fn leave(&mut self, outcomes: &mut [Option<Outcome>]) {
        for waiting in self.waiting.drain(..) {
            waiting.pool.leave(waiting.task);
            outcomes[waiting.index] = Some(Err(waiting.slow));
        }
    }

    fn abandon(&mut self, key: usize, outcomes: &mut [Option<Outcome>]) {
        let (overdue, waiting): (Vec<_>, Vec<_>) = self
            .waiting
            .drain(..)
            .partition(|waiting| waiting.key == key);
        self.waiting = waiting;
        for Waiting {
            index,
            pool,
            task,
            hung,
            ..
        } in overdue
        {
            pool.abandon(task);
            outcomes[index] = Some(Err(hung));
        }
    }
}

/// The reason why a pool takes no task.
enum Refused {
    /// Too many operations hang already.
    Hung,
    /// There is no worker, and the system gives no thread for one.
    NoThread(std::io::Error),
}

impl WorkerPool {
    /// Queues a task, with a thread for it if none is free, and returns its number.
    fn submit(self: &Arc<Self>, work: Box<dyn FnOnce() + Send>) -> Result<u64, Refused> {
        let mut state = self.state.lock();
        if state.abandoned.len() >= MAX_ABANDONED {
            return Err(Refused::Hung);
        }
        let working = state.workers - state.abandoned.len();
        if state.idle <= state.queue.len() && working < WORKERS {
            match self.start_worker() {
                Ok(()) => state.workers += 1,
                Err(error) if working == 0 => return Err(Refused::NoThread(error)),
                Err(error) => tracing::debug!("no further thread for a store: {error}"),
            }
        }
        let number = state.next_task;
        state.next_task += 1;
        state.queue.push_back(Task { number, work });
        drop(state);
        self.wake.notify_one();
        Ok(number)
    }

    /// Gives a task up: takes it from the queue, or writes its worker off until it answers.
    fn abandon(&self, number: u64) {
        self.withdraw(number, |state| state.abandoned.push(number));
    }

    /// Waits for a task no longer: takes it from the queue, or notes that its worker is still at it.
    fn leave(&self, number: u64) {
        self.withdraw(number, |state| {
            state.left.push((number, Instant::now()));
            self.left.fetch_add(1, Ordering::Relaxed);
        });
    }

    /// Takes a task from the queue, or notes something of one that a worker is at.
    fn withdraw(&self, number: u64, note: impl FnOnce(&mut PoolState)) {
        let mut state = self.state.lock();
        if let Some(at) = state.queue.iter().position(|task| task.number == number) {
            let task = state.queue.remove(at);
            drop(state);
            drop(task);
        } else if state.running.contains(&number) {
            note(&mut state);
        }
    }

    fn start_worker(self: &Arc<Self>) -> std::io::Result<()> {
        let pool = Arc::clone(self);
        thread::Builder::new()
            .name("store".into())
            .spawn(move || {
                use_every_cpu();
                pool.work();
            })
            .map(drop)
    }

    /// The life of a worker.
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(task) = state.queue.pop_front() {
                state.running.push(task.number);
                drop(state);
                (task.work)();
                state = self.state.lock();
                state.heard = Some(Instant::now());
                state.running.retain(|&number| number != task.number);
                state.abandoned.retain(|&number| number != task.number);
                if let Some(at) = state.left.iter().position(|(left, _)| *left == task.number) {
                    let (_, since) = state.left.swap_remove(at);
                    self.hedge_delay.note_late(since.elapsed());
                    self.left.fetch_sub(1, Ordering::Relaxed);
                }
                continue;
            }
            if state.closed {
                return;
            }
            state.idle += 1;
            let waited = self.wake.wait_for(&mut state, IDLE);
            state.idle -= 1;
            if waited.timed_out() && state.queue.is_empty() {
                state.workers -= 1;
                return;
            }
        }
    }
}

/// Lets the calling thread run on every CPU that this process may use. A thread begins on the CPUs of the thread that
/// started it. A thread that serves a queue of requests is pinned to a single CPU.
fn use_every_cpu() {
    let process = rustix::process::getpid();
    // Without it, the thread is slower and nothing else.
    if let Ok(cpus) = sched_getaffinity(Some(process)) {
        let _ = sched_setaffinity(None, &cpus);
    }
}
