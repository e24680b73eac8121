//! Shards that wait for room on a member.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::due::{LOOK_INTERVAL, SETTLED};
use crate::format::MemberIndex;
use crate::maintenance::{RebuildProgress, RebuildScope};

/// Absent members, and the room for segments on the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RoomSeen {
    /// The members absent then.
    pub(super) absent: Vec<MemberIndex>,
    /// The bytes of segments that each online member could take.
    pub(super) free: BTreeMap<MemberIndex, u64>,
}

/// Shards that found no room in the last rebuild.
#[derive(Clone, Debug)]
pub(super) struct WaitingShards {
    /// The scope of that rebuild.
    pub(super) scope: RebuildScope,
    /// The absent members whose shards that rebuild moved. The others kept theirs, and still do.
    pub(super) given: BTreeSet<MemberIndex>,
    /// The room after that rebuild.
    then: RoomSeen,
    /// The fewest bytes for which a member has to have room.
    least: u64,
    /// The pause between checks for more room: longer after each vain rebuild.
    pause: Duration,
    checked: Instant,
}

impl WaitingShards {
    /// Returns the shards that wait after a rebuild of a scope that moved the shards of the `given` absent members, if there are
    /// any. `before` names those that waited before it, if
    /// it began because they got room.
    pub(super) fn after(
        (scope, given): (RebuildScope, BTreeSet<MemberIndex>),
        progress: &RebuildProgress,
        before: Option<&Self>,
        room: RoomSeen,
        now: Instant,
    ) -> Option<Self> {
        let in_vain = before.filter(|_| progress.bytes_done == 0);
        let pause = in_vain.map_or(SETTLED, |before| (2 * before.pause).min(LOOK_INTERVAL));
        (progress.bytes_waiting > 0).then(|| Self {
            scope,
            given,
            then: room,
            least: progress.least_waiting.max(1),
            pause,
            checked: now,
        })
    }

    /// Returns whether it is time to check for room.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now.duration_since(self.checked) >= self.pause
    }

    /// Notes a check for room.
    pub(super) fn note_checked(&mut self, now: Instant) {
        self.checked = now;
    }

    /// Returns whether a member got room for some or more of the shards, or returned and may have some of them. Returns
    /// false while a member is expected back that went away since.
    pub(super) fn can_go_on(&self, now: &RoomSeen) -> bool {
        let has_more = |(member, now): (&MemberIndex, &u64)| {
            let then = self.then.free.get(member).copied().unwrap_or(0);
            *now >= self.least && (then < self.least || *now - self.least >= then)
        };
        let is_new = |member: &MemberIndex| !self.then.absent.contains(member);
        let is_back = |member: &MemberIndex| !now.absent.contains(member);
        let one_returned = self.then.absent.iter().any(is_back);
        !now.absent.iter().any(is_new) && (one_returned || now.free.iter().any(has_more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: MemberIndex = MemberIndex(1);
    const TWO: MemberIndex = MemberIndex(2);

    fn progress(bytes_done: u64, bytes_waiting: u64) -> RebuildProgress {
        RebuildProgress {
            bytes_done,
            bytes_waiting,
            least_waiting: 10,
            ..RebuildProgress::default()
        }
    }

    #[test]
    fn waiting_shards_are_rebuilt_once_a_member_has_room_for_the_smallest_of_them() {
        let now = Instant::now();
        let seen = |absent: &[MemberIndex], free: &[(MemberIndex, u64)]| RoomSeen {
            absent: absent.to_vec(),
            free: free.iter().copied().collect(),
        };
        let zero = [MemberIndex(0)];
        let room = |one, two| seen(&zero, &[(ONE, one), (TWO, two)]);
        let after = |progress| {
            let rebuilt = (RebuildScope::Everything, BTreeSet::from(zero));
            WaitingShards::after(rebuilt, &progress, None, room(4, 25), now)
        };
        assert!(after(progress(5, 0)).is_none());
        let waiting = after(progress(5, 30)).unwrap();
        assert_eq!(waiting.given, BTreeSet::from(zero));
        let goes_on = |one, two| waiting.can_go_on(&room(one, two));
        assert!(!goes_on(4, 25) && !goes_on(9, 34) && !goes_on(0, 0));
        assert!(goes_on(10, 25) && goes_on(0, 35));
        let returned = seen(&[], &[(ONE, 4), (TWO, 25)]);
        assert!(waiting.can_go_on(&returned), "a member returned");
        let gone = seen(&[TWO], &[(ONE, 10)]);
        assert!(!waiting.can_go_on(&gone), "it may return");
        let new = seen(&zero, &[(MemberIndex(3), 10)]);
        assert!(waiting.can_go_on(&new), "a member is new");
    }

    #[test]
    fn vain_rebuilds_make_the_checks_for_room_less_frequent() {
        let now = Instant::now();
        let after = |progress, before: Option<&WaitingShards>| {
            let rebuilt = (RebuildScope::Online, BTreeSet::new());
            WaitingShards::after(rebuilt, &progress, before, RoomSeen::default(), now).unwrap()
        };
        let mut waiting = after(progress(0, 30), None);
        assert!(!waiting.is_due(now + SETTLED / 2) && waiting.is_due(now + SETTLED));
        waiting.note_checked(now + SETTLED);
        assert!(!waiting.is_due(now + SETTLED));
        for _ in 0..20 {
            waiting = after(progress(0, 30), Some(&waiting));
        }
        assert!(!waiting.is_due(now + LOOK_INTERVAL / 2) && waiting.is_due(now + LOOK_INTERVAL));
        let useful = after(progress(5, 30), Some(&waiting));
        assert!(useful.is_due(now + SETTLED));
    }
}
