//! Requests of programs that wait until the volume of a mount is open again.
//!
//! A volume that lost too many members is closed and opened again beneath its mount. With [`OnFailure::Wait`], requests of
//! programs wait for that here. They take no thread. One thread takes them up again: it runs [`WaitingRequests::serve`].
//!
//! Only a signal that ends the program ends its wait, as on a hard mount of NFS. A program that handles a signal would see
//! a failure that none expects of a file. The kernel tells of the first signal of a request and not what it was, and tells of
//! none during direct I/O. So the thread looks after the programs that wait.
//!
//! # Invariants
//!
//! - A request is here or with one thread, so it is answered once.
//! - A request that came while the volume was away does not miss its return: its addition wakes the thread, which looks
//!   whether the volume is open.
//! - At most [`MOST_REQUESTS`] requests with [`MOST_BYTES`] wait. Others fail at once.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;

use super::request::{Request, Service};
use super::signals::{Life, life_of};

/// The requests that wait at most.
const MOST_REQUESTS: usize = 1024;

/// The bytes of the requests that wait, at most. Nearly all are data of writes.
const MOST_BYTES: usize = 256 << 20;

/// The interrupts that are remembered of requests that do not wait: these may be under way, and wait later.
const MOST_INTERRUPTS: usize = 1024;

/// The interval at which the programs that wait are looked after.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// The time for which the end of the wait itself is waited for. It passes only if a member hangs.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// The fate of requests of programs while the volume has too few members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// They fail with `EIO`.
    #[default]
    Error,
    /// They wait until the volume is open again.
    Wait,
}

/// The requests of one mount that wait for its volume.
#[derive(Debug)]
pub struct WaitingRequests {
    on_failure: OnFailure,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// By number.
    requests: BTreeMap<u64, Waiting>,
    bytes: usize,
    /// The numbers of requests that were interrupted, and were not here.
    interrupted: VecDeque<u64>,
    course: Course,
    /// Set if the thread is to look at the requests.
    is_due: bool,
    /// Set while the thread works on requests that it took up.
    is_serving: bool,
    /// Set if the log has told that there are too many.
    has_told: bool,
}

/// A request that waits.
#[derive(Debug)]
struct Waiting {
    request: Request,
    /// The process of the thread that made it, once that was looked at.
    process: Option<u32>,
}

impl State {
    /// Takes a request out of those that wait.
    fn take(&mut self, unique: u64) -> Option<Request> {
        let Waiting { request, .. } = self.requests.remove(&unique)?;
        self.bytes -= request.held_bytes();
        Some(request)
    }
}

/// The course of requests that find the volume away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Course {
    /// They wait.
    #[default]
    Wait,
    /// They fail for now, because the mount is to end.
    Fail,
    /// They fail, because the mount is gone.
    Ended,
}

impl WaitingRequests {
    /// Returns no requests.
    pub(crate) fn new(on_failure: OnFailure) -> Self {
        Self {
            on_failure,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Returns the fate of requests while the volume is away.
    pub(super) fn on_failure(&self) -> OnFailure {
        self.on_failure
    }

    /// Returns the number of requests that wait at most.
    pub(super) fn most(&self) -> usize {
        match self.on_failure {
            OnFailure::Error => 0,
            OnFailure::Wait => MOST_REQUESTS,
        }
    }

    /// Returns whether requests are to wait while the volume is away.
    pub(super) fn takes(&self) -> bool {
        self.on_failure == OnFailure::Wait && self.state.lock().course == Course::Wait
    }

    /// Has a request wait, or gives it back if it is not to wait. A request that was interrupted fails with `EINTR` if its
    /// program cannot be looked at, which could not be killed otherwise.
    pub(super) fn add(&self, mut request: Request) -> Result<(), Request> {
        if self.on_failure == OnFailure::Error {
            return Err(request);
        }
        request.set_aside();
        let (unique, bytes) = (request.header().unique, request.held_bytes());
        // Of a program that is gone by the next look, nothing else tells that no other thread waits for this.
        let process = thread_of(&request).and_then(|thread| match life_of(thread) {
            Life::Lives { process } => Some(process),
            Life::Dies | Life::Gone => None,
        });
        if self.was_interrupted(unique)
            && thread_of(&request).is_none_or(|thread| life_of(thread) == Life::Gone)
        {
            request.answer(Err(Errno::INTR));
            return Ok(());
        }
        let mut state = self.state.lock();
        let is_full = state.requests.len() >= MOST_REQUESTS || state.bytes + bytes > MOST_BYTES;
        if is_full && !mem::replace(&mut state.has_told, true) {
            tracing::warn!("too many requests wait for the volume: others fail");
        }
        if is_full || state.course != Course::Wait {
            drop(state);
            request.take_up();
            return Err(request);
        }
        state.bytes += bytes;
        state.requests.insert(unique, Waiting { request, process });
        state.is_due = true;
        self.changed.notify_all();
        Ok(())
    }

    /// Returns whether request `unique` was interrupted before it waited, and forgets that.
    fn was_interrupted(&self, unique: u64) -> bool {
        let interrupted = &mut self.state.lock().interrupted;
        let place = interrupted.iter().position(|other| *other == unique);
        place.and_then(|place| interrupted.remove(place)).is_some()
    }

    /// Ends the wait of request `unique` with `EINTR` if the signal that its program got ends that, or if the program cannot
    /// be looked at. Of a request that does not wait this is remembered, as it may wait later.
    pub(super) fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        let Some(Waiting { request, .. }) = state.requests.get(&unique) else {
            if state.interrupted.len() >= MOST_INTERRUPTS {
                state.interrupted.pop_front();
            }
            state.interrupted.push_back(unique);
            return;
        };
        let thread = thread_of(request);
        drop(state);
        // The thread waits, so one that seems to be gone cannot be looked at.
        if thread.is_none_or(|thread| !matches!(life_of(thread), Life::Lives { .. })) {
            self.end_waits(&[unique]);
        }
    }

    /// Ends waits with `EINTR`.
    fn end_waits(&self, numbers: &[u64]) {
        let mut state = self.state.lock();
        let ended = numbers.iter().filter_map(|unique| state.take(*unique));
        let ended: Vec<Request> = ended.collect();
        self.changed.notify_all();
        drop(state);
        for request in ended {
            request.answer(Err(Errno::INTR));
        }
    }

    /// Ends the waits of programs that signals end.
    fn end_of_dying(&self) {
        let thread = |(unique, waiting): (&u64, &Waiting)| {
            Some((*unique, thread_of(&waiting.request)?, waiting.process))
        };
        let waiting: Vec<_> = {
            let state = self.state.lock();
            state.requests.iter().filter_map(thread).collect()
        };
        let mut lives = BTreeMap::new();
        let mut life = |id: u32| *lives.entry(id).or_insert_with(|| life_of(id));
        let mut dying = Vec::new();
        for (unique, thread, process) in waiting {
            match (life(thread), process) {
                (Life::Dies, _) => dying.push(unique),
                // Another thread of its process may wait for what it began.
                (Life::Gone, Some(process)) if !matches!(life(process), Life::Lives { .. }) => {
                    dying.push(unique);
                }
                (Life::Lives { process }, None) => self.note_process(unique, process),
                (Life::Gone | Life::Lives { .. }, _) => {}
            }
        }
        self.end_waits(&dying);
    }

    /// Notes to which process a request belongs.
    fn note_process(&self, unique: u64, process: u32) {
        if let Some(waiting) = self.state.lock().requests.get_mut(&unique) {
            waiting.process = Some(process);
        }
    }

    /// Takes the requests up, because the volume is open again.
    pub fn resume(&self) {
        let mut state = self.state.lock();
        state.is_due = true;
        state.has_told = false;
        self.changed.notify_all();
    }

    /// Has the requests fail, and those that come, because the mount is to end. Returns once they have failed, or after
    /// [`RELEASE_TIMEOUT`].
    pub(super) fn release(&self) {
        let mut state = self.state.lock();
        if state.course == Course::Wait {
            state.course = Course::Fail;
        }
        state.is_due = true;
        self.changed.notify_all();
        let is_busy = |state: &mut State| state.is_serving || !state.requests.is_empty();
        self.changed
            .wait_while_for(&mut state, is_busy, RELEASE_TIMEOUT);
    }

    /// Has requests wait again after [`Self::release`], because the mount stays.
    pub(super) fn take_again(&self) {
        let mut state = self.state.lock();
        if state.course == Course::Fail {
            state.course = Course::Wait;
        }
    }

    /// Has the requests fail for good, because the mount is gone, and ends [`Self::serve`].
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.course = Course::Ended;
        self.changed.notify_all();
    }

    /// Has `service` work on the requests once its volume is open, or once they are to fail. Until then, looks after the
    /// programs that wait. Returns after [`Self::end`].
    pub(super) fn serve(&self, service: &dyn Service) {
        while let Some(requests) = self.next(|| service.is_open()) {
            for Waiting { mut request, .. } in requests {
                request.take_up();
                service.serve(request);
            }
            self.state.lock().is_serving = false;
            self.changed.notify_all();
        }
    }

    /// Waits for requests that are to be worked on. Returns none once the mount is gone and no request is left.
    fn next(&self, is_open: impl Fn() -> bool) -> Option<Vec<Waiting>> {
        let mut looked = Instant::now();
        let mut state = self.state.lock();
        loop {
            let has_ended = state.course == Course::Ended;
            if has_ended && state.requests.is_empty() {
                return None;
            }
            if mem::take(&mut state.is_due) || has_ended {
                let is_open =
                    state.course != Course::Wait || MutexGuard::unlocked(&mut state, &is_open);
                if is_open && !state.requests.is_empty() {
                    state.is_serving = true;
                    state.bytes = 0;
                    return Some(mem::take(&mut state.requests).into_values().collect());
                }
                self.changed.notify_all();
                continue;
            }
            if state.requests.is_empty() {
                self.changed.wait(&mut state);
                continue;
            }
            let next_look = looked + LOOK_INTERVAL;
            if self.changed.wait_until(&mut state, next_look).timed_out() {
                MutexGuard::unlocked(&mut state, || self.end_of_dying());
                looked = Instant::now();
            }
        }
    }
}

/// Returns the thread that made a request. It is none for pages that the kernel writes back, and for a program that this
/// process cannot see.
fn thread_of(request: &Request) -> Option<u32> {
    Some(request.header().pid).filter(|thread| *thread != 0)
}

#[cfg(test)]
mod tests;
