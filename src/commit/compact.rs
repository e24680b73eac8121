//! Compaction: live bytes out of mostly dead stripes, so that the dead ones' space comes free.
//!
//! Overwriting a file leaves dead bytes in its old stripes; a stripe comes free only when all of it
//! is dead. When nothing is free, the live rest of the deadest stripes is packed into new ones, in
//! room that is kept back for this, and the old stripes die. The copying is done without any lock;
//! the extents are re-pointed under their inode's lock, each only if it still is what was copied.

use std::collections::HashMap;

use super::reap::successor;
use super::{CommitError, Pipeline};
use crate::format::record::{Backref, Extent, Marker};
use crate::format::{BLOCK_SIZE, Ino, Record, StripeId, key};
use crate::meta::Batch;

/// Stripes moved in one go. New ones are filled with what lives of them; the room kept back is
/// enough for that.
const VICTIMS_AT_ONCE: usize = 64;

/// New stripes written in one go at most: what is kept back has room for one more.
const STRIPES_AT_ONCE: usize = 3;

/// Stripes looked at for victims in one go.
const CANDIDATES_AT_ONCE: usize = 4096;

/// A stripe of which more than this many parts in a hundred live is not worth moving.
const MAX_LIVE_PERCENT: u64 = 90;

/// Backrefs read at once.
const BACKREFS_AT_ONCE: usize = 1024;

/// Rounds of "commit, then reap" in which a dead stripe becomes free space: one for the loss of its
/// backrefs, one for that of its records, and one that frees it.
const REAPS: usize = 3;

/// Rounds of compaction in one call: where nearly everything lives, each gains little.
const MAX_ROUNDS: usize = 16;

/// What compaction asks of the layer that owns inodes.
pub trait InodeLocks: Send + Sync {
    /// Runs `work` while nobody else changes the extents of `ino`. What is cached of them must be
    /// dropped afterwards.
    fn with_locked(&self, ino: Ino, work: &mut dyn FnMut());
}

/// A run of live bytes in a stripe.
#[derive(Clone, Copy, Debug)]
struct LiveRun {
    ino: Ino,
    /// Where the extent ends in the file.
    end: u64,
    extent: Extent,
}

impl LiveRun {
    /// Returns where the run starts in a new stripe filled up to `filled`: as aligned as it was.
    fn start_after(self, filled: usize) -> usize {
        let aligned = (self.extent.stripe_offset as usize).is_multiple_of(BLOCK_SIZE);
        filled.next_multiple_of(if aligned { BLOCK_SIZE } else { 64 })
    }

    fn len(self) -> usize {
        // No run is longer than a stripe.
        usize::try_from(self.extent.len).unwrap_or(usize::MAX)
    }
}

impl Pipeline {
    /// Makes room after [`CommitError::NoSpace`]: commits, frees what is dead, and moves live bytes
    /// out of mostly dead stripes. Returns whether something came free, so that trying again makes
    /// sense. To be called with no inode's lock held.
    ///
    /// # Errors
    ///
    /// As for [`Pipeline::sync`].
    pub fn make_room(&self, locks: &dyn InodeLocks) -> Result<bool, CommitError> {
        if self.is_read_only() {
            return Err(CommitError::ReadOnly);
        }
        let freed_before = self.freed();
        // Held through I/O; whoever waits here wants what its holder is making.
        let _one_at_a_time = self.making_room.lock();
        if self.freed() > freed_before {
            return Ok(true);
        }
        self.reap_now()?;
        for _ in 0..MAX_ROUNDS {
            if self.volume.has_room() || !self.compact(locks)? {
                break;
            }
            self.reap_now()?;
        }
        Ok(self.freed() > freed_before)
    }

    fn freed(&self) -> u64 {
        self.reaper.lock().freed
    }

    /// Commits and reaps until what is dead by now is freed.
    pub(super) fn reap_now(&self) -> Result<(), CommitError> {
        for _ in 0..REAPS {
            self.reap()?;
            self.sync()?;
        }
        self.reap()
    }

    /// Moves the live bytes of the deadest stripes. Returns whether any were moved.
    fn compact(&self, locks: &dyn InodeLocks) -> Result<bool, CommitError> {
        let victims = self.find_victims()?;
        let mut moved = false;
        let mut packed = Packed::default();
        let mut written = 0;
        for victim in victims {
            let _pin = self.volume.pin();
            for run in self.live_runs(victim)? {
                if run.start_after(packed.payload.len()) + run.len() > self.volume.stripe_capacity()
                {
                    moved |= self.move_out(&mut packed, locks)?;
                    written += 1;
                    if written == STRIPES_AT_ONCE {
                        return Ok(moved);
                    }
                }
                self.pack(&mut packed, run);
            }
        }
        Ok(moved | self.move_out(&mut packed, locks)?)
    }

    /// Returns stripes with few live bytes, the deadest first: of those known to have dead bytes, or
    /// else of the next ones in the order of their numbers.
    fn find_victims(&self) -> Result<Vec<StripeId>, CommitError> {
        let hints: Vec<StripeId> = self
            .reaper
            .lock()
            .hints
            .iter()
            .copied()
            .take(CANDIDATES_AT_ONCE)
            .collect();
        let mut victims = self.choose_victims(hints)?;
        while victims.is_empty() {
            let candidates = self.next_candidates()?;
            let is_last = candidates.len() < CANDIDATES_AT_ONCE;
            victims = self.choose_victims(candidates)?;
            if is_last {
                break;
            }
        }
        Ok(victims)
    }

    fn choose_victims(&self, candidates: Vec<StripeId>) -> Result<Vec<StripeId>, CommitError> {
        let mut ranked = Vec::new();
        for stripe in candidates {
            if self.volume.is_busy(stripe) {
                continue;
            }
            let record = self.records.stripe(stripe)?;
            let held = record.map_or(0, |record| u64::from(record.payload_len));
            let live = self.live_bytes(stripe)?;
            if live > 0 && live * 100 <= held * MAX_LIVE_PERCENT {
                ranked.push((live * 1000 / held, stripe));
            } else {
                self.reaper.lock().hints.remove(&stripe);
            }
        }
        ranked.sort_unstable();
        ranked.truncate(VICTIMS_AT_ONCE);
        Ok(ranked.into_iter().map(|(_, stripe)| stripe).collect())
    }

    /// Returns some stripes in the order of their numbers, the next ones with each call.
    fn next_candidates(&self) -> Result<Vec<StripeId>, CommitError> {
        let (first, end) = key::stripes();
        let from = self.candidates_from.lock().take().unwrap_or(first);
        let found = self.meta.scan(&from, &end, CANDIDATES_AT_ONCE)?;
        if found.len() == CANDIDATES_AT_ONCE {
            *self.candidates_from.lock() = found.last().map(|(last, _)| successor(last));
        }
        Ok(found
            .iter()
            .map(|(key, _)| key::parse_stripe(key))
            .collect::<Result<_, _>>()?)
    }

    fn live_bytes(&self, stripe: StripeId) -> Result<u64, CommitError> {
        // Shared extents are counted twice, which makes a stripe look more alive than it is.
        Ok(self
            .live_runs(stripe)?
            .iter()
            .map(|run| run.extent.len)
            .sum())
    }

    fn live_runs(&self, stripe: StripeId) -> Result<Vec<LiveRun>, CommitError> {
        let (mut from, end) = key::backrefs(stripe);
        let mut runs = Vec::new();
        loop {
            let found = self.meta.scan(&from, &end, BACKREFS_AT_ONCE)?;
            for (key, value) in &found {
                let (_, ino, end) = key::parse_backref(key)?;
                let Backref { len, stripe_offset } = Backref::decode(value)?;
                runs.push(LiveRun {
                    ino,
                    end,
                    extent: Extent {
                        len,
                        stripe,
                        stripe_offset,
                    },
                });
            }
            match found.last() {
                Some((last, _)) if found.len() == BACKREFS_AT_ONCE => from = successor(last),
                _ => return Ok(runs),
            }
        }
    }

    /// Copies a live run. One that cannot be read stays where it is.
    fn pack(&self, packed: &mut Packed, run: LiveRun) {
        let Extent {
            stripe,
            stripe_offset,
            len,
        } = run.extent;
        if let Some(&at) = packed.copied.get(&(stripe, stripe_offset, len)) {
            packed.runs.push((run, at));
            return;
        }
        let filled = packed.payload.len();
        let at = run.start_after(filled);
        packed.payload.resize(at + run.len(), 0);
        if let Err(error) = self
            .volume
            .read(stripe, stripe_offset, &mut packed.payload[at..])
        {
            log::warn!("compaction leaves inode {} alone: {error}", run.ino);
            packed.payload.truncate(filled);
            return;
        }
        packed.copied.insert((stripe, stripe_offset, len), at);
        packed.runs.push((run, at));
    }

    /// Writes what was packed as a stripe, and points the extents there that are still the same.
    fn move_out(&self, packed: &mut Packed, locks: &dyn InodeLocks) -> Result<bool, CommitError> {
        let Packed { payload, runs, .. } = std::mem::take(packed);
        if runs.is_empty() {
            return Ok(false);
        }
        let (stripe, _hold) = self.volume.append_stripe(&payload)?;
        let mut outcome = Ok(());
        for (run, at) in runs {
            // Offsets in a stripe are below 4 GiB.
            let target = Extent {
                len: run.extent.len,
                stripe,
                stripe_offset: u32::try_from(at).expect("a stripe is smaller than 4 GiB"),
            };
            locks.with_locked(run.ino, &mut || {
                if outcome.is_ok() {
                    outcome = self.repoint(&run, target);
                }
            });
        }
        // An extent that changed meanwhile left its copy without a backref.
        let mut batch = Batch::default();
        batch.put(key::perhaps_dead(stripe), Marker.encode());
        self.meta.apply(batch)?;
        outcome.map(|()| true)
    }

    fn repoint(&self, run: &LiveRun, target: Extent) -> Result<(), CommitError> {
        let extent = key::extent(run.ino, run.end);
        let current = self.meta.get(&extent)?;
        if current.map(|value| Extent::decode(&value)).transpose()? != Some(run.extent) {
            return Ok(());
        }
        let backref = Backref {
            len: target.len,
            stripe_offset: target.stripe_offset,
        };
        let mut batch = Batch::default();
        batch.put(extent, target.encode());
        batch.put(
            key::backref(target.stripe, run.ino, run.end),
            backref.encode(),
        );
        batch.delete(key::backref(run.extent.stripe, run.ino, run.end));
        batch.put(key::perhaps_dead(run.extent.stripe), Marker.encode());
        Ok(self.meta.apply(batch)?)
    }
}

/// Live bytes on their way into a new stripe.
#[derive(Default)]
struct Packed {
    payload: Vec<u8>,
    runs: Vec<(LiveRun, usize)>,
    /// What was copied already, for extents that share it.
    copied: HashMap<(StripeId, u32, u64), usize>,
}
