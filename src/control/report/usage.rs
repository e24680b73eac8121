//! The reports of `cauchyfs usage`.

use serde::{Deserialize, Serialize};

use super::IndexReport;
use crate::maintenance::MemberUsage;

/// The document that `usage --json` prints of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumeUsageReport {
    pub(crate) volume: String,
    pub(crate) label: String,
    /// Bytes on the members that files hold; those that several files share count once.
    pub(crate) held_bytes: u64,
    /// Bytes that were accepted, and are in memory until a stripe is full or some seconds have passed.
    pub(crate) unwritten_bytes: u64,
    pub(crate) members: Vec<MemberUsageReport>,
}

/// The space that a volume takes on one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberUsageReport {
    pub(crate) index: u16,
    pub(crate) path: Option<String>,
    /// The bytes that its files take on their filesystem: the sum of `uses`. None if the member does not answer.
    pub(crate) bytes_used: Option<u64>,
    pub(crate) uses: Option<UsesReport>,
    /// The reason why these are not counted.
    pub(crate) reason: Option<String>,
}

/// The bytes of the files of one member, or of several, by their use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UsesReport {
    pub(crate) data: u64,
    pub(crate) parity: u64,
    pub(crate) dead: u64,
    pub(crate) preallocated: u64,
    pub(crate) journal: u64,
    pub(crate) index: u64,
    pub(crate) held_back: u64,
    pub(crate) other: u64,
}

impl From<&MemberUsage> for UsesReport {
    fn from(usage: &MemberUsage) -> Self {
        Self {
            data: usage.data,
            parity: usage.parity,
            dead: usage.dead,
            preallocated: usage.preallocated,
            journal: usage.journal,
            index: usage.index,
            held_back: usage.held_back,
            other: usage.other,
        }
    }
}

impl UsesReport {
    /// Returns the uses in the order in which they are shown. The numbers may be a daemon's, and any.
    pub(crate) fn columns(&self) -> [u64; 8] {
        [
            self.data,
            self.parity,
            self.dead,
            self.preallocated,
            self.journal,
            self.index,
            self.held_back,
            self.other,
        ]
    }
}

/// The document that `usage --json` prints of a file, or of a directory with everything below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FilesUsageReport {
    /// True if it is a directory.
    pub(crate) is_directory: bool,
    /// Inodes that are no directories. One with several names counts once.
    pub(crate) files: u64,
    /// Directories, the one that was asked for among them.
    pub(crate) directories: u64,
    /// The sizes of the files, holes included.
    pub(crate) size: u64,
    /// The bytes of storage that they have without parity, holes left out.
    pub(crate) allocated_bytes: u64,
    /// The runs of bytes of which they consist.
    pub(crate) extents: u64,
    /// The bytes for which room is reserved, and where nothing is written. Daemons before this field do not tell.
    #[serde(default)]
    pub(crate) reserved_bytes: u64,
    /// The stripes on the members that hold them.
    pub(crate) stripes: u64,
    /// The stripes that are in memory, not on the members yet.
    pub(crate) unwritten_stripes: u64,
    /// The stripes without a record, whose bytes are lost. Daemons before this field do not tell.
    #[serde(default)]
    pub(crate) stripes_without_record: u64,
    /// The bytes of the files in these.
    #[serde(default)]
    pub(crate) bytes_without_record: u64,
    /// The number of those on the members that lack shards.
    pub(crate) stripes_below_full: u64,
    /// The losses of members that all of it survives now, its records in the index included; negative if bytes are lost.
    pub(crate) losses_tolerated: i64,
    /// The same for the stripes, the most endangered first. Bytes are not counted.
    pub(crate) redundancy: Vec<StripesReport>,
    /// The copies of the index, which has the names and the small files.
    pub(crate) index: IndexReport,
    pub(crate) members: Vec<MemberShardsReport>,
}

/// Stripes that survive the loss of so many more members; negative: is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StripesReport {
    pub(crate) losses_tolerated: i64,
    pub(crate) stripes: u64,
}

/// A member that holds shards of some stripes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberShardsReport {
    pub(crate) index: u16,
    pub(crate) path: Option<String>,
    pub(crate) shards: u64,
    /// True if it is online.
    pub(crate) is_online: bool,
}
