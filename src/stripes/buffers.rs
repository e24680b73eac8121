//! Stripe buffers: those being filled, those on their way to the members, and the threads that wait for them. One is filled
//! for each class of stripes that is written.
//!
//! ```text
//! append ─► open ──full, or seal()──► sealed (queued) ─► flushed ─► recorded: buffer goes back
//!            │                          │
//!            └─ read under its lock     └─ read without a lock: sealed bytes never change
//! ```
//!
//! A stripe that finds no space waits, readable and with its buffer, until it is asked to try again; no
//! other stripe is opened meanwhile.
//!
//! Lock order: `open`, then `state`. Neither is held across I/O, nor while memory is taken from the pool or may go back
//! to it: a device may have to be told of it, which takes long. A stripe enters the table when it gets its number, and
//! leaves it once its record is in the index. A reader that finds it in neither place therefore knows that it does
//! not exist.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};
use scopeguard::{ScopeGuard, guard_on_unwind};

use super::classes::ClassCode;
use super::error::StripeError;
use super::layout;
use super::segments::Reservation;
use crate::format::{StripeClass, StripeId};
use crate::store::Pool;

mod open;
mod sealed;

pub use open::{Placed, Unjournaled};
pub(crate) use sealed::Sealed;

use open::{Fresh, OpenStripe};

#[derive(Debug)]
enum BufferedStripe {
    Open,
    Sealed(Arc<Sealed>),
}

#[derive(Debug, Default)]
struct BufferTable {
    table: HashMap<StripeId, BufferedStripe>,
    queue: VecDeque<Arc<Sealed>>,
    /// Stripes that found no space, and what one of them was told.
    stuck: Vec<Arc<Sealed>>,
    no_space: Option<StripeError>,
    /// The number of stripes out of the queue that are to return to it.
    taken: usize,
    /// Buffers between their opening and their stripe's record.
    in_use: usize,
    /// The baton of the thread that opens the next stripe.
    opening: bool,
    last_sequence: u64,
    unflushed: BTreeSet<u64>,
    holds: HashMap<StripeId, usize>,
    failed: Option<StripeError>,
    closed: bool,
}

/// Keeps stripes from being taken for dead while extents that name them are not applied yet.
#[derive(Debug)]
#[must_use = "a stripe is held only while this is kept"]
pub struct Hold {
    buffers: Arc<Buffers>,
    stripe: StripeId,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.buffers.state.lock();
        if let Some(count) = state.holds.get_mut(&self.stripe) {
            *count -= 1;
            if *count == 0 {
                state.holds.remove(&self.stripe);
            }
        }
    }
}

/// The number, the code and the reserved space with which a stripe is opened.
pub(crate) struct Opening {
    pub(crate) stripe: StripeId,
    pub(crate) code: Arc<ClassCode>,
    pub(crate) reservation: Reservation,
}

/// The stripe buffers of a volume.
#[derive(Debug)]
pub(crate) struct Buffers {
    pool: Pool,
    limit: usize,
    /// By the class for which they take bytes.
    open: Mutex<BTreeMap<StripeClass, OpenStripe>>,
    state: Mutex<BufferTable>,
    /// The least number of a stripe in the table, readable without a lock. Readers of flushed stripes need no more.
    oldest: AtomicU64,
    /// Whether a stripe found no space, as the table says. Every change of the filesystem that adds something reads it.
    is_stuck: AtomicBool,
    /// A stripe was opened, or a buffer went back, or the buffers failed or were closed.
    room: Condvar,
    /// Something was queued, or the buffers were closed.
    work: Condvar,
    /// A stripe was recorded, or the buffers failed.
    flushed: Condvar,
}

impl Buffers {
    /// Makes room for `limit` stripes.
    pub(crate) fn new(pool: Pool, limit: usize) -> Arc<Self> {
        Arc::new(Self {
            pool,
            limit,
            open: Mutex::default(),
            state: Mutex::default(),
            oldest: AtomicU64::new(u64::MAX),
            is_stuck: AtomicBool::new(false),
            room: Condvar::new(),
            work: Condvar::new(),
            flushed: Condvar::new(),
        })
    }

    /// Copies as much of `data` as fits into the open stripe of a class; `None` if there is none that has
    /// room, and then one must be opened.
    pub(crate) fn append(
        self: &Arc<Self>,
        class: StripeClass,
        data: &[u8],
    ) -> Option<(Placed, Hold)> {
        let mut open = self.open.lock();
        let stripe = open.get_mut(&class);
        let Some(placed) = stripe.and_then(|stripe| stripe.append(data)) else {
            self.seal_locked(&mut open, class);
            return None;
        };
        let hold = self.hold(placed.stripe);
        if open.get(&class).is_some_and(OpenStripe::is_full) {
            self.seal_locked(&mut open, class);
        }
        Some((placed, hold))
    }

    /// Keeps a stripe from being taken for dead.
    pub(crate) fn hold(self: &Arc<Self>, stripe: StripeId) -> Hold {
        *self.state.lock().holds.entry(stripe).or_default() += 1;
        Hold {
            buffers: Arc::clone(self),
            stripe,
        }
    }

    /// Opens a stripe for a class, unless another thread just opened one; `prepare` runs without a lock, in one thread at
    /// a time, once a buffer is free. `help` is called while none is; it returns whether it flushed
    /// something itself.
    pub(crate) fn open_stripe(
        &self,
        class: StripeClass,
        mut help: impl FnMut() -> bool,
        prepare: impl FnOnce() -> Result<Opening, StripeError>,
    ) -> Result<(), StripeError> {
        let Some(mut unused) = self.make_way(class) else {
            return self.check();
        };
        let mut state = self.state.lock();
        loop {
            state.check()?;
            if state.opening {
                self.room.wait(&mut state);
                // The thread that had the baton opened a stripe, or met an error that concerns this thread as well.
                return state.check();
            }
            if state.in_use < self.limit + unused {
                break;
            }
            let helped = MutexGuard::unlocked(&mut state, || {
                // Stripes that others opened meanwhile may have all buffers.
                let empty = self.make_way(class)?;
                unused = empty;
                Some(help())
            });
            let Some(helped) = helped else {
                return state.check();
            };
            let is_full = state.in_use >= self.limit + unused;
            // Otherwise filled stripes were opened since, and the next round seals one.
            let comes_room = state.opening || !state.unflushed.is_empty();
            if !helped && is_full && comes_room && state.check().is_ok() {
                self.room.wait(&mut state);
            }
        }
        state.opening = true;
        state.in_use += 1;
        drop(state);
        // Since this caller looked, another thread may have opened one. From here on only this one can.
        if self.open.lock().contains_key(&class) {
            self.give_up_opening();
            return Ok(());
        }
        let unwinding = guard_on_unwind((), |()| self.give_up_opening());
        let opened = prepare().map(|opening| {
            let buffer = self.pool.buffer(opening.code.capacity());
            let stripe = (opening.stripe, opening.code);
            OpenStripe::new(class, stripe, opening.reservation, buffer)
        });
        ScopeGuard::into_inner(unwinding);
        self.install(class, opened)
    }

    /// Seals open stripes of other classes if they are too many to open one more: at least half of the buffers are for
    /// stripes on their way to the members. Returns how many stripes are open and empty. These cannot be sealed, so their
    /// buffers do not count. Returns `None` if a stripe of this class is open: it has room.
    fn make_way(&self, class: StripeClass) -> Option<usize> {
        let mut open = self.open.lock();
        if open.contains_key(&class) {
            return None;
        }
        let most = (self.limit / 2).max(1);
        loop {
            let filled = open.iter().filter(|(_, stripe)| !stripe.is_empty());
            let count = filled.clone().count();
            let fullest = filled.max_by_key(|(_, stripe)| stripe.len());
            match fullest.map(|(class, _)| *class) {
                Some(fullest) if count >= most => {
                    self.seal_locked(&mut open, fullest);
                }
                _ => return Some(open.len() - count),
            }
        }
    }

    /// Passes the baton on without having opened a stripe.
    fn give_up_opening(&self) {
        let mut state = self.state.lock();
        state.opening = false;
        state.in_use -= 1;
        self.room.notify_all();
    }

    fn install(
        &self,
        class: StripeClass,
        opened: Result<OpenStripe, StripeError>,
    ) -> Result<(), StripeError> {
        let mut open = self.open.lock();
        let mut state = self.state.lock();
        state.opening = false;
        self.room.notify_all();
        match opened {
            Ok(stripe) => {
                debug_assert!(
                    !open.contains_key(&class),
                    "only the holder of the baton opens a stripe"
                );
                state.table.insert(stripe.stripe(), BufferedStripe::Open);
                self.note_oldest(&state);
                open.insert(class, stripe);
                Ok(())
            }
            Err(error) => {
                state.in_use -= 1;
                Err(error)
            }
        }
    }

    /// Seals the open stripes that have any bytes.
    pub(crate) fn seal(&self) {
        let mut open = self.open.lock();
        let filled = open.iter().filter(|(_, stripe)| !stripe.is_empty());
        let filled: Vec<StripeClass> = filled.map(|(class, _)| *class).collect();
        for class in filled {
            self.seal_locked(&mut open, class);
        }
    }

    fn seal_locked(
        &self,
        open: &mut MutexGuard<'_, BTreeMap<StripeClass, OpenStripe>>,
        class: StripeClass,
    ) {
        let Some(stripe) = open.remove(&class) else {
            return;
        };
        let mut state = self.state.lock();
        state.last_sequence += 1;
        let sealed = Arc::new(stripe.seal(state.last_sequence));
        state.enqueue(sealed);
        self.work.notify_one();
    }

    /// Takes the bytes of files of a class, of a stripe that a crash kept from being flushed: they are readable at
    /// once, and on their way to the members.
    pub(crate) fn restore(
        &self,
        class: StripeClass,
        (stripe, code): (StripeId, Arc<ClassCode>),
        data: &[u8],
        reservation: Option<Reservation>,
    ) {
        let restored = self.restored(class, (stripe, code), data, reservation);
        let mut state = self.state.lock();
        state.last_sequence += 1;
        let sealed = restored.seal(state.last_sequence);
        state.in_use += 1;
        state.enqueue(Arc::new(sealed));
        self.note_oldest(&state);
        self.work.notify_one();
    }

    /// Takes the bytes of a stripe to be read only.
    pub(crate) fn keep(
        &self,
        class: StripeClass,
        (stripe, code): (StripeId, Arc<ClassCode>),
        data: &[u8],
    ) {
        let kept = self.restored(class, (stripe, code), data, None).seal(0);
        let mut state = self.state.lock();
        let before = state
            .table
            .insert(stripe, BufferedStripe::Sealed(Arc::new(kept)));
        self.note_oldest(&state);
        drop(state);
        drop(before);
    }

    /// Notes which stripes are in the table, before a reader can hear of a new one.
    fn note_oldest(&self, state: &BufferTable) {
        let oldest = state.table.keys().map(|stripe| stripe.0).min();
        self.oldest
            .store(oldest.unwrap_or(u64::MAX), Ordering::Release);
    }

    fn restored(
        &self,
        class: StripeClass,
        (stripe, code): (StripeId, Arc<ClassCode>),
        data: &[u8],
        reservation: Option<Reservation>,
    ) -> OpenStripe {
        let data_shards = code.geometry().data_shards();
        let padded = layout::height(data.len(), data_shards) * data_shards;
        let mut buffer = self.pool.buffer(padded);
        buffer[..data.len()].copy_from_slice(data);
        OpenStripe::restored(class, (stripe, code), reservation, buffer, data.len())
    }

    /// Returns how many bytes of stripes are in memory and not on the members yet.
    pub(crate) fn unwritten_bytes(&self) -> u64 {
        let open: usize = self.open.lock().values().map(OpenStripe::len).sum();
        let state = self.state.lock();
        let sealed = state.table.values().map(|stripe| match stripe {
            BufferedStripe::Open => 0,
            BufferedStripe::Sealed(sealed) => sealed.payload_len as u64,
        });
        open as u64 + sealed.sum::<u64>()
    }

    /// Returns what was appended to open stripes since the last call, and takes it for journaled. Stripes whose bytes would
    /// bring it above `limit` are sealed instead.
    pub(crate) fn unjournaled(&self, mut limit: usize) -> Vec<Unjournaled> {
        let mut open = self.open.lock();
        let (mut unjournaled, mut too_long) = (Vec::new(), Vec::new());
        for (class, stripe) in open.iter_mut() {
            match stripe.unjournaled(limit) {
                Fresh::Bytes(fresh) => {
                    limit -= fresh.bytes.len();
                    unjournaled.push(fresh);
                }
                Fresh::TooMany => too_long.push(*class),
                Fresh::Nothing => {}
            }
        }
        for class in too_long {
            self.seal_locked(&mut open, class);
        }
        unjournaled
    }

    /// Fills `out` from a stripe that is still in memory; says whether it is.
    ///
    /// # Errors
    ///
    /// [`StripeError::BadRecord`] if the range ends beyond the stripe.
    pub(crate) fn read(
        &self,
        stripe: StripeId,
        offset: usize,
        out: &mut [u8],
    ) -> Result<bool, StripeError> {
        let beyond = StripeError::BadRecord {
            stripe,
            what: "an extent ends beyond the payload",
        };
        if stripe.0 < self.oldest.load(Ordering::Acquire) {
            return Ok(false);
        }
        loop {
            let state = self.state.lock();
            match state.table.get(&stripe) {
                None => return Ok(false),
                Some(BufferedStripe::Sealed(sealed)) => {
                    let sealed = Arc::clone(sealed);
                    drop(state);
                    let bytes = sealed.data.get(offset..offset + out.len()).ok_or(beyond)?;
                    out.copy_from_slice(bytes);
                    return Ok(true);
                }
                Some(BufferedStripe::Open) => drop(state),
            }
            // It may be sealed before the lock is ours; then the table knows by the next round.
            let open = self.open.lock();
            if let Some(open) = open.values().find(|open| open.stripe() == stripe) {
                out.copy_from_slice(open.get(offset, out.len()).ok_or(beyond)?);
                return Ok(true);
            }
        }
    }

    /// Returns whether bytes or references may still be added to a stripe.
    pub(crate) fn is_busy(&self, stripe: StripeId) -> bool {
        let state = self.state.lock();
        state.table.contains_key(&stripe) || state.holds.contains_key(&stripe)
    }

    /// Returns whether any thread has one of the locks.
    #[cfg(test)]
    pub(crate) fn are_locked(&self) -> bool {
        self.open.is_locked() || self.state.is_locked()
    }

    /// Returns whether a stripe is in memory: open, or not yet recorded.
    pub(crate) fn has(&self, stripe: StripeId) -> bool {
        self.state.lock().table.contains_key(&stripe)
    }

    /// Takes the next stripe to flush; waits for one if `wait`. `None` when there is none, or the
    /// buffers are closed or failed.
    pub(crate) fn next(&self, wait: bool) -> Option<Arc<Sealed>> {
        let mut state = self.state.lock();
        loop {
            if state.failed.is_some() {
                return None;
            }
            if let Some(sealed) = state.queue.pop_front() {
                return Some(sealed);
            }
            if !wait || state.closed {
                return None;
            }
            self.work.wait(&mut state);
        }
    }

    /// Takes stripes of this code out of the queue that are not encoded yet, in their order. The caller returns them to it. Since a
    /// device may never give back what it has, all threads together have fewer than half of the buffers this way.
    pub(crate) fn take_unencoded(&self, code: &Arc<ClassCode>) -> Vec<Arc<Sealed>> {
        let mut state = self.state.lock();
        let most = (self.limit / 2).saturating_sub(1 + state.taken);
        let mut unencoded = Vec::new();
        for sealed in std::mem::take(&mut state.queue) {
            let is_wanted = !sealed.is_encoded() && Arc::ptr_eq(&sealed.code, code);
            if unencoded.len() < most && is_wanted {
                unencoded.push(sealed);
            } else {
                state.queue.push_back(sealed);
            }
        }
        state.taken += unencoded.len();
        unencoded
    }

    /// Queues stripes again, to be flushed next.
    pub(crate) fn requeue(&self, stripes: Vec<Arc<Sealed>>) {
        let mut state = self.state.lock();
        let count = stripes.len();
        state.taken -= count;
        stripes
            .into_iter()
            .rev()
            .for_each(|sealed| state.queue.push_front(sealed));
        drop(state);
        for _ in 0..count {
            self.work.notify_one();
        }
    }

    /// A stripe is recorded, or found no space, or can never be recorded: its buffer goes back, or
    /// every waiter learns of it.
    pub(crate) fn done(&self, sealed: &Arc<Sealed>, outcome: Result<(), StripeError>) {
        let mut state = self.state.lock();
        match outcome {
            Ok(()) => {
                state.forget(sealed);
                self.note_oldest(&state);
            }
            Err(error @ StripeError::NoSpace { .. }) => {
                state.stuck.push(Arc::clone(sealed));
                self.set_no_space(&mut state, Some(error));
            }
            Err(error) => {
                state.failed.get_or_insert(error);
                self.work.notify_all();
            }
        }
        self.room.notify_all();
        self.flushed.notify_all();
    }

    /// Lets stripes that found no space be flushed again.
    pub(crate) fn retry(&self) {
        let mut state = self.state.lock();
        let stuck = std::mem::take(&mut state.stuck);
        self.set_no_space(&mut state, None);
        for sealed in stuck.into_iter().rev() {
            state.queue.push_front(sealed);
        }
        self.work.notify_all();
    }

    /// Returns the stripes that found no space and to which no new reference can be added, except by a caller that has
    /// one already.
    pub(crate) fn stuck(&self) -> Vec<StripeId> {
        let state = self.state.lock();
        let stripes = state.stuck.iter().map(|sealed| sealed.stripe);
        stripes
            .filter(|stripe| !state.holds.contains_key(stripe))
            .collect()
    }

    /// Forgets a stripe that found no space, and that nothing refers to.
    pub(crate) fn discard(&self, stripe: StripeId) {
        let mut state = self.state.lock();
        let Some(at) = state.stuck.iter().position(|stuck| stuck.stripe == stripe) else {
            return;
        };
        let sealed = state.stuck.remove(at);
        if state.stuck.is_empty() {
            self.set_no_space(&mut state, None);
        }
        state.forget(&sealed);
        self.note_oldest(&state);
        drop(state);
        self.room.notify_all();
        self.flushed.notify_all();
    }

    /// Returns whether a stripe found no space. Takes no lock.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_stuck.load(Ordering::Acquire)
    }

    /// Notes the lack of space for a stripe, or its end.
    fn set_no_space(&self, state: &mut BufferTable, no_space: Option<StripeError>) {
        self.is_stuck.store(no_space.is_some(), Ordering::Release);
        state.no_space = no_space;
    }

    /// Returns whether another stripe may be opened.
    ///
    /// # Errors
    ///
    /// The error that prevents it.
    pub(crate) fn check(&self) -> Result<(), StripeError> {
        self.state.lock().check()
    }

    /// Waits until all stripes sealed before the call are recorded.
    ///
    /// # Errors
    ///
    /// The error that kept one of them, or an earlier one, from being recorded.
    pub(crate) fn wait_flushed(&self) -> Result<(), StripeError> {
        let mut state = self.state.lock();
        let last = state.last_sequence;
        loop {
            if let Some(error) = state.failed.as_ref().or(state.no_space.as_ref()) {
                return Err(error.clone());
            }
            if state.unflushed.first().is_none_or(|&first| first > last) {
                return Ok(());
            }
            self.flushed.wait(&mut state);
        }
    }

    /// Accepts nothing more, and wakes up every thread that waits for room or work.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.room.notify_all();
        self.work.notify_all();
    }
}

impl BufferTable {
    fn check(&self) -> Result<(), StripeError> {
        match self.failed.as_ref().or(self.no_space.as_ref()) {
            Some(error) => Err(error.clone()),
            None if self.closed => Err(StripeError::Closed),
            None => Ok(()),
        }
    }

    /// Gives the buffer of a stripe back that is recorded, or not wanted any more.
    fn forget(&mut self, sealed: &Sealed) {
        self.table.remove(&sealed.stripe);
        self.unflushed.remove(&sealed.sequence);
        self.in_use -= 1;
    }

    fn enqueue(&mut self, sealed: Arc<Sealed>) {
        self.unflushed.insert(sealed.sequence);
        self.table
            .insert(sealed.stripe, BufferedStripe::Sealed(Arc::clone(&sealed)));
        self.queue.push_back(sealed);
    }
}
