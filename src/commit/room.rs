//! Room for more data: made when there is none, and in good time when there is little.
//!
//! Making room costs several commits, and in the worst case a look at every stripe. A full volume stays full until
//! something in it dies or another user frees space, and writes keep coming. So a vain attempt is not repeated before
//! one of these happened.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::compact::{Effort, InodeLocks, MAX_LIVE};
use super::rebuild::pause;
use super::{CommitError, Pipeline};
use crate::format::key;
use crate::meta::Batch;
use crate::volume::Space;

/// Rounds of "commit, then reap" in which a dead stripe becomes free space: one for the loss of its
/// backrefs, one for that of its records, and one that frees it.
const REAPS: usize = 3;

/// Rounds of reaping before something is refused for want of room, if each frees something.
const MAX_REAPS: usize = 1000;

/// Rounds of compaction in one call: where nearly everything lives, each gains little.
const MAX_ROUNDS: usize = 16;

/// When there is no room, everything is tried.
const IN_NEED: Effort = Effort {
    max_live: MAX_LIVE,
    counts: usize::MAX,
};

/// Before room is needed, each stripe that is moved gains at least as much as it costs.
const AHEAD: Effort = Effort {
    max_live: 500,
    counts: 2,
};

/// Little is free if it is less than one of so many parts of a volume...
const LITTLE_PARTS: u64 = 16;

/// ... but in no case if it is more than this many bytes, or less than so many stripes.
const LITTLE_BYTES: u64 = 64 << 30;
const LITTLE_STRIPES: u64 = 8;

/// Rounds of compaction in one call ahead of need, when so little is free that need is near.
const ROUNDS_AHEAD: usize = 4;

/// The known state of the room in a volume.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// The baton of the thread that makes room.
    making: Mutex<()>,
    /// Counts changes after which bytes of stripes may be dead.
    deaths: AtomicU64,
    exhausted: Mutex<Option<Exhausted>>,
    /// The deaths at which nothing was left to do ahead of need.
    done_ahead: Mutex<Option<u64>>,
    /// Bytes that compaction has written to the members.
    moved: AtomicU64,
    /// When compaction ahead of need goes on, where it may write only so much in a second.
    rests_until: Mutex<Option<Instant>>,
}

/// When making room was last of no use, and for how many bytes.
#[derive(Clone, Copy, Debug)]
struct Exhausted {
    deaths: u64,
    usable_free: u64,
    needed: u64,
}

impl Room {
    /// Notes changes that were just applied.
    pub(super) fn note(&self, kills: bool) {
        if kills {
            self.deaths.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Notes bytes that compaction wrote.
    pub(super) fn note_moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Says whether the last moves have used up the bytes that may be written for now.
    fn is_resting(&self) -> bool {
        let until = *self.rests_until.lock();
        until.is_some_and(|until| Instant::now() < until)
    }

    fn rest(&self, time: Duration) {
        *self.rests_until.lock() = Instant::now().checked_add(time);
    }

    fn deaths(&self) -> u64 {
        self.deaths.load(Ordering::SeqCst)
    }

    /// Returns whether there was no room for so many bytes, nor any to be made, and nothing died since.
    pub(super) fn is_exhausted(&self, needed: u64) -> bool {
        let exhausted = *self.exhausted.lock();
        exhausted.is_some_and(|then| then.deaths == self.deaths() && then.needed <= needed)
    }
}

/// Returns whether bytes of stripes may be dead after these changes.
pub(super) fn kills(batch: &Batch) -> bool {
    batch
        .iter()
        .any(|(key, value)| value.is_some() && key::is_perhaps_dead(key))
}

impl Pipeline {
    /// Makes room for `needed` bytes after [`CommitError::NoSpace`]: commits, frees dead stripes, and moves live bytes
    /// out of mostly dead ones. Returns whether something came free, so that trying again makes sense. Call it with no
    /// inode's lock held.
    ///
    /// # Errors
    ///
    /// As for [`Pipeline::sync`].
    pub fn make_room(&self, needed: u64, locks: &dyn InodeLocks) -> Result<bool, CommitError> {
        if self.commits.is_read_only() {
            return Err(CommitError::ReadOnly);
        }
        let freed_before = self.freed();
        // Held through I/O; a thread that waits here wants the room that its holder makes.
        let _one_at_a_time = self.room.making.lock();
        if self.freed() > freed_before {
            return Ok(true);
        }
        let mut made = self.growth.make_room_for_index()?;
        if self.room.is_exhausted(needed) {
            made |= self.growth.shrink_index()?;
            return Ok(self.look_for_room() || made);
        }
        let deaths = self.room.deaths();
        self.reap_now()?;
        if !self.has_room(needed) {
            made |= self.growth.shrink_index()?;
        }
        for _ in 0..MAX_ROUNDS {
            if self.has_room(needed) || !self.try_compact(locks, IN_NEED)? {
                break;
            }
            self.reap_now()?;
        }
        // Stripes that are still held or read may come free at any time.
        if !self.has_room(needed) && !self.reaper.lock().is_under_way() {
            *self.room.exhausted.lock() = Some(Exhausted {
                deaths,
                usable_free: self.volume.space().usable_free,
                needed,
            });
        }
        Ok(made || self.freed() > freed_before)
    }

    /// Says whether there is room for so many bytes, and for a stripe beside them.
    pub(super) fn has_room(&self, needed: u64) -> bool {
        let capacity = self.volume.stripe_capacity() as u64;
        self.volume.space().usable_free >= needed.saturating_add(capacity)
    }

    /// Returns whether there is more room than when none could be made, and forgets that then.
    fn look_for_room(&self) -> bool {
        let capacity = self.volume.stripe_capacity() as u64;
        let usable_free = self.volume.space().usable_free;
        let mut exhausted = self.room.exhausted.lock();
        let found = exhausted.is_none_or(|then| usable_free >= then.usable_free + capacity);
        if found {
            *exhausted = None;
        }
        found
    }

    /// Frees dead stripes and moves some live bytes out of mostly dead ones while little is free. So writers seldom
    /// need to wait for [`Pipeline::make_room`]. One call does a bounded part of that work. It does nothing for as long
    /// as the last part exceeds `bytes_per_second` on the members. Call it about once a second, with no inode's lock
    /// held.
    ///
    /// # Errors
    ///
    /// As for [`Pipeline::sync`]; no space for the stripes that would be written is not one.
    pub fn make_room_ahead(
        &self,
        locks: &dyn InodeLocks,
        bytes_per_second: Option<u64>,
    ) -> Result<(), CommitError> {
        if self.commits.is_read_only() || self.commits.is_poisoned() || self.room.is_resting() {
            return Ok(());
        }
        let Some(_one_at_a_time) = self.room.making.try_lock() else {
            return Ok(());
        };
        if self.room.is_exhausted(u64::MAX) {
            self.look_for_room();
        }
        let capacity = self.volume.stripe_capacity() as u64;
        let space = self.volume.space();
        let little = little(space, capacity);
        let deaths = self.room.deaths();
        if space.usable_free > little || *self.room.done_ahead.lock() == Some(deaths) {
            return Ok(());
        }
        if self.reaper.lock().is_under_way() {
            self.reap_now()?;
        }
        let rounds = if space.usable_free < little / 2 {
            ROUNDS_AHEAD
        } else {
            1
        };
        for _ in 0..rounds {
            let (began, before) = (Instant::now(), self.room.moved());
            let moved_any = self.try_compact(locks, AHEAD);
            let moved = self.room.moved() - before;
            self.room
                .rest(pause(bytes_per_second, moved, began.elapsed(), false));
            if !moved_any? {
                if self.candidates.lock().is_complete() {
                    *self.room.done_ahead.lock() = Some(deaths);
                }
                break;
            }
            self.reap_now()?;
            if self.room.is_resting() {
                break;
            }
        }
        Ok(())
    }

    /// Compacts, unless the room kept back for that is used up too.
    fn try_compact(&self, locks: &dyn InodeLocks, effort: Effort) -> Result<bool, CommitError> {
        match self.compact(locks, effort) {
            Err(CommitError::NoSpace) => Ok(false),
            outcome => outcome,
        }
    }

    pub(super) fn freed(&self) -> u64 {
        self.reaper.lock().freed
    }

    /// Frees all dead stripes; says whether there was any. Without space even for the note of their death, they are
    /// freed later.
    pub(super) fn free_dead(&self) -> Result<bool, CommitError> {
        let first = self.freed();
        for _ in 0..MAX_REAPS {
            let before = self.freed();
            match self.reap_now() {
                Err(CommitError::NoSpace) => break,
                done => done?,
            }
            if self.freed() == before {
                break;
            }
        }
        Ok(self.freed() > first)
    }

    /// Commits and reaps until some of the stripes that are dead by now are freed.
    pub(super) fn reap_now(&self) -> Result<(), CommitError> {
        for _ in 0..REAPS {
            self.reap()?;
            self.sync()?;
        }
        self.reap()
    }
}

/// Returns how much free space is little.
fn little(space: Space, stripe_capacity: u64) -> u64 {
    let part = (space.usable_total / LITTLE_PARTS).min(LITTLE_BYTES);
    part.max(LITTLE_STRIPES * stripe_capacity)
}
