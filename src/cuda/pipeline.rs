//! Items of many callers, in batches, on the lanes of all devices.
//!
//! Callers wait until their item is done, so there are never more items than callers. A lane that is free
//! takes the item that waits longest together with others like it, as a batch: while lanes are busy,
//! callers gather, and what a batch costs besides its bytes is shared among them. Lanes of all devices
//! take from one queue, so that each device gets as much as it can do.
//!
//! # Invariants
//!
//! - An item is done, or its caller is told that it is not; then nothing touches it any more.
//! - A device that is lost, or fails time and again, is given nothing any more. This is said once.

mod loan;
mod queue;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use super::{Device, DeviceError, Lane, Program, Work};
use crate::codec::{Item, Matrix};
use loan::Loan;
use queue::Queue;

/// Lanes of each device: one copies to the device, one computes or copies back, one gathers.
const LANES: usize = 3;

/// Failures in a row after which a device is taken for broken, though it is not lost.
const MOST_FAILURES: u32 = 8;

/// An item was not done: no device is left, or the one that was to do it failed. Its targets are
/// unspecified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotDone;

/// How an item was done: two that were done alike went the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Done {
    program: Program,
    /// Binary logarithm of how many items the batch had, on which it depends in which pieces they travel.
    magnitude: u32,
    /// Whether the item was the first of them; the places of all others are computed from their numbers.
    is_first: bool,
}

type Ended = Result<Done, NotDone>;

/// Devices with the threads that feed them.
pub(super) struct Pipeline {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    queue: Queue<Ended>,
    stations: Vec<Station>,
}

/// A device, and how it has been doing.
struct Station {
    device: Arc<dyn Device>,
    failures: AtomicU32,
    /// Lanes that could not be made.
    missing_lanes: AtomicUsize,
    has_failed: AtomicBool,
    given_up: AtomicBool,
}

impl Pipeline {
    /// Starts threads for the devices, which make their lanes.
    ///
    /// # Errors
    ///
    /// If the system gives no threads.
    pub(super) fn start(devices: Vec<Arc<dyn Device>>) -> std::io::Result<Self> {
        let station = |device| Station {
            device,
            failures: AtomicU32::new(0),
            missing_lanes: AtomicUsize::new(0),
            has_failed: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
        };
        let stations: Vec<Station> = devices.into_iter().map(station).collect();
        let lanes = stations.len() * LANES;
        let shared = Arc::new(Shared {
            queue: Queue::new(lanes),
            stations,
        });
        let mut pipeline = Self {
            shared,
            threads: Vec::with_capacity(lanes),
        };
        for lane in 0..lanes {
            let shared = Arc::clone(&pipeline.shared);
            let name = format!("cuda-{}", lane / LANES);
            let work = move || shared.feed(&shared.stations[lane / LANES]);
            let thread = std::thread::Builder::new().name(name).spawn(work);
            pipeline.threads.push(thread.inspect_err(|_| {
                (lane..lanes).for_each(|_| pipeline.shared.queue.leave());
            })?);
        }
        Ok(pipeline)
    }

    /// Returns whether any device is left.
    pub(super) fn is_working(&self) -> bool {
        let mut stations = self.shared.stations.iter();
        self.shared.queue.is_open() && stations.any(|station| !station.is_given_up())
    }

    /// Returns the names of the devices that are left.
    pub(super) fn device_names(&self) -> Vec<String> {
        let left = self.shared.stations.iter().filter(|s| !s.is_given_up());
        left.map(|station| station.device.name().to_owned())
            .collect()
    }

    /// Returns the device that memory is to be pinned with; what one has pinned is so for all.
    pub(super) fn pinning_device(&self) -> Option<&Arc<dyn Device>> {
        let mut left = self.shared.stations.iter().filter(|s| !s.is_given_up());
        left.next().map(|station| &station.device)
    }

    /// Has the matrix applied to the item; blocks until it is. Returns how it was done.
    ///
    /// # Errors
    ///
    /// [`NotDone`].
    pub(super) fn run(&self, matrix: &Matrix, item: &mut Item<'_>) -> Ended {
        let accept = |loan| self.shared.queue.push(loan);
        loan::lend(matrix, item, accept).unwrap_or(Err(NotDone))
    }

    /// Returns how many items wait for a lane.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.shared.queue.waiting()
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.shared.queue.close();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::error!("a thread that feeds a GPU panicked");
            }
        }
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.shared.stations.iter().map(|station| &station.device);
        f.debug_list().entries(devices).finish()
    }
}

impl Shared {
    /// Makes a lane and feeds it until the queue is closed or the device given up.
    fn feed(&self, station: &Station) {
        let leaving = scopeguard::guard((), |()| self.queue.leave());
        match catch(|| station.device.lane()) {
            Ok(mut lane) => self.feed_lane(station, &mut *lane),
            Err(error) => station.lacks_lane(&error),
        }
        drop(leaving);
    }

    fn feed_lane(&self, station: &Station, lane: &mut dyn Lane) {
        while let Some(mut batch) = self.queue.next_batch(|| station.is_given_up()) {
            let outcome = run_batch(lane, &mut batch);
            let program = outcome
                .as_ref()
                .map(|&program| program)
                .map_err(|_| NotDone);
            // Noted first: who is told of the loss of a device does not come back to it.
            match outcome {
                Ok(_) => station.failures.store(0, Ordering::Relaxed),
                Err(error) => station.failed(&error),
            }
            if station.is_given_up() {
                // Other lanes of this device may be waiting for work.
                self.queue.wake_all();
            }
            let magnitude = batch.len().ilog2();
            for (index, loan) in batch.into_iter().enumerate() {
                loan.give_back(program.map(|program| Done {
                    program,
                    magnitude,
                    is_first: index == 0,
                }));
            }
        }
    }
}

/// Runs all items of a batch.
fn run_batch(lane: &mut dyn Lane, batch: &mut [Loan<Ended>]) -> Result<Program, DeviceError> {
    let mut items: Vec<Item<'_>> = batch.iter_mut().map(Loan::take_item).collect();
    let matrix = batch[0].matrix();
    let outcome = catch(|| {
        lane.run(&mut Work {
            matrix,
            items: &mut items,
        })
    });
    for (loan, item) in batch.iter_mut().zip(items) {
        loan.put_item(item);
    }
    outcome
}

/// Turns a panic into the loss of the device: nothing is known of its state then.
fn catch<T>(work: impl FnOnce() -> Result<T, DeviceError>) -> Result<T, DeviceError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(DeviceError::Lost {
            operation: "go on",
            reason: "its driver panicked".to_owned(),
        })
    })
}

impl Station {
    fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Takes note of a lane that could not be made. Without any, the device is given up.
    fn lacks_lane(&self, error: &DeviceError) {
        let missing = self.missing_lanes.fetch_add(1, Ordering::Relaxed) + 1;
        if missing == LANES {
            self.give_up(error);
        } else {
            self.failed(error);
        }
    }

    fn give_up(&self, error: &DeviceError) {
        if !self.given_up.swap(true, Ordering::Relaxed) {
            let name = self.device.name();
            log::warn!("GPU {name}: {error}; it is not used any more, and the CPU goes on");
        }
    }

    /// Takes note of a failure, and says so if it is the first.
    fn failed(&self, error: &DeviceError) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if error.is_final() || failures >= MOST_FAILURES {
            self.give_up(error);
        } else if !self.has_failed.swap(true, Ordering::Relaxed) {
            let name = self.device.name();
            log::warn!("GPU {name}: {error}; the CPU does what failed, now and in future");
        } else {
            log::debug!("GPU {}: {error}", self.device.name());
        }
    }
}

#[cfg(test)]
mod tests;
