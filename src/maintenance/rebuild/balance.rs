//! Plan of balancing: moves of shards that make all members equally full.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::plan::SegmentPlan;
use crate::format::record::Segment;
use crate::format::{MemberIndex, SegmentId};
use crate::stripes::Load;

/// Most passes over all segments.
const MOST_PASSES: usize = 64;

/// Plans moves of segments from the fullest members to the emptiest, until no such move brings two of them closer.
/// Draining members get nothing, and their shards leave them anyway.
pub(super) fn moves(
    segments: &BTreeMap<SegmentId, Segment>,
    loads: &BTreeMap<MemberIndex, Load>,
    draining: &[MemberIndex],
) -> Vec<SegmentPlan> {
    let mut loads = loads.clone();
    loads.retain(|member, _| !draining.contains(member));
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
    let plans = slots.iter().rev();
    plans
        .filter_map(|(id, slots)| plan_of_moves(*id, &segments[id], slots))
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

fn plan_of_moves(
    id: SegmentId,
    segment: &Segment,
    to: &[Option<MemberIndex>],
) -> Option<SegmentPlan> {
    let mut plan = SegmentPlan::new(id);
    for (slot, (before, after)) in segment.slots.iter().zip(to).enumerate() {
        if let Some(goal) = after.filter(|_| before != after) {
            plan.add_move(slot, segment.len);
            plan.goals.insert(slot, goal);
        }
    }
    (!plan.goals.is_empty()).then_some(plan)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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

    /// New stripes go to draining members too, if the others are too few for a stripe.
    #[test]
    fn balancing_gives_no_shards_to_a_draining_member() {
        let loads = [(0, 900), (1, 100), (2, 500), (3, 0)].map(|(member, taken)| {
            let (taken, available) = (taken << 10, (1000 - taken) << 10);
            (MemberIndex(member), Load { taken, available })
        });
        let segments = (0..4).map(|id| (SegmentId(id), segment_on(0, 2)));
        let draining = [MemberIndex(3)];
        let plans = moves(&segments.collect(), &loads.into(), &draining);
        let goals: BTreeSet<MemberIndex> = plans
            .iter()
            .flat_map(|plan| plan.goals.values().copied())
            .collect();
        assert_eq!(goals, [MemberIndex(1)].into());
    }

    #[test]
    fn balancing_large_disks_ends_however_small_a_segment_is() {
        let taken = [0, 100 << 10, 100 << 10];
        let loads = (0..).zip(taken).map(|(member, taken)| {
            let available = 1_000_000_000_000 - taken;
            (MemberIndex(member), Load { taken, available })
        });
        let loads: BTreeMap<MemberIndex, Load> = loads.collect();
        let segments: BTreeMap<SegmentId, Segment> = [(SegmentId(1), segment_on(1, 2))].into();
        let mut after = loads.clone();
        let mut slots = segments[&SegmentId(1)].slots.clone();
        let moved = (0..100).filter(|_| move_one(&mut slots, 100 << 10, &mut after));
        assert!(moved.count() <= 1);
        let plans = moves(&segments, &loads, &[]);
        assert!(plans.len() <= 1, "{plans:?}");
    }
}
