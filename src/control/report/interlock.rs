//! The part of the report about the interlock.

use serde::{Deserialize, Serialize};

use crate::fs::Interlock;

/// The limit on files that are removed within an hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InterlockReport {
    /// The part of the files that may be removed within an hour.
    pub(crate) percent: u8,
    /// True if no file is removed before an order.
    pub(crate) refuses: bool,
    /// The files that were removed within the hour before that.
    pub(crate) removed: u64,
    /// The files of the volume then.
    pub(crate) files: u64,
}

impl From<&Interlock> for InterlockReport {
    fn from(interlock: &Interlock) -> Self {
        let refused = interlock.refused();
        Self {
            percent: interlock.percent(),
            refuses: refused.is_some(),
            removed: refused.map_or(0, |it| it.removed),
            files: refused.map_or(0, |it| it.files),
        }
    }
}
