//! Requests of the kernel over `io_uring`, Linux 6.14 and later.
//!
//! The kernel has a queue for each CPU. A request goes to the queue of the CPU on which it was made, and a thread that is
//! pinned to that CPU serves it: so no request wakes another CPU, and the answer and the wait for the next request are
//! one system call. FORGET and INTERRUPT come over `/dev/fuse` all the same.
//!
//! 1. Before INIT is answered, a thread for each queue sets up its ring and [`Entry`]s: [`Rings::prepare`]. If one cannot,
//!    INIT is answered without `io_uring`.
//! 2. After the answer, the kernel holds requests back until each queue has an entry. Each thread registers its entries:
//!    [`Rings::register`]. If the kernel refuses one, it uses `/dev/fuse` by itself.
//! 3. A completion delivers a request in an entry. The entry stays with the request until the answer is in it, on any thread.
//! 4. Only the thread of the queue commits the entry. The kernel copies a request in the context of the thread that handed
//!    the entry over last; another thread may be busy just then. Other threads leave answered entries in [`Returns`],
//!    and wake the queue through an eventfd.
//!
//! # Invariants
//!
//! - Memory of an entry is not touched while the kernel has the entry, and not freed before the kernel has given it up.
//! - A queue has entries for requests that wait on other threads; one that may wait for *other requests* holds only few
//!   of them (see [`Rings::most_waiting_for_others`]), because those others may be in the same queue.

mod command;
mod entry;
mod helpers;
mod queue;

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use self::helpers::Helpers;
use self::queue::Queue;
use super::device::Device;
use super::report::Report;
use super::request::Service;
use crate::workers::Threads;

/// The file that says whether the kernel offers requests over `io_uring`.
pub(super) const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The file that lists the CPUs that this machine can ever have.
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";

/// The entries of all queues, if the bounds on a queue allow it.
const ENTRIES: usize = 128;

/// The fewest entries of a queue.
const FEWEST_ENTRIES: usize = 8;

/// The most entries of a queue.
const MOST_ENTRIES: usize = 16;

/// Returns whether the kernel offers requests over `io_uring` to new mounts.
pub(super) fn is_enabled() -> bool {
    std::fs::read_to_string(PARAMETER).is_ok_and(|value| value.starts_with('Y'))
}

/// The things that a thread serves with.
#[derive(Clone)]
struct Start {
    service: Arc<dyn Service>,
    helpers: Arc<Helpers>,
    registered: Sender<io::Result<()>>,
}

/// Queues that are set up and not registered yet.
pub(super) struct Rings {
    starts: Vec<Sender<Start>>,
    helpers: Arc<Helpers>,
    depth: usize,
}

impl Rings {
    /// Starts a thread for each queue of `device`, which sets the queue up. Each thread reports to `outcome` when it is
    /// done with serving. Data moves on `helpers` more threads where that takes long.
    ///
    /// Everything that this process can lack is taken here, before the answer to INIT: once the kernel has that, it holds
    /// all requests back until every queue is registered or refused.
    ///
    /// # Errors
    ///
    /// If threads cannot be started, or a queue cannot be set up, for example because this process may not use
    /// `io_uring`.
    pub(super) fn prepare(
        device: &Arc<Device>,
        threads: &Threads,
        helpers: usize,
        outcome: &Sender<io::Result<()>>,
    ) -> io::Result<Self> {
        let queues = possible_cpus(&std::fs::read_to_string(POSSIBLE_CPUS)?)
            .ok_or_else(|| io::Error::other("the list of possible CPUs cannot be read"))?;
        let depth = (ENTRIES / queues).clamp(FEWEST_ENTRIES, MOST_ENTRIES);
        let (ready, prepared) = mpsc::channel();
        let mut starts = Vec::with_capacity(queues);
        for number in 0..queues {
            let (start, started) = mpsc::channel();
            let (device, ready) = (Arc::clone(device), ready.clone());
            let report = Report::new(outcome);
            threads.start(format!("ring-{number}"), move || {
                serve_queue(&device, number, depth, ready, &started, report);
            })?;
            starts.push(start);
        }
        drop(ready);
        let prepared: Vec<io::Result<()>> = prepared.iter().collect();
        complete(prepared, queues)?;
        let helpers = Arc::new(Helpers::start(threads, helpers)?);
        Ok(Self {
            starts,
            helpers,
            depth,
        })
    }

    /// Returns how many requests that wait for others may be held at once: not enough to use up the entries of a queue.
    pub(super) fn most_waiting_for_others(&self) -> usize {
        self.depth / 2
    }

    /// Returns the number of queues.
    pub(super) fn queues(&self) -> usize {
        self.starts.len()
    }

    /// Registers all queues with the kernel, which has the answer to INIT, and serves from then on.
    ///
    /// # Errors
    ///
    /// If the kernel refuses an entry. It then uses `/dev/fuse`.
    pub(super) fn register(self, service: &Arc<dyn Service>) -> io::Result<()> {
        let (registered, outcomes) = mpsc::channel();
        for start in &self.starts {
            // A thread that is gone reports nothing, which is noticed below.
            let _ = start.send(Start {
                service: Arc::clone(service),
                helpers: Arc::clone(&self.helpers),
                registered: registered.clone(),
            });
        }
        drop(registered);
        complete(outcomes.iter().collect(), self.queues())
    }
}

/// Returns the first error of `queues` outcomes. A thread that panicked has none.
fn complete(outcomes: Vec<io::Result<()>>, queues: usize) -> io::Result<()> {
    if outcomes.len() < queues {
        return Err(io::Error::other("a thread of a queue panicked"));
    }
    outcomes.into_iter().collect()
}

/// Sets a queue up, waits for the start, and serves.
fn serve_queue(
    device: &Device,
    number: usize,
    depth: usize,
    ready: Sender<io::Result<()>>,
    started: &Receiver<Start>,
    report: Report,
) {
    // The receivers outlive this thread, unless the mount fails elsewhere.
    let mut queue = match Queue::new(device.descriptor().as_raw_fd(), number, depth) {
        Ok(queue) => queue,
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let _ = ready.send(Ok(()));
    drop(ready);
    let Ok(start) = started.recv() else {
        return;
    };
    let registered = queue.register();
    let _ = start.registered.send(registered);
    drop(start.registered);
    report.send(queue.serve(&start.service, &start.helpers));
}

/// Counts the CPUs of a list such as `0-3,8`.
fn possible_cpus(ranges: &str) -> Option<usize> {
    ranges
        .trim()
        .split(',')
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            Some(last.checked_sub(first)? + 1)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted_in_ranges_and_alone() {
        for (list, count) in [
            ("0\n", Some(1)),
            ("0-1\n", Some(2)),
            ("0-3,8,10-11", Some(7)),
            ("", None),
            ("3-1", None),
            ("a", None),
        ] {
            assert_eq!(possible_cpus(list), count, "{list:?}");
        }
    }
}
