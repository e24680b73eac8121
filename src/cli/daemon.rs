//! The daemon: starting it, what it does, and how it ends.
//!
//! `cauchyfs mount` starts itself again with `--report`; the child leaves the terminal's session,
//! mounts, and says over its standard output, a pipe, that the mount is usable or why not. Until
//! then the parent waits, so a script can use the mount in its next line.
//!
//! The daemon ends when its mount is gone, for whatever reason: `cauchyfs unmount`, `umount`,
//! `fusermount3 -u`, SIGTERM or SIGINT. Every way passes through [`Volume::close`]. A mount that another mount namespace
//! has as well is gone when the last of the namespaces has let it go (`ending`).

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use super::abandoned;
use super::alerts::Alerts;
use super::directories::{Directories, check_mountpoint, hidden_at};
use super::failure::{Failure, Outcome, warn};
use super::logging;
use super::mounts;
use super::options::{Atime, MountOptions};
use super::outage::{OutageSurvey, OutageWatch, Reopening};
use super::sandbox::{self, Confined, Needs};
use super::sentences::mount_failure;
use super::service::Supervision;
use super::superseded;
use super::unmount;
use super::volume::VolumeOptions;
use super::warnings::{self, Warnings};
use crate::control::alerts::link::AlertFeed;
use crate::control::ending::{Ending, EndingEvent, finish, take_away};
use crate::control::event_watch::EventWatch;
use crate::control::failure::DaemonFailure;
use crate::control::listener;
use crate::control::log_file::LogFile;
use crate::control::metrics::{Metrics, MetricsSocket, Source};
use crate::control::mounted::MountedVolume;
use crate::control::mounter::Mounting;
use crate::control::places::RuntimeDirectory;
use crate::control::process::{
    KERNEL_CACHE_OFF, detach, keep_descriptors_to_ourselves, program, raise_descriptor_limit,
};
use crate::control::server::{self, Announced, ControlSocket, GROUP, QuestionSocket, SocketFile};
use crate::control::volume::Volume;
use crate::fs::{AtimePolicy, FsOptions, Interlock};
use crate::fuse::mount::{Mount, MountFlavor};
use crate::fuse::mountinfo::MountEntry;
use crate::fuse::{Connection, OnFailure, ServeOptions, Serving, TransportChoice, serve};
use crate::maintenance::Schedule;
use crate::membership::Access;
use crate::transaction::FullMembers;

/// How long a command waits for the end of a daemon that failed.
const END_OF_FAILED: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// The checked parameters of a mount.
#[derive(Debug)]
pub(super) struct MountPlan {
    pub(super) directories: Directories,
    pub(super) mountpoint: PathBuf,
    pub(super) options: MountOptions,
    /// The source as fstab spells it, if it came from there.
    pub(super) source: Option<OsString>,
    pub(super) engine: String,
    pub(super) cache_bytes: usize,
    pub(super) threads: usize,
    pub(super) transport: TransportChoice,
    pub(super) member_timeout: Duration,
    pub(super) full_members: FullMembers,
    pub(super) on_failure: OnFailure,
    /// The part of the files that may be removed within an hour, in percent.
    pub(super) interlock: Option<u8>,
    pub(super) schedule: Schedule,
    /// The receivers of alerts.
    pub(super) alerts: Alerts,
    /// The address at which metrics are served.
    pub(super) metrics: Option<SocketAddr>,
    /// The log file, if one was named.
    pub(super) log: Option<Arc<LogFile>>,
}

/// A message from a daemon to the process that started it, as one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
enum News {
    /// The mount is usable, and there may be something to be said.
    Ready(Warnings),
    /// It is not going to be.
    Failed(Failure),
}

/// The parts of a daemon whose volume is mounted.
struct Started {
    socket: SocketFile,
    mount: Mount,
    connection: Connection,
    watch: OutageWatch,
    events: EventWatch,
    metrics: Metrics,
}

/// A daemon whose volume is about to be mounted.
struct Daemon<'a> {
    plan: &'a MountPlan,
    caller: NewsReceiver,
    confined: &'a Confined,
    volume: &'a Arc<MountedVolume>,
    reopening: Reopening,
    metrics: Option<MetricsSocket>,
    questions: Option<QuestionSocket>,
}

/// Starts a daemon with `arguments` and waits until its mount is usable.
///
/// # Errors
///
/// The daemon's own failure, or that it died without a word.
pub(super) fn spawn(arguments: &[OsString]) -> Result<Outcome, Failure> {
    keep_descriptors_to_ourselves();
    let mut child = program()
        .args(arguments)
        .env(KERNEL_CACHE_OFF.0, KERNEL_CACHE_OFF.1)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| Failure::environment(format!("cannot start the daemon: {error}")))?;
    let mut line = String::new();
    let mut pipe = child.stdout.take().map(BufReader::new);
    if let Some(pipe) = &mut pipe {
        pipe.read_line(&mut line)
            .map_err(|error| Failure::environment(format!("lost the daemon: {error}")))?;
    }
    match serde_json::from_str(&line) {
        Ok(News::Ready(warnings)) => {
            warnings.lines.iter().for_each(warn);
            Ok(warnings.outcome())
        }
        Ok(News::Failed(failure)) => {
            if let Some(pipe) = &pipe {
                wait_until_closed(pipe.get_ref());
            }
            Err(failure)
        }
        Err(_) => Err(
            Failure::environment("the daemon died before the mount was usable")
                .advise("run the same command with --foreground to see why"),
        ),
    }
}

/// Waits until a daemon that failed has closed its end of `pipe`, as it does by ending. The next command then finds the
/// members free. A daemon that hangs on a member is not waited for longer than [`END_OF_FAILED`].
fn wait_until_closed(pipe: &ChildStdout) {
    let mut polled = [PollFd::new(pipe, PollFlags::empty())];
    let wait = || poll(&mut polled, Some(&END_OF_FAILED));
    if let Err(error) = rustix::io::retry_on_intr(wait) {
        tracing::warn!("cannot wait for the end of the daemon that failed: {error}");
    }
}

/// Runs as the daemon that [`spawn`] waits for.
pub(super) fn run_reporting(prepare: impl FnOnce() -> Result<MountPlan, Failure>) -> Outcome {
    let ended = detach()
        .map_err(|error| Failure::environment(format!("cannot leave the terminal: {error}")))
        .and_then(|()| prepare())
        .and_then(|plan| run(&plan, NewsReceiver::Parent));
    match ended {
        Ok(outcome) => outcome,
        Err(failure) => {
            tracing::error!("{}", failure.message);
            // If the mount was usable before, the reader is gone; the log has it.
            note_untold(&tell(&News::Failed(failure)));
            Outcome::Degraded
        }
    }
}

/// Runs with the mount until it is gone.
///
/// # Errors
///
/// If it could not be mounted, or not be closed in good order.
pub(super) fn run_in_foreground(plan: &MountPlan) -> Result<Outcome, Failure> {
    run(plan, NewsReceiver::Terminal)
}

/// The receiver of the news that the mount is usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NewsReceiver {
    /// A process at the other end of standard output, which is a pipe. It may be killed while it waits.
    Parent,
    /// The terminal, where there is one.
    Terminal,
}

impl NewsReceiver {
    /// Returns whether the mount is still wanted.
    fn is_waiting(self) -> bool {
        let out = io::stdout();
        let mut polled = [PollFd::new(&out, PollFlags::empty())];
        let looked = rustix::io::retry_on_intr(|| poll(&mut polled, Some(&Timespec::default())));
        let is_gone = looked.is_ok() && polled[0].revents().contains(PollFlags::ERR);
        self == Self::Terminal || !is_gone
    }

    /// Reports to the manager of services, which may have started a daemon that stays in the foreground.
    fn supervise(self, mount: &Mount, volume: &Arc<MountedVolume>) -> Option<Supervision> {
        (self == Self::Terminal).then(|| Supervision::begin(mount.mountpoint(), volume))
    }

    /// Tells that the mount is usable; returns whether that was heard.
    fn tell_ready(self, warnings: Warnings) -> bool {
        match self {
            Self::Parent => note_untold(&tell(&News::Ready(warnings))),
            Self::Terminal => {
                warnings.lines.iter().for_each(warn);
                true
            }
        }
    }
}

fn tell(news: &News) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let line = serde_json::to_string(news)?;
    writeln!(out, "{line}").and_then(|()| out.flush())
}

/// Logs news that were not heard; returns whether they were.
fn note_untold(told: &io::Result<()>) -> bool {
    if let Err(error) = told {
        tracing::info!("the process that started the daemon is gone: {error}");
    }
    told.is_ok()
}

/// Opens, mounts, serves, closes. A mount that its caller does not wait for any more is taken away again.
fn run(plan: &MountPlan, caller: NewsReceiver) -> Result<Outcome, Failure> {
    raise_descriptor_limit();
    // None of them is to end the process while it opens the volume. They are acted upon once it is mounted.
    let signals = Signals::new([SIGHUP, SIGUSR1, SIGUSR2]).map_err(|error| cannot_start(&error))?;
    let runtime = server::prepare(&plan.mountpoint).map_err(|error| no_socket(&error))?;
    // Later the daemon may give nothing to a group.
    let questions = server::open_for_group(&runtime, &plan.mountpoint)
        .inspect_err(|error| tracing::warn!("no socket for the group {GROUP}: {error}"))
        .unwrap_or_default();
    let needs = Needs {
        directories: &plan.directories,
        mountpoint: &plan.mountpoint,
        runtime: runtime.path(),
        log_file: plan.log.as_ref().map(|log| log.path()),
        cache_bytes: plan.cache_bytes,
        read_only: plan.options.read_only,
    };
    let mut alerts = plan.alerts.start();
    let metrics = plan.metrics.map(bind_metrics).transpose()?;
    let confined = sandbox::begin_daemon(&needs)?;
    let (volume, reopening) = open(plan, &confined, &needs)?;
    let (events, inbox) = mpsc::channel();
    let warnings = warnings::of(&volume);
    let options = serve_options(plan, &volume);
    logging::name_volume(
        &volume
            .transactions
            .members()
            .shape()
            .volume_id()
            .to_string(),
    );
    let volume = Arc::new(MountedVolume::new(volume));
    let feed = alerts.follow(&volume, &plan.mountpoint);
    let started = warnings.and_then(|mut warnings| {
        warnings.lines.append(&mut alerts.warnings);
        watch_signals(signals, events.clone()).map_err(|error| cannot_start(&error))?;
        let daemon = Daemon {
            plan,
            caller,
            confined: &confined,
            volume: &volume,
            reopening,
            metrics,
            questions,
        };
        let started = daemon.start(runtime, &options, &events, &mut warnings)?;
        confined.end_mounting();
        tracing::info!("{} is mounted", plan.mountpoint.display());
        if !caller.tell_ready(warnings) {
            take_away(confined.mounting(), &started.mount);
        }
        Ok(started)
    });
    match started {
        Ok(Started {
            socket,
            mount,
            connection,
            watch,
            events,
            metrics,
        }) => {
            let supervision = caller.supervise(&mount, &volume);
            let log = plan.log.as_deref();
            let ending = Ending::new(confined.mounting(), &mount, &connection, &volume, log);
            let waiting = ending.wait(&inbox);
            metrics.end();
            drop((watch, supervision));
            events.end();
            let finished = finish(&volume, socket, waiting, &inbox);
            feed.into_iter().for_each(AlertFeed::end);
            finished
                .map(|()| Outcome::Done)
                .map_err(|failure| failure.at(mount.mountpoint()))
        }
        Err(failure) => {
            volume.take().map_or(Ok(()), Volume::close)?;
            Err(failure)
        }
    }
}

/// Opens the volume. Returns how to do so again, too.
fn open(
    plan: &MountPlan,
    confined: &Confined,
    needs: &Needs<'_>,
) -> Result<(Volume, Reopening), Failure> {
    let volume_options = VolumeOptions {
        access: if plan.options.read_only {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        },
        engine: confined.engine(&plan.engine)?.to_owned(),
        cache_bytes: plan.cache_bytes,
        threads: std::thread::available_parallelism().map_or(2, usize::from),
        member_timeout: plan.member_timeout,
        full_members: plan.full_members,
        schedule: plan.schedule,
        restores_superblocks: false,
    };
    let fs_options = FsOptions {
        atime: match plan.options.atime {
            Atime::Relative => AtimePolicy::Relatime,
            Atime::Never => AtimePolicy::NoAtime,
            Atime::Strict => AtimePolicy::Strict,
        },
        read_only: plan.options.read_only,
        // `check` finds such damage in a volume of one's own.
        confirms_listings: confined.is_foreign(),
        interlock: plan
            .interlock
            .map(|percent| Arc::new(Interlock::new(percent))),
        ..FsOptions::default()
    };
    if !plan.options.read_only {
        mounts::refuse_other_half(&plan.directories, plan.member_timeout)?;
        superseded::refuse(&plan.directories, plan.member_timeout)?;
    }
    confined.narrow(needs, || {
        superseded::places(&plan.directories, plan.member_timeout)
    })?;
    let volume = Volume::open(&plan.directories, &volume_options, fs_options.clone())?;
    if !plan.options.read_only {
        superseded::note_apart(volume.transactions.members(), &plan.directories);
    }
    let reopening = Reopening {
        volume_options,
        fs_options,
    };
    Ok((volume, reopening))
}

/// Takes away `dead`, the mount of a daemon that is gone, from where this one is to be. Returns what is to be said of
/// it, and of the place.
fn clear_place(
    plan: &MountPlan,
    mounting: &Mounting,
    dead: &MountEntry,
) -> Result<Vec<String>, Failure> {
    let cleared = mounting
        .clear(&plan.mountpoint, dead)
        .map_err(|error| unmount::not_unmounted(&plan.mountpoint, error))?;
    let cleared = cleared.map(|cleared| unmount::said_of(&cleared, &plan.mountpoint));
    // The place could not be seen before.
    check_mountpoint(&plan.mountpoint, &plan.directories.present)?;
    let hidden = hidden_at(&plan.mountpoint);
    Ok(cleared.into_iter().chain(hidden).collect())
}

impl Daemon<'_> {
    /// Mounts, and starts everything that can send an event. The mount comes last but one, since from then on there is
    /// something to take away. A dead mount in its place is removed right before that. The removal is in vain only if
    /// the place turns out to be unfit, or if the kernel or `fusermount3` refuses. Nothing is mounted for a caller that
    /// is gone.
    fn start(
        mut self,
        runtime: RuntimeDirectory,
        options: &ServeOptions,
        events: &Sender<EndingEvent>,
        warnings: &mut Warnings,
    ) -> Result<Started, Failure> {
        let plan = self.plan;
        let mounting = self.confined.mounting();
        let dead = abandoned::abandoned_at(&plan.mountpoint);
        let (control, socket) = server::open(runtime, &plan.mountpoint, self.volume_id()?)
            .map_err(|error| no_socket(&error))?;
        let announced = control.announced();
        let survey = Arc::new(OutageSurvey::new(self.volume, plan.member_timeout));
        let mut metrics = self
            .collect_metrics(&survey, &announced, options)
            .map_err(|error| cannot_start(&error))?;
        let control = (control, self.questions.take());
        self.watch_control(control, &survey, metrics.source(), events.clone())
            .map_err(|error| cannot_start(&error))?;
        if !self.caller.is_waiting() {
            return Err(Failure::environment(
                "the process that asked for the mount is gone, so nothing is mounted",
            ));
        }
        if let Some(entry) = &dead {
            warnings.lines.extend(clear_place(plan, mounting, entry)?);
        }
        let served = Arc::clone(self.volume.served());
        let serving = serve(served, mounting, &plan.mountpoint, options)
            .map_err(|error| mount_failure(&error))?;
        let mount = serving.mount().clone();
        announced.announce(&mount, serving.transport());
        let watched = serving.connection().and_then(|connection| {
            let kernel = (serving.kernel_cache(), serving.waiting());
            let watch = OutageWatch::start(survey, self.reopening, kernel)?;
            let recorded = EventWatch::start(self.volume)?;
            self.metrics.map_or(Ok(()), |it| metrics.serve(it))?;
            watch_session(serving, events.clone())?;
            Ok((connection, watch, recorded))
        });
        let (connection, watch, events) = watched.map_err(|error| {
            take_away(mounting, &mount);
            cannot_start(&error)
        })?;
        Ok(Started {
            socket,
            mount,
            connection,
            watch,
            events,
            metrics,
        })
    }

    fn volume_id(&self) -> Result<String, Failure> {
        let open = self.volume.open().ok_or(DaemonFailure::VolumeAway);
        let open = open.map_err(|failure| failure.at(&self.plan.mountpoint))?;
        Ok(open
            .fs
            .transactions()
            .members()
            .shape()
            .volume_id()
            .to_string())
    }

    /// Counts requests, and collects metrics when they are asked for.
    fn collect_metrics(
        &self,
        survey: &Arc<OutageSurvey>,
        announced: &Arc<Announced>,
        options: &ServeOptions,
    ) -> io::Result<Metrics> {
        let survey = Arc::clone(survey);
        let surveyed = Box::new(move |reason: &str| survey.report(reason));
        let counts = options.counts.clone().unwrap_or_default();
        Metrics::start(self.volume, counts, Arc::clone(announced), surveyed)
    }

    /// Answers commands; what ends the daemon becomes an event.
    fn watch_control(
        &self,
        (control, questions): (ControlSocket, Option<QuestionSocket>),
        survey: &Arc<OutageSurvey>,
        meters: &Arc<Source>,
        events: Sender<EndingEvent>,
    ) -> io::Result<()> {
        let end = move |request, client| send(&events, EndingEvent::Asked { request, client });
        let survey = Arc::clone(survey);
        listener::start(
            control,
            questions,
            Arc::clone(self.volume),
            self.confined.is_foreign(),
            Box::new(move |reason| survey.report(reason)),
            Arc::clone(meters),
            Box::new(end),
        )
    }
}

fn serve_options(plan: &MountPlan, volume: &Volume) -> ServeOptions {
    let options = &plan.options;
    let label = volume.transactions.members().shape().label().to_owned();
    let source = options.fsname.clone().unwrap_or(if label.is_empty() {
        "cauchyfs".to_owned()
    } else {
        label
    });
    ServeOptions {
        flavor: MountFlavor {
            source: source.into(),
            allow_other: options.allow_other,
            read_only: options.read_only,
            suid: options.suid,
            dev: options.dev,
            exec: options.exec,
            sync: options.sync,
            dirsync: options.dirsync,
            no_atime: options.atime == Atime::Never,
        },
        threads: plan.threads,
        writeback: options.writeback,
        // Only a file whose opening is requested can bypass the page cache, and so be refused at the limit of its quota.
        open_requests: options.open_requests || volume.fs.quotas().any(),
        transport: plan.transport,
        on_failure: plan.on_failure,
        counts: Some(Arc::default()),
    }
}

fn watch_session(serving: Serving, events: Sender<EndingEvent>) -> io::Result<()> {
    spawn_thread("session-end", move || {
        let ended = serving.wait();
        send(&events, EndingEvent::Over(ended));
    })
}

/// Turns signals into events from now on, also those that ask the daemon to end.
fn watch_signals(mut signals: Signals, events: Sender<EndingEvent>) -> io::Result<()> {
    for signal in [SIGTERM, SIGINT] {
        signals.add_signal(signal)?;
    }
    spawn_thread("signals", move || {
        for signal in signals.forever() {
            send(&events, EndingEvent::Signal(signal));
        }
    })
}

fn cannot_start(error: &io::Error) -> Failure {
    Failure::environment(format!("cannot start the daemon: {error}"))
}

fn bind_metrics(address: SocketAddr) -> Result<MetricsSocket, Failure> {
    MetricsSocket::bind(address).map_err(|error| {
        Failure::environment(format!("cannot serve metrics at {address}: {error}"))
            .advise("give another address or port with `--metrics`")
    })
}

fn no_socket(error: &io::Error) -> Failure {
    Failure::environment(format!("cannot open the control socket: {error}"))
}

fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(drop)
}

fn send(events: &Sender<EndingEvent>, event: EndingEvent) {
    if events.send(event).is_err() {
        tracing::debug!("an event came after the end");
    }
}
