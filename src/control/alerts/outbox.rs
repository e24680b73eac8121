//! The notices of each receiver: which it gets, how many, and those that wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::grouping::{Group, Incoming};
use super::notice::{Notice, NoticeKind, NoticeVolume};
use super::protocol::LogPlace;
use crate::control::event_report::EventReport;
use crate::format::event::{EventKind, Severity};

/// The time for which notices count, and for which events are held back.
const HOUR_MS: i64 = 3_600_000;

/// Most notices in an hour about one member, or about one condition of the volume. The last is for critical events alone, so that warnings never hold back the
/// loss of a member.
const MOST_OF_MEMBER: usize = 4;

/// The same of everything else that has no condition.
const MOST_OF_VOLUME: usize = 20;

/// Most notices that wait for one receiver. Beyond that the least severe goes, and of those the oldest.
const MOST_WAITING: usize = 64;

/// Most events that are held back in full. The others are counted.
const MOST_HELD: usize = 16;

/// The age at which a notice is given up, if attempts to deliver it fail.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// The subject of a limit.
const VOLUME: &str = "volume";

/// A condition that a later event ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Topic {
    Loss,
    Slowness,
    Fullness,
    Redundancy,
    Rebuild,
    Scrub,
    Code,
    LostData,
    Space,
    ReadOnly,
    Removals,
}

impl Topic {
    /// Returns the topic in words, by which limits know it.
    fn word(self) -> &'static str {
        match self {
            Self::Loss => "lost members",
            Self::Slowness => "slow members",
            Self::Fullness => "full members",
            Self::Redundancy => "redundancy",
            Self::Rebuild => "rebuilds",
            Self::Scrub => "scrubs",
            Self::Code => "changes of the code",
            Self::LostData => "lost data",
            Self::Space => "room",
            Self::ReadOnly => "the end of writes",
            Self::Removals => "refused removals",
        }
    }
}

/// Returns the topic whose limit an event counts for.
fn topic_of(kind: &EventKind) -> Option<Topic> {
    match part_of(kind) {
        Part::Begins(topic) | Part::Ends(topic) => Some(topic),
        Part::None => matches!(kind, EventKind::FileLost { .. }).then_some(Topic::LostData),
    }
}

/// The part of an event in a condition.
enum Part {
    Begins(Topic),
    Ends(Topic),
    None,
}

fn part_of(kind: &EventKind) -> Part {
    match kind {
        EventKind::MemberMissing { .. } | EventKind::MemberFaulted { .. } => {
            Part::Begins(Topic::Loss)
        }
        EventKind::MemberBack { .. }
        | EventKind::MemberReplaced { .. }
        | EventKind::MemberRemoved { .. } => Part::Ends(Topic::Loss),
        EventKind::MemberSlow { .. } => Part::Begins(Topic::Slowness),
        EventKind::MemberResponsive { .. } => Part::Ends(Topic::Slowness),
        EventKind::MemberFull { .. } => Part::Begins(Topic::Fullness),
        EventKind::MemberHasRoom { .. } => Part::Ends(Topic::Fullness),
        EventKind::RedundancyReduced { .. } => Part::Begins(Topic::Redundancy),
        EventKind::RedundancyRestored { .. } => Part::Ends(Topic::Redundancy),
        EventKind::RebuildStuck { .. } | EventKind::RebuildStopped { .. } => {
            Part::Begins(Topic::Rebuild)
        }
        EventKind::RebuildFinished { .. } => Part::Ends(Topic::Rebuild),
        EventKind::ScrubStuck { .. } | EventKind::ScrubStopped { .. } => Part::Begins(Topic::Scrub),
        EventKind::ScrubFinished { .. } => Part::Ends(Topic::Scrub),
        EventKind::CodeChangeStuck { .. } => Part::Begins(Topic::Code),
        EventKind::CodeChangeFinished { .. } => Part::Ends(Topic::Code),
        EventKind::RangesLost { .. } => Part::Begins(Topic::LostData),
        EventKind::RangesRecovered { .. } => Part::Ends(Topic::LostData),
        EventKind::SpaceLow { .. } => Part::Begins(Topic::Space),
        EventKind::SpaceRecovered { .. } => Part::Ends(Topic::Space),
        EventKind::ReadOnly { .. } => Part::Begins(Topic::ReadOnly),
        EventKind::Writable { .. } => Part::Ends(Topic::ReadOnly),
        EventKind::RemovalsRefused { .. } => Part::Begins(Topic::Removals),
        EventKind::RemovalsAllowed { .. } => Part::Ends(Topic::Removals),
        _ => Part::None,
    }
}

/// Events that were held back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Held {
    /// The newest of them.
    events: VecDeque<EventReport>,
    /// The others.
    left_out: u64,
}

impl Held {
    fn add(&mut self, event: EventReport) {
        if self.events.len() == MOST_HELD {
            self.events.pop_front();
            self.left_out += 1;
        }
        self.events.push_back(event);
    }
}

/// The notices of one receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Mailbox {
    waiting: VecDeque<Notice>,
    /// Conditions that the receiver knows of.
    open: BTreeSet<(Topic, Option<u16>)>,
    /// When notices were made, in milliseconds since 1970, by their subject.
    made: BTreeMap<String, Vec<i64>>,
    held: BTreeMap<String, Held>,
    /// The member that was lost or came back last, and when.
    last_member: Option<(u16, i64)>,
    /// Notices that were given up since the last that was made.
    lost: u64,
    /// The place in the log up to which all events are in notices. Earlier programs kept one for all receivers.
    pub(super) seen: Option<LogPlace>,
    /// When the configuration was first found without the receiver, in milliseconds since 1970.
    absent_since: Option<i64>,
}

impl Mailbox {
    /// Notes whether the configuration names the receiver. Returns whether it has not for so long that the mailbox can go.
    pub(super) fn is_forgotten(&mut self, is_named: bool, now_ms: i64) -> bool {
        if is_named {
            self.absent_since = None;
            return false;
        }
        let since = *self.absent_since.get_or_insert(now_ms);
        let kept_ms = i64::try_from(KEPT_FOR.as_millis()).unwrap_or(i64::MAX);
        now_ms.saturating_sub(since) >= kept_ms
    }

    /// Returns whether an event is in no notice yet.
    fn lacks(&self, incoming: &Incoming) -> bool {
        let precedes = |seen: LogPlace| seen.precedes(incoming.place);
        incoming.is_new || self.seen.is_none_or(precedes)
    }

    /// Takes what a group has for a receiver that wants events of `least` severity. The end of a condition that it knows of
    /// always counts.
    pub(super) fn take(
        &mut self,
        group: &Group,
        least: Severity,
        about: &NoticeVolume,
        now_ms: i64,
    ) {
        let mut wanted = Vec::new();
        let mut is_recovery = false;
        for incoming in &group.events {
            if !self.lacks(incoming) {
                continue;
            }
            let event = &incoming.event;
            let ended = self.follow(event, least);
            is_recovery |= ended;
            if (ended || event.severity >= least) && !group.is_quiet {
                wanted.push(event.clone());
            }
        }
        let seen = self.seen.unwrap_or(group.place);
        self.seen = Some(seen.furthest(group.place));
        let mut allowed = Vec::new();
        let mut beyond = Vec::new();
        let mut subjects = BTreeSet::new();
        let mut by_subject: BTreeMap<String, Vec<EventReport>> = BTreeMap::new();
        for event in wanted {
            let subject = self.subject_of(&event, now_ms);
            by_subject.entry(subject).or_default().push(event);
        }
        for (subject, events) in by_subject {
            let is_critical = events.iter().any(|it| it.severity == Severity::Critical);
            if self.has_room(&subject, is_critical, now_ms) {
                allowed.extend(events);
                subjects.insert(subject);
            } else {
                let with_subject = |event| (subject.clone(), event);
                beyond.extend(events.into_iter().map(with_subject));
            }
        }
        let is_sent = !allowed.is_empty();
        for (subject, event) in beyond {
            // The limits are on notices. One that is sent anyway leaves out no loss.
            if is_sent && event.severity == Severity::Critical {
                allowed.push(event);
            } else {
                self.held.entry(subject).or_default().add(event);
            }
        }
        if !is_sent {
            return;
        }
        allowed.sort_by_key(|event| event.sequence);
        let is_problem = allowed.iter().any(|it| it.severity > Severity::Info);
        let kind = match (is_problem, is_recovery) {
            (true, _) => NoticeKind::Problem,
            (false, true) => NoticeKind::Recovery,
            (false, false) => NoticeKind::Information,
        };
        self.make(kind, about, allowed, &subjects, now_ms);
    }

    /// Makes notices of what was held back, as far as the limits allow it by now.
    pub(super) fn summarise(&mut self, about: &NoticeVolume, now_ms: i64) {
        let subjects: Vec<String> = self.held.keys().cloned().collect();
        for subject in subjects {
            if self.has_room(&subject, false, now_ms) {
                let subjects = BTreeSet::from([subject]);
                self.make(NoticeKind::Summary, about, Vec::new(), &subjects, now_ms);
            }
        }
    }

    /// Returns the notices that wait, the oldest first.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Notice> {
        self.waiting.iter()
    }

    /// Removes a notice that was delivered.
    pub(super) fn remove(&mut self, delivered: &Notice) {
        self.waiting.retain(|notice| notice.id != delivered.id);
    }

    /// Returns whether the receiver knows of removals that are refused.
    pub(super) fn has_removals(&self) -> bool {
        let mut open = self.open.iter();
        open.any(|(topic, _)| *topic == Topic::Removals)
    }

    /// Gives up a notice. The next one tells of it.
    pub(super) fn give_up(&mut self, notice: &Notice) {
        let at = self.waiting.iter().position(|it| it.id == notice.id);
        if let Some(notice) = at.and_then(|at| self.waiting.remove(at)) {
            self.lost += notice.notices_lost + 1;
        }
    }

    /// Follows the conditions. Returns whether the event ends one that the receiver knows of.
    fn follow(&mut self, event: &EventReport, least: Severity) -> bool {
        if let EventKind::DaemonStarted {
            members,
            online,
            read_only,
        } = event.kind
        {
            // The new daemon tells of the end of all other conditions, also of those that ended while there was none.
            let is_over = |topic: Topic| match topic {
                Topic::Loss => members == online,
                Topic::ReadOnly => !read_only,
                // A daemon that goes on with a refusal tells of it again.
                Topic::Removals => true,
                _ => false,
            };
            let before = self.open.len();
            self.open.retain(|(topic, _)| !is_over(*topic));
            return self.open.len() < before;
        }
        let member = event.member;
        match part_of(&event.kind) {
            Part::Begins(topic) => {
                if event.severity >= least {
                    self.open.insert((topic, member));
                }
                false
            }
            Part::Ends(topic) => self.open.remove(&(topic, member)),
            Part::None => false,
        }
    }

    /// Returns the subject whose limit an event counts for. What follows from the coming and going of a member counts for
    /// that member.
    fn subject_of(&mut self, event: &EventReport, now_ms: i64) -> String {
        let part = part_of(&event.kind);
        if let Some(member) = event.member {
            if matches!(part, Part::Begins(Topic::Loss) | Part::Ends(Topic::Loss)) {
                self.last_member = Some((member, now_ms));
            }
            return format!("member {member}");
        }
        let follows = matches!(
            part,
            Part::Begins(Topic::Redundancy | Topic::Rebuild | Topic::ReadOnly)
                | Part::Ends(Topic::Redundancy | Topic::Rebuild | Topic::ReadOnly)
        ) || matches!(event.kind, EventKind::RebuildStarted { .. });
        match self.last_member {
            Some((member, at)) if follows && (0..HOUR_MS).contains(&(now_ms - at)) => {
                format!("member {member}")
            }
            _ => topic_of(&event.kind).map_or(VOLUME, Topic::word).to_owned(),
        }
    }

    /// Returns how many notices were made about a subject within the last hour.
    fn made_of(&mut self, subject: &str, now_ms: i64) -> usize {
        let Some(made) = self.made.get_mut(subject) else {
            return 0;
        };
        // Times ahead of the clock were written before it was set back.
        made.retain(|at| (0..HOUR_MS).contains(&(now_ms - at)));
        made.len()
    }

    fn has_room(&mut self, subject: &str, is_critical: bool, now_ms: i64) -> bool {
        let made = self.made_of(subject, now_ms);
        let most = match (subject, is_critical) {
            (VOLUME, _) => MOST_OF_VOLUME,
            (_, true) => MOST_OF_MEMBER,
            (_, false) => MOST_OF_MEMBER - 1,
        };
        made < most
    }

    /// Makes a notice of events, and of those of its subjects that were held back.
    fn make(
        &mut self,
        kind: NoticeKind,
        about: &NoticeVolume,
        events: Vec<EventReport>,
        subjects: &BTreeSet<String>,
        now_ms: i64,
    ) {
        let mut all = Vec::new();
        let mut left_out = 0;
        let mut holding_back = Vec::new();
        let mut topics_held_back = Vec::new();
        for subject in subjects {
            if let Some(held) = self.held.remove(subject) {
                all.extend(held.events);
                left_out += held.left_out;
            }
            self.made.entry(subject.clone()).or_default().push(now_ms);
            if subject == VOLUME || self.made_of(subject, now_ms) < MOST_OF_MEMBER - 1 {
                continue;
            }
            match subject.strip_prefix("member ") {
                Some(member) => holding_back.extend(member.parse::<u16>()),
                None => topics_held_back.push(subject.clone()),
            }
        }
        all.extend(events);
        let mut notice = Notice::new(kind, about.clone(), all);
        notice.events_left_out = left_out;
        notice.holding_back = holding_back;
        notice.topics_held_back = topics_held_back;
        self.waiting.push_back(notice);
        if self.waiting.len() > MOST_WAITING {
            let least = self.waiting.iter().min_by_key(|notice| notice.severity);
            if let Some(least) = least.cloned() {
                self.give_up(&least);
            }
        }
        if let Some(newest) = self.waiting.back_mut() {
            newest.notices_lost += std::mem::take(&mut self.lost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::grouping::tests::{back, event, incoming, missing, reduced, restored};
    use super::*;

    fn group(events: Vec<EventReport>) -> Group {
        let new = events.into_iter().map(|event| Incoming {
            is_new: true,
            ..incoming(event, 0, 0)
        });
        Group {
            events: new.collect(),
            is_quiet: false,
            place: LogPlace {
                sequence: 0,
                time_ms: 0,
            },
        }
    }

    fn take(mailbox: &mut Mailbox, events: Vec<EventReport>, now_ms: i64) {
        let about = NoticeVolume::default();
        mailbox.take(&group(events), Severity::Warning, &about, now_ms);
    }

    fn kinds(mailbox: &Mailbox) -> Vec<NoticeKind> {
        mailbox.waiting.iter().map(|it| it.kind).collect()
    }

    #[test]
    fn a_recovery_of_what_the_receiver_knows_is_sent_whatever_its_severity() {
        let mut mailbox = Mailbox::default();
        take(&mut mailbox, vec![back(3)], 0);
        assert_eq!(kinds(&mailbox), [], "it knew of no loss");
        take(&mut mailbox, vec![missing(3), reduced()], 1);
        take(&mut mailbox, vec![back(3), restored()], 2);
        take(&mut mailbox, vec![back(3), restored()], 3);
        assert_eq!(kinds(&mailbox), [NoticeKind::Problem, NoticeKind::Recovery]);
        assert_eq!(mailbox.waiting[1].events.len(), 2);
        assert_eq!(mailbox.waiting[1].severity, Severity::Info);
    }

    #[test]
    fn a_mount_with_all_members_ends_a_loss_that_the_receiver_knows_of() {
        let started = || {
            let kind = EventKind::DaemonStarted {
                members: 6,
                online: 6,
                read_only: false,
            };
            event(None, kind)
        };
        let mut mailbox = Mailbox::default();
        take(&mut mailbox, vec![started()], 0);
        take(&mut mailbox, vec![missing(3)], 1);
        take(&mut mailbox, vec![started()], 2);
        assert_eq!(kinds(&mailbox), [NoticeKind::Problem, NoticeKind::Recovery]);
    }

    fn low() -> EventReport {
        let (bytes_free, bytes_usable) = (1, 100);
        let kind = EventKind::SpaceLow {
            bytes_free,
            bytes_usable,
        };
        event(None, kind)
    }

    fn roomy() -> EventReport {
        let (bytes_free, bytes_usable) = (50, 100);
        let kind = EventKind::SpaceRecovered {
            bytes_free,
            bytes_usable,
        };
        event(None, kind)
    }

    #[test]
    fn a_condition_outlasts_a_mount_and_its_end_is_told() {
        let started = EventKind::DaemonStarted {
            members: 6,
            online: 5,
            read_only: false,
        };
        let mut mailbox = Mailbox::default();
        take(&mut mailbox, vec![low(), missing(3)], 0);
        take(&mut mailbox, vec![event(None, started)], 1);
        take(&mut mailbox, vec![roomy()], 2);
        take(&mut mailbox, vec![back(3)], 3);
        let (problem, recovery) = (NoticeKind::Problem, NoticeKind::Recovery);
        assert_eq!(kinds(&mailbox), [problem, recovery, recovery]);
    }

    #[test]
    fn room_that_comes_and_goes_has_a_limit_of_its_own() {
        let mut mailbox = Mailbox::default();
        for at in 0..20 {
            take(
                &mut mailbox,
                vec![if at % 2 == 0 { low() } else { roomy() }],
                at,
            );
        }
        assert_eq!(mailbox.waiting.len(), MOST_OF_MEMBER - 1);
        assert_eq!(mailbox.waiting[2].topics_held_back, ["room"]);
        take(&mut mailbox, vec![missing(3)], 21);
        assert_eq!(mailbox.waiting.len(), MOST_OF_MEMBER, "others have theirs");
        mailbox.summarise(&NoticeVolume::default(), HOUR_MS + 1);
        let summary = mailbox.waiting.back().unwrap();
        let told = summary.events.len() as u64 + summary.events_left_out;
        assert_eq!((summary.kind, told), (NoticeKind::Summary, 17));
    }

    #[test]
    fn a_receiver_gets_the_events_behind_its_own_place_in_the_log() {
        let mut mailbox = Mailbox {
            seen: Some(LogPlace {
                sequence: 5,
                time_ms: 50,
            }),
            ..Mailbox::default()
        };
        let late = Group {
            events: vec![incoming(missing(1), 5, 50), incoming(missing(2), 6, 60)],
            ..group(Vec::new())
        };
        let late = Group {
            place: late.events[1].place,
            ..late
        };
        let about = NoticeVolume::default();
        for _ in 0..2 {
            mailbox.take(&late, Severity::Warning, &about, 0);
        }
        assert_eq!(mailbox.waiting.len(), 1, "it has seen them then");
        assert_eq!(mailbox.waiting[0].events, [missing(2)]);
    }

    #[test]
    fn a_mailbox_is_forgotten_after_a_week_without_its_receiver() {
        const WEEK_MS: i64 = 7 * 24 * HOUR_MS;
        let mut mailbox = Mailbox::default();
        assert!(!mailbox.is_forgotten(false, 5));
        assert!(!mailbox.is_forgotten(false, WEEK_MS));
        assert!(mailbox.is_forgotten(false, WEEK_MS + 5));
        assert!(!mailbox.is_forgotten(true, WEEK_MS + 5));
        assert!(!mailbox.is_forgotten(false, 2 * WEEK_MS), "it came back");
    }

    #[test]
    fn a_quiet_group_makes_no_notice_and_its_condition_is_known() {
        let mut mailbox = Mailbox::default();
        let quiet = Group {
            is_quiet: true,
            ..group(vec![reduced()])
        };
        mailbox.take(&quiet, Severity::Warning, &NoticeVolume::default(), 0);
        assert_eq!(kinds(&mailbox), []);
        take(&mut mailbox, vec![restored()], 1);
        assert_eq!(kinds(&mailbox), [NoticeKind::Recovery]);
    }

    /// A member that flaps for three hours gives at most four notices in any hour, and no event is forgotten.
    #[test]
    fn a_flapping_member_gives_four_notices_an_hour_and_the_rest_is_summarised() {
        let mut mailbox = Mailbox::default();
        let mut made = Vec::new();
        let mut events = 0;
        let about = NoticeVolume::default();
        for second in 0..3 * 3600_i64 {
            let now_ms = second * 1000;
            if second % 60 == 0 {
                take(&mut mailbox, vec![missing(3), reduced()], now_ms);
            } else if second % 60 == 30 {
                take(&mut mailbox, vec![back(3)], now_ms);
            } else if second % 60 == 40 {
                take(&mut mailbox, vec![restored()], now_ms);
            }
            mailbox.summarise(&about, now_ms);
            while let Some(notice) = mailbox.waiting.front().cloned() {
                events += notice.events.len() as u64 + notice.events_left_out;
                made.push((now_ms, notice.clone()));
                mailbox.remove(&notice);
            }
        }
        for (at, _) in &made {
            let within = made
                .iter()
                .filter(|(it, _)| (0..HOUR_MS).contains(&(it - at)));
            assert!(within.count() <= 4, "{at}");
        }
        assert!(made.len() >= 9, "{}", made.len());
        assert!(made[3].1.holding_back == [3], "the last says so");
        let held = mailbox.held.values();
        let held: u64 = held.map(|it| it.events.len() as u64 + it.left_out).sum();
        assert_eq!(events + held, 180 * 4);
    }

    #[test]
    fn warnings_do_not_hold_back_a_loss_and_members_not_each_other() {
        let slow = || event(Some(3), EventKind::MemberSlow { seconds: 2 });
        let mut mailbox = Mailbox::default();
        for at in 0..9 {
            take(&mut mailbox, vec![slow()], at);
        }
        assert_eq!(mailbox.waiting.len(), 3);
        take(&mut mailbox, vec![missing(3)], 10);
        assert_eq!(mailbox.waiting.len(), 4);
        assert_eq!(mailbox.waiting[3].events.len(), 7, "with those held back");
        take(&mut mailbox, vec![missing(3), missing(5)], 11);
        assert_eq!(mailbox.waiting.len(), 5);
        assert_eq!(mailbox.waiting[4].events, [missing(5), missing(3)]);
        take(&mut mailbox, vec![missing(3)], 12);
        assert_eq!(mailbox.waiting.len(), 5, "a notice about 3 alone");
        take(&mut mailbox, vec![slow(), missing(5)], 13);
        assert_eq!(mailbox.waiting[5].events, [missing(5)], "the warning waits");
    }

    #[test]
    fn waiting_notices_are_bounded_and_the_next_tells_how_many_were_given_up() {
        let mut mailbox = Mailbox::default();
        for member in 0..70 {
            take(&mut mailbox, vec![missing(member)], 0);
        }
        assert_eq!(mailbox.waiting.len(), MOST_WAITING);
        let lost: u64 = mailbox.waiting.iter().map(|it| it.notices_lost).sum();
        assert_eq!(lost, 6);
        let first = mailbox.waiting[0].clone();
        mailbox.give_up(&first);
        mailbox.give_up(&first);
        assert_eq!(mailbox.lost, 1, "it is given up once");
    }

    #[test]
    fn of_waiting_notices_the_least_severe_is_given_up() {
        let mut mailbox = Mailbox::default();
        let slow = |member| event(Some(member), EventKind::MemberSlow { seconds: 2 });
        take(&mut mailbox, vec![missing(0)], 0);
        take(&mut mailbox, vec![slow(1)], 0);
        for member in 2..70 {
            take(&mut mailbox, vec![missing(member)], 0);
        }
        let severities = |mailbox: &Mailbox| -> Vec<Severity> {
            mailbox.waiting.iter().map(|it| it.severity).collect()
        };
        assert_eq!(severities(&mailbox), [Severity::Critical; MOST_WAITING]);
        take(&mut mailbox, vec![slow(70)], 0);
        assert_eq!(severities(&mailbox), [Severity::Critical; MOST_WAITING]);
        let lost: u64 = mailbox.waiting.iter().map(|it| it.notices_lost).sum();
        assert_eq!(lost, 7);
        assert!(mailbox.waiting.iter().all(|it| it.events != [slow(70)]));
    }
}
