//! Rebuild: every stripe back to full redundancy, on the online members.
//!
//! The unit of work is a segment with its slots that lack shards: the slot's member is gone, was never there, missed
//! the shards, or lost its file. The segments whose worst stripe is nearest to being lost come first.
//!
//! 1. Choose where the shards go: to the slot's own member if it is online, which then gets only the shards it lacks.
//!    Otherwise to a member that has no other slot of the segment; where there is none, the slot waits.
//! 2. Find the shards that a record calls written, in a file that is gone or too short by what its member says now.
//!    Take them out of their records and **commit** this: the file may be created again now without counting for them.
//! 3. Make the files; write the shards, from what others have ([`crate::volume`]); **sync** the files.
//! 4. While no other thread frees or cuts anything, note that the segment lies on its new members and that its stripes
//!    have their shards; give back there what died meanwhile as well. **Commit**.
//!
//! A segment keeps its slots where they are while stripes of it cannot be read: the rest of these may be whole once a
//! member is back. The stripes beside them are copied into new ones instead.
//!
//! Up to the commit of step 4 the old state is the true one, and after it the new one is: a crash costs
//! the work on one segment. A file that is in no record then is removed by the next mount.
//!
//! It is reported as complete only after the shards were counted on the members.

use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::pace::{Pace, PacedStep};
use super::{CommitError, InodeLocks, Pipeline};
use crate::format::record::{Segment, ShardSet, Stripe};
use crate::format::{MemberIndex, SegmentId, StripeId};
use crate::store::StoreErrorKind;
use crate::volume::{Lacking, LostShard, Rebuilt, SegmentFiles, Target, TargetFailed};

use plan::Need;

mod balance;
mod beside;
mod files;
mod leaving;
mod plan;
mod progress;

pub(super) use progress::Rebuilding;
pub use progress::{RebuildProgress, RebuildState};

/// The missing shards to rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// All of them.
    All,
    /// Those that online members lack.
    AtHand,
}

/// The outcome of rebuilding one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Its slots have their shards, or at least more of them.
    Done,
    /// Nothing could be done.
    Nothing(Obstacle),
    /// It lacks nothing any more.
    Needless,
    /// The rebuild is to stop.
    Stopped,
}

/// The outcome of going over everything that was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passage {
    /// All of it was tried.
    Through {
        /// Set if any of it could be done.
        is_better: bool,
    },
    /// The plan was for other members than those online by now, or work came that goes first.
    Overtaken,
    /// The rebuild is to stop.
    Stopped,
}

/// The obstacle to rebuilding a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obstacle {
    /// There is no member for it, or one is full.
    NoRoom,
    /// One of its stripes cannot be read, or their records disagree: the remaining shards must be kept.
    Unreadable,
    /// It is being written, or is gone, or a member failed meanwhile.
    Passing,
}

/// One going over all that lacks shards.
struct Round<'a> {
    which: Which,
    pace: &'a Pace<'a>,
    /// The means to move bytes into other stripes, if that is wanted.
    locks: Option<&'a dyn InodeLocks>,
    /// Says whether other work goes first.
    gives_way: &'a dyn Fn() -> bool,
    /// The members that were online when it was planned.
    live: Vec<MemberIndex>,
    /// Members that had no room, or failed otherwise, in this round.
    refusing: BTreeSet<MemberIndex>,
    began: Instant,
    /// The time taken by earlier rebuilds that count with this one.
    elapsed_before: Duration,
}

/// A segment, and the work to do for it.
struct Job {
    segment: SegmentId,
    record: Segment,
    /// The slots, and where their shards go.
    targets: Vec<Target>,
    /// The stripes that lack shards, in disk order.
    stripes: Vec<Lacking>,
    /// All its stripes, in disk order.
    all: Vec<(StripeId, Stripe)>,
    /// Shards that are in the records, but not in the files.
    missing: Vec<LostShard>,
}

impl<'a> Round<'a> {
    fn new(which: Which, pace: &'a Pace<'a>, locks: Option<&'a dyn InodeLocks>) -> Self {
        Self {
            which,
            pace,
            locks,
            gives_way: &|| false,
            live: Vec::new(),
            refusing: BTreeSet::new(),
            began: Instant::now(),
            elapsed_before: Duration::ZERO,
        }
    }

    fn elapsed(&self) -> Duration {
        self.elapsed_before + self.began.elapsed()
    }
}

impl Job {
    /// Returns the members that get a file of the segment and had none.
    fn newcomers(&self) -> impl Iterator<Item = MemberIndex> + '_ {
        let targets = self.targets.iter().map(|target| target.member);
        targets.filter(|member| !self.record.slots.contains(&Some(*member)))
    }

    fn is_moved(&self, target: &Target) -> bool {
        self.record.slots[target.slot] != Some(target.member)
    }

    /// Removes the missing shards from the known records of the stripes.
    fn forget_missing(&mut self) {
        let mut missing: HashMap<StripeId, ShardSet> = HashMap::new();
        for lost in &self.missing {
            missing.entry(lost.stripe).or_default().insert(lost.shard);
        }
        for lacking in &mut self.stripes {
            for shard in missing
                .get(&lacking.stripe)
                .iter()
                .flat_map(|shards| shards.iter())
            {
                lacking.record.written.remove(shard);
            }
        }
    }

    /// Returns the slots as they will be.
    fn slots(&self) -> Vec<Option<MemberIndex>> {
        let mut slots = self.record.slots.clone();
        for target in &self.targets {
            slots[target.slot] = Some(target.member);
        }
        slots
    }
}

impl Pipeline {
    /// Brings every stripe and the index back to full redundancy, as far as there are members for it. Returns what is
    /// left to do; only the state of a counted volume says that it is whole. `locks` are those of the inodes whose
    /// extents may have to be moved.
    ///
    /// # Errors
    ///
    /// As for [`Pipeline::sync`]. It can be called again then.
    pub fn rebuild(
        &self,
        locks: &dyn InodeLocks,
        pace: &Pace<'_>,
    ) -> Result<RebuildProgress, CommitError> {
        self.rebuild_those(Round::new(Which::All, pace, Some(locks)))
    }

    /// Brings online members the shards that they lack, and moves nothing: shards of absent members wait for them.
    ///
    /// # Errors
    ///
    /// As for [`Pipeline::rebuild`].
    pub fn catch_up(&self, pace: &Pace<'_>) -> Result<RebuildProgress, CommitError> {
        self.rebuild_those(Round::new(Which::AtHand, pace, None))
    }

    fn rebuild_those(&self, mut round: Round<'_>) -> Result<RebuildProgress, CommitError> {
        self.commits.check_writable()?;
        // Held through all of it: a second caller finds nothing to do.
        let _baton = self.rebuilding.baton.lock();
        let before = self.rebuild_progress();
        *self.rebuilding.progress.lock() = RebuildProgress {
            state: RebuildState::Running,
            ..RebuildProgress::default()
        };
        round.began = Instant::now();
        let outcome = self.rebuild_all(&mut round).and_then(|finished| {
            self.let_members_go()?;
            if finished {
                self.complete_index_if_possible()?;
            }
            Ok(finished)
        });
        self.rebuilding.members.lock().clear();
        let mut progress = self.rebuilding.progress.lock();
        let is_errand = round.which == Which::AtHand && progress.met_nothing();
        if is_errand {
            // Shards that another member lacks are lacking still.
            progress.set_stuck(&before);
        }
        progress.elapsed = round.elapsed();
        progress.state = match outcome {
            Ok(true) => RebuildState::Finished,
            Ok(false) | Err(_) => RebuildState::Stopped,
        };
        let found = *progress;
        if is_errand && outcome.is_ok() {
            // Nor is it rebuilt by that.
            *progress = before;
        }
        outcome.map(|_| found)
    }

    /// Makes missing copies of the index: without them the volume tolerates fewer losses than its stripes do.
    fn complete_index_if_possible(&self) -> Result<(), CommitError> {
        if self.commits.arrivals.wait() {
            match self.checkpoint() {
                // They are made once there is space, by themselves.
                Err(CommitError::NoSpace) => return Ok(()),
                done => done?,
            }
        }
        self.complete_index()
    }

    /// Goes over all that lacks shards until there is nothing that can be done. Returns false if it was
    /// stopped before.
    fn rebuild_all(&self, round: &mut Round<'_>) -> Result<bool, CommitError> {
        let mut has_freed = false;
        let mut waited = u64::MAX;
        loop {
            // A file found missing from here on may not be in this plan.
            let lacked_files = self.volume.lacks_files();
            self.volume.set_lacks_files(false);
            round.live = self.members.live();
            let needs = self.plan_rebuild(round.which)?;
            self.close_segments(&needs)?;
            let done = self.go_over(&needs, round)?;
            if lacked_files && !needs.is_empty() {
                self.volume.set_lacks_files(true);
            }
            match done {
                Passage::Stopped => return Ok(false),
                Passage::Overtaken => {
                    // Shards that failed for other members may succeed for those online now.
                    (has_freed, waited) = (false, u64::MAX);
                    continue;
                }
                Passage::Through { is_better: true } => continue,
                Passage::Through { is_better: false } => {}
            }
            let before = self.rebuild_progress();
            let waiting = before.bytes_waiting;
            // Once only: others may go on writing and removing for as long as they like.
            if waiting > 0 && !has_freed {
                has_freed = true;
                if self.reaper.free_dead()? {
                    continue;
                }
            }
            // Members with room may have shards of the same stripes already, unless they change places with others.
            if waiting == 0 || waiting >= waited || round.which == Which::AtHand {
                return Ok(true);
            }
            waited = waiting;
            match self.spread(round)? {
                Passage::Stopped => return Ok(false),
                Passage::Through { is_better: false } => {
                    self.rebuilding.progress.lock().set_stuck(&before);
                    return Ok(true);
                }
                Passage::Overtaken => (has_freed, waited) = (false, u64::MAX),
                Passage::Through { is_better: true } => self.reaper.free_dead().map(drop)?,
            }
        }
    }

    /// Carries out the plan, for as long as the members stay the same. With one more lost, other stripes may be more
    /// urgent than the rest of the plan.
    fn go_over(&self, needs: &[Need], round: &mut Round<'_>) -> Result<Passage, CommitError> {
        round.refusing.clear();
        let mut is_better = false;
        self.note_members(needs);
        self.note_round(round, needs.iter().map(Need::bytes).sum());
        for need in needs {
            if (round.gives_way)() || self.members.live() != round.live {
                return Ok(Passage::Overtaken);
            }
            let step = match self.rebuild_segment(need, round)? {
                Step::Nothing(Obstacle::Unreadable) => self.copy_readable(need.segment, round)?,
                step => step,
            };
            match step {
                Step::Done => is_better = true,
                // A segment that stays where it is lacks nothing.
                Step::Nothing(_) if !need.goals.is_empty() => self.note_needless(need.bytes()),
                Step::Nothing(obstacle) => self.note_obstacle(need, obstacle),
                Step::Needless => self.note_needless(need.bytes()),
                Step::Stopped => return Ok(Passage::Stopped),
            }
        }
        Ok(if self.members.live() == round.live {
            Passage::Through { is_better }
        } else {
            Passage::Overtaken
        })
    }

    /// Sees to it that segments that lack shards are written to no more.
    fn close_segments(&self, needs: &[Need]) -> Result<(), CommitError> {
        let mut needs = needs.iter();
        if needs.any(|need| self.volume.is_writing(need.segment)) {
            self.volume.retire_segments()?;
            self.sync()?;
        }
        Ok(())
    }

    fn rebuild_segment(&self, need: &Need, round: &mut Round<'_>) -> Result<Step, CommitError> {
        if need.is_kept_after_all(&self.members.leaving()) {
            // It lacks less than was planned, if anything.
            return Ok(Step::Done);
        }
        let joined = self.commits.arrivals.so_far();
        let mut job = match self.prepare_job(need, round)? {
            Ok(job) => job,
            Err(obstacle) => return Ok(Step::Nothing(obstacle)),
        };
        if job.targets.is_empty() {
            return Ok(Step::Needless);
        }
        if !job.missing.is_empty() {
            let segment_of = |segment| self.volume.segment(segment);
            self.records.forget_shards(&job.missing, segment_of)?;
            self.sync()?;
            job.forget_missing();
        }
        let written = self.write_job(&job, round);
        let failed = match written {
            Ok(Some(failed)) => failed,
            Ok(None) => {
                self.abandon_job(&job);
                return Ok(Step::Stopped);
            }
            Err(TargetFailed { member, source }) => {
                log::warn!(
                    "segment {}: member {member} gets no shards: {source}",
                    job.segment
                );
                round.refusing.insert(member);
                self.abandon_job(&job);
                return Ok(Step::Nothing(match source.kind() {
                    StoreErrorKind::NoSpace => Obstacle::NoRoom,
                    _ => Obstacle::Passing,
                }));
            }
        };
        if self.commits.arrivals.so_far() != joined {
            // It may be a target that came back, without the shards that had been written to it.
            self.abandon_job(&job);
            return Ok(Step::Done);
        }
        if let Some(obstacle) = self.finish_job(&job, &failed, joined)? {
            self.abandon_job(&job);
            return Ok(Step::Nothing(obstacle));
        }
        self.sync()?;
        self.stale_copies.may_verify_more();
        // Shards that cannot be had now cannot be had in the next round either.
        let is_moved = job.targets.iter().any(|target| job.is_moved(target));
        let is_better = is_moved || job.stripes.is_empty() || failed.len() < job.stripes.len();
        Ok(if is_better {
            Step::Done
        } else {
            Step::Nothing(Obstacle::Unreadable)
        })
    }

    /// Chooses where the shards of a segment go, and lists them, or says why they cannot go anywhere. Returns no
    /// targets if there is nothing to do.
    fn prepare_job(
        &self,
        need: &Need,
        round: &Round<'_>,
    ) -> Result<Result<Job, Obstacle>, CommitError> {
        let segment = need.segment;
        let Some(record) = self.volume.segment(segment) else {
            return Ok(Err(Obstacle::Passing));
        };
        if self.volume.is_writing(segment) {
            return Ok(Err(Obstacle::Passing));
        }
        // Members may have come or gone since the need was counted. So the shards to take out of the records are those
        // that the members themselves do not have.
        let Some(files) = self.volume.look_at_files(segment) else {
            return Ok(Err(Obstacle::Passing));
        };
        let Some(all) = self.catalog.stripes_in(segment)? else {
            log::warn!("segment {segment}: records of its stripes do not agree: its slots stay");
            return Ok(Err(Obstacle::Unreadable));
        };
        let is_unreadable = plan::is_unreadable(&record, &all, &files);
        let targets = self.choose_targets(need, &record, &files, is_unreadable, round);
        let is_for_all = targets.len() == need.slots.len();
        let mut job = Job {
            segment,
            record,
            targets,
            stripes: Vec::new(),
            all,
            missing: Vec::new(),
        };
        let mut lacking = BTreeSet::new();
        for &(stripe, record) in &job.all {
            let mut shards = ShardSet::default();
            for target in &job.targets {
                let Some(shard) = plan::shard_in(&job.record, &record, target.slot) else {
                    continue;
                };
                if job.is_moved(target) || !record.written.contains(shard) {
                    shards.insert(shard);
                } else if !files.hold(target.member, &record) {
                    shards.insert(shard);
                    job.missing.push(LostShard { stripe, shard });
                } else {
                    continue;
                }
                lacking.insert(target.slot);
            }
            if !shards.is_empty() {
                job.stripes.push(Lacking {
                    stripe,
                    record,
                    shards,
                });
            }
        }
        let mut targets = std::mem::take(&mut job.targets);
        let lacks_file = |target: &Target| files.len(target.member) < Some(job.record.len);
        targets.retain(|target| {
            job.is_moved(target) || lacking.contains(&target.slot) || lacks_file(target)
        });
        job.targets = targets;
        Ok(if is_for_all || !job.targets.is_empty() {
            Ok(job)
        } else if is_unreadable {
            Err(Obstacle::Unreadable)
        } else if round.which == Which::AtHand {
            Err(Obstacle::Passing)
        } else {
            Err(Obstacle::NoRoom)
        })
    }

    fn choose_targets(
        &self,
        need: &Need,
        record: &Segment,
        files: &SegmentFiles,
        is_unreadable: bool,
        round: &Round<'_>,
    ) -> Vec<Target> {
        let lacks_file = |member| files.len(member) < Some(record.len);
        let mut targets: Vec<Target> = Vec::new();
        for (&slot, &bytes) in &need.slots {
            let holder = record.slots[slot];
            let is_staying =
                |member: &MemberIndex| files.are_known_of(*member) && !need.moves.contains(&slot);
            let may_be_back = holder.is_some() && !need.moves.contains(&slot);
            let holder = holder.filter(is_staying);
            let is_refusing = |member: &MemberIndex| round.refusing.contains(member);
            let is_taken = |member: &MemberIndex| targets.iter().any(|t| t.member == *member);
            let member = match holder {
                // Nor are the remains that may still be found there overwritten.
                Some(member) if is_unreadable && lacks_file(member) => None,
                Some(member) => Some(member).filter(|member| !is_refusing(member)),
                // The shards that are gone with their member can be had from that member alone.
                None if is_unreadable && may_be_back => None,
                // It went away again: its shards wait for it.
                None if round.which == Which::AtHand => None,
                None => {
                    let mut homes = self.volume.homes_for_slot(record, bytes);
                    homes.retain(|member| !is_refusing(member) && !is_taken(member));
                    if let Some(goal) = need.goals.get(&slot) {
                        homes.retain(|member| member == goal);
                    }
                    let heir = record.slots[slot].and_then(|old| self.members.heir_of(old));
                    let heir = heir.filter(|heir| homes.contains(heir));
                    heir.or(homes.first().copied())
                }
            };
            targets.extend(member.map(|member| Target { slot, member }));
        }
        targets
    }

    /// Writes the shards, and makes them durable. Returns the stripes whose shards are unrecoverable for now, or `None`
    /// if the rebuild has to stop.
    fn write_job(
        &self,
        job: &Job,
        round: &Round<'_>,
    ) -> Result<Option<Vec<StripeId>>, TargetFailed> {
        for target in &job.targets {
            let is_in_it = |lacking: &&Lacking| {
                let shard = plan::shard_in(&job.record, &lacking.record, target.slot);
                shard.is_some_and(|shard| lacking.shards.contains(shard))
            };
            let stripes: Vec<Lacking> = job.stripes.iter().filter(is_in_it).copied().collect();
            if job.is_moved(target) {
                self.reaper.lock().reclaim_file(job.segment, target.member);
            }
            self.volume
                .make_rebuild_file(job.segment, target.member, &stripes)?;
        }
        let mut failed = Vec::new();
        let mut step = PacedStep::begin(&self.foreground);
        let mut heed = |rebuilt: Rebuilt| {
            for (stripe, error) in rebuilt.failed {
                log::debug!("stripe {stripe} is not rebuilt: {error}");
                failed.push(stripe);
            }
            self.note_written(round, rebuilt.bytes);
            let goes_on = step.rest(round.pace, rebuilt.bytes);
            step = PacedStep::begin(&self.foreground);
            if goes_on {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        let most_bytes = || round.pace.step_bytes();
        let written = self.volume.rebuild(
            job.segment,
            &job.stripes,
            &job.targets,
            &most_bytes,
            &mut heed,
        )?;
        if written.is_break() {
            return Ok(None);
        }
        let step = PacedStep::begin(&self.foreground);
        for target in &job.targets {
            self.volume.sync_rebuild_file(job.segment, target.member)?;
        }
        if step.is_beside_callers() {
            // Durable shards are noted, even if the rebuild is to stop now.
            let _ = step.rest(round.pace, 0);
        }
        Ok(Some(failed))
    }

    /// Notes in the records which shards are durable on the members now. If that would not be true, or would give up
    /// shards that may come back, it returns the obstacle.
    fn finish_job(
        &self,
        job: &Job,
        failed: &[StripeId],
        joined: u64,
    ) -> Result<Option<Obstacle>, CommitError> {
        // The lock keeps others from removing, cutting or punching anything; the count shows that no member joined.
        let mut reaper = self.reaper.lock();
        if self.commits.arrivals.so_far() != joined {
            return Ok(Some(Obstacle::Passing));
        }
        let live = self.members.live();
        let is_up = |target: &Target| live.contains(&target.member);
        let Some(record) = self.volume.segment(job.segment) else {
            return Ok(Some(Obstacle::Passing));
        };
        if !job.targets.iter().all(is_up) {
            return Ok(Some(Obstacle::Passing));
        }
        let still_there = |stripe: &&StripeId| !matches!(self.records.stripe(**stripe), Ok(None));
        let failed: BTreeSet<StripeId> = failed.iter().filter(still_there).copied().collect();
        if let Some(target) = job
            .targets
            .iter()
            .find(|target| self.gives_up(job, target, &failed))
        {
            log::warn!(
                "segment {} stays on member {}: {} stripes of it cannot be read whole, and what is left of them is there",
                job.segment,
                job.record.slots[target.slot].unwrap_or(target.member),
                failed.len()
            );
            return Ok(Some(Obstacle::Unreadable));
        }
        if job.targets.iter().any(|target| job.is_moved(target)) {
            let moved = Segment {
                slots: job.slots(),
                ..record
            };
            self.records.put_segment(job.segment, &moved)?;
            self.volume.set_slots(job.segment, moved.slots);
            let left = job.targets.iter().filter(|target| job.is_moved(target));
            for member in left.filter_map(|target| job.record.slots[target.slot]) {
                if live.contains(&member) {
                    reaper.abandon_file(self.commits.group.next(), job.segment, member);
                }
            }
        }
        self.note_shards(job, &failed)?;
        Ok(None)
    }

    /// Says whether a slot that moves leaves shards behind that could not be had, and which its member may
    /// still have: of one that cannot be made right as a whole, most may still be read.
    fn gives_up(&self, job: &Job, target: &Target, failed: &BTreeSet<StripeId>) -> bool {
        let Some(holder) = job.record.slots[target.slot].filter(|_| job.is_moved(target)) else {
            return false;
        };
        // The member is not expected back.
        let is_removed = self.members.leaving().contains(&holder)
            && self.members.away().iter().any(|(away, _)| *away == holder);
        let has_shard = |lacking: &Lacking| {
            let shard = plan::shard_in(&job.record, &lacking.record, target.slot);
            shard.is_some_and(|shard| lacking.record.written.contains(shard))
        };
        let mut left = job
            .stripes
            .iter()
            .filter(|lacking| failed.contains(&lacking.stripe));
        !is_removed && left.any(has_shard)
    }

    /// Notes which shards lie where they should, and gives back what died since the job began.
    fn note_shards(&self, job: &Job, failed: &BTreeSet<StripeId>) -> Result<(), CommitError> {
        let lacking = job.stripes.iter();
        let rebuilt: Vec<(StripeId, ShardSet)> = lacking
            .clone()
            .filter(|lacking| !failed.contains(&lacking.stripe))
            .map(|lacking| (lacking.stripe, lacking.shards))
            .collect();
        let segment_of = |segment| self.volume.segment(segment);
        self.records.restore_shards(&rebuilt, segment_of)?;
        // The shards that a slot does not hold any more because it moved.
        let given_up = lacking
            .filter(|lacking| failed.contains(&lacking.stripe))
            .flat_map(|lacking| {
                let stripe = lacking.stripe;
                let shards = lacking.shards.iter();
                shards.map(move |shard| LostShard { stripe, shard })
            });
        self.records
            .forget_shards(&given_up.collect::<Vec<_>>(), segment_of)?;
        // In a new file all of them have room; else only what was written has.
        let written: BTreeSet<StripeId> = job.stripes.iter().map(|l| l.stripe).collect();
        let is_new = job.newcomers().next().is_some();
        let has_room = |stripe: &StripeId| is_new || written.contains(stripe);
        for (stripe, record) in job.all.iter().filter(|(stripe, _)| has_room(stripe)) {
            if self.records.stripe(*stripe)?.is_none() {
                self.volume.free_rebuilt(record, &job.targets);
            }
        }
        Ok(())
    }

    /// Leaves a segment as it was.
    fn abandon_job(&self, job: &Job) {
        for member in job.newcomers() {
            self.volume.drop_rebuild_file(job.segment, member);
        }
    }
}
