//! Shards that no directory should have although files need them, and the names of these files.

use crate::cli::failure::Failure;
use crate::cli::size::format_count;
use crate::control::report::StatusReport;
use crate::control::volume::Volume;
use crate::control::volume_failure::VolumeFailure;
use crate::format::files;
use crate::maintenance::{LostStripe, UnwrittenShards};

/// Most stripes of which the files are looked for, most files of the volume that are named, and most of directories.
const MOST_STRIPES: usize = 1000;
const MOST_NAMED: usize = 20;

/// Shards that were never written to online members, or turned out bad.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Unwritten {
    /// The places that lack them, each with their number.
    places: Vec<(String, u64)>,
    /// The paths of the files in their stripes that were found.
    paths: Vec<String>,
    /// The number of those files of which no name was found, or less: some have several.
    nameless: usize,
    /// Set if others may have such shards as well.
    has_more_files: bool,
}

impl Unwritten {
    /// Looks for them, if a report says that shards are missing.
    pub(super) fn find(volume: &Volume, report: &StatusReport) -> Result<Self, Failure> {
        let full = report.geometry.full_redundancy();
        if report
            .rows()
            .iter()
            .all(|row| row.reduced_stripes(full) == 0)
        {
            return Ok(Self::default());
        }
        let counter = volume.maintenance.redundancy();
        let found = counter.unwritten_shards(MOST_STRIPES);
        let UnwrittenShards { places, stripes } = found.map_err(VolumeFailure::from)?;
        let membership = volume.transactions.members().membership();
        let has_more_stripes = stripes.len() >= MOST_STRIPES;
        let stripes = stripes.into_iter().map(|stripe| LostStripe {
            stripe,
            bytes: std::iter::once(0..u32::MAX).collect(),
        });
        let stripes: Vec<LostStripe> = stripes.collect();
        let inodes = counter.inodes_in(&stripes, MOST_STRIPES);
        let inodes = inodes.map_err(VolumeFailure::from)?;
        let paths = volume.fs.paths_of(&inodes, MOST_STRIPES);
        let paths = paths.map_err(VolumeFailure::from)?;
        Ok(Self {
            places: places
                .into_iter()
                .map(|((segment, member), shards)| {
                    let file = files::segment(segment);
                    let place = match member {
                        Some(member) => format!("{}/{file}", membership.path(member)),
                        None => format!("{file} in no directory yet"),
                    };
                    (place, shards)
                })
                .collect(),
            nameless: inodes.len().saturating_sub(paths.len()),
            has_more_files: has_more_stripes || inodes.len() >= MOST_STRIPES,
            paths: paths
                .iter()
                .map(|path| String::from_utf8_lossy(path).into_owned())
                .collect(),
        })
    }

    /// Says what is missing where, and names the files that are less protected for it.
    pub(super) fn lines(&self) -> Vec<String> {
        let Self {
            places,
            paths,
            nameless,
            has_more_files,
        } = self;
        let named = places.iter().take(MOST_NAMED);
        let mut lines: Vec<String> = named
            .map(|(place, shards)| {
                let shards = format_count(*shards, "shard");
                format!("{place} lacks {shards}, not written there or found bad")
            })
            .collect();
        let more = places.len().saturating_sub(MOST_NAMED);
        if more > 0 {
            let files = format_count(more as u64, "more file");
            lines.push(format!("{files} of directories lack shards"));
        }
        let named = paths.iter().take(MOST_NAMED);
        lines.extend(named.map(|path| format!("less protected for that: {path}")));
        let more = paths.len().saturating_sub(MOST_NAMED);
        if *has_more_files {
            lines.push(
                "more files may be less protected for that: not all stripes were looked at"
                    .to_owned(),
            );
        } else if more > 0 {
            let files = format_count(more as u64, "more file");
            lines.push(format!("less protected for that: {files}"));
        }
        if *nameless > 0 {
            let files = format_count(*nameless as u64, "file");
            lines.push(format!(
                "less protected for that: {files} of which no name was found"
            ));
        }
        if !places.is_empty() {
            lines.push(
                "`cauchyfs rebuild` of the mounted volume writes the shards that are missing"
                    .to_owned(),
            );
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_places_and_files_the_first_are_named_and_the_others_counted() {
        let unwritten = Unwritten {
            places: (0..22).map(|place| (format!("d/{place}"), 3)).collect(),
            paths: (0..21).map(|file| format!("f{file}")).collect(),
            nameless: 1,
            has_more_files: false,
        };
        let lines = unwritten.lines();
        assert_eq!(lines.len(), 20 + 1 + 20 + 1 + 1 + 1);
        assert_eq!(
            lines[0],
            "d/0 lacks 3 shards, not written there or found bad"
        );
        assert_eq!(lines[20], "2 more files of directories lack shards");
        assert_eq!(lines[21], "less protected for that: f0");
        assert_eq!(lines[41], "less protected for that: 1 more file");
        assert!(lines[42].ends_with("1 file of which no name was found"));
        assert!(Unwritten::default().lines().is_empty());
    }
}
