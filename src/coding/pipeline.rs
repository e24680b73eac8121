//! Items of many callers, in batches, on the lanes of all devices.
//!
//! Callers wait until their items are done, all that they brought at once, so there are never more items than
//! callers hold memory for. A lane that is free takes the item that waits longest together with others like it,
//! as a batch: while lanes are busy, items gather, and what a batch costs besides its bytes is shared among
//! them. Lanes of all devices take from one queue, so that each device gets as much as it can do.
//! Nothing here waits for memory: lanes have theirs from the start, and items bring their own.
//!
//! # Invariants
//!
//! - An item is done, or its caller is told that it is not; then nothing touches it any more.
//! - A device that is lost, fails time and again, or does not answer is given nothing any more. This is logged
//!   once.

mod loan;
mod queue;
mod station;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::codec::{Item, Matrix};
use crate::cuda::{Device, DeviceError, Lane, MatrixBatch, Program};
use loan::Loan;
pub(super) use loan::Order;
use queue::Queue;
pub(super) use station::LANES;
use station::Station;

/// The time that a device may take for a batch, or to make a lane, before it counts as hanging. The longest task of a
/// working device is to compile a kernel: some seconds. Removing a lane waits no longer, either.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// An item was not done: no device is left, or the one that was to do it failed. Its targets are
/// unspecified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotDone;

/// The way in which an item was done: two that were done alike went the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Done {
    program: Program,
    /// Binary logarithm of how many items the batch had, on which it depends in which pieces they travel.
    magnitude: u32,
    position: BatchPosition,
}

/// The position of an item in its batch. The places of all but the first are computed from their numbers. Blocks of
/// threads that share a batch out do the first items in their first turn. The last one is done in another, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum BatchPosition {
    First,
    Between,
    Last,
}

impl BatchPosition {
    fn of(index: usize, items: usize) -> Self {
        match index {
            0 => Self::First,
            _ if index + 1 == items => Self::Last,
            _ => Self::Between,
        }
    }
}

/// The result of an item.
pub(super) type Ended = Result<Done, NotDone>;

/// The results of items that were run together.
pub(super) struct Ran {
    /// In their order.
    pub(super) ended: Vec<Ended>,
    /// The time when all of it was known.
    pub(super) at: Instant,
}

/// Devices with the threads that feed them.
pub(super) struct Pipeline {
    shared: Arc<PipelineShared>,
    /// In the order of stations, and lanes of each.
    threads: Vec<JoinHandle<()>>,
}

struct PipelineShared {
    queue: Queue<Ended>,
    stations: Vec<Station>,
    patience: Duration,
}

impl Pipeline {
    /// Starts threads for the devices, which make their lanes.
    ///
    /// # Errors
    ///
    /// If the system gives no threads.
    pub(super) fn start(devices: Vec<Arc<dyn Device>>) -> std::io::Result<Self> {
        Self::start_with(devices, PATIENCE)
    }

    /// As [`Self::start`], for devices that may take so long for a batch.
    pub(super) fn start_with(
        devices: Vec<Arc<dyn Device>>,
        patience: Duration,
    ) -> std::io::Result<Self> {
        let stations: Vec<Station> = devices.into_iter().map(Station::new).collect();
        let lanes = stations.len() * LANES;
        let shared = Arc::new(PipelineShared {
            queue: Queue::new(lanes),
            stations,
            patience,
        });
        let mut pipeline = Self {
            shared,
            threads: Vec::with_capacity(lanes),
        };
        for lane in 0..lanes {
            let shared = Arc::clone(&pipeline.shared);
            let name = format!("cuda-{}", lane / LANES);
            let work = move || shared.feed(lane / LANES, lane % LANES);
            let thread = std::thread::Builder::new().name(name).spawn(work);
            pipeline.threads.push(thread.inspect_err(|_| {
                (lane..lanes).for_each(|lane| pipeline.shared.leave(lane / LANES));
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
        left.map(|station| station.device().name().to_owned())
            .collect()
    }

    /// Returns the names of the devices that do not answer, though items are with them.
    pub(super) fn hanging_device_names(&self) -> Vec<String> {
        let hanging = self.shared.stations.iter().filter(|s| s.is_hanging());
        hanging
            .map(|station| station.device().name().to_owned())
            .collect()
    }

    /// Returns the names of all devices, with the time in which each had at least one batch.
    pub(super) fn device_times(&self) -> Vec<(String, Duration)> {
        let stations = self.shared.stations.iter();
        stations
            .map(|station| (station.device().name().to_owned(), station.busy()))
            .collect()
    }

    /// Returns the device that memory is to be pinned with; what one has pinned is so for all.
    pub(super) fn pinning_device(&self) -> Option<&Arc<dyn Device>> {
        let mut left = self.shared.stations.iter().filter(|s| !s.is_given_up());
        left.next().map(Station::device)
    }

    /// Has matrices applied to items, and does something `meanwhile`; blocks until all are done, or not to be
    /// done. Returns how each was.
    ///
    /// An item that is with a device that hangs is not returned before the device returns it, which may be never. Until
    /// then the device may still write to it.
    pub(super) fn run_all(&self, orders: &mut [Order<'_, '_>], meanwhile: impl FnOnce()) -> Ran {
        let accept = |loans| self.shared.queue.push(loans);
        let look = || self.shared.look_for_hanging();
        let back = loan::lend(orders, accept, meanwhile, self.shared.patience, look);
        let ended = back.results.into_iter();
        Ran {
            ended: ended.map(|ended| ended.unwrap_or(Err(NotDone))).collect(),
            at: back.at,
        }
    }

    /// Has the matrix applied to one item, as [`Self::run_all`] does. Returns how it was done.
    ///
    /// # Errors
    ///
    /// [`NotDone`].
    pub(super) fn run(&self, matrix: &Matrix, item: &mut Item<'_>) -> Ended {
        let ran = self.run_all(&mut [(matrix, item)], || {});
        ran.ended.into_iter().next().unwrap_or(Err(NotDone))
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
        let patience = self.shared.patience;
        let stations = self.shared.stations.iter();
        let left: Vec<bool> = stations
            .map(|station| station.wait_for_lanes(patience))
            .collect();
        for (lane, thread) in self.threads.drain(..).enumerate() {
            // A hanging thread may never come back, and its work is not waited for.
            if left[lane / LANES] && thread.join().is_err() {
                tracing::error!("a thread that feeds a GPU panicked");
            }
        }
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.shared.stations.iter().map(Station::device);
        f.debug_list().entries(devices).finish()
    }
}

impl PipelineShared {
    /// Makes a lane and feeds it until the queue is closed or the device given up.
    fn feed(&self, device: usize, lane: usize) {
        let station = &self.stations[device];
        let leaving = scopeguard::guard((), |()| self.leave(device));
        if let Some(mut made) = self.make_lane(station, lane) {
            self.feed_lane(device, lane, &mut *made);
            station.watch(lane, || drop(made));
        }
        drop(leaving);
    }

    /// Makes a lane; where memory is short, again and again, as long as others of the device are at work.
    fn make_lane(&self, station: &Station, lane: usize) -> Option<Box<dyn Lane>> {
        let attempt = || station.watch(lane, || catch(|| station.device().lane()));
        let mut made = attempt();
        if let Err(error) = &made {
            station.lacks_lane(error);
        }
        while let Err(error) = &made {
            tracing::debug!(gpu = station.device().name(), "{error}");
            if !self.queue.rest(self.patience, || station.is_given_up()) {
                return None;
            }
            made = attempt();
            station.tried_again(made.as_ref().err());
        }
        made.ok()
    }

    /// A lane of this device comes for no more work.
    fn leave(&self, device: usize) {
        self.queue.leave();
        self.stations[device].leave();
    }

    fn feed_lane(&self, device: usize, number: usize, lane: &mut dyn Lane) {
        let station = &self.stations[device];
        let is_over = || station.is_given_up();
        while let Some(mut batch) = self.queue.next_batch(is_over) {
            let outcome = station.code(number, || run_batch(lane, &mut batch));
            let program = outcome
                .as_ref()
                .map(|&program| program)
                .map_err(|_| NotDone);
            // Noted first, so that a caller that is told of the loss of a device does not come back to it.
            match outcome {
                Ok(_) => station.succeeded(),
                Err(error) => station.failed(&error),
            }
            if station.is_given_up() {
                // Other lanes of this device may be waiting for work.
                self.queue.wake_all();
            }
            let items = batch.len();
            let magnitude = items.ilog2();
            for (index, loan) in batch.into_iter().enumerate() {
                loan.give_back(program.map(|program| Done {
                    program,
                    magnitude,
                    position: BatchPosition::of(index, items),
                }));
            }
        }
    }

    /// Gives devices up that have not answered for too long. If none is left, items that wait for a lane go back
    /// to their owners.
    fn look_for_hanging(&self) {
        let hanging = self.stations.iter().filter(|s| s.hangs_for(self.patience));
        if hanging.count() == 0 {
            return;
        }
        if self.stations.iter().all(Station::is_given_up) {
            self.queue.close();
        } else {
            self.queue.wake_all();
        }
    }
}

/// Runs all items of a batch.
fn run_batch(lane: &mut dyn Lane, batch: &mut [Loan<Ended>]) -> Result<Program, DeviceError> {
    let mut items: Vec<Item<'_>> = batch.iter_mut().map(Loan::take_item).collect();
    let matrix = batch[0].matrix();
    let outcome = catch(|| {
        lane.run(&mut MatrixBatch {
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

#[cfg(test)]
mod tests;
