//! The messages between a daemon and its process for alerts, one line of JSON each.

use std::io::{self, BufRead, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::notice::NoticeVolume;
use crate::control::event_report::EventReport;

/// The longest message, in bytes. An event has at most three texts of 4 KiB, which JSON may lengthen six times.
const LONGEST: u64 = 256 << 10;

/// A place in the log of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LogPlace {
    pub(super) sequence: u64,
    pub(super) time_ms: i64,
}

impl LogPlace {
    /// Returns whether `other` lies behind this place. After a loss of power a number may be given twice, so a later time
    /// suffices.
    pub(super) fn precedes(self, other: Self) -> bool {
        other.sequence > self.sequence || other.time_ms > self.time_ms
    }

    /// Returns the place behind both.
    pub(super) fn furthest(self, other: Self) -> Self {
        Self {
            sequence: self.sequence.max(other.sequence),
            time_ms: self.time_ms.max(other.time_ms),
        }
    }
}

/// A message of the daemon.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromDaemon {
    /// The volume; the first message.
    Volume(NoticeVolume),
    /// An event.
    Event {
        /// Its time, in milliseconds since 1970.
        time_ms: i64,
        event: Box<EventReport>,
    },
    /// The daemon ends in good order.
    End,
}

/// A message of the process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromProcess {
    /// Send the events behind this place, or those since the mount; the first message but for texts.
    SendAfter(Option<LogPlace>),
    /// A text for the log.
    Log { is_warning: bool, text: String },
    /// Everything that was sent is durable.
    Saved,
}

/// Writes a message.
pub(super) fn write(mut to: impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Reads a message; returns none at the end.
pub(super) fn read<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.take(LONGEST).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_behind_another_by_its_number_or_by_its_time() {
        let place = |sequence, time_ms| LogPlace { sequence, time_ms };
        let seen = place(10, 100);
        assert!(seen.precedes(place(11, 100)));
        assert!(
            seen.precedes(place(10, 101)),
            "a number that was given twice"
        );
        assert!(!seen.precedes(place(10, 100)));
        assert!(!seen.precedes(place(3, 90)));
        assert_eq!(seen.furthest(place(3, 200)), place(10, 200));
    }

    #[test]
    fn a_line_that_is_too_long_or_cut_off_is_refused() {
        let long = format!("\"{}\"\n", "x".repeat(300 << 10));
        assert!(read::<String>(&mut long.as_bytes()).is_err());
        assert!(read::<String>(&mut "\"x".as_bytes()).is_err());
        assert_eq!(read::<String>(&mut "".as_bytes()).unwrap(), None);
        let mut two = Vec::new();
        write(&mut two, &"a").unwrap();
        write(&mut two, &"b").unwrap();
        let mut two = two.as_slice();
        assert_eq!(read::<String>(&mut two).unwrap().as_deref(), Some("a"));
        assert_eq!(read::<String>(&mut two).unwrap().as_deref(), Some("b"));
    }
}
