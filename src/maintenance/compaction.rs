//! Compaction: moves live bytes out of mostly dead stripes, so that these die and their space comes free.
//!
//! Overwriting a file leaves dead bytes in its old stripes; a stripe comes free only when all of it is dead. When
//! nothing is free, compaction packs the live bytes of the deadest stripes into new ones, and the old stripes die.
//! Stripes that lack shards come first, because the new ones are whole where there are members enough. The room for
//! this is kept back. Bytes of files with different codes go to different stripes. The copying is done without any lock; the extents are re-pointed under their inode's lock, each
//! only if it is still the extent that was copied.
//!
//! Bytes that move survive as many losses as before, unless the code of their file survives fewer. Shards on absent members
//! count, because these may come back, until a rebuild gives these members up. They do not count while room is needed at
//! once: new data has no shards there either, and a volume that lost a member goes on. Extents are re-pointed once the new
//! stripe is on members with enough of its shards. Otherwise the bytes wait where they are.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::candidates::{Candidates, Permille};
use crate::format::record::{Backref, Extent, Marker, ShardSet};
use crate::format::{Ino, MemberIndex, Record, StripeClass, StripeId, key};
use crate::membership::Members;
use crate::metadata::{Batch, Meta};
use crate::rate_limit::RateLimit;
use crate::stripes::{ClassCode, StripeError, StripeRecords, Stripes};
use crate::transaction::CommitError;
use crate::transaction::catalog::Catalog;
use crate::transaction::extent_cache::ExtentCache;

use moves::{LiveRun, NewStripe, PackKey, Packed, Pass, least};

mod moves;
mod protection;
mod runs;
mod victims;
mod waiting;

pub(super) use moves::{Blocked, Compacted, Floor, Moves, Rewritten};

/// The most stripes moved in one pass. The reserve has room for the new stripes with their live bytes.
const VICTIMS_AT_ONCE: usize = 64;

/// The most new stripes written in one pass; the reserve has room for one more.
const STRIPES_AT_ONCE: usize = 3;

/// The most candidates ranked in one pass.
const CANDIDATES_AT_ONCE: usize = 4096;

/// The largest live part of a stripe that is worth moving.
pub(super) const MAX_LIVE: Permille = 900;

/// Backrefs read at once.
const BACKREFS_AT_ONCE: usize = 1024;

/// The interface of compaction to the layer that owns inodes.
pub trait InodeLocks: Send + Sync {
    /// Runs `work` while no other thread changes the extents of `ino`. Afterwards it must drop what is cached of them.
    fn with_locked(&self, ino: Ino, work: &mut dyn FnMut());
}

/// The amount of work of one compaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// The largest live part of a stripe to move.
    pub(super) max_live: Permille,
    /// The number of times to rank some candidates, if none is found.
    pub(super) counts: usize,
    /// The number of times to try some candidates, while none of them can be moved.
    pub(super) turns: usize,
    /// The losses that moved bytes survive at least.
    pub(super) floor: Floor,
}

/// Moves live bytes out of mostly dead stripes.
pub struct Compaction {
    members: Arc<Members>,
    meta: Arc<Meta>,
    stripes: Arc<Stripes>,
    records: Arc<StripeRecords>,
    catalog: Arc<Catalog>,
    candidates: Arc<Mutex<Candidates>>,
    extents: Arc<ExtentCache>,
    /// Inodes that could not be read in full.
    unreadable: RateLimit<Ino>,
    /// Rate limiter for messages about stripes that wait for members, by those that are away.
    waits_told: RateLimit<Vec<(MemberIndex, String)>>,
    /// Bytes written to the members.
    moved: AtomicU64,
}

impl Compaction {
    pub(super) fn new(
        members: Arc<Members>,
        meta: Arc<Meta>,
        stripes: Arc<Stripes>,
        records: Arc<StripeRecords>,
        catalog: Arc<Catalog>,
        candidates: Arc<Mutex<Candidates>>,
        extents: Arc<ExtentCache>,
    ) -> Self {
        Self {
            members,
            meta,
            stripes,
            records,
            catalog,
            candidates,
            extents,
            unreadable: RateLimit::once_a_minute(),
            waits_told: RateLimit::once_a_minute(),
            moved: AtomicU64::new(0),
        }
    }

    /// Returns how many bytes were written to the members.
    pub(super) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Returns how many candidates were taken to count their live bytes.
    #[cfg(test)]
    pub(super) fn candidates_counted(&self) -> u64 {
        self.candidates.lock().counted
    }

    /// Returns how many stripes wait for members or room.
    #[cfg(test)]
    pub(super) fn count_aside(&self) -> usize {
        self.candidates.lock().count_aside()
    }

    /// Returns whether all partly dead stripes are known and have a rank.
    pub(super) fn knows_all_candidates(&self) -> bool {
        self.candidates.lock().is_complete()
    }

    /// Moves the live bytes of the deadest stripes that find a place.
    pub(super) fn compact(
        &self,
        locks: &dyn InodeLocks,
        effort: Effort,
    ) -> Result<Compacted, CommitError> {
        self.take_back(effort.floor);
        let mut blocked = Blocked::default();
        for _ in 0..effort.turns {
            // No new stripe finds a place while accepted bytes wait for one.
            if self.stripes.writer().is_stuck() {
                return Ok(Compacted::Nothing);
            }
            let victims = self.find_victims(effort)?;
            if victims.is_empty() {
                return Ok(Compacted::Nothing);
            }
            let how: (Floor, &dyn Fn(&ClassCode) -> bool) = (effort.floor, &|_| true);
            let moves = self.move_where_possible(victims, locks, how, &mut blocked)?;
            if moves.any {
                return Ok(Compacted::Moved);
            }
        }
        Ok(Compacted::Unfinished)
    }

    /// Moves the live bytes of a damaged stripe into new ones.
    pub(super) fn rewrite(
        &self,
        stripe: StripeId,
        locks: &dyn InodeLocks,
        floor: Floor,
    ) -> Result<Rewritten, CommitError> {
        let waits = match self.move_stripes(vec![stripe], locks, floor, &|_| true) {
            Ok(moves) => {
                let waits = moves.waiting.contains_key(&stripe);
                waits.then_some(Rewritten::Waits { lacks_space: false })
            }
            Err(CommitError::NoSpace) => Some(Rewritten::Waits { lacks_space: true }),
            Err(error) => return Err(error),
        };
        Ok(match (self.catalog.has_backref(stripe)?, waits) {
            (false, _) => Rewritten::Whole,
            (true, Some(waits)) => waits,
            (true, None) => Rewritten::No,
        })
    }

    /// Moves the live bytes of some stripes into new ones of the codes of their files, as far as they can be read; no more
    /// of them than a few stripes hold. Bytes stay where they are if `may_write` refuses their code, or if their new stripe
    /// would not survive the losses of `floor`.
    pub(super) fn move_stripes(
        &self,
        victims: Vec<StripeId>,
        locks: &dyn InodeLocks,
        floor: Floor,
        may_write: &dyn Fn(&ClassCode) -> bool,
    ) -> Result<Moves, CommitError> {
        self.move_where_possible(victims, locks, (floor, may_write), &mut Blocked::default())
    }

    /// Does the same, but leaves bytes alone whose kind of new stripes is blocked, and notes further such kinds.
    pub(super) fn move_where_possible(
        &self,
        victims: Vec<StripeId>,
        locks: &dyn InodeLocks,
        (floor, may_write): (Floor, &dyn Fn(&ClassCode) -> bool),
        blocked: &mut Blocked,
    ) -> Result<Moves, CommitError> {
        let mut pass = Pass {
            blocked: std::mem::take(blocked),
            counts_absent: floor.counts_absent(),
            ..Pass::default()
        };
        let packed = self.pack_all(&mut pass, victims, locks, floor, may_write);
        if matches!(&packed, Err(error) if !matches!(error, CommitError::NoSpace)) {
            pass.failed.extend(pass.trying);
        }
        // Stripes that were written are of use whatever came after them.
        let pointed = self.point_to_written(&mut pass, locks, floor);
        let outcome = packed.and(pointed);
        self.keep_candidates(&pass, outcome.is_err());
        *blocked = pass.blocked;
        outcome.map(|()| pass.moves)
    }

    /// Writes live bytes of stripes to new ones. No extent points to these yet.
    fn pack_all(
        &self,
        pass: &mut Pass,
        victims: Vec<StripeId>,
        locks: &dyn InodeLocks,
        floor: Floor,
        may_write: &dyn Fn(&ClassCode) -> bool,
    ) -> Result<(), CommitError> {
        'victims: for victim in victims {
            // If only some of its bytes move, a mark makes it a candidate again.
            let is_known = self.candidates.lock().forget(victim);
            pass.try_stripe(victim, is_known);
            let _pin = self.stripes.pins().pin();
            self.split_long_runs(victim, locks)?;
            let survived = self.losses_survived(victim, floor)?;
            for run in self.live_runs(victim)? {
                let code = self.catalog.code_of(self.stripes.classes(), run.ino)?;
                let key = (code.class(), least(survived, &code));
                if !may_write(&code) {
                    pass.refuse(victim, key);
                    continue;
                }
                let attainable = pass.attainable.entry(key.0);
                let find = || self.stripes.writer().attainable(&code);
                if *attainable.or_insert_with(find) < key.1 {
                    pass.wait(victim, key, false);
                    continue;
                }
                if pass.is_blocked(key) {
                    pass.wait(victim, key, true);
                    continue;
                }
                if run.len() > code.capacity() {
                    tracing::warn!(
                        "an extent in stripe {victim} is longer than any stripe: it is not moved"
                    );
                    continue;
                }
                let packed = pass.packs.entry(key).or_default();
                let is_full = run.start_after(packed.payload.len()) + run.len() > code.capacity();
                if is_full && !self.write_out(pass, key, &code)? {
                    pass.wait(victim, key, true);
                    continue;
                }
                if pass.would_begin(key) && pass.begun() == STRIPES_AT_ONCE {
                    pass.untried.insert(victim);
                    break 'victims;
                }
                if !self.pack(pass.packs.entry(key).or_default(), run) {
                    pass.failed.insert(victim);
                }
            }
        }
        pass.trying = None;
        let packs: Vec<PackKey> = pass.packs.keys().copied().collect();
        for key in packs {
            if let Some(code) = self.stripes.classes().get(key.0) {
                self.write_out(pass, key, &code)?;
            }
        }
        Ok(())
    }

    /// Copies a live run. One that cannot be read stays in its stripe. Returns whether it was read.
    fn pack(&self, packed: &mut Packed, run: LiveRun) -> bool {
        let Extent {
            stripe,
            stripe_offset,
            len,
        } = run.extent;
        if let Some(&at) = packed.copied.get(&(stripe, stripe_offset, len)) {
            packed.runs.push((run, at));
            return true;
        }
        let filled = packed.payload.len();
        let at = run.start_after(filled);
        packed.payload.resize(at + run.len(), 0);
        if let Err(error) =
            self.stripes
                .reader()
                .read(stripe, stripe_offset, &mut packed.payload[at..])
        {
            // Later passes try the stripe again.
            let now = Instant::now();
            if let Some(left_out) = self.unreadable.admit(run.ino, now) {
                if left_out > 0 {
                    tracing::warn!("compaction left {left_out} other inodes alone");
                }
                tracing::warn!("compaction leaves inode {} alone: {error}", run.ino);
            }
            packed.payload.truncate(filled);
            self.candidates.lock().forget(stripe);
            return false;
        }
        packed.copied.insert((stripe, stripe_offset, len), at);
        packed.runs.push((run, at));
        true
    }

    /// Writes the packed bytes as a stripe. Returns false if there is no place in which they are protected enough.
    fn write_out(
        &self,
        pass: &mut Pass,
        key: PackKey,
        code: &Arc<ClassCode>,
    ) -> Result<bool, CommitError> {
        let Packed { payload, runs, .. } = pass.packs.remove(&key).unwrap_or_default();
        if runs.is_empty() {
            return Ok(true);
        }
        let (class, least) = key;
        // The mark comes before any backref. The hold keeps the reaper away until all are there.
        let mut is_index_full = false;
        let mark = |stripe| -> Result<(), CommitError> {
            let mut batch = Batch::default();
            batch.put(key::perhaps_dead(stripe), Marker.encode());
            let marked = self.meta.apply(batch).map_err(CommitError::from);
            is_index_full = matches!(marked, Err(CommitError::NoSpace));
            marked
        };
        let writer = self.stripes.writer();
        let (stripe, hold) = match writer.append_stripe(class, &payload, least, mark) {
            Ok(written) => written,
            Err(CommitError::NoSpace) if !is_index_full => {
                pass.block(key, &runs, true);
                return Ok(false);
            }
            Err(CommitError::Stripes(StripeError::LessProtected { .. })) => {
                pass.block(key, &runs, false);
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let geometry = code.geometry();
        let shard = payload.len().div_ceil(geometry.data_shards());
        let bytes = (shard * geometry.total_shards()) as u64;
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        pass.written.push(NewStripe {
            stripe,
            hold,
            code: Arc::clone(code),
            runs,
        });
        Ok(true)
    }

    /// Points the unchanged extents to the new stripes, once these are on members. Members may have failed or filled up
    /// meanwhile: bytes that would be less protected stay where they are.
    fn point_to_written(
        &self,
        pass: &mut Pass,
        locks: &dyn InodeLocks,
        floor: Floor,
    ) -> Result<(), CommitError> {
        if pass.written.is_empty() {
            return Ok(());
        }
        match self
            .stripes
            .writer()
            .wait_flushed()
            .map_err(CommitError::from)
        {
            // Another stripe may have found none.
            Ok(()) | Err(CommitError::NoSpace) => {}
            Err(error) => return Err(error),
        }
        let mut outcome = Ok(());
        for written in std::mem::take(&mut pass.written) {
            let pointed = self.point_to(pass, &written, locks, floor);
            if matches!(&pointed, Err(error) if !matches!(error, CommitError::NoSpace)) {
                let stripes = written.runs.iter().map(|(run, _)| run.extent.stripe);
                pass.failed.extend(stripes);
            }
            outcome = outcome.and(pointed);
            drop(written.hold);
        }
        outcome
    }

    fn point_to(
        &self,
        pass: &mut Pass,
        written: &NewStripe,
        locks: &dyn InodeLocks,
        floor: Floor,
    ) -> Result<(), CommitError> {
        let NewStripe { stripe, code, .. } = written;
        let live = self.members.membership().live();
        let survives = self.losses_survived_with(*stripe, &live, &ShardSet::default())?;
        let mut found = HashMap::new();
        let mut outcome = Ok(());
        for (run, at) in &written.runs {
            let old = run.extent.stripe;
            let now = match found.get(&old) {
                Some(now) => *now,
                None => *found
                    .entry(old)
                    .or_insert(self.losses_survived(old, floor)?),
            };
            let least = least(now, code);
            if survives.is_none_or(|survives| survives < least) {
                pass.lack(old, (code.class(), least));
                continue;
            }
            // Offsets in a stripe are below 4 GiB.
            let target = Extent {
                len: run.extent.len,
                stripe: *stripe,
                stripe_offset: u32::try_from(*at).expect("a stripe is smaller than 4 GiB"),
            };
            pass.moves.any = true;
            locks.with_locked(run.ino, &mut || {
                if outcome.is_ok() {
                    outcome = self.repoint(run, code.class(), target);
                }
            });
        }
        // The stripe has a mark: an extent that changed or stays left its copy without a backref.
        outcome
    }

    fn repoint(
        &self,
        run: &LiveRun,
        class: StripeClass,
        target: Extent,
    ) -> Result<(), CommitError> {
        // The file may have been given another code meanwhile.
        let code = self.catalog.code_of(self.stripes.classes(), run.ino)?;
        if code.class() != class {
            return Ok(());
        }
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
        let applied = self.meta.apply(batch);
        let start = run.end.saturating_sub(target.len);
        self.extents.forget(run.ino, &(start..run.end));
        Ok(applied?)
    }
}
