//! Names of the files in a member's directory.

use super::SegmentId;

/// The superblock's two slots.
pub const SUPERBLOCK: &str = "superblock";

/// Empty; locked while the volume is mounted.
pub const LOCK: &str = "lock";

/// The journal's two files, used in turn.
pub const JOURNALS: [&str; 2] = ["journal.0", "journal.1"];

/// The index; not every member has a copy.
pub const INDEX: &str = "index";

/// Holds nothing but space, kept back for the index; beside a copy of it.
pub const BALLAST: &str = "ballast";

/// Holds nothing but space, kept back for stripes, where no space can be reserved.
pub const DATA_BALLAST: &str = "ballast.data";

/// The newest events of the volume.
pub const EVENTS: &str = "events";

/// The events before those in [`EVENTS`].
pub const OLD_EVENTS: &str = "events.old";

/// The directory of the segment files.
pub const SEGMENTS: &str = "segments";

/// Returns the name of a segment's file.
///
/// # Examples
///
/// ```
/// # use cauchyfs_format::{SegmentId, files};
/// assert_eq!(files::segment(SegmentId(0x2a)), "segments/000000000000002a");
/// assert_eq!(files::parse_segment("segments/000000000000002a"), Some(SegmentId(0x2a)));
/// assert_eq!(files::parse_segment("segments/2a"), None);
/// ```
#[must_use]
pub fn segment(segment: SegmentId) -> String {
    format!("{SEGMENTS}/{:016x}", segment.0)
}

/// Returns the segment whose file has this name, or `None` if it is not a segment file's name.
#[must_use]
pub fn parse_segment(name: &str) -> Option<SegmentId> {
    let digits = name.strip_prefix(SEGMENTS)?.strip_prefix('/')?;
    let number = SegmentId(u64::from_str_radix(digits, 16).ok()?);
    // Capitals, signs and short numbers parse too, but are not what `segment` makes.
    (segment(number) == name).then_some(number)
}
