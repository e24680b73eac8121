//! `cauchyfs check`.

mod unwritten;

use std::ops::ControlFlow;

use cauchyfs_sandbox::calls::CommandWork;

use super::args::CheckArguments;
use super::directories::{Directories, MEMBER_TIMEOUT};
use super::failure::{Failure, Outcome};
use super::mounts;
use super::progress;
use super::sandbox::{self, Survey};
use super::scrub::Away;
use super::size::{format_count, format_size};
use super::superseded;
use super::terminal;
use crate::control::report::{MemberReport, StatusReport, VolumeState};
use crate::control::summary::row_report;
use crate::control::summary::scrubbed_of;
use crate::control::volume::Volume;
use crate::control::volume_failure::VolumeFailure;
use crate::format::files;
use crate::fs::check::{self, CheckReport};
use crate::fuse::one_line;
use crate::maintenance::ScrubStatus;
use crate::store::StoreErrorKind;
use unwritten::Unwritten;

/// Checks the structure of an unmounted volume.
///
/// # Errors
///
/// If it cannot be opened at all.
pub(super) fn run(arguments: &CheckArguments) -> Result<Outcome, Failure> {
    let directories = Directories::find(&arguments.directories)?;
    mounts::refuse_mounted(&directories)?;
    let volume = if arguments.repair {
        let survey = Survey::begin(&arguments.sandbox, &directories, CommandWork::Repair)?;
        mounts::refuse_other_half(&directories, MEMBER_TIMEOUT)?;
        superseded::refuse(&directories, MEMBER_TIMEOUT)?;
        survey.narrow(&directories, &[])?;
        Volume::open_to_repair(&directories)?
    } else {
        sandbox::read(&arguments.sandbox, &directories)?;
        Volume::open_to_look(&directories)?
    };
    let examined = examine(&volume, arguments);
    // Before the verdict: closing reads and writes the copies of the index once more.
    let closed = volume.close();
    let examined = examined?;
    closed?;
    for line in &examined.verdict {
        terminal::line(line);
    }
    Ok(examined.outcome)
}

/// Verdict on a volume, printed once it is closed.
struct Examined {
    verdict: Vec<String>,
    outcome: Outcome,
}

fn examine(volume: &Volume, arguments: &CheckArguments) -> Result<Examined, Failure> {
    let repair = arguments.repair;
    say_restored(volume);
    let checked = check::check(&volume.maintenance, repair);
    let mut checked = checked.map_err(VolumeFailure::from)?;
    let pages = if repair {
        let repaired = volume.transactions.mend_index_pages();
        repaired.map_err(VolumeFailure::from)?
    } else {
        0
    };
    let read = if arguments.deep {
        read_shards(volume, repair)?
    } else {
        Outcome::Done
    };
    if repair && arguments.deep && checked.repaired < checked.found {
        // Shards that were missing may be there by now.
        check::check_again(&volume.maintenance, &mut checked).map_err(VolumeFailure::from)?;
    }
    let report = volume.report(false);
    if let Some(reason) = report.why_uncounted("redundancy") {
        return Err(Failure::environment(format!(
            "the redundancy cannot be counted: {reason}"
        )));
    }
    let foreign = foreign_files(volume);
    let unwritten = Unwritten::find(volume, &report)?;
    list_found(&checked, pages, &report, &foreign);
    for line in unwritten.lines() {
        terminal::line(line);
    }
    if !repair && report.absentees().any(MemberReport::has_lost_superblock) {
        terminal::line(
            "`cauchyfs check --repair` with all directories recovers missing superblocks",
        );
    }
    let is_whole =
        read == Outcome::Done && report.state == VolumeState::Healthy && foreign.is_empty();
    let mut lines = vec![format!(
        "{} inodes ({} directories), {} extents of {}, {} stripes: {}",
        checked.inodes,
        checked.directories,
        checked.extents,
        format_size(checked.bytes),
        checked.stripes,
        verdict(repair, checked.found, checked.repaired, is_whole),
    )];
    let listed = checked.findings.len() as u64;
    if checked.found > listed {
        let more = checked.found - listed;
        lines.push(format!("{more} more faults are not listed"));
    }
    Ok(Examined {
        verdict: lines,
        outcome: outcome_of(&checked, report.state, read, !foreign.is_empty()),
    })
}

/// Lists what was found, and the members that were not looked at.
fn list_found(checked: &CheckReport, pages: u64, report: &StatusReport, foreign: &[String]) {
    for finding in &checked.findings {
        terminal::line(finding);
    }
    if pages > 0 {
        terminal::line(format_args!(
            "{} of copies of the index repaired",
            format_count(pages, "page")
        ));
    }
    for line in report.lost.lines() {
        terminal::line(line);
    }
    let is_lost = report.rows().iter().any(|row| row.losses_tolerated < 0);
    if is_lost && report.lost.is_empty() {
        terminal::line(
            "the bytes that cannot be read are of files of which no name was found: they were removed while programs had them open, or the records of their names are damaged",
        );
    }
    for line in foreign {
        terminal::line(line);
    }
    let away: Vec<String> = report.absentees().map(MemberReport::name).collect();
    if !away.is_empty() {
        terminal::line(format_args!(
            "not checked, because away: {}",
            away.join(", ")
        ));
    }
}

/// Returns the outcome of a check of records, and of all shards if they were `read`.
fn outcome_of(
    checked: &CheckReport,
    state: VolumeState,
    read: Outcome,
    has_foreign_files: bool,
) -> Outcome {
    match state {
        VolumeState::Failed => Outcome::Lost,
        _ if checked.lost > 0 => Outcome::Lost,
        _ if read == Outcome::Lost => Outcome::Lost,
        VolumeState::Degraded => Outcome::Degraded,
        VolumeState::Healthy if read == Outcome::Degraded => Outcome::Degraded,
        VolumeState::Healthy if checked.repaired < checked.found => Outcome::Degraded,
        VolumeState::Healthy if has_foreign_files => Outcome::Degraded,
        VolumeState::Healthy => Outcome::Done,
    }
}

/// Says which superblocks were lost and are there again.
fn say_restored(volume: &Volume) {
    let members = volume.transactions.members();
    let live = members.membership().live();
    for (member, is_current) in members.recovered() {
        let path = members.membership().path(*member);
        let rest = if *is_current {
            ""
        } else {
            "; it is unknown whether it is up to date, so a scrub verifies what it holds before that counts"
        };
        if live.contains(member) {
            terminal::line(format_args!(
                "{path}: its superblock was missing, and is recovered: it is member {member}{rest}"
            ));
        } else {
            terminal::line(format_args!(
                "{path}: its superblock is missing, and could not be written again"
            ));
        }
    }
}

/// Returns a line for every file of a member's own names that is not its own, such as a hard link. Segments are not among
/// them: a shard in one is wrong.
fn foreign_files(volume: &Volume) -> Vec<String> {
    let members = volume.transactions.members();
    let of_member = |member| {
        let looked = members.io().call(member, "check", |store| {
            let [first, second] = files::JOURNALS;
            let names = [files::SUPERBLOCK, first, second, files::INDEX];
            let errors = names.map(|name| store.open_len(name).err());
            let mut foreign = errors.into_iter().flatten().collect::<Vec<_>>();
            foreign.retain(|error| error.kind() == StoreErrorKind::Foreign);
            Ok(foreign)
        });
        // A member that fails is in the report.
        looked.unwrap_or_default()
    };
    let errors = members.membership().live().into_iter().flat_map(of_member);
    errors.map(|error| one_line(&error)).collect()
}

/// Returns the absent members of a volume that is not mounted.
fn away_from(volume: &Volume) -> Away {
    let members = volume.transactions.members();
    if members.membership().away().is_empty() {
        Away::None
    } else if members.membership().live().len() < members.shape().geometry().total_shards() {
        let step = "bring back what is away, or mount the volume and put others in the place with \
                    `cauchyfs member replace`";
        Away::TooMany(step.to_owned())
    } else {
        Away::Few
    }
}

/// Reads every shard, says what is wrong and counts what is right; or repairs what is wrong.
fn read_shards(volume: &Volume, repair: bool) -> Result<Outcome, Failure> {
    let transactions = &volume.transactions;
    let bar = progress::bar();
    if repair {
        let go_on = |status: &ScrubStatus| {
            progress::show(&bar, status.bytes_passed, status.bytes_total);
            ControlFlow::Continue(())
        };
        let scrubbed = volume
            .maintenance
            .scrubber()
            .scrub(&*volume.fs.inode_locks(), None, go_on);
        bar.finish_and_clear();
        let Some(status) = scrubbed.map_err(VolumeFailure::from)? else {
            return Err(Failure::environment(
                "another scrub of the volume is under way",
            ));
        };
        let scrubbed = scrubbed_of(&volume.fs, &volume.maintenance, &status)?;
        terminal::report(&scrubbed.for_people(&away_from(volume), None));
        return Ok(scrubbed.outcome());
    }
    let read = volume
        .maintenance
        .scrubber()
        .read_all_shards(|passed, total| progress::show(&bar, passed, total));
    bar.finish_and_clear();
    let read = read.map_err(VolumeFailure::from)?;
    for wrong in &read.wrong {
        let directory = transactions.members().membership().path(wrong.member);
        let file = files::segment(wrong.segment);
        let shards = format_count(wrong.shards, "shard");
        terminal::line(format_args!("{directory}/{file}: {shards} wrong"));
    }
    for (&member, &pages) in &read.index_pages {
        let directory = transactions.members().membership().path(member);
        let pages = format_count(pages, "page");
        terminal::line(format_args!(
            "{directory}/{}: {pages} of this copy of the index wrong",
            files::INDEX
        ));
    }
    for inconsistent in &read.inconsistent {
        terminal::line(inconsistent);
    }
    terminal::line(format_args!("{} of shards read", format_size(read.bytes)));
    for row in &read.rows {
        terminal::line(row_report(row));
    }
    let is_whole =
        read.wrong.is_empty() && read.inconsistent.is_empty() && read.index_pages.is_empty();
    Ok(if is_whole {
        Outcome::Done
    } else {
        Outcome::Degraded
    })
}

/// Says what was found wrong with the records; if nothing, whether anything else is.
fn verdict(repair: bool, found: u64, repaired: u64, is_whole: bool) -> String {
    let left = count(found - repaired);
    match (found, found - repaired) {
        (0, _) if is_whole => "nothing is wrong".to_owned(),
        (0, _) => "the records are sound, but not all that they name is there".to_owned(),
        (_, 0) => format!("{}, repaired", count(found)),
        _ if !repair => format!("{left}; `cauchyfs check --repair` repairs what can be repaired"),
        _ if repaired == 0 => format!("{left} that this cannot repair"),
        _ => format!(
            "{} repaired, {left} that this cannot repair",
            count(repaired)
        ),
    }
}

fn count(faults: u64) -> String {
    match faults {
        1 => "1 fault".to_owned(),
        _ => format!("{faults} faults"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_counts_what_is_left() {
        assert_eq!(verdict(false, 0, 0, true), "nothing is wrong");
        assert_eq!(verdict(true, 3, 3, true), "3 faults, repaired");
        let some = "2 faults repaired, 1 fault that this cannot repair";
        assert_eq!(verdict(true, 3, 2, true), some);
        assert_eq!(verdict(true, 1, 0, true), "1 fault that this cannot repair");
        assert!(verdict(false, 2, 0, true).starts_with("2 faults; `cauchyfs check --repair`"));
        assert!(!verdict(false, 0, 0, false).contains("nothing is wrong"));
    }
}
