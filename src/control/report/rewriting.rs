//! The rewriting of files whose data has another code than theirs.

use serde::{Deserialize, Serialize};

use crate::maintenance::RewriteStatus;

/// Obstacles of the rewriting, and what it left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RewritingReport {
    /// The reason for which the rewriting waits.
    #[serde(default)]
    pub(crate) waits_for: Option<RewritingObstacle>,
    /// The members that it waits for, because they are away or drained. Daemons before this field do not tell.
    #[serde(default)]
    pub(crate) awaited: Vec<u16>,
    /// Set if the others are too few for a code. Otherwise it goes on once those that are away are given up.
    #[serde(default)]
    pub(crate) lacks_members: bool,
    /// The stripes that were not rewritten, because they cannot be read.
    #[serde(default)]
    pub(crate) stripes_left: u64,
}

/// An obstacle of the rewriting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RewritingObstacle {
    /// Members are too few, or some are away and not given up.
    Members,
    /// The members have too little room.
    Room,
}

impl RewritingReport {
    pub(crate) fn of(status: &RewriteStatus) -> Self {
        Self {
            waits_for: match (status.awaited.is_empty(), status.waits_for_room) {
                (false, _) => Some(RewritingObstacle::Members),
                (true, true) => Some(RewritingObstacle::Room),
                (true, false) => None,
            },
            awaited: status.awaited.iter().map(|member| member.0).collect(),
            lacks_members: status.lacks_members,
            stripes_left: status.stripes_left,
        }
    }
}
