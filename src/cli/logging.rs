//! The destination of the log: standard error, a file, or the system's log.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use std::sync::Mutex;

use anstream::{AutoStream, ColorChoice};
use tracing::Subscriber;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

use crate::metadata::is_panic_contained;
use capped::Capped;
use line::{Fields, LineFormat};
use system::SystemLog;

mod capped;
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
    install(subscriber(io::stderr, format, level));
}

/// Logs to the end of a file, which is made if absent.
///
/// # Errors
///
/// If the file cannot be opened.
pub(super) fn to_file(path: &Path, verbosity: u8) -> io::Result<()> {
    to_writer(open(path)?, verbosity);
    Ok(())
}

/// Logs to the end of an unattended file, which is therefore kept small.
///
/// # Errors
///
/// If the file cannot be opened.
pub(super) fn to_capped_file(path: &Path, verbosity: u8) -> io::Result<()> {
    to_writer(Capped::open(path)?, verbosity);
    Ok(())
}

fn to_writer(writer: impl io::Write + Send + 'static, verbosity: u8) {
    let level = level(verbosity);
    install(subscriber(Mutex::new(writer), LineFormat::Plain, level));
}

/// Logs to the system's log, whether syslog or journald listens there.
///
/// # Errors
///
/// If nothing listens.
pub(super) fn to_syslog(verbosity: u8) -> Result<(), syslog::Error> {
    let (log, level) = (SystemLog::connect()?, level(verbosity));
    install(subscriber(log, LineFormat::Bare, level));
    Ok(())
}

/// Mode bits of a log, which names files and directories.
const LOG_MODE: u32 = 0o600;

/// Opens the end of a log file, for its user alone; it is made if absent. No link is followed, and nothing but a file of
/// this user with one name is opened: whatever another user puts in its place stays as it is. Devices such as
/// `/dev/null` and this process's own standard output and error are taken as they are.
fn open(path: &Path) -> io::Result<File> {
    if let Some(stream) = standard_stream(path) {
        return Ok(File::from(stream?));
    }
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(LOG_MODE)
        // A fifo must not block, nor a terminal become ours.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) => unfit("it is a symbolic link"),
            Some(libc::ENXIO) => unfit("it is not a regular file"),
            _ => error,
        })?;
    let meta = file.metadata()?;
    if meta.file_type().is_char_device() {
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags - rustix::fs::OFlags::NONBLOCK)?;
        return Ok(file);
    }
    if !meta.is_file() {
        return Err(unfit("it is not a regular file"));
    }
    if meta.nlink() > 1 {
        return Err(unfit("it is a hard link to a file that has other names"));
    }
    if meta.uid() != rustix::process::geteuid().as_raw() {
        let owner = meta.uid();
        return Err(unfit(&format!("it belongs to another user, uid {owner}")));
    }
    if meta.mode() & 0o7777 != LOG_MODE {
        file.set_permissions(Permissions::from_mode(LOG_MODE))?;
    }
    Ok(file)
}

/// Returns standard output or error if a path is a name of it. Each of these names is a link, which leads to a terminal,
/// a pipe or a file that the shell has opened.
fn standard_stream(path: &Path) -> Option<io::Result<OwnedFd>> {
    match path.to_str()? {
        "/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2" => {
            Some(io::stderr().as_fd().try_clone_to_owned())
        }
        "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1" => {
            Some(io::stdout().as_fd().try_clone_to_owned())
        }
        _ => None,
    }
}

fn unfit(why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{why}, and a log is written only to a regular file of its own user"),
    )
}

/// Returns what turns events up to a level into lines, and writes each with one call of a writer.
fn subscriber<W>(
    writer: W,
    format: LineFormat,
    level: LevelFilter,
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
    tracing_subscriber::registry().with(level).with(lines)
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
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::Arc;

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
        let subscriber = subscriber(move || writer.clone(), format, level);
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

    #[test]
    fn a_log_is_written_for_its_user_alone_also_where_one_is_there() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("log");
        for before in [None, Some(0o644), Some(0o666)] {
            if let Some(mode) = before {
                fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            }
            let mode = open(&path).unwrap().metadata().unwrap().mode() & 0o7777;
            assert_eq!(mode, LOG_MODE, "before: {before:?}");
        }
    }

    #[test]
    fn devices_and_standard_streams_are_logs_and_keep_their_modes() {
        for path in ["/dev/null", "/dev/stderr", "/dev/stdout"] {
            let path = Path::new(path);
            let mode = || fs::metadata(path).map(|meta| meta.mode()).ok();
            let before = mode();
            let file = open(path).unwrap();
            let flags = rustix::fs::fcntl_getfl(&file).unwrap();
            if path == Path::new("/dev/null") {
                assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
            }
            assert_eq!(mode(), before, "{}", path.display());
        }
    }

    #[test]
    fn links_fifos_and_directories_are_no_logs_and_stay_as_they_are() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        let victim = at("victim");
        fs::write(&victim, "mine").unwrap();
        fs::set_permissions(&victim, Permissions::from_mode(0o644)).unwrap();
        symlink(&victim, at("symbolic")).unwrap();
        symlink(at("nowhere"), at("dangling")).unwrap();
        fs::hard_link(&victim, at("hard")).unwrap();
        fs::create_dir(at("directory")).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("fifo"),
            rustix::fs::FileType::Fifo,
            mode,
            0,
        )
        .unwrap();
        for name in ["symbolic", "dangling", "hard", "directory", "fifo"] {
            assert!(open(&at(name)).is_err(), "{name}");
        }
        assert!(!at("nowhere").exists());
        assert_eq!(fs::read(&victim).unwrap(), b"mine");
        assert_eq!(fs::metadata(&victim).unwrap().mode() & 0o7777, 0o644);
    }
}
