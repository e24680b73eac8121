//! Rebuild of one segment: steps 1 to 4 of [`super`].

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::slice;
use std::sync::Arc;

use super::job::SegmentJob;
use super::outcome::SegmentOutcome;
use super::plan::{self as planning, SegmentPlan};
use super::round::Round;
use super::scope::RebuildScope;
use super::widening;
use crate::format::record::Segment;
use crate::format::{MemberIndex, SegmentId, StripeId};
use crate::maintenance::pace::PacedStep;
use crate::maintenance::reaper::Reaper;
use crate::maintenance::rebuild_status::Obstacle;
use crate::maintenance::rebuild_status::RebuildStatus;
use crate::maintenance::stale_copies::StaleCopies;
use crate::membership::Members;
use crate::store::StoreErrorKind;
use crate::stripes::{
    FileLengths, IncompleteStripe, LostShard, RebuildTarget, RebuiltStripes, StripeRecords,
    Stripes, TargetError, WrittenShards,
};
use crate::transaction::CommitError;
use crate::transaction::catalog::Catalog;
use crate::transaction::commits::Commits;
use crate::transaction::foreground::Foreground;

/// The shards that were written, and the stripes whose shards are unrecoverable for now.
type WriteOutcome = (Vec<WrittenShards>, Vec<StripeId>);

/// Rebuild of single segments.
pub(super) struct SegmentRebuild {
    pub(super) members: Arc<Members>,
    pub(super) stripes: Arc<Stripes>,
    pub(super) records: Arc<StripeRecords>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) commits: Arc<Commits>,
    pub(super) foreground: Arc<Foreground>,
    pub(super) status: Arc<RebuildStatus>,
    pub(super) reaper: Arc<Reaper>,
    pub(super) stale_copies: Arc<StaleCopies>,
}

impl SegmentRebuild {
    /// Writes the shards that a plan calls for, and notes them in the records.
    pub(super) fn rebuild(
        &self,
        plan: &SegmentPlan,
        round: &mut Round<'_>,
    ) -> Result<SegmentOutcome, CommitError> {
        let _in_segment = tracing::error_span!("rebuild", segment = %plan.segment).entered();
        if self.drains_kept_member(plan) {
            // It lacks less than planned, or nothing.
            return Ok(SegmentOutcome::Improved);
        }
        // New parity may lie where no record names anything yet.
        let _held = self.reaper.hold(plan.segment);
        let arrivals = self.commits.arrivals.so_far();
        self.stripes.writer().close_replaced_files(plan.segment);
        let replacements = self.stripes.writer().replacements();
        let mut job = match self.prepare(plan, round)? {
            Ok(job) => job,
            Err(Obstacle::Unreadable) => {
                let unreadable = self.unreadable_in(plan.segment)?;
                return self.blocked(Obstacle::Unreadable, &unreadable);
            }
            Err(obstacle) => return Ok(SegmentOutcome::Blocked(obstacle)),
        };
        if job.targets.is_empty() {
            return Ok(SegmentOutcome::Needless);
        }
        if !job.missing.is_empty() {
            let segment_of = |segment| self.stripes.segments().record(segment);
            self.records.forget_shards(&job.missing, segment_of)?;
            self.commits.sync()?;
            job.forget_missing();
        }
        let written = self.write(plan, &job, round);
        let (written, failed) = match written {
            Ok(_) if self.drains_kept_member(plan) => {
                self.abandon(&job);
                return Ok(SegmentOutcome::Improved);
            }
            Ok(Some(outcome)) => outcome,
            Ok(None) => {
                self.abandon(&job);
                return Ok(SegmentOutcome::Stopped);
            }
            Err(TargetError { member, source }) => {
                tracing::warn!(journal.member = %member, "member {member} gets no shards: {source}");
                round.refusing.insert(member);
                self.abandon(&job);
                return Ok(SegmentOutcome::Blocked(match source.kind() {
                    StoreErrorKind::NoSpace => Obstacle::NoRoom,
                    _ => Obstacle::Passing,
                }));
            }
        };
        if self.commits.arrivals.so_far() != arrivals
            || self.stripes.writer().replacements() != replacements
        {
            // A target may have come back, or its file was replaced, without the shards that had been written to it.
            self.abandon(&job);
            return Ok(SegmentOutcome::Improved);
        }
        if let Some(obstacle) = self.finish(&job, &written, &failed, arrivals)? {
            self.abandon(&job);
            return self.blocked(obstacle, &failed);
        }
        self.commits.sync()?;
        self.stale_copies.may_verify_more();
        // Shards that cannot be rebuilt now cannot be rebuilt for the next plan either.
        let is_moved = job.targets.iter().any(|target| job.is_moved(target));
        let is_improved = is_moved || job.stripes.is_empty() || failed.len() < job.stripes.len();
        if is_improved {
            return Ok(SegmentOutcome::Improved);
        }
        self.blocked(Obstacle::Unreadable, &failed)
    }

    /// Returns the outcome for a segment that an obstacle keeps as it is. Frees those of its unreadable stripes that no file
    /// needs. Scrubbing does not look at their bytes, so a rebuild is the first to meet damage there.
    fn blocked(
        &self,
        obstacle: Obstacle,
        unreadable: &[StripeId],
    ) -> Result<SegmentOutcome, CommitError> {
        let is_freed = obstacle == Obstacle::Unreadable && self.free_unneeded(unreadable)?;
        Ok(if is_freed {
            SegmentOutcome::Improved
        } else {
            SegmentOutcome::Blocked(obstacle)
        })
    }

    /// Frees those of some stripes that no file needs, unless a reader may still use them. Returns whether one was freed.
    fn free_unneeded(&self, stripes: &[StripeId]) -> Result<bool, CommitError> {
        let mut unneeded = Vec::new();
        for &stripe in stripes {
            if !self.catalog.has_backref(stripe)? {
                unneeded.push(stripe);
            }
        }
        if unneeded.is_empty() {
            return Ok(false);
        }
        self.reaper.free_dead()?;
        for stripe in unneeded {
            if self.records.stripe(stripe)?.is_none() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the stripes of a segment that cannot be read from the files that are online.
    fn unreadable_in(&self, segment: SegmentId) -> Result<Vec<StripeId>, CommitError> {
        let record = self.stripes.segments().record(segment);
        let files = self.stripes.inventory().files_of(segment);
        let (Some(record), Some(files)) = (record, files) else {
            return Ok(Vec::new());
        };
        let mut stripes = self.catalog.stripes_in(segment)?.unwrap_or_default();
        stripes.retain(|it| planning::is_unreadable(&record, slice::from_ref(it), &files));
        Ok(stripes.into_iter().map(|(stripe, _)| stripe).collect())
    }

    /// Returns whether a slot was to leave a member that is kept by now.
    fn drains_kept_member(&self, plan: &SegmentPlan) -> bool {
        plan.drains_kept_member(&self.members.membership().draining())
    }

    /// Chooses the members that get the shards of a segment, and lists the shards; returns the obstacle if there is no
    /// such member. The job has no targets if there is nothing to do.
    fn prepare(
        &self,
        plan: &SegmentPlan,
        round: &Round<'_>,
    ) -> Result<Result<SegmentJob, Obstacle>, CommitError> {
        let segment = plan.segment;
        let Some(stored) = self.stripes.segments().record(segment) else {
            return Ok(Err(Obstacle::Passing));
        };
        if self.stripes.segments().is_writing(segment) {
            return Ok(Err(Obstacle::Passing));
        }
        let code = self.members.shape().stripe_code();
        let record = if widening::is_rewritten_instead(segment, &self.catalog, &self.members) {
            stored.clone()
        } else {
            widening::widened(&stored, code)
        };
        // Members may have come or gone since the plan was made. So the members themselves say which written shards
        // they lack.
        let Some(files) = self.stripes.inventory().files_of(segment) else {
            return Ok(Err(Obstacle::Passing));
        };
        let Some(all) = self.catalog.stripes_in(segment)? else {
            tracing::warn!("records of its stripes do not agree: its slots stay");
            return Ok(Err(Obstacle::Unreadable));
        };
        let is_unreadable = planning::is_unreadable(&record, &all, &files);
        let targets = self.choose_targets(plan, &record, &files, is_unreadable, round);
        let slots = plan.slots.keys().filter(|slot| **slot < record.slots.len());
        let is_for_all = targets.len() == slots.count();
        let record = widening::up_to(&stored, &record, &all, &targets);
        let mut targets = targets;
        targets.retain(|target| target.slot < record.slots.len());
        let job = SegmentJob::new(segment, record, all, &files, targets);
        Ok(if is_for_all || !job.targets.is_empty() {
            Ok(job)
        } else if is_unreadable {
            Err(Obstacle::Unreadable)
        } else if round.scope == RebuildScope::Online {
            Err(Obstacle::Passing)
        } else if self.has_free_member(plan, &stored) {
            Err(Obstacle::NoRoom)
        } else {
            Err(Obstacle::TooFewMembers)
        })
    }

    /// Returns whether each slot of a plan has a member, or could have one if that had room.
    fn has_free_member(&self, plan: &SegmentPlan, record: &Segment) -> bool {
        let online = self.members.membership().live();
        let has_member = |slot: &usize| {
            let holder = record.slots.get(*slot).copied().flatten();
            !plan.moves.contains(slot) && holder.is_some_and(|it| online.contains(&it))
        };
        plan.slots.keys().all(has_member)
            || !self
                .stripes
                .rebuilder()
                .homes_for_slot(record, 0)
                .is_empty()
    }

    /// Chooses the member for each slot of a plan; leaves out slots that have to wait.
    fn choose_targets(
        &self,
        plan: &SegmentPlan,
        record: &Segment,
        files: &FileLengths,
        is_unreadable: bool,
        round: &Round<'_>,
    ) -> Vec<RebuildTarget> {
        let lacks_file = |member| files.len(member) < Some(record.len);
        let is_for_online = round.scope == RebuildScope::Online;
        let mut targets: Vec<RebuildTarget> = Vec::new();
        for (&slot, &bytes) in &plan.slots {
            // A member that came back since the plan was made may keep the segment from getting more slots.
            let Some(&noted) = record.slots.get(slot) else {
                continue;
            };
            let is_staying =
                |member: &MemberIndex| files.are_known_of(*member) && !plan.moves.contains(&slot);
            let may_be_back = noted.is_some() && !plan.moves.contains(&slot);
            let holder = noted.filter(is_staying);
            let is_refusing = |member: &MemberIndex| round.refusing.contains(member);
            let is_taken = |member: &MemberIndex| targets.iter().any(|t| t.member == *member);
            let member = match holder {
                // Remains that may still be found there must not be overwritten.
                Some(member) if is_unreadable && lacks_file(member) => None,
                Some(member) => Some(member).filter(|member| !is_refusing(member)),
                // Only absent members have these shards.
                None if is_unreadable && (may_be_back || is_for_online) => None,
                // The member went away again, and its shards wait for it.
                None if may_be_back && noted.is_some_and(|it| round.spares(it)) => None,
                None => {
                    let mut homes = self.stripes.rebuilder().homes_for_slot(record, bytes);
                    homes.retain(|member| !is_refusing(member) && !is_taken(member));
                    if let Some(goal) = plan.goals.get(&slot) {
                        homes.retain(|member| member == goal);
                    }
                    let heir = noted.and_then(|old| self.members.membership().heir_of(old));
                    let heir = heir.filter(|heir| homes.contains(heir));
                    heir.or(homes.first().copied())
                }
            };
            targets.extend(member.map(|member| RebuildTarget { slot, member }));
        }
        targets
    }

    /// Writes the shards, and makes them durable. Returns them, and the stripes whose shards are unrecoverable for now. Returns
    /// `None` if the rebuild has to stop, or a member that was to lose its shards is kept.
    fn write(
        &self,
        plan: &SegmentPlan,
        job: &SegmentJob,
        round: &Round<'_>,
    ) -> Result<Option<WriteOutcome>, TargetError> {
        for target in &job.targets {
            if job.is_moved(target) {
                self.reaper.lock().reclaim_file(job.segment, target.member);
            }
            self.stripes.rebuilder().make_file(
                job.segment,
                target.member,
                &job.stripes_for(target),
            )?;
        }
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        let mut step = PacedStep::begin(&self.foreground);
        let mut handle_batch = |rebuilt: RebuiltStripes| {
            for (stripe, error) in rebuilt.failed {
                tracing::debug!("stripe {stripe} is not rebuilt: {error}");
                failed.push(stripe);
            }
            done.extend(rebuilt.written);
            let moved = job.moved_part(plan, &round.online, rebuilt.bytes);
            self.status
                .add_written(rebuilt.bytes, moved, round.elapsed());
            let goes_on = step.rest(round.pace, rebuilt.bytes);
            step = PacedStep::begin(&self.foreground);
            if goes_on && !self.drains_kept_member(plan) {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        let most_bytes = || round.pace.step_bytes();
        let written = self.stripes.rebuilder().rebuild(
            (job.segment, &job.record),
            &job.stripes,
            &job.targets,
            &most_bytes,
            &mut handle_batch,
        )?;
        if written.is_break() {
            return Ok(None);
        }
        let step = PacedStep::begin(&self.foreground);
        for target in &job.targets {
            self.stripes
                .rebuilder()
                .sync_file(job.segment, target.member)?;
        }
        if step.is_beside_callers() {
            // Durable shards are noted, even if the rebuild has to stop now.
            let _ = step.rest(round.pace, 0);
        }
        Ok(Some((done, failed)))
    }

    /// Notes in the records which shards are durable on the members now. Returns the obstacle if the members changed,
    /// or if the note would give up shards that may come back.
    fn finish(
        &self,
        job: &SegmentJob,
        written: &[WrittenShards],
        failed: &[StripeId],
        arrivals: u64,
    ) -> Result<Option<Obstacle>, CommitError> {
        // The lock keeps others from removing, cutting or punching anything; the count shows that no member joined.
        let mut reaper = self.reaper.lock();
        if self.commits.arrivals.so_far() != arrivals {
            return Ok(Some(Obstacle::Passing));
        }
        let online = self.members.membership().live();
        let is_online = |target: &RebuildTarget| online.contains(&target.member);
        let Some(record) = self.stripes.segments().record(job.segment) else {
            return Ok(Some(Obstacle::Passing));
        };
        if !job.targets.iter().all(is_online) {
            return Ok(Some(Obstacle::Passing));
        }
        let still_there = |stripe: &&StripeId| !matches!(self.records.stripe(**stripe), Ok(None));
        let failed: BTreeSet<StripeId> = failed.iter().filter(still_there).copied().collect();
        if let Some(target) = job
            .targets
            .iter()
            .find(|target| self.gives_up(job, target, &failed))
        {
            tracing::warn!(
                "its slot on member {} stays: {} of its stripes cannot be read in full, and the member has their remaining shards",
                job.record.slots[target.slot].unwrap_or(target.member),
                failed.len()
            );
            return Ok(Some(Obstacle::Unreadable));
        }
        if job.record.parity_shards > record.parity_shards {
            if !failed.is_empty() {
                // The others may be copied into new stripes.
                return Ok(Some(Obstacle::Unreadable));
            }
            return self.widen(job, written, &record).map(|()| None);
        }
        if job.targets.iter().any(|target| job.is_moved(target)) {
            let moved = Segment {
                slots: job.slots(),
                ..record
            };
            self.records.put_segment(job.segment, &moved)?;
            self.stripes.segments().set_record(job.segment, moved);
            let left = job.targets.iter().filter(|target| job.is_moved(target));
            for member in left.filter_map(|target| job.record.slots[target.slot]) {
                if online.contains(&member) {
                    reaper.abandon_file(self.commits.group.next(), job.segment, member);
                }
            }
        }
        self.note_shards(job, written, &failed)?;
        Ok(None)
    }

    /// Notes shards that were added, and the record of the segment with them. A crash in between leaves the segment as it was,
    /// with shards that it does not name.
    fn widen(
        &self,
        job: &SegmentJob,
        written: &[WrittenShards],
        record: &Segment,
    ) -> Result<(), CommitError> {
        let wide = Segment {
            slots: job.slots(),
            parity_shards: job.record.parity_shards,
            ..record.clone()
        };
        self.records.add_parity(job.segment, &wide, written)?;
        self.stripes.segments().set_record(job.segment, wide);
        self.free_dead_stripes(job)
    }

    /// Returns whether a slot that moves leaves shards behind that could not be rebuilt, and that its member may still
    /// have. Most bytes of a shard that cannot be repaired as a whole may still be readable.
    fn gives_up(
        &self,
        job: &SegmentJob,
        target: &RebuildTarget,
        failed: &BTreeSet<StripeId>,
    ) -> bool {
        let Some(holder) = job.record.slots[target.slot].filter(|_| job.is_moved(target)) else {
            return false;
        };
        // The member is not expected back.
        let is_lost = self.members.membership().draining().contains(&holder)
            && self
                .members
                .membership()
                .away()
                .iter()
                .any(|(away, _)| *away == holder);
        let has_shard = |incomplete: &IncompleteStripe| {
            let shard = planning::shard_in(&job.record, &incomplete.record, target.slot);
            shard.is_some_and(|shard| incomplete.record.written.contains(shard))
        };
        let mut left = job
            .stripes
            .iter()
            .filter(|incomplete| failed.contains(&incomplete.stripe));
        !is_lost && left.any(has_shard)
    }

    /// Notes which shards lie where they should, and frees the space of stripes that died since the job began.
    fn note_shards(
        &self,
        job: &SegmentJob,
        done: &[WrittenShards],
        failed: &BTreeSet<StripeId>,
    ) -> Result<(), CommitError> {
        let segment_of = |segment| self.stripes.segments().record(segment);
        self.records.restore_shards(done, segment_of)?;
        // The shards that a slot does not hold any more because it moved.
        let given_up = job
            .stripes
            .iter()
            .filter(|incomplete| failed.contains(&incomplete.stripe))
            .flat_map(|incomplete| {
                let stripe = incomplete.stripe;
                let shards = incomplete.shards.iter();
                shards.map(move |shard| LostShard { stripe, shard })
            });
        self.records
            .forget_shards(&given_up.collect::<Vec<_>>(), segment_of)?;
        self.free_dead_stripes(job)
    }

    /// Frees the space of stripes that died since the job began.
    fn free_dead_stripes(&self, job: &SegmentJob) -> Result<(), CommitError> {
        // A new file has space for all stripes; another one only for those that were written.
        let written: BTreeSet<StripeId> = job.stripes.iter().map(|l| l.stripe).collect();
        let is_new = job.newcomers().next().is_some();
        let has_room = |stripe: &StripeId| is_new || written.contains(stripe);
        for (stripe, record) in job.all.iter().filter(|(stripe, _)| has_room(stripe)) {
            if self.records.stripe(*stripe)?.is_none() {
                self.stripes.rebuilder().free_rebuilt(record, &job.targets);
            }
        }
        Ok(())
    }

    /// Leaves a segment as it was: removes the new files.
    fn abandon(&self, job: &SegmentJob) {
        for member in job.newcomers() {
            self.stripes.rebuilder().drop_file(job.segment, member);
        }
    }
}
