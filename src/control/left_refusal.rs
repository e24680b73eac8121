//! The refusal of removals that the interlock of one daemon leaves to the next, which the log of events carries over.

use std::time::Duration;

use crate::events::{EventLog, MOST_REMEMBERED, now_ms};
use crate::format::event::{Event, EventKind};
use crate::fs::{Interlock, RefusedRemovals};

/// Has the interlock refuse removals if that of the daemon before did so until its end.
pub(super) fn restore_refusal(events: &EventLog, interlock: &Interlock) {
    let remembered = events.newer_than(None, None, MOST_REMEMBERED);
    if let Some((since_ms, refused)) = refusal_left(&remembered.events) {
        interlock.refuse_on(refused, ago(since_ms));
        tracing::warn!(
            "removals are refused until `cauchyfs resume`, as they were when the volume was mounted last"
        );
    }
}

/// Returns the event that a mount without an interlock ends the refusal of the daemon before, if that left one.
pub(super) fn ended_by_mount(
    interlock: Option<&Interlock>,
    remembered: &[Event],
) -> Option<EventKind> {
    let (since_ms, _) = refusal_left(remembered).filter(|_| interlock.is_none())?;
    let seconds = ago(since_ms).as_secs();
    Some(EventKind::RemovalsAllowed { seconds })
}

fn ago(since_ms: i64) -> Duration {
    let ago = u64::try_from(now_ms().saturating_sub(since_ms));
    Duration::from_millis(ago.unwrap_or_default())
}

/// Returns the removals that the last daemon refused until its end, and since when. A daemon tells of a refusal again when it
/// goes on with it. So one of an earlier daemon is over if the last one did not: early builds let refusals end with a mount,
/// and no event tells of that. A power cut may leave the start of a daemon alone of what it told at once: nothing is over then.
fn refusal_left(events: &[Event]) -> Option<(i64, RefusedRemovals)> {
    let (mut before, mut left) = (None, None);
    for event in events {
        match event.kind {
            EventKind::DaemonStarted { .. } => before = left.take(),
            EventKind::RemovalsRefused { removed, files, .. } => {
                let refused = RefusedRemovals { removed, files };
                let same = before.take().filter(|(_, earlier)| *earlier == refused);
                left = Some(same.unwrap_or((event.time_ms, refused)));
            }
            EventKind::RemovalsAllowed { .. } => (before, left) = (None, None),
            _ => {}
        }
    }
    let ends_with_start = events.last().is_some_and(|last| {
        let kind = &last.kind;
        matches!(kind, EventKind::DaemonStarted { .. })
    });
    left.or(before.filter(|_| ends_with_start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::VolumeId;

    const STARTED: EventKind = EventKind::DaemonStarted {
        members: 3,
        online: 3,
        read_only: false,
    };
    const STOPPED: EventKind = EventKind::DaemonStopped { durable: true };
    const ALLOWED: EventKind = EventKind::RemovalsAllowed { seconds: 7 };

    fn refused(removed: u64) -> EventKind {
        EventKind::RemovalsRefused {
            removed,
            files: 100,
            percent: 25,
        }
    }

    /// Returns what is left of a log in which each event came a second after the one before: the removals, and the second.
    fn left(kinds: &[EventKind]) -> Option<(u64, i64)> {
        let event = |(second, kind): (i64, &EventKind)| Event {
            time_ms: second * 1000,
            sequence: u64::try_from(second).unwrap(),
            volume: VolumeId(uuid::Uuid::from_u128(3)),
            member: None,
            severity: kind.severity(),
            kind: kind.clone(),
        };
        let events: Vec<Event> = (0..).zip(kinds).map(event).collect();
        refusal_left(&events).map(|(since_ms, refused)| (refused.removed, since_ms / 1000))
    }

    #[test]
    fn a_refusal_is_left_if_the_last_daemon_began_it_or_went_on_with_it() {
        assert_eq!(left(&[]), None);
        let crashed = [STARTED, refused(25)];
        assert_eq!(left(&crashed), Some((25, 1)));
        let stopped = [STARTED, refused(25), STOPPED];
        assert_eq!(left(&stopped), Some((25, 1)));
        let went_on = [STARTED, refused(25), STOPPED, STARTED, refused(25), STOPPED];
        assert_eq!(left(&went_on), Some((25, 1)), "it began with the first");
        let other = [STARTED, refused(25), STOPPED, STARTED, refused(30)];
        assert_eq!(left(&other), Some((30, 4)), "it is another one");
        let cut_off = [STARTED, refused(25), STOPPED, STARTED];
        assert_eq!(left(&cut_off), Some((25, 1)), "the start is torn off");
        let again = [STARTED, refused(25), ALLOWED, refused(30)];
        assert_eq!(left(&again), Some((30, 3)));
    }

    #[test]
    fn a_refusal_that_the_last_daemon_did_not_go_on_with_is_over() {
        // An early build ended a refusal with the mount, and no event tells of it.
        let early = [STARTED, refused(25), STOPPED, STARTED, STOPPED];
        assert_eq!(left(&early), None);
        let allowed = [STARTED, refused(25), ALLOWED, STOPPED];
        assert_eq!(left(&allowed), None);
        let ended_by_mount = [STARTED, refused(25), STOPPED, ALLOWED, STARTED];
        assert_eq!(left(&ended_by_mount), None);
    }
}
