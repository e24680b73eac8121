//! The accelerator of a volume: the CPU, the devices, or for each pass whichever is done first.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::Mutex;

use super::choice::{Choice, Class, Side};
use super::meter::{Coded, Meter};
use super::pipeline::Pipeline;
use super::{Device, DeviceError};
use crate::codec::{Accelerator, Item, Offer};
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
    cpu: Meter,
    devices: Meter,
    redone: AtomicU64,
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
        let dispatch = Self::to_cpu();
        dispatch.shared.start(devices)?;
        Ok(dispatch)
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
        self.pipeline.get().filter(|pipeline| pipeline.is_working())
    }

    fn compute(&self, offer: &mut Offer<'_, '_>) {
        let item = offer.item();
        let (class, bytes) = (Class::of(item), item.total_bytes());
        let Some(pipeline) = self.working_pipeline().filter(|_| bytes >= SMALL_BYTES) else {
            self.compute_on_cpu(offer);
            return;
        };
        let Some(choice) = &self.choice else {
            self.compute_on_device(pipeline, offer);
            return;
        };
        let ticket = choice.lock().begin(class, bytes);
        let start = Instant::now();
        let as_expected = match ticket.side {
            Side::Cpu => {
                self.compute_on_cpu(offer);
                true
            }
            Side::Device => self.compute_on_device(pipeline, offer),
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
    fn compute_on_device(&self, pipeline: &Pipeline, offer: &mut Offer<'_, '_>) -> bool {
        self.devices.begin(Instant::now());
        let done = pipeline.run(offer.matrix(), offer.item_mut()).is_ok();
        let bytes = done.then(|| source_bytes(offer.item()));
        self.devices.end(Instant::now(), bytes);
        if !done {
            self.redone.fetch_add(1, Ordering::Relaxed);
            self.compute_on_cpu(offer);
        }
        done
    }
}

fn source_bytes(item: &Item<'_>) -> usize {
    item.sources.len() * item.shard_bytes()
}

#[cfg(test)]
mod tests;
