//! The choice of members for a segment, and the amount that a set of members can hold. Arithmetic only.

use crate::format::MemberIndex;

/// A member that could take a slot of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The member.
    pub(crate) member: MemberIndex,
    /// Bytes that a new segment may take there.
    pub(crate) available: u64,
    /// Bytes that segments take there already.
    pub(crate) taken: u64,
    /// The same number for members that share one filesystem, and so its room.
    pub(crate) filesystem: u64,
}

/// The place of a segment: a member for each slot, and the length of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// The members; `None` where none was left to take a slot.
    pub(crate) slots: Vec<Option<MemberIndex>>,
    /// Bytes of each file.
    pub(crate) len: u64,
}

/// The requirements for a new segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Slots.
    pub(crate) total_shards: usize,
    /// The fewest slots with members: with fewer, no stripe can be read, or too few losses are survived.
    pub(crate) fewest: usize,
    /// The greatest length of a file.
    pub(crate) max_len: u64,
    /// The unit of the length, and its least: what one stripe needs.
    pub(crate) step: u64,
    /// The segment takes at most one of so many parts of a member's room, but at least a step.
    pub(crate) room_parts: u64,
}

/// Places a segment on the candidates with the most room.
///
/// Segments are small against members. Taking the members with most room each time therefore uses members of different
/// sizes as fully as segments of `k + m` different members allow. Members on one filesystem have the same room. Of
/// these the ones with least data are taken, so that they all get some. Slots stay vacant only if there are fewer
/// candidates than slots. A candidate without room does not make the segment poorer: the answer is then `None`.
pub(crate) fn place(candidates: &[Candidate], wanted: &Wanted) -> Option<Placement> {
    let mut ranked = candidates.to_vec();
    ranked.sort_by_key(|candidate| {
        let room = std::cmp::Reverse(candidate.available);
        (room, candidate.taken, candidate.member)
    });
    ranked.truncate(wanted.total_shards);
    if ranked.len() < wanted.fewest {
        return None;
    }
    let available = ranked.last()?.available;
    let share = (available / wanted.room_parts).max(wanted.step);
    let len = available.min(share).min(wanted.max_len) / wanted.step * wanted.step;
    if len == 0 {
        return None;
    }
    let mut slots: Vec<_> = ranked
        .iter()
        .map(|candidate| Some(candidate.member))
        .collect();
    slots.resize(wanted.total_shards, None);
    Some(Placement { slots, len })
}

/// Takes candidates without room for a segment out, and returns them. It does so only if the others are too few for all
/// slots, and no fewer than a segment needs.
pub(crate) fn leave_out_full(candidates: &mut Vec<Candidate>, wanted: &Wanted) -> Vec<MemberIndex> {
    let has_room = |candidate: &Candidate| candidate.available >= wanted.step;
    let with_room = candidates.iter().filter(|it| has_room(it)).count();
    if !(wanted.fewest..wanted.total_shards).contains(&with_room) {
        return Vec::new();
    }
    let full = candidates.iter().filter(|it| !has_room(it));
    let full = full.map(|candidate| candidate.member).collect();
    candidates.retain(has_room);
    full
}

/// Returns how many bytes each slot can hold in all if members have `rooms` bytes and every segment
/// takes `slots` different ones.
///
/// The answer is the greatest `t` for which the rooms, each cut off at `t`, add up to `slots × t`: no member can be in
/// a segment twice, so what it has beyond `t` is of no use.
///
/// ```text
/// rooms 6 2 2, 2 slots: t = 4 (segments of 0+1 and 0+2); the first member keeps 2
/// ```
pub(crate) fn slot_capacity(rooms: &[u64], slots: usize) -> u64 {
    let mut sorted = rooms.to_vec();
    sorted.sort_unstable();
    let mut rest: u128 = sorted.iter().map(|&room| u128::from(room)).sum();
    let mut slots = slots as u128;
    // A member above the line fills a slot of every segment; the others share the remaining slots.
    while slots > 0
        && let Some(greatest) = sorted.pop()
    {
        let line = rest / slots;
        if u128::from(greatest) <= line {
            return u64::try_from(line).unwrap_or(u64::MAX);
        }
        rest -= u128::from(greatest);
        slots -= 1;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Wanted = Wanted {
        total_shards: 3,
        fewest: 2,
        max_len: 64,
        step: 4,
        room_parts: 2,
    };

    fn candidates(rooms: &[u64]) -> Vec<Candidate> {
        let candidate = |(index, &available): (usize, &u64)| Candidate {
            member: MemberIndex(u16::try_from(index).unwrap()),
            available,
            taken: 0,
            filesystem: index as u64,
        };
        rooms.iter().enumerate().map(candidate).collect()
    }

    /// The greatest `t` with Σ min(room, t) ≥ slots × t, by trying every one.
    fn slot_capacity_by_trial(rooms: &[u64], slots: usize) -> u64 {
        let holds = |&t: &u64| rooms.iter().map(|&r| r.min(t)).sum::<u64>() >= slots as u64 * t;
        (0..=rooms.iter().sum()).rev().find(holds).unwrap_or(0)
    }

    #[test]
    fn slot_capacity_agrees_with_trial_for_all_small_sets_of_members() {
        for slots in 1..=4 {
            for code in 0..7_u64.pow(5) {
                let rooms: Vec<u64> = (0..5).map(|i| code / 7_u64.pow(i) % 7).collect();
                let expected = slot_capacity_by_trial(&rooms, slots);
                assert_eq!(
                    slot_capacity(&rooms, slots),
                    expected,
                    "{rooms:?}, {slots} slots"
                );
            }
        }
    }

    #[test]
    fn placing_until_nothing_fits_uses_all_but_a_few_steps_of_the_usable_space() {
        let sets: [&[u64]; 5] = [
            &[1000, 1000, 1000],
            &[2000, 1000, 1000],
            &[700, 1300, 900, 400],
            &[5000, 100, 200, 4000, 300, 3000],
            &[999; 20],
        ];
        for rooms in sets {
            let mut rooms = rooms.to_vec();
            let possible = slot_capacity(&rooms, 3);
            let mut placed = 0;
            while let Some(place) = place(&candidates(&rooms), &WANTED) {
                let members: Vec<_> = place.slots.iter().flatten().collect();
                assert_eq!(members.len(), 3);
                for member in members {
                    rooms[usize::from(member.0)] -= place.len;
                }
                placed += place.len;
            }
            assert!(
                placed + 2 * WANTED.max_len >= possible,
                "{placed} of {possible}: {rooms:?}"
            );
        }
    }

    #[test]
    fn full_members_are_left_out_only_if_the_others_are_too_few_and_can_hold_all_data() {
        let left_out = |rooms: &[u64]| -> (Vec<u16>, Option<usize>) {
            let mut candidates = candidates(rooms);
            let full = leave_out_full(&mut candidates, &WANTED);
            let place = place(&candidates, &WANTED);
            let slots = place.map(|place| place.slots.iter().flatten().count());
            (full.into_iter().map(|member| member.0).collect(), slots)
        };
        assert_eq!(left_out(&[100, 3, 100]), (vec![1], Some(2)));
        assert_eq!(left_out(&[100, 4, 100]), (vec![], Some(3)));
        assert_eq!(left_out(&[100, 3, 100, 50]), (vec![], Some(3)));
        assert_eq!(left_out(&[0, 100, 3, 100]), (vec![0, 2], Some(2)));
        assert_eq!(left_out(&[100, 3, 3]), (vec![], None));
        assert_eq!(left_out(&[3, 3, 3]), (vec![], None));
    }

    #[test]
    fn members_that_share_their_room_get_the_same_share_of_segments() {
        let mut members = candidates(&[1000; 7]);
        for _ in 0..70 {
            let place = place(&members, &WANTED).unwrap();
            for member in place.slots.iter().flatten() {
                members[usize::from(member.0)].taken += place.len;
            }
        }
        assert!(members.iter().all(|member| member.taken == 30 * 64));
    }

    #[test]
    fn slots_stay_vacant_only_where_members_are_missing() {
        let two = place(&candidates(&[100, 50]), &WANTED).unwrap();
        assert_eq!(
            two.slots,
            [Some(MemberIndex(0)), Some(MemberIndex(1)), None]
        );
        assert_eq!(two.len, 24);
        assert_eq!(place(&candidates(&[100, 100, 3]), &WANTED), None);
        assert_eq!(place(&candidates(&[100]), &WANTED), None);
    }
}
