//! The thread of one queue.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::command::{commit_and_fetch, register};
use super::entry::{CarriedEntry, Entry, Returns};
use super::helpers::Helpers;
use crate::fuse::request::Service;

/// The completion of the eventfd, beside the indices of entries.
const WOKEN: u64 = u64::MAX;

/// A queue, used by the thread that made it.
pub(super) struct Queue {
    ring: IoUring<Entry128, cqueue::Entry>,
    number: u16,
    entries: WithKernel,
    returns: Arc<Returns>,
    /// Entries that the kernel or a request has.
    in_use: usize,
    /// Entries to commit; empty between calls.
    answered: Vec<CarriedEntry>,
    /// Completions to handle; empty between calls.
    completed: Vec<(u64, i32)>,
}

/// Entries that the kernel has, at their indices.
struct WithKernel(Vec<Option<CarriedEntry>>);

impl Drop for WithKernel {
    fn drop(&mut self) {
        // The kernel may still write to them: the thread panicked.
        for entry in self.0.iter_mut().filter_map(Option::take) {
            std::mem::forget(entry);
        }
    }
}

impl Queue {
    /// Sets up the queue of CPU `number`, with `depth` entries, and pins the calling thread to that CPU.
    ///
    /// # Errors
    ///
    /// If this process may not have a ring, or not have the memory for one.
    pub(super) fn new(device: RawFd, number: usize, depth: usize) -> io::Result<Self> {
        pin_to(number);
        let number = u16::try_from(number).map_err(io::Error::other)?;
        // A submission for each entry, and one for the eventfd.
        let submissions = u32::try_from(depth + 1).map_err(io::Error::other)?;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(submissions.next_power_of_two())?;
        ring.submitter().register_files(&[device])?;
        let returns = Arc::new(Returns::new()?);
        let entry = |index| Some(Box::new(Entry::new(index, Arc::clone(&returns))));
        Ok(Self {
            ring,
            number,
            entries: WithKernel((0..depth).map(entry).collect()),
            returns,
            in_use: 0,
            answered: Vec::with_capacity(depth),
            completed: Vec::with_capacity(depth + 1),
        })
    }

    /// Hands all entries to the kernel.
    ///
    /// # Errors
    ///
    /// If the kernel refuses one. The others are to be served all the same.
    pub(super) fn register(&mut self) -> io::Result<()> {
        let areas: Vec<_> = self.entries.0.iter().flatten().map(|e| e.areas()).collect();
        for (index, areas) in areas.into_iter().enumerate() {
            self.push(&register(self.number, areas).user_data(index as u64));
            self.in_use += 1;
        }
        self.await_event();
        self.ring.submit()?;
        // An entry that the kernel refuses completes at once; an accepted one completes with a request.
        self.collect();
        let refused = self.completed.iter().find(|(_, result)| *result < 0);
        match refused {
            None => Ok(()),
            Some((_, result)) => Err(io::Error::from_raw_os_error(-result)),
        }
    }

    /// Serves until the kernel has given up all entries.
    ///
    /// # Errors
    ///
    /// If the ring breaks.
    pub(super) fn serve(
        &mut self,
        service: &Arc<dyn Service>,
        helpers: &Arc<Helpers>,
    ) -> io::Result<()> {
        while self.in_use > 0 {
            let completed = std::mem::take(&mut self.completed);
            let last = completed.len().saturating_sub(1);
            for (i, &(index, result)) in completed.iter().enumerate() {
                self.complete(index, result, service, helpers);
                self.commit();
                // The caller need not wait for the others.
                if i < last {
                    self.enter(0)?;
                }
            }
            self.completed = completed;
            self.completed.clear();
            self.commit();
            self.collect();
            if self.completed.is_empty() && self.in_use > 0 {
                self.enter(1)?;
                self.collect();
            }
        }
        Ok(())
    }

    /// Handles one completion.
    fn complete(
        &mut self,
        index: u64,
        result: i32,
        service: &Arc<dyn Service>,
        helpers: &Arc<Helpers>,
    ) {
        if index == WOKEN {
            self.returns.clear_event();
            self.await_event();
            return;
        }
        let entry = usize::try_from(index).ok();
        let entry = entry.and_then(|index| self.entries.0.get_mut(index)?.take());
        let Some(entry) = entry else {
            tracing::error!("the kernel completes entry {index}, which it does not have");
            return;
        };
        if result < 0 {
            // The mount is gone; the kernel gives up its entries one by one.
            if !matches!(
                -result,
                libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED
            ) {
                let error = io::Error::from_raw_os_error(-result);
                tracing::error!("queue {} loses an entry: {error}", self.number);
            }
            self.in_use -= 1;
            return;
        }
        match entry.into_request() {
            Ok(request) => {
                let service = Arc::clone(service);
                helpers.run(request, move |request| service.serve(request));
            }
            Err(malformed) => {
                tracing::error!("queue {} loses an entry: {malformed}", self.number);
                self.in_use -= 1;
            }
        }
    }

    /// Hands entries with answers to the kernel.
    fn commit(&mut self) {
        let mut answered = std::mem::take(&mut self.answered);
        self.returns.collect(&mut answered);
        for entry in answered.drain(..) {
            let (index, unique) = (entry.index, entry.unique);
            self.entries.0[index] = Some(entry);
            self.push(&commit_and_fetch(self.number, unique).user_data(index as u64));
        }
        self.answered = answered;
    }

    fn await_event(&mut self) {
        let event = types::Fd(self.returns.event().as_raw_fd());
        let poll = opcode::PollAdd::new(event, libc::POLLIN as u32).build();
        self.push(&Entry128::from(poll).user_data(WOKEN));
    }

    /// Queues a submission, for which there is always room: an entry has one at most, and so has the eventfd.
    #[expect(unsafe_code, reason = "vouches for the memory that the kernel uses")]
    fn push(&mut self, submission: &Entry128) {
        // SAFETY: the memory of an entry is in `entries`, untouched, until the kernel completes it, and is leaked if the
        // thread ends before. The eventfd lives as long as `returns`, which the ring does not outlive.
        let pushed = unsafe { self.ring.submission().push(submission) };
        pushed.expect("a submission for each entry and one for the eventfd");
    }

    /// Submits, and waits for so many completions.
    fn enter(&self, wanted: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(wanted) {
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

    /// Takes the completions that there are.
    fn collect(&mut self) {
        let completions = self.ring.completion();
        self.completed
            .extend(completions.map(|done| (done.user_data(), done.result())));
    }
}

/// Pins the calling thread to a CPU. It stays where it is if the CPU is offline or not allowed.
fn pin_to(cpu: usize) {
    if cpu >= CpuSet::MAX_CPU {
        return;
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(errno) = sched_setaffinity(None, &set) {
        tracing::debug!("a thread cannot be pinned to CPU {cpu}: {errno}");
    }
}
