//! The progress and the result of a scrub.

use serde::{Deserialize, Serialize};

use super::report::LostFiles;
use crate::maintenance::ScrubState;

/// The progress of a scrub, as the daemon tells a command that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    pub(crate) bytes_passed: u64,
    pub(crate) bytes_total: u64,
    pub(crate) repaired: u64,
    pub(crate) wrong: u64,
}

/// The result of a scrub; the document that `scrub --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Scrubbed {
    pub(crate) state: ScrubState,
    pub(crate) progress: f64,
    /// Bytes of shards that were read.
    pub(crate) bytes_read: u64,
    /// Shards and other pieces that were wrong and are right now.
    pub(crate) repaired: u64,
    /// Those that are wrong still.
    pub(crate) wrong: u64,
    /// Stripes that are yet to be rewritten, because their bytes would be less protected now.
    #[serde(default)]
    pub(crate) stripes_waiting: u64,
    /// True if the volume or its index had no space to rewrite some of these.
    #[serde(default)]
    pub(crate) waiting_for_space: bool,
    /// Shards that are on no online member.
    pub(crate) missing: u64,
    /// Those of them that cannot be restored, because too few others of the same stripes are there.
    #[serde(default)]
    pub(crate) missing_for_now: u64,
    /// Shards that could not be verified, though they should be on online members.
    #[serde(default)]
    pub(crate) unverified: u64,
    /// The online members that are stale copies and are not verified yet.
    #[serde(default)]
    pub(crate) unverified_members: Vec<UnverifiedMember>,
    /// The members of which it found something to be wrong, or gone, as far as that is known.
    #[serde(default)]
    pub(crate) defects: Vec<MemberDefects>,
    /// Bytes that cannot be had.
    pub(crate) bytes_lost: u64,
    pub(crate) began_at: Option<String>,
    /// The time when a scrub last went through.
    pub(crate) finished_at: Option<String>,
    #[serde(flatten)]
    pub(crate) lost: LostFiles,
}

/// A member that counts for nothing until a scrub verifies it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UnverifiedMember {
    pub(crate) index: u16,
    pub(crate) path: String,
}

/// The number of pieces of a member that were wrong, or gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberDefects {
    pub(crate) index: u16,
    pub(crate) path: Option<String>,
    pub(crate) pieces: u64,
}
