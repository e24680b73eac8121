//! `cauchyfs rebuild`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::ProgressBar;
use serde::Serialize;
use signal_hook::consts::SIGINT;

use super::args::RebuildArguments;
use super::client::LiveMount;
use super::failure::{Failure, Outcome, warn_and_advise};
use super::progress::{self, format_time};
use super::report::{is_code_changing, other_codes};
use super::shell::quoted_path;
use super::size::format_size;
use super::terminal;
use crate::control::protocol::{Answer, Request};
use crate::control::report::{
    GeometryReport, IndexReport, LostFiles, RebuildReport, RedundancyReport, StatusReport,
};
use crate::maintenance::{RebuildKind, RebuildState};

/// The outcome of a rebuild that had nothing to do.
const NOTHING_TO_REBUILD: &str = "nothing to rebuild";

/// The document that `rebuild --json` prints.
#[derive(Debug, Serialize)]
struct RebuildDocument<'a> {
    #[serde(flatten)]
    rebuild: &'a RebuildReport,
    /// The code of new data.
    geometry: &'a GeometryReport,
    redundancy: Option<&'a [RedundancyReport]>,
    #[serde(flatten)]
    lost: &'a LostFiles,
}

/// Has the daemon rebuild what is missing, shows how far it is, and says what was counted afterwards.
///
/// # Errors
///
/// If nothing of ours is mounted there, or the daemon cannot go on.
pub(super) fn run(arguments: &RebuildArguments) -> Result<Outcome, Failure> {
    let mount = LiveMount::at(&arguments.mountpoint)?;
    let request = Request::Rebuild {
        bytes_per_second: arguments.rebuild.rate,
    };
    let Answer::Ordered(order) = mount.ask(&request)? else {
        return Err(mount.beside_the_point());
    };
    let followed = follow(&mount, order, arguments.rebuild.json)?;
    Ok(followed.unwrap_or_else(|| leave("the rebuild goes on", &mount, None)))
}

/// Says that an ordered task goes on although its command does not wait for it any more. Says also how to watch it, and
/// what takes it back.
pub(super) fn leave(what: &str, mount: &LiveMount, taken_back: Option<&str>) -> Outcome {
    let mountpoint = quoted_path(mount.mountpoint());
    let taken_back = taken_back.map_or_else(String::new, |how| format!(", {how}"));
    warn_and_advise(
        format_args!("{what} without this command"),
        format_args!("`cauchyfs status {mountpoint}` shows how far it is{taken_back}"),
    );
    Outcome::Degraded
}

/// Waits until an order is carried out, and says what was counted afterwards. Returns `None` if it was interrupted
/// with Ctrl-C: the order is carried out nevertheless.
///
/// # Errors
///
/// If the daemon cannot go on.
pub(super) fn follow(
    mount: &LiveMount,
    order: u64,
    json: bool,
) -> Result<Option<Outcome>, Failure> {
    follow_for(NOTHING_TO_REBUILD, mount, order, json)
}

/// Waits like [`follow`], and says `nothing` if there was nothing to write.
///
/// # Errors
///
/// As [`follow`].
pub(super) fn follow_for(
    nothing: &str,
    mount: &LiveMount,
    order: u64,
    json: bool,
) -> Result<Option<Outcome>, Failure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    // A user who does not want to wait for an answer either interrupts it again.
    signal_hook::flag::register_conditional_default(SIGINT, Arc::clone(&interrupted))
        .and_then(|_| signal_hook::flag::register(SIGINT, Arc::clone(&interrupted)))
        .map_err(Failure::environment)?;
    let bar = progress::bar_of("{wide_bar} {percent}% {bytes} of {total_bytes}{msg}");
    let rebuild = loop {
        if interrupted.load(Ordering::SeqCst) {
            bar.finish_and_clear();
            return Ok(None);
        }
        match mount.ask(&Request::RebuildProgress { order })? {
            Answer::Rebuild { report, done } => {
                show(&bar, &report);
                if done {
                    break report;
                }
            }
            _ => return Err(mount.beside_the_point()),
        }
    };
    bar.finish_and_clear();
    let report = mount.report()?;
    if json {
        let document = RebuildDocument {
            rebuild: &rebuild,
            geometry: &report.geometry,
            redundancy: report.redundancy.as_deref(),
            lost: &report.lost,
        };
        terminal::json(&document).map_err(Failure::environment)?;
    } else {
        let text = for_people(nothing, &rebuild, &report, mount.mountpoint());
        terminal::report(&text);
    }
    Ok(Some(outcome(&rebuild, &report)))
}

fn show(bar: &ProgressBar, report: &RebuildReport) {
    let left = to_write(report);
    progress::show(
        bar,
        report.bytes_done,
        report.bytes_done.saturating_add(left),
    );
    bar.set_message(match rate(report) {
        Some(rate) => format!(
            ", {}/s, {} left",
            format_size(rate),
            format_time(Duration::from_secs(left / rate))
        ),
        None => String::new(),
    });
}

/// Returns the bytes that are yet to be written: not those that have nowhere to go.
fn to_write(report: &RebuildReport) -> u64 {
    report.bytes_left.saturating_sub(report.bytes_waiting)
}

/// Returns the bytes written in a second so far, once that can be said.
fn rate(report: &RebuildReport) -> Option<u64> {
    let rate = report.bytes_done / report.seconds.max(1);
    (report.seconds > 0 && rate > 0).then_some(rate)
}

/// Says what was done, and how long it took, or `nothing` if nothing was missing.
fn done_line(nothing: &str, report: &RebuildReport) -> Option<String> {
    // The numbers may be a daemon's, and any.
    let rebuilt = report.bytes_done.saturating_sub(report.bytes_moved);
    let parts = [(rebuilt, "rebuilt"), (report.bytes_moved, "moved")];
    let parts = parts.iter().filter(|(bytes, _)| *bytes > 0);
    let parts: Vec<String> = parts
        .map(|(bytes, what)| format!("{} {what}", format_size(*bytes)))
        .collect();
    if !parts.is_empty() {
        let time = Duration::from_millis(report.milliseconds);
        let time = time.max(Duration::from_secs(report.seconds));
        return Some(format!("{} in {}", parts.join(" and "), format_time(time)));
    }
    let text = match report.kind {
        RebuildKind::Balance => "nothing moved: no move would even out the directories any more",
        // The lines below say why it stays.
        RebuildKind::Rebuild if report.bytes_left > 0 || report.bytes_unreadable > 0 => {
            return None;
        }
        RebuildKind::Rebuild => nothing,
    };
    Some(text.to_owned())
}

/// Says which shards have no place, why not, and what would give them one. Room alone helps only where a directory is left
/// without a shard of the same stripes.
fn waiting_lines(rebuild: &RebuildReport, is_away: bool, place: &str) -> Vec<String> {
    // The numbers may be a daemon's, and any.
    let homeless = rebuild.bytes_without_member.min(rebuild.bytes_waiting);
    let crowded = rebuild.bytes_waiting - homeless;
    let mut lines = Vec::new();
    if crowded > 0 {
        let bring_back = if is_away {
            ", bring back what is away,"
        } else {
            ""
        };
        lines.push(format!(
            "{} of shards wait for room: the directories that could take them are too full; add one with so much room with \
             `cauchyfs member add {place} DIR`{bring_back} or remove files",
            format_size(crowded)
        ));
    }
    if homeless > 0 {
        let bring_back = if is_away {
            ", or bring back what is away"
        } else {
            ""
        };
        lines.push(format!(
            "{} of shards wait for one more directory: each shard of a stripe needs a directory of its own, and too few are \
             left; add one with `cauchyfs member add {place} DIR`{bring_back}",
            format_size(homeless)
        ));
    }
    lines
}

fn for_people(
    nothing: &str,
    rebuild: &RebuildReport,
    report: &StatusReport,
    mountpoint: &Path,
) -> String {
    let place = quoted_path(mountpoint);
    let mut lines = Vec::new();
    lines.extend(done_line(nothing, rebuild));
    let is_away = report.absentees().next().is_some();
    lines.extend(waiting_lines(rebuild, is_away, &place));
    if rebuild.bytes_unreadable > 0 {
        let bring_back = if is_away {
            "bring back what is away, or "
        } else {
            ""
        };
        lines.push(format!(
            "{} stays where it is, beside stripes that cannot be read; {bring_back}have `cauchyfs scrub {place}` name the files",
            format_size(rebuild.bytes_unreadable)
        ));
    }
    for member in report.present() {
        lines.extend(
            member
                .reason
                .as_ref()
                .map(|reason| format!("{}: {reason}", member.name())),
        );
    }
    lines.extend(other_codes(report));
    lines.extend(report.redundancy_lines());
    lines.extend(report.lost.lines());
    lines.push(String::new());
    terminal::join_lines(&lines)
}

/// Judges by what the order left, and by what was counted: whole, not yet whole, or lost.
fn outcome(rebuild: &RebuildReport, report: &StatusReport) -> Outcome {
    let lacks_copies = report.index.as_ref().is_some_and(IndexReport::is_short);
    let full = report.geometry.full_redundancy();
    let is_counted = report.redundancy.is_some();
    let mut rows = report.rows().iter().filter(|row| row.stripes > 0);
    if rows.clone().any(|row| row.losses_tolerated < 0) {
        Outcome::Lost
    } else if is_counted
        && rows.all(|row| row.reduced_stripes(full) == 0)
        && !lacks_copies
        && !leaves_something(rebuild)
        && !is_code_changing(report)
    {
        Outcome::Done
    } else {
        Outcome::Degraded
    }
}

/// Returns whether an order that ended left shards where they were, or unwritten. A rebuild that runs is one for another
/// order.
fn leaves_something(rebuild: &RebuildReport) -> bool {
    let RebuildReport {
        state,
        bytes_left,
        bytes_waiting,
        bytes_unreadable,
        ..
    } = rebuild;
    let is_stuck = *bytes_waiting > 0 || *bytes_unreadable > 0;
    is_stuck || *bytes_left > 0 && *state != RebuildState::Running
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::report::{CodeReport, VolumeState, report_without};

    fn report(bytes_done: u64, bytes_left: u64, seconds: u64) -> RebuildReport {
        RebuildReport {
            bytes_left,
            bytes_done,
            seconds,
            ..RebuildReport::default()
        }
    }

    #[test]
    fn the_time_left_follows_from_what_was_measured_and_is_not_guessed_before() {
        assert_eq!(rate(&report(0, 100, 5)), None);
        assert_eq!(rate(&report(1000, 100, 0)), None);
        assert_eq!(rate(&report(1000, 100, 5)), Some(200));
        let waiting = RebuildReport {
            bytes_waiting: 70,
            ..report(1000, 100, 5)
        };
        assert_eq!(to_write(&waiting), 30);
    }

    #[test]
    fn moved_bytes_are_not_called_rebuilt() {
        let line = |bytes_done, bytes_moved, kind| {
            let report = RebuildReport {
                kind,
                bytes_moved,
                milliseconds: 250,
                ..report(bytes_done, 0, 0)
            };
            done_line(NOTHING_TO_REBUILD, &report)
        };
        let (rebuild, balance) = (RebuildKind::Rebuild, RebuildKind::Balance);
        let said = |text: &str| Some(text.to_owned());
        assert_eq!(line(1024, 0, rebuild), said("1.0 KiB rebuilt in 0.3 s"));
        assert_eq!(line(1024, 1024, balance), said("1.0 KiB moved in 0.3 s"));
        assert_eq!(
            line(3072, 1024, balance),
            said("2.0 KiB rebuilt and 1.0 KiB moved in 0.3 s")
        );
        assert_eq!(line(0, 0, rebuild), said("nothing to rebuild"));
        assert_eq!(done_line(NOTHING_TO_REBUILD, &report(0, 1024, 0)), None);
        assert!(line(0, 0, balance).is_some_and(|line| line.starts_with("nothing moved")));
        // A daemon that tells no more yet.
        let old = report(1024, 0, 3);
        let said_of_old = done_line(NOTHING_TO_REBUILD, &old);
        assert_eq!(said_of_old, said("1.0 KiB rebuilt in 3 s"));
    }

    #[test]
    fn waiting_work_says_what_it_waits_for_and_the_advice_can_help() {
        let said = |bytes_without_member, away: &[u16]| {
            let waiting = RebuildReport {
                bytes_waiting: 2048,
                bytes_without_member,
                bytes_unreadable: 1,
                ..RebuildReport::default()
            };
            let report = report_without(away, &[(1, 7)], &[0, 1, 2]);
            for_people(NOTHING_TO_REBUILD, &waiting, &report, Path::new("/mnt"))
        };
        for (bytes_without_member, away, room, directory, bring_back) in [
            (0, &[][..], 1, 0, 0),
            (0, &[3], 1, 0, 2),
            (2048, &[], 0, 1, 0),
            (2048, &[3], 0, 1, 2),
            (1024, &[3], 1, 1, 3),
        ] {
            let said = said(bytes_without_member, away);
            let count = |words| said.matches(words).count();
            assert_eq!(count("wait for room"), room, "{said}");
            assert_eq!(count("remove files"), room, "{said}");
            assert_eq!(count("wait for one more directory"), directory, "{said}");
            assert_eq!(count("bring back what is away"), bring_back, "{said}");
            let add = count("`cauchyfs member add '/mnt' DIR`");
            assert_eq!(add, room + directory, "{said}");
        }
    }

    /// As after `set --parity 3` and `member balance` that found too little room, on a volume that lacks no shard.
    #[test]
    fn an_order_that_left_something_does_not_end_as_done() {
        let whole = report_without(&[], &[(2, 9)], &[0, 1, 2]);
        let ended = |state, bytes_waiting, bytes_unreadable, bytes_left| {
            let rebuild = RebuildReport {
                state,
                bytes_waiting,
                bytes_unreadable,
                ..report(5, bytes_left, 1)
            };
            outcome(&rebuild, &whole)
        };
        let finished = RebuildState::Finished;
        assert_eq!(ended(finished, 0, 0, 0), Outcome::Done);
        assert_eq!(ended(finished, 7, 0, 7), Outcome::Degraded, "no room");
        assert_eq!(ended(finished, 0, 7, 7), Outcome::Degraded, "unreadable");
        assert_eq!(ended(RebuildState::Stopped, 0, 0, 7), Outcome::Degraded);
        // The order ended, and another one has begun.
        assert_eq!(ended(RebuildState::Running, 0, 0, 7), Outcome::Done);
        let lost = report_without(&[], &[(-1, 9)], &[0, 1, 2]);
        let is_left = report(0, 7, 1);
        assert_eq!(outcome(&is_left, &lost), Outcome::Lost);
    }

    /// The data survives what its code promised until it has the other one.
    #[test]
    fn a_change_of_the_code_is_not_done_while_data_has_the_old_one_though_nothing_is_degraded() {
        let mut changing = report_without(&[], &[(2, 9)], &[0, 1, 2, 3]);
        changing.codes = vec![CodeReport {
            geometry: changing.geometry.clone(),
            bytes: 5,
            of_directories: false,
        }];
        let rebuild = RebuildReport {
            state: RebuildState::Finished,
            ..report(5, 0, 1)
        };
        assert_eq!(outcome(&rebuild, &changing), Outcome::Done);
        changing.geometry.parity = 3;
        let row = &mut changing.redundancy.as_mut().unwrap()[0];
        row.of_older_code = row.stripes;
        let judged = |report: &StatusReport| {
            let index = report.index.as_ref();
            StatusReport::judge(
                &report.members,
                Some(report.rows()),
                index,
                &report.geometry,
            )
        };
        assert_eq!(judged(&changing), VolumeState::Healthy);
        assert_eq!(outcome(&rebuild, &changing), Outcome::Degraded);
        let said = for_people(NOTHING_TO_REBUILD, &rebuild, &changing, Path::new("/mnt"));
        assert!(said.contains("the code is being changed to 4+3 rs-cauchy; 5 B in 4+2 rs-cauchy"));
        changing.redundancy.as_mut().unwrap()[0].of_older_code -= 1;
        assert_eq!(
            judged(&changing),
            VolumeState::Degraded,
            "one lacks a shard"
        );
    }
}
