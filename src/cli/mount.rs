//! `cauchyfs mount`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use super::alerts::Alerts;
use super::args::MountArguments;
use super::daemon::{self, MountPlan};
use super::directories::{Directories, check_mountpoint, hidden_at, split_source};
use super::failure::{Failure, Outcome, warn};
use super::logging;
use super::mounts;
use super::options::MountOptions;
use super::remount;
use super::service;
use super::trust;
use crate::codec;
use crate::coding::{self, EngineError};
use crate::control::in_time::Silent;
use crate::control::log_file::LogFile;
use crate::control::places::file_stem;
use crate::control::process;
use crate::control::server;
use crate::cuda::DeviceError;
use crate::fuse::{OnFailure, TransportChoice};
use crate::maintenance::Schedule;
use crate::membership::Access;
use crate::transaction::FullMembers;

/// The least memory for caches that leaves room to work.
const LEAST_CACHE: u64 = 16 << 20;

/// Mounts a volume; in the background unless it is to stay in the foreground.
///
/// # Errors
///
/// If the directories or the mountpoint cannot be used.
pub(super) fn run(arguments: &MountArguments, verbosity: u8) -> Result<Outcome, Failure> {
    if remount::is_asked_for(arguments) {
        return remount::run(arguments);
    }
    if service::is_probe(arguments) {
        return probe(arguments);
    }
    if arguments.report {
        return Ok(daemon::run_reporting(|| {
            let log = start_log(arguments, verbosity)?;
            plan(arguments).map(|plan| MountPlan { log, ..plan })
        }));
    }
    if arguments.foreground {
        process::start_over_as_daemon()
            .map_err(|error| Failure::environment(format!("cannot start over: {error}")))?;
        let log = start_foreground_log(arguments, verbosity)?;
        service::wait_for_members(arguments, &probe_line(arguments))?;
        let plan = MountPlan {
            log,
            ..plan(arguments)?
        };
        mounts::refuse_held(&plan.directories, plan.member_timeout)?;
        return daemon::run_in_foreground(&plan);
    }
    logging::to_stderr(verbosity);
    service::wait_for_members(arguments, &probe_line(arguments))?;
    let plan = plan(arguments)?;
    mounts::refuse_held(&plan.directories, plan.member_timeout)?;
    let outcome = daemon::spawn(&command_line(arguments, &plan, verbosity))?;
    // For mount(8) every exit code but 0 means that nothing is mounted.
    Ok(if arguments.fstab {
        Outcome::Done
    } else {
        outcome
    })
}

/// Looks whether enough members are there; see [`service::wait_for_members`].
fn probe(arguments: &MountArguments) -> Result<Outcome, Failure> {
    let (typed, _, _) = split_paths(arguments)?;
    let access = if options_of(arguments)?.read_only {
        Access::ReadOnly
    } else {
        Access::ReadWrite
    };
    service::probe(&typed, access, arguments.member_timeout)
}

/// Returns the arguments of the process that looks.
fn probe_line(arguments: &MountArguments) -> Vec<OsString> {
    let timeout = format!("{}ms", arguments.member_timeout.as_millis());
    let mut line: Vec<OsString> = ["mount", "--probe", "--member-timeout", &timeout]
        .map(OsString::from)
        .into();
    if arguments.fstab {
        line.push("--fstab".into());
    }
    for list in &arguments.options {
        line.extend(["-o".into(), list.into()]);
    }
    line.push("--".into());
    line.extend(arguments.paths.iter().map(Into::into));
    line
}

/// Returns the options that were given with `-o`.
fn options_of(arguments: &MountArguments) -> Result<MountOptions, Failure> {
    let mut options = MountOptions::new();
    for list in &arguments.options {
        options.apply(list)?;
    }
    options.trust_members |= arguments.trust_members;
    Ok(options)
}

/// Checks everything that can be checked before the volume is touched.
fn plan(arguments: &MountArguments) -> Result<MountPlan, Failure> {
    if arguments.cache_size < LEAST_CACHE {
        return Err(Failure::usage("--cache-size must be at least 16MiB"));
    }
    coding::check(&arguments.engine).map_err(|error| engine_failure(&error))?;
    let options = options_of(arguments)?;
    let (typed, mountpoint, source) = split_paths(arguments)?;
    let silent = Silent::default();
    let patience = arguments.member_timeout;
    arguments
        .silent
        .iter()
        .for_each(|path| silent.note(path, patience));
    let directories = Directories::find_within(&typed, patience, silent)?;
    if !options.trust_members {
        trust::demand(&directories, patience)?;
    }
    let mountpoint = check_mountpoint(&mountpoint, &directories.present)?;
    if !arguments.report {
        hidden_at(&mountpoint).iter().for_each(warn);
    }
    Ok(MountPlan {
        directories,
        mountpoint,
        options,
        source,
        engine: arguments.engine.clone(),
        cache_bytes: usize::try_from(arguments.cache_size).map_err(Failure::usage)?,
        threads: arguments.threads,
        transport: match arguments.transport.as_str() {
            "uring" => TransportChoice::Uring,
            "classic" => TransportChoice::Classic,
            _ => TransportChoice::Auto,
        },
        member_timeout: arguments.member_timeout,
        full_members: match arguments.full_member.as_str() {
            "degrade" => FullMembers::Degrade,
            _ => FullMembers::Stop,
        },
        on_failure: match arguments.on_failure.as_str() {
            "wait" => OnFailure::Wait,
            _ => OnFailure::Error,
        },
        interlock: arguments.interlock,
        schedule: Schedule {
            scrub_interval: arguments.scrub_interval,
            rebuild_after: arguments.rebuild_after.0,
            bytes_per_second: arguments.background_rate,
            last_order: 0,
        },
        alerts: Alerts::configured(arguments.alerts.as_deref()),
        metrics: arguments.metrics,
        log: None,
    })
}

/// Says why an engine is not to be had, and what is.
fn engine_failure(error: &EngineError) -> Failure {
    match error {
        EngineError::Codec(error) => {
            let names: Vec<&str> = codec::engines().map(codec::Engine::name).collect();
            let names = names.join(", ");
            Failure::usage(error).advise(format!("this machine has auto, cpu, {names}"))
        }
        EngineError::Device(DeviceError::NotBuilt) => Failure::environment(error).advise(
            "leave out `--engine cuda`: the CPU codes the same bytes; coding on a GPU takes a `cauchyfs` with support for CUDA",
        ),
        EngineError::Device(_) => Failure::environment(error).advise(
            "see that `nvidia-smi` shows a GPU to this user; with --engine auto, a GPU is used where there is one",
        ),
    }
}

/// Tells directories, mountpoint, and a source as fstab spells it apart.
fn split_paths(
    arguments: &MountArguments,
) -> Result<(Vec<PathBuf>, PathBuf, Option<OsString>), Failure> {
    let (mountpoint, directories) = arguments
        .paths
        .split_last()
        .filter(|(_, directories)| !directories.is_empty())
        .ok_or_else(|| {
            Failure::usage("a mount needs directories and a mountpoint")
                .advise("`cauchyfs mount DIR... MOUNTPOINT`")
        })?;
    if let [source] = directories
        && (arguments.fstab || !source.exists())
        && source.to_string_lossy().contains(':')
    {
        let source_text = source.clone().into_os_string();
        return Ok((split_source(source), mountpoint.clone(), Some(source_text)));
    }
    Ok((directories.to_vec(), mountpoint.clone(), None))
}

/// Returns the arguments with which the daemon does what `arguments` ask for: paths absolute, since
/// it works in the root directory.
fn command_line(arguments: &MountArguments, plan: &MountPlan, verbosity: u8) -> Vec<OsString> {
    let mut line: Vec<OsString> = vec!["mount".into(), "--report".into()];
    line.extend((0..verbosity).map(|_| "-v".into()));
    for list in &arguments.options {
        line.extend(["-o".into(), list.into()]);
    }
    if let Some(source) = &plan.source {
        // Shown as the source, so that mount(8) recognises its own line of fstab.
        let escaped = source
            .to_string_lossy()
            .replace('\\', "\\\\")
            .replace(',', "\\,");
        line.extend(["-o".into(), format!("fsname={escaped}").into()]);
    }
    if plan.options.trust_members {
        line.push("--trust-members".into());
    }
    line.extend(["--engine".into(), arguments.engine.clone().into()]);
    line.extend([
        "--cache-size".into(),
        arguments.cache_size.to_string().into(),
    ]);
    line.extend(["--threads".into(), arguments.threads.to_string().into()]);
    line.extend(["--transport".into(), arguments.transport.clone().into()]);
    line.extend(["--full-member".into(), arguments.full_member.clone().into()]);
    line.extend(["--on-failure".into(), arguments.on_failure.clone().into()]);
    if let Some(percent) = arguments.interlock {
        line.extend(["--interlock".into(), percent.to_string().into()]);
    }
    let timeout = format!("{}ms", arguments.member_timeout.as_millis());
    line.extend(["--member-timeout".into(), timeout.into()]);
    if let Some(interval) = arguments.scrub_interval {
        let seconds = format!("{}s", interval.as_secs());
        line.extend(["--scrub-interval".into(), seconds.into()]);
    }
    if let Some(rate) = arguments.background_rate {
        line.extend(["--background-rate".into(), rate.to_string().into()]);
    }
    let rebuild_after = arguments.rebuild_after.to_string();
    line.extend(["--rebuild-after".into(), rebuild_after.into()]);
    if let Some(address) = arguments.metrics {
        line.extend(["--metrics".into(), address.to_string().into()]);
    }
    if let Some(file) = &arguments.log_file {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        line.extend(["--log-file".into(), file.into()]);
    }
    if let Some(file) = &arguments.alerts {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        line.extend(["--alerts".into(), file.into()]);
    }
    let directories = plan.directories.absent.iter();
    for path in directories.filter(|path| plan.directories.silent.has(path)) {
        line.extend(["--silent".into(), path.into()]);
    }
    line.push("--".into());
    line.extend(plan.directories.present.iter().map(Into::into));
    line.extend(plan.directories.absent.iter().map(Into::into));
    line.push((&plan.mountpoint).into());
    line
}

fn start_foreground_log(
    arguments: &MountArguments,
    verbosity: u8,
) -> Result<Option<Arc<LogFile>>, Failure> {
    if arguments.log_file.is_some() {
        return start_log(arguments, verbosity);
    }
    if !logging::to_own_journal(verbosity) {
        logging::to_stderr(verbosity);
    }
    Ok(None)
}

/// Starts a daemon's log: the file that was named, which is returned, else journald, else syslog, else a file beside the
/// control socket.
fn start_log(arguments: &MountArguments, verbosity: u8) -> Result<Option<Arc<LogFile>>, Failure> {
    if let Some(path) = &arguments.log_file {
        let log = logging::to_file(path, verbosity).map_err(|error| {
            Failure::environment(format!(
                "cannot open the log file {}: {error}",
                path.display()
            ))
        });
        return log.map(Some);
    }
    if logging::to_journal(verbosity).is_ok() || logging::to_syslog(verbosity).is_ok() {
        return Ok(None);
    }
    let mountpoint = arguments.paths.last().cloned().unwrap_or_default();
    let beside = server::own_directory(&mountpoint).and_then(|directory| {
        let name = file_stem(&mountpoint);
        logging::to_capped_file(&directory.join(name).with_extension("log"), verbosity)
    });
    beside.map(|()| None).map_err(|error| {
        Failure::environment(format!(
            "there is no syslog, and no place for a log file: {error}"
        ))
        .advise("name one with --log-file")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_for_an_engine_that_is_not_to_be_had_can_be_followed_without_a_compiler() {
        for error in [
            DeviceError::NotBuilt,
            DeviceError::NoDriver,
            DeviceError::NoDevice,
        ] {
            let failure = engine_failure(&EngineError::Device(error));
            let advice = failure.advice.expect("there is advice");
            assert!(!advice.contains("cargo"), "{advice}");
            assert!(advice.contains("engine"), "{advice}");
        }
        let failure = engine_failure(&EngineError::Device(DeviceError::NotBuilt));
        let advice = failure.advice.expect("there is advice");
        assert!(advice.starts_with("leave out `--engine cuda`"), "{advice}");
    }
}
