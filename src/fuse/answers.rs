//! Answers to requests. While the volume of a mount is away, requests wait for it instead, if the mount is to do so.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::operation_counts::OperationCounts;
use super::protocol::{Answer, Operation, OperationKind};
use super::request::Request;
use super::waiting::{OnFailure, WaitingRequests};
use super::without_volume::answer_without_volume;
use crate::fs::{Fs, ServedFs};
use crate::membership::Members;

/// The way of an outcome to the kernel, or of a request to the place where it waits.
#[derive(Clone)]
pub(super) struct Answers {
    served: Arc<ServedFs>,
    waiting: Arc<WaitingRequests>,
    /// None if requests are not counted.
    counts: Option<Arc<OperationCounts>>,
}

impl Answers {
    /// Returns the answers to requests about what is `served`. Requests that wait do so in `waiting`. Those that are
    /// answered without a volume, and those that wait, are counted in `counts`.
    pub(super) fn new(
        served: &Arc<ServedFs>,
        waiting: &Arc<WaitingRequests>,
        counts: Option<Arc<OperationCounts>>,
    ) -> Self {
        Self {
            served: Arc::clone(served),
            waiting: Arc::clone(waiting),
            counts,
        }
    }

    /// Returns the requests that wait.
    pub(super) fn waiting(&self) -> &WaitingRequests {
        &self.waiting
    }

    /// Returns whether a request that fails with the volume is tried again once the volume is back.
    pub(super) fn tries_again(&self) -> bool {
        self.waiting.on_failure() == OnFailure::Wait
    }

    /// Returns whether requests of programs are to wait, because the volume of `fs` has too few members.
    pub(super) fn waits_for(&self, fs: &Fs) -> bool {
        self.tries_again() && fs.transactions().lacks_members() && self.waiting.takes()
    }

    /// Answers a request with the outcome of work on `fs`. If that failed together with the volume, the request waits, and
    /// is done again.
    pub(super) fn give(&self, fs: &Fs, request: Request, outcome: Result<Answer, Errno>) {
        match outcome {
            Err(errno) if self.failed_with_volume(fs, errno) => self.wait_again(request),
            outcome => request.answer(outcome.map_err(|errno| with_volume_of(fs, errno))),
        }
    }

    /// Answers with so many bytes of the request's memory, as [`Self::give`].
    pub(super) fn give_memory(&self, fs: &Fs, request: Request, outcome: Result<usize, Errno>) {
        match outcome {
            Err(errno) if self.failed_with_volume(fs, errno) => self.wait_again(request),
            outcome => request.answer_memory(outcome.map_err(|errno| with_volume_of(fs, errno))),
        }
    }

    /// Answers a request with the outcome of a commit, as [`Self::give`]. The thread that commits holds no filesystem, whose
    /// end would wait for it; `members` are those of the volume.
    pub(super) fn give_committed(
        &self,
        members: &Members,
        request: Request,
        outcome: Result<Answer, Errno>,
    ) {
        let has_failed = members.membership().is_failed();
        match outcome {
            Err(errno) if self.tries_again() && has_failed && is_of_volume(errno) => {
                self.wait_again(request);
            }
            outcome => request.answer(outcome.map_err(|errno| with_volume(errno, has_failed))),
        }
    }

    /// Has a request wait for the volume that no work was done for. If it is not to wait, it is answered as without one.
    pub(super) fn wait(&self, request: Request) {
        if let Some(request) = self.queue(request) {
            self.answer_without_volume(request);
        }
    }

    /// Has a request wait for the volume whose work failed, and was counted. If it is not to wait, it is answered.
    fn wait_again(&self, request: Request) {
        if let Some(request) = self.queue(request) {
            answer_without_volume(&self.served, request);
        }
    }

    /// Has a request wait. Gives it back if it is not to.
    fn queue(&self, request: Request) -> Option<Request> {
        match self.waiting.add(request) {
            Ok(()) => {
                if let Some(counts) = &self.counts {
                    counts.count_wait();
                }
                None
            }
            Err(request) => Some(request),
        }
    }

    /// Refuses a request that no work is done for.
    pub(super) fn refuse(&self, request: Request, errno: Errno) {
        if let Some((counts, kind)) = self.counts.as_ref().zip(kind_of(&request)) {
            counts.count(kind, Duration::ZERO, 0, true);
        }
        request.answer(Err(errno));
    }

    fn answer_without_volume(&self, request: Request) {
        let (kind, began) = (kind_of(&request), Instant::now());
        let has_failed = answer_without_volume(&self.served, request);
        if let Some((counts, kind)) = self.counts.as_ref().zip(kind) {
            counts.count(kind, began.elapsed(), 0, has_failed);
        }
    }

    /// Answers a request while no volume is open, or has it wait for one.
    pub(super) fn without_volume(&self, request: Request) {
        match request.operation() {
            Ok(operation) if self.tries_again() && needs_volume(&operation) => self.wait(request),
            _ => self.answer_without_volume(request),
        }
    }

    /// Returns whether a request failed together with the volume of `fs`, and is to be done again once that is back.
    pub(super) fn failed_with_volume(&self, fs: &Fs, errno: Errno) -> bool {
        self.tries_again() && is_of_volume(errno) && fs.transactions().lacks_members()
    }
}

/// Returns the error for a program whose request failed, where it may have failed with the volume.
pub(super) fn with_volume_of(fs: &Fs, errno: Errno) -> Errno {
    with_volume(errno, fs.transactions().lacks_members())
}

fn kind_of(request: &Request) -> Option<OperationKind> {
    request.operation().ok().map(|operation| operation.kind())
}

/// Returns what a program learns: while the volume lacks members, `EIO`. The volume comes back writable, with its room.
fn with_volume(errno: Errno, has_failed: bool) -> Errno {
    if has_failed && is_of_volume(errno) {
        Errno::IO
    } else {
        errno
    }
}

/// Returns whether an error may be that of a volume which has failed.
fn is_of_volume(errno: Errno) -> bool {
    matches!(errno, Errno::IO | Errno::ROFS | Errno::NOSPC)
}

/// Returns whether an operation of a program needs an open volume. The others give something back, or are known.
pub(super) fn needs_volume(operation: &Operation<'_>) -> bool {
    !matches!(
        operation,
        Operation::Forget { .. }
            | Operation::BatchForget(_)
            | Operation::Release { .. }
            | Operation::ReleaseDir { .. }
            | Operation::StatFs
            | Operation::Interrupt { .. }
            | Operation::Ioctl
            | Operation::Unknown
    )
}
