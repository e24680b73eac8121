//! Looks for stripes that hold bytes of files of another class.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use super::rewriting::MembersThen;
use super::round::Round;
use super::{PlanOutcome, Rebuild};
use crate::format::record::{Backref, Segment};
use crate::format::{Ino, Record, SegmentId, StripeClass, StripeId, key};
use crate::stripes::Classes;
use crate::transaction::CommitError;
use crate::transaction::catalog::Catalog;

/// The stripes of a segment with bytes of files of other classes.
#[derive(Debug)]
pub(super) struct Misplaced {
    pub(super) segment: SegmentId,
    pub(super) stripes: Vec<StripeId>,
    /// The classes that new stripes for them have.
    pub(super) classes: BTreeSet<StripeClass>,
    /// How many bytes are written for them.
    pub(super) bytes: u64,
}

/// The stripes with bytes of files of other classes.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) movable: Vec<Misplaced>,
    /// The first of those that wait for more members, if any do.
    pub(super) waiting: Option<StripeId>,
    /// The number of others whose class the volume has too few members for. They stay as they are.
    pub(super) unhoused: u64,
    /// Set if others are being written.
    pub(super) is_passing: bool,
    /// The number of orders of commands that it saw.
    pub(super) given: u64,
}

/// Whether members suffice for a new stripe of a class, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Homes {
    Suffice,
    /// They would if none were away or drained.
    Lack,
    /// The volume has too few.
    Never,
}

/// The outcome of a look.
pub(super) enum Look {
    Done(Found),
    /// It was broken off.
    Broken(PlanOutcome),
}

/// The classes of inodes. They are kept for one segment only, because a volume may have any number of files.
pub(super) struct KnownClasses<'a> {
    catalog: &'a Catalog,
    classes: &'a Classes,
    known: BTreeMap<Ino, StripeClass>,
}

impl KnownClasses<'_> {
    /// Returns the class for new bytes of a file.
    pub(super) fn of(&mut self, ino: Ino) -> Result<StripeClass, CommitError> {
        if let Some(class) = self.known.get(&ino) {
            return Ok(*class);
        }
        let class = self.catalog.code_of(self.classes, ino)?.class();
        self.known.insert(ino, class);
        Ok(class)
    }
}

impl Rebuild {
    /// Looks for the stripes with bytes of files of other classes, for which these members are homes. Rests between segments.
    pub(super) fn look(
        &self,
        members: &MembersThen,
        round: &Round<'_>,
    ) -> Result<Look, CommitError> {
        let mut found = Found::default();
        for (segment, record) in self.segments_in_order() {
            let step = self.copy_out.step();
            self.look_into(segment, &record, members, &mut found)?;
            if !step.rest(round.pace, 0) {
                return Ok(Look::Broken(PlanOutcome::Stopped));
            }
            if (round.gives_way)() || self.members_now() != *members {
                return Ok(Look::Broken(PlanOutcome::Outdated));
            }
        }
        Ok(Look::Done(found))
    }

    pub(super) fn look_into(
        &self,
        segment: SegmentId,
        record: &Segment,
        members: &MembersThen,
        found: &mut Found,
    ) -> Result<(), CommitError> {
        let mut known = self.known_classes();
        let mut stripes = Vec::new();
        let mut classes = BTreeSet::new();
        for (stripe, _) in self.catalog.listed_in(segment)?.stripes {
            let mut named = BTreeSet::new();
            for (ino, _) in self.runs_in(stripe)? {
                named.insert(known.of(ino)?);
            }
            let mut wanted = named.clone();
            wanted.remove(&record.class);
            if wanted.is_empty() {
                continue;
            }
            let homes = |class: &StripeClass| self.homes_for(*class, members);
            let all = self.homes_for_all(&named, members);
            // The return of members changes nothing for codes that the volume has too few of.
            let is_possible = wanted.iter().any(|it| homes(it) != Homes::Never);
            let lacks = all == Homes::Lack || wanted.iter().any(|it| homes(it) == Homes::Lack);
            let waits = is_possible && lacks;
            wanted.retain(|class| homes(class) == Homes::Suffice);
            let can_move = all == Homes::Suffice && !wanted.is_empty();
            if !can_move && waits {
                found.waiting.get_or_insert(stripe);
            } else if !can_move {
                found.unhoused += 1;
            } else if self.stripes.writer().is_busy(stripe) {
                found.is_passing = true;
            } else {
                stripes.push(stripe);
                classes.append(&mut wanted);
            }
        }
        let bytes = self.copy_out.bytes_of_some(segment, &stripes)?;
        if bytes > 0 {
            found.movable.push(Misplaced {
                segment,
                stripes,
                classes,
                bytes,
            });
        }
        Ok(())
    }

    /// Returns the records of all segments, in the order of their numbers.
    pub(super) fn segments_in_order(&self) -> Vec<(SegmentId, Segment)> {
        let mut segments = self.stripes.segments().records();
        segments.sort_by_key(|(segment, _)| *segment);
        segments
    }

    /// Returns a look-up of the classes of inodes that knows none yet.
    pub(super) fn known_classes(&self) -> KnownClasses<'_> {
        KnownClasses {
            catalog: &self.catalog,
            classes: self.stripes.classes(),
            known: BTreeMap::new(),
        }
    }

    /// Returns the runs of bytes that files have in a stripe: the file and the length of each.
    pub(super) fn runs_in(&self, stripe: StripeId) -> Result<Vec<(Ino, u64)>, CommitError> {
        let mut runs = Vec::new();
        let (from, end) = key::backrefs(stripe);
        self.catalog.visit(&from, &end, |key, value| {
            runs.push((key::parse_backref(key)?.1, Backref::decode(value)?.len));
            Ok::<_, CommitError>(ControlFlow::Continue(()))
        })?;
        Ok(runs)
    }

    /// Returns whether bytes of files of all these classes can move at once. None may tolerate fewer losses then than before:
    /// bytes of a class that lacks homes get stripes of the volume, or some that survive as much.
    fn homes_for_all(&self, named: &BTreeSet<StripeClass>, members: &MembersThen) -> Homes {
        let of_volume = self.homes_for(StripeClass::VOLUME, members);
        let each = named.iter().map(|class| self.homes_for(*class, members));
        each.map(|own| own.min(of_volume))
            .max()
            .unwrap_or(Homes::Suffice)
    }

    /// Returns whether each shard of a new stripe of a class has a home.
    fn homes_for(&self, class: StripeClass, members: &MembersThen) -> Homes {
        let Some(code) = self.stripes.classes().get(class) else {
            return Homes::Never;
        };
        let shards = code.geometry().total_shards();
        if shards <= members.homes.len() {
            Homes::Suffice
        } else if shards <= members.count {
            Homes::Lack
        } else {
            Homes::Never
        }
    }
}
