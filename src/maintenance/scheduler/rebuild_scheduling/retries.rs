//! Work of the scheduler that failed, and is tried again after a pause.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::due::{LOOK_INTERVAL, SETTLED};
use crate::format::MemberIndex;
use crate::maintenance::RebuildScope;

/// Work that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FailedWork {
    /// The look at orders, for what an unmount or a crash interrupted.
    Look,
    /// A rebuild of a scope. One of everything was to move the shards of these absent members.
    Rebuild(RebuildScope, BTreeSet<MemberIndex>),
    /// The move of shards to members that have fewer.
    Balance,
}

/// Work that failed, and is tried again.
#[derive(Debug, Default)]
pub(super) struct Retries(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    works: Vec<FailedWork>,
    /// The time of the last failure. None while nothing waits.
    since: Option<Instant>,
    /// The pause after that: longer after each failure.
    pause: Duration,
}

impl FailedWork {
    /// Returns whether the other work is done once this is.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Rebuild(scope, _), Self::Rebuild(other, _)) => {
                *scope == RebuildScope::Everything || scope == other
            }
            _ => self == other,
        }
    }
}

impl Retries {
    /// Notes work that failed. It is tried again together with all that failed before.
    pub(super) fn note_failure(&self, mut work: FailedWork, now: Instant) {
        let mut waiting = self.0.lock();
        waiting.pause = match waiting.since {
            Some(_) => (2 * waiting.pause).min(LOOK_INTERVAL),
            None => SETTLED,
        };
        waiting.since = Some(now);
        for other in &waiting.works {
            if let (FailedWork::Rebuild(scope, given), FailedWork::Rebuild(before, others)) =
                (&mut work, other)
            {
                if *before == RebuildScope::Everything {
                    *scope = *before;
                }
                given.extend(others);
            }
        }
        waiting.works.retain(|other| !work.covers(other));
        waiting.works.push(work);
    }

    /// Notes work that was done. Returns whether nothing waits any more, and something did before.
    pub(super) fn note_done(&self, work: &FailedWork) -> bool {
        let mut waiting = self.0.lock();
        waiting.works.retain(|other| !work.covers(other));
        waiting.works.is_empty() && std::mem::take(&mut *waiting).since.is_some()
    }

    /// Returns the work that is to be tried again now.
    pub(super) fn due(&self, now: Instant) -> Vec<FailedWork> {
        let waiting = self.0.lock();
        if waiting.is_due(now) {
            waiting.works.clone()
        } else {
            Vec::new()
        }
    }

    /// Leaves the members that are not `absent` any more out of rebuilds: they keep their shards if they go again.
    pub(super) fn note_absent(&self, absent: &[MemberIndex]) {
        for work in &mut self.0.lock().works {
            if let FailedWork::Rebuild(_, given) = work {
                given.retain(|member| absent.contains(member));
            }
        }
    }

    /// Returns whether something failed that is to be tried again.
    pub(super) fn has_work(&self) -> bool {
        !self.0.lock().works.is_empty()
    }

    /// Returns whether nothing failed, or it is time to try again.
    pub(super) fn may_try(&self, now: Instant) -> bool {
        self.0.lock().is_due(now)
    }
}

impl Waiting {
    fn is_due(&self, now: Instant) -> bool {
        self.since
            .is_none_or(|since| now.saturating_duration_since(since) >= self.pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rebuild(scope: RebuildScope, given: &[u16]) -> FailedWork {
        let given = given.iter().map(|member| MemberIndex(*member));
        FailedWork::Rebuild(scope, given.collect())
    }

    #[test]
    fn failed_work_is_tried_again_after_a_pause_that_grows_until_it_is_done() {
        let start = Instant::now();
        let retries = Retries::default();
        assert!(retries.may_try(start) && retries.due(start).is_empty());
        let (mut now, mut pause) = (start, SETTLED);
        for _ in 0..10 {
            retries.note_failure(FailedWork::Balance, now);
            let before = now + pause.saturating_sub(Duration::from_millis(1));
            assert!(!retries.may_try(before) && retries.due(before).is_empty());
            now += pause;
            assert!(retries.may_try(now));
            assert_eq!(retries.due(now), [FailedWork::Balance]);
            pause = (2 * pause).min(LOOK_INTERVAL);
        }
        assert_eq!(pause, LOOK_INTERVAL);
        assert!(!retries.note_done(&FailedWork::Look));
        assert!(retries.note_done(&FailedWork::Balance));
        assert!(!retries.note_done(&FailedWork::Balance), "nothing waits");
        retries.note_failure(FailedWork::Balance, now);
        assert!(retries.may_try(now + SETTLED), "it begins again");
    }

    #[test]
    fn a_rebuild_of_everything_counts_for_one_of_online_members_and_not_the_other_way_round() {
        let now = Instant::now();
        let (online, everything) = (RebuildScope::Online, RebuildScope::Everything);
        let retries = Retries::default();
        retries.note_failure(rebuild(online, &[]), now);
        retries.note_failure(rebuild(everything, &[2]), now);
        retries.note_failure(rebuild(everything, &[1]), now);
        retries.note_failure(rebuild(online, &[]), now);
        let later = now + LOOK_INTERVAL;
        assert_eq!(retries.due(later), [rebuild(everything, &[1, 2])]);
        assert!(!retries.note_done(&rebuild(online, &[])));
        assert_eq!(retries.due(later), [rebuild(everything, &[1, 2])]);
        retries.note_absent(&[MemberIndex(1), MemberIndex(3)]);
        assert_eq!(retries.due(later), [rebuild(everything, &[1])]);
        assert!(retries.has_work());
        assert!(retries.note_done(&rebuild(everything, &[])));
        assert_eq!(retries.due(later), []);
        assert!(!retries.has_work());
    }
}
