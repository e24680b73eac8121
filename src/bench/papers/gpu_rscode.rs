//! GPU-RSCode: 4+2 on a GPU with several streams, and by tables on a CPU.

use super::encoder::Encoder;
use super::queue::{Goal, Pool, Worker};
use super::site::{PapersSite, lane};
use super::table::{Missing, Ours, PaperRow, Source, Table, Unit};
use crate::bench::BenchError;
use crate::bench::row::median;
use crate::codec::select;
use crate::cuda::Device;

/// Data and parity shards.
const GEOMETRY: (usize, usize) = (4, 2);

/// Bytes of data that the source encodes.
const DATA_BYTES: usize = 1_600_000_000;

/// Length of a shard, in bytes: such that whole batches are exactly [`DATA_BYTES`], and lines of memory stay whole.
const SHARD_BYTES: usize = 800_000;

/// Stripes that a worker takes at a time.
const STRIPES_PER_BATCH: usize = 5;

/// Stripes that are encoded in turns: 480 MB with their parity.
const STRIPES: usize = 100;

/// Numbers of lanes that are measured.
const LANES: [usize; 5] = [1, 2, 3, 4, 8];

/// Milliseconds of the source's GPU.
const GPU_MS: f64 = 292.977;

/// Milliseconds of the source's fastest CPU.
const CPU_MS: f64 = 4309.08;

/// The hardware of these figures.
const GPU: &str = "Tesla K20X";
const CPU: &str = "Xeon E5-2670 v2, Jerasure";
const BOTH: &str = "Tesla K20X; Xeon E5-2670 v2, Jerasure";

/// The source's time of its fastest CPU implementation, divided by that on the GPU.
const SPEED_UP: f64 = 14.71;

/// Rates of the source's bus, in GB/s, with whether memory is pinned: to the device, and from it.
const BUS: [(bool, f64, f64); 2] = [(true, 5.8886, 6.3945), (false, 1.4406, 2.3397)];

/// Runs of everything that does not take seconds.
const TURNS: usize = 3;

/// Measures what this source has figures for.
///
/// # Errors
///
/// [`BenchError`] if this machine cannot measure it.
pub(super) fn measure(site: &mut PapersSite) -> Result<Table, BenchError> {
    let tables = Encoder::new(GEOMETRY, select("scalar")?)?;
    let best = Encoder::new(GEOMETRY, site.engine)?;
    let geometry = best.codec().geometry();
    let mut lanes = [lane(&mut site.arena, geometry, (SHARD_BYTES, STRIPES))?];
    let mut on_gpu = Vec::new();
    if let Some(gpus) = &site.gpus {
        gpus.first().prepare(best.codec().generator(), false)?;
        let mut held = gpus.pin(&mut lanes)?;
        let pool = Pool::new(&mut held.lanes()[0], GEOMETRY.0, STRIPES_PER_BATCH);
        for count in LANES {
            on_gpu.push(over_lanes(&best, gpus.first(), &pool, count)?);
        }
    }
    let pool = Pool::new(&mut lanes[0], GEOMETRY.0, STRIPES_PER_BATCH);
    let tables_ms = milliseconds(&pool, &tables, &[tables.on_cpu()], 1)?;
    let best_ms = milliseconds(&pool, &best, &[best.on_cpu()], TURNS)?;
    let mut rows = times(&on_gpu, tables_ms, (site.engine.name(), best_ms));
    for (is_pinned, there, back) in BUS {
        let rates = match &site.gpus {
            Some(gpus) => Ok(gpus.one_way_gb_per_s(is_pinned, site.time)?),
            None => Err(Missing::NoGpu),
        };
        let memory = if is_pinned { "pinned" } else { "pageable" };
        let ways = [
            ("to", rates.map(|rates| rates.0), there),
            ("from", rates.map(|rates| rates.1), back),
        ];
        rows.extend(ways.map(|(way, ours, published)| {
            let quantity = format!("bus, {way} the GPU, {memory} memory");
            PaperRow::new(quantity, Unit::GbPerS, ours).beside(published, "Tesla K20X, PCIe")
        }));
    }
    Ok(Table {
        source: Source::GpuRscode,
        title: "S. Yuan, GPU-RSCode: Reed-Solomon coding on GPUs for RAID-like systems",
        rows,
        notes: vec![
            "4+2. Ours on the GPU: from pinned memory and back. A lane has two streams of its own, and a thread.",
            "The source's fastest CPU is Jerasure. Beside it stand our slowest engine, and the one that this CPU runs by default.",
            "Not found: the source's times by number of streams. A MB is 10^6 bytes here.",
        ],
    })
}

/// Returns the rows of the GPU and of one thread of the CPU. `on_gpu` has the milliseconds for each number of lanes, or
/// nothing without a GPU. `tables_ms` has those of table look-up, and `best_ms` those of the engine of that name.
fn times(on_gpu: &[f64], tables_ms: f64, (engine, best_ms): (&str, f64)) -> Vec<PaperRow> {
    let best = on_gpu.iter().copied().min_by(f64::total_cmp);
    let best: Ours = best.ok_or(Missing::NoGpu);
    let mut rows =
        vec![PaperRow::new("1,600 MB: GPU, the best of these", Unit::Ms, best).beside(GPU_MS, GPU)];
    for (index, lanes) in LANES.into_iter().enumerate() {
        let ours = on_gpu.get(index).copied().ok_or(Missing::NoGpu);
        rows.push(PaperRow::new(
            format!("1,600 MB: GPU, lanes: {lanes}"),
            Unit::Ms,
            ours,
        ));
    }
    let engines = [
        ("table look-up, the slowest engine", tables_ms),
        (engine, best_ms),
    ];
    rows.extend(engines.map(|(engine, ms)| {
        let quantity = format!("1,600 MB: CPU, 1 thread, {engine}");
        PaperRow::new(quantity, Unit::Ms, Ok(ms)).beside(CPU_MS, CPU)
    }));
    let speed_up = best.map(|best| best_ms / best);
    let quantity = format!("GPU, over the CPU: 1 thread, {engine}");
    rows.push(PaperRow::new(quantity, Unit::Times, speed_up).beside(SPEED_UP, BOTH));
    rows
}

/// Returns how long a device takes with so many lanes, in milliseconds.
fn over_lanes(
    encoder: &Encoder,
    device: &dyn Device,
    pool: &Pool<'_>,
    count: usize,
) -> Result<f64, BenchError> {
    let lanes = (0..count).map(|_| Ok(encoder.in_lane(device.lane()?)));
    let workers: Vec<Worker<'_>> = lanes.collect::<Result<_, BenchError>>()?;
    pool.run(&workers, Goal::Batches(STRIPES / STRIPES_PER_BATCH))?;
    milliseconds(pool, encoder, &workers, TURNS)
}

/// Returns the median time of workers for the data of the source, in milliseconds.
///
/// # Errors
///
/// [`BenchError`] if a worker fails or leaves wrong parity.
fn milliseconds(
    pool: &Pool<'_>,
    encoder: &Encoder,
    workers: &[Worker<'_>],
    turns: usize,
) -> Result<f64, BenchError> {
    pool.clear();
    let goal = Goal::Batches(pool.batches_of(DATA_BYTES));
    let turn = |_| Ok(1e3 * pool.run(workers, goal)?.seconds);
    let times: Vec<f64> = (0..turns).map(turn).collect::<Result<_, BenchError>>()?;
    pool.verify(encoder.codec())?;
    Ok(median(times))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::bench::lane::Arena;
    use crate::bench::papers::queue::Stripe;
    use crate::cuda::Simulated;

    #[test]
    fn batches_make_up_exactly_the_data_of_the_source() {
        let batch_bytes = STRIPES_PER_BATCH * GEOMETRY.0 * SHARD_BYTES;
        assert_eq!(DATA_BYTES % batch_bytes, 0);
        assert_eq!(STRIPES % STRIPES_PER_BATCH, 0);
    }

    #[test]
    fn lanes_of_a_device_encode_all_of_it_and_are_timed() {
        let encoder = Encoder::new((4, 2), select("auto").expect("one")).expect("a code");
        let mut arena = Arena::default();
        let geometry = encoder.codec().geometry();
        let mut lane = lane(&mut arena, geometry, (4096, STRIPES)).expect("memory");
        let pool = Pool::new(&mut lane, 4, STRIPES_PER_BATCH);
        let device = Simulated::default();
        let lanes = (0..3).map(|_| encoder.in_lane(device.lane().expect("a lane")));
        let workers: Vec<Worker<'_>> = lanes.collect();
        let goal = Goal::Batches(pool.batches_of(10 * 5 * 4 * 4096 - 1));
        let done = pool.run(&workers, goal).expect("done");
        assert_eq!(done.batches.iter().sum::<usize>(), 10);
        assert_eq!(pool.verify(encoder.codec()).expect("sound"), 50);
        assert_eq!(device.batches(), [STRIPES_PER_BATCH; 10]);
    }

    #[test]
    fn the_best_number_of_lanes_is_compared() {
        let rows = times(
            &[60.0, 40.0, 29.2977, 30.0, 31.0],
            2929.77,
            ("best", 146.4885),
        );
        assert_eq!(rows[0].ours, Ok(29.2977));
        assert!((rows[0].ratio().expect("both") - 10.0).abs() < 1e-9);
        let speed_up = rows.last().expect("the speed-up");
        assert!(
            (speed_up.ours.expect("measured") - 5.0).abs() < 1e-9,
            "over the best of the CPU"
        );
        let missing = |row: &PaperRow| row.ours == Err(Missing::NoGpu);
        let rows = times(&[], 2929.77, ("best", 146.4885));
        assert_eq!(rows.iter().filter(|row| missing(row)).count(), 7);
        assert_eq!(rows.iter().filter(|row| !missing(row)).count(), 2);
    }

    #[test]
    fn a_time_is_that_of_all_data_of_the_source() {
        let encoder = Encoder::new((4, 2), select("auto").expect("one")).expect("a code");
        let mut arena = Arena::default();
        let geometry = encoder.codec().geometry();
        let mut lane = lane(&mut arena, geometry, (8000, STRIPES)).expect("memory");
        let pool = Pool::new(&mut lane, 4, STRIPES_PER_BATCH);
        let bytes = AtomicUsize::new(0);
        let count = |stripes: &mut [Stripe<'_>]| {
            let data = stripes.iter().flat_map(|stripe| &stripe[..4]);
            bytes.fetch_add(data.map(|shard| shard.len()).sum(), Ordering::Relaxed);
            Ok(())
        };
        let workers = [(); 2].map(|()| Worker {
            encodes: false,
            work: Box::new(count),
        });
        milliseconds(&pool, &encoder, &workers, 3).expect("done");
        assert_eq!(bytes.load(Ordering::Relaxed), 3 * 1_600_000_000);
    }
}
