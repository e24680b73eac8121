//! The stripes that lack shards, counted on the members, in the order of urgency.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::super::{CommitError, Pipeline};
use super::Which;
use crate::format::record::{Segment, Stripe};
use crate::format::{MemberIndex, SegmentId, ShardIndex, StripeId};
use crate::volume::{Census, Load, SegmentFiles, Tally, member_of};

/// The most passes over all segments to balance members.
const MOST_PASSES: usize = 64;

/// The shards that a segment lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) segment: SegmentId,
    /// The slots without their shards, and how many bytes these have.
    pub(super) slots: BTreeMap<usize, u64>,
    /// Slots that leave their members although these are online.
    pub(super) moves: BTreeSet<usize>,
    /// The destinations of slots that move to balance members: there or nowhere.
    pub(super) goals: BTreeMap<usize, MemberIndex>,
    /// The members that are being emptied and have such slots.
    emptied: BTreeSet<MemberIndex>,
    /// The number of further shards that its worst stripe can lose; negative if data is lost.
    worst: i16,
}

impl Need {
    /// Returns how many bytes have to be written.
    pub(super) fn bytes(&self) -> u64 {
        self.slots.values().sum()
    }

    /// Returns the need of slots whose files are gone or too short.
    pub(super) fn of_files(segment: SegmentId, slots: impl Iterator<Item = usize>) -> Self {
        let mut need = Self::new(segment);
        need.slots.extend(slots.map(|slot| (slot, 0)));
        need
    }

    fn new(segment: SegmentId) -> Self {
        Self {
            segment,
            slots: BTreeMap::new(),
            moves: BTreeSet::new(),
            goals: BTreeMap::new(),
            emptied: BTreeSet::new(),
            worst: i16::MAX,
        }
    }

    /// Says whether it is to leave a member that is not among those `leaving` any more.
    pub(super) fn is_kept_after_all(&self, leaving: &[MemberIndex]) -> bool {
        let mut emptied = self.emptied.iter();
        emptied.any(|member| !leaving.contains(member))
    }

    /// Leaves out slots that move, and those whose members are not among `live`; says whether any is left.
    fn keep_those_of(&mut self, slots: &[Option<MemberIndex>], live: &[MemberIndex]) -> bool {
        for moved in std::mem::take(&mut self.moves) {
            self.slots.remove(&moved);
        }
        self.emptied.clear();
        self.slots.retain(|slot, _| {
            let holder = slots.get(*slot).copied().flatten();
            holder.is_some_and(|holder| live.contains(&holder))
        });
        !self.slots.is_empty()
    }

    /// Adds a move of a slot, of so many bytes.
    fn add_move(&mut self, slot: usize, bytes: u64) {
        *self.slots.entry(slot).or_default() += bytes;
        self.moves.insert(slot);
    }
}

/// Returns the shard of a stripe that lies in a slot of its segment, unless that is one of zeros, which
/// lie nowhere.
pub(super) fn shard_in(segment: &Segment, stripe: &Stripe, slot: usize) -> Option<ShardIndex> {
    let total = segment.slots.len().max(1);
    let turn = total - usize::from(stripe.rotation) % total;
    let shard = ShardIndex(u8::try_from((slot + turn) % total).ok()?);
    let data_shards = usize::from(segment.data_shards);
    (!stripe.is_implied(shard, data_shards)).then_some(shard)
}

impl Pipeline {
    /// Counts what each segment lacks; the most urgent come first. A member that comes while it counts may seem to lack
    /// more than it does.
    pub(super) fn plan_rebuild(&self, which: Which) -> Result<Vec<Need>, CommitError> {
        let live = self.members.live();
        let segments: HashMap<SegmentId, Segment> = self.volume.segments().into_iter().collect();
        let census = self.volume.census();
        let leaving = self.members.leaving();
        let mut needs = moves_of(&segments, &leaving);
        self.catalog.for_each_stripe(|_, stripe| {
            if let Some(segment) = segments.get(&stripe.segment) {
                add(&mut needs, segment, &stripe, &census, &live);
                add_moving(&mut needs, segment, &stripe);
            }
        })?;
        for (id, segment) in &segments {
            if !self.volume.is_writing(*id) {
                add_files(&mut needs, *id, segment, &census, &live);
            }
        }
        let mut needs: Vec<Need> = needs.into_values().collect();
        if which == Which::AtHand {
            needs.retain_mut(|need| {
                let slots = segments.get(&need.segment).map(|segment| &segment.slots);
                need.keep_those_of(slots.map_or(&[][..], Vec::as_slice), &live)
            });
        }
        needs.sort_by_key(|need| (need.worst, need.segment));
        Ok(needs)
    }
}

/// Says whether one of the stripes of a segment cannot be read from the files that are there.
pub(super) fn is_unreadable(
    segment: &Segment,
    stripes: &[(StripeId, Stripe)],
    files: &SegmentFiles,
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

/// Returns the segments that are to leave members, with nothing counted yet.
fn moves_of(
    segments: &HashMap<SegmentId, Segment>,
    leaving: &[MemberIndex],
) -> HashMap<SegmentId, Need> {
    let mut needs = HashMap::new();
    for (&id, segment) in segments {
        for (slot, member) in segment.slots.iter().enumerate() {
            if let Some(member) = member.filter(|member| leaving.contains(member)) {
                let need = needs.entry(id).or_insert_with(|| Need::new(id));
                need.add_move(slot, 0);
                need.emptied.insert(member);
            }
        }
    }
    needs
}

/// Adds the shards of a stripe in the slots of its segment that move.
fn add_moving(needs: &mut HashMap<SegmentId, Need>, segment: &Segment, stripe: &Stripe) {
    let Some(need) = needs.get_mut(&stripe.segment) else {
        return;
    };
    for slot in need.moves.clone() {
        if shard_in(segment, stripe, slot).is_some() {
            need.add_move(slot, stripe.height.into());
        }
    }
}

/// Adds the slots of a segment whose files are gone, or too short, although no shards may be missing in them: those
/// of stripes that are not full lie nowhere.
fn add_files(
    needs: &mut HashMap<SegmentId, Need>,
    id: SegmentId,
    segment: &Segment,
    census: &Census,
    live: &[MemberIndex],
) {
    for (slot, member) in segment.slots.iter().enumerate() {
        let member = member.filter(|member| live.contains(member));
        if member.is_some_and(|member| census.len(member, id) < Some(segment.len)) {
            let need = needs.entry(id).or_insert_with(|| Need::new(id));
            need.slots.entry(slot).or_default();
        }
    }
}

/// Chooses segments that leave the fullest members for the emptiest, until no such move brings two of them closer.
/// Those `leaving` get nothing, and what they have leaves them anyway.
pub(super) fn balance(
    segments: &BTreeMap<SegmentId, Segment>,
    loads: &BTreeMap<MemberIndex, Load>,
    leaving: &[MemberIndex],
) -> Vec<Need> {
    let mut loads = loads.clone();
    loads.retain(|member, _| !leaving.contains(member));
    let mut slots: BTreeMap<SegmentId, Vec<Option<MemberIndex>>> = segments
        .iter()
        .filter(|(_, segment)| segment.len > 0)
        .map(|(id, segment)| (*id, segment.slots.clone()))
        .collect();
    // Each move lowers the sum over all members of what is taken, squared, by their room. So the loop ends by itself,
    // and the result is near enough soon.
    for _ in 0..MOST_PASSES {
        let mut has_moved = false;
        for (id, slots) in slots.iter_mut().rev() {
            has_moved |= move_one(slots, segments[id].len, &mut loads);
        }
        if !has_moved {
            break;
        }
    }
    let needs = slots.iter().rev();
    needs
        .filter_map(|(id, slots)| need_of_moves(*id, &segments[id], slots))
        .collect()
}

/// Moves the slot of a segment on the fullest member to the emptiest member, unless that would be the fuller of the
/// two.
fn move_one(
    slots: &mut [Option<MemberIndex>],
    len: u64,
    loads: &mut BTreeMap<MemberIndex, Load>,
) -> bool {
    let held = slots.iter().enumerate();
    let held = held.filter_map(|(slot, member)| Some((slot, (*member)?)));
    let held = held.filter(|(_, member)| loads.contains_key(member));
    let fullest = held.max_by(|(_, one), (_, other)| compare_fill(&loads[one], &loads[other]));
    let has_room = |member: &MemberIndex| loads[member].available >= len;
    let outside = loads.keys().copied();
    let outside = outside.filter(|member| !slots.contains(&Some(*member)) && has_room(member));
    let emptiest = outside.min_by(|one, other| compare_fill(&loads[one], &loads[other]));
    let (Some((slot, from)), Some(to)) = (fullest, emptiest) else {
        return false;
    };
    let less = loads[&from].with(len, false);
    let more = loads[&to].with(len, true);
    if compare_fill(&more, &less).is_gt() {
        return false;
    }
    loads.insert(from, less);
    loads.insert(to, more);
    slots[slot] = Some(to);
    true
}

fn need_of_moves(id: SegmentId, segment: &Segment, to: &[Option<MemberIndex>]) -> Option<Need> {
    let mut need = Need::new(id);
    for (slot, (before, after)) in segment.slots.iter().zip(to).enumerate() {
        if let Some(goal) = after.filter(|_| before != after) {
            need.add_move(slot, segment.len);
            need.goals.insert(slot, goal);
        }
    }
    (!need.goals.is_empty()).then_some(need)
}

/// Compares how full two members are, exactly: rounded figures would move small segments to and fro.
fn compare_fill(one: &Load, other: &Load) -> Ordering {
    let whole = |load: &Load| u128::from(load.taken) + u128::from(load.available);
    match (whole(one), whole(other)) {
        // A member without any room gets nothing.
        (0, of_other) => 0.cmp(&of_other).reverse(),
        (_, 0) => Ordering::Less,
        (of_one, of_other) => {
            let one = u128::from(one.taken).saturating_mul(of_other);
            one.cmp(&u128::from(other.taken).saturating_mul(of_one))
        }
    }
}

/// Adds the missing shards of a stripe to those of its segment.
fn add(
    needs: &mut HashMap<SegmentId, Need>,
    segment: &Segment,
    stripe: &Stripe,
    census: &Census,
    live: &[MemberIndex],
) {
    let is_there = |shard: ShardIndex| {
        let member = member_of(segment, stripe, shard);
        let member = member.filter(|member| live.contains(member));
        stripe.written.contains(shard) && member.is_some_and(|member| census.holds(member, stripe))
    };
    let tolerated = Tally::of(segment, stripe, is_there).losses_tolerated();
    if tolerated == i16::from(segment.parity_shards) {
        return;
    }
    let id = stripe.segment;
    let need = needs.entry(id).or_insert_with(|| Need::new(id));
    need.worst = need.worst.min(tolerated);
    for slot in 0..segment.slots.len() {
        let is_lacking = shard_in(segment, stripe, slot).is_some_and(|shard| !is_there(shard));
        if is_lacking && !need.moves.contains(&slot) {
            *need.slots.entry(slot).or_default() += u64::from(stripe.height);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a segment of 1+1 on two members.
    fn segment_on(one: u16, other: u16) -> Segment {
        Segment {
            data_shards: 1,
            parity_shards: 1,
            code: 0,
            len: 100 << 10,
            slots: vec![Some(MemberIndex(one)), Some(MemberIndex(other))],
        }
    }

    /// As where those that stay are too few for a stripe, and new ones go to all online members.
    #[test]
    fn no_shards_go_to_a_member_that_is_being_emptied_so_that_others_are_as_full() {
        let loads = [(0, 900), (1, 100), (2, 500), (3, 0)].map(|(member, taken)| {
            let (taken, available) = (taken << 10, (1000 - taken) << 10);
            (MemberIndex(member), Load { taken, available })
        });
        let segments = (0..4).map(|id| (SegmentId(id), segment_on(0, 2)));
        let leaving = [MemberIndex(3)];
        let needs = balance(&segments.collect(), &loads.into(), &leaving);
        let goals: BTreeSet<MemberIndex> = needs
            .iter()
            .flat_map(|need| need.goals.values().copied())
            .collect();
        assert_eq!(goals, [MemberIndex(1)].into());
    }

    #[test]
    fn balancing_large_disks_comes_to_an_end_however_small_a_segment_is() {
        let taken = [0, 100 << 10, 100 << 10];
        let loads = (0..).zip(taken).map(|(member, taken)| {
            let available = 1_000_000_000_000 - taken;
            (MemberIndex(member), Load { taken, available })
        });
        let loads: BTreeMap<MemberIndex, Load> = loads.collect();
        let segments: BTreeMap<SegmentId, Segment> = [(SegmentId(1), segment_on(1, 2))].into();
        let mut after = loads.clone();
        let mut slots = segments[&SegmentId(1)].slots.clone();
        let moves = (0..100).filter(|_| move_one(&mut slots, 100 << 10, &mut after));
        assert!(moves.count() <= 1);
        let needs = balance(&segments, &loads, &[]);
        assert!(needs.len() <= 1, "{needs:?}");
    }
}
