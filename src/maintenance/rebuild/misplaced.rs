//! Stripes that hold bytes of files of another class: such files were given another code, or members were too few for theirs
//! when the bytes were written.
//!
//! An order in the index asks for their rewriting, and goes once nothing is left that can be done. So the work goes on after
//! a crash.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::outcome::SegmentOutcome;
use super::round::Round;
use super::{PlanOutcome, Rebuild};
use crate::format::{Ino, MemberIndex, SegmentId, StripeClass, StripeId, key};
use crate::transaction::CommitError;

/// The stripes of a segment with bytes of files of other classes, and how many bytes are written for them.
type Misplaced = (SegmentId, Vec<StripeId>, u64);

/// Whether members suffice for the class that a stripe should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Homes {
    Suffice,
    Lack,
}

/// The stripes with bytes of files of other classes.
#[derive(Debug, Default)]
struct Found {
    movable: Vec<Misplaced>,
    /// Set if others wait for more members.
    waits_for_members: bool,
    /// Set if others are being written.
    is_passing: bool,
}

/// The state of an order to rewrite files, as far as memory keeps it.
#[derive(Debug, Default)]
pub(super) struct Rewriting {
    /// The order and the members with which the last look found nothing to move. The same look finds nothing again.
    vain: Option<(u64, Vec<MemberIndex>)>,
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

    /// Moves bytes of files that lie in stripes of other classes to new stripes.
    pub(super) fn rewrite_misplaced(&self, round: &Round<'_>) -> Result<PlanOutcome, CommitError> {
        let nothing = PlanOutcome::Complete { improved: false };
        let Some(order) = self.catalog.rewrite_order()? else {
            return Ok(nothing);
        };
        // A new stripe would tolerate less without a home for each of its shards.
        if !self.members.membership().away().is_empty() {
            return Ok(nothing);
        }
        let tried = Some((order, self.members.membership().homes()));
        if self.rewriting.lock().vain == tried {
            return Ok(nothing);
        }
        // All bytes that were written before the order lie in stripes with records then.
        self.stripes.writer().retire_segments()?;
        self.commits.sync()?;
        let found = self.misplaced()?;
        if found.movable.is_empty() {
            if found.waits_for_members && !found.is_passing {
                self.rewriting.lock().vain = tried;
            } else if !found.is_passing {
                // What was found may be in memory alone: the order must not go before it.
                self.commits.sync()?;
                self.catalog.finish_rewrite(order)?;
                self.commits.sync()?;
            }
            return Ok(nothing);
        }
        self.move_misplaced(found.movable, round)
    }

    fn move_misplaced(
        &self,
        misplaced: Vec<Misplaced>,
        round: &Round<'_>,
    ) -> Result<PlanOutcome, CommitError> {
        let waiting = self.status.progress();
        let left = misplaced.iter().map(|(_, _, bytes)| bytes).sum();
        self.status.begin_plan(left, round.elapsed());
        self.status.update(|progress| progress.set_stuck(&waiting));
        let mut improved = false;
        for (segment, stripes, bytes) in misplaced {
            if (round.gives_way)() || self.members.membership().live() != round.online {
                return Ok(PlanOutcome::Outdated);
            }
            match self.copy_out.rewrite_some(segment, &stripes, round)? {
                SegmentOutcome::Improved => improved = true,
                SegmentOutcome::Blocked(obstacle) => self.status.add_blocked(&[bytes], obstacle),
                SegmentOutcome::Needless => {}
                SegmentOutcome::Stopped => return Ok(PlanOutcome::Stopped),
            }
        }
        Ok(PlanOutcome::Complete { improved })
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
        let mut found = None;
        for ino in named {
            let named = if let Some(named) = classes.get(&ino) {
                *named
            } else {
                let code = self.catalog.code_of(self.stripes.classes(), ino)?;
                let named = code.class();
                classes.insert(ino, named);
                named
            };
            if named != class && self.has_homes_for(named) {
                return Ok(Some(Homes::Suffice));
            }
            if named != class {
                found = Some(Homes::Lack);
            }
        }
        Ok(found)
    }

    /// Returns whether each shard of a new stripe of a class has a home.
    fn has_homes_for(&self, class: StripeClass) -> bool {
        let homes = self.members.membership().homes().len();
        let code = self.stripes.classes().get(class);
        code.is_some_and(|code| code.geometry().total_shards() <= homes)
    }
}
