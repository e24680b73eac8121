//! Stripes that hold bytes of files of another class: such files were given another code, or members were too few for theirs
//! when the bytes were written.
//!
//! An order in the index asks for their rewriting, and goes once nothing is left that can be done. So the work goes on after
//! a crash. Stripes that cannot be read are counted then, and tried again when members come back or with the next order.
//! An order waits for members that are away or drained only if the others are too few for a code. A stripe that files of several
//! classes share waits for the code of each, because all its bytes move at once: none may tolerate fewer losses than before.
//! An order ends without stripes whose code needs more than the volume has.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use super::look::{Found, Look, Misplaced};
use super::outcome::SegmentOutcome;
use super::rewriting::{MembersThen, NoRoom, RewriteStatus, Vain};
use super::round::Round;
use super::{PlanOutcome, Rebuild};
use crate::format::record::{Backref, MAX_STRIPE_BYTES, Segment};
use crate::format::{MemberIndex, Record, SegmentId, StripeId, key};
use crate::maintenance::rebuild_status::Obstacle;
use crate::maintenance::room::has_room;
use crate::transaction::CommitError;

/// The looks in turn that may move nothing although all can be read, because others change the files at that moment.
const MOST_FUTILE: u32 = 3;

/// The outcome if nothing could be done.
const NOTHING: PlanOutcome = PlanOutcome::Complete { improved: false };

/// Whether another look would move some of the stripes that one left.
enum Prospect {
    /// None can be read.
    None,
    /// Others changed the files of some that can be read, in so many looks in turn that the order ends.
    Contended,
    Some,
    Stopped,
}

/// Says that some stripes keep the code of the volume.
fn note_unhoused(stripes: u64) {
    if stripes > 0 {
        tracing::warn!(
            "{stripes} stripes keep the code that they have: the volume has too few members for the codes of their files"
        );
    }
}

impl Rebuild {
    /// Returns whether files are to be rewritten because bytes of them have another code than theirs.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn awaits_rewrite(&self) -> Result<bool, CommitError> {
        Ok(self.catalog.rewrite_order()?.is_some())
    }

    /// Returns the state of the rewriting of files whose bytes have another code than theirs.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn rewrite_status(&self) -> Result<RewriteStatus, CommitError> {
        let mut status = RewriteStatus {
            stripes_left: self.catalog.left_by_rewrite()?,
            ..RewriteStatus::default()
        };
        let Some(order) = self.catalog.rewrite_order()? else {
            return Ok(status);
        };
        status.is_ordered = true;
        let is_vain = self.is_vain()?;
        status.waits_for_room = !is_vain && self.rewriting.lock().no_room_of(order).is_some();
        let membership = self.members.membership();
        let away = membership.away().into_iter().map(|(member, _)| member);
        let mut awaited: Vec<_> = away.collect();
        let draining = membership.draining();
        if is_vain {
            status.lacks_members = true;
            let online = draining
                .iter()
                .filter(|member| membership.is_live(**member));
            awaited.extend(online);
            status.awaited = awaited;
        } else if !status.waits_for_room && draining.is_empty() {
            // No rebuild begins by itself before that would do what can be done without them.
            let given_up = membership.given_up();
            awaited.retain(|member| !given_up.contains(member));
            status.awaited = awaited;
        }
        Ok(status)
    }

    /// Returns whether there may be something to rewrite now. Stripes that an order left count once other members are online.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn has_rewriting_to_do(&self) -> Result<bool, CommitError> {
        match self.catalog.rewrite_order()? {
            Some(order) => Ok(!self.is_vain()? && self.lacking_still(order).is_none()),
            None => self.has_left_to_try(),
        }
    }

    /// Returns whether stripes that an order left are to be tried again.
    fn has_left_to_try(&self) -> Result<bool, CommitError> {
        self.note_online();
        let is_tried = self.rewriting.lock().left_with.is_some();
        Ok(!is_tried && self.catalog.left_by_rewrite()? > 0)
    }

    /// Returns whether a look for stripes to move found none with these members, and would again.
    fn is_vain(&self) -> Result<bool, CommitError> {
        let (given, members) = (self.catalog.rewrites_given(), self.members_now());
        let vain = self.rewriting.lock().vain_with(given, &members);
        match vain {
            Some(waiting) => self.catalog.has_backref(waiting),
            None => Ok(false),
        }
    }

    /// Returns the members that count for a look.
    pub(super) fn members_now(&self) -> MembersThen {
        let membership = self.members.membership();
        MembersThen {
            epoch: membership.epoch(),
            live: membership.live(),
            homes: membership.staying(),
            count: membership.count(),
        }
    }

    /// Notes which members are online. Stripes that could not be read are tried again once one came back.
    pub(in crate::maintenance) fn note_online(&self) {
        let mut rewriting = self.rewriting.lock();
        let live = self.members.membership().live();
        let has_others = |with: &[MemberIndex]| live.iter().any(|member| !with.contains(member));
        rewriting.left_with.take_if(|with| has_others(with));
        if let Some(with) = &mut rewriting.left_with {
            with.retain(|member| live.contains(member));
        }
    }

    /// Moves bytes of files that lie in stripes of other classes to new stripes.
    pub(super) fn rewrite_misplaced(&self, round: &Round<'_>) -> Result<PlanOutcome, CommitError> {
        self.note_online();
        let Some(order) = self.catalog.rewrite_order()? else {
            let improved = self.has_left_to_try()?;
            if improved {
                self.catalog.order_rewrite()?;
            }
            return Ok(PlanOutcome::Complete { improved });
        };
        self.rewriting.lock().begin(order);
        if self.is_vain()? {
            return Ok(NOTHING);
        }
        if let Some(bytes) = self.lacking_still(order) {
            self.note_no_room(bytes);
            return Ok(NOTHING);
        }
        // Before the look: it sees what these are about.
        let given = self.catalog.rewrites_given();
        // All bytes that were written before the order lie in stripes with records then.
        self.stripes.writer().retire_segments()?;
        self.commits.sync()?;
        let members = self.members_now();
        if members.live != round.online {
            return Ok(PlanOutcome::Outdated);
        }
        let mut found = match self.look(&members, round)? {
            Look::Done(found) => found,
            Look::Broken(outcome) => return Ok(outcome),
        };
        found.given = given;
        if found.movable.is_empty() {
            return self.conclude(order, &members, &found, 0);
        }
        self.move_misplaced(order, &members, found, round)
    }

    /// Ends an order that left so many stripes, or notes that it waits for other members. Does neither if members went or
    /// came since the look began: it may have missed what they have.
    fn conclude(
        &self,
        order: u64,
        members: &MembersThen,
        found: &Found,
        left: u64,
    ) -> Result<PlanOutcome, CommitError> {
        if self.members_now() != *members {
            return Ok(PlanOutcome::Outdated);
        }
        if found.is_passing {
            return Ok(NOTHING);
        }
        if let Some(waiting) = found.waiting {
            self.rewriting.lock().vain = Some(Vain {
                given: found.given,
                members: members.clone(),
                waiting,
            });
        } else {
            self.finish_rewrite(order, members, left)?;
            note_unhoused(found.unhoused);
        }
        Ok(NOTHING)
    }

    /// Ends an order that left so many stripes with these members.
    fn finish_rewrite(
        &self,
        order: u64,
        members: &MembersThen,
        left: u64,
    ) -> Result<(), CommitError> {
        // Records that were found may be in memory alone. The order must not go before them.
        self.commits.sync()?;
        if !self.catalog.finish_rewrite(order, left)? {
            return Ok(());
        }
        let left_with = (left > 0).then(|| members.live.clone());
        self.rewriting.lock().end(left_with);
        self.commits.sync()?;
        if left > 0 {
            tracing::warn!(
                "{left} stripes were not rewritten with the codes of their files, because they cannot be read"
            );
        }
        Ok(())
    }

    fn move_misplaced(
        &self,
        order: u64,
        members: &MembersThen,
        mut found: Found,
        round: &Round<'_>,
    ) -> Result<PlanOutcome, CommitError> {
        let waiting = self.status.progress();
        let bytes = found.movable.iter().map(|it| it.bytes).sum();
        self.status.begin_plan(bytes, round.elapsed());
        self.status.update(|progress| progress.set_stuck(&waiting));
        let mut improved = false;
        let mut no_room = NoRoom::default();
        let mut left = Some(Vec::new());
        for misplaced in std::mem::take(&mut found.movable) {
            let Misplaced {
                segment,
                stripes,
                classes,
                bytes,
            } = misplaced;
            // The look was for these members: others may be too few for what it found.
            if (round.gives_way)() || self.members_now() != *members {
                return Ok(PlanOutcome::Outdated);
            }
            let Some(record) = self.stripes.segments().record(segment) else {
                continue;
            };
            let step = self.copy_out.step();
            let mut stripes = stripes;
            self.look_again(segment, &record, members, &mut found, &mut stripes)?;
            if !step.rest(round.pace, 0) {
                return Ok(PlanOutcome::Stopped);
            }
            match self.copy_out.rewrite_some(segment, &stripes, round)? {
                SegmentOutcome::Improved => improved = true,
                SegmentOutcome::Blocked(Obstacle::NoRoom) => {
                    self.note_no_room(bytes);
                    no_room.add(&classes, bytes);
                    left = None;
                }
                SegmentOutcome::Blocked(Obstacle::LessProtected) => {
                    // Codes changed after the look right before, or a member went.
                    self.status.add_blocked(&[bytes], Obstacle::LessProtected);
                    found.waiting = found.waiting.or(stripes.first().copied());
                }
                SegmentOutcome::Blocked(obstacle) => {
                    self.status.add_blocked(&[bytes], obstacle);
                    left = left.filter(|_| obstacle == Obstacle::Unreadable);
                    if let Some(left) = &mut left {
                        left.extend(&stripes);
                    }
                }
                SegmentOutcome::Needless => self.status.drop_left(bytes),
                SegmentOutcome::Stopped => return Ok(PlanOutcome::Stopped),
            }
        }
        if improved {
            // The next look finds what the room suffices for that was freed meanwhile.
            self.rewriting.lock().note_improved();
            return Ok(PlanOutcome::Complete { improved });
        }
        if no_room.bytes > 0 {
            no_room.homes = (members.homes.clone(), members.count);
            self.measure_room(&mut no_room);
            self.rewriting.lock().no_room = Some(no_room);
        }
        let Some(left) = left else {
            return Ok(NOTHING);
        };
        let left = self.still_named(left)?;
        match self.prospect_of(&left, round)? {
            // The stripes that wait for members keep the order. The others need none, and the next look tries them.
            Prospect::Contended if found.waiting.is_some() => Ok(NOTHING),
            Prospect::None | Prospect::Contended => {
                self.conclude(order, members, &found, left.len() as u64)
            }
            Prospect::Some => Ok(NOTHING),
            Prospect::Stopped => Ok(PlanOutcome::Stopped),
        }
    }

    /// Leaves out stripes of a segment that may not move any more. Their files may have got other codes since the look, for
    /// which members are too few.
    fn look_again(
        &self,
        segment: SegmentId,
        record: &Segment,
        members: &MembersThen,
        found: &mut Found,
        stripes: &mut Vec<StripeId>,
    ) -> Result<(), CommitError> {
        let mut now = Found::default();
        self.look_into(segment, record, members, &mut now)?;
        found.is_passing |= now.is_passing;
        found.waiting = found.waiting.or(now.waiting);
        let still: BTreeSet<_> = now.movable.into_iter().flat_map(|it| it.stripes).collect();
        stripes.retain(|stripe| still.contains(stripe));
        Ok(())
    }

    /// Notes the room that there is for the classes that lack some.
    fn measure_room(&self, no_room: &mut NoRoom) {
        no_room.was_full = self.is_full();
        for (class, room) in &mut no_room.rooms {
            *room = self.room_for_class(*class).0;
        }
    }

    /// Returns how many bytes of shards of new stripes found no room for an order, if there is no more than then.
    fn lacking_still(&self, order: u64) -> Option<u64> {
        let no_room = self.rewriting.lock().no_room_of(order)?;
        let now = self.members_now();
        if no_room.homes != (now.homes, now.count) {
            return None;
        }
        let has_more = |(class, then): (&_, &u64)| {
            let (now, stripe) = self.room_for_class(*class);
            now >= then.saturating_add(stripe)
        };
        let goes_on = !self.is_full() && (no_room.was_full || no_room.rooms.iter().any(has_more));
        (!goes_on).then_some(no_room.bytes)
    }

    /// Returns whether the volume has no room for another stripe of its own code.
    fn is_full(&self) -> bool {
        !has_room(
            &self.stripes,
            self.stripes.writer().stripe_capacity() as u64,
        )
    }

    /// Reports that so many bytes of shards of new stripes find no room. Some for a shard of one is enough to go on.
    fn note_no_room(&self, bytes: u64) {
        let least = bytes.min(self.stripes.classes().volume().step());
        self.status
            .add_blocked(&[least, bytes - least], Obstacle::NoRoom);
    }

    /// Returns those of some stripes of which files still have bytes.
    fn still_named(&self, stripes: Vec<StripeId>) -> Result<Vec<StripeId>, CommitError> {
        let mut named = Vec::new();
        for stripe in stripes {
            if self.catalog.has_backref(stripe)? {
                named.push(stripe);
            }
        }
        Ok(named)
    }

    /// Returns whether another look would move some of these stripes.
    fn prospect_of(
        &self,
        stripes: &[StripeId],
        round: &Round<'_>,
    ) -> Result<Prospect, CommitError> {
        for stripe in stripes {
            let step = self.copy_out.step();
            let is_readable = self.is_readable(*stripe)?;
            if !step.rest(round.pace, 0) {
                return Ok(Prospect::Stopped);
            }
            if is_readable {
                let is_over = self.rewriting.lock().note_futile() >= MOST_FUTILE;
                return Ok(if is_over {
                    Prospect::Contended
                } else {
                    Prospect::Some
                });
            }
        }
        Ok(Prospect::None)
    }

    /// Returns whether all bytes of a stripe that files have can be read.
    fn is_readable(&self, stripe: StripeId) -> Result<bool, CommitError> {
        let mut runs = Vec::new();
        let (from, end) = key::backrefs(stripe);
        self.catalog.visit(&from, &end, |_, value| {
            runs.push(Backref::decode(value)?);
            Ok::<_, CommitError>(ControlFlow::Continue(()))
        })?;
        let most = u64::from(MAX_STRIPE_BYTES);
        let can_be_read = |run: &Backref| {
            // The record may be damaged.
            let len = usize::try_from(run.len).unwrap_or(usize::MAX);
            let mut bytes = vec![0; if run.len > most { 0 } else { len }];
            let reader = self.stripes.reader();
            run.len <= most && reader.read(stripe, run.stripe_offset, &mut bytes).is_ok()
        };
        Ok(runs.iter().all(can_be_read))
    }
}
