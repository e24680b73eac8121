//! What whoever mounts a volume is told at once.
//!
//! A mount waits for this, so nothing is counted here: that is what `status` is for.

use super::failure::Failure;
use super::report::{LACKS_COPIES, LACKS_SHARDS, MemberReport};
use super::volume::{Volume, member_report, storage_failure};

/// Where too few members are at hand for what was written; only a count tells whether files live there.
const LOST_SEGMENTS: &str =
    "files have bytes on missing members alone; `cauchyfs status` names them";

/// Says which members are missing and why, which other directories were of no use, whether data is lost
/// without them, and if all members are there, what the volume is known to lack nevertheless.
///
/// # Errors
///
/// If the index cannot be read.
pub(super) fn of(volume: &Volume) -> Result<Vec<String>, Failure> {
    let absentees: Vec<MemberReport> = volume
        .pipeline
        .members()
        .absentees()
        .into_iter()
        .map(|status| member_report(status, &volume.notes))
        .collect();
    let mut warnings: Vec<String> = absentees
        .iter()
        .map(|member| match &member.reason {
            Some(reason) => format!("{} is missing: {reason}", member.name()),
            None => format!("{} is missing", member.name()),
        })
        .collect();
    let is_of_a_member = |path: &str| {
        let mut paths = absentees.iter().map(|member| member.path.as_deref());
        paths.any(|absent| absent == Some(path))
    };
    let others = volume.notes.iter();
    warnings.extend(
        others
            .filter(|note| !is_of_a_member(&note.path))
            .map(ToString::to_string),
    );
    if volume.pipeline.has_lost_segments() {
        warnings.push(LOST_SEGMENTS.to_owned());
    }
    if warnings.is_empty() {
        warnings.extend(shortage(volume)?.map(str::to_owned));
    }
    Ok(warnings)
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
