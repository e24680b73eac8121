//! The progress of a rebuild or of balancing.

use serde::{Deserialize, Serialize};

use crate::maintenance::{RebuildKind, RebuildState};

/// The work of a rebuild or of balancing that runs, or of the last one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RebuildReport {
    pub(crate) state: RebuildState,
    /// The purpose of the work. Daemons before this field do not tell.
    #[serde(default)]
    pub(crate) kind: RebuildKind,
    pub(crate) progress: f64,
    pub(crate) bytes_left: u64,
    pub(crate) bytes_done: u64,
    /// The part of these that nothing lacked, and that moved from one member to another.
    #[serde(default)]
    pub(crate) bytes_moved: u64,
    /// The bytes that have no directory to go to.
    pub(crate) bytes_waiting: u64,
    /// The part of these that has no directory because each has something of the same stripes. Daemons before this field do not
    /// tell.
    #[serde(default)]
    pub(crate) bytes_without_member: u64,
    /// The bytes that keep their place because data beside them cannot be read.
    pub(crate) bytes_unreadable: u64,
    /// The most bytes that it writes in a second; none while nothing runs, or without a limit.
    #[serde(default)]
    pub(crate) bytes_per_second: Option<u64>,
    /// For how long it has been running, or was.
    pub(crate) seconds: u64,
    /// The same, more exactly.
    #[serde(default)]
    pub(crate) milliseconds: u64,
    /// Set if data is to be moved to emptier members because a command asked for that. Daemons before this field do not tell.
    #[serde(default)]
    pub(crate) awaits_balance: bool,
    /// The reason for which work failed that is tried again. Daemons before this field do not tell.
    #[serde(default)]
    pub(crate) failure: Option<String>,
}

impl RebuildReport {
    /// Notes the limit that is in force, if it is at work.
    pub(crate) fn note_limit(&mut self, bytes_per_second: Option<u64>) {
        let is_running = self.state == RebuildState::Running;
        self.bytes_per_second = bytes_per_second.filter(|_| is_running);
    }

    /// Returns whether all bytes that wait need another directory, and not room alone.
    pub(crate) fn waits_for_members(&self) -> bool {
        self.bytes_waiting > 0 && self.bytes_without_member >= self.bytes_waiting
    }

    /// Returns the seconds that the rest takes at the speed until now; none while nothing runs.
    #[expect(clippy::cast_precision_loss, reason = "an estimate is no more precise")]
    pub(crate) fn seconds_left(&self) -> Option<f64> {
        let is_known = self.state == RebuildState::Running && self.bytes_done > 0;
        let speed = self.bytes_done as f64 / (self.milliseconds.max(1) as f64 / 1e3);
        is_known.then(|| self.bytes_left as f64 / speed)
    }
}

impl Default for RebuildReport {
    /// Nothing was asked for, and nothing is left to do.
    fn default() -> Self {
        Self {
            state: RebuildState::Idle,
            kind: RebuildKind::Rebuild,
            progress: 1.0,
            bytes_left: 0,
            bytes_done: 0,
            bytes_moved: 0,
            bytes_waiting: 0,
            bytes_without_member: 0,
            bytes_unreadable: 0,
            bytes_per_second: None,
            seconds: 0,
            milliseconds: 0,
            awaits_balance: false,
            failure: None,
        }
    }
}
