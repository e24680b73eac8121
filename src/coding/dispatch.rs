//! The accelerator of a volume: the CPU, the devices, or for each pass whichever is done first.
//!
//! A device is trusted with passes that it computes in one way, by matrix, kernel, operation, length, company
//! and position in it. Before that, the CPU must have computed the first of these as well, with the same result. Otherwise a driver or a
//! kernel that is wrong on some machine would be noticed too late: when its results are needed.
//!
//! Passes that are submitted together are with devices at the same time. Their caller sleeps until the last of them is
//! done, because being woken costs the CPU as much as a good part of a stripe. Meanwhile the caller computes those
//! that the CPU gets.

mod trust;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::choice::{Choice, Class, Dealt, Side, Ticket};
use super::meter::{Coded, Meter};
use super::pipeline::{Ended, Order, PATIENCE, Pipeline, Ran};
use crate::codec::{Accelerator, CodingTask, Item};
use crate::cuda::{Device, DeviceError};
use crate::store::{Pinner, Unpinner};
use trust::{Outcome, Trust, Way, sees_damage};

/// Passes over fewer bytes than this stay on the CPU: it has computed them before a device is asked.
pub const SMALL_BYTES: usize = 64 << 10;

/// Devices that were found.
pub type Devices = Vec<Arc<dyn Device>>;

/// Has each pass computed where it is to be, and measures.
///
/// Passes that a device could not finish are computed again on the CPU, in whole.
#[derive(Debug)]
pub struct Dispatch {
    shared: Arc<DispatchShared>,
    /// The thread that still looks for devices.
    starting: Option<Starting>,
}

/// A thread that looks for devices.
#[derive(Debug)]
struct Starting {
    thread: JoinHandle<()>,
    /// Nothing ever comes; closed when the thread ends.
    ended: Mutex<Receiver<()>>,
    /// The time for which the search is waited for once its result is not needed any more.
    patience: Duration,
}

#[derive(Debug, Default)]
struct DispatchShared {
    pipeline: OnceLock<Pipeline>,
    /// Nothing where devices get all that they can do.
    choice: Option<Mutex<Choice>>,
    /// True if short passes, too, may leave the CPU.
    takes_short: bool,
    cpu: Meter,
    devices: Meter,
    redone: AtomicU64,
    trust: Trust,
    cannot_pin: AtomicBool,
}

/// The coded bytes of both sides.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Coding {
    /// The passes that the CPU coded.
    pub cpu: Coded,
    /// The passes that devices coded.
    pub cuda: Coded,
    /// Passes that the CPU did in the end because a device had failed to, or had been wrong.
    pub redone: u64,
    /// Names of the devices in use.
    pub devices: Vec<String>,
    /// Names of those that do not answer. Stripes that are with them can be neither written nor coded elsewhere.
    pub hanging: Vec<String>,
    /// The names of all devices, in their order, with the time in which each had at least one batch. Those that were given
    /// up are among them.
    pub device_times: Vec<(String, Duration)>,
}

impl Dispatch {
    /// Leaves everything to the CPU.
    #[must_use]
    pub fn to_cpu() -> Self {
        Self {
            shared: Arc::default(),
            starting: None,
        }
    }

    /// Gives everything to the devices but what is so short that this makes no sense.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] if there are none.
    pub fn to_devices(devices: Devices) -> Result<Self, DeviceError> {
        Self::to_devices_from(devices, false)
    }

    /// Gives everything to the devices, to measure what they make of it.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] if there are none.
    pub fn all_to_devices(devices: Devices) -> Result<Self, DeviceError> {
        Self::to_devices_from(devices, true)
    }

    fn to_devices_from(devices: Devices, takes_short: bool) -> Result<Self, DeviceError> {
        let shared = Arc::new(DispatchShared {
            takes_short,
            ..DispatchShared::default()
        });
        shared.start(devices)?;
        Ok(Self {
            shared,
            starting: None,
        })
    }

    /// Has each pass computed where it is expected to be done first. Devices are looked for by a thread of
    /// its own, since that takes long; until they are found, and if none are, there is only the CPU.
    pub fn to_fastest(
        find: impl FnOnce() -> Result<Devices, DeviceError> + Send + 'static,
    ) -> Self {
        Self::to_fastest_within(find, PATIENCE)
    }

    fn to_fastest_within(
        find: impl FnOnce() -> Result<Devices, DeviceError> + Send + 'static,
        patience: Duration,
    ) -> Self {
        let shared = Arc::new(DispatchShared {
            choice: Some(Mutex::default()),
            ..DispatchShared::default()
        });
        let (ends, ended) = mpsc::channel();
        let look = {
            let shared = Arc::clone(&shared);
            move || {
                match find().and_then(|devices| shared.start(devices)) {
                    Ok(()) => {}
                    Err(error) if error.is_absence() => {
                        tracing::debug!("coding on the CPU only: {error}");
                    }
                    Err(error) => tracing::warn!("coding on the CPU only: {error}"),
                }
                drop(ends);
            }
        };
        let started = std::thread::Builder::new()
            .name("cuda-find".to_owned())
            .spawn(look);
        let starting = started
            .map(|thread| Starting {
                thread,
                ended: Mutex::new(ended),
                patience,
            })
            .inspect_err(|error| tracing::warn!("coding on the CPU only: no thread: {error}"))
            .ok();
        Self { shared, starting }
    }

    /// Waits until devices have been looked for.
    pub fn settle(&mut self) {
        if let Some(starting) = self.starting.take()
            && starting.thread.join().is_err()
        {
            tracing::error!("looking for GPUs panicked; coding on the CPU only");
        }
    }

    /// Returns what was coded so far.
    #[must_use]
    pub fn coding(&self) -> Coding {
        let pipeline = self.shared.working_pipeline();
        Coding {
            cpu: self.shared.cpu.coded(),
            cuda: self.shared.devices.coded(),
            redone: self.shared.redone.load(Ordering::Relaxed),
            devices: pipeline.map_or_else(Vec::new, Pipeline::device_names),
            hanging: self
                .shared
                .pipeline
                .get()
                .map_or_else(Vec::new, Pipeline::hanging_device_names),
            device_times: self
                .shared
                .pipeline
                .get()
                .map_or_else(Vec::new, Pipeline::device_times),
        }
    }

    /// Returns whether devices code: they are available, and either everything goes to them or most of what was coded
    /// so far did.
    #[must_use]
    pub fn is_on_devices(&self) -> bool {
        let most = || self.shared.devices.coded().bytes > self.shared.cpu.coded().bytes;
        self.shared.working_pipeline().is_some() && (self.shared.choice.is_none() || most())
    }
}

impl Drop for Dispatch {
    fn drop(&mut self) {
        if let Some(Starting {
            ended, patience, ..
        }) = &mut self.starting
            && ended.get_mut().recv_timeout(*patience) == Err(RecvTimeoutError::Timeout)
        {
            tracing::warn!("GPUs have been looked for in vain: the driver does not answer");
            self.starting = None; // it may never end
        }
        self.settle();
    }
}

impl Accelerator for Dispatch {
    fn compute(&self, tasks: &mut [CodingTask<'_, '_>]) {
        self.shared.compute(tasks);
    }

    fn prefers_many(&self) -> bool {
        self.is_on_devices()
    }

    fn distrust(&self) {
        if self.shared.working_pipeline().is_some() {
            self.shared.trust.lose();
        }
    }
}

impl Pinner for Dispatch {
    fn pin(&self, memory: &mut [u8]) -> Option<Arc<dyn Unpinner>> {
        if self.shared.cannot_pin.load(Ordering::Relaxed) {
            return None;
        }
        let pipeline = self.shared.working_pipeline()?;
        let device = Arc::clone(pipeline.pinning_device()?);
        match device.pin(memory) {
            Ok(()) => Some(Arc::new(Pinned {
                device,
                shared: Arc::clone(&self.shared),
            })),
            Err(error) => {
                self.shared.pin_no_more(|| {
                    let name = device.name();
                    tracing::warn!(
                        gpu = name,
                        "{error}; it codes more slowly from memory that is not pinned"
                    );
                });
                None
            }
        }
    }
}

/// The device that pinned some memory. The memory stays pinned when the device is given up: it may have failed
/// for another reason, and other devices know the memory as well.
#[derive(Debug)]
struct Pinned {
    device: Arc<dyn Device>,
    shared: Arc<DispatchShared>,
}

impl Unpinner for Pinned {
    fn unpin(&self, memory: &mut [u8]) -> bool {
        let unpinned = self.device.unpin(memory);
        if let Err(error) = &unpinned {
            // Memory that is never freed is bounded by what is pinned already.
            self.shared.pin_no_more(|| {
                let name = self.device.name();
                tracing::warn!(
                    gpu = name,
                    "{error}; memory it knows stays taken until the end"
                );
            });
        }
        unpinned.is_ok()
    }
}

impl DispatchShared {
    fn start(&self, devices: Devices) -> Result<(), DeviceError> {
        if devices.is_empty() {
            return Err(DeviceError::NoDevice);
        }
        let names: Vec<&str> = devices.iter().map(|device| device.name()).collect();
        tracing::info!("coding on {}", names.join(", "));
        let pipeline = Pipeline::start(devices).map_err(|error: io::Error| {
            let reason = error.to_string();
            let operation = "start a thread";
            DeviceError::Failed { operation, reason }
        })?;
        let _ = self.pipeline.set(pipeline);
        Ok(())
    }

    /// Has no more memory pinned; says so the first time.
    fn pin_no_more(&self, say: impl FnOnce()) {
        if !self.cannot_pin.swap(true, Ordering::Relaxed) {
            say();
        }
    }

    fn working_pipeline(&self) -> Option<&Pipeline> {
        let pipeline = self.pipeline.get()?;
        (!self.trust.is_lost() && pipeline.is_working()).then_some(pipeline)
    }

    fn compute(&self, tasks: &mut [CodingTask<'_, '_>]) {
        let is_any_long = tasks.iter().any(|task| self.is_worth_it(task.item()));
        let Some(pipeline) = self.working_pipeline().filter(|_| is_any_long) else {
            for task in tasks {
                self.compute_on_cpu(task);
            }
            return;
        };
        let Shares {
            mut cpu,
            mut devices,
            tickets,
        } = self.deal(tasks);
        let start = Instant::now();
        let mut cpu_took = Duration::ZERO;
        let devices_took = self.compute_on_devices(pipeline, &mut devices, || {
            for task in &mut cpu {
                self.compute_on_cpu(task);
            }
            cpu_took = start.elapsed();
        });
        if let Some(choice) = &self.choice {
            let mut choice = choice.lock();
            for ticket in &tickets {
                let took = match ticket.side {
                    Side::Cpu => Some(cpu_took),
                    Side::Device => devices_took,
                };
                choice.end(ticket, took);
            }
        }
    }

    /// Returns whether a device may be asked to compute an item.
    fn is_worth_it(&self, item: &Item<'_>) -> bool {
        item.total_bytes() >= SMALL_BYTES || self.takes_short
    }

    /// Shares passes out among the CPU and devices.
    fn deal<'o, 'p, 't>(&self, tasks: &'o mut [CodingTask<'p, 't>]) -> Shares<'o, 'p, 't> {
        let (long, short): (Vec<_>, Vec<_>) = tasks
            .iter_mut()
            .partition(|task| self.is_worth_it(task.item()));
        let Some(choice) = &self.choice else {
            return Shares {
                cpu: short,
                devices: long,
                tickets: Vec::new(),
            };
        };
        let pass = |task: &&mut CodingTask<'_, '_>| {
            let item = task.item();
            (Class::of(item), item.total_bytes())
        };
        let passes: Vec<(Class, usize)> = long.iter().map(pass).collect();
        let Dealt { sides, tickets } = choice.lock().deal(&passes);
        let mut shares = Shares {
            cpu: short,
            devices: Vec::new(),
            tickets,
        };
        for (task, side) in long.into_iter().zip(sides) {
            match side {
                Side::Cpu => shares.cpu.push(task),
                Side::Device => shares.devices.push(task),
            }
        }
        shares
    }

    fn compute_on_cpu(&self, task: &mut CodingTask<'_, '_>) {
        self.cpu.begin(Instant::now());
        task.compute_on_cpu();
        self.cpu
            .end(Instant::now(), Some(source_bytes(task.item())));
    }

    /// Has devices compute passes, all at once, and does something `meanwhile`. Returns how long the devices took for
    /// them; nothing if it was the CPU that computed one in the end.
    fn compute_on_devices(
        &self,
        pipeline: &Pipeline,
        tasks: &mut [&mut CodingTask<'_, '_>],
        meanwhile: impl FnOnce(),
    ) -> Option<Duration> {
        let start = Instant::now();
        for _ in 0..tasks.len() {
            self.devices.begin(start);
        }
        let mut orders: Vec<Order<'_, '_>> = tasks.iter_mut().map(|o| o.parts()).collect();
        let Ran { ended, at } = pipeline.run_all(&mut orders, meanwhile);
        for (task, ended) in tasks.iter().zip(&ended) {
            let bytes = ended.is_ok().then(|| source_bytes(task.item()));
            self.devices.end(at, bytes);
        }
        let mut is_right = true;
        let mut untested = Vec::new();
        for (task, ended) in tasks.iter_mut().zip(ended) {
            match self.accept(pipeline, ended, task) {
                Accepted::Untested => untested.push(task),
                Accepted::Tested => {}
                Accepted::Not => is_right = false,
            }
        }
        if self.trust.is_lost() {
            // Those that came before the one that failed its test are as doubtful as those after it.
            is_right = false;
            for task in untested {
                self.redo(task);
            }
        }
        is_right.then(|| at - start)
    }

    /// Takes what a device has made of a pass, or has the CPU compute it.
    fn accept(&self, pipeline: &Pipeline, ended: Ended, task: &mut CodingTask<'_, '_>) -> Accepted {
        let trusted = ended.ok().filter(|_| !self.trust.is_lost());
        let Some(way) = trusted.map(|done| Way::of(task.item(), done)) else {
            self.redo(task);
            return Accepted::Not;
        };
        if self.trust.covers(&way) {
            Accepted::Untested
        } else if self.put_to_the_test(pipeline, way, task) {
            Accepted::Tested
        } else {
            Accepted::Not
        }
    }

    /// Has the CPU compute what a device was to.
    fn redo(&self, task: &mut CodingTask<'_, '_>) {
        self.redone.fetch_add(1, Ordering::Relaxed);
        self.compute_on_cpu(task);
    }

    /// Has the CPU compute it, too, and gives all devices up if that makes a difference; returns whether it
    /// does not. The remaining result is the CPU's.
    fn put_to_the_test(
        &self,
        pipeline: &Pipeline,
        way: Way,
        task: &mut CodingTask<'_, '_>,
    ) -> bool {
        let by_device = Outcome::of(task.item());
        task.compute_on_cpu();
        let mut is_right = by_device == Outcome::of(task.item());
        if is_right {
            match sees_damage(pipeline, task.matrix(), task.item()) {
                Some(true) => self.trust.earn(way),
                Some(false) => is_right = false,
                // The next of its kind is put to the test instead.
                None => {}
            }
        }
        if !is_right {
            self.redone.fetch_add(1, Ordering::Relaxed);
            self.trust.lose();
        }
        is_right
    }
}

/// The decision on the result of a device.
enum Accepted {
    /// Yes, since passes of its kind were right before.
    Untested,
    /// Yes: the CPU came to the same.
    Tested,
    /// No: the CPU computed it.
    Not,
}

/// The sides that compute passes that were submitted together.
struct Shares<'o, 'p, 't> {
    cpu: Vec<&'o mut CodingTask<'p, 't>>,
    devices: Vec<&'o mut CodingTask<'p, 't>>,
    tickets: Vec<Ticket>,
}

fn source_bytes(item: &Item<'_>) -> usize {
    item.sources.len() * item.shard_bytes()
}

#[cfg(test)]
mod tests;
