//! A device in use, and how it has been doing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::super::meter::Meter;
use super::loan::PARTS;
use crate::cuda::{Device, DeviceError};

/// Lanes of each device: one copies to the device, one computes or copies back, one gathers.
pub(in crate::coding) const LANES: usize = 3;

/// Failures in a row after which a device is taken for broken, though it is not lost.
pub(super) const MOST_FAILURES: u32 = 8;

/// A device that has lanes.
pub(super) struct Station {
    device: Arc<dyn Device>,
    failures: AtomicU32,
    /// Lanes that have not left.
    lanes: Mutex<usize>,
    left: Condvar,
    /// Lanes that could not be made.
    missing_lanes: AtomicUsize,
    has_failed: AtomicBool,
    given_up: AtomicBool,
    /// True if it was given up because it did not answer.
    has_hung: AtomicBool,
    /// The time in which a lane had a batch.
    work: Meter,
    /// Since when each lane has been waiting for the device, if it has.
    waiting_since: [Mutex<Option<Instant>>; LANES],
}

impl Station {
    pub(super) fn new(device: Arc<dyn Device>) -> Self {
        Self {
            device,
            failures: AtomicU32::new(0),
            lanes: Mutex::new(LANES),
            left: Condvar::new(),
            missing_lanes: AtomicUsize::new(0),
            has_failed: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            has_hung: AtomicBool::new(false),
            work: Meter::default(),
            waiting_since: [const { Mutex::new(None) }; LANES],
        }
    }

    pub(super) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Returns whether it was given up because it did not answer, and still does not.
    pub(super) fn is_hanging(&self) -> bool {
        let mut lanes = self.waiting_since.iter();
        self.has_hung.load(Ordering::Relaxed) && lanes.any(|since| since.lock().is_some())
    }

    /// Does something with the device for a lane, and keeps in mind since when.
    pub(super) fn watch<T>(&self, lane: usize, work: impl FnOnce() -> T) -> T {
        *self.waiting_since[lane].lock() = Some(Instant::now());
        let answered = scopeguard::guard((), |()| *self.waiting_since[lane].lock() = None);
        let result = work();
        drop(answered);
        result
    }

    /// Has the device code a batch for a lane, as [`Self::watch`] does, and counts the time.
    pub(super) fn code<T>(&self, lane: usize, work: impl FnOnce() -> T) -> T {
        self.work.begin(Instant::now());
        let worked = scopeguard::guard((), |()| self.work.end(Instant::now(), None));
        let result = self.watch(lane, work);
        drop(worked);
        result
    }

    /// Returns the time in which it had at least one batch, up to now.
    pub(super) fn busy(&self) -> Duration {
        self.work.busy(Instant::now())
    }

    /// Returns whether a lane has been waiting for so long; gives the device up if so.
    pub(super) fn hangs_for(&self, patience: Duration) -> bool {
        let is_late = |since: Option<Instant>| since.is_some_and(|s| s.elapsed() >= patience);
        let hangs = self.waiting_since.iter().any(|s| is_late(*s.lock()));
        if hangs {
            self.has_hung.store(true, Ordering::Relaxed);
            let seconds = patience.as_secs();
            self.give_up(&format!(
                "has not answered for {seconds} s; what is with it waits on"
            ));
        }
        hangs
    }

    /// Takes note that a lane is no more.
    pub(super) fn leave(&self) {
        *self.lanes.lock() -= 1;
        self.left.notify_all();
    }

    /// Waits until no lane is left; returns whether that is so, or the device hangs.
    pub(super) fn wait_for_lanes(&self, patience: Duration) -> bool {
        let mut lanes = self.lanes.lock();
        while *lanes > 0 && !self.hangs_for(patience) {
            self.left.wait_for(&mut lanes, patience / PARTS);
        }
        *lanes == 0
    }

    /// Takes note of a lane that could not be made. Without any, the device is given up.
    pub(super) fn lacks_lane(&self, error: &DeviceError) {
        let missing = self.missing_lanes.fetch_add(1, Ordering::Relaxed) + 1;
        let name = self.device.name();
        if missing == LANES || error.is_final() {
            self.give_up(&error.to_string());
        } else if missing == 1 {
            tracing::warn!(gpu = name, "{error}; it is given less to do at a time");
        }
    }

    /// Takes note of what came of making a lane that was missing.
    pub(super) fn tried_again(&self, error: Option<&DeviceError>) {
        match error {
            Some(error) if error.is_final() => self.give_up(&error.to_string()),
            Some(_) => {}
            None => {
                let missing = self.missing_lanes.fetch_sub(1, Ordering::Relaxed) - 1;
                let name = self.device.name();
                tracing::info!(
                    gpu = name,
                    "there is room for a lane again, {missing} are missing"
                );
            }
        }
    }

    fn give_up(&self, reason: &str) {
        if !self.given_up.swap(true, Ordering::Relaxed) {
            let name = self.device.name();
            tracing::warn!(
                gpu = name,
                "{reason}; it is not used any more, and the CPU goes on"
            );
        }
    }

    pub(super) fn succeeded(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }

    /// Takes note of a failure, and says so if it is the first.
    pub(super) fn failed(&self, error: &DeviceError) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if error.is_final() || failures >= MOST_FAILURES {
            self.give_up(&error.to_string());
        } else if !self.has_failed.swap(true, Ordering::Relaxed) {
            let name = self.device.name();
            tracing::warn!(
                gpu = name,
                "{error}; the CPU does what failed, now and in future"
            );
        } else {
            tracing::debug!(gpu = self.device.name(), "{error}");
        }
    }
}
