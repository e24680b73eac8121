//! What whoever mounts a volume is told at once.
//!
//! A mount waits for this, so nothing is counted here unless files are gone: that is what `status` is for.

use serde::{Deserialize, Serialize};

use super::failure::Failure;
use super::report::{LACKS_COPIES, LACKS_SHARDS, MemberReport};
use super::volume::{Volume, member_report, storage_failure};
use crate::members::Unusable;

/// Where too few members are at hand for what was written; only a count tells whether files live there.
const LOST_SEGMENTS: &str =
    "files have bytes on missing members alone; `cauchyfs status` names them";

/// How members come back that are there but for their superblocks.
const LOST_SUPERBLOCK: &str = "`cauchyfs check --repair` with all directories, unmounted, writes superblocks anew that are lost";

/// What is said of a volume that was mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Warnings {
    pub(super) lines: Vec<String>,
    /// Whether it lacks anything.
    pub(super) is_degraded: bool,
}

/// Says which members are missing and why, whether data is lost without them, and if all members are there,
/// what the volume is known to lack nevertheless; and which other directories were of no use.
///
/// # Errors
///
/// If the index cannot be read.
pub(super) fn of(volume: &Volume) -> Result<Warnings, Failure> {
    let absentees: Vec<MemberReport> = volume
        .pipeline
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
    if volume.pipeline.has_lost_segments() {
        lines.push(LOST_SEGMENTS.to_owned());
    }
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
    Ok(Warnings { lines, is_degraded })
}

fn shortage(volume: &Volume) -> Result<Option<&'static str>, Failure> {
    let pipeline = &volume.pipeline;
    if pipeline.index_copies().are_too_few() {
        return Ok(Some(LACKS_COPIES));
    }
    let lacks_shards = pipeline
        .lacks_shards()
        .map_err(|error| storage_failure(&error))?;
    Ok(lacks_shards.then_some(LACKS_SHARDS))
}
