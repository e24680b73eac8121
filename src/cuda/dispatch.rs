//! The accelerator of a volume: the CPU, the devices, or for each pass whichever is done first.
//!
//! A device is trusted with passes of a kind, by geometry, operation and length, once the CPU has computed
//! the first of that kind as well, with the same result. A driver or a kernel that is wrong on some machine
//! would otherwise be noticed when what it computed is needed, and too late.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use lru::LruCache;
use parking_lot::Mutex;

use super::choice::{CLASSES, Choice, Class, Side};
use super::meter::{Coded, Meter};
use super::pipeline::Pipeline;
use super::{Device, DeviceError};
use crate::codec::{Accelerator, Item, Offer, Targets};
use crate::store::Pinner;

/// Passes over fewer bytes than this stay on the CPU: it has computed them before a device is asked.
const SMALL_BYTES: usize = 64 << 10;

/// Devices that were found.
pub type Devices = Vec<Arc<dyn Device>>;

/// Has each pass computed where it is to be, and measures.
///
/// Passes that a device could not finish are computed again on the CPU, in whole.
#[derive(Debug)]
pub struct Dispatch {
    shared: Arc<Shared>,
    /// What still looks for devices.
    starting: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    pipeline: OnceLock<Pipeline>,
    /// Nothing where devices get all that they can do.
    choice: Option<Mutex<Choice>>,
    /// Whether short passes, too, may leave the CPU.
    takes_short: bool,
    cpu: Meter,
    devices: Meter,
    redone: AtomicU64,
    /// Kinds of passes that devices were seen to compute as the CPU does.
    trusted: Mutex<Trusted>,
    /// Whether one was seen not to.
    distrusted: AtomicBool,
    cannot_pin: AtomicBool,
}

/// What was coded, and where.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Coding {
    /// What the CPU coded.
    pub cpu: Coded,
    /// What devices coded.
    pub cuda: Coded,
    /// Passes that the CPU did in the end because a device had failed to.
    pub redone: u64,
    /// Names of the devices in use.
    pub devices: Vec<String>,
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
        let shared = Arc::new(Shared {
            takes_short,
            ..Shared::default()
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
        let shared = Arc::new(Shared {
            choice: Some(Mutex::default()),
            ..Shared::default()
        });
        let look = {
            let shared = Arc::clone(&shared);
            move || match find().and_then(|devices| shared.start(devices)) {
                Ok(()) => {}
                Err(error @ (DeviceError::NoDriver { .. } | DeviceError::NoDevice)) => {
                    log::debug!("coding on the CPU only: {error}");
                }
                Err(error) => log::warn!("coding on the CPU only: {error}"),
            }
        };
        let started = std::thread::Builder::new()
            .name("cuda-find".to_owned())
            .spawn(look);
        let starting = started
            .inspect_err(|error| log::warn!("coding on the CPU only: no thread: {error}"))
            .ok();
        Self { shared, starting }
    }

    /// Waits until devices have been looked for.
    pub fn settle(&mut self) {
        if let Some(thread) = self.starting.take()
            && thread.join().is_err()
        {
            log::error!("looking for GPUs panicked; coding on the CPU only");
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
        }
    }

    /// Returns whether devices code: they are at hand, and either everything goes to them or most of
    /// what was coded so far did.
    #[must_use]
    pub fn is_on_devices(&self) -> bool {
        let most = || self.shared.devices.coded().bytes > self.shared.cpu.coded().bytes;
        self.shared.working_pipeline().is_some() && (self.shared.choice.is_none() || most())
    }
}

impl Drop for Dispatch {
    fn drop(&mut self) {
        self.settle();
    }
}

impl Accelerator for Dispatch {
    fn compute(&self, offer: &mut Offer<'_, '_>) {
        self.shared.compute(offer);
    }
}

impl Pinner for Dispatch {
    fn pin(&self, memory: &mut [u8]) -> bool {
        if self.shared.cannot_pin.load(Ordering::Relaxed) {
            return false;
        }
        let pipeline = self.shared.working_pipeline();
        let Some(device) = pipeline.and_then(Pipeline::pinning_device) else {
            return false;
        };
        let pinned = device.pin(memory);
        if let Err(error) = &pinned
            && !self.shared.cannot_pin.swap(true, Ordering::Relaxed)
        {
            log::warn!(
                "GPU {}: {error}; it codes more slowly from memory that is not pinned",
                device.name()
            );
        }
        pinned.is_ok()
    }

    fn unpin(&self, memory: &mut [u8]) {
        let device = self
            .shared
            .pipeline
            .get()
            .and_then(Pipeline::pinning_device);
        // A device that was given up has lost what it had pinned.
        if let Some(Err(error)) = device.map(|device| device.unpin(memory)) {
            log::debug!("memory stays pinned: {error}");
        }
    }
}

impl Shared {
    fn start(&self, devices: Devices) -> Result<(), DeviceError> {
        if devices.is_empty() {
            return Err(DeviceError::NoDevice);
        }
        let names: Vec<&str> = devices.iter().map(|device| device.name()).collect();
        log::info!("coding on {}", names.join(", "));
        let pipeline = Pipeline::start(devices).map_err(|error: io::Error| {
            let reason = error.to_string();
            let operation = "start a thread";
            DeviceError::Failed { operation, reason }
        })?;
        let _ = self.pipeline.set(pipeline);
        Ok(())
    }

    fn working_pipeline(&self) -> Option<&Pipeline> {
        let pipeline = self.pipeline.get()?;
        let is_trusted = !self.distrusted.load(Ordering::Relaxed);
        (is_trusted && pipeline.is_working()).then_some(pipeline)
    }

    fn compute(&self, offer: &mut Offer<'_, '_>) {
        let item = offer.item();
        let (class, bytes) = (Class::of(item), item.total_bytes());
        let is_worth_it = bytes >= SMALL_BYTES || self.takes_short;
        let Some(pipeline) = self.working_pipeline().filter(|_| is_worth_it) else {
            self.compute_on_cpu(offer);
            return;
        };
        let Some(choice) = &self.choice else {
            self.compute_on_device(pipeline, class, offer);
            return;
        };
        let ticket = choice.lock().begin(class, bytes);
        let start = Instant::now();
        let as_expected = match ticket.side {
            Side::Cpu => {
                self.compute_on_cpu(offer);
                true
            }
            Side::Device => self.compute_on_device(pipeline, class, offer),
        };
        let took = as_expected.then(|| start.elapsed());
        choice.lock().end(&ticket, took);
    }

    fn compute_on_cpu(&self, offer: &mut Offer<'_, '_>) {
        self.cpu.begin(Instant::now());
        offer.compute_on_cpu();
        self.cpu
            .end(Instant::now(), Some(source_bytes(offer.item())));
    }

    /// Returns whether it was a device that computed it in the end.
    fn compute_on_device(
        &self,
        pipeline: &Pipeline,
        class: Class,
        offer: &mut Offer<'_, '_>,
    ) -> bool {
        self.devices.begin(Instant::now());
        let done = pipeline.run(offer.matrix(), offer.item_mut()).is_ok();
        let bytes = done.then(|| source_bytes(offer.item()));
        self.devices.end(Instant::now(), bytes);
        if done {
            self.check_once(class, offer);
        } else {
            self.redone.fetch_add(1, Ordering::Relaxed);
            self.compute_on_cpu(offer);
        }
        done
    }

    /// Has the CPU compute it, too, if it is the first of its kind that a device did, and gives all devices
    /// up if that makes a difference. What is left behind is the CPU's.
    fn check_once(&self, class: Class, offer: &mut Offer<'_, '_>) {
        if self.trusted.lock().0.get(&class).is_some() {
            return;
        }
        let by_device = Outcome::of(offer.item());
        offer.compute_on_cpu();
        if by_device == Outcome::of(offer.item()) {
            self.trusted.lock().0.put(class, ());
        } else if !self.distrusted.swap(true, Ordering::Relaxed) {
            log::error!("GPUs compute wrong results on this machine; coding on the CPU only");
        }
    }
}

/// Kinds of passes.
#[derive(Debug)]
struct Trusted(LruCache<Class, ()>);

impl Default for Trusted {
    fn default() -> Self {
        Self(LruCache::new(CLASSES))
    }
}

/// All that comes of a pass.
#[derive(PartialEq)]
struct Outcome {
    written: Vec<Vec<u8>>,
    wrong: Vec<bool>,
    sums: Vec<Vec<u32>>,
}

impl Outcome {
    fn of(item: &Item<'_>) -> Self {
        let (written, wrong) = match &item.targets {
            Targets::Written(shards) => {
                let copies = shards.iter().map(|shard| shard.to_vec());
                (copies.collect(), Vec::new())
            }
            Targets::Compared { wrong, .. } => (Vec::new(), wrong.clone()),
        };
        Self {
            written,
            wrong,
            sums: item.sums.iter().map(|list| list.to_vec()).collect(),
        }
    }
}

fn source_bytes(item: &Item<'_>) -> usize {
    item.sources.len() * item.shard_bytes()
}

#[cfg(test)]
mod tests;
