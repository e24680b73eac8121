//! The rewriting of files whose data has another code than theirs.

use serde::{Deserialize, Serialize};

use crate::maintenance::RewriteStatus;

/// Obstacles of the rewriting, and what it left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RewritingReport {
    /// The reason for which the rewriting waits.
    #[serde(default)]
    pub(crate) waits_for: Option<RewritingObstacle>,
    /// The stripes that were not rewritten, because they cannot be read.
    #[serde(default)]
    pub(crate) stripes_left: u64,
}

/// An obstacle of the rewriting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RewritingObstacle {
    /// Members are too few, or some are away.
    Members,
    /// The members have too little room.
    Room,
}

impl RewritingReport {
    pub(crate) fn of(status: &RewriteStatus) -> Self {
        Self {
            waits_for: match (status.waits_for_members, status.waits_for_room) {
                (true, _) => Some(RewritingObstacle::Members),
                (false, true) => Some(RewritingObstacle::Room),
                (false, false) => None,
            },
            stripes_left: status.stripes_left,
        }
    }
}
