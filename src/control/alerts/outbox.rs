//! The notices of each receiver: which it gets, how many, and those that wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::grouping::Group;
use super::notice::{Notice, NoticeKind, NoticeVolume};
use crate::control::event_report::EventReport;
use crate::format::event::{EventKind, Severity};

/// The time for which notices count, and for which events are held back.
const HOUR_MS: i64 = 3_600_000;

/// Most notices in an hour about one member. The last is for critical events alone, so that warnings never hold back the
/// loss of a member.
const MOST_OF_MEMBER: usize = 4;

/// The same of everything else.
const MOST_OF_VOLUME: usize = 20;

/// Most notices that wait for one receiver.
const MOST_WAITING: usize = 64;

/// Most events that are held back in full. The others are counted.
const MOST_HELD: usize = 16;

/// The time after which a notice is given up.
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
        _ => Part::None,
    }
}

/// Events that were held back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
}

impl Mailbox {
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
        for event in &group.events {
            let ended = self.follow(event, least);
            is_recovery |= ended;
            if (ended || event.severity >= least) && !group.is_quiet {
                wanted.push(event.clone());
            }
        }
        let mut allowed = Vec::new();
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
                let held = self.held.entry(subject).or_default();
                for event in events {
                    held.add(event);
                }
            }
        }
        if allowed.is_empty() {
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

    /// Returns the oldest notice that waits.
    pub(super) fn first(&self) -> Option<&Notice> {
        self.waiting.front()
    }

    /// Removes a notice that was delivered.
    pub(super) fn remove(&mut self, delivered: &Notice) {
        self.waiting.retain(|notice| notice.id != delivered.id);
    }

    /// Gives up notices that have waited too long. Returns how many.
    pub(super) fn give_up_old(&mut self, now: jiff::Timestamp) -> usize {
        let before = self.waiting.len();
        let limit = i64::try_from(KEPT_FOR.as_secs()).unwrap_or(i64::MAX);
        self.waiting.retain(|notice| {
            let made = notice.time.parse::<jiff::Timestamp>();
            made.is_ok_and(|made| now.as_second() - made.as_second() < limit)
        });
        let given_up = before - self.waiting.len();
        self.lost += given_up as u64;
        given_up
    }

    /// Follows the conditions. Returns whether the event ends one that the receiver knows of.
    fn follow(&mut self, event: &EventReport, least: Severity) -> bool {
        if let EventKind::DaemonStarted {
            members, online, ..
        } = event.kind
        {
            // The new daemon tells again what is wrong.
            let had_losses = self.open.iter().any(|(topic, _)| *topic == Topic::Loss);
            self.open.clear();
            return had_losses && members == online;
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
            _ => VOLUME.to_owned(),
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
        for subject in subjects {
            if let Some(held) = self.held.remove(subject) {
                all.extend(held.events);
                left_out += held.left_out;
            }
            self.made.entry(subject.clone()).or_default().push(now_ms);
            if let Some(member) = subject.strip_prefix("member ")
                && self.made_of(subject, now_ms) >= MOST_OF_MEMBER - 1
            {
                holding_back.extend(member.parse::<u16>());
            }
        }
        all.extend(events);
        let mut notice = Notice::new(kind, about.clone(), all);
        notice.events_left_out = left_out;
        notice.holding_back = holding_back;
        if self.waiting.len() == MOST_WAITING {
            // The newest say how things are.
            self.waiting.pop_front();
            self.lost += 1;
        }
        notice.notices_lost = std::mem::take(&mut self.lost);
        self.waiting.push_back(notice);
    }
}

#[cfg(test)]
mod tests {
    use super::super::grouping::tests::{back, event, missing, reduced, restored};
    use super::super::protocol::LogPlace;
    use super::*;

    fn group(events: Vec<EventReport>) -> Group {
        Group {
            events,
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
            while let Some(notice) = mailbox.first().cloned() {
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
        assert_eq!(mailbox.waiting[4].events, [missing(5)]);
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
        let later = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(7 * 24 + 1);
        assert_eq!(mailbox.give_up_old(later), MOST_WAITING);
    }
}
