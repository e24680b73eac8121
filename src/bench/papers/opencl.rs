//! The `OpenCL` study: 30+3 on CPUs, GPUs and an FPGA. And on CPU and GPU at once, from one queue.

use std::time::Duration;

use super::encoder::Encoder;
use super::queue::{Done, Goal, Pool, Worker};
use super::site::{PapersSite, lane};
use super::table::{Missing, Ours, PaperRow, Source, Table, Unit};
use crate::bench::BenchError;
use crate::bench::Isal;
use crate::bench::row::{median, to_f64};
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

/// Threads that hand stripes over to the GPU and wait for it.
const CALLERS: usize = 16;

/// The number of turns of CPU, GPU, both, and plain XOR.
const TURNS: usize = 3;

/// Measures what this source has figures for.
///
/// # Errors
///
/// [`BenchError`] if this machine cannot measure it.
pub(super) fn measure(site: &mut PapersSite) -> Result<Table, BenchError> {
    let kernel = site.inside_gpu(GEOMETRY, GPU_SHARD_BYTES)?;
    let kernel = kernel.map(|row| row.gb_per_s).ok_or(Missing::NoGpu);
    let encoder = Encoder::new(GEOMETRY, site.engine)?;
    let geometry = encoder.codec().geometry();
    let stripes = DATA_BYTES / (GEOMETRY.0 * SHARD_BYTES);
    let mut lanes = [lane(&mut site.arena, geometry, (SHARD_BYTES, stripes))?];
    let pool = Pool::new(&mut lanes[0], GEOMETRY.0, STRIPES_PER_BATCH);
    let mut on_cpu = Vec::new();
    for threads in thread_counts(site.threads) {
        let isal = site.isal.as_ref();
        on_cpu.push(measure_cpu(&encoder, &pool, isal, threads, site.time)?);
    }
    let together = match &site.gpus {
        None => Err(Missing::NoGpu),
        Some(gpus) => {
            gpus.first().prepare(encoder.codec().generator(), false)?;
            let mut held = gpus.pin(&mut lanes)?;
            let pool = Pool::new(&mut held.lanes()[0], GEOMETRY.0, STRIPES_PER_BATCH);
            let dispatch = gpus.dispatch();
            let time = 2 * site.time;
            Ok(measure_together(
                &encoder,
                &pool,
                dispatch,
                site.threads,
                time,
            )?)
        }
    };
    let together = together.as_ref().map_err(|missing| *missing);
    let mut rows = cpu_rows(&on_cpu);
    let gpu = together.map(|together| together.gpu);
    rows.extend([
        PaperRow::new("GPU, over the bus", Unit::GbPerS, gpu).beside(3.90, "K40m"),
        PaperRow::new("GPU, kernel alone", Unit::GbPerS, kernel),
    ]);
    let others = [
        ("APU", 0.56, "Carrizo"),
        ("FPGA, over the bus", 1.19, "Stratix V"),
        ("FPGA, kernel alone", 5.35, "Stratix V"),
    ];
    rows.extend(others.map(|(name, published, hardware)| {
        PaperRow::new(name, Unit::GbPerS, Err(Missing::NotOffered)).beside(published, hardware)
    }));
    rows.extend(together_rows(site.threads, together));
    Ok(Table {
        source: Source::Opencl,
        title: "G. Chen and others, OpenCL-based erasure coding on heterogeneous architectures, ASAP 2016",
        rows,
        notes: vec![
            "30+3, GB/s of data. All rows but the kernel's go through 833.6 MB of data in rounds: whole batches of the study's 836.9 MB.",
            "Caches may have a part of them.",
            "Plain XOR on the CPU reads and writes the same shards.",
            "One queue: CPU and GPU take stripes from one counter, in turns with each alone and with plain XOR.",
            "Of the lower of sum and plain XOR: may exceed 100 %, because stripes of the GPU do not pass through the CPU.",
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

/// Rates of so many threads, in 10⁹ bytes of data a second.
#[derive(Debug)]
struct OnCpu {
    threads: usize,
    encode: f64,
    isal: Ours,
    /// Plain XOR of the same shards.
    plain: f64,
}

/// Measures in turns how fast so many threads encode and add. Each kind of work takes about `time`, or more if that is
/// too short for all stripes.
///
/// # Errors
///
/// [`BenchError`] if the system gives no thread, or parity is wrong.
fn measure_cpu(
    encoder: &Encoder,
    pool: &Pool<'_>,
    isal: Option<&Isal>,
    threads: usize,
    time: Duration,
) -> Result<OnCpu, BenchError> {
    let goal = Goal::Time(time / 3);
    let rate = |workers: Vec<Worker<'_>>| {
        let done = pool.encode(encoder.codec(), &workers, goal);
        done.map(|done| done.gb_per_s)
    };
    let (mut encode, mut plain, mut rival) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        encode.push(rate((0..threads).map(|_| encoder.on_cpu()).collect())?);
        plain.push(rate((0..threads).map(|_| encoder.plain()).collect())?);
        if let Some(isal) = isal {
            rival.push(rate((0..threads).map(|_| encoder.on_isal(isal)).collect())?);
        }
    }
    Ok(OnCpu {
        threads,
        encode: median(encode),
        isal: match isal {
            Some(_) => Ok(median(rival)),
            None => Err(Missing::NoIsal),
        },
        plain: median(plain),
    })
}

/// Returns the rows of the CPU. `measured` has one entry for each number of threads, all threads last.
fn cpu_rows(measured: &[OnCpu]) -> Vec<PaperRow> {
    let mut rows = Vec::new();
    for (index, row) in measured.iter().enumerate() {
        let name = |what: &str| format!("{what}, threads: {}", row.threads);
        let ours = PaperRow::new(name("CPU"), Unit::GbPerS, Ok(row.encode));
        let rival = PaperRow::new(name("ISA-L"), Unit::GbPerS, row.isal);
        let plain = PaperRow::new(name("plain XOR on the CPU"), Unit::GbPerS, Ok(row.plain));
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
        rows.push(plain);
    }
    rows
}

/// Rates of CPU and GPU, in 10⁹ bytes of data a second.
#[derive(Debug)]
struct Together {
    /// All threads of the CPU, alone.
    cpu: f64,
    /// The GPU, alone.
    gpu: f64,
    /// Plain XOR by all threads of the CPU.
    plain: f64,
    /// Both on one queue, for each number of threads of the CPU.
    both: Vec<Both>,
}

/// CPU and GPU on one queue.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Both {
    /// Threads of the CPU.
    threads: usize,
    /// The rate of all together, in 10⁹ bytes of data a second.
    gb_per_s: f64,
    /// The part that the GPU encoded, in percent.
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
    /// Returns the sum of the rates of each alone.
    fn sum(&self) -> f64 {
        self.cpu + self.gpu
    }

    /// Returns the best rate of both on one queue.
    fn best(&self) -> f64 {
        let rates = self.both.iter().map(|both| both.gb_per_s);
        rates.fold(0.0, f64::max)
    }
}

/// Returns the rows of CPU and GPU on one queue.
fn together_rows(threads: usize, measured: Result<&Together, Missing>) -> Vec<PaperRow> {
    let figure = |take: &dyn Fn(&Together) -> f64| -> Ours { measured.map(take) };
    let rate = |name: String, ours: Ours| PaperRow::new(name, Unit::GbPerS, ours);
    let mut rows = vec![
        rate(
            format!("one queue: CPU alone, threads: {threads}"),
            figure(&|all| all.cpu),
        ),
        rate("one queue: GPU alone".to_owned(), figure(&|all| all.gpu)),
        rate("one queue: their sum".to_owned(), figure(&Together::sum)),
        rate(
            format!("one queue: plain XOR on the CPU, threads: {threads}"),
            figure(&|all| all.plain),
        ),
    ];
    for (index, threads) in shared_counts(threads).into_iter().enumerate() {
        rows.push(rate(
            format!("one queue: both, threads of the CPU: {threads}"),
            figure(&|all| all.both[index].gb_per_s),
        ));
        rows.push(PaperRow::new(
            format!("one queue: both, threads of the CPU: {threads}, part of the GPU"),
            Unit::Percent,
            figure(&|all| all.both[index].gpu_percent),
        ));
    }
    let share = |of: &str, ours: Ours| {
        let quantity = format!("one queue: both at best, of {of}");
        PaperRow::new(quantity, Unit::Percent, ours)
    };
    rows.extend([
        share("their sum", figure(&|all| 100.0 * all.best() / all.sum())),
        share(
            "the lower of sum and plain XOR",
            figure(&|all| 100.0 * all.best() / all.sum().min(all.plain)),
        ),
    ]);
    rows
}

/// Returns the numbers of threads that share a queue with the GPU: all, and all but one, because feeding the GPU takes
/// some time of a core too.
fn shared_counts(threads: usize) -> Vec<usize> {
    let mut counts = vec![threads, threads.saturating_sub(1).max(1)];
    counts.dedup();
    counts
}

/// Measures in turns what CPU and GPU do alone and together.
///
/// # Errors
///
/// [`BenchError`] if the GPU fails, or parity is wrong.
fn measure_together(
    encoder: &Encoder,
    pool: &Pool<'_>,
    dispatch: &Dispatch,
    threads: usize,
    time: Duration,
) -> Result<Together, BenchError> {
    let threads_of_cpu = |count: usize| (0..count).map(|_| encoder.on_cpu());
    let callers = || (0..CALLERS).map(|_| encoder.on_accelerator(dispatch));
    let run = |workers: &[Worker<'_>]| pool.encode(encoder.codec(), workers, Goal::Time(time));
    let rate = |workers: Vec<Worker<'_>>| run(&workers).map(|done| done.gb_per_s);
    // The CPU repeats computations of each new kind; this is over before anything is measured.
    rate(callers().collect())?;
    let before = dispatch.coding();
    let counts = shared_counts(threads);
    let (mut cpu, mut gpu, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    let mut both = vec![Vec::new(); counts.len()];
    for _ in 0..TURNS {
        cpu.push(rate(threads_of_cpu(threads).collect())?);
        gpu.push(rate(callers().collect())?);
        plain.push(rate((0..threads).map(|_| encoder.plain()).collect())?);
        for (&threads, turns) in counts.iter().zip(&mut both) {
            let done = run(&threads_of_cpu(threads).chain(callers()).collect::<Vec<_>>())?;
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
        plain: median(plain),
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
        assert!(together.cpu > 0.0 && together.gpu > 0.0 && together.plain > 0.0);
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
    fn both_are_compared_with_their_sum_and_with_plain_xor_if_that_is_lower() {
        let both = |(threads, gb_per_s)| Both {
            threads,
            gb_per_s,
            gpu_percent: 60.0,
        };
        let together = |plain| Together {
            cpu: 30.0,
            gpu: 50.0,
            plain,
            both: [(2, 66.0), (1, 72.0)].map(both).to_vec(),
        };
        for (plain, of_sum, of_lower) in
            [(100.0, 90.0, 90.0), (75.0, 90.0, 96.0), (60.0, 90.0, 120.0)]
        {
            let rows = together_rows(2, Ok(&together(plain)));
            let [.., sum, lower] = &rows[..] else {
                panic!("{rows:?}");
            };
            for (row, expected) in [(sum, of_sum), (lower, of_lower)] {
                let share = row.ours.expect("measured");
                assert!(
                    (share - expected).abs() < 1e-9,
                    "{row:?}, plain XOR: {plain}"
                );
            }
        }
        let missing = together_rows(2, Err(Missing::NoGpu));
        assert!(missing.iter().all(|row| row.ours == Err(Missing::NoGpu)));
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
