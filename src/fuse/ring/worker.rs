//! A thread of one queue, with a ring and an entry of its own.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue};

use super::command::{commit_and_fetch, register};
use super::entry::{CarriedEntry, Entry, Returns};
use super::pinning::{may_use, pin_to};
use super::watching::{Sight, Watching};
use crate::fuse::request::Request;
use crate::workers::use_every_cpu;

/// A worker, used by the thread that made it.
pub(super) struct Worker {
    ring: IoUring<Entry128, cqueue::Entry>,
    queue: u16,
    entry: WithKernel,
    returns: Arc<Returns>,
    /// The result of a completion that is not handled yet.
    completed: Option<i32>,
    watching: Watching,
    /// True while the thread may run on all CPUs.
    is_roaming: bool,
}

/// The entry of a worker, while the kernel has it.
struct WithKernel(Option<CarriedEntry>);

impl Drop for WithKernel {
    fn drop(&mut self) {
        // The kernel may still write to it: the thread failed.
        if let Some(entry) = self.0.take() {
            std::mem::forget(entry);
        }
    }
}

impl Worker {
    /// Sets up a ring and an entry for the queue of CPU `queue`, and pins the calling thread to that CPU.
    ///
    /// # Errors
    ///
    /// If this process may not have a ring, or not have the memory for one.
    pub(super) fn new(device: RawFd, queue: u16) -> io::Result<Self> {
        pin_to(queue);
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(1)?;
        ring.submitter().register_files(&[device])?;
        let returns = Arc::new(Returns::default());
        let entry = Box::new(Entry::new(Arc::clone(&returns)));
        Ok(Self {
            ring,
            queue,
            entry: WithKernel(Some(entry)),
            returns,
            completed: None,
            watching: Watching::default(),
            is_roaming: false,
        })
    }

    /// Hands the entry to the kernel.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it.
    pub(super) fn register(&mut self) -> io::Result<()> {
        let entry = self.entry.0.as_ref().expect("it is new");
        let submission = register(self.queue, entry.areas());
        self.push(&submission);
        self.ring.submit()?;
        // An entry that the kernel refuses completes at once; an accepted one completes with a request.
        self.collect();
        match self.completed {
            Some(result) if result < 0 => Err(io::Error::from_raw_os_error(-result)),
            _ => Ok(()),
        }
    }

    /// Returns the CPU of its queue.
    pub(super) fn queue(&self) -> u16 {
        self.queue
    }

    /// Lets the thread run on all CPUs of the process, or pins it again if its CPU is one of them.
    pub(super) fn roam(&mut self, is_wanted: bool) {
        if is_wanted == self.is_roaming {
            return;
        }
        self.is_roaming = is_wanted;
        if is_wanted || !may_use(self.queue) {
            use_every_cpu();
        } else {
            pin_to(self.queue);
        }
    }

    /// Commits the answer, and watches for the next request for a short time, unless that was in vain lately. It need not
    /// come meanwhile. Returns what it saw, if it watched.
    ///
    /// # Errors
    ///
    /// If the ring breaks, or the kernel does not take the answer.
    pub(super) fn watch(&mut self) -> io::Result<Option<Sight>> {
        if self.completed.is_some() || !self.watching.is_due() {
            return Ok(None);
        }
        self.enter(0)?;
        let ring = &mut self.ring;
        // The kernel announces a request by a flag, and delivers it with the next call.
        let sight = self
            .watching
            .watch(|| ring.submission().taskrun() || !ring.completion().is_empty());
        self.collect();
        Ok(Some(sight))
    }

    /// Waits for a request; returns none once the mount is gone.
    ///
    /// # Errors
    ///
    /// If the ring breaks, or the kernel does not take an answer.
    pub(super) fn next_request(&mut self) -> io::Result<Option<Request>> {
        let result = loop {
            if let Some(result) = self.completed.take() {
                break result;
            }
            self.enter(1)?;
            self.collect();
        };
        let entry = self.entry.0.take();
        match -result {
            libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED => Ok(None),
            errno if errno > 0 => Err(io::Error::from_raw_os_error(errno)),
            _ => {
                let entry = entry.ok_or_else(|| io::Error::other("a completion without an entry"));
                let request = entry?.into_request().map_err(io::Error::other)?;
                Ok(Some(request))
            }
        }
    }

    /// Returns the entry if it has an answer.
    pub(super) fn answered(&self) -> Option<CarriedEntry> {
        self.returns.take()
    }

    /// Waits until the entry has an answer. Calls `note_waiting` when its request begins to wait for the volume.
    #[expect(
        clippy::unnecessary_box_returns,
        reason = "a request carries the entry in this box"
    )]
    pub(super) fn wait_for_answer(&self, note_waiting: impl FnMut()) -> CarriedEntry {
        self.returns.wait(note_waiting)
    }

    /// Prepares to hand an answer to the kernel.
    pub(super) fn commit(&mut self, entry: CarriedEntry) {
        let submission = commit_and_fetch(self.queue, entry.unique);
        self.entry.0 = Some(entry);
        self.push(&submission);
    }

    /// Queues a submission, for which there is room: the entry has one at most.
    #[expect(unsafe_code, reason = "vouches for the memory that the kernel uses")]
    fn push(&mut self, submission: &Entry128) {
        // SAFETY: the memory of the entry is in `entry`, untouched, until the kernel completes it, and is leaked if the
        // thread ends before.
        let pushed = unsafe { self.ring.submission().push(submission) };
        pushed.expect("one submission for the one entry");
    }

    /// Submits, and waits for so many completions.
    fn enter(&self, completions: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(completions) {
            Err(error)
                if !matches!(
                    error.raw_os_error(),
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
                ) =>
            {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Takes the completion if there is one.
    fn collect(&mut self) {
        self.completed = self.ring.completion().next().map(|done| done.result());
    }
}
