//! Rows of GPUs: stripes that go over the bus and back, as the filesystem's do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use super::error::BenchError;
use super::lane::{Arena, Lane};
use super::row::{Contender, Row, RowPlan, median, stripes_per_second, to_f64};
use super::setting::{Operation, WorkingSet};
use crate::coding::Dispatch;
use crate::cuda::{Bus, Device, DeviceError, Gpu};

/// The name under which GPUs are asked for.
pub(super) const GPU_ENGINE: &str = "cuda";

/// Bytes that one copy takes each way where nothing but the bus is measured.
const COPY_BYTES: usize = 64 << 20;

/// The number of turns of transactions and bus.
const TURNS: u32 = 3;

/// The least time of a turn: so long that it does not matter how callers begin and end.
const LEAST_TURN: Duration = Duration::from_millis(200);

/// The GPUs of this machine, ready to code.
#[derive(Debug)]
pub(super) struct Gpus {
    dispatch: Dispatch,
    first: Gpu,
    /// One for each.
    buses: Vec<Mutex<Copies>>,
}

/// A bus, and memory at this end of it.
struct Copies {
    bus: Bus,
    send: Pinned,
    fetch: Pinned,
}

impl Copies {
    fn new(gpu: &Gpu) -> Result<Mutex<Self>, DeviceError> {
        Ok(Mutex::new(Self {
            bus: gpu.bus(COPY_BYTES)?,
            send: Pinned::new(gpu, COPY_BYTES)?,
            fetch: Pinned::new(gpu, COPY_BYTES)?,
        }))
    }

    /// Copies so many bytes there and back again and again; returns how many a second went there.
    fn rate(&mut self, there: usize, back: usize, time: Duration) -> Result<f64, DeviceError> {
        let start = Instant::now();
        let mut total = 0;
        loop {
            let (from, to) = (&self.send.bytes[..there], &mut self.fetch.bytes[..back]);
            self.bus.copy(from, to)?;
            total += there;
            let elapsed = start.elapsed();
            if elapsed >= time {
                return Ok(to_f64(total) / elapsed.as_secs_f64());
            }
        }
    }
}

/// Memory that a device knows of.
struct Pinned {
    gpu: Gpu,
    bytes: Vec<u8>,
}

impl Pinned {
    fn new(gpu: &Gpu, len: usize) -> Result<Self, DeviceError> {
        let mut bytes = vec![1; len];
        gpu.pin(&mut bytes)?;
        Ok(Self {
            gpu: gpu.clone(),
            bytes,
        })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        unpin(&self.gpu, &mut self.bytes);
    }
}

impl std::fmt::Debug for Copies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Copies")
    }
}

impl Gpus {
    /// Opens all GPUs.
    ///
    /// # Errors
    ///
    /// If there are none.
    pub(super) fn open() -> Result<Self, DeviceError> {
        Self::of(Gpu::all()?)
    }

    /// Opens the first GPU, and leaves any others alone.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub(super) fn open_first() -> Result<Self, DeviceError> {
        let mut gpus = Gpu::all()?;
        gpus.truncate(1);
        Self::of(gpus)
    }

    fn of(gpus: Vec<Gpu>) -> Result<Self, DeviceError> {
        let first = gpus.first().ok_or(DeviceError::NoDevice)?.clone();
        let buses = gpus.iter().map(Copies::new).collect::<Result<_, _>>()?;
        let devices = gpus.into_iter().map(|gpu| Arc::new(gpu) as Arc<dyn Device>);
        Ok(Self {
            dispatch: Dispatch::all_to_devices(devices.collect())?,
            first,
            buses,
        })
    }

    /// Returns the first.
    pub(super) fn first(&self) -> &Gpu {
        &self.first
    }

    /// Returns the name of the first.
    pub(super) fn name(&self) -> &str {
        self.first.name()
    }

    /// Returns the accelerator that gives them everything.
    pub(super) fn dispatch(&self) -> &Dispatch {
        &self.dispatch
    }

    /// Pins the memory of lanes for as long as the result lives.
    ///
    /// # Errors
    ///
    /// If the system does not allow it.
    pub(super) fn pin<'g, 'l, 'a>(
        &'g self,
        lanes: &'l mut [Lane<'a>],
    ) -> Result<Held<'g, 'l, 'a>, DeviceError> {
        Held::new(&self.first, lanes, true)
    }

    /// Returns how fast bytes are copied to the first and from it, each alone, in 10⁹ a second: from and to memory
    /// that is pinned, or that is not.
    ///
    /// # Errors
    ///
    /// If it is lost.
    pub(super) fn one_way_gb_per_s(
        &self,
        is_pinned: bool,
        time: Duration,
    ) -> Result<(f64, f64), DeviceError> {
        let mut copies = self.buses.first().ok_or(DeviceError::NoDevice)?.lock();
        let Copies { bus, send, fetch } = &mut *copies;
        let mut pageable = (Vec::new(), Vec::new());
        let (from, to) = if is_pinned {
            (&send.bytes[..], &mut fetch.bytes[..])
        } else {
            pageable.0.resize(COPY_BYTES, 1);
            pageable.1.resize(COPY_BYTES, 1);
            (&pageable.0[..], &mut pageable.1[..])
        };
        let (mut there, mut back) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            there.push(one_way(bus, (from, &mut []), time / TURNS)? / 1e9);
            back.push(one_way(bus, (&[], to), time / TURNS)? / 1e9);
        }
        Ok((median(there), median(back)))
    }

    /// Returns how fast bytes are copied to all of them together, and nothing else, in 10⁹ a second.
    ///
    /// # Errors
    ///
    /// If one is lost.
    pub(super) fn send_gb_per_s(&self) -> Result<f64, DeviceError> {
        let turn = || self.copy_rate(COPY_BYTES, 0, Duration::from_millis(100));
        let rates: Result<Vec<f64>, DeviceError> = (0..TURNS).map(|_| turn()).collect();
        Ok(median(rates?) / 1e9)
    }

    /// Returns how fast shares of bytes are copied to all of them together and back, both at once and nothing else: those
    /// that come back, in 10⁹ a second.
    ///
    /// # Errors
    ///
    /// If one is lost.
    pub(super) fn both_ways_gb_per_s(
        &self,
        (there, back): (usize, usize),
        time: Duration,
    ) -> Result<f64, DeviceError> {
        let unit = COPY_BYTES / there.max(back);
        let turn = || self.copy_rate(there * unit, back * unit, time / TURNS);
        let rates: Result<Vec<f64>, DeviceError> = (0..TURNS).map(|_| turn()).collect();
        Ok(median(rates?) / to_f64(there) * to_f64(back) / 1e9)
    }

    /// Copies so many bytes to each of them and back, all at once; returns how many a second went there.
    fn copy_rate(&self, there: usize, back: usize, time: Duration) -> Result<f64, DeviceError> {
        let no_thread = |error: std::io::Error| DeviceError::Failed {
            operation: "start a thread",
            reason: error.to_string(),
        };
        std::thread::scope(|scope| {
            let rate = |bus: &Mutex<Copies>| bus.lock().rate(there, back, time);
            let workers = self.buses.iter().map(|bus| {
                let builder = std::thread::Builder::new();
                builder.spawn_scoped(scope, move || rate(bus))
            });
            let workers: Vec<_> = workers.collect::<Result<_, _>>().map_err(no_thread)?;
            let rates = workers
                .into_iter()
                .map(|worker| worker.join().expect("copying does not panic"));
            rates.sum()
        })
    }
}

/// Copies again and again, where one of the ends is empty; returns how many bytes a second went the other way.
fn one_way(
    bus: &mut Bus,
    (from, to): (&[u8], &mut [u8]),
    time: Duration,
) -> Result<f64, DeviceError> {
    let start = Instant::now();
    let mut total = 0;
    loop {
        bus.copy(from, to)?;
        total += from.len() + to.len();
        let elapsed = start.elapsed();
        if elapsed >= time {
            return Ok(to_f64(total) / elapsed.as_secs_f64());
        }
    }
}

fn unpin(gpu: &Gpu, memory: &mut [u8]) {
    if let Err(error) = gpu.unpin(memory) {
        tracing::debug!("memory stays pinned: {error}");
    }
}

/// Lanes whose memory is pinned, if it is to be.
pub(super) struct Held<'g, 'l, 'a> {
    gpu: &'g Gpu,
    lanes: &'l mut [Lane<'a>],
    pinned: usize,
}

impl<'g, 'l, 'a> Held<'g, 'l, 'a> {
    fn new(gpu: &'g Gpu, lanes: &'l mut [Lane<'a>], pin: bool) -> Result<Self, DeviceError> {
        let mut held = Self {
            gpu,
            lanes,
            pinned: 0,
        };
        while pin && held.pinned < held.lanes.len() {
            gpu.pin(held.lanes[held.pinned].memory())?;
            held.pinned += 1;
        }
        Ok(held)
    }

    /// Returns the lanes.
    pub(super) fn lanes(&mut self) -> &mut [Lane<'a>] {
        self.lanes
    }
}

impl Drop for Held<'_, '_, '_> {
    fn drop(&mut self) {
        for lane in &mut self.lanes[..self.pinned] {
            unpin(self.gpu, lane.memory());
        }
    }
}

impl RowPlan {
    /// Measures on the GPUs for about as long as `time`, with as many callers at once as the setting has
    /// threads.
    ///
    /// # Errors
    ///
    /// [`BenchError`] if the system gives no memory or no threads, or a GPU fails.
    pub(super) fn measure_on(
        &self,
        gpus: &Gpus,
        arena: &mut Arena,
        time: Duration,
    ) -> Result<Row, BenchError> {
        let mut lanes = self.lanes(arena)?;
        let is_pinned = self.setting.working_set == WorkingSet::Pinned;
        let held = Held::new(&gpus.first, &mut lanes, is_pinned)?;
        let turn = (time / TURNS / 3).max(LEAST_TURN);
        let data_bytes = self.geometry().data_shards() * self.setting.shard_bytes;
        let (mut rates, mut seconds_per_tb) = (Vec::new(), Vec::new());
        let (mut limits, mut sends) = (Vec::new(), Vec::new());
        let before = gpus.dispatch.coding();
        // Work that is done only once is done now: kernels are compiled, and the CPU repeats new
        // computations.
        let warm_up: Contender = Box::new(|lane| self.call(lane, &gpus.dispatch));
        stripes_per_second(held.lanes, &warm_up, LEAST_TURN)?;
        drop(warm_up);
        for _ in 0..TURNS {
            // Callers wait for each other's stripes, so only what all of them got done together counts.
            let (stripes, done) = (AtomicUsize::new(0), Mutex::new(Instant::now()));
            let contender: Contender = Box::new(|lane| {
                self.call(lane, &gpus.dispatch);
                stripes.fetch_add(self.setting.stripes, Ordering::Relaxed);
                *done.lock() = Instant::now();
            });
            let (start, cpu) = (Instant::now(), cpu_seconds());
            stripes_per_second(held.lanes, &contender, turn)?;
            let cpu = cpu_seconds() - cpu;
            let bytes = to_f64(stripes.load(Ordering::Relaxed) * data_bytes);
            let seconds = (*done.lock() - start).as_secs_f64();
            rates.push(bytes / seconds / 1e9);
            seconds_per_tb.push(cpu / bytes * 1e12);
            limits.push(self.limit(gpus, turn)? / 1e9);
            sends.push(gpus.copy_rate(COPY_BYTES, 0, turn)? / 1e9);
        }
        let after = gpus.dispatch.coding();
        if (after.redone, after.cpu.passes) != (before.redone, before.cpu.passes) {
            return Err(BenchError::NotOnGpu);
        }
        Ok(Row {
            engine: GPU_ENGINE,
            gb_per_s: median(rates),
            limit_gb_per_s: median(limits),
            isal_gb_per_s: None,
            cpu_seconds_per_tb: Some(median(seconds_per_tb)),
            h2d_gb_per_s: Some(median(sends)),
            ..self.blank_row()
        })
    }

    /// Returns how many bytes of data a second the bus moves if it copies what this moves, and no more.
    fn limit(&self, gpus: &Gpus, time: Duration) -> Result<f64, DeviceError> {
        let (k, m) = (
            self.geometry().data_shards(),
            self.geometry().parity_shards(),
        );
        let (there, back) = match self.setting.operation {
            Operation::Encode => (k, m),
            Operation::Decode => (k, m.min(k)),
            Operation::Verify => (k + m, 0),
        };
        let unit = COPY_BYTES / there.max(back);
        let rate = gpus.copy_rate(there * unit, back * unit, time)?;
        Ok(rate / to_f64(there) * to_f64(k))
    }
}

/// Returns the time that all cores together have worked for this process.
pub(super) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let whole = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(whole, nanoseconds).as_secs_f64()
}

/// Returns the GPUs, or nothing on a machine without one.
///
/// # Errors
///
/// If there is one, and it cannot be used: figures without it would be misleading.
pub(super) fn present<T>(opened: Result<T, DeviceError>) -> Result<Option<T>, DeviceError> {
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(error) if error.is_absence() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_machine_without_a_gpu_goes_on_without_it() {
        assert_eq!(present(Ok(1)), Ok(Some(1)));
        for absent in [DeviceError::NoDriver, DeviceError::NoDevice] {
            assert_eq!(present::<()>(Err(absent)), Ok(None));
        }
        let reason = "out of order".to_owned();
        let broken = DeviceError::BadDriver { reason };
        assert_eq!(present::<()>(Err(broken.clone())), Err(broken));
    }
}
