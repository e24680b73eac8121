//! Plan of balancing: moves of shards that make all members equally full.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

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
    let mut fill = Fill::new(loads, draining);
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
            has_moved |= move_one(slots, segments[id].len, &mut fill);
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

/// Members, and how full they are after the moves planned so far.
struct Fill {
    loads: BTreeMap<MemberIndex, Load>,
    /// The room for segments on each filesystem, and the members that share it.
    room: HashMap<u64, (u64, u64)>,
}

impl Fill {
    /// Returns the members as they are, without the draining ones.
    fn new(loads: &BTreeMap<MemberIndex, Load>, draining: &[MemberIndex]) -> Self {
        let mut loads = loads.clone();
        loads.retain(|member, _| !draining.contains(member));
        let mut room: HashMap<u64, (u64, u64)> = HashMap::new();
        for load in loads.values() {
            let (free, sharing) = room.entry(load.filesystem).or_default();
            *free += load.available;
            *sharing += 1;
        }
        Self { loads, room }
    }

    /// Returns whether a member takes so many bytes more. A move between members of one filesystem costs none of its
    /// room.
    fn has_room(&self, member: MemberIndex, len: u64) -> bool {
        let load = &self.loads[&member];
        let (free, sharing) = self.room[&load.filesystem];
        load.available > 0 && free / sharing >= len
    }

    /// Replaces the load of a member.
    fn set(&mut self, member: MemberIndex, load: Load) {
        let before = self.loads.insert(member, load).unwrap_or(load);
        if let Some((free, _)) = self.room.get_mut(&load.filesystem) {
            *free = (*free + before.taken).saturating_sub(load.taken);
        }
    }
}

/// Moves the slot of a segment on the fullest member to the emptiest member, unless that would be the fuller of the
/// two.
fn move_one(slots: &mut [Option<MemberIndex>], len: u64, fill: &mut Fill) -> bool {
    let loads = &fill.loads;
    let held = slots.iter().enumerate();
    let held = held.filter_map(|(slot, member)| Some((slot, (*member)?)));
    let held = held.filter(|(_, member)| loads.contains_key(member));
    let fullest = held.max_by(|(_, one), (_, other)| compare_fill(&loads[one], &loads[other]));
    let outside = loads.keys().copied();
    let outside =
        outside.filter(|member| !slots.contains(&Some(*member)) && fill.has_room(*member, len));
    let emptiest = outside.min_by(|one, other| compare_fill(&loads[one], &loads[other]));
    let (Some((slot, from)), Some(to)) = (fullest, emptiest) else {
        return false;
    };
    let less = Load {
        taken: loads[&from].taken.saturating_sub(len),
        ..loads[&from]
    };
    let more = Load {
        taken: loads[&to].taken + len,
        ..loads[&to]
    };
    if compare_fill(&more, &less).is_gt() {
        return false;
    }
    fill.set(from, less);
    fill.set(to, more);
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
    match (u128::from(one.whole), u128::from(other.whole)) {
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
    use crate::format::StripeClass;

    /// Returns a segment of 1+1 on two members.
    fn segment_on(one: u16, other: u16) -> Segment {
        Segment {
            class: StripeClass::VOLUME,
            data_shards: 1,
            parity_shards: 1,
            code: 0,
            len: 100 << 10,
            slots: vec![Some(MemberIndex(one)), Some(MemberIndex(other))],
            rotating: 2,
        }
    }

    /// Returns the load of a member on a filesystem of its own.
    fn alone(member: u16, taken: u64, available: u64) -> Load {
        Load {
            taken,
            available,
            whole: taken + available,
            filesystem: member.into(),
        }
    }

    /// Returns what each member takes once all moves are made.
    fn taken_after(
        segments: &BTreeMap<SegmentId, Segment>,
        plans: &[SegmentPlan],
    ) -> BTreeMap<MemberIndex, u64> {
        let mut taken = BTreeMap::new();
        for (id, segment) in segments {
            let plan = plans.iter().find(|plan| plan.segment == *id);
            for (slot, member) in segment.slots.iter().enumerate() {
                let goal = plan.and_then(|plan| plan.goals.get(&slot).copied());
                let member = goal.or(*member).expect("no slot is vacant");
                *taken.entry(member).or_default() += segment.len;
            }
        }
        taken
    }

    #[test]
    fn a_new_member_gets_as_much_as_each_of_those_that_share_its_filesystem() {
        const LEN: u64 = 100 << 10;
        for free in [LEN * 7, LEN * 70, LEN * 7000] {
            let segments: BTreeMap<SegmentId, Segment> = (0..60)
                .map(|id| {
                    let slots = [id % 6, (id + 1) % 6];
                    let [one, other] = slots.map(|slot| u16::try_from(slot).unwrap());
                    (SegmentId(id), segment_on(one, other))
                })
                .collect();
            let whole = (120 * LEN + free) / 7;
            let loads = (0..7).map(|index| {
                let load = Load {
                    taken: if index < 6 { 20 * LEN } else { 0 },
                    available: free / 7,
                    whole,
                    filesystem: 1,
                };
                (MemberIndex(index), load)
            });
            let plans = moves(&segments, &loads.collect(), &[]);
            let taken = taken_after(&segments, &plans);
            for index in 0..7 {
                let taken = taken[&MemberIndex(index)];
                assert!(taken.abs_diff(120 * LEN / 7) <= LEN, "{free}: {taken}");
            }
        }
    }

    #[test]
    fn members_of_several_filesystems_become_equally_full() {
        const LEN: u64 = 100 << 10;
        // Two members share 60 segments, another has 60 of its own, and the last one has 30.
        let segments: BTreeMap<SegmentId, Segment> = (0..20)
            .map(|id| (SegmentId(id), segment_on(0, 2)))
            .collect();
        let load = |taken, available, whole, filesystem| Load {
            taken: taken * LEN,
            available: available * LEN,
            whole: whole * LEN,
            filesystem,
        };
        let loads = [
            load(20, 20, 30, 1),
            load(0, 20, 30, 1),
            load(20, 40, 60, 2),
            load(0, 30, 30, 3),
        ];
        let loads = (0..).map(MemberIndex).zip(loads).collect();
        let plans = moves(&segments, &loads, &[]);
        let taken = taken_after(&segments, &plans);
        for (member, whole) in [(0, 30), (1, 30), (2, 60), (3, 30)] {
            let taken = taken[&MemberIndex(member)];
            let ideal = 40 * whole * LEN / 150;
            assert!(taken.abs_diff(ideal) <= LEN, "{member}: {taken} of {ideal}");
        }
    }

    /// New stripes go to draining members too, if the others are too few for a stripe.
    #[test]
    fn balancing_gives_no_shards_to_a_draining_member() {
        let loads = [(0, 900), (1, 100), (2, 500), (3, 0)].map(|(member, taken)| {
            (
                MemberIndex(member),
                alone(member, taken << 10, (1000 - taken) << 10),
            )
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
            (
                MemberIndex(member),
                alone(member, taken, 1_000_000_000_000 - taken),
            )
        });
        let loads: BTreeMap<MemberIndex, Load> = loads.collect();
        let segments: BTreeMap<SegmentId, Segment> = [(SegmentId(1), segment_on(1, 2))].into();
        let mut after = Fill::new(&loads, &[]);
        let mut slots = segments[&SegmentId(1)].slots.clone();
        let moved = (0..100).filter(|_| move_one(&mut slots, 100 << 10, &mut after));
        assert!(moved.count() <= 1);
        let plans = moves(&segments, &loads, &[]);
        assert!(plans.len() <= 1, "{plans:?}");
    }
}
