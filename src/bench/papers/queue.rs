//! Stripes that workers take from one queue, and the time that these need for them.
//!
//! The queue is one counter. Stripes lie in memory in batches, and a worker takes a batch at a time: the one that the
//! counter says, modulo the number of batches. A batch is locked while a worker has it, and no worker has two.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use crate::bench::BenchError;
use crate::bench::lane::Lane;
use crate::bench::row::to_f64;
use crate::codec::Codec;

/// The shards of a stripe, data first.
pub(super) type Stripe<'a> = Vec<&'a mut [u8]>;

/// The bytes of parity that is not computed yet. Data is noise, so its parity is not this byte over and over.
const CLEARED: u8 = 0x5a;

/// Stripes that are taken together.
struct StripeBatch<'a> {
    stripes: Vec<Stripe<'a>>,
    /// True if the worker that had it last has encoded it.
    is_encoded: bool,
}

/// Stripes in memory, for workers to take.
pub(super) struct Pool<'a> {
    batches: Vec<Mutex<StripeBatch<'a>>>,
    /// Data shards of each stripe; the others are parity.
    data_shards: usize,
    /// Bytes of data in each batch.
    batch_bytes: usize,
}

/// Something that works on stripes, on a thread of its own.
pub(super) struct Worker<'w> {
    /// True if it encodes.
    pub(super) encodes: bool,
    /// Does its work to the stripes of a batch.
    pub(super) work: Work<'w>,
}

/// The work of a worker.
pub(super) type Work<'w> = Box<dyn Fn(&mut [Stripe<'_>]) -> Result<(), BenchError> + Sync + 'w>;

/// The end of a run.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goal {
    /// So many batches are done.
    Batches(usize),
    /// So much time has passed, each worker has done one batch at least, and all batches were taken.
    Time(Duration),
}

/// The result of a run.
#[derive(Debug)]
pub(super) struct Done {
    /// The batches that each worker has done.
    pub(super) batches: Vec<usize>,
    /// The seconds from the start of all to the end of the last batch.
    pub(super) seconds: f64,
    /// 10⁹ bytes of data a second, all workers together.
    pub(super) gb_per_s: f64,
}

/// The part that one worker had in a run.
struct Part {
    batches: usize,
    end: Instant,
}

impl<'a> Pool<'a> {
    /// Returns the stripes of a lane in batches of so many; those beyond the last whole batch are left out.
    pub(super) fn new(
        lane: &'a mut Lane<'_>,
        data_shards: usize,
        stripes_per_batch: usize,
    ) -> Self {
        let count = lane.stripes() / stripes_per_batch;
        let mut stripes = lane.next_stripes(count * stripes_per_batch).into_iter();
        let batches: Vec<Vec<Stripe<'a>>> = (0..count)
            .map(|_| stripes.by_ref().take(stripes_per_batch).collect())
            .collect();
        let shard_bytes = batches.first().map_or(0, |stripes| stripes[0][0].len());
        let batch = |stripes| {
            Mutex::new(StripeBatch {
                stripes,
                is_encoded: false,
            })
        };
        Self {
            batches: batches.into_iter().map(batch).collect(),
            data_shards,
            batch_bytes: stripes_per_batch * data_shards * shard_bytes,
        }
    }

    /// Returns how many batches are so many bytes of data.
    pub(super) fn batches_of(&self, data_bytes: usize) -> usize {
        data_bytes.div_ceil(self.batch_bytes)
    }

    /// Overwrites all parity, so that what an earlier run left cannot pass for the work of the next.
    pub(super) fn clear(&self) {
        for batch in &self.batches {
            let mut batch = batch.lock();
            batch.is_encoded = false;
            for stripe in &mut batch.stripes {
                for shard in &mut stripe[self.data_shards..] {
                    shard.fill(CLEARED);
                }
            }
        }
    }

    /// Overwrites all parity, [runs](Self::run) workers that encode, and [verifies](Self::verify) what they left.
    ///
    /// # Errors
    ///
    /// [`BenchError`] if the work fails, or leaves other parity than the code calls for.
    pub(super) fn encode(
        &self,
        codec: &Codec,
        workers: &[Worker<'_>],
        goal: Goal,
    ) -> Result<Done, BenchError> {
        self.clear();
        let done = self.run(workers, goal)?;
        self.verify(codec)?;
        Ok(done)
    }

    /// Lets workers take batches, all at once, until the goal is reached.
    ///
    /// # Errors
    ///
    /// [`BenchError`] if the system gives no thread, or the work fails.
    pub(super) fn run(&self, workers: &[Worker<'_>], goal: Goal) -> Result<Done, BenchError> {
        let next = AtomicUsize::new(0);
        // The start, once all threads are there; they wait for the lock until then.
        let start = RwLock::new(None);
        std::thread::scope(|scope| {
            let (next, start) = (&next, &start);
            let mut gate = start.write();
            let threads = workers.iter().map(|worker| {
                let serve = move || match *start.read() {
                    Some(start) => self.serve(worker, next, goal, start).map(Some),
                    None => Ok(None),
                };
                std::thread::Builder::new().spawn_scoped(scope, serve)
            });
            let threads: Result<Vec<_>, _> = threads.collect();
            let started = Instant::now();
            *gate = threads.is_ok().then_some(started);
            drop(gate);
            let threads = threads.map_err(BenchError::NoThread)?;
            let mut parts = Vec::new();
            for thread in threads {
                parts.extend(thread.join().expect("a worker does not panic")?);
            }
            Ok(self.done(started, &parts))
        })
    }

    /// Does one batch after the other, until the goal is reached.
    fn serve(
        &self,
        worker: &Worker<'_>,
        next: &AtomicUsize,
        goal: Goal,
        start: Instant,
    ) -> Result<Part, BenchError> {
        let mut part = Part {
            batches: 0,
            end: start,
        };
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let is_reached = match goal {
                Goal::Batches(count) => number >= count,
                Goal::Time(time) => {
                    let is_round = part.batches > 0 && number >= self.batches.len();
                    is_round && start.elapsed() >= time
                }
            };
            if is_reached {
                return Ok(part);
            }
            let mut batch = self.batches[number % self.batches.len()].lock();
            batch.is_encoded = false;
            (worker.work)(&mut batch.stripes)?;
            batch.is_encoded = worker.encodes;
            part.batches += 1;
            part.end = Instant::now();
        }
    }

    fn done(&self, start: Instant, parts: &[Part]) -> Done {
        let ends = parts.iter().map(|part| part.end);
        let seconds = (ends.max().unwrap_or(start) - start).as_secs_f64();
        let batches: Vec<usize> = parts.iter().map(|part| part.batches).collect();
        let bytes = to_f64(batches.iter().sum::<usize>() * self.batch_bytes);
        Done {
            gb_per_s: bytes / seconds / 1e9,
            batches,
            seconds,
        }
    }

    /// Compares the parity of all stripes that were encoded last with what the code calls for; returns how many there
    /// were.
    ///
    /// # Errors
    ///
    /// [`BenchError::WrongParity`] if there is a difference.
    pub(super) fn verify(&self, codec: &Codec) -> Result<usize, BenchError> {
        let mut verified = 0;
        for batch in &self.batches {
            let batch = batch.lock();
            for stripe in batch.stripes.iter().filter(|_| batch.is_encoded) {
                let shards: Vec<&[u8]> = stripe.iter().map(|shard| &**shard).collect();
                if !codec.verify(&shards)?.is_empty() {
                    return Err(BenchError::WrongParity);
                }
                verified += 1;
            }
        }
        Ok(verified)
    }
}
