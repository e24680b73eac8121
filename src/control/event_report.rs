//! Events as they cross the control socket, and as `events --json` prints them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::format::event::{Event, EventKind, Severity};

/// An event; its shape is a contract. The kind adds its name as `event`, and its fields beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EventReport {
    /// When it happened, as RFC 3339 with milliseconds in UTC.
    pub(crate) time: String,
    /// Counts the events of a volume over its life.
    pub(crate) sequence: u64,
    pub(crate) severity: Severity,
    pub(crate) volume: String,
    /// The member that it is about, if it is about one.
    pub(crate) member: Option<u16>,
    /// The directory of that member then.
    pub(crate) path: Option<String>,
    #[serde(flatten)]
    pub(crate) kind: EventKind,
}

impl EventReport {
    /// Reports an event.
    pub(crate) fn of(event: Event) -> Self {
        let Event {
            time_ms,
            sequence,
            volume,
            member,
            severity,
            kind,
        } = event;
        let (member, path) = member.map(|member| (member.index.0, member.path)).unzip();
        Self {
            time: moment(time_ms),
            sequence,
            severity,
            volume: volume.to_string(),
            member,
            path: path.filter(|path| !path.is_empty()),
            kind,
        }
    }
}

/// Writes a moment with its milliseconds. One that no calendar has becomes the nearest that one has.
fn moment(time_ms: i64) -> String {
    let (least, most) = (Timestamp::MIN, Timestamp::MAX);
    let time_ms = time_ms.clamp(least.as_millisecond(), most.as_millisecond());
    let moment = Timestamp::from_millisecond(time_ms).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{moment:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::event::EventMember;
    use crate::format::{MemberIndex, VolumeId};

    fn event(kind: EventKind) -> Event {
        Event {
            time_ms: 1_700_000_000_120,
            sequence: 4,
            volume: VolumeId(uuid::Uuid::from_u128(1)),
            member: Some(EventMember {
                index: MemberIndex(2),
                path: "/srv/d2".to_owned(),
            }),
            severity: kind.severity(),
            kind,
        }
    }

    #[test]
    fn the_json_of_an_event_has_the_documented_fields_and_reads_back() {
        let report = EventReport::of(event(EventKind::MemberBack { seconds_away: 90 }));
        let text = serde_json::to_string(&report).unwrap();
        let expected = concat!(
            r#"{"time":"2023-11-14T22:13:20.120Z","sequence":4,"severity":"info","#,
            r#""volume":"00000000-0000-0000-0000-000000000001","member":2,"path":"/srv/d2","#,
            r#""event":"member_back","seconds_away":90}"#
        );
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<EventReport>(&text).unwrap(), report);
    }

    #[test]
    fn a_time_beyond_the_calendar_is_shown_as_the_last_one_in_it() {
        for time_ms in [i64::MIN, i64::MAX] {
            let report = EventReport::of(Event {
                time_ms,
                ..event(EventKind::Unknown)
            });
            assert!(report.time.parse::<Timestamp>().is_ok(), "{}", report.time);
        }
    }
}
