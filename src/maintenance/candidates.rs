//! Stripes that compaction may move.
//!
//! Stripes that lack shards come first, because their live bytes get all shards in a new stripe. The others follow,
//! those with the smallest live part first.
//!
//! A stripe that lost bytes is a candidate without a rank. It gets one once its live bytes are counted, and keeps it
//! until it loses bytes again. The number of candidates is bounded. A survey of all stripes finds the candidates beyond
//! the limit, and those from before the mount.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::format::key::Key;
use crate::format::{MemberIndex, StripeClass, StripeId, key};

/// The most candidates that are remembered.
const MAX_CANDIDATES: usize = 1 << 16;

/// The live part of a stripe, in thousandths.
pub(super) type Permille = u64;

/// The rank of a stripe by its worth to be moved, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// Set if it has all its shards.
    pub(super) is_whole: bool,
    /// The part of it that lives.
    pub(super) live: Permille,
}

/// The reason why bytes stay in their stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Waits {
    pub(super) class: StripeClass,
    /// The losses that their new stripe has to survive.
    pub(super) least: i16,
    /// Set if members suffice, and lack room.
    pub(super) lacks_room: bool,
    /// Set if shards on absent members counted among those that they have.
    pub(super) counts_absent: bool,
}

/// The facts that decide, besides room, how many losses bytes survive where they are, and elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Conditions {
    pub(super) live: Vec<MemberIndex>,
    pub(super) draining: Vec<MemberIndex>,
    /// The absent members that no rebuild gave up.
    pub(super) awaited: Vec<MemberIndex>,
    /// The number of codes of directories.
    pub(super) codes: usize,
    /// The number of commands that gave files other codes.
    pub(super) orders: u64,
}

/// The stripes that wait for the same.
#[derive(Debug, Default)]
struct Aside {
    stripes: BTreeSet<StripeId>,
    /// The room that there was when they found none; `None` if they had no place at all.
    room: Option<u64>,
}

/// The known partly dead stripes.
#[derive(Debug)]
pub(super) struct Candidates {
    unranked: BTreeSet<StripeId>,
    ranked: BTreeSet<(Rank, StripeId)>,
    ranks: HashMap<StripeId, Rank>,
    /// Those that wait for members or for room, as many as candidates at most.
    aside: BTreeMap<Waits, Aside>,
    waits: HashMap<StripeId, Waits>,
    /// Set if more of them wait.
    waits_more: bool,
    /// The conditions under which they were set aside.
    conditions: Conditions,
    /// The next stripe that a survey looks at; `None` once it saw all that there were at the mount.
    pub(super) survey_from: Option<Key>,
    /// Stripes taken to count their live bytes.
    pub(super) counted: u64,
}

impl Candidates {
    pub(super) fn new() -> Self {
        Self {
            unranked: BTreeSet::new(),
            ranked: BTreeSet::new(),
            ranks: HashMap::new(),
            aside: BTreeMap::new(),
            waits: HashMap::new(),
            waits_more: false,
            conditions: Conditions::default(),
            survey_from: Some(key::stripes().0),
            counted: 0,
        }
    }

    /// Notes a stripe that may have lost bytes.
    pub(super) fn add(&mut self, stripe: StripeId) {
        self.forget(stripe);
        if self.unranked.len() + self.ranked.len() < MAX_CANDIDATES {
            self.unranked.insert(stripe);
        } else {
            self.survey_from = Some(key::stripes().0);
        }
    }

    /// Notes a stripe of which it is not known whether it lost bytes. One that waits goes on to.
    pub(super) fn add_unless_aside(&mut self, stripe: StripeId) {
        if !self.waits.contains_key(&stripe) {
            self.add(stripe);
        }
    }

    /// A stripe is gone, or not worth moving. Returns whether it was a candidate, or waited.
    pub(super) fn forget(&mut self, stripe: StripeId) -> bool {
        let mut was_known = self.unranked.remove(&stripe);
        if let Some(rank) = self.ranks.remove(&stripe) {
            self.ranked.remove(&(rank, stripe));
            was_known = true;
        }
        if let Some(waits) = self.waits.remove(&stripe) {
            if let Some(aside) = self.aside.get_mut(&waits) {
                aside.stripes.remove(&stripe);
                if aside.stripes.is_empty() {
                    self.aside.remove(&waits);
                }
            }
            was_known = true;
        }
        was_known
    }

    /// Notes that a stripe waits, and is no candidate until then. There is so much room for it now.
    pub(super) fn set_aside(&mut self, stripe: StripeId, waits: Waits, room: Option<u64>) {
        self.forget(stripe);
        if self.waits.len() < MAX_CANDIDATES {
            self.waits.insert(stripe, waits);
            let aside = self.aside.entry(waits).or_default();
            aside.stripes.insert(stripe);
            aside.room = room;
        } else {
            self.waits_more = true;
        }
    }

    /// Returns what stripes wait for.
    pub(super) fn kinds_aside(&self) -> Vec<Waits> {
        self.aside.keys().copied().collect()
    }

    /// Returns how many stripes wait.
    #[cfg(test)]
    pub(super) fn count_aside(&self) -> usize {
        self.waits.len()
    }

    /// Notes the present conditions. If they are others than before, makes candidates again of all stripes that wait. If
    /// shards on absent members do not count now, does so with those that wait because they counted. Returns whether there
    /// are any.
    pub(super) fn note_conditions(&mut self, conditions: Conditions, counts_absent: bool) -> bool {
        let are_others = self.conditions != conditions;
        let count_less = !counts_absent && !conditions.awaited.is_empty();
        self.conditions = conditions;
        let mut any = false;
        for waits in self.kinds_aside() {
            if are_others || count_less && waits.counts_absent {
                any |= self.take_back(waits);
            }
        }
        any
    }

    /// Notes the present room for some of the stripes that wait. If there is more than before, makes candidates of them
    /// again, and returns whether there are any.
    pub(super) fn note_room(&mut self, waits: Waits, room: Option<u64>) -> bool {
        let Some(aside) = self.aside.get_mut(&waits) else {
            return false;
        };
        let has_grown = room > aside.room;
        aside.room = room;
        has_grown && self.take_back(waits)
    }

    fn take_back(&mut self, waits: Waits) -> bool {
        let Some(aside) = self.aside.remove(&waits) else {
            return false;
        };
        for stripe in aside.stripes {
            self.waits.remove(&stripe);
            self.add(stripe);
        }
        if std::mem::take(&mut self.waits_more) {
            self.survey_from = Some(key::stripes().0);
        }
        true
    }

    /// Takes some of the candidates without a rank. The caller counts their live bytes and calls [`Candidates::rank`]
    /// for each. One that loses bytes meanwhile is added again, and stays a candidate.
    pub(super) fn take_unranked(&mut self, limit: usize) -> Vec<StripeId> {
        let taken: Vec<StripeId> = self.unranked.iter().copied().take(limit).collect();
        for stripe in &taken {
            self.unranked.remove(stripe);
        }
        self.counted += taken.len() as u64;
        taken
    }

    /// Returns whether all partly dead stripes are known and have a rank.
    pub(super) fn is_complete(&self) -> bool {
        self.unranked.is_empty() && self.survey_from.is_none()
    }

    /// Notes the rank of a stripe.
    pub(super) fn rank(&mut self, stripe: StripeId, rank: Rank) {
        if let Some(before) = self.ranks.insert(stripe, rank) {
            self.ranked.remove(&(before, stripe));
        }
        self.ranked.insert((rank, stripe));
    }

    /// Returns the stripes most worth moving of which at most `most` lives.
    pub(super) fn best(&self, most: Permille, limit: usize) -> Vec<StripeId> {
        let of = |is_whole| {
            let first = (Rank { is_whole, live: 0 }, StripeId(0));
            let ranked = self.ranked.range(first..);
            ranked.take_while(move |(rank, _)| rank.is_whole == is_whole && rank.live <= most)
        };
        let ranked = of(false).chain(of(true));
        ranked.map(|(_, stripe)| *stripe).take(limit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(live: Permille) -> Rank {
        Rank {
            is_whole: true,
            live,
        }
    }

    #[test]
    fn the_deadest_come_first_and_a_further_loss_asks_for_another_count() {
        let mut candidates = Candidates::new();
        (1..=4).for_each(|stripe| candidates.add(StripeId(stripe)));
        assert_eq!(candidates.best(1000, 10), []);
        for stripe in candidates.take_unranked(10) {
            candidates.rank(stripe, whole(1000 - 100 * stripe.0));
        }
        let ids = |stripes: &[u64]| stripes.iter().copied().map(StripeId).collect::<Vec<_>>();
        assert_eq!(candidates.best(1000, 3), ids(&[4, 3, 2]));
        assert_eq!(candidates.best(700, 3), ids(&[4, 3]));
        candidates.add(StripeId(1));
        candidates.forget(StripeId(3));
        assert_eq!(candidates.take_unranked(10), ids(&[1]));
        assert_eq!(candidates.best(1000, 10), ids(&[4, 2]));
        candidates.rank(StripeId(1), whole(10));
        candidates.rank(StripeId(4), whole(20));
        assert_eq!(candidates.best(1000, 10), ids(&[1, 4, 2]));
        // A stripe that lacks shards comes first, if little enough of it lives.
        let lacking = |live| Rank {
            is_whole: false,
            live,
        };
        candidates.rank(StripeId(7), lacking(700));
        candidates.rank(StripeId(8), lacking(500));
        assert_eq!(candidates.best(600, 10), ids(&[8, 1, 4]));
        assert_eq!(candidates.best(1000, 3), ids(&[8, 7, 1]));
    }

    #[test]
    fn candidates_beyond_the_limit_are_left_to_a_survey() {
        let mut candidates = Candidates::new();
        candidates.survey_from = None;
        (0..MAX_CANDIDATES as u64).for_each(|stripe| candidates.add(StripeId(stripe)));
        assert_eq!(candidates.survey_from, None);
        candidates.add(StripeId(0));
        assert_eq!(candidates.survey_from, None, "it is known already");
        candidates.add(StripeId(1 << 40));
        assert!(candidates.survey_from.is_some());
        assert_eq!(candidates.take_unranked(usize::MAX).len(), MAX_CANDIDATES);
    }

    const WAITS: Waits = Waits {
        class: StripeClass::VOLUME,
        least: 2,
        lacks_room: true,
        counts_absent: true,
    };

    #[test]
    fn stripes_that_wait_stay_aside_in_a_survey_until_more_room_or_other_members_are_there() {
        let mut candidates = Candidates::new();
        candidates.set_aside(StripeId(1), WAITS, Some(5));
        candidates.add_unless_aside(StripeId(1));
        candidates.add_unless_aside(StripeId(2));
        assert_eq!(candidates.take_unranked(10), [StripeId(2)]);
        assert!(!candidates.note_room(WAITS, Some(5)));
        assert!(!candidates.note_room(WAITS, None));
        assert!(candidates.note_room(WAITS, Some(3)), "there was no place");
        assert_eq!(candidates.take_unranked(10), [StripeId(1)]);
        let conditions = Conditions {
            codes: 1,
            ..Conditions::default()
        };
        assert!(!candidates.note_conditions(conditions.clone(), true));
        candidates.set_aside(StripeId(1), WAITS, None);
        assert!(!candidates.note_conditions(conditions, true));
        assert!(candidates.note_conditions(Conditions::default(), true));
        assert_eq!(candidates.take_unranked(10), [StripeId(1)]);
        // A stripe that lost more bytes waits no more.
        candidates.set_aside(StripeId(1), WAITS, None);
        candidates.add(StripeId(1));
        assert_eq!(candidates.count_aside(), 0);
        assert!(candidates.forget(StripeId(1)) && !candidates.forget(StripeId(1)));
    }

    #[test]
    fn stripes_that_wait_for_an_absent_member_are_candidates_once_it_does_not_count() {
        let mut candidates = Candidates::new();
        let conditions = Conditions {
            awaited: vec![MemberIndex(3)],
            ..Conditions::default()
        };
        candidates.note_conditions(conditions.clone(), true);
        let without = Waits {
            counts_absent: false,
            ..WAITS
        };
        candidates.set_aside(StripeId(1), WAITS, None);
        candidates.set_aside(StripeId(2), without, None);
        assert!(!candidates.note_conditions(conditions.clone(), true));
        assert!(candidates.note_conditions(conditions.clone(), false));
        assert_eq!(candidates.take_unranked(10), [StripeId(1)]);
        // The other waits on, whether it counts or not.
        for counts_absent in [true, false] {
            assert!(!candidates.note_conditions(conditions.clone(), counts_absent));
        }
        assert_eq!(candidates.count_aside(), 1);
    }

    #[test]
    fn stripes_beyond_the_limit_that_wait_are_found_by_a_survey_once_others_return() {
        let mut candidates = Candidates::new();
        let all = 0..=MAX_CANDIDATES as u64;
        all.for_each(|stripe| candidates.set_aside(StripeId(stripe), WAITS, None));
        assert_eq!(candidates.count_aside(), MAX_CANDIDATES);
        candidates.survey_from = None;
        assert!(!candidates.note_room(WAITS, None));
        assert_eq!(candidates.survey_from, None);
        assert!(candidates.note_room(WAITS, Some(0)));
        assert!(candidates.survey_from.is_some());
    }
}
