//! The times at which a rebuild without an order is due.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::format::{Epoch, MemberIndex};
use crate::maintenance::RebuildScope;

/// Time for which the membership has to stay the same before a rebuild, if no member is absent.
pub(super) const SETTLED: Duration = Duration::from_secs(5);

/// Interval between checks for missing shards while the membership stays the same.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(600);

/// The facts about the membership on which a rebuild depends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MembersSeen {
    pub(super) epoch: Epoch,
    pub(super) online: Vec<MemberIndex>,
    pub(super) absent: Vec<MemberIndex>,
    /// Set if a member is being drained.
    pub(super) is_draining: bool,
    /// Set if segment files of online members are known to be gone or too short.
    pub(super) lacks_files: bool,
    /// Members that new segments do without because they have no room.
    pub(super) left_out: Vec<MemberIndex>,
}

impl MembersSeen {
    /// Returns whether all members are online, and none is being drained.
    pub(super) fn is_whole(&self) -> bool {
        self.absent.is_empty() && !self.is_draining
    }
}

/// Clock of the rebuilds without an order: when the membership changed, and when each scope was last checked.
#[derive(Debug)]
pub(super) struct DueTimes {
    members: MembersSeen,
    /// The time of the last change of `members`.
    since: Instant,
    /// The begin of the absence of each absent member.
    absent_since: BTreeMap<MemberIndex, Instant>,
    /// The members that were already given up when the volume was opened.
    given_up: BTreeSet<MemberIndex>,
    /// The time of the last check for all missing shards.
    checked: Option<Instant>,
    /// The time of the last check for the shards that online members lack.
    checked_online: Option<Instant>,
}

impl DueTimes {
    pub(super) fn new(members: MembersSeen, given_up: BTreeSet<MemberIndex>, now: Instant) -> Self {
        let absent = members.absent.iter();
        let absent_since = absent.map(|member| (*member, now)).collect();
        Self {
            members,
            since: now,
            absent_since,
            given_up,
            checked: None,
            checked_online: None,
        }
    }

    /// Returns whether all members were online at the last look, and none was being drained.
    pub(super) fn is_whole(&self) -> bool {
        self.members.is_whole()
    }

    /// Notes the membership as it is now. An absent member keeps the begin of its absence when others follow.
    pub(super) fn see(&mut self, members: MembersSeen, now: Instant) {
        if self.members != members {
            self.absent_since
                .retain(|member, _| members.absent.contains(member));
            for member in &members.absent {
                self.absent_since.entry(*member).or_insert(now);
            }
            self.members = members;
            self.since = now;
        }
    }

    /// Returns the scope for which a check is due, if absent members are given up after `rebuild_after`. Returned
    /// members do not wait for absent ones.
    pub(super) fn due(
        &self,
        rebuild_after: Option<Duration>,
        now: Instant,
    ) -> Option<RebuildScope> {
        let is_settled = |checked: Option<Instant>| match checked.filter(|at| *at >= self.since) {
            Some(checked) => now.duration_since(checked) >= LOOK_INTERVAL,
            None => now.duration_since(self.since) >= SETTLED,
        };
        let is_time_for_all = if self.absent_since.is_empty() {
            is_settled(self.checked)
        } else {
            let is_settled = self.members.is_draining && is_settled(self.checked);
            is_settled || self.is_time_over(rebuild_after, now)
        };
        if is_time_for_all {
            return Some(RebuildScope::Everything);
        }
        is_settled(self.checked_online.max(self.checked)).then_some(RebuildScope::Online)
    }

    /// Returns the members that have been absent for the time `rebuild_after`.
    pub(super) fn over(
        &self,
        rebuild_after: Option<Duration>,
        now: Instant,
    ) -> BTreeSet<MemberIndex> {
        let is_over =
            |since: Instant| rebuild_after.is_some_and(|after| now.duration_since(since) >= after);
        let over = self
            .absent_since
            .iter()
            .filter(|(_, since)| is_over(**since));
        over.map(|(member, _)| *member).collect()
    }

    /// Returns whether an absent member has had the time `rebuild_after`, or was given up before.
    fn is_time_over(&self, rebuild_after: Option<Duration>, now: Instant) -> bool {
        self.was_interrupted() || rebuild_after.is_some_and(|after| self.is_over(after, now))
    }

    /// Returns whether shards of absent members were being rebuilt when the volume was closed, or its daemon died.
    fn was_interrupted(&self) -> bool {
        let mut absent = self.absent_since.keys();
        self.checked.is_none() && absent.any(|member| self.given_up.contains(member))
    }

    /// Returns whether the time `after` is over for a member, and there was no check since then. If there was one for all
    /// absent members, returns whether the next check is due.
    fn is_over(&self, after: Duration, now: Instant) -> bool {
        let has_time = |since: Instant, at: Instant| at.saturating_duration_since(since) < after;
        let is_open = |since: &&Instant| {
            let checked = self.checked.filter(|checked| *checked >= **since);
            checked.is_none_or(|checked| has_time(**since, checked))
        };
        match (
            self.absent_since.values().filter(is_open).min(),
            self.checked,
        ) {
            (Some(longest), _) => !has_time(*longest, now),
            (None, Some(checked)) => now.duration_since(checked) >= LOOK_INTERVAL,
            (None, None) => false,
        }
    }

    /// Notes a check of a scope.
    pub(super) fn note_checked(&mut self, scope: RebuildScope, now: Instant) {
        match scope {
            RebuildScope::Everything => self.checked = Some(now),
            RebuildScope::Online => self.checked_online = Some(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEVEN: MemberIndex = MemberIndex(7);
    const SIX: MemberIndex = MemberIndex(6);
    const FIVE: MemberIndex = MemberIndex(5);

    fn without(absent: &[MemberIndex]) -> MembersSeen {
        MembersSeen {
            epoch: Epoch(3),
            online: Vec::new(),
            absent: absent.to_vec(),
            is_draining: false,
            lacks_files: false,
            left_out: Vec::new(),
        }
    }

    fn is_due(times: &DueTimes, after: u64, now: Instant) -> bool {
        times.due(Some(Duration::from_secs(after)), now) == Some(RebuildScope::Everything)
    }

    #[test]
    fn shards_of_absent_members_are_rebuilt_once_after_the_time_that_these_are_given() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut times = DueTimes::new(without(&[SEVEN]), BTreeSet::new(), start);
        assert!(!is_due(&times, 100, at(99)) && is_due(&times, 100, at(100)));
        times.note_checked(RebuildScope::Everything, at(100));
        assert!(!is_due(&times, 100, at(699)) && is_due(&times, 100, at(700)));
        for after in [None, Some(Duration::from_secs(100))] {
            let times = DueTimes::new(without(&[]), BTreeSet::new(), start);
            assert_eq!(times.due(after, at(4)), None);
            assert_eq!(times.due(after, at(5)), Some(RebuildScope::Everything));
        }
        let at_once = DueTimes::new(without(&[SEVEN]), BTreeSet::new(), start);
        assert!(is_due(&at_once, 0, start));
    }

    /// An order to add a member checks all missing shards, and gives none up.
    #[test]
    fn a_check_before_its_time_neither_shortens_nor_prolongs_the_time_of_an_absent_member() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (is_draining, after) in [(false, 60), (true, 60), (false, 86_400), (true, 86_400)] {
            let members = MembersSeen {
                is_draining,
                ..without(&[SEVEN])
            };
            let mut times = DueTimes::new(members, BTreeSet::new(), start);
            times.note_checked(RebuildScope::Everything, at(5));
            let over = |now| times.over(Some(Duration::from_secs(after)), now);
            assert_eq!(over(at(after - 1)), BTreeSet::new());
            assert_eq!(over(at(after)), BTreeSet::from([SEVEN]));
            assert!(is_due(&times, after, at(after)));
            assert!(is_draining || !is_due(&times, after, at(after - 1)));
            assert_eq!(times.over(None, at(after)), BTreeSet::new());
        }
        let mut times = DueTimes::new(without(&[SEVEN]), BTreeSet::new(), start);
        times.see(without(&[SIX, SEVEN]), at(59));
        let over = times.over(Some(Duration::from_secs(60)), at(60));
        assert_eq!(
            over,
            BTreeSet::from([SEVEN]),
            "the other one keeps its time"
        );
    }

    #[test]
    fn a_second_absent_member_does_not_delay_the_rebuild_for_the_first() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut times = DueTimes::new(without(&[SEVEN]), BTreeSet::new(), start);
        times.see(without(&[SIX, SEVEN]), at(90));
        assert!(!is_due(&times, 100, at(99)) && is_due(&times, 100, at(100)));
        times.note_checked(RebuildScope::Everything, at(100));
        assert!(!is_due(&times, 100, at(189)) && is_due(&times, 100, at(190)));
        times.note_checked(RebuildScope::Everything, at(190));
        assert!(!is_due(&times, 100, at(250)));
        // Data of a member that goes later may come back with it.
        times.see(without(&[FIVE, SIX, SEVEN]), at(300));
        assert!(!is_due(&times, 100, at(399)) && is_due(&times, 100, at(400)));
        // A member that was back has all the time again.
        let mut times = DueTimes::new(without(&[SEVEN]), BTreeSet::new(), start);
        times.see(without(&[]), at(50));
        times.see(without(&[SEVEN]), at(54));
        assert!(!is_due(&times, 100, at(153)) && is_due(&times, 100, at(154)));
    }

    #[test]
    fn a_returned_member_gets_its_shards_at_once_even_if_another_stays_away_for_ever() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for after in [None, Some(Duration::from_secs(3600))] {
            let mut times = DueTimes::new(without(&[SEVEN]), BTreeSet::new(), start);
            assert_eq!(times.due(after, at(4)), None);
            assert_eq!(times.due(after, at(5)), Some(RebuildScope::Online));
            times.note_checked(RebuildScope::Online, at(5));
            assert_eq!(times.due(after, at(604)), None);
            assert_eq!(times.due(after, at(605)), Some(RebuildScope::Online));
            times.see(without(&[SIX, SEVEN]), at(606));
            assert_eq!(times.due(after, at(610)), None);
            assert_eq!(times.due(after, at(611)), Some(RebuildScope::Online));
        }
    }

    #[test]
    fn an_interrupted_rebuild_goes_on_at_once_when_the_volume_is_opened() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for after in [None, Some(Duration::from_secs(3600))] {
            let mut times = DueTimes::new(without(&[SIX, SEVEN]), [SEVEN].into(), start);
            assert_eq!(times.due(after, at(0)), Some(RebuildScope::Everything));
            times.note_checked(RebuildScope::Everything, at(0));
            assert_eq!(times.due(after, at(4)), None, "once");
            let others = DueTimes::new(without(&[SIX]), [SEVEN].into(), start);
            assert_eq!(
                others.due(after, at(4)),
                None,
                "it is back, and another is absent"
            );
        }
    }
}
