//! The system's log: syslog, or journald in its place.

use std::io;

use parking_lot::{Mutex, MutexGuard};
use syslog::{Facility, Formatter3164, Logger, LoggerBackend};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

type Connection = Logger<LoggerBackend, Formatter3164>;

/// A connection to the system's log. Each line that is written becomes one message, with the severity of its level.
pub(super) struct SystemLog(Mutex<Connection>);

impl SystemLog {
    /// Connects to the system's log.
    ///
    /// # Errors
    ///
    /// If nothing listens.
    pub(super) fn connect() -> Result<Self, syslog::Error> {
        syslog::unix(formatter()).map(Self::new)
    }

    fn new(connection: Connection) -> Self {
        Self(Mutex::new(connection))
    }
}

fn formatter() -> Formatter3164 {
    Formatter3164 {
        facility: Facility::LOG_DAEMON,
        hostname: None,
        process: "cauchyfs".to_owned(),
        pid: std::process::id(),
    }
}

impl<'a> MakeWriter<'a> for SystemLog {
    type Writer = Message<'a>;

    fn make_writer(&'a self) -> Message<'a> {
        Message {
            connection: self.0.lock(),
            level: Level::INFO,
        }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Message<'a> {
        Message {
            level: *metadata.level(),
            ..self.make_writer()
        }
    }
}

/// A writer of one message.
pub(super) struct Message<'a> {
    connection: MutexGuard<'a, Connection>,
    level: Level,
}

impl io::Write for Message<'_> {
    /// Sends a line as a message.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let (connection, text) = (&mut self.connection, text.trim_end_matches('\n'));
        match self.level {
            Level::ERROR => connection.err(text),
            Level::WARN => connection.warning(text),
            Level::INFO => connection.info(text),
            Level::DEBUG | Level::TRACE => connection.debug(text),
        }
        .map_err(io::Error::other)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use tracing_subscriber::filter::LevelFilter;

    use super::super::line::LineFormat;
    use super::super::subscriber;
    use super::*;

    #[test]
    fn each_event_is_one_message_with_the_severity_of_its_level() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("log");
        let listener = UnixDatagram::bind(&path).unwrap();
        let connection = syslog::unix_custom(formatter(), &path).unwrap();
        let log = SystemLog::new(connection);
        tracing::subscriber::with_default(
            subscriber(log, LineFormat::Bare, LevelFilter::DEBUG, None),
            || {
                tracing::error!("gone");
                tracing::warn!(member = 2, "full");
                tracing::info!("back\nagain");
                tracing::debug!("seen");
            },
        );
        // The facility `daemon` is 3, and the severities are those of RFC 3164.
        for (severity, text) in [
            (3, "gone"),
            (4, "member=2: full"),
            (6, r"back\nagain"),
            (7, "seen"),
        ] {
            let mut message = [0; 256];
            let len = listener.recv(&mut message).unwrap();
            let message = std::str::from_utf8(&message[..len]).unwrap();
            let priority = format!("<{}>", (3 << 3) | severity);
            assert!(message.starts_with(&priority), "{message}");
            let tail = format!(" cauchyfs[{}]: {text}", std::process::id());
            assert!(message.ends_with(&tail), "{message}");
        }
    }
}
