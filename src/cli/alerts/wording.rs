//! Notices in words: a subject, the events, and what to type next.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::tz::TimeZone;

use crate::cli::sentences::event::local_time;
use crate::cli::shell::quoted_path;
use crate::cli::size::format_count;
use crate::cli::terminal::Escaped;
use crate::control::alerts::notice::{Letter, Notice, NoticeKind};
use crate::control::event_report::EventReport;
use crate::format::event::{EventKind, Severity};

/// The longest subject, in characters: programs for mail show about so many.
const LONGEST_SUBJECT: usize = 105;

/// The longest name in a subject, in characters. The id of a volume is as long.
const LONGEST_NAME: usize = 36;

/// The longest line of a text, in characters.
const LONGEST_LINE: usize = 500;

/// Puts a notice into words.
pub(in crate::cli) fn wording(notice: &Notice) -> Letter {
    let subject = if notice.kind == NoticeKind::Test {
        format!("CauchyFS on {}: a test alert", host())
    } else {
        let volume = format!("Volume {}: ", shortened(name(notice), LONGEST_NAME));
        let most = LONGEST_SUBJECT.saturating_sub(volume.chars().count());
        let by_path = headline(notice, member_name);
        let headline = if by_path.chars().count() > most {
            headline(notice, member_number)
        } else {
            by_path
        };
        volume + &first_clauses(&headline, most)
    };
    Letter {
        subject: shortened(&subject, LONGEST_SUBJECT),
        text: text(notice),
    }
}

fn host() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

fn name(notice: &Notice) -> &str {
    match notice.about.label.as_str() {
        "" => &notice.about.volume,
        label => label,
    }
}

/// Escapes and shortens a line.
fn shortened(line: &str, most: usize) -> String {
    let line = Escaped(line).to_string();
    if line.chars().count() <= most {
        return line;
    }
    line.chars().take(most).chain(['…']).collect()
}

/// Returns as many whole clauses of a sentence as fit. The text of the notice has all of it.
fn first_clauses(sentence: &str, most: usize) -> String {
    let sentence = Escaped(sentence).to_string();
    let Some((end, _)) = sentence.char_indices().nth(most) else {
        return sentence;
    };
    let clause = ["; ", ": ", ", "].map(|mark| sentence[..end].rfind(mark));
    if let Some(cut) = clause.into_iter().flatten().max() {
        return sentence[..cut].to_owned();
    }
    let word = sentence[..end].rfind(' ').unwrap_or(end);
    format!("{} …", &sentence[..word])
}

/// Names a member by its path, or by its number if that is shorter by far.
fn member_name(event: &EventReport) -> String {
    let is_short = |path: &&String| path.chars().count() <= LONGEST_NAME;
    match event.path.as_ref().filter(is_short) {
        Some(path) => format!("member {path}"),
        None => member_number(event),
    }
}

fn member_number(event: &EventReport) -> String {
    let number = event.member.map(|number| format!("member {number}"));
    number.unwrap_or_else(|| "a member".to_owned())
}

/// Says in one line how things are after the events of a notice.
fn headline(notice: &Notice, member_name: fn(&EventReport) -> String) -> String {
    let mut members: BTreeMap<u16, &EventReport> = BTreeMap::new();
    let mut redundancy = None;
    for event in &notice.events {
        match (&event.kind, event.member) {
            (
                EventKind::MemberMissing { .. }
                | EventKind::MemberFaulted { .. }
                | EventKind::MemberBack { .. },
                Some(member),
            ) => {
                members.insert(member, event);
            }
            (EventKind::RedundancyReduced { .. } | EventKind::RedundancyRestored { .. }, _) => {
                redundancy = Some(event);
            }
            _ => {}
        }
    }
    let is_back = |event: &&&EventReport| matches!(event.kind, EventKind::MemberBack { .. });
    let (back, lost): (Vec<&EventReport>, Vec<&EventReport>) =
        members.values().copied().partition(|event| is_back(&event));
    if let ([], Some(problem)) = (lost.as_slice(), other_problem(notice)) {
        return problem.sentence();
    }
    let first = match (lost.as_slice(), back.as_slice()) {
        ([one], _) if matches!(one.kind, EventKind::MemberMissing { .. }) => {
            format!("{} is missing", member_name(one))
        }
        ([one], _) => format!("{} failed", member_name(one)),
        ([], [one]) => format!("{} is back", member_name(one)),
        ([], []) => return most_severe(notice),
        ([], several) => format!("{} members are back", several.len()),
        (several, _) => format!("{} members are missing or failed", several.len()),
    };
    match redundancy.and_then(|event| survival(&event.kind)) {
        Some(survival) => format!("{first}; {survival}"),
        None => first,
    }
}

/// Returns the worst event of a notice of a problem that is about neither the presence of members nor the redundancy.
fn other_problem(notice: &Notice) -> Option<&EventReport> {
    if notice.kind != NoticeKind::Problem {
        return None;
    }
    let others = notice.events.iter().filter(|event| {
        let is_problem = event.severity >= Severity::Warning;
        let is_told_otherwise = matches!(
            event.kind,
            EventKind::MemberMissing { .. }
                | EventKind::MemberFaulted { .. }
                | EventKind::MemberBack { .. }
                | EventKind::RedundancyReduced { .. }
                | EventKind::RedundancyRestored { .. }
        );
        is_problem && !is_told_otherwise
    });
    // Of several that are as severe, the first says how many files are concerned. Earlier builds named each after it.
    others.rev().max_by_key(|event| event.severity)
}

fn survival(kind: &EventKind) -> Option<String> {
    match kind {
        EventKind::RedundancyReduced {
            losses_tolerated, ..
        } => Some(match losses_tolerated {
            ..0 => "some data cannot be read".to_owned(),
            0 => "the volume survives no further loss".to_owned(),
            losses => format!("the volume survives the loss of {losses} more"),
        }),
        EventKind::RedundancyRestored { .. } => Some("the redundancy is restored".to_owned()),
        _ => None,
    }
}

/// Returns the sentence of the last event of the highest severity.
fn most_severe(notice: &Notice) -> String {
    let worst = notice.events.iter().max_by_key(|event| event.severity);
    worst.map_or_else(
        || "events that were held back".to_owned(),
        EventReport::sentence,
    )
}

fn text(notice: &Notice) -> String {
    let mut lines = Vec::new();
    match notice.kind {
        NoticeKind::Test => lines.push(format!(
            "`cauchyfs alerts test` on {} sent this. Alerts reach you.",
            host()
        )),
        NoticeKind::Summary => lines.push("These events were held back until now:".to_owned()),
        NoticeKind::Problem | NoticeKind::Recovery | NoticeKind::Information => {}
    }
    let zone = TimeZone::system();
    let events = notice.events.iter().map(|event| {
        let time = local_time(&event.time, &zone);
        format!("{time}  {}", event.sentence())
    });
    lines.extend(events);
    if notice.events_left_out > 0 {
        let more = format_count(notice.events_left_out, "more event");
        lines.push(format!("{more} of the same time are in `cauchyfs events`."));
    }
    if notice.notices_lost > 0 {
        let lost = format_count(notice.notices_lost, "earlier alert");
        lines.push(format!("{lost} could not be delivered in time."));
    }
    let members = notice.holding_back.iter();
    let members = members.map(|member| format!("member {member}"));
    for subject in members.chain(notice.topics_held_back.iter().cloned()) {
        lines.push(format!(
            "Further alerts about {subject} are held back for up to an hour, and a summary follows."
        ));
    }
    if notice.kind != NoticeKind::Test {
        lines.push(String::new());
        let host = host();
        let place = Path::new(&notice.about.mountpoint);
        lines.push(format!(
            "Volume {} at {} on {host}.",
            name(notice),
            place.display()
        ));
        let place = quoted_path(place);
        lines.push(format!("Next: `cauchyfs status {place}` says what to do; `cauchyfs events {place}` has all events."));
    }
    let lines = lines.iter().map(|line| shortened(line, LONGEST_LINE));
    lines.map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::alerts::notice::NoticeVolume;
    use crate::format::event::FirstNames;
    use uuid::Uuid;

    fn event(member: Option<u16>, kind: EventKind) -> EventReport {
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

    fn missing(member: u16) -> EventReport {
        let reason = "gone\nBcc: x".to_owned();
        event(Some(member), EventKind::MemberMissing { reason })
    }

    fn subject(events: Vec<EventReport>) -> String {
        let about = NoticeVolume {
            volume: "v".to_owned(),
            label: "photos".to_owned(),
            mountpoint: "/mnt/my photos".to_owned(),
        };
        let letter = wording(&Notice::new(NoticeKind::Problem, about, events));
        assert!(
            letter.text.contains("cauchyfs status '/mnt/my photos'"),
            "{letter:?}"
        );
        assert!(!letter.text.contains("\nBcc"), "{letter:?}");
        letter.subject
    }

    #[test]
    fn the_subject_says_what_is_missing_and_what_the_volume_survives() {
        let reduced = |losses_tolerated| {
            let kind = EventKind::RedundancyReduced {
                losses_tolerated,
                losses_promised: 2,
                stripes: 1,
                bytes: 1,
            };
            event(None, kind)
        };
        assert_eq!(
            subject(vec![missing(3), reduced(1)]),
            "Volume photos: member /disks/d3 is missing; the volume survives the loss of 1 more"
        );
        assert_eq!(
            subject(vec![missing(3), missing(4), reduced(1), reduced(-1)]),
            "Volume photos: 2 members are missing or failed; some data cannot be read"
        );
        let back = event(Some(3), EventKind::MemberBack { seconds_away: 5 });
        let restored = EventKind::RedundancyRestored {
            losses_tolerated: 2,
        };
        assert_eq!(
            subject(vec![missing(3), back, event(None, restored)]),
            "Volume photos: member /disks/d3 is back; the redundancy is restored"
        );
        let low = EventKind::SpaceLow {
            bytes_free: 1 << 20,
            bytes_usable: 1 << 30,
        };
        assert!(subject(vec![event(None, low)]).starts_with("Volume photos: room is low"));
    }

    /// Programs for mail cut what is longer, and the number tells most.
    #[test]
    fn a_long_subject_ends_with_a_whole_clause_and_the_text_has_all_of_it() {
        let lost = || EventKind::RangesLost {
            files: 1234,
            bytes: 5 << 30,
            first_files: FirstNames(vec!["long/name".repeat(9), "b".to_owned(), "c".to_owned()]),
        };
        let named = EventKind::FileLost {
            file: "a".to_owned(),
        };
        let expected = "Volume photos: 1234 files cannot be read in part: 5.0 GiB are lost";
        let events = || vec![event(None, lost()), event(None, named.clone())];
        assert_eq!(subject(events()), expected);
        let mut notice = Notice::new(NoticeKind::Problem, NoticeVolume::default(), events());
        let letter = wording(&notice);
        assert!(
            letter.text.contains("long/name, b, c and others"),
            "{letter:?}"
        );
        notice.about.label = "very long label ".repeat(20);
        notice.events[0].member = Some(7);
        notice.events[0].path = Some("/mnt/disks/a/very/long/name/of/a/directory".to_owned());
        let reason =
            "a reason that goes on and on without any mark between its many words".repeat(3);
        notice.events[0].kind = EventKind::MemberFaulted { reason };
        notice.events.truncate(1);
        let letter = wording(&notice);
        assert!(
            letter.subject.chars().count() <= LONGEST_SUBJECT,
            "{letter:?}"
        );
        assert!(letter.subject.ends_with(": member 7 failed"), "{letter:?}");
        (notice.about.label, notice.about.volume) = (String::new(), Uuid::nil().to_string());
        let expected = format!("Volume {}: member 7 failed", Uuid::nil());
        assert_eq!(
            wording(&notice).subject,
            expected,
            "filters look for the id"
        );
        let words = first_clauses("several words without a mark", 15);
        assert_eq!(words, "several words …");
    }

    #[test]
    fn the_subject_of_a_problem_is_the_problem_and_not_a_member_that_is_back() {
        let back = event(Some(3), EventKind::MemberBack { seconds_away: 5 });
        let stuck = EventKind::RebuildStuck {
            bytes_waiting: 1 << 20,
            bytes_unreadable: 0,
            seconds: 0,
        };
        assert_eq!(
            subject(vec![back, event(None, stuck)]),
            "Volume photos: a rebuild is stuck: 1.0 MiB find no directory to go to"
        );
    }
}
