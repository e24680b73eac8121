//! The `OpenCL` study: 30+3 on CPUs, GPUs and an FPGA. And on CPU and GPU at once, from one queue.

use std::time::Duration;

use super::encoder::Encoder;
use super::queue::{Done, Goal, Pool, Worker};
use super::site::{Site, lane};
use super::table::{Missing, Ours, Row, Source, Table, Unit};
use crate::bench::BenchError;
use crate::bench::row::{Row as CodecRow, median, to_f64};
use crate::bench::setting::WorkingSet;
use crate::codec::CodeId;
use crate::coding::Dispatch;

/// Data and parity shards.
const GEOMETRY: (usize, usize) = (30, 3);

/// Length of a shard, in bytes.
const SHARD_BYTES: usize = 64 << 10;

/// Length of a shard inside the GPU, in bytes.
const GPU_SHARD_BYTES: usize = 1 << 20;

/// Bytes of data that the study encodes.
const DATA_BYTES: usize = 836_900_000;

/// Stripes that CPU or GPU take at a time.
const STRIPES_PER_BATCH: usize = 4;

/// Threads that hand stripes over to GPUs and wait for them.
const CALLERS: usize = 16;

/// The number of turns of CPU, GPU, both, and the limit of memory.
const TURNS: usize = 3;

/// Measures what this source has figures for.
///
/// # Errors
///
/// [`BenchError`] if this machine cannot measure it.
pub(super) fn measure(site: &mut Site) -> Result<Table, BenchError> {
    let mut on_cpu = Vec::new();
    for threads in thread_counts(site.threads) {
        let coded = (CodeId::RS_CAUCHY, GEOMETRY);
        on_cpu.push(site.on_cpu(coded, SHARD_BYTES, (threads, WorkingSet::Cold))?);
    }
    let kernel = site.inside_gpu(GEOMETRY, GPU_SHARD_BYTES)?;
    let kernel = kernel.map(|row| row.gb_per_s).ok_or(Missing::NoGpu);
    let together = together_on_gpus(site)?;
    let together = together.as_ref().ok_or(Missing::NoGpu);
    let mut rows = cpu_rows(&on_cpu);
    let gpu = together.map(|together| together.gpu);
    rows.extend([
        Row::new("GPU, over the bus", Unit::GbPerS, gpu).beside(3.90, "K40m"),
        Row::new("GPU, kernel alone", Unit::GbPerS, kernel),
    ]);
    let others = [
        ("APU", 0.56, "Carrizo"),
        ("FPGA, over the bus", 1.19, "Stratix V"),
        ("FPGA, kernel alone", 5.35, "Stratix V"),
    ];
    rows.extend(others.map(|(name, published, hardware)| {
        Row::new(name, Unit::GbPerS, Err(Missing::NotOffered)).beside(published, hardware)
    }));
    rows.extend(together_rows(site.threads, together));
    Ok(Table {
        source: Source::Opencl,
        title: "G. Chen and others, OpenCL-based erasure coding on heterogeneous architectures, ASAP 2016",
        rows,
        notes: vec![
            "30+3, GB/s of data that comes from memory. The memory limit is plain XOR of the same shards.",
            "One queue: CPU and GPU take stripes from one counter, in turns with each alone and with the limit.",
        ],
    })
}

/// Returns the numbers of threads to measure: powers of two, and all.
fn thread_counts(all: usize) -> Vec<usize> {
    let powers = (0..usize::BITS).map(|exponent| 1 << exponent);
    powers
        .take_while(|&count| count < all)
        .chain([all])
        .collect()
}

/// Returns the rows of the CPU. `measured` has one entry for each number of threads, all threads last.
fn cpu_rows(measured: &[CodecRow]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, row) in measured.iter().enumerate() {
        let name = |what: &str| format!("{what}, threads: {}", row.threads);
        let ours = Row::new(name("CPU"), Unit::GbPerS, Ok(row.gb_per_s));
        let rival = row.isal_gb_per_s.ok_or(Missing::NoIsal);
        let rival = Row::new(name("ISA-L"), Unit::GbPerS, rival);
        let limit = Row::new(name("memory limit"), Unit::GbPerS, Ok(row.limit_gb_per_s));
        let (is_first, is_last) = (index == 0, index + 1 == measured.len());
        rows.push(if is_last {
            ours.beside(2.84, "28-core Xeon, threads: 56")
        } else {
            ours
        });
        rows.push(if is_first {
            rival.beside(0.13, "28-core Xeon, threads: 1")
        } else {
            rival
        });
        rows.push(limit);
    }
    rows
}

/// Rates of CPU and GPUs, in 10⁹ bytes of data a second.
#[derive(Debug)]
struct Together {
    /// All threads of the CPU, alone.
    cpu: f64,
    /// GPUs, alone.
    gpu: f64,
    /// Plain XOR by all threads of the CPU.
    limit: f64,
    /// Both on one queue, for each number of threads of the CPU.
    both: Vec<Both>,
}

/// CPU and GPUs on one queue.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Both {
    /// Threads of the CPU.
    threads: usize,
    /// The rate of all together, in 10⁹ bytes of data a second.
    gb_per_s: f64,
    /// The part that GPUs encoded, in percent.
    gpu_percent: f64,
}

impl Both {
    /// Returns what workers did, of which the first are the threads of the CPU.
    fn new(threads: usize, done: &Done) -> Self {
        let batches = |workers: &[usize]| to_f64(workers.iter().sum());
        let of_gpu = batches(&done.batches[threads..]);
        Self {
            threads,
            gb_per_s: done.gb_per_s,
            gpu_percent: 100.0 * of_gpu / batches(&done.batches),
        }
    }

    /// Returns the turn of the median rate.
    fn median(mut turns: Vec<Self>) -> Self {
        turns.sort_by(|a, b| a.gb_per_s.total_cmp(&b.gb_per_s));
        turns[turns.len() / 2]
    }
}

impl Together {
    /// Returns the lower of the sum and the limit.
    fn bound(&self) -> f64 {
        (self.cpu + self.gpu).min(self.limit)
    }
}

/// Returns the rows of CPU and GPU on one queue.
fn together_rows(threads: usize, measured: Result<&Together, Missing>) -> Vec<Row> {
    let figure = |take: &dyn Fn(&Together) -> f64| -> Ours { measured.map(take) };
    let rate = |name: String, ours: Ours| Row::new(name, Unit::GbPerS, ours);
    let mut rows = vec![
        rate(
            format!("one queue: CPU alone, threads: {threads}"),
            figure(&|all| all.cpu),
        ),
        rate("one queue: GPU alone".to_owned(), figure(&|all| all.gpu)),
        rate(
            "one queue: their sum".to_owned(),
            figure(&|all| all.cpu + all.gpu),
        ),
        rate(
            format!("one queue: memory limit, threads: {threads}"),
            figure(&|all| all.limit),
        ),
    ];
    for (index, threads) in shared_counts(threads).into_iter().enumerate() {
        rows.push(rate(
            format!("one queue: both, threads of the CPU: {threads}"),
            figure(&|all| all.both[index].gb_per_s),
        ));
        rows.push(Row::new(
            format!("one queue: both, threads of the CPU: {threads}, part of the GPU"),
            Unit::Percent,
            figure(&|all| all.both[index].gpu_percent),
        ));
    }
    rows.push(Row::new(
        "one queue: both at best, of the lower of sum and limit",
        Unit::Percent,
        figure(&|all| {
            let rates = all.both.iter().map(|both| both.gb_per_s);
            100.0 * rates.fold(0.0, f64::max) / all.bound()
        }),
    ));
    rows
}

/// Returns the numbers of threads that share a queue with the GPU: all, and all but one, because feeding the GPU takes
/// some time of a core too.
fn shared_counts(threads: usize) -> Vec<usize> {
    let mut counts = vec![threads, threads.saturating_sub(1).max(1)];
    counts.dedup();
    counts
}

/// Measures CPU and GPUs on one queue; returns nothing without a GPU.
fn together_on_gpus(site: &mut Site) -> Result<Option<Together>, BenchError> {
    let Some(gpus) = &site.gpus else {
        return Ok(None);
    };
    let encoder = Encoder::new(GEOMETRY, site.engine)?;
    gpus.first().prepare(encoder.codec().generator(), false)?;
    let stripes = DATA_BYTES / (GEOMETRY.0 * SHARD_BYTES);
    let geometry = encoder.codec().geometry();
    let mut lanes = [lane(&mut site.arena, geometry, (SHARD_BYTES, stripes))?];
    let mut held = gpus.pin(&mut lanes)?;
    let pool = Pool::new(&mut held.lanes()[0], GEOMETRY.0, STRIPES_PER_BATCH);
    let together = measure_together(
        &encoder,
        &pool,
        gpus.dispatch(),
        site.threads,
        2 * site.time,
    )?;
    Ok(Some(together))
}

/// Measures in turns what CPU and GPUs do alone and together.
///
/// # Errors
///
/// [`BenchError`] if a GPU fails, or parity is wrong.
fn measure_together(
    encoder: &Encoder,
    pool: &Pool<'_>,
    dispatch: &Dispatch,
    threads: usize,
    time: Duration,
) -> Result<Together, BenchError> {
    let threads_of_cpu = |count: usize| (0..count).map(|_| encoder.on_cpu());
    let callers = || (0..CALLERS).map(|_| encoder.on_accelerator(dispatch));
    let run = |workers: &[Worker<'_>]| pool.run(workers, Goal::Time(time));
    let rate = |workers: Vec<Worker<'_>>| run(&workers).map(|done| done.gb_per_s);
    // The CPU repeats computations of each new kind; this is over before anything is measured.
    rate(callers().collect())?;
    let before = dispatch.coding();
    let counts = shared_counts(threads);
    let (mut cpu, mut gpu, mut limit) = (Vec::new(), Vec::new(), Vec::new());
    let mut both = vec![Vec::new(); counts.len()];
    for _ in 0..TURNS {
        cpu.push(rate(threads_of_cpu(threads).collect())?);
        gpu.push(rate(callers().collect())?);
        limit.push(rate((0..threads).map(|_| encoder.plain()).collect())?);
        for (&threads, turns) in counts.iter().zip(&mut both) {
            let done = run(&threads_of_cpu(threads).chain(callers()).collect::<Vec<_>>())?;
            pool.verify(encoder.codec())?;
            turns.push(Both::new(threads, &done));
        }
    }
    let after = dispatch.coding();
    if (after.redone, after.cpu.passes) != (before.redone, before.cpu.passes) {
        return Err(BenchError::NotOnGpu);
    }
    Ok(Together {
        cpu: median(cpu),
        gpu: median(gpu),
        limit: median(limit),
        both: both.into_iter().map(Both::median).collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bench::lane::Arena;
    use crate::codec::select;
    use crate::cuda::Simulated;

    /// Measures together with a simulated device.
    fn measured(device: &Simulated) -> Result<Together, BenchError> {
        let encoder = Encoder::new((3, 2), select("auto").expect("one")).expect("a code");
        let dispatch = Dispatch::all_to_devices(vec![Arc::new(device.clone())]).expect("one");
        let mut arena = Arena::default();
        let geometry = encoder.codec().geometry();
        let mut lane = lane(&mut arena, geometry, (4096, 80)).expect("memory");
        let pool = Pool::new(&mut lane, 3, STRIPES_PER_BATCH);
        measure_together(&encoder, &pool, &dispatch, 2, Duration::from_millis(1))
    }

    #[test]
    fn cpu_and_device_share_one_queue_and_each_is_measured_alone() {
        let device = Simulated::default();
        let together = measured(&device).expect("measured");
        assert!(together.cpu > 0.0 && together.gpu > 0.0 && together.limit > 0.0);
        let counts: Vec<usize> = together.both.iter().map(|both| both.threads).collect();
        assert_eq!(counts, [2, 1]);
        for both in together.both {
            assert!(both.gb_per_s > 0.0, "{both:?}");
            assert!(
                both.gpu_percent > 0.0 && both.gpu_percent < 100.0,
                "{both:?}"
            );
        }
        // One run to warm up, and in each turn one alone and two together.
        let least = (1 + 3 * TURNS) * CALLERS * STRIPES_PER_BATCH;
        assert!(device.batches().iter().sum::<usize>() >= least);
    }

    #[test]
    fn a_device_that_fails_or_lies_gives_no_figures() {
        // Three operations make lanes, and each of the ten runs has at least one more.
        let failed = measured(&Simulated::default().lost_from(6));
        assert!(matches!(failed, Err(BenchError::NotOnGpu)), "{failed:?}");
        let lied = measured(&Simulated::default().lying_from(6));
        assert!(
            matches!(lied, Err(BenchError::WrongParity | BenchError::NotOnGpu)),
            "{lied:?}"
        );
    }

    #[test]
    fn the_bound_is_the_lower_of_sum_and_limit() {
        let both = |(threads, gb_per_s)| Both {
            threads,
            gb_per_s,
            gpu_percent: 60.0,
        };
        let together = |limit| Together {
            cpu: 30.0,
            gpu: 50.0,
            limit,
            both: [(2, 66.0), (1, 72.0)].map(both).to_vec(),
        };
        let share = |limit: f64| {
            let rows = together_rows(2, Ok(&together(limit)));
            let last = rows.last().expect("the share");
            last.ours.expect("measured")
        };
        assert!((share(100.0) - 90.0).abs() < 1e-9);
        assert!((share(75.0) - 96.0).abs() < 1e-9);
        let missing = together_rows(2, Err(Missing::NoGpu));
        assert!(
            missing
                .iter()
                .all(|row| row.missing == Some(Missing::NoGpu))
        );
    }

    #[test]
    fn the_turn_of_the_median_is_reported_with_the_part_of_the_gpu() {
        let done = |gb_per_s, batches: [usize; 4]| {
            let batches = batches.to_vec();
            let seconds = 1.0;
            Both::new(
                2,
                &Done {
                    batches,
                    seconds,
                    gb_per_s,
                },
            )
        };
        let turns = [
            done(3.0, [1; 4]),
            done(1.0, [1, 1, 2, 6]),
            done(2.0, [1, 2, 4, 5]),
        ];
        let median = Both::median(turns.to_vec());
        assert!((median.gb_per_s - 2.0).abs() < 1e-9, "{median:?}");
        assert!((median.gpu_percent - 75.0).abs() < 1e-9, "{median:?}");
    }

    #[test]
    fn one_thread_and_all_are_always_measured() {
        assert_eq!(thread_counts(1), [1]);
        assert_eq!(thread_counts(2), [1, 2]);
        assert_eq!(thread_counts(6), [1, 2, 4, 6]);
        assert_eq!(thread_counts(16), [1, 2, 4, 8, 16]);
        assert_eq!(shared_counts(1), [1]);
        assert_eq!(shared_counts(16), [16, 15]);
    }
}
