//! Where the log goes: standard error, a file, or the system's log.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use env_logger::{Builder, Target};
use log::LevelFilter;
use syslog::{BasicLogger, Facility, Formatter3164};

use capped::Capped;

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
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    let mut builder = Builder::new();
    builder.target(Target::Pipe(Box::new(file)));
    start(builder, verbosity);
    Ok(())
}

/// Logs to the end of a file that nobody looks after, and that is therefore kept small.
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
    let logger = BasicLogger::new(syslog::unix(formatter)?);
    if log::set_boxed_logger(Box::new(logger)).is_ok() {
        log::set_max_level(level(verbosity));
    }
    log_panics();
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
    if builder.try_init().is_ok() {
        log_panics();
    }
}

/// A daemon's log tells who came and went, and what was done about it.
fn level(verbosity: u8) -> LevelFilter {
    match verbosity {
        0 => LevelFilter::Info,
        _ => LevelFilter::Debug,
    }
}

/// Makes a panic a line of the log, with its place.
fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        log::error!("thread {name} panicked: {panic}");
    }));
}
