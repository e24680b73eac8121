//! Rebuild: restores the full redundancy of every stripe, on the online members.
//!
//! The unit of work is a segment with its slots that lack shards: the slot's member is gone, was never there, missed
//! the shards, or lost its file. The segments with the least redundancy come first.
//!
//! 1. Choose the member for each slot: the slot's own member if it is online, which then gets only the shards it lacks.
//!    Otherwise choose a member that has no other slot of the segment. If there is none, the slot waits.
//! 2. Find the shards that a record calls written although the member now reports their file as gone or too short.
//!    Take them out of their records and **commit** this. From then on the file may be created again without counting.
//! 3. Create the files, write the shards, decoded from those of other members ([`crate::stripes`]), and **sync** the
//!    files.
//! 4. While no other thread frees or cuts anything, note that the segment lies on its new members and that its stripes
//!    have their shards. Free the space of stripes that died meanwhile. **Commit**.
//!
//! A stripe that was written with more parity than the volume has now leaves out another slot of its segment than the next one.
//! If a slot finds no member then, although there are enough for new stripes, the stripes are rewritten.
//!
//! A segment keeps its slots while some of its stripes cannot be read, because a returned member may complete them. The
//! readable stripes of such a segment are copied into new ones instead.
//!
//! Up to the commit of step 4 the old state counts, and after it the new one. A crash costs the work on one segment.
//! The next mount removes a file that no record names.
//!
//! Stripes with another code or stripe unit than new ones are brought to it:
//!
//! - Stripes with another unit are rewritten, also those of directories.
//! - Parity shards that are added are shards that a widened segment lacks. Its record names them once all stripes have them.
//! - Parity shards that are dropped leave the records first, and only where all other shards are there. Then their space is
//!   freed.
//! - All other stripes are rewritten as by compaction, and only while each shard of the new ones has a member of its own.
//!
//! `status` reports a rebuild as complete only after the shards were counted on the members.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use super::InodeLocks;
use super::compaction::Compaction;
use super::draining::Draining;
use super::pace::Pace;
use super::reaper::Reaper;
use super::rebuild_status::{Obstacle, RebuildKind, RebuildProgress, RebuildState, RebuildStatus};
use super::redundancy::RedundancyCounter;
use super::room::Room;
use super::stale_copies::StaleCopies;
use crate::format::record::Segment;
use crate::format::{MemberIndex, SegmentId, StripeClass};
use crate::membership::Members;
use crate::stripes::{StripeRecords, Stripes, survival};
use crate::transaction::CommitError;
use crate::transaction::catalog::Catalog;
use crate::transaction::commits::Commits;
use crate::transaction::foreground::Foreground;

use copy_out::CopyOut;
use outcome::{PlanOutcome, SegmentOutcome};
use plan::SegmentPlan;
use rewriting::Rewriting;
use round::Round;
use segment::SegmentRebuild;

mod balance;
mod code_room;
mod copy_out;
mod files;
mod job;
mod look;
mod misplaced;
mod narrowing;
mod outcome;
mod plan;
mod rewriting;
mod round;
mod scope;
mod segment;
mod widening;

pub use rewriting::RewriteStatus;
pub use scope::RebuildScope;

/// Most plans of one call of [`Rebuild::balance`]. The second one completes the first, because the space that a move frees
/// is free only after a commit. Others that write meanwhile could go on for as long as they like.
const MOST_BALANCE_PLANS: usize = 8;

/// Parts of a volume that its rebuild uses.
pub(super) struct RebuildDependencies {
    pub(super) members: Arc<Members>,
    pub(super) stripes: Arc<Stripes>,
    pub(super) records: Arc<StripeRecords>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) commits: Arc<Commits>,
    pub(super) foreground: Arc<Foreground>,
    pub(super) reaper: Arc<Reaper>,
    pub(super) compaction: Arc<Compaction>,
    pub(super) room: Arc<Room>,
    pub(super) stale_copies: Arc<StaleCopies>,
    pub(super) redundancy: Arc<RedundancyCounter>,
    pub(super) draining: Arc<Draining>,
    pub(super) status: Arc<RebuildStatus>,
}

/// Rebuild of missing shards, draining included, and balancing.
pub struct Rebuild {
    members: Arc<Members>,
    stripes: Arc<Stripes>,
    records: Arc<StripeRecords>,
    catalog: Arc<Catalog>,
    commits: Arc<Commits>,
    reaper: Arc<Reaper>,
    room: Arc<Room>,
    redundancy: Arc<RedundancyCounter>,
    draining: Arc<Draining>,
    status: Arc<RebuildStatus>,
    segments: SegmentRebuild,
    copy_out: CopyOut,
    /// Work lock: held by the thread that rebuilds. A second caller waits, and finds nothing to do.
    working: Mutex<()>,
    rewriting: Mutex<Rewriting>,
}

impl Rebuild {
    pub(super) fn new(uses: RebuildDependencies) -> Self {
        let segments = SegmentRebuild {
            members: Arc::clone(&uses.members),
            stripes: Arc::clone(&uses.stripes),
            records: Arc::clone(&uses.records),
            catalog: Arc::clone(&uses.catalog),
            commits: Arc::clone(&uses.commits),
            foreground: Arc::clone(&uses.foreground),
            reaper: Arc::clone(&uses.reaper),
            stale_copies: uses.stale_copies,
            status: Arc::clone(&uses.status),
        };
        let copy_out = CopyOut {
            members: Arc::clone(&uses.members),
            stripes: Arc::clone(&uses.stripes),
            catalog: Arc::clone(&uses.catalog),
            foreground: uses.foreground,
            reaper: Arc::clone(&uses.reaper),
            compaction: uses.compaction,
            status: Arc::clone(&uses.status),
        };
        Self {
            members: uses.members,
            stripes: uses.stripes,
            records: uses.records,
            catalog: uses.catalog,
            commits: uses.commits,
            reaper: uses.reaper,
            room: uses.room,
            redundancy: uses.redundancy,
            draining: uses.draining,
            status: uses.status,
            segments,
            copy_out,
            working: Mutex::default(),
            rewriting: Mutex::default(),
        }
    }

    /// Returns the status of the running rebuild, or of the last one.
    #[must_use]
    pub fn status(&self) -> &RebuildStatus {
        &self.status
    }

    /// Returns whether shards are to be moved to members that have fewer for an order, also one before the volume was opened.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn awaits_balance(&self) -> Result<bool, CommitError> {
        self.catalog.awaits_balance()
    }

    /// Restores the redundancy of every stripe and of the index, as far as there are members for it; with
    /// [`RebuildScope::Online`], only brings online members the shards that they lack. Slots without a holder go to members
    /// that can take them. Returns the work that is left.
    /// Only a count of the redundancy proves the volume whole. `locks` are those of the inodes whose extents may have
    /// to move.
    ///
    /// # Errors
    ///
    /// As for [`Commits::sync`]. The rebuild can be called again then.
    pub fn run(
        &self,
        scope: RebuildScope,
        locks: &dyn InodeLocks,
        pace: &Pace<'_>,
    ) -> Result<RebuildProgress, CommitError> {
        self.run_round(Round::new(scope, pace, Some(locks)))
    }

    /// Does the same with [`RebuildScope::Everything`], but of all absent members, only those `given` may lose their shards
    /// to others. The rest keep theirs: they went away after the rebuild was decided.
    ///
    /// # Errors
    ///
    /// As for [`Self::run`].
    pub fn run_without(
        &self,
        given: &[MemberIndex],
        locks: &dyn InodeLocks,
        pace: &Pace<'_>,
    ) -> Result<RebuildProgress, CommitError> {
        self.run_round(Round {
            given: Some(given),
            ..Round::new(RebuildScope::Everything, pace, Some(locks))
        })
    }

    fn run_round(&self, mut round: Round<'_>) -> Result<RebuildProgress, CommitError> {
        self.commits.check_writable()?;
        let _working = self.working.lock();
        let before = self.status.replace(RebuildProgress {
            state: RebuildState::Running,
            ..RebuildProgress::default()
        });
        let scope = round.scope;
        if scope == RebuildScope::Online {
            round.locks = None;
        }
        let outcome = self.rebuild_all(&mut round).and_then(|finished| {
            self.draining.remove_empty_members()?;
            if finished {
                self.complete_index_if_possible()?;
            }
            Ok(finished)
        });
        self.status.set_members(BTreeSet::new());
        self.note_least_survived();
        let found = self.status.update(|progress| {
            let was_idle = scope == RebuildScope::Online && progress.met_nothing();
            if was_idle {
                // Shards that another member lacks are still missing.
                progress.set_stuck(&before);
            }
            progress.elapsed = round.elapsed();
            progress.state = match outcome {
                Ok(true) => RebuildState::Finished,
                Ok(false) | Err(_) => RebuildState::Stopped,
            };
            let found = *progress;
            if was_idle && outcome.is_ok() {
                // An idle run does not replace the report of the last rebuild.
                *progress = before;
            }
            found
        });
        outcome.map(|_| found)
    }

    /// Moves shards from the fullest members to the emptiest. Stops once a member is lost or arrives, which may lack
    /// more urgent shards, and once `gives_way` returns true; the caller can call it again then. `before` is the
    /// rebuild of the same order, which counts with it.
    ///
    /// # Errors
    ///
    /// As for [`Self::run`].
    pub fn balance(
        &self,
        pace: &Pace<'_>,
        gives_way: &dyn Fn() -> bool,
        before: &RebuildProgress,
    ) -> Result<RebuildProgress, CommitError> {
        self.commits.check_writable()?;
        let _working = self.working.lock();
        let mut round = Round {
            gives_way,
            elapsed_before: before.elapsed,
            ..Round::new(RebuildScope::Everything, pace, None)
        };
        let stuck = self.status.replace(RebuildProgress {
            state: RebuildState::Running,
            kind: RebuildKind::Balance,
            bytes_before: before.bytes_done,
            moved_before: before.bytes_moved,
            ..RebuildProgress::default()
        });
        let outcome = self.even_out(&mut round);
        // The next count knows where the files are now, also of members that are slow to answer.
        self.redundancy.look_for_files();
        let progress = self.status.update(|progress| {
            progress.set_stuck(&stuck);
            progress.elapsed = round.elapsed();
            progress.state = match outcome {
                Ok(PlanOutcome::Complete { .. }) => RebuildState::Finished,
                Ok(PlanOutcome::Outdated | PlanOutcome::Stopped) | Err(_) => RebuildState::Stopped,
            };
            *progress
        });
        outcome.map(|_| progress)
    }

    /// Completes the copies of the index. Without them the volume tolerates fewer losses than its stripes do.
    fn complete_index_if_possible(&self) -> Result<(), CommitError> {
        if self.members.epochs().is_checkpoint_awaited() {
            match self.commits.checkpoint() {
                // The copies are made once there is space.
                Err(CommitError::NoSpace) => return Ok(()),
                done => done?,
            }
        }
        self.commits.complete_index()
    }

    /// Makes and carries out plans until nothing more can be done. Returns false if it was stopped before.
    fn rebuild_all(&self, round: &mut Round<'_>) -> Result<bool, CommitError> {
        let mut has_freed = false;
        let mut waited = u64::MAX;
        loop {
            // A file found missing from here on may not be in this plan.
            let lacked_files = self.stripes.damage().lacks_files();
            self.stripes.damage().set_lacks_files(false);
            round.online = self.members.membership().live();
            let plans = plan::missing(round, &self.members, &self.stripes, &self.catalog)?;
            self.close_segments(&plans)?;
            let mut outcome = self.carry_out(&plans, round)?;
            if lacked_files && !plans.is_empty() {
                self.stripes.damage().set_lacks_files(true);
            }
            if let PlanOutcome::Complete { improved: false } = outcome {
                outcome = self.bring_to_code(round)?;
            }
            match outcome {
                PlanOutcome::Stopped => return Ok(false),
                PlanOutcome::Outdated => {
                    // Shards that failed for other members may succeed for those online now.
                    (has_freed, waited) = (false, u64::MAX);
                    continue;
                }
                PlanOutcome::Complete { improved: true } => {
                    // It may have left dead bytes behind.
                    has_freed = false;
                    continue;
                }
                PlanOutcome::Complete { improved: false } => {}
            }
            let before = self.status.progress();
            let waiting = before.bytes_waiting;
            // Once between parts that did something: others may go on writing and removing for as long as they like.
            if waiting > 0 && !has_freed {
                has_freed = true;
                if self.reclaim(round)? {
                    continue;
                }
            }
            // Members with room may have shards of the same stripes already, unless they exchange shards with others.
            if waiting == 0 || waiting >= waited || round.scope == RebuildScope::Online {
                return Ok(true);
            }
            waited = waiting;
            match self.move_shards(round)? {
                PlanOutcome::Stopped => return Ok(false),
                PlanOutcome::Complete { improved: false } => {
                    self.status.update(|progress| progress.set_stuck(&before));
                    return Ok(true);
                }
                PlanOutcome::Outdated => (has_freed, waited) = (false, u64::MAX),
                PlanOutcome::Complete { improved: true } => self.reaper.free_dead().map(drop)?,
            }
        }
    }

    /// Frees dead stripes, and moves live bytes out of mostly dead ones if bytes may move. Returns whether something came free.
    fn reclaim(&self, round: &Round<'_>) -> Result<bool, CommitError> {
        let freed = self.reaper.free_dead()?;
        let Some(locks) = round.locks else {
            return Ok(freed);
        };
        match self.room.make_room_for_rebuild(locks) {
            // There is not even room for the note of a death.
            Err(CommitError::NoSpace) => Ok(freed),
            made => Ok(made? || freed),
        }
    }

    /// Brings stripes to the code of new ones that lack no shards.
    fn bring_to_code(&self, round: &Round<'_>) -> Result<PlanOutcome, CommitError> {
        let away = self.members.membership().away();
        let waits_for_some = away.iter().any(|(member, _)| round.spares(*member));
        if round.scope == RebuildScope::Online || waits_for_some {
            return Ok(PlanOutcome::Complete { improved: false });
        }
        match self.narrow(round)? {
            PlanOutcome::Complete { improved: false } => {}
            outcome => return Ok(outcome),
        }
        match self.rewrite(round)? {
            PlanOutcome::Complete { improved: false } => {}
            outcome => return Ok(outcome),
        }
        let segments = self.stripes.segments().all();
        let segments: Vec<SegmentId> = segments.iter().map(|segment| segment.id).collect();
        self.records.past_units().forget_unused(&segments)?;
        self.rewrite_misplaced(round)
    }

    /// Rewrites the stripes that have another stripe unit than new ones, or another code and cannot be given the shards that
    /// they lack. Those that tolerate the fewest losses come first.
    fn rewrite(&self, round: &Round<'_>) -> Result<PlanOutcome, CommitError> {
        let mut improved = false;
        // A new stripe would tolerate less without a home for each of its shards.
        let draining = self.members.membership().draining();
        let homes = round.online.iter().filter(|it| !draining.contains(it));
        let segments = self.foreign_segments(homes.count());
        if segments.is_empty() || !self.members.membership().away().is_empty() {
            return Ok(PlanOutcome::Complete { improved });
        }
        let waiting = self.status.progress();
        let bytes = |segment| self.copy_out.rewritten_bytes(segment);
        let left = segments
            .iter()
            .map(|segment| bytes(*segment))
            .sum::<Result<u64, _>>()?;
        self.status.begin_plan(left, round.elapsed());
        self.status.update(|progress| progress.set_stuck(&waiting));
        for segment in segments {
            if (round.gives_way)() || self.members.membership().live() != round.online {
                return Ok(PlanOutcome::Outdated);
            }
            match self.copy_out.rewrite(segment, round)? {
                SegmentOutcome::Improved => improved = true,
                SegmentOutcome::Blocked(obstacle) => {
                    let bytes = bytes(segment)?;
                    // Room for a shard of one new stripe is enough to go on.
                    let least = bytes.min(self.stripes.classes().volume().step());
                    self.status.add_blocked(&[least, bytes - least], obstacle);
                }
                SegmentOutcome::Needless => {}
                SegmentOutcome::Stopped => return Ok(PlanOutcome::Stopped),
            }
        }
        Ok(PlanOutcome::Complete { improved })
    }

    /// Returns the segments whose stripes have to be rewritten, if so many members suffice for all shards of a new stripe.
    fn foreign_segments(&self, homes: usize) -> Vec<SegmentId> {
        let segments = self.stripes.segments();
        let classes = self.stripes.classes();
        let has_homes = |class: StripeClass| {
            let code = classes.get(class);
            let code = code.as_ref().unwrap_or_else(|| classes.volume());
            code.geometry().total_shards() <= homes
        };
        let mut foreign = segments.records();
        foreign.retain(|(id, record)| {
            self.is_to_be_rewritten(*id, record)
                && has_homes(record.class)
                && !segments.is_writing(*id)
        });
        foreign.sort_by_key(|(id, record)| (survival(record).guaranteed(), *id));
        foreign.into_iter().map(|(id, _)| id).collect()
    }

    /// Returns whether the stripes of a segment have to be rewritten, to have the code and the unit of new ones.
    fn is_to_be_rewritten(&self, segment: SegmentId, record: &Segment) -> bool {
        let code = self.members.shape().stripe_code();
        widening::is_to_be_rewritten(record, self.unit_of(segment), code)
    }

    /// Returns the stripe unit of a segment. If the index does not note it, it counts as that of the volume.
    fn unit_of(&self, segment: SegmentId) -> u32 {
        let unit_bytes = self.members.shape().unit_bytes();
        self.catalog.past_unit_of(segment).unwrap_or(unit_bytes)
    }

    /// Notes how many losses all stripes of the volume's own class survive, whatever codes they have: so many members may be
    /// given up at once. Those of directories with less parity do not keep the rest from going on.
    pub(super) fn note_least_survived(&self) {
        let segments = self.stripes.segments().records();
        let losses = segments
            .iter()
            .filter(|(_, record)| record.class == StripeClass::VOLUME)
            .map(|(_, record)| survival(record).guaranteed());
        let membership = self.members.membership();
        membership.set_least_survived(losses.min().unwrap_or(usize::MAX));
    }

    /// Returns whether stripes have another code or stripe unit than new ones.
    #[must_use]
    pub fn has_other_codes(&self) -> bool {
        let code = self.members.shape().stripe_code();
        let segments = self.stripes.segments().taken();
        let mut with_stripes = segments.iter().filter(|(_, taken)| taken.stripes > 0);
        with_stripes.any(|(segment, _)| {
            let record = &segment.record;
            self.is_to_be_rewritten(segment.id, record)
                || widening::widened(record, code).parity_shards > record.parity_shards
                || widening::narrowed(record, code).is_some()
        })
    }

    /// Moves shards until no move brings two members closer, or others have written too much meanwhile.
    fn even_out(&self, round: &mut Round<'_>) -> Result<PlanOutcome, CommitError> {
        for _ in 0..MOST_BALANCE_PLANS {
            match self.move_shards(round)? {
                PlanOutcome::Complete { improved: true } => {}
                outcome => return Ok(outcome),
            }
        }
        Ok(PlanOutcome::Complete { improved: true })
    }

    /// Moves shards from the fullest members to the emptiest.
    fn move_shards(&self, round: &mut Round<'_>) -> Result<PlanOutcome, CommitError> {
        // A segment that is being written to cannot move.
        self.stripes.writer().retire_segments()?;
        self.commits.sync()?;
        // Bytes that were moved away or removed count for no member.
        self.reaper.free_dead()?;
        round.online = self.members.membership().live();
        let segments = self.stripes.segments().records().into_iter();
        let segments = segments
            .filter(|(segment, _)| !self.stripes.segments().is_writing(*segment))
            .collect();
        let (loads, draining) = (
            self.stripes.space().loads(),
            self.members.membership().draining(),
        );
        let plans = balance::moves(&segments, &loads, &draining);
        self.carry_out(&plans, round)
    }

    /// Carries out the plans while the same members are online. After the loss of one more, other stripes may be more
    /// urgent than the rest.
    fn carry_out(
        &self,
        plans: &[SegmentPlan],
        round: &mut Round<'_>,
    ) -> Result<PlanOutcome, CommitError> {
        round.refusing.clear();
        let mut improved = false;
        self.note_members(plans);
        let left = plans.iter().map(SegmentPlan::bytes).sum();
        self.status.begin_plan(left, round.elapsed());
        for plan in plans {
            if (round.gives_way)() || self.members.membership().live() != round.online {
                return Ok(PlanOutcome::Outdated);
            }
            let outcome = match self.segments.rebuild(plan, round)? {
                SegmentOutcome::Blocked(obstacle) => self.work_around(plan, obstacle, round)?,
                outcome => outcome,
            };
            match outcome {
                SegmentOutcome::Improved => improved = true,
                // A segment that stays in its place lacks nothing.
                SegmentOutcome::Blocked(_) if !plan.goals.is_empty() => {
                    self.status.drop_left(plan.bytes());
                }
                SegmentOutcome::Blocked(obstacle) => {
                    let slots: Vec<u64> = plan.slots.values().copied().collect();
                    self.status.add_blocked(&slots, obstacle);
                }
                SegmentOutcome::Needless => self.status.drop_left(plan.bytes()),
                SegmentOutcome::Stopped => return Ok(PlanOutcome::Stopped),
            }
        }
        Ok(if self.members.membership().live() == round.online {
            PlanOutcome::Complete { improved }
        } else {
            PlanOutcome::Outdated
        })
    }

    /// Copies stripes of a segment into new ones, if an obstacle keeps it from being rebuilt in its place and new stripes help.
    fn work_around(
        &self,
        plan: &SegmentPlan,
        obstacle: Obstacle,
        round: &Round<'_>,
    ) -> Result<SegmentOutcome, CommitError> {
        let (segment, copy_out) = (plan.segment, &self.copy_out);
        match obstacle {
            Obstacle::Unreadable => copy_out.copy(segment, round),
            obstacle if round.locks.is_some() && copy_out.keeps_draining(segment) => {
                copy_out.rewrite_instead(segment, obstacle, round)
            }
            Obstacle::NoRoom | Obstacle::TooFewMembers
                if round.locks.is_some()
                    && plan.goals.is_empty()
                    && copy_out.has_surplus_slots(segment) =>
            {
                copy_out.rewrite_with_fewer_slots(segment, obstacle, round)
            }
            obstacle => Ok(SegmentOutcome::Blocked(obstacle)),
        }
    }

    /// Notes which members get missing shards.
    fn note_members(&self, plans: &[SegmentPlan]) {
        let online = self.members.membership().live();
        let mut members = BTreeSet::new();
        for plan in plans {
            let Some(record) = self.stripes.segments().record(plan.segment) else {
                continue;
            };
            let lacking = plan.slots.keys().filter(|slot| !plan.moves.contains(slot));
            let holders = lacking.filter_map(|&slot| record.slots.get(slot).copied().flatten());
            members.extend(holders.filter(|member| online.contains(member)));
        }
        self.status.set_members(members);
    }

    /// Ends the writing to segments that lack shards.
    fn close_segments(&self, plans: &[SegmentPlan]) -> Result<(), CommitError> {
        let mut plans = plans.iter();
        if plans.any(|plan| self.stripes.segments().is_writing(plan.segment)) {
            self.stripes.writer().retire_segments()?;
            self.commits.sync()?;
        }
        Ok(())
    }
}
