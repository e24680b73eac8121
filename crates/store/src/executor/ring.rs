//! One `io_uring` and the operations that the kernel is at.

#![expect(
    unsafe_code,
    reason = "the kernel is handed pointers, which it uses after the call"
)]

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use rustix::io::Errno;

use super::job::RequestInFlight;
use super::request::Op;

/// The number of operations that one ring can have with the kernel.
pub(super) const DEPTH: usize = 128;

/// The most bytes given to one operation; the kernel takes a little less than 2 GiB.
const LONGEST: usize = 1 << 30;

/// Kernel threads that one calling thread may have block on its behalf: enough that some hung
/// operations leave room for others.
pub(super) const KERNEL_WORKERS: u32 = 64;

/// The flag of a write that is durable when it answers.
const DURABLE: i32 = rustix::io::ReadWriteFlags::DSYNC.bits().cast_signed();

thread_local! {
    /// True once the thread may have [`KERNEL_WORKERS`].
    static HAS_WORKERS: Cell<bool> = const { Cell::new(false) };
}

/// An operation that the kernel is at, with all that it uses.
pub(super) struct Flight {
    pub(super) job: RequestInFlight,
    pub(super) file: Arc<OwnedFd>,
    /// The [`key`](super::watch::key) of the store.
    pub(super) key: usize,
    /// The time since which no caller waits for it, though it is not overdue.
    pub(super) left: Option<Instant>,
}

/// A ring that one thread at a time uses.
pub(super) struct Ring {
    io: IoUring,
    /// The operations with the kernel; the place of one is its number there.
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
}

impl Ring {
    /// Makes a ring, if the kernel allows that and can wait with a timeout (Linux 5.11).
    pub(super) fn new() -> io::Result<Self> {
        let depth = u32::try_from(DEPTH).expect("a small constant");
        let io = IoUring::new(depth)?;
        if !io.params().is_feature_ext_arg() {
            return Err(io::Error::from(Errno::OPNOTSUPP));
        }
        let flights = (0..DEPTH).map(|_| None).collect();
        Ok(Self {
            io,
            flights,
            free: (0..DEPTH).collect(),
        })
    }

    /// Lets the calling thread have [`KERNEL_WORKERS`] kernel threads.
    ///
    /// The kernel counts them for the thread, whatever ring they work for. It takes their number from the first ring that
    /// the thread has used. A thread that serves a mount over `io_uring` has a ring of one entry for that. It would have
    /// one worker, and a member that hangs would have all others wait.
    pub(super) fn allow_workers(&self) {
        if HAS_WORKERS.replace(true) {
            return;
        }
        let submitter = self.io.submitter();
        if let Err(error) = submitter.register_iowq_max_workers(&mut [KERNEL_WORKERS; 2]) {
            tracing::debug!("io_uring keeps its default number of workers: {error}");
        }
    }

    /// Returns whether the kernel is at nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == DEPTH
    }

    /// Returns how many more operations fit.
    pub(super) fn room(&self) -> usize {
        self.free.len()
    }

    /// Returns the operations that the kernel is at.
    pub(super) fn flights(&self) -> impl Iterator<Item = &Flight> {
        self.flights.iter().flatten()
    }

    /// The same, to be changed.
    pub(super) fn flights_mut(&mut self) -> impl Iterator<Item = &mut Flight> {
        self.flights.iter_mut().flatten()
    }

    /// Puts an operation into the queue that [`Ring::wait`] hands to the kernel.
    ///
    /// # Panics
    ///
    /// If there is no [`Ring::room`], or the kernel cannot do such an operation.
    pub(super) fn push(&mut self, mut flight: Flight) {
        let slot = self.free.pop().expect("callers look for room first");
        let entry = entry(&mut flight).user_data(slot as u64);
        self.flights[slot] = Some(flight);
        // SAFETY: the descriptor and the memory that `entry` names belong to `flight`, whose heap
        // blocks do not move when it does. `flights` keeps it, untouched, until `pop` sees its
        // completion, and `drop` leaks what never completed.
        let pushed = unsafe { self.io.submission().push(&entry) };
        pushed.expect("the queue has as many places as there are slots");
    }

    /// Hands over what was pushed, then waits for `want` completions, at most for `patience`.
    pub(super) fn wait(&mut self, want: usize, patience: Duration) -> io::Result<()> {
        let limit = Timespec::from(patience);
        match self
            .io
            .submitter()
            .submit_with_args(want, &SubmitArgs::new().timespec(&limit))
        {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Returns an operation that is complete, with the kernel's answer: a count or minus an errno.
    pub(super) fn pop(&mut self) -> Option<(Flight, i32)> {
        let completion = self.io.completion().next()?;
        let slot = usize::try_from(completion.user_data()).expect("a slot that `push` used");
        let flight = self.flights[slot]
            .take()
            .expect("each operation completes once");
        self.free.push(slot);
        Some((flight, completion.result()))
    }
}

/// Describes an operation to the kernel.
fn entry(flight: &mut Flight) -> squeue::Entry {
    let file = Fd(flight.file.as_raw_fd());
    let done = flight.job.done;
    match &mut flight.job.op {
        Op::Read { offset, buf, .. } => {
            let rest = &mut buf[done..];
            opcode::Read::new(file, rest.as_mut_ptr(), span(rest))
                .offset(*offset + done as u64)
                .build()
        }
        Op::Write { offset, data, .. } => {
            let rest = &data[done..];
            opcode::Write::new(file, rest.as_ptr(), span(rest))
                .offset(*offset + done as u64)
                .build()
        }
        Op::WriteDurably { offset, data, .. } => {
            let rest = &data[done..];
            opcode::Write::new(file, rest.as_ptr(), span(rest))
                .offset(*offset + done as u64)
                .rw_flags(DURABLE)
                .build()
        }
        Op::Sync { .. } => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
        Op::Create { .. } | Op::Remove { .. } | Op::Punch { .. } | Op::Probe => {
            unreachable!("`RequestInFlight::raw` has no descriptor for these")
        }
    }
}

/// Returns how many of `bytes` one operation takes.
fn span(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len().min(LONGEST)).expect("at most `LONGEST`")
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel may still write to the memory of what it is at, even after the ring is
        // closed: that memory is given up for good rather than used for something else.
        for flight in self.flights.drain(..).flatten() {
            std::mem::forget(flight);
        }
    }
}
