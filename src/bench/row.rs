//! One row: an engine, the limit and ISA-L, doing the same in turns.

use std::{
    sync::Barrier,
    time::{Duration, Instant},
};

use parking_lot::RwLock;
use serde::Serialize;

use crate::{
    bench::{
        error::BenchError,
        isal::{Isal, Rival},
        lane::{Arena, Lane},
        setting::{Operation, Setting, WorkingSet},
    },
    codec::{self, Codec, Geometry, Job, Matrix, Mode, Pass, Stores},
};

/// The rates of one codec in one setting. Rates count data bytes, k shards a stripe.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Name of the engine.
    pub engine: &'static str,
    /// Name of the code.
    pub code: String,
    /// Data shards.
    pub data: usize,
    /// Parity shards.
    pub parity: usize,
    /// Length of a shard, in bytes.
    pub shard_bytes: usize,
    /// Threads.
    pub threads: usize,
    /// Stripes of one call.
    pub stripes: usize,
    /// The memory that stripes lay in.
    pub working_set: WorkingSet,
    /// The operation on them.
    #[serde(rename = "op")]
    pub operation: Operation,
    /// Median rate, in 10⁹ bytes a second.
    pub gb_per_s: f64,
    /// The same for a plain XOR that reads and writes the same shards, or a copy of as many bytes: inside
    /// the GPU, or over the bus each way.
    pub limit_gb_per_s: f64,
    /// The same for ISA-L, where it could be loaded and does this.
    pub isal_gb_per_s: Option<f64>,
    /// Seconds that the cores worked, all together, for 10¹² bytes that GPUs coded.
    pub cpu_seconds_per_tb: Option<f64>,
    /// The rate of copies from pinned memory to the GPUs and nothing else, all bytes counted, where stripes
    /// went over the bus.
    pub h2d_gb_per_s: Option<f64>,
}

/// A row to be measured.
#[derive(Debug)]
pub(super) struct RowPlan {
    codec: Codec,
    /// Reads and writes as many shards as the operation does.
    plain: codec::Plan,
    pub(super) setting: Setting,
}

/// The number of turns of each contender.
const TURNS: u32 = 5;

/// One thing to measure: an operation on the next stripe of a lane.
pub(super) type Contender<'c> = Box<dyn Fn(&mut Lane<'_>) + Sync + 'c>;

impl RowPlan {
    pub(super) fn new(codec: Codec, setting: Setting) -> Self {
        let (k, m) = (
            codec.geometry().data_shards(),
            codec.geometry().parity_shards(),
        );
        let (targets, sources) = match setting.operation {
            Operation::Encode => (m, k),
            Operation::Decode => (m.min(k), k),
            Operation::Verify => (1, k + m),
        };
        let plain = codec::Plan::new(Matrix::from_fn(targets, sources, |_, _| 1));
        Self {
            codec,
            plain,
            setting,
        }
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.codec.geometry()
    }

    /// Returns the matrix that turns data into parity.
    pub(super) fn generator(&self) -> &Matrix {
        self.codec.generator()
    }

    /// Returns how many stripes each thread rotates over: whole calls, so that each stripe gets its turn.
    fn stripes(&self) -> usize {
        let stripe_bytes = self.geometry().total_shards() * self.setting.shard_bytes;
        let Setting {
            threads,
            working_set,
            stripes,
            ..
        } = self.setting;
        match working_set.stripes(stripe_bytes, threads) {
            0 => 0,
            rotating => rotating.max(stripes).next_multiple_of(stripes),
        }
    }

    /// Returns how much memory the stripes of all threads take.
    pub(super) fn memory_bytes(&self) -> usize {
        let shard_bytes = self.setting.shard_bytes;
        let stripe_bytes = self.geometry().total_shards() * shard_bytes;
        self.setting.threads * (stripe_bytes * self.stripes() + shard_bytes)
    }

    /// Measures for about as long as `time`.
    ///
    /// # Errors
    ///
    /// [`BenchError`] if the system gives no memory or no threads.
    pub(super) fn measure(
        &self,
        isal: Option<&Isal>,
        arena: &mut Arena,
        time: Duration,
    ) -> Result<Row, BenchError> {
        let mut lanes = self.lanes(arena)?;
        let rival = isal.and_then(|isal| Rival::new(isal, &self.codec, self.setting.operation));
        let mut contenders: Vec<Contender> = vec![
            Box::new(|lane| self.work(lane)),
            Box::new(|lane| self.work_plain(lane)),
        ];
        if let Some(rival) = &rival {
            contenders.push(Box::new(|lane| rival.work(lane)));
        }
        let turn = time / TURNS / u32::try_from(contenders.len()).unwrap_or(1);
        let mut rates = vec![Vec::new(); contenders.len()];
        for _ in 0..TURNS {
            for (contender, rates) in contenders.iter().zip(&mut rates) {
                rates.push(stripes_per_second(&mut lanes, contender, turn)?);
            }
        }
        let data_bytes = self.geometry().data_shards() * self.setting.shard_bytes;
        let mut rates = rates
            .into_iter()
            .map(|rates| median(rates) * to_f64(data_bytes) / 1e9);
        Ok(Row {
            gb_per_s: rates.next().unwrap_or_default(),
            limit_gb_per_s: rates.next().unwrap_or_default(),
            isal_gb_per_s: rates.next(),
            ..self.blank_row()
        })
    }

    /// Returns what is known of a row before anything is measured.
    pub(super) fn blank_row(&self) -> Row {
        Row {
            engine: self.codec.engine().name(),
            code: self.codec.code().to_string(),
            data: self.geometry().data_shards(),
            parity: self.geometry().parity_shards(),
            shard_bytes: self.setting.shard_bytes,
            threads: self.setting.threads,
            stripes: self.setting.stripes,
            working_set: self.setting.working_set,
            operation: self.setting.operation,
            gb_per_s: 0.0,
            limit_gb_per_s: 0.0,
            isal_gb_per_s: None,
            cpu_seconds_per_tb: None,
            h2d_gb_per_s: None,
        }
    }

    /// Returns the lanes of all threads, with stripes that are fit for the operation.
    ///
    /// # Errors
    ///
    /// If the system does not give the memory.
    pub(super) fn lanes<'a>(&self, arena: &'a mut Arena) -> Result<Vec<Lane<'a>>, BenchError> {
        let Setting {
            shard_bytes,
            threads,
            operation,
            ..
        } = self.setting;
        let geometry = self.geometry();
        let lanes = arena.lanes(threads, geometry, shard_bytes, self.stripes());
        let mut lanes = lanes.map_err(|_| BenchError::NoMemory {
            geometry,
            needed: self.memory_bytes(),
        })?;
        if operation == Operation::Verify {
            // A comparison stops at the first difference, so there must be none.
            for lane in &mut lanes {
                self.make_sound(lane);
            }
        }
        Ok(lanes)
    }

    /// Encodes all stripes of a lane.
    fn make_sound(&self, lane: &mut Lane<'_>) {
        for _ in 0..lane.stripes() {
            let encoded = lane.encode(|data, parity| self.codec.encode(data, parity));
            encoded.expect(LANES_FIT);
        }
    }

    /// Does the operation to the lane's next stripe.
    fn work(&self, lane: &mut Lane<'_>) {
        let pass = self.pass();
        let done = match self.setting.operation {
            Operation::Encode => lane.encode(|data, parity| pass.encode(data, parity)),
            Operation::Decode => lane.decode(|present, lost| pass.reconstruct(present, lost)),
            Operation::Verify => lane.verify(|shards, _| pass.verify(shards).map(drop)),
        };
        done.expect(LANES_FIT);
    }

    /// Returns a pass over one stripe.
    pub(super) fn pass(&self) -> Pass<'_> {
        let stores = self.setting.working_set.stores();
        self.codec.pass().stores(stores)
    }

    /// Reads and writes the same shards of the lane's next stripe, with nothing but XOR.
    fn work_plain(&self, lane: &mut Lane<'_>) {
        let stores = self.setting.working_set.stores();
        match self.setting.operation {
            Operation::Encode => {
                lane.encode(|data, parity| self.run_plain(data, parity, stores));
            }
            Operation::Decode => lane.decode(|present, lost| {
                let sources: Vec<&[u8]> = present.iter().map(|shard| shard.1).collect();
                let mut targets: Vec<&mut [u8]> =
                    lost.iter_mut().map(|shard| &mut *shard.1).collect();
                self.run_plain(&sources, &mut targets, stores);
            }),
            Operation::Verify => lane.verify(|shards, scratch| {
                self.run_plain(shards, &mut [scratch], Stores::Cached);
            }),
        }
    }

    fn run_plain(&self, sources: &[&[u8]], targets: &mut [&mut [u8]], stores: Stores) {
        let job = Job::new(&self.plain, sources, targets, Mode::Assign).expect(LANES_FIT);
        self.codec.engine().run_plain(&mut job.with_stores(stores));
    }
}

/// The reason why calls on a lane's shards cannot fail.
pub(super) const LANES_FIT: &str = "a lane's shards fit its geometry";

/// Lets every lane work on a thread of its own, all at once; returns the sum of their rates.
pub(super) fn stripes_per_second(
    lanes: &mut [Lane<'_>],
    contender: &Contender<'_>,
    time: Duration,
) -> Result<f64, BenchError> {
    let start = Barrier::new(lanes.len());
    // True if all threads were started. Locked until that is known, so that none waits for one that never
    // comes.
    let complete = RwLock::new(false);
    std::thread::scope(|scope| {
        let (start, complete) = (&start, &complete);
        let worker = |lane: &mut Lane<'_>| {
            contender(lane);
            if !*complete.read() {
                return 0.0;
            }
            start.wait();
            rate(lane, contender, time)
        };
        let mut is_complete = complete.write();
        let workers = lanes.iter_mut().map(|lane| {
            let builder = std::thread::Builder::new();
            builder.spawn_scoped(scope, move || worker(lane))
        });
        let workers: Result<Vec<_>, _> = workers.collect();
        *is_complete = workers.is_ok();
        drop(is_complete);
        let workers = workers.map_err(BenchError::NoThread)?.into_iter();
        Ok(workers
            .map(|worker| worker.join().expect("a lane's work does not panic"))
            .sum())
    })
}

/// Returns how many stripes a second one lane gets done.
fn rate(lane: &mut Lane<'_>, contender: &Contender<'_>, time: Duration) -> f64 {
    let start = Instant::now();
    let (mut stripes, mut batch) = (0, 1);
    loop {
        for _ in 0..batch {
            contender(lane);
        }
        stripes += batch;
        let elapsed = start.elapsed();
        if elapsed >= time {
            return to_f64(stripes) / elapsed.as_secs_f64();
        }
        // The clock is asked rarely enough not to matter, and often enough to stop in time.
        if elapsed < time / 20 {
            batch *= 2;
        }
    }
}

pub(super) fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts of stripes and bytes lie far below 2^52"
)]
pub(super) fn to_f64(count: usize) -> f64 {
    count as f64
}
