//! The room that a volume keeps for unwritten extents.
//!
//! `fallocate` gives a file extents that no stripe holds yet, and the volume keeps room for their bytes. A write to such
//! an extent takes that room. All other writers take what is free beyond it. To measure that means to ask each member, so
//! one measurement gives credit for several writes.
//!
//! # Invariants
//!
//! - While any extent is unwritten, a writer places no byte without credit or a claim.
//! - Credit and bytes in flight together do not exceed what is free beyond the room kept. Only other programs that fill
//!   the same filesystems can break that.
//! - No two claims overlap. So one unwritten extent admits one write at a time, and not several of its length.
//!
//! A volume without unwritten extents pays for two atomic additions in each write.
//!
//! # Locks
//!
//! `credit` is held while members are asked. `claimed` is a leaf. A thread that waits for a claim holds no lock, because
//! the holder of the claim locks an inode.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::CommitError;
use crate::format::{BLOCK_SIZE, Ino};
use crate::stripes::Stripes;

/// The part of the room beyond what is kept that one measurement gives credit for. Other programs may fill the same
/// filesystems meanwhile.
const CREDIT_PARTS: u64 = 8;

/// The pause before room is measured again that others may be about to take.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// The number of such measurements at most.
const MOST_LOOKS: usize = 100;

/// Keeps room for unwritten extents.
pub(crate) struct UnwrittenRoom {
    stripes: Arc<Stripes>,
    /// Bytes that were admitted and may not have a place yet.
    in_flight: AtomicU64,
    /// Callers that are about to add unwritten extents.
    allocating: AtomicUsize,
    /// Bytes that writers may place before members are asked again.
    credit: Mutex<u64>,
    /// The ranges of files that are being written by claim.
    claimed: Mutex<Vec<(Ino, Range<u64>)>>,
    /// Notified when a claim ends.
    released: Condvar,
}

/// Bytes in flight, until it is dropped.
#[must_use = "the bytes are in flight for as long as it lives"]
pub(crate) struct InFlight<'a> {
    room: &'a UnwrittenRoom,
    bytes: u64,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.room.in_flight.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

/// Room for so many bytes that are about to be unwritten, until it is dropped.
#[must_use = "the room is kept for as long as it lives, or by the extents"]
pub(crate) struct Allocating<'a> {
    bytes: u64,
    in_flight: InFlight<'a>,
    _noted: AllocatingNote<'a>,
}

impl Allocating<'_> {
    /// Returns how many bytes may be allocated.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Notes that so many bytes are unwritten extents by now. They are not in flight any more.
    pub(crate) fn note_applied(&mut self, bytes: u64) {
        let room = self.in_flight.room;
        let kept = room.kept_for(bytes).min(self.in_flight.bytes);
        room.in_flight.fetch_sub(kept, Ordering::SeqCst);
        self.in_flight.bytes -= kept;
    }
}

struct AllocatingNote<'a>(&'a UnwrittenRoom);

impl<'a> AllocatingNote<'a> {
    fn new(room: &'a UnwrittenRoom) -> Self {
        room.allocating.fetch_add(1, Ordering::SeqCst);
        Self(room)
    }
}

impl Drop for AllocatingNote<'_> {
    fn drop(&mut self) {
        self.0.allocating.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The right to write a range of a file into the room kept for its unwritten extents, until it is dropped.
#[must_use = "the range is claimed for as long as it lives"]
pub(crate) struct Claim<'a> {
    room: &'a UnwrittenRoom,
    ino: Ino,
    range: Range<u64>,
    covered: Option<InFlight<'a>>,
}

impl Claim<'_> {
    /// Returns the range of the file.
    pub(crate) fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Sets how many bytes of the range are unwritten.
    // They count twice until they are written: if the extents are punched out meanwhile, others may use their room.
    pub(crate) fn cover(&mut self, bytes: u64) {
        self.covered = Some(self.room.fly(bytes));
    }

    /// Returns how many of so many bytes no unwritten extent covers.
    pub(super) fn rest_of(claim: Option<&Self>, bytes: u64) -> u64 {
        let covered = claim.and_then(|claim| claim.covered.as_ref());
        bytes.saturating_sub(covered.map_or(0, |covered| covered.bytes))
    }

    /// Returns whether unwritten extents cover the whole range.
    pub(crate) fn is_full(&self) -> bool {
        Self::rest_of(Some(self), self.range.end - self.range.start) == 0
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut claimed = self.room.claimed.lock();
        let is_this = |(ino, range): &(Ino, Range<u64>)| *ino == self.ino && *range == self.range;
        if let Some(place) = claimed.iter().position(is_this) {
            claimed.swap_remove(place);
        }
        self.room.released.notify_all();
    }
}

impl UnwrittenRoom {
    pub(super) fn new(stripes: &Arc<Stripes>) -> Self {
        Self {
            stripes: Arc::clone(stripes),
            in_flight: AtomicU64::new(0),
            allocating: AtomicUsize::new(0),
            credit: Mutex::new(0),
            claimed: Mutex::default(),
            released: Condvar::new(),
        }
    }

    /// Returns whether room is kept, or is about to be.
    pub(crate) fn is_in_use(&self) -> bool {
        self.allocating.load(Ordering::SeqCst) > 0 || self.stripes.space().unwritten() > 0
    }

    /// Sets the bytes of all unwritten extents, as counted when the volume is opened.
    pub(crate) fn set(&self, bytes: u64) {
        self.stripes.space().set_unwritten(bytes);
    }

    /// Notes by how many bytes the unwritten extents have grown, or shrunk.
    pub(crate) fn note_growth(&self, growth: i64) {
        if growth != 0 {
            self.stripes.space().grow_unwritten(growth);
        }
    }

    /// Returns the room that is kept for so many bytes, metadata included.
    pub(crate) fn kept_for(&self, bytes: u64) -> u64 {
        self.stripes.space().kept_for_unwritten(bytes)
    }

    /// Keeps room for so many bytes that are about to be unwritten extents.
    ///
    /// # Errors
    ///
    /// [`CommitError::NoSpace`] if there is less; nothing is kept then.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<Allocating<'_>, CommitError> {
        // From now on every writer asks for credit. Those that did not are in flight.
        let noted = AllocatingNote::new(self);
        let kept = self.kept_for(bytes);
        let mut credit = self.credit.lock();
        *credit = 0;
        if self.measure() < kept {
            return Err(CommitError::NoSpace);
        }
        Ok(Allocating {
            bytes,
            in_flight: self.fly(kept),
            _noted: noted,
        })
    }

    /// Admits a write of so many bytes beyond the room that is kept.
    ///
    /// # Errors
    ///
    /// [`CommitError::NoSpace`] if there is none.
    pub(super) fn admit(&self, bytes: u64) -> Result<InFlight<'_>, CommitError> {
        // Noted before the question: see `allocate`.
        let admitted = self.fly(bytes);
        if !self.is_in_use() {
            return Ok(admitted);
        }
        drop(admitted);
        *self.credit_for(bytes)? -= bytes;
        Ok(self.fly(bytes))
    }

    /// Admits a little write that goes to the open stripe, unless that needs a measurement: [`Self::provide`] makes one.
    pub(super) fn admits_at_once(&self, bytes: u64) -> bool {
        if bytes == 0 || !self.is_in_use() {
            return true;
        }
        let Some(mut credit) = self.credit.try_lock() else {
            return false;
        };
        let left = credit.checked_sub(bytes);
        *credit = left.unwrap_or(*credit);
        left.is_some()
    }

    /// Provides credit for a little write.
    ///
    /// # Errors
    ///
    /// [`CommitError::NoSpace`] if there is no room for it.
    pub(super) fn provide(&self) -> Result<(), CommitError> {
        if !self.is_in_use() {
            return Ok(());
        }
        self.credit_for(BLOCK_SIZE as u64).map(drop)
    }

    /// Returns credit of so many bytes or more. What others allocate meanwhile counts twice for a moment, so a lack is measured
    /// again then.
    fn credit_for(&self, bytes: u64) -> Result<MutexGuard<'_, u64>, CommitError> {
        for _ in 0..MOST_LOOKS {
            let mut credit = self.credit.lock();
            match self.fill(&mut credit, bytes) {
                Err(CommitError::NoSpace) if self.allocating.load(Ordering::SeqCst) > 0 => {}
                filled => return filled.map(|()| credit),
            }
            drop(credit);
            std::thread::sleep(LOOK_INTERVAL);
        }
        Err(CommitError::NoSpace)
    }

    /// Claims a range of a file, for a write of its unwritten extents. Waits for claims of it to end, with `may_wait`, or
    /// returns `None`. The caller holds no lock.
    pub(crate) fn claim(&self, ino: Ino, range: &Range<u64>, may_wait: bool) -> Option<Claim<'_>> {
        let mut claimed = self.claimed.lock();
        let overlaps = |(other, taken): &(Ino, Range<u64>)| {
            *other == ino && taken.start < range.end && range.start < taken.end
        };
        while claimed.iter().any(overlaps) {
            if !may_wait {
                return None;
            }
            self.released.wait(&mut claimed);
        }
        claimed.push((ino, range.clone()));
        Some(Claim {
            room: self,
            ino,
            range: range.clone(),
            covered: None,
        })
    }

    fn fly(&self, bytes: u64) -> InFlight<'_> {
        self.in_flight.fetch_add(bytes, Ordering::SeqCst);
        InFlight { room: self, bytes }
    }

    /// Measures what is free beyond the room that is kept, and beyond what is in flight.
    fn measure(&self) -> u64 {
        // Asked first: what lands meanwhile counts twice, and not never.
        let in_flight = self.in_flight.load(Ordering::SeqCst);
        let space = self.stripes.space().measure();
        space.usable_free.saturating_sub(in_flight)
    }

    fn fill(&self, credit: &mut u64, bytes: u64) -> Result<(), CommitError> {
        if *credit >= bytes {
            return Ok(());
        }
        *credit = 0;
        let beyond = self.measure().checked_sub(bytes);
        let beyond = beyond.ok_or(CommitError::NoSpace)?;
        *credit = bytes + beyond / CREDIT_PARTS;
        Ok(())
    }
}
