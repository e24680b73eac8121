//! Plan of a rebuild: the shards that each segment lacks, counted on the members, in the order of urgency.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::round::Round;
use super::scope::RebuildScope;
use super::widening::{is_rewritten_instead, widened};
use crate::format::record::{Segment, Stripe};
use crate::format::{MemberIndex, SegmentId, ShardIndex, StripeId};
use crate::membership::Members;
use crate::stripes::{Census, FileLengths, Stripes, Tally, member_of};
use crate::transaction::CommitError;
use crate::transaction::catalog::Catalog;

/// Plan for one segment: the slots that get shards, and those that move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SegmentPlan {
    pub(super) segment: SegmentId,
    /// The slots without their shards, and how many bytes these have.
    pub(super) slots: BTreeMap<usize, u64>,
    /// Slots that leave their members although these are online.
    pub(super) moves: BTreeSet<usize>,
    /// The destinations of slots that move to balance members: there or nowhere.
    pub(super) goals: BTreeMap<usize, MemberIndex>,
    /// The draining members that have such slots.
    drained: BTreeSet<MemberIndex>,
    /// The number of further shards that its worst stripe can lose; negative if data is lost.
    worst: i16,
}

impl SegmentPlan {
    /// Returns how many bytes have to be written.
    pub(super) fn bytes(&self) -> u64 {
        self.slots.values().sum()
    }

    /// Returns the plan for slots whose files are gone or too short.
    pub(super) fn of_files(segment: SegmentId, slots: impl Iterator<Item = usize>) -> Self {
        let mut plan = Self::new(segment);
        plan.slots.extend(slots.map(|slot| (slot, 0)));
        plan
    }

    pub(super) fn new(segment: SegmentId) -> Self {
        Self {
            segment,
            slots: BTreeMap::new(),
            moves: BTreeSet::new(),
            goals: BTreeMap::new(),
            drained: BTreeSet::new(),
            worst: i16::MAX,
        }
    }

    /// Returns whether a slot was to leave a member that is not among those `draining` any more.
    pub(super) fn drains_kept_member(&self, draining: &[MemberIndex]) -> bool {
        let mut drained = self.drained.iter();
        drained.any(|member| !draining.contains(member))
    }

    /// Leaves out slots that move.
    fn leave_out_moves(&mut self) {
        for moved in std::mem::take(&mut self.moves) {
            self.slots.remove(&moved);
        }
        self.drained.clear();
    }

    /// Leaves out all slots that neither move nor are `kept`, by slot and bytes. Returns whether any slot is left.
    fn keep(&mut self, kept: impl Fn(usize, u64) -> bool) -> bool {
        let moves = &self.moves;
        self.slots
            .retain(|slot, bytes| moves.contains(slot) || kept(*slot, *bytes));
        !self.slots.is_empty()
    }

    /// Adds a move of a slot, of so many bytes.
    pub(super) fn add_move(&mut self, slot: usize, bytes: u64) {
        *self.slots.entry(slot).or_default() += bytes;
        self.moves.insert(slot);
    }
}

/// Returns the shard of a stripe that lies in a slot of its segment. Returns `None` for an implied shard, which lies
/// nowhere.
pub(super) fn shard_in(segment: &Segment, stripe: &Stripe, slot: usize) -> Option<ShardIndex> {
    let shard = segment.shard_in(slot, stripe.rotation)?;
    let data_shards = usize::from(segment.data_shards);
    (!stripe.is_implied(shard, data_shards)).then_some(shard)
}

/// Counts the shards that each segment lacks; the most urgent segments come first. A member that arrives during the
/// count may seem to lack more than it does.
///
/// Absent members that the round spares keep their slots. While there are any, a slot without a holder counts only if a
/// member can take it. No segment gets more slots than it has then.
pub(super) fn missing(
    round: &Round<'_>,
    members: &Members,
    stripes: &Stripes,
    catalog: &Catalog,
) -> Result<Vec<SegmentPlan>, CommitError> {
    let online = members.membership().live();
    let records = stripes.segments().records().into_iter();
    let code = members.shape().stripe_code();
    let as_wanted = |(id, record): (SegmentId, Segment)| {
        if stripes.segments().is_writing(id) || is_rewritten_instead(id, catalog, members) {
            return (id, record);
        }
        (id, widened(&record, code))
    };
    let segments: HashMap<SegmentId, Segment> = records.map(as_wanted).collect();
    let census = stripes.inventory().census();
    let draining = members.membership().draining();
    let mut plans = moves_of(&segments, &draining);
    catalog.for_each_stripe(|_, stripe| {
        if let Some(segment) = segments.get(&stripe.segment) {
            add_missing(&mut plans, segment, &stripe, &census, &online);
            add_moving(&mut plans, segment, &stripe);
        }
    })?;
    for (id, segment) in &segments {
        if !stripes.segments().is_writing(*id) {
            add_files(&mut plans, *id, segment, &census, &online);
        }
    }
    let mut plans: Vec<SegmentPlan> = plans.into_values().collect();
    let away = members.membership().away();
    let waits_for_some =
        round.scope == RebuildScope::Online || away.iter().any(|(member, _)| round.spares(*member));
    if waits_for_some {
        let staying = members.membership().staying();
        plans.retain_mut(|plan| {
            if round.scope == RebuildScope::Online {
                plan.leave_out_moves();
            }
            let stored = stripes.segments().record(plan.segment);
            let (Some(wide), Some(stored)) = (segments.get(&plan.segment), stored) else {
                return false;
            };
            // Measuring the room takes longer than this.
            let is_home = |member: &MemberIndex| !wide.slots.contains(&Some(*member));
            let may_have_home = staying.iter().any(is_home);
            let has_home = |bytes| {
                may_have_home && !stripes.rebuilder().homes_for_slot(wide, bytes).is_empty()
            };
            plan.keep(
                |slot, bytes| match wide.slots.get(slot).copied().flatten() {
                    Some(holder) => online.contains(&holder) || !round.spares(holder),
                    None => slot < stored.slots.len() && has_home(bytes),
                },
            )
        });
    }
    plans.sort_by_key(|plan| (plan.worst, plan.segment));
    Ok(plans)
}

/// Returns whether one of the stripes of a segment cannot be read from the files that are online.
pub(super) fn is_unreadable(
    segment: &Segment,
    stripes: &[(StripeId, Stripe)],
    files: &FileLengths,
) -> bool {
    stripes.iter().any(|(_, stripe)| {
        let is_there = |shard: ShardIndex| {
            let member = member_of(segment, stripe, shard);
            stripe.written.contains(shard)
                && member.is_some_and(|member| files.hold(member, stripe))
        };
        Tally::of(segment, stripe, is_there).losses_tolerated() < 0
    })
}

/// Returns plans for the segments with slots on draining members, with nothing counted yet.
fn moves_of(
    segments: &HashMap<SegmentId, Segment>,
    draining: &[MemberIndex],
) -> HashMap<SegmentId, SegmentPlan> {
    let mut plans = HashMap::new();
    for (&id, segment) in segments {
        for (slot, member) in segment.slots.iter().enumerate() {
            if let Some(member) = member.filter(|member| draining.contains(member)) {
                let plan = plans.entry(id).or_insert_with(|| SegmentPlan::new(id));
                plan.add_move(slot, 0);
                plan.drained.insert(member);
            }
        }
    }
    plans
}

/// Adds the shards of a stripe in the slots of its segment that move.
fn add_moving(plans: &mut HashMap<SegmentId, SegmentPlan>, segment: &Segment, stripe: &Stripe) {
    let Some(plan) = plans.get_mut(&stripe.segment) else {
        return;
    };
    for slot in plan.moves.clone() {
        if shard_in(segment, stripe, slot).is_some() {
            plan.add_move(slot, stripe.height.into());
        }
    }
}

/// Adds the slots of a segment whose files are gone or too short. No shard may be missing in them, because implied
/// shards lie nowhere.
fn add_files(
    plans: &mut HashMap<SegmentId, SegmentPlan>,
    id: SegmentId,
    segment: &Segment,
    census: &Census,
    online: &[MemberIndex],
) {
    for (slot, member) in segment.slots.iter().enumerate() {
        let member = member.filter(|member| online.contains(member));
        if member.is_some_and(|member| census.len(member, id) < Some(segment.len)) {
            let plan = plans.entry(id).or_insert_with(|| SegmentPlan::new(id));
            plan.slots.entry(slot).or_default();
        }
    }
}

/// Adds the missing shards of a stripe to the plan of its segment.
fn add_missing(
    plans: &mut HashMap<SegmentId, SegmentPlan>,
    segment: &Segment,
    stripe: &Stripe,
    census: &Census,
    online: &[MemberIndex],
) {
    let is_there = |shard: ShardIndex| {
        let member = member_of(segment, stripe, shard);
        let member = member.filter(|member| online.contains(member));
        stripe.written.contains(shard) && member.is_some_and(|member| census.holds(member, stripe))
    };
    let tally = Tally::of(segment, stripe, is_there);
    if tally.is_whole() {
        return;
    }
    let id = stripe.segment;
    let plan = plans.entry(id).or_insert_with(|| SegmentPlan::new(id));
    plan.worst = plan.worst.min(tally.losses_tolerated());
    for slot in 0..segment.slots.len() {
        let is_lacking = shard_in(segment, stripe, slot).is_some_and(|shard| !is_there(shard));
        if is_lacking && !plan.moves.contains(&slot) {
            *plan.slots.entry(slot).or_default() += u64::from(stripe.height);
        }
    }
}
