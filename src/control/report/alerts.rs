//! The part of the report about the delivery of alerts.

use serde::{Deserialize, Serialize};

/// The delivery of alerts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AlertsReport {
    pub(crate) state: AlertsState,
    /// The time since which it is so, as RFC 3339.
    pub(crate) since: String,
    /// The reason for which no alerts are delivered.
    pub(crate) reason: Option<String>,
    /// The seconds from `since` to the next attempt.
    pub(crate) seconds_to_next: Option<u64>,
}

/// The state of the process that delivers alerts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AlertsState {
    /// It runs.
    Running,
    /// It ended, and is started again.
    Restarting,
    /// It ended, and nothing starts it again.
    Ended,
}
