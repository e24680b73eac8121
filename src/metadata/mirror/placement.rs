//! The choice of the members that hold copies of the index.

use crate::format::MemberIndex;

/// The number of rounds without a usable member after which members that could take no copy are asked again.
pub(in crate::metadata) const VAIN_ROUNDS: u32 = 32;

/// A member that may get a copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyCandidate {
    pub(super) member: MemberIndex,
    pub(super) free_bytes: u64,
    pub(super) is_draining: bool,
}

/// State of the choice of members for copies.
#[derive(Debug)]
pub(super) struct Placement {
    /// The number of copies that there should be.
    wanted: usize,
    /// Members that could take no copy, until the next commit or for some rounds of looking for one.
    refused: Vec<MemberIndex>,
    /// The number of rounds that found no member since one was refused.
    vain_rounds: u32,
    /// Members of copies that had no space since the last head: their copies are to move.
    without_space: Vec<MemberIndex>,
    /// Members whose copies are to move before a write finds no space.
    to_move: Vec<MemberIndex>,
}

impl Placement {
    pub(super) fn new(wanted: usize) -> Self {
        Self {
            wanted,
            refused: Vec::new(),
            vain_rounds: 0,
            without_space: Vec::new(),
            to_move: Vec::new(),
        }
    }

    /// Returns the number of copies that there should be.
    pub(super) fn wanted(&self) -> usize {
        self.wanted
    }

    /// Notes that a member could take no copy.
    pub(super) fn refuse(&mut self, member: MemberIndex) {
        self.refused.push(member);
        self.vain_rounds = 0;
    }

    /// Returns whether a member could take no copy.
    pub(super) fn is_refused(&self, member: MemberIndex) -> bool {
        self.refused.contains(&member)
    }

    /// Asks the refused members again: since the last commit, room may have been made.
    pub(super) fn forget_refusals(&mut self) {
        self.refused.clear();
    }

    /// Notes that no member was found. After some rounds the refused ones are asked again: they may have space by
    /// now, and no commit may ever tell, because it lacks the very space of a copy.
    pub(super) fn note_vain_round(&mut self) {
        self.vain_rounds += 1;
        if self.vain_rounds >= VAIN_ROUNDS {
            self.refused.clear();
            self.vain_rounds = 0;
        }
    }

    /// Notes that a member has no space for its copy.
    pub(super) fn note_without_space(&mut self, member: MemberIndex) {
        if !self.without_space.contains(&member) {
            self.without_space.push(member);
        }
    }

    /// Puts other members in the place of those that had no space, and returns these.
    pub(super) fn replace_without_space(&mut self, members: Vec<MemberIndex>) -> Vec<MemberIndex> {
        std::mem::replace(&mut self.without_space, members)
    }

    /// Has the copies of these members, and of no others, moved before a write finds no space.
    pub(super) fn move_off(&mut self, members: &[MemberIndex]) {
        self.to_move = members.to_vec();
    }

    /// Returns whether the copy of a member is to move for want of room.
    pub(super) fn is_to_move(&self, member: MemberIndex) -> bool {
        self.without_space.contains(&member) || self.to_move.contains(&member)
    }

    /// Chooses the candidate with most room among those with at least `needed` bytes. One that is drained is the
    /// last resort.
    pub(super) fn choose(
        candidates: impl Iterator<Item = CopyCandidate>,
        needed: u64,
    ) -> Option<MemberIndex> {
        candidates
            .filter(|candidate| candidate.free_bytes >= needed)
            .max_by_key(|candidate| (!candidate.is_draining, candidate.free_bytes))
            .map(|candidate| candidate.member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(sizes: &[(u64, bool)]) -> impl Iterator<Item = CopyCandidate> {
        let numbered = (0..).zip(sizes);
        numbered.map(|(member, (free_bytes, is_draining))| CopyCandidate {
            member: MemberIndex(member),
            free_bytes: *free_bytes,
            is_draining: *is_draining,
        })
    }

    #[test]
    fn the_member_with_most_room_is_chosen_and_a_draining_one_only_if_no_other_has_enough() {
        let chosen = |sizes: &[(u64, bool)], needed| {
            Placement::choose(candidates(sizes), needed).map(|member| member.0)
        };
        assert_eq!(chosen(&[(5, false), (9, false), (7, false)], 0), Some(1));
        assert_eq!(chosen(&[(5, false), (9, true)], 0), Some(0));
        assert_eq!(chosen(&[(5, false), (9, true)], 6), Some(1));
        assert_eq!(chosen(&[(5, false), (9, true)], 10), None);
        assert_eq!(chosen(&[], 0), None);
    }

    #[test]
    fn a_refused_member_is_asked_again_after_a_commit_or_enough_vain_rounds() {
        let (member, mut placement) = (MemberIndex(1), Placement::new(2));
        placement.refuse(member);
        placement.forget_refusals();
        assert!(!placement.is_refused(member));
        placement.note_vain_round();
        placement.refuse(member);
        for round in 1..VAIN_ROUNDS {
            placement.note_vain_round();
            assert!(placement.is_refused(member), "round {round}");
        }
        placement.note_vain_round();
        assert!(!placement.is_refused(member));
    }

    #[test]
    fn copies_without_space_and_those_to_be_moved_are_to_move() {
        let mut placement = Placement::new(2);
        placement.note_without_space(MemberIndex(0));
        placement.note_without_space(MemberIndex(0));
        placement.move_off(&[MemberIndex(1)]);
        let moving = |placement: &Placement| {
            let all = (0..3).filter(|member| placement.is_to_move(MemberIndex(*member)));
            all.collect::<Vec<_>>()
        };
        assert_eq!(moving(&placement), [0, 1]);
        placement.move_off(&[]);
        assert_eq!(
            placement.replace_without_space(Vec::new()),
            [MemberIndex(0)]
        );
        assert_eq!(moving(&placement), Vec::<u16>::new());
    }
}
