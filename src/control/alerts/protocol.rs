//! The messages between a daemon and its process for alerts, one line of JSON each.

use std::io::{self, BufRead, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::notice::NoticeVolume;
use crate::control::event_report::EventReport;

/// The longest message, in bytes. An event has at most three texts of 4 KiB, which JSON may lengthen six times.
/// A longer one is skipped.
const LONGEST: u64 = 256 << 10;

/// The longest text for the log, in characters.
const LONGEST_TEXT: usize = 2000;

/// A place in the log of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LogPlace {
    pub(super) sequence: u64,
    pub(super) time_ms: i64,
}

impl LogPlace {
    /// The place before all events.
    pub(super) const START: Self = Self {
        sequence: 0,
        time_ms: 0,
    };

    /// Returns whether `other` lies behind this place. After a loss of power a number may be given twice, so a later time
    /// suffices.
    pub(super) fn precedes(self, other: Self) -> bool {
        other.sequence > self.sequence || other.time_ms > self.time_ms
    }

    /// Returns a place behind which everything lies that lies behind one of both.
    pub(super) fn nearest(self, other: Self) -> Self {
        Self {
            sequence: self.sequence.min(other.sequence),
            time_ms: self.time_ms.min(other.time_ms),
        }
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
    /// The volume, and the newest event before the mount; the first message.
    Volume {
        about: NoticeVolume,
        newest: Option<LogPlace>,
    },
    /// An event.
    Event {
        /// Its time, in milliseconds since 1970.
        time_ms: i64,
        /// True if it happened since the mount, and no process was told of it yet.
        is_new: bool,
        event: Box<EventReport>,
    },
    /// The daemon ends in good order.
    End,
}

/// A message of the process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromProcess {
    /// Send the events behind this place; the first message but for texts.
    SendAfter(LogPlace),
    /// A text for the log.
    Log { is_warning: bool, text: String },
    /// Everything that was sent is durable.
    Saved,
}

impl FromProcess {
    /// Makes a text for the log, and shortens it.
    pub(super) fn log(is_warning: bool, text: &str) -> Self {
        let text = match text.char_indices().nth(LONGEST_TEXT) {
            Some((at, _)) => format!("{}…", &text[..at]),
            None => text.to_owned(),
        };
        Self::Log { is_warning, text }
    }
}

/// Writes a message.
pub(super) fn write(mut to: impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Reads a message; returns none at the end. Skips lines that are too long.
pub(super) fn read<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    loop {
        line.clear();
        from.take(LONGEST).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        let is_cut = line.len() as u64 == LONGEST && !line.ends_with(b"\n");
        if !is_cut {
            return Ok(Some(serde_json::from_slice(&line)?));
        }
        from.skip_until(b'\n')?;
    }
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
    fn a_long_text_is_shortened_between_characters() {
        let FromProcess::Log { text, .. } = FromProcess::log(true, &"ü".repeat(5000)) else {
            panic!("it is a text");
        };
        assert_eq!(text.chars().count(), LONGEST_TEXT + 1);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_one_that_is_cut_off_refused() {
        let long = format!("\"{}\"\n\"a\"\n", "x".repeat(600 << 10));
        let mut long = long.as_bytes();
        assert_eq!(read::<String>(&mut long).unwrap().as_deref(), Some("a"));
        assert_eq!(read::<String>(&mut long).unwrap(), None);
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
