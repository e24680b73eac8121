//! A pool of `io_uring` queues: the calling thread takes one, submits its batch and waits by itself.
//!
//! A ring on which operations hang is parked and looked at again later; the batches after it use
//! other rings.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;

use super::hedge::HedgeDelay;
use super::job::RequestInFlight;
use super::request::{Op, Outcome};
use super::ring::{DEPTH, Flight, Ring};
use super::watch::{Leniency, MAX_ABANDONED, Watch, key};
use crate::{StoreError, StoreRef};

/// The number of idle rings that are kept.
const IDLE_RINGS: usize = 32;

/// The rings of an executor.
pub(super) struct Rings {
    timeout: Duration,
    hedge_delay: Arc<HedgeDelay>,
    idle: Mutex<Vec<Ring>>,
    /// Rings with operations whose callers do not wait any more.
    parked: Mutex<Vec<Ring>>,
    /// The number of those, readable without a lock.
    parked_count: AtomicUsize,
}

impl Rings {
    /// Makes a pool, or tells why the kernel gives no ring.
    pub(super) fn new(timeout: Duration, hedge_delay: Arc<HedgeDelay>) -> io::Result<Self> {
        Ok(Self {
            timeout,
            hedge_delay,
            idle: Mutex::new(vec![Ring::new()?]),
            parked: Mutex::default(),
            parked_count: AtomicUsize::new(0),
        })
    }

    /// Runs jobs on files and waits for them. Returns those that the kernel did not do in one go,
    /// which are to be finished in another way.
    pub(super) fn run(
        &self,
        mut jobs: Vec<(RequestInFlight, Arc<OwnedFd>)>,
        leniency: Leniency,
        outcomes: &mut [Option<Outcome>],
    ) -> Vec<RequestInFlight> {
        if self.parked_count.load(Ordering::Relaxed) > 0 {
            self.reap();
            jobs.retain(|(job, _)| {
                let refused = self.hanging_on(key(&job.store)) >= MAX_ABANDONED;
                if refused {
                    outcomes[job.index] = Some(Err(job.hung(self.timeout)));
                }
                !refused
            });
        }
        if jobs.is_empty() {
            return Vec::new();
        }
        let idle = self.idle.lock().pop();
        let ring = match idle.map_or_else(Ring::new, Ok) {
            Ok(ring) => ring,
            Err(error) => {
                tracing::debug!("no further io_uring: {error}");
                return jobs.into_iter().map(|(job, _)| job).collect();
            }
        };
        ring.allow_workers();
        let mut batch = RingBatch {
            ring,
            queue: jobs.into(),
            flying: 0,
            watch: Watch::new(leniency),
            unfinished: Vec::new(),
            outcomes,
        };
        batch.run(self.timeout);
        let RingBatch {
            ring, unfinished, ..
        } = batch;
        self.give_back(ring);
        unfinished
    }

    fn give_back(&self, ring: Ring) {
        if ring.is_idle() {
            let mut idle = self.idle.lock();
            if idle.len() < IDLE_RINGS {
                idle.push(ring);
            }
            return;
        }
        let mut parked = self.parked.lock();
        parked.push(ring);
        self.parked_count.store(parked.len(), Ordering::Relaxed);
    }

    /// Lets go of what answered after it was given up.
    fn reap(&self) {
        let mut parked = self.parked.lock();
        for ring in &mut *parked {
            while let Some((flight, answer)) = ring.pop() {
                if let Some(since) = flight.left {
                    self.hedge_delay.note_late(since.elapsed());
                }
                count_late(flight.job, answer);
            }
        }
        let landed: Vec<Ring> = parked.extract_if(.., |ring| ring.is_idle()).collect();
        self.parked_count.store(parked.len(), Ordering::Relaxed);
        drop(parked);
        for ring in landed {
            self.give_back(ring);
        }
    }

    /// Says whether there is an operation without a waiting caller on any store.
    pub(super) fn has_left(&self) -> bool {
        self.parked_count.load(Ordering::Relaxed) > 0
    }

    /// Returns since when a store owes an operation that has no waiting caller and is not overdue.
    pub(super) fn left_since(&self, store: &StoreRef) -> Option<Instant> {
        self.reap();
        let parked = self.parked.lock();
        let flights = parked.iter().flat_map(Ring::flights);
        let of_store = flights.filter(|flight| flight.key == key(store));
        of_store.filter_map(|flight| flight.left).min()
    }

    /// Says whether the kernel is still at an operation without a waiting caller.
    pub(super) fn is_hanging(&self, store: &StoreRef) -> bool {
        self.reap();
        let parked = self.parked.lock();
        let mut flights = parked.iter().flat_map(Ring::flights);
        flights.any(|flight| flight.key == key(store))
    }

    /// Returns how many operations on a store were given up.
    fn hanging_on(&self, key: usize) -> usize {
        let parked = self.parked.lock();
        parked
            .iter()
            .flat_map(Ring::flights)
            .filter(|flight| flight.key == key && flight.left.is_none())
            .count()
    }
}

/// A batch on its ring.
struct RingBatch<'a> {
    ring: Ring,
    queue: VecDeque<(RequestInFlight, Arc<OwnedFd>)>,
    /// Operations with the kernel that were not given up.
    flying: usize,
    watch: Watch,
    unfinished: Vec<RequestInFlight>,
    outcomes: &'a mut [Option<Outcome>],
}

impl RingBatch<'_> {
    fn run(&mut self, timeout: Duration) {
        loop {
            self.launch();
            if self.flying == 0 {
                break;
            }
            // With more to launch, half of what flies is enough to go on.
            let want = if self.queue.is_empty() {
                self.flying
            } else {
                self.flying.div_ceil(2)
            };
            let patience = self.watch.patience(Instant::now()).unwrap_or(timeout);
            if let Err(error) = self.ring.wait(want, patience) {
                self.fail_all(&error);
                break;
            }
            self.land();
            if self.watch.is_over(Instant::now()) {
                self.leave();
                break;
            }
            for key in self.watch.overdue(Instant::now()) {
                self.give_up(key, timeout);
            }
        }
    }

    fn launch(&mut self) {
        while self.ring.room() > 0
            && let Some((job, file)) = self.queue.pop_front()
        {
            let key = key(&job.store);
            self.watch.begin(key);
            self.flying += 1;
            self.ring.push(Flight {
                job,
                file,
                key,
                left: None,
            });
        }
        debug_assert!(self.flying <= DEPTH);
    }

    fn land(&mut self) {
        let now = Instant::now();
        while let Some((flight, answer)) = self.ring.pop() {
            let index = flight.job.index;
            if self.outcomes[index].is_some() {
                // It was given up, and has answered before the batch ended.
                count_late(flight.job, answer);
                continue;
            }
            self.flying -= 1;
            self.watch.answered(flight.key, now);
            let meter = flight.job.meter();
            match judge(flight.job, answer) {
                Verdict::Done(outcome) => {
                    meter.count(outcome.is_ok());
                    self.outcomes[index] = Some(outcome);
                }
                Verdict::Partly(job) => self.unfinished.push(job),
            }
        }
    }

    /// Goes on without what has not answered; its memory stays with the ring.
    fn leave(&mut self) {
        let now = Instant::now();
        for flight in self.ring.flights_mut() {
            let outcome = &mut self.outcomes[flight.job.index];
            if outcome.is_none() {
                *outcome = Some(Err(flight.job.slow()));
                flight.left = Some(now);
                self.flying -= 1;
            }
        }
        for (job, _) in self.queue.drain(..) {
            self.outcomes[job.index] = Some(Err(job.slow()));
        }
    }

    /// Settles everything that a store still owes; its memory stays with the ring.
    fn give_up(&mut self, key_of_store: usize, timeout: Duration) {
        for flight in self
            .ring
            .flights()
            .filter(|flight| flight.key == key_of_store)
        {
            let outcome = &mut self.outcomes[flight.job.index];
            if outcome.is_none() {
                *outcome = Some(Err(flight.job.hung(timeout)));
                self.flying -= 1;
            }
        }
        let outcomes = &mut *self.outcomes;
        self.queue.retain(|(job, _)| {
            let overdue = key(&job.store) == key_of_store;
            if overdue {
                outcomes[job.index] = Some(Err(job.hung(timeout)));
            }
            !overdue
        });
    }

    /// The ring itself is broken: nothing more can be learnt from it.
    fn fail_all(&mut self, error: &io::Error) {
        tracing::error!("io_uring failed: {error}");
        let fail = |job: &RequestInFlight, outcomes: &mut [Option<Outcome>]| {
            let (name, action) = job.op.describe();
            let again = error
                .raw_os_error()
                .map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
            outcomes[job.index].get_or_insert(Err(StoreError::from_io(
                job.store.label(),
                action,
                name,
                again,
            )));
        };
        for flight in self.ring.flights() {
            fail(&flight.job, self.outcomes);
        }
        for (job, _) in self.queue.drain(..) {
            fail(&job, self.outcomes);
        }
    }
}

/// The meaning of an answer of the kernel for a job.
enum Verdict {
    Done(Outcome),
    /// Not refused and not whole: the attempt to go on gets the same refusal, or the rest.
    Partly(RequestInFlight),
}

/// Counts a request for whose answer no caller waits.
fn count_late(job: RequestInFlight, answer: i32) {
    let meter = job.meter();
    meter.count(matches!(judge(job, answer), Verdict::Done(Ok(_))));
}

fn judge(mut job: RequestInFlight, answer: i32) -> Verdict {
    let count = match usize::try_from(answer) {
        Ok(count) => count,
        // Refused past the page cache, or interrupted: the other way round decides.
        Err(_) if is_tried_again(&job.op, answer) => return Verdict::Partly(job),
        Err(_) => {
            let (name, action) = job.op.describe();
            let source = io::Error::from_raw_os_error(-answer);
            return Verdict::Done(Err(StoreError::from_io(
                job.store.label(),
                action,
                name,
                source,
            )));
        }
    };
    job.done += count;
    let wanted = match &job.op {
        Op::Read { buf, .. } => buf.len(),
        Op::Write { data, .. } | Op::WriteDurably { data, .. } => data.len(),
        Op::Sync { .. } | Op::Create { .. } | Op::Remove { .. } | Op::Punch { .. } | Op::Probe => 0,
    };
    if job.done < wanted {
        return Verdict::Partly(job);
    }
    Verdict::Done(Ok(match job.op {
        Op::Read { buf, .. } => Some(buf),
        _ => None,
    }))
}

/// Returns whether an answer says: not this way, or not now. For lack of space, a write that is to be durable is tried
/// again, because the store finds out whether all of it was written.
fn is_tried_again(op: &Op, answer: i32) -> bool {
    match Errno::from_raw_os_error(-answer) {
        Errno::INVAL | Errno::AGAIN | Errno::INTR => true,
        Errno::NOSPC | Errno::DQUOT | Errno::OPNOTSUPP => matches!(op, Op::WriteDurably { .. }),
        _ => false,
    }
}
