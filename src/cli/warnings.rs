//! The warnings that a mount gives at once.
//!
//! A mount waits for this, so nothing is counted here unless files are gone, or data may be lost: that is what `status`
//! is for.

use serde::{Deserialize, Serialize};

use super::failure::{Failure, Outcome};
use super::report::{LACKS_COPIES, LACKS_SHARDS};
use crate::control::report::{MemberReport, RedundancyReport};
use crate::control::summary::member_report;
use crate::control::volume::Volume;
use crate::control::volume_failure::VolumeFailure;
use crate::membership::Unusable;

/// The command that brings members back that lack only their superblocks.
const LOST_SUPERBLOCK: &str =
    "`cauchyfs check --repair` with all directories, unmounted, recovers missing superblocks";

/// The warnings about a volume that was mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Warnings {
    pub(super) lines: Vec<String>,
    /// True if it lacks anything.
    pub(super) is_degraded: bool,
    /// True if that is more than the others make up for.
    pub(super) has_lost_data: bool,
}

impl Warnings {
    /// Returns how a command ends that has mounted the volume.
    pub(super) fn outcome(&self) -> Outcome {
        if self.has_lost_data {
            Outcome::Lost
        } else if self.is_degraded {
            Outcome::Degraded
        } else {
            Outcome::Done
        }
    }
}

/// Says which members are missing and why, and whether data is lost without them. If all members are there, says
/// what the volume is known to lack nevertheless. Also names other directories that were of no use.
///
/// # Errors
///
/// If the index cannot be read.
pub(super) fn of(volume: &Volume) -> Result<Warnings, Failure> {
    let absentees: Vec<MemberReport> = volume
        .transactions
        .members()
        .absentees()
        .into_iter()
        .map(|status| member_report(status, &volume.notes, 0))
        .collect();
    let mut lines: Vec<String> = absentees
        .iter()
        .map(|member| match &member.reason {
            Some(reason) => format!("{} is missing: {reason}", member.name()),
            None => format!("{} is missing", member.name()),
        })
        .collect();
    if absentees.iter().any(MemberReport::has_lost_superblock) {
        lines.push(LOST_SUPERBLOCK.to_owned());
    }
    let lost = lost_data(volume)?;
    let has_lost_data = lost.is_some();
    lines.extend(lost);
    if lines.is_empty() {
        lines.extend(shortage(volume)?.map(str::to_owned));
    }
    let is_degraded = !lines.is_empty();
    let is_of_a_member = |path: &str| {
        let mut paths = absentees.iter().map(|member| member.path.as_deref());
        paths.any(|absent| absent == Some(path))
    };
    let others = volume.notes.iter();
    let others = others.filter(|note| !is_of_a_member(&note.path));
    lines.extend(others.map(|Unusable { path, reason }| {
        if absentees.is_empty() {
            format!("{path} is left aside, and all members are there without it: {reason}")
        } else {
            format!("{path}: {reason}")
        }
    }));
    Ok(Warnings {
        lines,
        is_degraded,
        has_lost_data,
    })
}

/// Says how much is lost, if anything is; counts only if that may be.
fn lost_data(volume: &Volume) -> Result<Option<String>, Failure> {
    let redundancy = volume.maintenance.redundancy();
    if !redundancy
        .may_have_lost_data()
        .map_err(VolumeFailure::from)?
    {
        return Ok(None);
    }
    let counted = redundancy.redundancy().map_err(VolumeFailure::from)?;
    let lost: Vec<_> = counted
        .rows
        .iter()
        .filter(|row| row.losses_tolerated < 0)
        .collect();
    if lost.is_empty() {
        return Ok(None);
    }
    let lost = RedundancyReport {
        losses_tolerated: -1,
        stripes: lost.iter().map(|row| row.stripes).sum(),
        bytes: lost.iter().map(|row| row.bytes).sum(),
        dead_bytes: lost.iter().map(|row| row.dead).sum(),
        as_promised: 0,
        of_older_code: 0,
    };
    Ok(Some(format!(
        "data is lost, or on missing members alone: {lost}; `cauchyfs status` names the files"
    )))
}

fn shortage(volume: &Volume) -> Result<Option<&'static str>, Failure> {
    if volume.transactions.index_copies().are_too_few() {
        return Ok(Some(LACKS_COPIES));
    }
    let lacks_shards = volume
        .maintenance
        .redundancy()
        .lacks_shards()
        .map_err(VolumeFailure::from)?;
    Ok(lacks_shards.then_some(LACKS_SHARDS))
}
