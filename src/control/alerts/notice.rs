//! A notice: what one message to a receiver is about.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::control::event_report::EventReport;
use crate::format::event::Severity;

/// The volume that notices are about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NoticeVolume {
    /// Its id.
    pub(crate) volume: String,
    /// Its name; may be empty.
    pub(crate) label: String,
    /// Where it is mounted.
    pub(crate) mountpoint: String,
}

/// The purpose of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NoticeKind {
    /// Something is wrong.
    Problem,
    /// Something that was wrong is right again.
    Recovery,
    /// Something happened, and nothing has to be done.
    Information,
    /// Events were held back, because there were too many.
    Summary,
    /// `cauchyfs alerts test` asked for it.
    Test,
}

/// One message to a receiver, as data. Its JSON is a contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Notice {
    /// Stays the same when the notice is sent again.
    pub(crate) id: Uuid,
    /// When it was made, as RFC 3339.
    pub(crate) time: String,
    pub(crate) kind: NoticeKind,
    /// The highest severity of its events.
    pub(crate) severity: Severity,
    #[serde(flatten)]
    pub(crate) about: NoticeVolume,
    /// The events, the oldest first.
    pub(crate) events: Vec<EventReport>,
    /// Events that belong to the notice and are not listed.
    pub(crate) events_left_out: u64,
    /// Earlier notices that were given up, because the receiver was away for too long.
    pub(crate) notices_lost: u64,
    /// Members about which further events are held back for up to an hour.
    pub(crate) holding_back: Vec<u16>,
    /// The same of conditions of the volume, in words.
    #[serde(default)]
    pub(crate) topics_held_back: Vec<String>,
}

impl Notice {
    /// Makes a notice of this moment.
    pub(crate) fn new(kind: NoticeKind, about: NoticeVolume, events: Vec<EventReport>) -> Self {
        let severities = events.iter().map(|event| event.severity);
        Self {
            id: Uuid::new_v4(),
            time: format!("{:.0}", Timestamp::now()),
            kind,
            severity: severities.max().unwrap_or(Severity::Info),
            about,
            events,
            events_left_out: 0,
            notices_lost: 0,
            holding_back: Vec::new(),
            topics_held_back: Vec::new(),
        }
    }
}

/// The words of a notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Letter {
    /// One line without controls.
    pub(crate) subject: String,
    /// Lines without other controls.
    pub(crate) text: String,
}

/// Puts a notice into words.
pub(crate) type Wording = fn(&Notice) -> Letter;
