//! Makes room for data when there is none, and in good time when there is little.
//!
//! Making room costs several commits, and in the worst case a look at every stripe. A full volume stays full until
//! something in it dies or another user frees space, and writes keep coming. So a vain attempt is not repeated before
//! one of these happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::compaction::{Compacted, Compaction, Effort, Floor, InodeLocks, MAX_LIVE};
use super::pace::pause;
use super::reaper::Reaper;
use crate::stripes::{Space, Stripes};
use crate::transaction::CommitError;
use crate::transaction::commits::Commits;
use crate::transaction::exhaustion::Exhaustion;
use crate::transaction::growth::Growth;

/// The most rounds of compaction in one call that move bytes. Each gains little if nearly all bytes live.
const MAX_ROUNDS: usize = 16;

/// The most rounds of compaction in one call that find no stripe to move, and leave some. In need, they try 131,072.
const MAX_VAIN_ROUNDS: usize = 8;

/// The effort when there is no room: everything is tried.
const IN_NEED: Effort = Effort {
    max_live: MAX_LIVE,
    counts: usize::MAX,
    turns: 256,
    floor: Floor::Online,
};

/// The effort for a rebuild that lacks room: everything is tried, and bytes survive as many losses as before.
const FOR_REBUILD: Effort = Effort {
    floor: Floor::Written,
    ..IN_NEED
};

/// The effort before room is needed: the move of each stripe gains at least as much as it costs.
const AHEAD: Effort = Effort {
    max_live: 500,
    counts: 2,
    turns: 2,
    floor: Floor::Written,
};

/// Free space is little below one of so many parts of a volume.
const LITTLE_PARTS: u64 = 16;

/// Free space is never little above so many bytes, and always little below so many stripes.
const LITTLE_BYTES: u64 = 64 << 30;
const LITTLE_STRIPES: u64 = 8;

/// Rounds of compaction in one call ahead of need, when so little is free that need is near.
const ROUNDS_AHEAD: usize = 4;

/// Makes room for data, when there is none and ahead of need.
pub struct Room {
    stripes: Arc<Stripes>,
    commits: Arc<Commits>,
    growth: Arc<Growth>,
    reaper: Arc<Reaper>,
    pub(super) compaction: Arc<Compaction>,
    exhaustion: Arc<Exhaustion>,
    /// Held through I/O by the thread that makes room.
    making: Mutex<()>,
    /// The number of times that room was made for the index, or in it.
    times_made: AtomicU64,
    /// The count of deaths at which no work was left ahead of need.
    done_ahead: Mutex<Option<u64>>,
    /// The time at which compaction ahead of need continues, to keep its rate.
    rests_until: Mutex<Option<Instant>>,
}

impl Room {
    pub(super) fn new(
        stripes: Arc<Stripes>,
        commits: Arc<Commits>,
        growth: Arc<Growth>,
        reaper: Arc<Reaper>,
        compaction: Arc<Compaction>,
        exhaustion: Arc<Exhaustion>,
    ) -> Self {
        Self {
            stripes,
            commits,
            growth,
            reaper,
            compaction,
            exhaustion,
            making: Mutex::default(),
            times_made: AtomicU64::new(0),
            done_ahead: Mutex::default(),
            rests_until: Mutex::default(),
        }
    }

    /// Returns whether compaction ahead of need rests, to keep its rate.
    fn is_resting(&self) -> bool {
        let until = *self.rests_until.lock();
        until.is_some_and(|until| Instant::now() < until)
    }

    fn rest(&self, time: Duration) {
        *self.rests_until.lock() = Instant::now().checked_add(time);
    }

    /// Returns how many bytes compaction has written to the members since the volume was opened.
    #[must_use]
    pub fn bytes_compacted(&self) -> u64 {
        self.compaction.moved()
    }

    /// Returns the number of times that room was made for the index, or in it. If it rises during a call that finds no
    /// space, the call may find some the next time.
    pub fn times_made(&self) -> u64 {
        self.times_made.load(Ordering::SeqCst)
    }

    /// Makes room for `needed` bytes after [`CommitError::NoSpace`]: commits, frees dead stripes, and moves live bytes
    /// out of mostly dead ones. Returns whether something came free, so that trying again makes sense. Call it with no
    /// inode's lock held.
    ///
    /// # Errors
    ///
    /// As for [`Commits::sync`].
    pub fn make_room(&self, needed: u64, locks: &dyn InodeLocks) -> Result<bool, CommitError> {
        self.make_room_by(needed, locks, IN_NEED)
    }

    /// Makes room for a stripe like [`Self::make_room`], unless there is some. Bytes that move survive as many losses as
    /// before, also with the shards of absent members.
    pub(super) fn make_room_for_rebuild(
        &self,
        locks: &dyn InodeLocks,
    ) -> Result<bool, CommitError> {
        let stripe = self.stripes.writer().stripe_capacity() as u64;
        if has_room(&self.stripes, stripe) {
            return Ok(false);
        }
        self.make_room_by(stripe, locks, FOR_REBUILD)
    }

    /// Makes room like [`Self::make_room`], with another effort.
    pub(super) fn make_room_by(
        &self,
        needed: u64,
        locks: &dyn InodeLocks,
        effort: Effort,
    ) -> Result<bool, CommitError> {
        if self.commits.is_read_only() {
            return Err(CommitError::ReadOnly);
        }
        let freed_before = self.reaper.freed();
        let _one_at_a_time = self.making.lock();
        if self.reaper.freed() > freed_before {
            return Ok(true);
        }
        let mut made = self.growth.make_room_for_index()?;
        self.note_made(made);
        let can_move_more = self.compaction.take_back(effort.floor);
        if self.exhaustion.is_exhausted(needed) && !can_move_more {
            made |= self.shrink_index()?;
            return Ok(self.look_for_room() || made);
        }
        let deaths = self.exhaustion.deaths();
        // Segments of other classes keep room for their next stripes. One class may lack just that room.
        if self.stripes.segments().classes_written() > 1 {
            self.stripes.writer().retire_segments()?;
            made = true;
        }
        self.reaper.reap_now()?;
        if !has_room(&self.stripes, needed) {
            made |= self.shrink_index()?;
        }
        let compacted = self.compact_for(needed, locks, effort)?;
        // Stripes that are still held or read may come free at any time, and the next call tries those that are left. While
        // accepted bytes wait for room, none was tried.
        let may_gain = self.reaper.is_under_way()
            || matches!(compacted, Compacted::Unfinished | Compacted::NoRoomInIndex)
            || self.stripes.writer().is_stuck();
        if !has_room(&self.stripes, needed) && !may_gain {
            let usable_free = self.stripes.space().measure().usable_free;
            self.exhaustion.note_exhausted(deaths, usable_free, needed);
        }
        Ok(made || self.reaper.freed() > freed_before)
    }

    /// Moves bytes until there is room for `needed` more. Goes on past stripes that cannot be moved. They are tried again once
    /// room or members changed. Returns the last outcome.
    fn compact_for(
        &self,
        needed: u64,
        locks: &dyn InodeLocks,
        effort: Effort,
    ) -> Result<Compacted, CommitError> {
        let (mut rounds, mut vain_rounds) = (0, 0);
        let mut compacted = Compacted::Moved;
        while rounds < MAX_ROUNDS && vain_rounds < MAX_VAIN_ROUNDS {
            if has_room(&self.stripes, needed) {
                break;
            }
            compacted = self.try_compact(locks, effort)?;
            match compacted {
                Compacted::Moved => {
                    rounds += 1;
                    self.reaper.reap_now()?;
                }
                Compacted::Unfinished => vain_rounds += 1,
                Compacted::Nothing | Compacted::NoRoomInIndex => break,
            }
        }
        Ok(compacted)
    }

    /// Gives space that came free within the index to data. Returns whether there was any.
    fn shrink_index(&self) -> Result<bool, CommitError> {
        let shrunk = self.growth.shrink_index()?;
        self.note_made(shrunk);
        Ok(shrunk)
    }

    fn note_made(&self, made: bool) {
        self.times_made.fetch_add(u64::from(made), Ordering::SeqCst);
    }

    /// Returns whether there is more room than when none could be made, and forgets that then.
    fn look_for_room(&self) -> bool {
        let capacity = self.stripes.writer().stripe_capacity() as u64;
        self.exhaustion
            .has_ended(self.stripes.space().measure().usable_free, capacity)
    }

    /// Frees dead stripes and moves some live bytes out of mostly dead ones while little is free. So writers seldom
    /// need to wait for [`Self::make_room`]. One call does a bounded part of that work. It does nothing for as long
    /// as the last part exceeds `bytes_per_second` on the members. Call it about once a second, with no inode's lock
    /// held.
    ///
    /// # Errors
    ///
    /// As for [`Commits::sync`]; no space for the stripes that would be written is not one.
    pub fn make_room_ahead(
        &self,
        locks: &dyn InodeLocks,
        bytes_per_second: Option<u64>,
    ) -> Result<(), CommitError> {
        if self.commits.is_read_only() || self.commits.is_poisoned() || self.is_resting() {
            return Ok(());
        }
        let Some(_one_at_a_time) = self.making.try_lock() else {
            return Ok(());
        };
        if self.exhaustion.is_exhausted(u64::MAX) {
            self.look_for_room();
        }
        let capacity = self.stripes.writer().stripe_capacity() as u64;
        let space = self.stripes.space().measure();
        let little = little(space, capacity);
        let deaths = self.exhaustion.deaths();
        if space.usable_free > little {
            return Ok(());
        }
        if *self.done_ahead.lock() == Some(deaths) && !self.compaction.take_back(AHEAD.floor) {
            return Ok(());
        }
        if self.reaper.is_under_way() {
            self.reaper.reap_now()?;
        }
        let rounds = if space.usable_free < little / 2 {
            ROUNDS_AHEAD
        } else {
            1
        };
        for _ in 0..rounds {
            let (began, before) = (Instant::now(), self.compaction.moved());
            let compacted = self.try_compact(locks, AHEAD);
            let moved = self.compaction.moved() - before;
            self.rest(pause(bytes_per_second, moved, began.elapsed(), false));
            let compacted = compacted?;
            if compacted != Compacted::Moved {
                let is_stuck = self.stripes.writer().is_stuck();
                let is_done = compacted == Compacted::Nothing && !is_stuck;
                if is_done && self.compaction.knows_all_candidates() {
                    *self.done_ahead.lock() = Some(deaths);
                }
                break;
            }
            self.reaper.reap_now()?;
            if self.is_resting() {
                break;
            }
        }
        Ok(())
    }

    /// Compacts, unless the index has no room for that.
    fn try_compact(
        &self,
        locks: &dyn InodeLocks,
        effort: Effort,
    ) -> Result<Compacted, CommitError> {
        match self.compaction.compact(locks, effort) {
            Err(CommitError::NoSpace) => Ok(Compacted::NoRoomInIndex),
            outcome => outcome,
        }
    }
}

/// Returns whether there is room for so many bytes, and for a stripe beside them.
pub(super) fn has_room(stripes: &Stripes, needed: u64) -> bool {
    let capacity = stripes.writer().stripe_capacity() as u64;
    stripes.space().measure().usable_free >= needed.saturating_add(capacity)
}

/// Returns the bytes below which free space is little.
fn little(space: Space, stripe_capacity: u64) -> u64 {
    let part = (space.usable_total / LITTLE_PARTS).min(LITTLE_BYTES);
    part.max(LITTLE_STRIPES * stripe_capacity)
}
