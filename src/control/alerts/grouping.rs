//! Groups of events that belong together.
//!
//! A dying disk has errors, goes missing, and costs redundancy, all within seconds: that is one group. When it returns,
//! its group waits a while for the redundancy. Nothing here asks a clock, so tests choose the times.
//!
//! Two events belong together if they happened and arrived close to each other. So events that wait for a process, and then
//! arrive all at once, are divided as if they had arrived when they happened.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::protocol::LogPlace;
use crate::control::event_report::EventReport;
use crate::format::event::{EventKind, Severity};

/// The time for which a group waits for more events.
const WINDOW: Duration = Duration::from_secs(3);

/// The same after the loss of a member, until the count of the redundancy is there.
const LOSS_WINDOW: Duration = Duration::from_secs(4);

/// The same where errors may precede the loss of a member.
const SUSPECT_WINDOW: Duration = Duration::from_secs(15);

/// The same where a recovery waits for the redundancy.
const RECOVERY_WINDOW: Duration = Duration::from_secs(60);

/// Most events of a group. One that is full is closed.
const MOST_EVENTS: usize = 64;

/// An event on its way into notices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Incoming {
    pub(super) event: EventReport,
    pub(super) place: LogPlace,
    /// True if it happened since the mount, and no process was told of it yet. Its place says nothing then, because a number
    /// may be given twice.
    pub(super) is_new: bool,
}

/// Events that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) events: Vec<Incoming>,
    /// True if they are not worth a notice: one has told of their cause.
    pub(super) is_quiet: bool,
    /// The place in the log behind all of them.
    pub(super) place: LogPlace,
}

/// The state of a volume as events told it. It is kept with the notices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct VolumeState {
    /// The members that are away.
    lost: BTreeSet<u16>,
    is_reduced: bool,
}

/// The moment of an event: when it happened, and when it arrived.
#[derive(Clone, Copy, Debug)]
struct Moment {
    time_ms: i64,
    arrived: Instant,
}

impl Moment {
    /// Returns the moment that is later by `pause`.
    fn after(self, pause: Duration) -> Self {
        let ms = i64::try_from(pause.as_millis()).unwrap_or(i64::MAX);
        Self {
            time_ms: self.time_ms.saturating_add(ms),
            arrived: self.arrived + pause,
        }
    }
}

/// Makes groups of events.
#[derive(Debug, Default)]
pub(super) struct Grouper {
    pub(super) state: VolumeState,
    open: Option<OpenGroup>,
    /// The last event of the last group with the loss of a member.
    told_loss: Option<Moment>,
}

#[derive(Debug)]
struct OpenGroup {
    group: Group,
    opened: Moment,
    last: Moment,
    suspect: Option<Moment>,
    problem: Option<Moment>,
    loss: Option<Moment>,
    recovery: Option<Moment>,
    has_count: bool,
}

impl OpenGroup {
    fn new(at: Moment, place: LogPlace) -> Self {
        Self {
            group: Group {
                events: Vec::new(),
                is_quiet: false,
                place,
            },
            opened: at,
            last: at,
            suspect: None,
            problem: None,
            loss: None,
            recovery: None,
            has_count: false,
        }
    }

    fn add(&mut self, incoming: Incoming, at: Moment) {
        let Incoming { event, place, .. } = &incoming;
        let time = match (&event.kind, event.severity) {
            (EventKind::MemberMissing { .. } | EventKind::MemberFaulted { .. }, _) => {
                self.problem.get_or_insert(at);
                &mut self.loss
            }
            (
                EventKind::MemberSlow { .. }
                | EventKind::IoErrors { .. }
                | EventKind::ChecksumErrors { .. },
                _,
            ) => &mut self.suspect,
            (_, Severity::Warning | Severity::Critical) => &mut self.problem,
            (EventKind::MemberBack { .. }, _) => &mut self.recovery,
            _ => &mut None,
        };
        time.get_or_insert(at);
        self.has_count |= matches!(event.kind, EventKind::RedundancyReduced { .. });
        self.last = at;
        self.group.place = self.group.place.furthest(*place);
        self.group.events.push(incoming);
    }

    /// Returns when the group is complete.
    fn due(&self, is_reduced: bool) -> Moment {
        if let Some(loss) = self.loss.filter(|_| !self.has_count) {
            return loss.after(LOSS_WINDOW);
        }
        if let Some(problem) = self.problem {
            return problem.after(WINDOW);
        }
        if let Some(suspect) = self.suspect {
            return suspect.after(SUSPECT_WINDOW);
        }
        match self.recovery {
            Some(recovery) if is_reduced => recovery.after(RECOVERY_WINDOW),
            _ => self.opened.after(WINDOW),
        }
    }
}

impl Grouper {
    /// Goes on after earlier events.
    pub(super) fn after(state: VolumeState) -> Self {
        Self {
            state,
            ..Self::default()
        }
    }

    /// Adds an event that arrives `now`. Returns the groups that are complete by that.
    pub(super) fn add(&mut self, incoming: Incoming, now: Instant) -> Vec<Group> {
        let at = Moment {
            time_ms: incoming.place.time_ms,
            arrived: now,
        };
        let is_reduced = self.state.is_reduced;
        let open = self.open.as_ref();
        let is_late = open.is_some_and(|open| open.due(is_reduced).time_ms < at.time_ms);
        let mut complete: Vec<Group> = is_late
            .then(|| self.close())
            .flatten()
            .into_iter()
            .collect();
        self.note(&incoming.event);
        if self.open.is_none() && self.is_quiet(&incoming.event, at) {
            complete.push(Group {
                place: incoming.place,
                events: vec![incoming],
                is_quiet: true,
            });
            return complete;
        }
        let open = self
            .open
            .get_or_insert_with(|| OpenGroup::new(at, incoming.place));
        open.add(incoming, at);
        if open.group.events.len() >= MOST_EVENTS {
            complete.extend(self.close());
        }
        complete
    }

    /// Returns how long to wait for the open group, if there is one.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let open = self.open.as_ref()?;
        let due = open.due(self.state.is_reduced).arrived;
        Some(due.saturating_duration_since(now))
    }

    /// Closes the open group.
    pub(super) fn close(&mut self) -> Option<Group> {
        let open = self.open.take()?;
        if open.loss.is_some() {
            self.told_loss = Some(open.last);
        }
        Some(open.group)
    }

    fn note(&mut self, event: &EventReport) {
        let member = event.member;
        match event.kind {
            // Its daemon tells again which members are away.
            EventKind::DaemonStarted { .. } => self.state = VolumeState::default(),
            EventKind::MemberMissing { .. } | EventKind::MemberFaulted { .. } => {
                self.state.lost.extend(member);
            }
            EventKind::MemberBack { .. }
            | EventKind::MemberReplaced { .. }
            | EventKind::MemberRemoved { .. } => {
                self.state.lost.retain(|lost| Some(*lost) != member);
            }
            EventKind::RedundancyReduced { .. } => self.state.is_reduced = true,
            EventKind::RedundancyRestored { .. } => self.state.is_reduced = false,
            _ => {}
        }
    }

    /// Returns whether an event follows from the loss of a member of which a notice has told.
    fn is_quiet(&self, event: &EventReport, at: Moment) -> bool {
        match event.kind {
            EventKind::IoErrors { .. }
            | EventKind::ChecksumErrors { .. }
            | EventKind::MemberSlow { .. } => {
                let lost = &self.state.lost;
                event.member.is_some_and(|member| lost.contains(&member))
            }
            EventKind::RedundancyReduced {
                losses_tolerated, ..
            } => {
                // That no further loss is survived is always told.
                // By both clocks: that of events may have been set back.
                let is_recent = |told: Moment| {
                    let end = told.after(RECOVERY_WINDOW);
                    at.time_ms < end.time_ms && at.arrived < end.arrived
                };
                losses_tolerated > 0 && self.told_loss.is_some_and(is_recent)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn event(member: Option<u16>, kind: EventKind) -> EventReport {
        EventReport {
            time: "2026-11-27T00:00:00.000Z".to_owned(),
            sequence: 1,
            severity: kind.severity(),
            volume: "v".to_owned(),
            member,
            path: member.map(|member| format!("/disks/d{member}")),
            kind,
        }
    }

    pub(in super::super) fn missing(member: u16) -> EventReport {
        let reason = "gone".to_owned();
        event(Some(member), EventKind::MemberMissing { reason })
    }

    pub(in super::super) fn back(member: u16) -> EventReport {
        event(Some(member), EventKind::MemberBack { seconds_away: 9 })
    }

    pub(in super::super) fn reduced() -> EventReport {
        let kind = EventKind::RedundancyReduced {
            losses_tolerated: 1,
            losses_promised: 2,
            stripes: 1,
            bytes: 1,
        };
        event(None, kind)
    }

    pub(in super::super) fn restored() -> EventReport {
        let losses_tolerated = 2;
        event(None, EventKind::RedundancyRestored { losses_tolerated })
    }

    fn errors(member: u16) -> EventReport {
        let kind = EventKind::IoErrors {
            read: 1,
            write: 0,
            seconds: 1,
        };
        event(Some(member), kind)
    }

    pub(in super::super) fn incoming(event: EventReport, sequence: u64, time_ms: i64) -> Incoming {
        let place = LogPlace { sequence, time_ms };
        Incoming {
            event,
            place,
            is_new: false,
        }
    }

    /// Lets events happen at times in milliseconds. Returns the groups: when each was closed, and its events.
    fn groups(script: Vec<(u64, EventReport)>) -> Vec<(u64, usize, bool)> {
        let began = Instant::now();
        let mut grouper = Grouper::default();
        let mut found = Vec::new();
        let mut script = script.into_iter().peekable();
        for ms in 0..200_000 {
            let now = began + Duration::from_millis(ms);
            let mut closed = Vec::new();
            if grouper.wait(now) == Some(Duration::ZERO) {
                closed.extend(grouper.close());
            }
            while let Some((_, event)) = script.next_if(|(at, _)| *at == ms) {
                let happened = i64::try_from(ms).unwrap();
                closed.extend(grouper.add(incoming(event, 0, happened), now));
            }
            found.extend(closed.iter().map(|it| (ms, it.events.len(), it.is_quiet)));
        }
        found
    }

    #[test]
    fn one_dying_disk_is_one_group_and_its_return_another() {
        let script = vec![
            (0, errors(3)),
            (500, missing(3)),
            (2500, reduced()),
            (61_000, errors(3)),
            (90_000, back(3)),
            (93_500, restored()),
        ];
        // The restored redundancy completes the last group.
        let expected = [(3500, 3, false), (61_000, 1, true), (93_501, 2, false)];
        assert_eq!(groups(script), expected);
    }

    #[test]
    fn a_loss_without_a_count_waits_four_seconds_and_a_late_count_is_quiet() {
        let found = groups(vec![(0, missing(3)), (9000, reduced())]);
        assert_eq!(found, [(4000, 1, false), (9000, 1, true)]);
    }

    #[test]
    fn a_late_count_that_leaves_no_further_loss_is_told() {
        let kind = EventKind::RedundancyReduced {
            losses_tolerated: 0,
            losses_promised: 2,
            stripes: 1,
            bytes: 1,
        };
        let found = groups(vec![(0, missing(3)), (9000, event(None, kind))]);
        assert_eq!(found, [(4000, 1, false), (12_000, 1, false)]);
    }

    #[test]
    fn a_recovery_waits_for_the_redundancy_for_a_minute_and_a_loss_ends_the_wait() {
        let script = vec![(0, missing(3)), (100, reduced()), (10_000, back(3))];
        assert_eq!(groups(script), [(3000, 2, false), (70_000, 1, false)]);
        let script = vec![
            (0, missing(3)),
            (100, reduced()),
            (10_000, back(3)),
            (20_000, missing(3)),
        ];
        assert_eq!(groups(script), [(3000, 2, false), (24_000, 2, false)]);
    }

    /// The events of an hour without a process for alerts arrive at once.
    #[test]
    fn a_backlog_is_grouped_by_the_times_at_which_events_happened() {
        let script = [
            (0, missing(3)),
            (2500, reduced()),
            (600_000, back(3)),
            (620_000, restored()),
            (900_000, missing(1)),
            (910_000, reduced()),
            (3_000_000, missing(2)),
        ];
        let mut grouper = Grouper::default();
        let now = Instant::now();
        let mut groups = Vec::new();
        for (at, event) in script {
            groups.extend(grouper.add(incoming(event, 0, at), now));
        }
        groups.extend(grouper.close());
        let found: Vec<(usize, bool)> = groups
            .iter()
            .map(|it| (it.events.len(), it.is_quiet))
            .collect();
        let expected = [(2, false), (2, false), (1, false), (1, true), (1, false)];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_clock_that_was_set_back_keeps_no_later_count_quiet() {
        let mut grouper = Grouper::default();
        let now = Instant::now();
        let hour = 3_600_000;
        assert_eq!(grouper.add(incoming(missing(3), 1, hour), now), []);
        assert!(grouper.close().is_some());
        let quiet = grouper.add(incoming(reduced(), 2, 0), now);
        assert!(quiet[0].is_quiet, "it follows at once");
        let later = now + Duration::from_secs(120);
        assert_eq!(grouper.add(incoming(reduced(), 3, 120_000), later), []);
        assert!(!grouper.close().unwrap().is_quiet);
    }

    #[test]
    fn a_group_is_bounded() {
        let script = (0..130).map(|_| (5, missing(1))).collect();
        let sizes: Vec<usize> = groups(script).iter().map(|it| it.1).collect();
        assert_eq!(sizes, [64, 64, 2]);
    }
}
