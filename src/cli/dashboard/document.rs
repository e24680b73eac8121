//! The document behind the page: what is known of all volumes, in sentences and numbers.
//!
//! All texts are those of `status` and `events`. They are escaped and cut when they come from a daemon, so that what is
//! remembered of a volume is bounded.

use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use serde::Serialize;

use super::commands::{commands_in, names_could_forge_commands};
use super::history::{Bytes, STEP};
use super::known::{Known, Silence};
use super::watch::{Board, View, Watched};
use crate::cli::sentences::mountpoint_word;
use crate::cli::size::{format_count, format_size};
use crate::cli::terminal::Escaped;
use crate::control::event_report::EventReport;
use crate::control::report::{MemberReport, MemberState, StatusReport, VolumeState};
use crate::format::event::Severity;
use crate::fuse::Transport;
use crate::maintenance::{RebuildKind, RebuildState};

/// The longest text that is shown, in characters.
pub(super) const LONGEST: usize = 1000;

/// The members that are shown at most. A volume has no more.
const MOST_MEMBERS: usize = 256;

/// The lines of a list that are shown at most.
pub(super) const MOST_LINES: usize = 64;

/// The state of all volumes.
#[derive(Debug, Serialize)]
pub(super) struct VolumesDocument {
    version: &'static str,
    host: String,
    /// The owner of these volumes, in words.
    scope: String,
    began: i64,
    now: i64,
    left_out: usize,
    /// When the list of volumes was made, if it is old.
    listed: Option<i64>,
    /// The reason why there may be others.
    failure: Option<String>,
    volumes: Vec<VolumeDocument>,
}

/// A volume.
#[derive(Debug, Serialize)]
struct VolumeDocument {
    mountpoint: String,
    name: String,
    kind: &'static str,
    sentence: String,
    /// The problem with the daemon, if there is one.
    silence: Option<SilenceDocument>,
    /// When the state was told. None if it never was.
    told: Option<i64>,
    #[serde(flatten)]
    state: Option<Arc<StateDocument>>,
    /// The activity of each member now, in words, if that is known.
    activities: Vec<Option<Vec<String>>>,
    /// The reason why the page of metrics does not have all of its metrics.
    no_metrics: Option<String>,
    work: Vec<WorkDocument>,
    traffic: TrafficDocument,
    events: Vec<Arc<EventDocument>>,
}

#[derive(Debug, Serialize)]
struct SilenceDocument {
    text: String,
    advice: Option<String>,
    since: i64,
}

/// The part of the document that a daemon tells.
#[derive(Debug, Serialize)]
pub(super) struct StateDocument {
    #[serde(skip)]
    name: String,
    #[serde(skip)]
    kind: &'static str,
    #[serde(skip)]
    sentence: String,
    #[serde(skip)]
    work: [Option<WorkState>; 2],
    id: String,
    details: Vec<String>,
    capacity: CapacityDocument,
    members: Vec<MemberDocument>,
    redundancy: Vec<RedundancyDocument>,
    redundancy_notes: Vec<String>,
    work_notes: Vec<String>,
    lost: Vec<String>,
    next: String,
    commands: Vec<String>,
}

/// Work that is under way.
#[derive(Clone, Debug)]
struct WorkState {
    name: &'static str,
    text: String,
    progress: f64,
    /// The rest, in bytes for a rebuild and as a part of all for a scrub.
    left: f64,
}

#[derive(Debug, Serialize)]
struct WorkDocument {
    name: &'static str,
    text: String,
    progress: f64,
    rate: Option<String>,
    seconds_left: Option<u64>,
}

#[derive(Debug, Serialize)]
struct CapacityDocument {
    used: Option<u64>,
    usable: Option<u64>,
    text: String,
}

#[derive(Debug, Serialize)]
struct MemberDocument {
    index: u16,
    path: String,
    state: &'static str,
    /// False if its directory does not take part.
    is_here: bool,
    /// Reasons and warnings.
    notes: Vec<String>,
    used: Option<u64>,
    free: Option<u64>,
    space: String,
    errors: u64,
    errors_text: String,
}

#[derive(Debug, Serialize)]
struct RedundancyDocument {
    text: String,
    /// The part of all live bytes.
    part: f64,
    level: &'static str,
}

#[derive(Debug, Serialize)]
struct TrafficDocument {
    since: i64,
    step: u64,
    read: Vec<Option<u64>>,
    written: Vec<Option<u64>>,
    read_now: Option<u64>,
    written_now: Option<u64>,
}

/// An event. Equal ones are the same. The sequence alone does not tell, because a log may go on from an older copy.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct EventDocument {
    #[serde(skip)]
    sequence: u64,
    time: Option<i64>,
    severity: &'static str,
    text: String,
}

impl VolumesDocument {
    /// Composes the document of now.
    pub(super) fn of(board: &Board) -> Self {
        let View {
            shown,
            left_out,
            listed,
            failure,
        } = board.view();
        let uid = rustix::process::geteuid();
        let scope = if uid.is_root() {
            "all volumes of this machine".to_owned()
        } else {
            format!("volumes of user {}", uid.as_raw())
        };
        let node = rustix::system::uname();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            host: text(node.nodename().to_string_lossy()),
            scope,
            began: millis(board.began),
            now: millis(SystemTime::now()),
            left_out,
            listed: listed.map(millis),
            failure,
            volumes: shown.iter().map(|it| VolumeDocument::of(it)).collect(),
        }
    }
}

impl VolumeDocument {
    fn of(watched: &Watched) -> Self {
        watched.with(|known| Self::of_known(&watched.mountpoint, known))
    }

    fn of_known(mountpoint: &Path, known: &mut Known) -> Self {
        let now = Instant::now();
        let state = known.state.as_ref().map(|state| Arc::clone(&state.told));
        let place = text(mountpoint.display());
        let silence = SilenceDocument::of(mountpoint, known);
        let (kind, sentence) = match (&silence, &state) {
            (Some(_), _) if known.unmounted.is_some() => ("ended", "is not mounted any more"),
            (Some(_), _) if known.silence.as_ref().is_some_and(|it| it.is_gone) => {
                ("gone", "is without its daemon, which is gone")
            }
            (Some(_), _) => ("silent", "has a daemon that does not tell how it is"),
            (None, Some(state)) => (state.kind, state.sentence.as_str()),
            (None, None) => ("unknown", "is being asked how it is"),
        };
        let name = state.as_ref().map(|state| state.name.clone());
        let name = name.unwrap_or_else(|| place.clone());
        let sentence = format!("{name} {sentence}.");
        let is_silent = silence.is_some();
        Self {
            name,
            mountpoint: place,
            kind,
            sentence,
            silence,
            activities: {
                let members = state.iter().flat_map(|state| &state.members);
                let activity = |member: &MemberDocument| known.activity.of(member.index);
                members.map(activity).collect()
            },
            no_metrics: known.no_metrics.as_ref().map(|(_, reason)| text(reason)),
            told: known.state.as_ref().map(|state| millis(state.taken_at)),
            work: if is_silent {
                Vec::new()
            } else {
                WorkDocument::all(state.as_deref(), known)
            },
            traffic: TrafficDocument::of(known, now),
            events: known.events.iter().rev().map(Arc::clone).collect(),
            state,
        }
    }
}

impl SilenceDocument {
    /// Says why the state is not that of now, if so.
    fn of(mountpoint: &Path, known: &Known) -> Option<Self> {
        if let Some((_, since)) = known.unmounted {
            let place = mountpoint_word(Some(mountpoint));
            return Some(Self {
                text: "The volume is not mounted any more. This is how it was at last.".to_owned(),
                advice: Some(text(format_args!(
                    "to mount it again: `cauchyfs mount DIR... {place}`"
                ))),
                since: millis(since),
            });
        }
        let is_long = |silence: &Silence| silence.is_long();
        let silence = known.silence.clone().filter(is_long);
        let silence = silence.or_else(|| known.overdue());
        let silence = silence.or_else(|| known.no_state.clone().filter(is_long));
        let Silence { failure, since, .. } = silence?;
        Some(Self {
            text: text(&failure.message),
            advice: failure.advice.as_ref().map(text),
            since: millis(since),
        })
    }
}

impl StateDocument {
    /// Puts a report into sentences and numbers.
    pub(super) fn of(report: &StatusReport, mountpoint: &Path) -> Self {
        let name = if report.label.is_empty() {
            &report.volume
        } else {
            &report.label
        };
        let next = report.next_step(Some(mountpoint));
        let commands = if names_could_forge_commands(report, mountpoint) {
            Vec::new()
        } else {
            commands_in(&next)
        };
        let [rebuild, scrub] = report.work_lines();
        let work = [rebuild_state(report, &rebuild), scrub_state(report, &scrub)];
        // The first line of work that is under way is shown with it.
        let notes = [(rebuild, &work[0]), (scrub, &work[1])]
            .into_iter()
            .flat_map(|(lines, work)| lines.into_iter().skip(usize::from(work.is_some())));
        Self {
            name: text(name),
            kind: kind_of(report),
            sentence: sentence_of(report),
            id: text(&report.volume),
            details: details_of(report),
            capacity: CapacityDocument::of(report),
            members: report
                .members
                .iter()
                .take(MOST_MEMBERS)
                .map(MemberDocument::of)
                .collect(),
            redundancy: RedundancyDocument::all(report),
            redundancy_notes: lines(report.redundancy_notes()),
            work_notes: lines(notes),
            work,
            lost: lines(report.lost.lines()),
            next: text(next),
            commands,
        }
    }
}

/// Says how the volume is; its name stands before.
fn sentence_of(report: &StatusReport) -> String {
    let verb = match report.state {
        VolumeState::Healthy | VolumeState::Degraded => "is",
        VolumeState::Failed => "has",
    };
    text(format_args!("{verb} {}", report.headline()))
}

fn kind_of(report: &StatusReport) -> &'static str {
    let is_rebuilding = report.rebuild.state == RebuildState::Running
        && report.rebuild.kind == RebuildKind::Rebuild;
    match report.state {
        VolumeState::Healthy => "healthy",
        VolumeState::Degraded if is_rebuilding => "rebuilding",
        VolumeState::Degraded => "degraded",
        VolumeState::Failed => "failed",
    }
}

fn details_of(report: &StatusReport) -> Vec<String> {
    let geometry = &report.geometry;
    let code = format!("{}+{} {}", geometry.data, geometry.parity, geometry.code);
    let transport = match report.transport {
        Some(Transport::Uring) => "mounted over io_uring",
        Some(Transport::Classic) => "mounted over /dev/fuse",
        None => "mounted",
    };
    let mut details = vec![text(code), transport.to_owned()];
    // A volume that is away has no engine.
    if report.coding.is_some() {
        details.push(text(format_args!("engine {}", report.engine)));
    }
    if report.read_only {
        details.push("takes no writes".to_owned());
    }
    if report.paused {
        details.push("background work is paused".to_owned());
    }
    details
}

fn rebuild_state(report: &StatusReport, lines: &[String]) -> Option<WorkState> {
    let rebuild = &report.rebuild;
    (rebuild.state == RebuildState::Running).then(|| WorkState {
        name: match rebuild.kind {
            RebuildKind::Rebuild => "Rebuild",
            RebuildKind::Balance => "Balance",
        },
        text: lines.first().map(text).unwrap_or_default(),
        progress: part(rebuild.progress),
        left: super::watch::as_number(rebuild.bytes_left),
    })
}

fn scrub_state(report: &StatusReport, lines: &[String]) -> Option<WorkState> {
    let scrub = report.scrub.as_ref()?;
    report.is_scrubbing().then(|| WorkState {
        name: "Scrub",
        text: lines.first().map(text).unwrap_or_default(),
        progress: part(scrub.progress),
        left: 1.0 - part(scrub.progress),
    })
}

/// Returns a part of a whole, which JSON and the page can show.
fn part(number: f64) -> f64 {
    if number.is_finite() {
        number.clamp(0.0, 1.0)
    } else {
        0.0
    }
}

impl WorkDocument {
    fn all(state: Option<&StateDocument>, known: &Known) -> Vec<Self> {
        let Some(StateDocument {
            work: [rebuild, scrub],
            ..
        }) = state
        else {
            return Vec::new();
        };
        let of = |work: &WorkState, rate: Option<String>, seconds_left| Self {
            name: work.name,
            text: work.text.clone(),
            progress: work.progress,
            rate,
            seconds_left,
        };
        let rebuild = rebuild.as_ref().map(|work| {
            let rate = known.rebuild.per_second();
            let rate = rate.map(|rate| format!("{}/s", format_size(whole(rate))));
            of(work, rate, known.rebuild.seconds_for(work.left))
        });
        let scrub = scrub.as_ref().map(|work| {
            let rate = known.scrub.per_second();
            let rate = rate.map(|rate| format!("{:.1} % in a minute", rate * 6000.0));
            of(work, rate, known.scrub.seconds_for(work.left))
        });
        rebuild.into_iter().chain(scrub).collect()
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast of floats ends at the limits"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

impl CapacityDocument {
    fn of(report: &StatusReport) -> Self {
        let (used, usable) = (report.capacity.bytes_used, report.capacity.bytes_usable);
        Self {
            used,
            usable,
            text: match (used, usable) {
                (Some(used), Some(usable)) => {
                    format!("{} of {} used", format_size(used), format_size(usable))
                }
                _ => "used space is unknown".to_owned(),
            },
        }
    }
}

impl MemberDocument {
    fn of(member: &MemberReport) -> Self {
        let mut notes = Vec::new();
        notes.extend(member.reason.as_ref().map(text));
        if member.full {
            notes.push("no room for new data".to_owned());
        }
        if member.suspect {
            notes.push("gave wrong bytes since the last scrub".to_owned());
        }
        let errors = member.errors;
        let counted = [
            (errors.read, "read error"),
            (errors.write, "write error"),
            (errors.checksum, "checksum error"),
        ];
        let counted = counted.into_iter().filter(|(count, _)| *count > 0);
        let counted: Vec<String> = counted
            .map(|(count, name)| format_count(count, name))
            .collect();
        Self {
            index: member.index,
            path: text(member.path.as_deref().unwrap_or("(unknown)")),
            state: member.state.word(),
            is_here: !matches!(member.state, MemberState::Missing | MemberState::Faulted),
            notes,
            used: member.bytes_used,
            free: member.bytes_free,
            space: match (member.bytes_used, member.bytes_free) {
                (Some(used), Some(free)) if member.is_here() => {
                    format!("{} used, {} free", format_size(used), format_size(free))
                }
                _ => "space is unknown".to_owned(),
            },
            errors: errors.total(),
            errors_text: if counted.is_empty() {
                "no errors".to_owned()
            } else {
                counted.join(", ")
            },
        }
    }
}

impl RedundancyDocument {
    fn all(report: &StatusReport) -> Vec<Self> {
        let rows = report.rows();
        let total: f64 = rows
            .iter()
            .map(|row| super::watch::as_number(row.bytes))
            .sum();
        let full = report.geometry.full_redundancy();
        let of = |row: &crate::control::report::RedundancyReport| Self {
            text: text(row),
            part: part(super::watch::as_number(row.bytes) / total),
            level: match row.losses_tolerated {
                ..0 => "lost",
                _ if row.reduced_stripes(full) == 0 => "full",
                0 => "none",
                _ => "less",
            },
        };
        rows.iter().take(MOST_LINES).map(of).collect()
    }
}

impl TrafficDocument {
    fn of(known: &mut Known, now: Instant) -> Self {
        let steps = known.history.steps(now);
        let of = |value: fn(Bytes) -> u64| steps.iter().map(|step| step.map(value)).collect();
        let current = known.history.now(now);
        Self {
            since: millis(known.history.since()),
            step: STEP.as_secs(),
            read: of(|bytes| bytes.read),
            written: of(|bytes| bytes.written),
            read_now: current.map(|bytes| bytes.read),
            written_now: current.map(|bytes| bytes.written),
        }
    }
}

impl EventDocument {
    pub(super) fn of(event: &EventReport) -> Self {
        let time = event.time.parse::<Timestamp>();
        Self {
            sequence: event.sequence,
            time: time.ok().map(Timestamp::as_millisecond),
            severity: match event.severity {
                Severity::Info => "info",
                Severity::Warning => "warning",
                Severity::Critical => "critical",
            },
            text: text(event.sentence()),
        }
    }
}

/// Returns a text on one line that is safe to show, and not too long.
pub(super) fn text(shown: impl std::fmt::Display) -> String {
    let mut text = Escaped(shown).to_string();
    if let Some((end, _)) = text.char_indices().nth(LONGEST) {
        text.truncate(end);
        text.push('…');
    }
    text
}

fn lines(lines: impl IntoIterator<Item = String>) -> Vec<String> {
    lines.into_iter().take(MOST_LINES).map(text).collect()
}

fn millis(moment: SystemTime) -> i64 {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::control::report::report_without;
    use crate::membership::AbsenceReason;

    fn state(report: &StatusReport) -> StateDocument {
        StateDocument::of(report, Path::new("/mnt/photos"))
    }

    #[test]
    fn a_lost_member_is_named_with_its_reason_and_the_next_commands() {
        let mut report = report_without(&[2], &[(1, 7)], &[0, 1, 3]);
        report.members.push(report.members[0].clone());
        report.members[6].index = 6;
        report.members[2].reason = Some(AbsenceReason::NoDirectory);
        let shown = state(&report);
        assert_eq!(shown.kind, "degraded");
        assert_eq!(shown.sentence, "is degraded, 1 of 7 members are away");
        assert_eq!(shown.members[2].state, "missing");
        assert!(!shown.members[2].is_here && shown.members[0].is_here);
        assert_eq!(shown.members[2].notes.len(), 1);
        assert_eq!(shown.redundancy[0].level, "less");
        assert_eq!(shown.commands, ["cauchyfs rebuild '/mnt/photos'"]);
        report.rebuild.state = RebuildState::Running;
        assert_eq!(state(&report).kind, "rebuilding");
    }

    /// A name chosen by another user must not become a command that root pastes.
    #[test]
    fn names_with_backquotes_or_controls_yield_no_commands_to_paste() {
        for name in [
            "/srv/`cauchyfs x; reboot`",
            "/srv/\u{202e}a",
            "/srv/\u{1b}[2J",
        ] {
            let mut report = report_without(&[2], &[(1, 7)], &[0, 1, 3]);
            report.members[2].path = Some(name.to_owned());
            let shown = state(&report);
            assert_eq!(shown.commands, [""; 0], "{name}");
            let json = serde_json::to_string(&shown).unwrap();
            assert!(!json.contains('\u{202e}') && !json.contains("\\u001b"));
        }
    }

    #[test]
    fn what_a_daemon_says_is_cut() {
        let mut report = report_without(&[], &[(2, 9)], &[0, 1, 2]);
        report.label = "x".repeat(1 << 20);
        report.members[0].path = Some("y".repeat(1 << 20));
        report.members = vec![report.members[0].clone(); 1000];
        report.lost.paths = Some(vec!["z".repeat(1 << 20); 1000]);
        report.rebuild.progress = f64::NAN;
        report.rebuild.state = RebuildState::Running;
        let json = serde_json::to_string(&state(&report)).unwrap();
        assert!(json.len() < 400_000, "{}", json.len());
    }

    /// A home on a dead disk keeps the thread that asks from any answer, a failure included.
    #[test]
    fn a_question_that_does_not_end_is_shown_as_silence() {
        let mut known = Known::nothing();
        known.state = Some(super::super::known::State {
            told: Arc::new(state(&report_without(&[], &[(2, 9)], &[0, 1, 2]))),
            taken_at: SystemTime::now(),
        });
        let place = Path::new("/mnt/photos");
        known.note_question(true);
        assert_eq!(VolumeDocument::of_known(place, &mut known).kind, "healthy");
        let ago = Duration::from_secs(60);
        known.asked_at = known
            .asked_at
            .and_then(|(at, since)| Some((at.checked_sub(ago)?, since.checked_sub(ago)?)));
        let shown = VolumeDocument::of_known(place, &mut known);
        assert_eq!(shown.kind, "silent");
        let silence = shown.silence.unwrap();
        assert!(silence.text.contains("does not answer"), "{silence:?}");
        assert!(silence.since < millis(SystemTime::now()) - 50_000);
        known.note_question(false);
        assert_eq!(VolumeDocument::of_known(place, &mut known).kind, "healthy");
    }
}
