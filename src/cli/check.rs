//! `cauchyfs check`.

use super::args::CheckArguments;
use super::control;
use super::directories::Directories;
use super::failure::{Failure, Outcome, warn};
use super::report::{MemberReport, State};
use super::size::format_size;
use super::volume::{Volume, VolumeOptions, fs_failure};
use crate::fs::{FsOptions, check};
use crate::members::Access;

/// Checks the structure of an unmounted volume.
///
/// # Errors
///
/// If it cannot be opened at all.
pub(super) fn run(arguments: &CheckArguments) -> Result<Outcome, Failure> {
    let directories = Directories::find(&arguments.directories)?;
    control::refuse_mounted(&directories.present)?;
    let volume = open(&directories, arguments.repair)?;
    let outcome = examine(&volume, arguments.repair);
    volume.close()?;
    outcome
}

fn open(directories: &Directories, repair: bool) -> Result<Volume, Failure> {
    if !repair {
        return Volume::open_to_look(directories);
    }
    let options = VolumeOptions {
        access: Access::ReadWrite,
        ..VolumeOptions::looking()
    };
    let volume = Volume::open(directories, &options, FsOptions::default())?;
    volume.notes.iter().for_each(warn);
    Ok(volume)
}

fn examine(volume: &Volume, repair: bool) -> Result<Outcome, Failure> {
    let checked = check::check(&volume.pipeline, repair).map_err(|error| fs_failure(&error))?;
    let report = volume.report(false)?;
    for finding in &checked.findings {
        println!("{finding}");
    }
    for path in &report.unrecoverable_files {
        println!("cannot be read in full: {path}");
    }
    let away: Vec<String> = report.absentees().map(MemberReport::name).collect();
    if !away.is_empty() {
        println!("not checked, because away: {}", away.join(", "));
    }
    println!(
        "{} inodes ({} directories), {} extents of {}, {} stripes: {}",
        checked.inodes,
        checked.directories,
        checked.extents,
        format_size(checked.bytes),
        checked.stripes,
        verdict(checked.found, checked.mended),
    );
    let listed = checked.findings.len() as u64;
    if checked.found > listed {
        println!("{} more faults are not listed", checked.found - listed);
    }
    Ok(match report.state {
        State::Failed => Outcome::Lost,
        _ if checked.lost > 0 => Outcome::Lost,
        State::Degraded => Outcome::Degraded,
        State::Healthy if checked.mended < checked.found => Outcome::Degraded,
        State::Healthy => Outcome::Done,
    })
}

fn verdict(findings: u64, mended: u64) -> String {
    match (findings, findings - mended) {
        (0, _) => "nothing is wrong".to_owned(),
        (_, 0) => format!("{mended} faults, all mended"),
        (_, left) if mended == 0 => {
            format!("{left} faults; `cauchyfs check --repair` mends what can be mended")
        }
        (_, left) => format!("{mended} faults mended, {left} left"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_counts_what_is_left() {
        assert_eq!(verdict(0, 0), "nothing is wrong");
        assert_eq!(verdict(3, 3), "3 faults, all mended");
        assert_eq!(verdict(3, 1), "1 faults mended, 2 left");
        assert!(verdict(2, 0).starts_with("2 faults;"));
    }
}
