//! The threads of all queues together, to which others are added where requests hold entries for long.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use parking_lot::Mutex;

use super::helpers::Helpers;
use super::pinning::OnQueueCpu;
use super::traffic::Traffic;
use super::worker::Worker;
use crate::format::Ino;
use crate::fuse::device::Device;
use crate::fuse::protocol::opcode;
use crate::fuse::report::Report;
use crate::fuse::request::{Request, Service};
use crate::workers::Threads;

/// The most entries of a queue that requests get which wait for disks alone. They end by themselves.
pub(super) const MOST_ENTRIES: usize = 64;

/// The things that the threads of the queues share.
pub(super) struct Crew {
    pub(super) device: Arc<Device>,
    pub(super) threads: Threads,
    /// Takes the report of each thread.
    pub(super) outcome: Sender<io::Result<()>>,
    pub(super) service: Arc<dyn Service>,
    pub(super) helpers: Arc<Helpers>,
    /// The entries of each queue.
    pub(super) queues: Vec<Entries>,
    pub(super) traffic: Arc<Traffic>,
}

/// The number of entries of a queue, and of those whose requests are answered on other threads.
pub(super) struct Entries {
    all: AtomicUsize,
    away: AtomicUsize,
    /// The number of entries that are to be left for requests that come.
    reserve: usize,
    /// The files of the requests that are away until others are served, or the volume is open again.
    waiting: Mutex<Vec<Ino>>,
}

impl Entries {
    /// Counts the entries of a queue with `depth` of them.
    pub(super) fn of(depth: usize) -> Self {
        Self {
            all: AtomicUsize::new(depth),
            away: AtomicUsize::new(0),
            reserve: depth.div_ceil(2),
            waiting: Mutex::default(),
        }
    }

    /// Counts one more entry as away. Returns whether the caller is to add an entry, which is counted already.
    pub(super) fn leave(&self, waits_for_others: bool) -> bool {
        self.away.fetch_add(1, Ordering::Relaxed);
        self.wants_more(waits_for_others)
    }

    /// Returns whether the caller is to add an entry, because too few are left. It is counted already.
    fn wants_more(&self, waits_for_others: bool) -> bool {
        let away = self.away.load(Ordering::Relaxed);
        let more = |all: usize| {
            let is_wanted = away + self.reserve > all;
            (is_wanted && (waits_for_others || all < MOST_ENTRIES)).then_some(all + 1)
        };
        self.all
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }
}

/// The time for which an entry is away.
pub(super) struct Away<'a> {
    entries: &'a Entries,
    /// The file of its request, if that waits for others or for the volume.
    waits_in: Option<Ino>,
}

impl<'a> Away<'a> {
    fn new(entries: &'a Entries, waits_in: Option<Ino>) -> Self {
        entries.waiting.lock().extend(waits_in);
        Self { entries, waits_in }
    }

    /// Notes that its request, about this file, waits for the volume.
    fn note_waiting(&mut self, file: Ino) {
        if self.waits_in.is_none() {
            self.entries.waiting.lock().push(file);
            self.waits_in = Some(file);
        }
    }
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        self.entries.away.fetch_sub(1, Ordering::Relaxed);
        if let Some(file) = self.waits_in {
            let mut waiting = self.entries.waiting.lock();
            if let Some(place) = waiting.iter().position(|other| *other == file) {
                waiting.swap_remove(place);
            }
        }
    }
}

impl Crew {
    /// Serves with a worker until the kernel gives its entry up.
    ///
    /// # Errors
    ///
    /// If the ring breaks, or the kernel does not take an answer.
    pub(super) fn serve(self: &Arc<Self>, worker: &mut Worker) -> io::Result<()> {
        while let Some(request) = self.next_request(worker)? {
            let header = request.header();
            let file = header.ino;
            let seeks_in = (header.opcode == opcode::LSEEK).then_some(file);
            let mut served = None;
            if header.opcode == opcode::NOTIFY_REPLY {
                // It came for the commit that follows: see `Device::nudge`.
                request.end();
            } else {
                let is_write = header.opcode == opcode::WRITE;
                served = Some(self.traffic.serve(worker.queue(), is_write));
                self.run(request);
            }
            let entry = worker.answered().unwrap_or_else(|| {
                let mut away = self.note_away(worker.queue(), seeks_in);
                worker.wait_for_answer(|| self.note_waiting(worker.queue(), &mut away, file))
            });
            worker.commit(entry);
            drop(served);
        }
        Ok(())
    }

    /// Waits for a request, in the way that suits the traffic.
    fn next_request(&self, worker: &mut Worker) -> io::Result<Option<Request>> {
        worker.roam(self.traffic.is_single());
        let turn = self.traffic.turn_to_watch();
        if turn.is_some()
            && let Some(sight) = worker.watch()?
        {
            self.traffic.note_watch(sight);
        }
        drop(turn);
        worker.next_request()
    }

    /// Works on a request, here or on another thread.
    fn run(&self, request: Request) {
        let service = Arc::clone(&self.service);
        self.helpers
            .run(request, move |request| service.serve(request));
    }

    /// Counts an entry of `queue` as away, as its request is answered on another thread. Adds a thread with an entry if
    /// too few are left.
    ///
    /// A seek, here in file `seeks_in`, may wait until the kernel has written pages, and those writes are requests that
    /// need entries. An added entry gets no request that waited before it came, until one is committed there. So the
    /// kernel is nudged when a seek goes, for entries added before, and when an entry is added, for seeks gone before.
    fn note_away(self: &Arc<Self>, queue: u16, seeks_in: Option<Ino>) -> Away<'_> {
        let entries = &self.queues[usize::from(queue)];
        let is_added = entries.leave(seeks_in.is_some());
        let away = Away::new(entries, seeks_in);
        if let Some(file) = seeks_in {
            self.nudge(queue, file);
        }
        if is_added {
            self.add_entry(queue);
        }
        away
    }

    /// Adds a thread with an entry if too few are left, as the request of an entry of `queue`, about `file`, waits for the
    /// volume. Such requests have no bound but that of all that wait, and leave entries for others, as seeks do.
    fn note_waiting(self: &Arc<Self>, queue: u16, away: &mut Away<'_>, file: Ino) {
        away.note_waiting(file);
        self.nudge(queue, file);
        if self.queues[usize::from(queue)].wants_more(true) {
            self.add_entry(queue);
        }
    }

    /// Starts a thread with one more entry of `queue`, which is counted already.
    fn add_entry(self: &Arc<Self>, queue: u16) {
        let crew = Arc::clone(self);
        let report = Report::new(&self.outcome);
        let added = self.threads.start(format!("ring-{queue}"), move || {
            report.send(crew.serve_along(queue));
        });
        if let Err(error) = added {
            self.note_not_added(queue, &error);
        }
    }

    /// Serves with one more entry of `queue`.
    fn serve_along(self: &Arc<Self>, queue: u16) -> io::Result<()> {
        let worker = Worker::new(self.device.descriptor().as_raw_fd(), queue);
        let registered = worker.and_then(|mut worker| {
            worker.register()?;
            Ok(worker)
        });
        match registered {
            Ok(mut worker) => {
                let waiting = self.queues[usize::from(queue)].waiting.lock().clone();
                // One is enough, but each may end meanwhile, and the kernel may forget its file then.
                waiting.into_iter().any(|file| self.nudge(queue, file));
                self.serve(&mut worker)
            }
            // The mount is gone.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ENOTCONN | libc::ECONNABORTED)
                ) =>
            {
                Ok(())
            }
            Err(error) => {
                self.note_not_added(queue, &error);
                Ok(())
            }
        }
    }

    /// Has the kernel take up requests of `queue` that found no entry before a new one was there. They wait for a commit,
    /// and seeks may hold all other entries until these requests are answered.
    ///
    /// Returns whether the kernel does so. It forgets a file only once the seek is answered.
    fn nudge(&self, queue: u16, file: Ino) -> bool {
        // The kernel chooses the queue by the CPU.
        let _pinned = OnQueueCpu::to(queue);
        match self.device.nudge(file) {
            Ok(()) => true,
            Err(error) => {
                match error.raw_os_error() {
                    Some(libc::ENOENT) => {}
                    // The kernel refuses directories.
                    Some(libc::EINVAL) => tracing::debug!("no nudge for {file}: {error}"),
                    _ => tracing::warn!("requests may wait, as the kernel cannot be told: {error}"),
                }
                false
            }
        }
    }

    /// Takes back the count of an entry. The next request that holds one tries again.
    fn note_not_added(&self, queue: u16, error: &io::Error) {
        self.queues[usize::from(queue)]
            .all
            .fetch_sub(1, Ordering::Relaxed);
        tracing::error!("queue {queue} gets no more entries: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_entries_are_left_free_whatever_number_of_seeks_waits() {
        let entries = Entries::of(8);
        for away in 1..1000 {
            let before = entries.all.load(Ordering::Relaxed);
            let is_added = entries.leave(true);
            let after = entries.all.load(Ordering::Relaxed);
            assert_eq!(after - before, usize::from(is_added), "{away}");
            assert_eq!(after, 8.max(away + 4), "{away}");
        }
        drop(Away::new(&entries, Some(Ino(1))));
        assert!(entries.waiting.lock().is_empty());
        assert!(!entries.leave(true), "one has come back");
    }

    #[test]
    fn requests_that_wait_for_disks_get_a_bounded_number_of_entries() {
        let entries = Entries::of(8);
        let added = (0..1000).filter(|_| entries.leave(false)).count();
        assert_eq!(added, MOST_ENTRIES - 8);
        assert!(entries.leave(true), "a seek gets one");
    }

    #[test]
    fn requests_that_wait_for_the_volume_leave_half_of_the_first_entries_free() {
        let entries = Entries::of(8);
        for away in 1..=1000 {
            // Each was away for a disk first.
            entries.leave(false);
            entries.wants_more(true);
            assert!(entries.all.load(Ordering::Relaxed) >= away + 4, "{away}");
        }
        let mut away = Away::new(&entries, None);
        away.note_waiting(Ino(1));
        away.note_waiting(Ino(1));
        assert_eq!(*entries.waiting.lock(), [Ino(1)]);
        drop(away);
        assert!(entries.waiting.lock().is_empty());
    }
}
