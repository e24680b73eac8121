//! The destination of the log: standard error, a file, or the system's log.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use env_logger::{Builder, Target};
use log::{LevelFilter, Log, Metadata, Record};
use syslog::{BasicLogger, Facility, Formatter3164};

use super::terminal::Escaped;
use capped::Capped;

use crate::metadata::is_panic_contained;

mod capped;

/// Logs to standard error.
pub(super) fn to_stderr(verbosity: u8) {
    let mut builder = Builder::new();
    builder.target(Target::Stderr);
    let level = match verbosity {
        0 => LevelFilter::Warn,
        1 => LevelFilter::Info,
        _ => LevelFilter::Debug,
    };
    start_at(builder, level);
}

/// The same for commands whose report says all that they find: warnings are logged only if more is asked for.
pub(super) fn to_stderr_if_asked(verbosity: u8) {
    if verbosity > 0 {
        return to_stderr(verbosity);
    }
    let mut builder = Builder::new();
    builder.target(Target::Stderr);
    start_at(builder, LevelFilter::Error);
}

/// Logs to the end of a file, which is made if absent.
///
/// # Errors
///
/// If the file cannot be opened.
pub(super) fn to_file(path: &Path, verbosity: u8) -> io::Result<()> {
    let file = open(path)?;
    let mut builder = Builder::new();
    builder.target(Target::Pipe(Box::new(file)));
    start(builder, verbosity);
    Ok(())
}

/// Logs to the end of an unattended file, which is therefore kept small.
///
/// # Errors
///
/// If the file cannot be opened.
pub(super) fn to_capped_file(path: &Path, verbosity: u8) -> io::Result<()> {
    let file = Capped::open(path)?;
    let mut builder = Builder::new();
    builder.target(Target::Pipe(Box::new(file)));
    start(builder, verbosity);
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

/// Logs to the system's log, whether syslog or journald listens there.
///
/// # Errors
///
/// If nothing listens.
pub(super) fn to_syslog(verbosity: u8) -> Result<(), syslog::Error> {
    let formatter = Formatter3164 {
        facility: Facility::LOG_DAEMON,
        hostname: None,
        process: "cauchyfs".to_owned(),
        pid: std::process::id(),
    };
    install(BasicLogger::new(syslog::unix(formatter)?), level(verbosity));
    Ok(())
}

fn start(builder: Builder, verbosity: u8) {
    start_at(builder, level(verbosity));
}

fn start_at(mut builder: Builder, level: LevelFilter) {
    builder
        .filter_level(level)
        // Its own lines name every request and its missing replies; ours do that in context.
        .filter_module("fuser", level.min(LevelFilter::Warn))
        .format_timestamp_millis();
    let logger = builder.build();
    let most = logger.filter();
    install(logger, most);
}

/// Makes a logger that of the program, unless there is one, and escapes everything that it gets.
fn install(logger: impl Log + 'static, most: LevelFilter) {
    if log::set_boxed_logger(Box::new(Escaping(logger))).is_ok() {
        log::set_max_level(most);
        log_panics();
    }
}

/// A logger whose messages are one line each, with no character that acts on a terminal.
struct Escaping<L>(L);

impl<L: Log> Log for Escaping<L> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.0.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        let message = Escaped(record.args());
        let mut escaped = Record::builder();
        escaped
            .metadata(record.metadata().clone())
            .module_path(record.module_path())
            .file(record.file())
            .line(record.line());
        self.0.log(&escaped.args(format_args!("{message}")).build());
    }

    fn flush(&self) {
        self.0.flush();
    }
}

/// A daemon's log names the members that came and went, and says what was done about it.
fn level(verbosity: u8) -> LevelFilter {
    match verbosity {
        0 => LevelFilter::Info,
        _ => LevelFilter::Debug,
    }
}

/// Makes a panic a line of the log, with its place. One that is contained is damage of a volume, which is reported with
/// the copy that has it; its place in the code is for developers.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        if is_panic_contained() {
            log::debug!("the database of an index panicked: {panic}");
            return;
        }
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        log::error!("thread {name} panicked: {panic}");
    }));
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A logger that keeps what it gets.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<String>>>);

    impl Log for Kept {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &Record<'_>) {
            let mut kept = self.0.lock().unwrap();
            kept.push(format!("{} {}", record.level(), record.args()));
        }

        fn flush(&self) {}
    }

    #[test]
    fn a_name_with_a_line_end_forges_no_line_of_a_log() {
        let kept = Kept::default();
        let name = "f\n[ERROR] forged \u{1b}[2J";
        let logger = Escaping(kept.clone());
        let log = |arguments: std::fmt::Arguments<'_>| {
            let mut record = Record::builder();
            logger.log(&record.level(log::Level::Warn).args(arguments).build());
        };
        log(format_args!("cannot read {name}"));
        let lines = kept.0.lock().unwrap();
        assert_eq!(*lines, [r"WARN cannot read f\n[ERROR] forged \u{1b}[2J"]);
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
