//! Notices that members have got room for waiting shards.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{LOOK_INTERVAL, SETTLED, Task};
use crate::commit::RebuildProgress;
use crate::format::MemberIndex;

/// Shards that found no room when it was last looked for.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    /// The task of that rebuild.
    pub(super) task: Task,
    /// The members absent then: what others held was not to be rebuilt.
    away: Vec<MemberIndex>,
    /// Bytes of the least that a member has to have room for.
    least: u64,
    /// The room of each member then.
    room: BTreeMap<MemberIndex, u64>,
    /// The pause between checks whether one has more: longer after each vain rebuild.
    pause: Duration,
    seen: Instant,
}

impl Waiting {
    /// Returns the shards that wait after a rebuild, if there are any. `before` names those that waited before it, if
    /// it began because they got room.
    pub(super) fn after(
        task: Task,
        progress: &RebuildProgress,
        before: Option<&Self>,
        (away, room): (Vec<MemberIndex>, BTreeMap<MemberIndex, u64>),
        now: Instant,
    ) -> Option<Self> {
        let in_vain = before.filter(|_| progress.bytes_done == 0);
        let pause = in_vain.map_or(SETTLED, |before| (2 * before.pause).min(LOOK_INTERVAL));
        (progress.bytes_waiting > 0).then(|| Self {
            task,
            away,
            least: progress.least_waiting.max(1),
            room,
            pause,
            seen: now,
        })
    }

    /// Says whether it is time to see how much room there is.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now.duration_since(self.seen) >= self.pause
    }

    pub(super) fn note_seen(&mut self, now: Instant) {
        self.seen = now;
    }

    /// Says whether a member has got room for some or more of it, or is back with what may be some of it. Says no while
    /// a member is expected back that went away since.
    pub(super) fn can_go_on(
        &self,
        away: &[MemberIndex],
        room: &BTreeMap<MemberIndex, u64>,
    ) -> bool {
        let has_more = |(member, now): (&MemberIndex, &u64)| {
            let then = self.room.get(member).copied().unwrap_or(0);
            *now >= self.least && (then < self.least || *now - self.least >= then)
        };
        let nobody_went = away.iter().all(|member| self.away.contains(member));
        let somebody_is_back = self.away.iter().any(|member| !away.contains(member));
        nobody_went && (somebody_is_back || room.iter().any(has_more))
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
    fn what_waits_goes_on_where_more_room_came_than_one_of_its_parts_takes() {
        let now = Instant::now();
        let room = |one, two| BTreeMap::from([(ONE, one), (TWO, two)]);
        let then = (vec![MemberIndex(0)], room(4, 25));
        let after = |progress| Waiting::after(Task::Everything, &progress, None, then.clone(), now);
        assert!(after(progress(5, 0)).is_none());
        let waiting = after(progress(5, 30)).unwrap();
        let goes_on = |one, two| waiting.can_go_on(&[MemberIndex(0)], &room(one, two));
        assert!(!goes_on(4, 25) && !goes_on(9, 34) && !goes_on(0, 0));
        assert!(goes_on(10, 25) && goes_on(0, 35));
        assert!(waiting.can_go_on(&[], &room(4, 25)), "somebody is back");
        assert!(!waiting.can_go_on(&[TWO], &room(10, 0)), "it may be back");
        let new = BTreeMap::from([(MemberIndex(3), 10)]);
        let away = [MemberIndex(0)];
        assert!(waiting.can_go_on(&away, &new), "a member that is new");
    }

    #[test]
    fn room_that_is_of_no_use_is_looked_for_less_and_less_often() {
        let now = Instant::now();
        let after = |progress, before: Option<&Waiting>| {
            let then = (Vec::new(), BTreeMap::new());
            Waiting::after(Task::AtHand, &progress, before, then, now).unwrap()
        };
        let mut waiting = after(progress(0, 30), None);
        assert!(!waiting.is_due(now + SETTLED / 2) && waiting.is_due(now + SETTLED));
        waiting.note_seen(now + SETTLED);
        assert!(!waiting.is_due(now + SETTLED));
        for _ in 0..20 {
            waiting = after(progress(0, 30), Some(&waiting));
        }
        assert!(!waiting.is_due(now + LOOK_INTERVAL / 2) && waiting.is_due(now + LOOK_INTERVAL));
        let useful = after(progress(5, 30), Some(&waiting));
        assert!(useful.is_due(now + SETTLED));
    }
}
