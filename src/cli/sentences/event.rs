//! Events in sentences.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::cli::size::{format_count, format_size};
use crate::control::event_report::EventReport;
use crate::format::event::{EventKind, FirstNames, Severity};

impl EventReport {
    /// Composes the line that people read: local time, severity, member, sentence.
    pub(in crate::cli) fn for_people(&self, zone: &TimeZone) -> String {
        let time = local_time(&self.time, zone);
        let severity = match self.severity {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        };
        let member = self
            .member
            .map_or_else(|| "-".to_owned(), |it| it.to_string());
        let sentence = self.sentence();
        format!("{time}  {severity:<8}  {member:>3}  {sentence}")
    }

    pub(in crate::cli) fn sentence(&self) -> String {
        let member = match (self.member, &self.path) {
            (Some(member), Some(path)) => format!("member {member} ({path})"),
            (Some(member), None) => format!("member {member}"),
            (None, _) => "the volume".to_owned(),
        };
        sentence(&self.kind, &member)
    }
}

/// Writes a moment in the zone of the reader. Bytes of a daemon that are no moment stay as they are.
pub(in crate::cli) fn local_time(time: &str, zone: &TimeZone) -> String {
    match time.parse::<Timestamp>() {
        Ok(moment) => {
            let local = moment.to_zoned(zone.clone());
            local.strftime("%Y-%m-%d %H:%M:%S").to_string()
        }
        Err(_) => time.to_owned(),
    }
}

fn seconds(seconds: u64) -> String {
    format_count(seconds, "second")
}

fn because(reason: &str) -> String {
    if reason.is_empty() {
        String::new()
    } else {
        format!(": {reason}")
    }
}

fn sentence(kind: &EventKind, member: &str) -> String {
    of_members(kind, member)
        .or_else(|| of_work(kind))
        .unwrap_or_else(|| of_volume(kind, member))
}

/// Puts an event about a member into a sentence.
fn of_members(kind: &EventKind, member: &str) -> Option<String> {
    Some(match kind {
        EventKind::MemberMissing { reason } => format!("{member} is missing{}", because(reason)),
        EventKind::MemberFaulted { reason } => format!("{member} failed{}", because(reason)),
        EventKind::MemberBack { seconds_away } => {
            format!("{member} is back after {}", seconds(*seconds_away))
        }
        EventKind::MemberSlow { seconds: slow } => {
            format!("{member} has not answered for {}", seconds(*slow))
        }
        EventKind::MemberResponsive { seconds: slow } => {
            format!("{member} answers in time again, after {}", seconds(*slow))
        }
        EventKind::MemberFull { full } => format!(
            "{member} has no room for new data; {} now",
            full_members(*full)
        ),
        EventKind::MemberHasRoom { full } => {
            format!("{member} has room again; {} now", full_members(*full))
        }
        EventKind::MemberAdded { members } => {
            format!("{member} was added: {} now", members_of(*members))
        }
        EventKind::MemberReplaced { by } => format!("{member} was replaced by member {by}"),
        EventKind::MemberRemoved { members } => {
            format!("{member} was removed: {} now", members_of(*members))
        }
        EventKind::MemberDraining { .. } => format!("{member} is being emptied, to be removed"),
        EventKind::ChecksumErrors {
            errors,
            seconds: passed,
        } => format!(
            "{member} had {} in {}",
            format_count(*errors, "checksum error"),
            seconds(*passed)
        ),
        EventKind::IoErrors {
            read,
            write,
            seconds: passed,
        } => {
            let errors = [(*read, "read error"), (*write, "write error")];
            let errors = errors.into_iter().filter(|(count, _)| *count > 0);
            let errors = errors.map(|(count, name)| format_count(count, name));
            let errors = errors.collect::<Vec<_>>().join(" and ");
            format!("{member} had {errors} in {}", seconds(*passed))
        }
        _ => return None,
    })
}

fn members_of(count: u16) -> String {
    format_count(count.into(), "member")
}

fn full_members(count: u16) -> String {
    match count {
        1 => "1 member is full".to_owned(),
        count => format!("{count} members are full"),
    }
}

/// Puts an event about background work into a sentence.
fn of_work(kind: &EventKind) -> Option<String> {
    Some(match kind {
        EventKind::RebuildStarted { bytes_left } => {
            format!(
                "a rebuild began, with {} to write",
                format_size(*bytes_left)
            )
        }
        EventKind::RebuildFinished {
            bytes,
            seconds: took,
        } => format!(
            "a rebuild ended: it wrote {} in {}",
            format_size(*bytes),
            seconds(*took)
        ),
        EventKind::RebuildStopped { bytes, bytes_left } => format!(
            "a rebuild was stopped: it wrote {}, and {} are left",
            format_size(*bytes),
            format_size(*bytes_left)
        ),
        EventKind::RebuildStuck {
            bytes_waiting,
            bytes_unreadable,
            seconds: passed,
        } => stuck_rebuild(*bytes_waiting, *bytes_unreadable, *passed),
        EventKind::BalanceStarted { bytes_left } => format!(
            "a move of data to emptier members began, with {} to move",
            format_size(*bytes_left)
        ),
        EventKind::BalanceFinished {
            bytes,
            seconds: took,
        } => format!(
            "a move of data to emptier members ended: it moved {} in {}",
            format_size(*bytes),
            seconds(*took)
        ),
        EventKind::BalanceStopped { bytes, bytes_left } => format!(
            "a move of data to emptier members was stopped: it moved {}, and {} are left",
            format_size(*bytes),
            format_size(*bytes_left)
        ),
        EventKind::RebuildFailed { reason } => {
            format!("a rebuild failed, and is tried again: {reason}")
        }
        EventKind::ScrubStarted { percent: 0 } => "a scrub began".to_owned(),
        EventKind::ScrubStarted { percent } => format!("a scrub went on at {percent}%"),
        EventKind::ScrubFinished {
            bytes,
            repaired,
            wrong,
            bytes_lost,
        } => format!(
            "a scrub ended: it read {}, repaired {}, left {} wrong, and found {} lost",
            format_size(*bytes),
            format_count(*repaired, "piece"),
            format_count(*wrong, "piece"),
            format_size(*bytes_lost)
        ),
        EventKind::ScrubStopped { percent } => format!("a scrub was stopped at {percent}%"),
        EventKind::ScrubStuck {
            percent,
            seconds: passed,
        } => format!(
            "a scrub has made no progress for {}, at {percent}%",
            seconds(*passed)
        ),
        EventKind::CodeChangeStarted { data, parity, code } => {
            format!("the code is being changed to {data}+{parity} {code}")
        }
        EventKind::CodeChangeFinished { data, parity, code } => {
            format!("all data has the code {data}+{parity} {code}")
        }
        EventKind::CodeChangeStuck { seconds: passed } => format!(
            "the change of the code has made no progress for {}",
            seconds(*passed)
        ),
        EventKind::RemovalsRefused {
            removed,
            files,
            percent,
        } => format!(
            "files are not removed any more: {removed} of {files} were within an hour, and the interlock lets {percent} \
             percent go; `cauchyfs resume` lets more go"
        ),
        EventKind::RemovalsAllowed { seconds: refused } => {
            format!("files are removed again, after {}", seconds(*refused))
        }
        EventKind::Paused { had_work: true } => {
            "background work was paused while some was under way".to_owned()
        }
        EventKind::Paused { had_work: false } => "background work was paused".to_owned(),
        EventKind::Resumed { seconds: paused } => {
            format!("background work goes on after {}", seconds(*paused))
        }
        _ => return None,
    })
}

fn stuck_rebuild(waiting: u64, unreadable: u64, passed: u64) -> String {
    if passed > 0 {
        return format!("a rebuild has made no progress for {}", seconds(passed));
    }
    let parts = [
        (waiting, "find no directory to go to"),
        (unreadable, "wait because data beside them cannot be read"),
    ];
    let parts = parts.iter().filter(|(bytes, _)| *bytes > 0);
    let parts: Vec<String> = parts
        .map(|(bytes, why)| format!("{} {why}", format_size(*bytes)))
        .collect();
    match parts.as_slice() {
        [] => "a rebuild is stuck".to_owned(),
        parts => format!("a rebuild is stuck: {}", parts.join(", and ")),
    }
}

fn lost_ranges(files: u64, bytes: u64, FirstNames(first): &FirstNames) -> String {
    let of_many = u64::try_from(first.len()).unwrap_or(u64::MAX) < files;
    let named = match (first.is_empty(), of_many) {
        (true, _) => String::new(),
        (false, false) => format!(", in {}", first.join(", ")),
        (false, true) => format!(", in {} and others", first.join(", ")),
    };
    format!(
        "{} cannot be read in part: {} are lost{named}",
        format_count(files, "file"),
        format_size(bytes)
    )
}

/// Puts any other event into a sentence.
fn of_volume(kind: &EventKind, subject: &str) -> String {
    match kind {
        EventKind::DaemonStarted {
            members,
            online,
            read_only,
        } => {
            let how = if *read_only { " read-only" } else { "" };
            format!("mounted{how} with {online} of {}", members_of(*members))
        }
        EventKind::DaemonStopped { durable: true } => {
            "unmounted, with everything durable".to_owned()
        }
        EventKind::DaemonStopped { durable: false } => {
            "unmounted, and the last changes are not durable".to_owned()
        }
        EventKind::DaemonCrashed { last_seen_ms } => {
            let last = Timestamp::from_millisecond(*last_seen_ms);
            let last = last.map_or_else(|_| "an unknown time".to_owned(), |it| format!("{it:.0}"));
            format!(
                "the last mount ended without a record of that, some time after {last}: the daemon or the machine crashed, or no member took the record"
            )
        }
        EventKind::RedundancyReduced {
            losses_tolerated,
            losses_promised,
            stripes,
            bytes,
        } => {
            let what = format!(
                "redundancy is reduced: {} in {}",
                format_size(*bytes),
                format_count(*stripes, "stripe")
            );
            let promised = members_of(u16::try_from(*losses_promised).unwrap_or_default());
            match u64::try_from(*losses_tolerated) {
                Ok(losses) => {
                    format!("{what} survive the loss of {losses} at worst, instead of {promised}")
                }
                Err(_) => format!(
                    "{what} survive the loss of fewer than {promised}, and some cannot be read"
                ),
            }
        }
        // The number is that of the volume's code, and directories may have others.
        EventKind::RedundancyRestored { .. } => {
            "redundancy is restored: all data survives as many losses as its code promises"
                .to_owned()
        }
        EventKind::RangesLost {
            files,
            bytes,
            first_files,
        } => lost_ranges(*files, *bytes, first_files),
        EventKind::FileLost { file } => format!("lost in part: {file}"),
        EventKind::RangesRecovered { files } => format!(
            "{} can be read again, or no longer exist",
            format_count(*files, "file")
        ),
        EventKind::SpaceLow {
            bytes_free,
            bytes_usable,
        } => format!(
            "room is low: {} of {} are free",
            format_size(*bytes_free),
            format_size(*bytes_usable)
        ),
        EventKind::SpaceRecovered {
            bytes_free,
            bytes_usable,
        } => format!(
            "there is room again: {} of {} are free",
            format_size(*bytes_free),
            format_size(*bytes_usable)
        ),
        EventKind::ReadOnly { online, needed } => format!(
            "the volume accepts no changes: {online} members are online, and {needed} are needed to read"
        ),
        EventKind::Writable { online } => {
            format!(
                "the volume accepts changes again, with {} online",
                members_of(*online)
            )
        }
        EventKind::ChangesLost { files } => format!(
            "changes of {} were not durable, and are lost",
            format_count(*files, "file")
        ),
        EventKind::EventsDropped { events } => {
            format!(
                "{} were left out: too many came at once",
                format_count(*events, "event")
            )
        }
        _ => format!("something happened to {subject} that this version does not know"),
    }
}
