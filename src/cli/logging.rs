//! The destination of the log: standard error, a file, or the system's log.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use anstream::{AutoStream, ColorChoice};
use tracing::Subscriber;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

use crate::control::log_file::LogFile;
use crate::metadata::is_panic_contained;
use capped::Capped;
use journal::{Journal, MemberNote};
use line::{Fields, LineFormat};
use system::SystemLog;

mod capped;
mod journal;
mod line;
mod system;

/// Logs to standard error.
pub(super) fn to_stderr(verbosity: u8) {
    let level = match verbosity {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    to_stderr_at(level);
}

/// The same for commands whose report says all that they find: warnings are logged only if more is asked for.
pub(super) fn to_stderr_if_asked(verbosity: u8) {
    if verbosity > 0 {
        return to_stderr(verbosity);
    }
    to_stderr_at(LevelFilter::ERROR);
}

fn to_stderr_at(level: LevelFilter) {
    let format = match AutoStream::choice(&io::stderr()) {
        ColorChoice::Never => LineFormat::Plain,
        _ => LineFormat::Colored,
    };
    install(subscriber(io::stderr, format, level, None));
}

/// Logs to the end of a file, which is made if absent. Returns the log, which can be opened again.
///
/// # Errors
///
/// If the file cannot be opened.
pub(super) fn to_file(path: &Path, verbosity: u8) -> io::Result<Arc<LogFile>> {
    let log = Arc::new(LogFile::open(path)?);
    let level = level(verbosity);
    let writer = Arc::clone(&log);
    install(subscriber(writer, LineFormat::Plain, level, None));
    Ok(log)
}

/// Logs to the end of an unattended file, which is therefore kept small.
///
/// # Errors
///
/// If the file cannot be opened.
pub(super) fn to_capped_file(path: &Path, verbosity: u8) -> io::Result<()> {
    let (writer, level) = (Capped::open(path)?, level(verbosity));
    let writer = Mutex::new(writer);
    install(subscriber(writer, LineFormat::Plain, level, None));
    Ok(())
}

/// Logs to the journal of systemd, with fields that name the volume and the member.
///
/// # Errors
///
/// If there is no journal.
pub(super) fn to_journal(verbosity: u8) -> io::Result<()> {
    let (log, level) = (Journal::connect()?, level(verbosity));
    install(subscriber(log, LineFormat::Bare, level, Some(MemberNote)));
    Ok(())
}

/// The same if standard error goes to the journal. Returns whether it does.
pub(super) fn to_own_journal(verbosity: u8) -> bool {
    journal::is_stderr() && to_journal(verbosity).is_ok()
}

/// Names the volume of this daemon in the journal from now on.
pub(super) fn name_volume(id: &str) {
    journal::name_volume(id);
}

/// Logs to the system's log, whether syslog or journald listens there.
///
/// # Errors
///
/// If nothing listens.
pub(super) fn to_syslog(verbosity: u8) -> Result<(), syslog::Error> {
    let (log, level) = (SystemLog::connect()?, level(verbosity));
    install(subscriber(log, LineFormat::Bare, level, None));
    Ok(())
}

/// Returns what turns events up to a level into lines, and writes each with one call of a writer. A writer that wants to
/// know the member of an event gets a `note` of it.
fn subscriber<W>(
    writer: W,
    format: LineFormat,
    level: LevelFilter,
    note: Option<MemberNote>,
) -> impl Subscriber + Send + Sync + 'static
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer()
        .event_format(format)
        .fmt_fields(Fields)
        .with_writer(writer)
        // Standard error may be gone, and then the program goes on.
        .log_internal_errors(false);
    tracing_subscriber::registry()
        .with(level)
        .with(note)
        .with(lines)
}

/// Makes a subscriber that of the program, unless there is one.
fn install(subscriber: impl Subscriber + Send + Sync + 'static) {
    if tracing::subscriber::set_global_default(subscriber).is_ok() {
        log_panics();
    }
}

/// A daemon's log names the members that came and went, and says what was done about it.
fn level(verbosity: u8) -> LevelFilter {
    match verbosity {
        0 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    }
}

/// Makes a panic a line of the log, with its place. One that is contained is damage of a volume, which is reported with
/// the copy that has it; its place in the code is for developers.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        if is_panic_contained() {
            tracing::debug!("the database of an index panicked: {panic}");
            return;
        }
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        tracing::error!("thread {name} panicked: {panic}");
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that keeps what it gets.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the lines that `work` logs, without their times.
    fn logged(level: LevelFilter, format: LineFormat, work: impl FnOnce()) -> Vec<String> {
        let kept = Kept::default();
        let writer = kept.clone();
        let subscriber = subscriber(move || writer.clone(), format, level, None);
        tracing::subscriber::with_default(subscriber, work);
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        text.lines().map(without_time).collect()
    }

    /// Removes the time from a line, after checking that it is one of UTC with milliseconds.
    fn without_time(line: &str) -> String {
        let Some((time, rest)) = line.strip_prefix('[').and_then(|line| line.split_once(' '))
        else {
            return line.to_owned();
        };
        assert_eq!(time.len(), "2026-01-02T03:04:05.678Z".len(), "{line}");
        time.parse::<jiff::Timestamp>().unwrap();
        format!("[{rest}")
    }

    #[test]
    fn a_line_names_time_level_and_module_and_then_the_fields_and_the_message() {
        let lines = logged(LevelFilter::INFO, LineFormat::Plain, || {
            tracing::warn!("{} of {} is full", "member 2", 6);
            let job = tracing::info_span!("rebuild", segment = 12);
            let _in_job = job.enter();
            tracing::info!("begins");
            let path = Path::new("/srv/d2");
            tracing::error!(member = 2_u8, path = %path.display(), "gone");
            let below = tracing::info_span!("stripe", stripe = tracing::field::Empty);
            below.record("stripe", 7);
            below.in_scope(|| tracing::info!(shard = 3));
            tracing::debug!("is not asked for");
        });
        let target = module_path!();
        assert_eq!(
            lines,
            [
                format!("[WARN  {target}] member 2 of 6 is full"),
                format!("[INFO  {target}] segment=12: begins"),
                format!("[ERROR {target}] segment=12 member=2 path=/srv/d2: gone"),
                format!("[INFO  {target}] segment=12 stripe=7 shard=3"),
            ]
        );
    }

    #[test]
    fn a_terminal_gets_colors_and_the_system_log_the_text_alone() {
        let warn = || tracing::warn!(member = 2, "gone");
        let colored = logged(LevelFilter::INFO, LineFormat::Colored, warn).concat();
        assert!(colored.contains("\u{1b}[33mWARN \u{1b}[0m"), "{colored:?}");
        assert!(colored.ends_with("member=2: gone"), "{colored:?}");
        let bare = logged(LevelFilter::INFO, LineFormat::Bare, warn);
        assert_eq!(bare, ["member=2: gone"]);
    }

    #[test]
    fn a_name_with_a_line_end_forges_no_line_of_a_log() {
        let name = "f\n[ERROR] forged \u{1b}[2J";
        let lines = logged(LevelFilter::INFO, LineFormat::Bare, || {
            tracing::warn!("cannot read {name}");
            tracing::warn!(name, "cannot read");
            tracing::warn_span!("read", path = %name).in_scope(|| tracing::warn!("fails"));
        });
        let escaped = r"f\n[ERROR] forged \u{1b}[2J";
        assert_eq!(
            lines,
            [
                format!("cannot read {escaped}"),
                format!("name={escaped}: cannot read"),
                format!("path={escaped}: fails"),
            ]
        );
    }
}
