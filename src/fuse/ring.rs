//! Requests of the kernel over `io_uring`, Linux 6.14 and later.
//!
//! The kernel has a queue for each CPU. A request goes to the queue of the CPU on which it was made. With several programs
//! at work, threads that are pinned to that CPU serve it. So no request wakes another CPU, and one system call is both the
//! answer and the wait for the next request. While a single program waits for each answer, the threads may run on all
//! CPUs, and one watches for the next request ([`Traffic`]). FORGET and INTERRUPT come over `/dev/fuse` all the same.
//!
//! 1. Before INIT is answered, the threads of each queue set up a ring and one [`Entry`] each: [`Rings::prepare`]. If one
//!    cannot, INIT is answered without `io_uring`.
//! 2. After the answer, the kernel holds requests back until each queue has an entry. Each thread registers its entry:
//!    [`Rings::register`]. If the kernel refuses one, it uses `/dev/fuse` by itself.
//! 3. A completion delivers a request in the entry, which stays with the request until the answer is in it, on any thread.
//! 4. The thread of the entry waits for that in [`Returns`], and commits the entry. The kernel takes the entry that was
//!    committed last, so that one thread serves requests that follow one another.
//!
//! # Invariants
//!
//! - Memory of an entry is not touched while the kernel has the entry, and not freed before the kernel has given it up.
//! - A request that waits, for a member say, delays no other request: its thread has no other.
//! - Requests that are answered on other threads leave entries for those that come. Some wait for *other requests*, which
//!   may be in the same queue, so there must be an end to no number of them: [`Crew`] adds threads.

mod command;
mod crew;
mod entry;
mod helpers;
mod pinning;
mod traffic;
mod watching;
mod worker;

use std::io;
use std::iter::repeat_n;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use rustix::process::{Resource, getrlimit};

use self::crew::{Crew, Entries};
use self::helpers::Helpers;
pub(super) use self::traffic::Traffic;
use self::worker::Worker;
use super::device::Device;
use super::report::Report;
use super::request::Service;
use crate::workers::Threads;

/// The file that says whether the kernel offers requests over `io_uring`.
pub(super) const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The file that lists the CPUs that this machine can ever have.
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";

/// The entries of all queues, and so the threads, if the bounds on a queue allow it.
const ENTRIES: usize = 128;

/// The fewest entries of a queue.
const FEWEST_ENTRIES: usize = 4;

/// The most entries of a queue.
const MOST_ENTRIES: usize = 16;

/// The descriptors that a daemon needs for all else.
const OTHER_DESCRIPTORS: u64 = 512;

/// Returns whether the kernel offers requests over `io_uring` to new mounts.
pub(super) fn is_enabled() -> bool {
    std::fs::read_to_string(PARAMETER).is_ok_and(|value| value.starts_with('Y'))
}

/// The things that a thread serves with.
#[derive(Clone)]
struct Start {
    crew: Arc<Crew>,
    registered: Sender<io::Result<()>>,
}

/// Queues that are set up and not registered yet.
pub(super) struct Rings {
    starts: Vec<Sender<Start>>,
    helpers: Helpers,
    traffic: Arc<Traffic>,
    queues: u16,
    depth: usize,
}

impl Rings {
    /// Starts the threads of each queue of `device`, which set up what they need. Each thread reports to `outcome` when
    /// it is done with serving. Data moves on `helpers` more threads where that takes long. At most `most_waiting` requests
    /// wait for the volume at once.
    ///
    /// Everything that this process can lack is taken here, before the answer to INIT: once the kernel has that, it holds
    /// all requests back until every queue is registered or refused.
    ///
    /// # Errors
    ///
    /// If threads cannot be started, or a ring cannot be set up, for example because this process may not use
    /// `io_uring`. If the rings could use up the descriptors that members need.
    pub(super) fn prepare(
        device: &Arc<Device>,
        threads: &Threads,
        (helpers, most_waiting): (usize, usize),
        outcome: &Sender<io::Result<()>>,
    ) -> io::Result<Self> {
        let queues = possible_cpus(&std::fs::read_to_string(POSSIBLE_CPUS)?)
            .ok_or_else(|| io::Error::other("the list of possible CPUs cannot be read"))?;
        check_descriptors(queues, most_waiting)?;
        let depth = (ENTRIES / usize::from(queues)).clamp(FEWEST_ENTRIES, MOST_ENTRIES);
        let (ready, prepared) = mpsc::channel();
        let mut starts = Vec::new();
        for queue in (0..queues).flat_map(|queue| repeat_n(queue, depth)) {
            let (start, started) = mpsc::channel();
            let (device, ready) = (Arc::clone(device), ready.clone());
            let report = Report::new(outcome);
            threads.start(format!("ring-{queue}"), move || {
                work(&device, queue, ready, &started, report);
            })?;
            starts.push(start);
        }
        drop(ready);
        let prepared: Vec<io::Result<()>> = prepared.iter().collect();
        complete(prepared, starts.len())?;
        let helpers = Helpers::start(threads, helpers)?;
        Ok(Self {
            starts,
            helpers,
            traffic: Arc::new(Traffic::new(queues)),
            queues,
            depth,
        })
    }

    /// Returns the number of queues.
    pub(super) fn queues(&self) -> u16 {
        self.queues
    }

    /// Returns the watch over how many requests are served at once.
    pub(super) fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// Registers all entries with the kernel, which has the answer to INIT, and serves from then on.
    ///
    /// # Errors
    ///
    /// If the kernel refuses an entry. It then uses `/dev/fuse`.
    pub(super) fn register(
        self,
        device: &Arc<Device>,
        threads: &Threads,
        service: &Arc<dyn Service>,
        outcome: &Sender<io::Result<()>>,
    ) -> io::Result<()> {
        let (registered, outcomes) = mpsc::channel();
        let queues = (0..self.queues).map(|_| Entries::of(self.depth)).collect();
        let crew = Arc::new(Crew {
            device: Arc::clone(device),
            threads: threads.clone(),
            outcome: outcome.clone(),
            service: Arc::clone(service),
            helpers: Arc::new(self.helpers),
            queues,
            traffic: self.traffic,
        });
        for start in &self.starts {
            // A thread that is gone reports nothing, which is noticed below.
            let _ = start.send(Start {
                crew: Arc::clone(&crew),
                registered: registered.clone(),
            });
        }
        drop(registered);
        complete(outcomes.iter().collect(), self.starts.len())
    }
}

/// Returns the first error of the outcomes of `threads`. A thread that panicked has none.
fn complete(outcomes: Vec<io::Result<()>>, threads: usize) -> io::Result<()> {
    if outcomes.len() < threads {
        return Err(io::Error::other("a thread of a queue panicked"));
    }
    outcomes.into_iter().collect()
}

/// Sets up a worker of a queue, waits for the start, and serves.
fn work(
    device: &Device,
    queue: u16,
    ready: Sender<io::Result<()>>,
    started: &Receiver<Start>,
    report: Report,
) {
    // The receivers outlive this thread, unless the mount fails elsewhere.
    let mut worker = match Worker::new(device.descriptor().as_raw_fd(), queue) {
        Ok(worker) => worker,
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
    let registered = worker.register();
    let is_refused = registered.is_err();
    let _ = start.registered.send(registered);
    drop(start.registered);
    if is_refused {
        return;
    }
    report.send(start.crew.serve(&mut worker));
}

/// Counts the CPUs of a list such as `0-3,8`.
fn possible_cpus(ranges: &str) -> Option<u16> {
    ranges
        .trim()
        .split(',')
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
            last.checked_sub(first)?.checked_add(1)
        })
        .try_fold(0u16, |sum, count| sum.checked_add(count?))
}

/// Fails if this process may open too few files for a ring for each entry that the queues may get, and for all else.
fn check_descriptors(queues: u16, most_waiting: usize) -> io::Result<()> {
    let needed = most_descriptors(queues, most_waiting);
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => Err(io::Error::other(format!(
            "this process may open {limit} files, and takes up to {needed} (`ulimit -n`)"
        ))),
        _ => Ok(()),
    }
}

/// Returns the descriptors that are open at most. Each entry has a ring, and each request that waits for the volume holds an
/// entry beside those that are left for others.
fn most_descriptors(queues: u16, most_waiting: usize) -> u64 {
    let entries = usize::from(queues) * crew::MOST_ENTRIES + most_waiting;
    entries as u64 + OTHER_DESCRIPTORS
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
            ("0-65535", None),
            ("a", None),
        ] {
            assert_eq!(possible_cpus(list), count, "{list:?}");
        }
    }

    #[test]
    fn requests_that_wait_for_the_volume_leave_descriptors_for_all_else() {
        for (queues, most_waiting) in [(1, 0), (1, 1024), (16, 1024)] {
            let entries = Entries::of(MOST_ENTRIES);
            // All of them wait in one queue.
            let added = (0..most_waiting).filter(|_| entries.leave(true)).count();
            let in_others = usize::from(queues - 1) * crew::MOST_ENTRIES;
            let rings = (MOST_ENTRIES + added + in_others) as u64;
            let most = most_descriptors(queues, most_waiting);
            assert!(most >= rings + OTHER_DESCRIPTORS, "{queues} {most_waiting}");
        }
    }
}
