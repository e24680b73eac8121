//! Stripes that hold bytes of files of another class: such files were given another code, or members were too few for theirs
//! when the bytes were written.
//!
//! An order in the index asks for their rewriting, and goes once nothing is left that can be done. So the work goes on after
//! a crash. Stripes that cannot be read are counted then, and tried again when members come back or with the next order.
//! An order waits for members that are away or drained. It ends without stripes whose code needs more than the volume has.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::outcome::SegmentOutcome;
use super::rewriting::{Present, RewriteStatus};
use super::round::Round;
use super::{PlanOutcome, Rebuild};
use crate::format::record::{Backref, MAX_STRIPE_BYTES};
use crate::format::{Ino, Record, SegmentId, StripeClass, StripeId, key};
use crate::maintenance::rebuild_status::Obstacle;
use crate::maintenance::room::has_room;
use crate::transaction::CommitError;

/// The stripes of a segment with bytes of files of other classes, and how many bytes are written for them.
type Misplaced = (SegmentId, Vec<StripeId>, u64);

/// The looks in turn that may move nothing although all can be read, because others change the files at that moment.
const MOST_FUTILE: u32 = 3;

/// Whether members suffice for the class that a stripe should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Homes {
    Suffice,
    /// They would if none were drained.
    Lack,
    /// The volume has too few.
    Never,
}

/// The stripes with bytes of files of other classes.
#[derive(Debug, Default)]
struct Found {
    movable: Vec<Misplaced>,
    /// Set if others wait for more members.
    waits_for_members: bool,
    /// The number of others whose class the volume has too few members for. They stay as they are.
    unhoused: u64,
    /// Set if others are being written.
    is_passing: bool,
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
        let order = self.catalog.rewrite_order()?;
        let is_away = !self.members.membership().away().is_empty();
        let waits_for_members = order.is_some_and(|order| is_away || self.is_vain(order));
        Ok(RewriteStatus {
            is_ordered: order.is_some(),
            waits_for_members,
            waits_for_room: order.is_some()
                && !waits_for_members
                && self.rewriting.lock().no_room.is_some(),
            stripes_left: self.catalog.left_by_rewrite()?,
        })
    }

    /// Returns whether there may be something to rewrite now. Stripes that an order left count once other members are online.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    pub fn has_rewriting_to_do(&self) -> Result<bool, CommitError> {
        if let Some(order) = self.catalog.rewrite_order()? {
            return Ok(!self.is_vain(order));
        }
        self.note_online();
        let is_tried = self.rewriting.lock().left_with.is_some();
        Ok(!is_tried && self.catalog.left_by_rewrite()? > 0)
    }

    /// Returns whether a look for stripes to move found none for this order and these members.
    fn is_vain(&self, order: u64) -> bool {
        let tried = (order, self.present());
        self.rewriting.lock().vain.as_ref() == Some(&tried)
    }

    /// Returns the members that take part, and how many the volume has: one that is drained leaves.
    fn present(&self) -> Present {
        let membership = self.members.membership();
        Present {
            staying: membership.staying(),
            count: membership.count(),
        }
    }

    /// Notes which members are online. Stripes that could not be read are tried again once one came back.
    pub(in crate::maintenance) fn note_online(&self) {
        let mut rewriting = self.rewriting.lock();
        let live = self.members.membership().live();
        rewriting.left_with.take_if(|with| *with != live);
    }

    /// Moves bytes of files that lie in stripes of other classes to new stripes.
    pub(super) fn rewrite_misplaced(&self, round: &Round<'_>) -> Result<PlanOutcome, CommitError> {
        let nothing = PlanOutcome::Complete { improved: false };
        // A new stripe would tolerate less without a home for each of its shards.
        if !self.has_rewriting_to_do()? || !self.members.membership().away().is_empty() {
            return Ok(nothing);
        }
        let Some(order) = self.catalog.rewrite_order()? else {
            self.catalog.order_rewrite()?;
            return Ok(PlanOutcome::Complete { improved: true });
        };
        if self.still_lacks_room(order) {
            return Ok(nothing);
        }
        let with = self.present();
        // All bytes that were written before the order lie in stripes with records then.
        self.stripes.writer().retire_segments()?;
        self.commits.sync()?;
        let found = self.misplaced()?;
        if !found.movable.is_empty() {
            return self.move_misplaced(order, found, round);
        }
        if found.waits_for_members && !found.is_passing {
            self.rewriting.lock().vain = Some((order, with));
        } else if !found.is_passing {
            self.finish_rewrite(order, 0)?;
            note_unhoused(found.unhoused);
        }
        Ok(nothing)
    }

    /// Ends an order that left so many stripes.
    fn finish_rewrite(&self, order: u64, left: u64) -> Result<(), CommitError> {
        // What was found may be in memory alone: the order must not go before it.
        self.commits.sync()?;
        if !self.catalog.finish_rewrite(order, left)? {
            return Ok(());
        }
        self.commits.sync()?;
        let online = self.members.membership().live();
        let mut rewriting = self.rewriting.lock();
        rewriting.left_with = (left > 0).then_some(online);
        (rewriting.futile, rewriting.no_room) = (0, None);
        drop(rewriting);
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
        found: Found,
        round: &Round<'_>,
    ) -> Result<PlanOutcome, CommitError> {
        let waiting = self.status.progress();
        let bytes = found.movable.iter().map(|(_, _, bytes)| bytes).sum();
        self.status.begin_plan(bytes, round.elapsed());
        self.status.update(|progress| progress.set_stuck(&waiting));
        let mut improved = false;
        let mut lacking = 0;
        let mut left = Some(Vec::new());
        for (segment, stripes, bytes) in found.movable {
            if (round.gives_way)() || self.members.membership().live() != round.online {
                return Ok(PlanOutcome::Outdated);
            }
            match self.copy_out.rewrite_some(segment, &stripes, round)? {
                SegmentOutcome::Improved => improved = true,
                SegmentOutcome::Blocked(Obstacle::NoRoom) => {
                    self.note_no_room(bytes);
                    lacking += bytes;
                    left = None;
                }
                SegmentOutcome::Blocked(obstacle) => {
                    self.status.add_blocked(&[bytes], obstacle);
                    left = left.filter(|_| obstacle == Obstacle::Unreadable);
                    if let Some(left) = &mut left {
                        left.extend(&stripes);
                    }
                }
                SegmentOutcome::Needless => {}
                SegmentOutcome::Stopped => return Ok(PlanOutcome::Stopped),
            }
        }
        self.rewriting.lock().no_room = (lacking > 0).then_some((order, lacking));
        if !improved && let Some(left) = left {
            let with = self.present();
            let left = self.still_named(left)?;
            let is_over = self.is_final(&left)? && !found.is_passing;
            if is_over && found.waits_for_members {
                self.rewriting.lock().vain = Some((order, with));
            } else if is_over {
                self.finish_rewrite(order, left.len() as u64)?;
                note_unhoused(found.unhoused);
            }
        }
        Ok(PlanOutcome::Complete { improved })
    }

    /// Returns whether an order found no room, and there is none yet. Reports that again then.
    fn still_lacks_room(&self, order: u64) -> bool {
        let no_room = self.rewriting.lock().no_room;
        let Some((_, bytes)) = no_room.filter(|(found, _)| *found == order) else {
            return false;
        };
        let is_full = !has_room(
            &self.stripes,
            self.stripes.writer().stripe_capacity() as u64,
        );
        if is_full {
            self.note_no_room(bytes);
        }
        is_full
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

    /// Returns whether another look would move none of these stripes either: none can be read, or others change their files
    /// each time.
    fn is_final(&self, stripes: &[StripeId]) -> Result<bool, CommitError> {
        for stripe in stripes {
            if self.is_readable(*stripe)? {
                let mut rewriting = self.rewriting.lock();
                rewriting.futile += 1;
                return Ok(rewriting.futile >= MOST_FUTILE);
            }
        }
        Ok(true)
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

    /// Returns the stripes with bytes of files of other classes.
    fn misplaced(&self) -> Result<Found, CommitError> {
        let mut found = Found::default();
        let mut segments = self.stripes.segments().records();
        segments.sort_by_key(|(segment, _)| *segment);
        let mut classes = BTreeMap::new();
        for (segment, record) in segments {
            let mut stripes = Vec::new();
            for (stripe, _) in self.catalog.listed_in(segment)?.stripes {
                match self.is_misplaced(stripe, record.class, &mut classes)? {
                    Some(Homes::Suffice) if self.stripes.writer().is_busy(stripe) => {
                        found.is_passing = true;
                    }
                    Some(Homes::Suffice) => stripes.push(stripe),
                    Some(Homes::Lack) => found.waits_for_members = true,
                    Some(Homes::Never) => found.unhoused += 1,
                    None => {}
                }
            }
            let bytes = self.copy_out.bytes_of_some(segment, &stripes)?;
            if bytes > 0 {
                found.movable.push((segment, stripes, bytes));
            }
        }
        Ok(found)
    }

    /// Returns whether members suffice for another class than that of a stripe, of which it holds bytes of a file; `None`
    /// if it holds none. `classes` are those of inodes that were looked up before.
    fn is_misplaced(
        &self,
        stripe: StripeId,
        class: StripeClass,
        classes: &mut BTreeMap<Ino, StripeClass>,
    ) -> Result<Option<Homes>, CommitError> {
        let mut named = Vec::new();
        let (from, end) = key::backrefs(stripe);
        self.catalog.visit(&from, &end, |key, _| {
            named.push(key::parse_backref(key)?.1);
            Ok::<_, CommitError>(ControlFlow::Continue(()))
        })?;
        named.dedup();
        let mut worst = None;
        for ino in named {
            let named = if let Some(named) = classes.get(&ino) {
                *named
            } else {
                let code = self.catalog.code_of(self.stripes.classes(), ino)?;
                let named = code.class();
                classes.insert(ino, named);
                named
            };
            if named == class {
                continue;
            }
            match self.homes_for(named) {
                Homes::Suffice => return Ok(Some(Homes::Suffice)),
                Homes::Lack => worst = Some(Homes::Lack),
                Homes::Never => worst = worst.or(Some(Homes::Never)),
            }
        }
        Ok(worst)
    }

    /// Returns whether each shard of a new stripe of a class has a home.
    fn homes_for(&self, class: StripeClass) -> Homes {
        let Some(code) = self.stripes.classes().get(class) else {
            return Homes::Never;
        };
        let shards = code.geometry().total_shards();
        let membership = self.members.membership();
        if shards <= membership.staying().len() {
            Homes::Suffice
        } else if shards <= membership.count() {
            Homes::Lack
        } else {
            Homes::Never
        }
    }
}
