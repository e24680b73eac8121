//! Copies of the readable stripes of a segment that has unreadable ones, or records that do not agree.
//!
//! The slots of such a segment stay as they are. The live bytes of its readable stripes are copied into new ones on the
//! online members, as compaction does, and the old ones die. The others stay where they are as long as something refers
//! to them. Stripes that have another code than new ones are rewritten in the same way. So are those of a directory that
//! keep a draining member although others are too few for their code. So are those that were written with more parity, and
//! whose segments have more slots than there are members for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::outcome::SegmentOutcome;
use super::round::Round;
use crate::format::record::{Segment, Stripe};
use crate::format::{MemberIndex, SegmentId, ShardIndex, StripeClass, StripeId};
use crate::maintenance::InodeLocks;
use crate::maintenance::compaction::{Blocked, Compaction, Floor};
use crate::maintenance::pace::PacedStep;
use crate::maintenance::reaper::Reaper;
use crate::maintenance::rebuild_status::Obstacle;
use crate::maintenance::rebuild_status::RebuildStatus;
use crate::maintenance::room::has_room;
use crate::membership::Members;
use crate::stripes::{ClassCode, Stripes, Tally, member_of};
use crate::transaction::CommitError;
use crate::transaction::catalog::Catalog;
use crate::transaction::foreground::Foreground;

/// Stripe that is worth copying.
#[derive(Clone, Copy, Debug)]
struct Copied {
    stripe: StripeId,
    payload_bytes: usize,
    /// Bytes of all its shards.
    shard_bytes: u64,
    /// Bytes that count as progress: those of the shards that it lacks, or of all shards of the new stripe.
    counted_bytes: u64,
}

/// The outcome of copying some stripes.
enum PackOutcome {
    /// As many bytes as count for those that were copied.
    Moved(u64),
    /// Nothing was copied, because it would be less protected with the members or the room that there are.
    Waits(Obstacle),
    /// There is no room for another stripe.
    NoRoom,
    /// The work is to stop.
    Stopped,
}

/// Copying of readable stripes out of segments that cannot be rebuilt.
pub(super) struct CopyOut {
    pub(super) members: Arc<Members>,
    pub(super) stripes: Arc<Stripes>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) foreground: Arc<Foreground>,
    pub(super) status: Arc<RebuildStatus>,
    pub(super) compaction: Arc<Compaction>,
    pub(super) reaper: Arc<Reaper>,
}

impl CopyOut {
    /// Begins a step of work that goes on beside callers.
    pub(super) fn step(&self) -> PacedStep<'_> {
        PacedStep::begin(&self.foreground)
    }

    /// Copies the readable stripes of a segment into new ones, if they lack shards that the new ones would have. A stripe stays
    /// where it is if it would survive more losses there once the members are back that are waited for.
    pub(super) fn copy(
        &self,
        segment: SegmentId,
        round: &Round<'_>,
    ) -> Result<SegmentOutcome, CommitError> {
        let endangered = self.endangered_in(segment)?;
        let copied = self.copy_stripes(&endangered, Floor::Written, &|_| true, round)?;
        Ok(match copied {
            // Those that cannot be read keep the segment where it is.
            SegmentOutcome::Blocked(Obstacle::LessProtected) => {
                SegmentOutcome::Blocked(Obstacle::Unreadable)
            }
            outcome => outcome,
        })
    }

    /// Returns whether a segment keeps a draining member from leaving, because the others are too few for the code of its
    /// directory. New stripes have that of the volume then.
    pub(super) fn keeps_draining(&self, segment: SegmentId) -> bool {
        let Some(record) = self.stripes.segments().record(segment) else {
            return false;
        };
        let draining = self.members.membership().draining();
        let mut holders = record.slots.iter().flatten();
        if record.class == StripeClass::VOLUME || !holders.any(|it| draining.contains(it)) {
            return false;
        }
        let code = self.code_at_present(record.class);
        Arc::ptr_eq(&code, self.stripes.classes().volume())
    }

    /// Returns the code of new stripes for the bytes of a segment of this class. They have that of the volume while members are
    /// too few for that of a directory.
    fn code_at_present(&self, class: StripeClass) -> Arc<ClassCode> {
        let classes = self.stripes.classes();
        let code = classes.get(class);
        let code = code.unwrap_or_else(|| Arc::clone(classes.volume()));
        self.stripes.writer().code_at_present(&code)
    }

    /// Returns whether a segment has more slots than a new one of the volume, because its stripes were written with more parity.
    /// Each stripe uses others of them. So a slot may find no member, although there are enough for new stripes.
    pub(super) fn has_surplus_slots(&self, segment: SegmentId) -> bool {
        let record = self.stripes.segments().record(segment);
        let total = self.members.shape().geometry().total_shards();
        record.is_some_and(|it| it.class == StripeClass::VOLUME && it.slots.len() > total)
    }

    /// Rewrites the stripes of a segment with surplus slots that could not be rebuilt because of an obstacle. If members are too
    /// few for whole new stripes, copies those that would survive more losses. Shards of absent members that are waited for
    /// count as theirs. Copies none while an absent member keeps its shards.
    pub(super) fn rewrite_with_fewer_slots(
        &self,
        segment: SegmentId,
        obstacle: Obstacle,
        round: &Round<'_>,
    ) -> Result<SegmentOutcome, CommitError> {
        let membership = self.members.membership();
        let total = self.members.shape().geometry().total_shards();
        if membership.staying().len() >= total {
            return self.rewrite_instead(segment, obstacle, round);
        }
        let mut away = membership.away().into_iter();
        if away.any(|(member, _)| round.spares(member)) {
            return Ok(SegmentOutcome::Blocked(obstacle));
        }
        Ok(match self.copy(segment, round)? {
            SegmentOutcome::Blocked(_) => SegmentOutcome::Blocked(obstacle),
            outcome => outcome,
        })
    }

    /// Rewrites all stripes of a segment with the code of new ones.
    pub(super) fn rewrite(
        &self,
        segment: SegmentId,
        round: &Round<'_>,
    ) -> Result<SegmentOutcome, CommitError> {
        let all = self.all_in(segment)?;
        if all.is_empty() {
            self.reaper.free_dead()?;
            return Ok(SegmentOutcome::Needless);
        }
        self.copy_stripes(&all, Floor::Written, &|_| true, round)
    }

    /// Rewrites all stripes of a segment that could not be rebuilt because of an obstacle. That stands where nothing could be
    /// rewritten, unless room is lacking. Stripes may be dead that a reader keeps.
    pub(super) fn rewrite_instead(
        &self,
        segment: SegmentId,
        obstacle: Obstacle,
        round: &Round<'_>,
    ) -> Result<SegmentOutcome, CommitError> {
        Ok(match self.rewrite(segment, round)? {
            SegmentOutcome::Needless if self.stripes.segments().record(segment).is_none() => {
                SegmentOutcome::Improved
            }
            SegmentOutcome::Needless | SegmentOutcome::Blocked(Obstacle::Unreadable) => {
                SegmentOutcome::Blocked(obstacle)
            }
            outcome => outcome,
        })
    }

    /// Rewrites some stripes of a segment with the codes of the files in them. Bytes stay where they are if members have gone
    /// or codes have changed so that a shard of their new stripe would have no member. The old one may have all of its shards
    /// once absent members are back.
    pub(super) fn rewrite_some(
        &self,
        segment: SegmentId,
        wanted: &[StripeId],
        round: &Round<'_>,
    ) -> Result<SegmentOutcome, CommitError> {
        let some = self.some_in(segment, wanted)?;
        if some.is_empty() {
            return Ok(SegmentOutcome::Needless);
        }
        self.copy_stripes(&some, Floor::Written, &|code| self.has_homes(code), round)
    }

    /// Returns whether there is a member for each shard of a new stripe. Without that many, it has the code of the volume.
    fn has_homes(&self, code: &ClassCode) -> bool {
        let shards = |code: &ClassCode| code.geometry().total_shards();
        let least = shards(code).min(shards(self.stripes.classes().volume()));
        self.members.membership().staying().len() >= least
    }

    /// Returns how many bytes are written if some stripes of a segment are rewritten.
    pub(super) fn bytes_of_some(
        &self,
        segment: SegmentId,
        wanted: &[StripeId],
    ) -> Result<u64, CommitError> {
        let some = self.some_in(segment, wanted)?;
        Ok(some.iter().map(|found| found.counted_bytes).sum())
    }

    /// Returns those of some stripes of a segment, in disk order, that something refers to.
    fn some_in(&self, segment: SegmentId, wanted: &[StripeId]) -> Result<Vec<Copied>, CommitError> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let wanted: BTreeSet<StripeId> = wanted.iter().copied().collect();
        let mut all = self.all_in(segment)?;
        all.retain(|found| wanted.contains(&found.stripe));
        Ok(all)
    }

    /// Copies stripes that fit into one new one, or one that needs several. What cannot be read stays.
    fn move_pack(
        &self,
        stripes: &[Copied],
        (locks, floor): (&dyn InodeLocks, Floor),
        may_write: &dyn Fn(&ClassCode) -> bool,
        blocked: &mut Blocked,
        round: &Round<'_>,
    ) -> Result<PackOutcome, CommitError> {
        let capacity = self.stripes.writer().stripe_capacity();
        let mut left: Vec<Copied> = stripes.to_vec();
        let mut counted = 0;
        let payload: usize = stripes.iter().map(|found| found.payload_bytes).sum();
        // One more, because runs do not fill stripes to the end.
        for _ in 0..=payload.div_ceil(self.stripes.classes().least_capacity()) {
            // The room kept back is not for this, because copying frees no space on the full members.
            if !has_room(&self.stripes, capacity as u64) {
                return Ok(without_room(counted));
            }
            let step = self.step();
            let victims = left.iter().map(|found| found.stripe).collect();
            let moves = match self.compaction.move_where_possible(
                victims,
                locks,
                (floor, may_write),
                blocked,
            ) {
                Err(CommitError::NoSpace) => return Ok(without_room(counted)),
                moves => moves?,
            };
            let mut written = 0;
            for found in std::mem::take(&mut left) {
                if self.catalog.has_backref(found.stripe)? {
                    left.push(found);
                } else {
                    counted += found.counted_bytes;
                    written += found.shard_bytes;
                }
            }
            if !step.rest(round.pace, written) {
                return Ok(PackOutcome::Stopped);
            }
            if counted == 0 && !moves.any && !moves.waiting.is_empty() {
                return Ok(PackOutcome::Waits(if moves.lack_room() {
                    Obstacle::NoRoom
                } else {
                    Obstacle::LessProtected
                }));
            }
            if !moves.any || left.is_empty() {
                break;
            }
        }
        Ok(PackOutcome::Moved(counted))
    }

    /// Returns how many bytes are written if all stripes of a segment are rewritten.
    pub(super) fn rewritten_bytes(&self, segment: SegmentId) -> Result<u64, CommitError> {
        let all = self.all_in(segment)?;
        Ok(all.iter().map(|found| found.counted_bytes).sum())
    }

    /// Copies stripes into new ones, in their order.
    fn copy_stripes(
        &self,
        stripes: &[Copied],
        floor: Floor,
        may_write: &dyn Fn(&ClassCode) -> bool,
        round: &Round<'_>,
    ) -> Result<SegmentOutcome, CommitError> {
        let mut obstacle = Obstacle::Unreadable;
        let Some(locks) = round.locks else {
            return Ok(SegmentOutcome::Blocked(obstacle));
        };
        let capacity = self.stripes.writer().stripe_capacity();
        let mut copied = false;
        let mut blocked = Blocked::default();
        for stripes in packs(stripes, capacity) {
            match self.move_pack(stripes, (locks, floor), may_write, &mut blocked, round)? {
                PackOutcome::Moved(bytes) => {
                    copied |= bytes > 0;
                    self.status.add_written(bytes, 0, round.elapsed());
                }
                // Other stripes need less, or have other codes.
                PackOutcome::Waits(found) if obstacle != Obstacle::NoRoom => obstacle = found,
                PackOutcome::Waits(_) => {}
                PackOutcome::NoRoom if copied => break,
                PackOutcome::NoRoom => return Ok(SegmentOutcome::Blocked(Obstacle::NoRoom)),
                PackOutcome::Stopped => return Ok(SegmentOutcome::Stopped),
            }
        }
        if !copied {
            return Ok(SegmentOutcome::Blocked(obstacle));
        }
        // The next plan must not count the old stripes.
        self.reaper.free_dead()?;
        Ok(SegmentOutcome::Improved)
    }

    /// Returns the stripes of a segment that something refers to, in disk order.
    fn all_in(&self, segment: SegmentId) -> Result<Vec<Copied>, CommitError> {
        let Some(record) = self.stripes.segments().record(segment) else {
            return Ok(Vec::new());
        };
        let geometry = self.code_at_present(record.class).geometry();
        let mut all = Vec::new();
        for (stripe, found) in self.catalog.listed_in(segment)?.stripes {
            if self.stripes.writer().is_busy(stripe) || !self.catalog.has_backref(stripe)? {
                continue;
            }
            let payload_bytes = found.payload_len as usize;
            let shard = payload_bytes.div_ceil(geometry.data_shards()) as u64;
            all.push(Copied {
                stripe,
                payload_bytes,
                shard_bytes: u64::from(found.height) * record.total_shards() as u64,
                counted_bytes: shard * geometry.total_shards() as u64,
            });
        }
        Ok(all)
    }

    /// Returns the stripes of a segment that something refers to and that tolerate fewer losses than new ones would,
    /// the worst first.
    fn endangered_in(&self, segment: SegmentId) -> Result<Vec<Copied>, CommitError> {
        let found = self.stripes.inventory().files_of(segment);
        let (Some(record), Some(files)) = (self.stripes.segments().record(segment), found) else {
            return Ok(Vec::new());
        };
        let draining = self.members.membership().draining();
        let online = self.members.membership().live().into_iter();
        let homes = online.filter(|member| !draining.contains(member)).count();
        let code = self.code_at_present(record.class);
        let vacant = code.geometry().total_shards().saturating_sub(homes);
        let attainable = code.survival().after(vacant);
        let mut endangered = Vec::new();
        // A stripe that reads serve is copied even where the records of others do not agree with it.
        let stripes: BTreeMap<StripeId, Stripe> = self
            .catalog
            .listed_in(segment)?
            .stripes
            .into_iter()
            .collect();
        for (id, stripe) in stripes {
            let tally = |counts: &dyn Fn(MemberIndex) -> bool| tally_of(&record, &stripe, counts);
            let online = tally(&|member| files.hold(member, &stripe));
            let staying =
                tally(&|member| files.hold(member, &stripe) && !draining.contains(&member));
            let is_worth_it =
                online.losses_tolerated() >= 0 && staying.losses_tolerated() < attainable;
            if is_worth_it
                && !self.stripes.writer().is_busy(id)
                && self.catalog.has_backref(id)?
                // Its files may have other codes by now.
                && staying.losses_tolerated() < self.compaction.attainable_for(id)?
            {
                let lacking = staying.existing.saturating_sub(staying.present) as u64;
                let height = u64::from(stripe.height);
                let found = Copied {
                    stripe: id,
                    payload_bytes: stripe.payload_len as usize,
                    shard_bytes: staying.existing as u64 * height,
                    counted_bytes: lacking * height,
                };
                endangered.push((staying.losses_tolerated(), found));
            }
        }
        endangered.sort_by_key(|(tolerated, _)| *tolerated);
        Ok(endangered.into_iter().map(|(_, found)| found).collect())
    }
}

/// Returns the outcome of a pack of which so much was copied before there was no room.
fn without_room(counted: u64) -> PackOutcome {
    match counted {
        0 => PackOutcome::NoRoom,
        _ => PackOutcome::Moved(counted),
    }
}

fn tally_of(segment: &Segment, stripe: &Stripe, counts: &dyn Fn(MemberIndex) -> bool) -> Tally {
    let is_there = |shard: ShardIndex| {
        stripe.written.contains(shard) && member_of(segment, stripe, shard).is_some_and(counts)
    };
    Tally::of(segment, stripe, is_there)
}

/// Divides stripes into groups of which each fits into one new stripe.
fn packs(stripes: &[Copied], capacity: usize) -> Vec<&[Copied]> {
    let mut packs = Vec::new();
    let (mut first, mut bytes) = (0, 0);
    for (at, found) in stripes.iter().enumerate() {
        if at > first && bytes + found.payload_bytes > capacity {
            packs.push(&stripes[first..at]);
            (first, bytes) = (at, 0);
        }
        bytes += found.payload_bytes;
    }
    if first < stripes.len() {
        packs.push(&stripes[first..]);
    }
    packs
}

#[cfg(test)]
mod tests;
