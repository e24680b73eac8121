//! The journal of systemd, by its native protocol: each line becomes a message with fields.
//!
//! The crate `tracing-journald` sends fields of events as they are. Here a message is the escaped line that all other
//! logs get, and its fields are few and documented: `CAUCHYFS_VOLUME` and `CAUCHYFS_MEMBER`.

use std::cell::Cell;
use std::fmt::Debug;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::OnceLock;

use parking_lot::{Mutex, MutexGuard};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::Context;

/// The socket of the journal.
const SOCKET: &str = "/run/systemd/journal/socket";

/// The variable in which systemd names the stream that standard error is, if that goes to the journal.
const STREAM: &str = "JOURNAL_STREAM";

/// The longest message, in bytes. A datagram takes more.
const LONGEST: usize = 64 << 10;

/// The field of an event that is about a member; the text of the line names the member, too.
pub(super) const MEMBER: &str = "journal.member";

/// The other field that names a member, which is a part of the text.
const MEMBER_IN_TEXT: &str = "member";

/// The id of the volume of this daemon, once it is known.
static VOLUME: OnceLock<String> = OnceLock::new();

thread_local! {
    /// The member that the event is about which this thread logs.
    static ABOUT: Cell<Option<u16>> = const { Cell::new(None) };
}

/// Names the volume in all messages from now on.
pub(super) fn name_volume(id: &str) {
    // A daemon serves one volume; to name it again changes nothing.
    VOLUME.get_or_init(|| id.to_owned());
}

/// A connection to the journal. It is made before a daemon confines itself.
pub(super) struct Journal {
    socket: Mutex<UnixDatagram>,
}

impl Journal {
    /// Connects to the journal.
    ///
    /// # Errors
    ///
    /// If nothing listens.
    pub(super) fn connect() -> io::Result<Self> {
        Self::connect_to(Path::new(SOCKET))
    }

    fn connect_to(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        Ok(Self {
            socket: Mutex::new(socket),
        })
    }
}

/// Says whether standard error goes to the journal.
pub(super) fn is_stderr() -> bool {
    let named = std::env::var(STREAM).ok();
    let seen = std::fs::metadata("/proc/self/fd/2");
    match (named, seen) {
        (Some(named), Ok(seen)) => named == format!("{}:{}", seen.dev(), seen.ino()),
        _ => false,
    }
}

/// Notes which member an event is about, for the writer of its line.
pub(super) struct MemberNote;

impl<S: Subscriber> Layer<S> for MemberNote {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut seen = SeenMember(None);
        event.record(&mut seen);
        ABOUT.set(seen.0);
    }
}

/// The number of a member in the fields of an event.
struct SeenMember(Option<u16>);

impl SeenMember {
    fn see(&mut self, field: &Field, text: &str) {
        if [MEMBER, MEMBER_IN_TEXT].contains(&field.name()) {
            self.0 = text.parse().ok();
        }
    }
}

impl Visit for SeenMember {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.see(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.see(field, &format!("{value:?}"));
    }
}

impl<'a> MakeWriter<'a> for Journal {
    type Writer = Message<'a>;

    fn make_writer(&'a self) -> Message<'a> {
        Message {
            socket: self.socket.lock(),
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
    socket: MutexGuard<'a, UnixDatagram>,
    level: Level,
}

impl io::Write for Message<'_> {
    /// Sends a line as a message.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let volume = VOLUME.get().map(String::as_str);
        let fields = fields(&text, self.level, volume, ABOUT.take());
        match self.socket.send(fields.as_bytes()) {
            Ok(_) => {}
            // The journal was started again.
            Err(error) if is_gone(&error) => {
                self.socket.connect(SOCKET)?;
                self.socket.send(fields.as_bytes())?;
            }
            Err(error) => return Err(error),
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn is_gone(error: &io::Error) -> bool {
    [
        io::ErrorKind::ConnectionRefused,
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::NotConnected,
    ]
    .contains(&error.kind())
}

/// Returns a message: a field on each line. The text of a log line has no line end in it.
fn fields(text: &str, level: Level, volume: Option<&str>, member: Option<u16>) -> String {
    let text = text.trim_end_matches('\n').replace('\n', " ");
    let end = (0..=LONGEST.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or_default();
    let priority = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    };
    let text = &text[..end];
    let volume = volume.map(|id| format!("CAUCHYFS_VOLUME={id}\n"));
    let member = member.map(|number| format!("CAUCHYFS_MEMBER={number}\n"));
    let (volume, member) = (volume.unwrap_or_default(), member.unwrap_or_default());
    format!(
        "MESSAGE={text}\nPRIORITY={priority}\nSYSLOG_FACILITY=3\nSYSLOG_IDENTIFIER=cauchyfs\n{volume}{member}"
    )
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::filter::LevelFilter;

    use super::super::line::LineFormat;
    use super::super::subscriber;
    use super::*;

    #[test]
    fn a_message_names_priority_volume_and_the_member_that_its_event_is_about() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("journal");
        let listener = UnixDatagram::bind(&path).unwrap();
        let journal = Journal::connect_to(&path).unwrap();
        let id = "0d7ff1d4-4d3b-4e0a-9d0d-3a4f5a6b7c8d";
        name_volume(id);
        let lines = subscriber(
            journal,
            LineFormat::Bare,
            LevelFilter::DEBUG,
            Some(MemberNote),
        );
        tracing::subscriber::with_default(lines, || {
            tracing::warn!(journal.member = 2, "member 2 is marked missing");
            tracing::info!("mounted\nMESSAGE=forged");
            tracing::error!(member = %7, "its superblock is damaged");
        });
        for (text, priority, member) in [
            ("member 2 is marked missing", 4, Some(2)),
            (r"mounted\nMESSAGE=forged", 6, None),
            ("member=7: its superblock is damaged", 3, Some(7)),
        ] {
            let mut message = [0; 512];
            let len = listener.recv(&mut message).unwrap();
            let message = std::str::from_utf8(&message[..len]).unwrap();
            let lines: Vec<&str> = message.lines().collect();
            assert_eq!(lines[0], format!("MESSAGE={text}"));
            assert!(
                lines.contains(&format!("PRIORITY={priority}").as_str()),
                "{message}"
            );
            assert!(
                lines.contains(&format!("CAUCHYFS_VOLUME={id}").as_str()),
                "{message}"
            );
            let found = lines
                .iter()
                .find_map(|line| line.strip_prefix("CAUCHYFS_MEMBER="));
            assert_eq!(
                found,
                member.map(|member: u16| member.to_string()).as_deref()
            );
        }
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let text = "ü".repeat(LONGEST);
        let message = fields(&text, Level::INFO, None, None);
        let first = message.lines().next().unwrap();
        assert_eq!(first.len(), "MESSAGE=".len() + LONGEST);
        assert!(first.ends_with('ü'));
    }

    #[test]
    fn standard_error_of_a_test_is_not_the_journal_of_a_service() {
        assert!(!is_stderr());
    }
}
