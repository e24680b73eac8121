//! The end of a daemon: what leads to it, and what the daemon does about it.
//!
//! The kernel ends the connection when the last mount of the filesystem is gone and nothing of it is open. Another mount
//! namespace that has a copy of the mount keeps the connection, and a program there may be writing. So the daemon serves
//! on: it makes everything durable, tells the commands that wait, and ends when the last mount is gone. Only a signal
//! ends it earlier.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGUSR1, SIGUSR2};

use super::event_watch::{LAST_EVENTS_TIMEOUT, record_changes};
use super::failure::{DaemonFailure, NotDurable};
use super::listener::EndRequest;
use super::log_file::LogFile;
use super::mount_refusal::MountRefusal;
use super::mounted::MountedVolume;
use super::mounter::Mounting;
use super::protocol::Answer;
use super::server::{self, SocketFile};
use crate::format::event::EventKind;
use crate::fuse::Connection;
use crate::fuse::mount::{Mount, MountError, Mounter, Unmount};
use crate::fuse::mountinfo::{self, MountEntry};
use crate::transaction::Transactions;

/// The time for which files below a mount may stay open after the mount was taken away by a signal or lazily.
const GRACE: Duration = Duration::from_secs(5);

/// The time that the kernel may take to end the connection after the mount was taken away. Something else keeps the
/// mount if it takes longer.
const RELEASE: Duration = Duration::from_secs(3);

/// The time that an unmount may take once the mount is gone from the table. Pages are written meanwhile if it takes longer.
const UNMOUNTED: Duration = Duration::from_millis(200);

/// The time in which the kernel refuses to unmount what is in use. What takes longer waits for something else, perhaps for
/// requests that wait.
const UNDECIDED: Duration = Duration::from_secs(10);

/// The time that an unmount waits for the watchdog, whose question holds the mount.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause between two looks at an unmount that is under way.
const UNMOUNT_POLL: Duration = Duration::from_millis(10);

/// An event in the life of a daemon.
pub(crate) enum EndingEvent {
    /// The mount is gone and all requests are answered, or it cannot be served any more.
    Over(io::Result<()>),
    /// A signal arrived: [`SIGHUP`], one without effect, or one that asks it to end.
    Signal(i32),
    /// A command asks about the end, and waits on this connection.
    Asked {
        request: EndRequest,
        client: UnixStream,
    },
}

/// The consequence if the connection has not ended by a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The daemon ends.
    End,
    /// The daemon ends, unless the filesystem is mounted elsewhere.
    EndUnlessMounted,
    /// The daemon serves on.
    Serve,
}

/// Wait of a daemon for its end.
pub(crate) struct Ending<'a> {
    mounting: &'a Mounting,
    mount: &'a Mount,
    connection: &'a Connection,
    volume: &'a MountedVolume,
    /// The log file that SIGHUP opens again.
    log: Option<&'a LogFile>,
    /// Commands that wait for the end.
    waiting: Vec<UnixStream>,
    deadline: Option<(Instant, Then)>,
    /// The reason why the kernel may hold writes that are not durable, once the mount is gone from its place.
    unwritten: Option<NotDurable>,
}

impl<'a> Ending<'a> {
    pub(crate) fn new(
        mounting: &'a Mounting,
        mount: &'a Mount,
        connection: &'a Connection,
        volume: &'a MountedVolume,
        log: Option<&'a LogFile>,
    ) -> Self {
        Self {
            mounting,
            mount,
            connection,
            volume,
            log,
            waiting: Vec::new(),
            deadline: None,
            unwritten: Some(NotDurable::TakenAway),
        }
    }

    /// Works until the mount is gone; returns the connections that wait for the end.
    pub(crate) fn wait(mut self, inbox: &Receiver<EndingEvent>) -> Vec<UnixStream> {
        loop {
            match self.next(inbox) {
                Ok(EndingEvent::Over(Ok(()))) | Err(RecvTimeoutError::Disconnected) => {
                    return self.waiting;
                }
                Ok(EndingEvent::Over(Err(error))) => {
                    tracing::error!("the connection to the kernel broke: {error}");
                    self.abandon();
                    return self.waiting;
                }
                Ok(EndingEvent::Signal(SIGHUP)) => self.reopen_log(),
                Ok(EndingEvent::Signal(SIGUSR1 | SIGUSR2)) => {
                    tracing::info!("SIGUSR1 and SIGUSR2 have no effect");
                }
                Ok(EndingEvent::Signal(signal)) => {
                    tracing::info!("signal {signal}: unmounting");
                    self.connection.release_waiting();
                    if !self.is_gone() {
                        let gate = self.volume.probe_gate();
                        let (mounting, mount) = (self.mounting, self.mount);
                        let take_away = || take_away(mounting, mount);
                        gate.unmount(PROBE_TIMEOUT, || self.write_back(), take_away);
                    }
                    self.deadline = Some((Instant::now() + GRACE, Then::End));
                }
                Ok(EndingEvent::Asked { request, client }) => self.heed(request, client),
                Err(RecvTimeoutError::Timeout) => {
                    if self.is_over() {
                        return self.waiting;
                    }
                }
            }
        }
    }

    /// Returns the next event, or that the deadline has passed.
    fn next(&self, inbox: &Receiver<EndingEvent>) -> Result<EndingEvent, RecvTimeoutError> {
        match self.deadline {
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some((until, _)) => inbox.recv_timeout(until.saturating_duration_since(Instant::now())),
        }
    }

    /// Opens the log file again, which another program may have renamed.
    fn reopen_log(&self) {
        let Some(log) = self.log else {
            return tracing::info!("SIGHUP: there is no log file to be opened again");
        };
        match log.reopen(|path| self.mounting.open_log(path)) {
            Ok(()) => tracing::info!("SIGHUP: the log file was opened again"),
            Err(error) => tracing::error!(
                "SIGHUP: cannot open {} again, and the log goes where it went: {error}",
                log.path().display()
            ),
        }
    }

    /// Does what a command asks, and has it wait for the end.
    fn heed(&mut self, request: EndRequest, client: UnixStream) {
        let is_gone = self.is_gone();
        let lazy = match request {
            EndRequest::Await if is_gone => false,
            EndRequest::Await => return server::answer(&client, &Answer::Mounted),
            EndRequest::Unmount { lazy } => lazy,
        };
        if !is_gone && let Err(error) = self.unmount(lazy) {
            // Programs go on writing.
            self.connection.wait_again();
            self.unwritten = Some(NotDurable::TakenAway);
            let answer = match error {
                MountError::Busy(_) => Answer::Busy,
                error => Answer::Failed(DaemonFailure::NotUnmounted {
                    refusal: MountRefusal::from(&error),
                }),
            };
            return server::answer(&client, &answer);
        }
        self.waiting.push(client);
        let now = Instant::now();
        match self.deadline {
            // A signal is not taken back.
            Some((_, Then::End)) => {}
            _ if lazy => self.deadline = Some((now + GRACE, Then::EndUnlessMounted)),
            None => self.deadline = Some((now + RELEASE, Then::Serve)),
            Some(_) => {}
        }
    }

    /// Makes the kernel fail the requests of a mount that is not served any more, which would wait until this process
    /// ends.
    fn abandon(&self) {
        if self.connection.is_cut() {
            return;
        }
        if let Err(error) = self.mounting.unmount(self.mount, Unmount::Abandoned) {
            tracing::error!("the mount that is not served stays: {error}");
        }
    }

    fn unmount(&mut self, lazy: bool) -> Result<(), MountError> {
        if !lazy && self.connection.has_requests_wait() && self.is_volume_away() {
            let _closed = self.volume.probe_gate().close(PROBE_TIMEOUT);
            return self.unmount_without_volume();
        }
        if lazy {
            // Nothing holds up a lazy unmount. What is written until then is written back only before.
            self.write_back();
            return self.mounting.unmount(self.mount, Unmount::Lazily);
        }
        let gate = self.volume.probe_gate();
        let (mounting, mount) = (self.mounting, self.mount);
        let take_away = || mounting.unmount(mount, Unmount::WhenIdle);
        gate.unmount(PROBE_TIMEOUT, || self.write_back(), take_away)
    }

    /// Says whether the volume cannot serve programs now.
    fn is_volume_away(&self) -> bool {
        let served = self.volume.served().current();
        let away = served.as_ref();
        away.is_none_or(|fs| fs.transactions().lacks_members())
    }

    /// Unmounts while requests wait for the volume. The kernel refuses that if the mount is in use, and they wait on. Else it
    /// takes the mount away, and then writes what it holds. These writes fail, because they would wait as well.
    fn unmount_without_volume(&self) -> Result<(), MountError> {
        let (mounting, mount) = (self.mounting, self.mount);
        let stuck = |source| MountError::Stuck {
            mountpoint: mount.mountpoint().to_owned(),
            source,
        };
        thread::scope(|scope| {
            let unmount = move || mounting.unmount(mount, Unmount::WhenIdle);
            let thread = thread::Builder::new().name("unmount".to_owned());
            let unmounting = thread.spawn_scoped(scope, unmount).map_err(stuck)?;
            let begun = Instant::now();
            let mut gone_since: Option<Instant> = None;
            while !unmounting.is_finished() {
                if self.is_gone() {
                    let since = *gone_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > UNMOUNTED {
                        self.connection.release_waiting();
                    }
                } else if begun.elapsed() > UNDECIDED {
                    self.connection.release_waiting();
                }
                thread::sleep(UNMOUNT_POLL);
            }
            let unmounted = unmounting.join();
            unmounted.unwrap_or_else(|_| Err(stuck(io::Error::other("the unmount panicked"))))
        })
    }

    /// Has the kernel write what it holds: an unmount does so for the last mount of a filesystem only, and not if it is
    /// lazy. Writes that wait for a volume that is away fail, and so do all that programs wait for.
    fn write_back(&mut self) {
        self.connection.release_waiting();
        let written = self.mounting.sync(self.mount);
        self.unwritten = written.err().map(|error| {
            let shown = self.mount.mountpoint().display();
            tracing::error!("cannot write back {shown}: {error}");
            NotDurable::of(&error)
        });
    }

    /// Says whether the daemon ends now that the deadline has passed, and tells waiting commands if not.
    fn is_over(&mut self) -> bool {
        let then = self.deadline.take().map_or(Then::Serve, |(_, then)| then);
        if then == Then::End || then == Then::EndUnlessMounted && !self.is_mounted_elsewhere() {
            tracing::warn!("the mount that was taken away is still in use; its users get errors");
            self.refuse_programs();
            return true;
        }
        if !self.connection.is_cut() {
            self.tell_held();
        }
        false
    }

    /// Refuses the programs that still have files open, and takes what the kernel has accepted from them since the mount
    /// was taken away: no write succeeds and is lost.
    fn refuse_programs(&self) {
        if self.connection.is_cut() {
            return;
        }
        self.connection.release_waiting();
        let referenced = self.volume.served().kept().referenced();
        if let Err(error) = self.connection.refuse_programs(&referenced) {
            tracing::error!(
                "writes to open files of the mount that was taken away may be lost: {error}"
            );
        }
    }

    /// Makes everything durable, and tells the commands that wait that something keeps the mount.
    fn tell_held(&mut self) {
        self.connection.wait_again();
        let mountpoint = self.mount.mountpoint().display();
        let served = self.volume.served().current();
        let failed = match &*served {
            Some(fs) => fs.syncfs().err().map(|error| NotDurable::of(&error)),
            None => Some(NotDurable::of(&Errno::IO)),
        };
        drop(served);
        let failed = failed.or_else(|| self.unwritten.clone());
        match &failed {
            None => tracing::info!(
                "the mount at {mountpoint} was taken away, and something else keeps it: it is served until that is gone"
            ),
            Some(reason) => tracing::error!(
                "the mount at {mountpoint} was taken away, and something else keeps it; not everything is durable: {reason}"
            ),
        }
        for client in self.waiting.drain(..) {
            server::answer(&client, &Answer::Held(failed.clone()));
        }
    }

    /// Says whether the mount is gone from its place. If the mount table cannot be read, it counts as there.
    fn is_gone(&self) -> bool {
        mountinfo::mounts().is_ok_and(|mounts| !mounts.iter().any(|entry| self.is_own(entry)))
    }

    fn is_own(&self, entry: &MountEntry) -> bool {
        entry.mountpoint == self.mount.mountpoint() && entry.device == self.mount.device()
    }

    /// Says whether the filesystem has another mount, in whatever mount namespace.
    fn is_mounted_elsewhere(&self) -> bool {
        let here = mountinfo::mounts().unwrap_or_default();
        let here: Vec<u64> = here
            .iter()
            .filter(|entry| self.is_own(entry))
            .map(|entry| entry.id)
            .collect();
        let mut all = mountinfo::mounts_in_all_processes(self.mount.device());
        all.any(|(_, entry)| !here.contains(&entry.id))
    }
}

/// Unmounts although something may be in use: a signal leaves no choice.
pub(crate) fn take_away(mounting: &Mounting, mount: &Mount) {
    let gone = match mounting.unmount(mount, Unmount::WhenIdle) {
        Err(error) if !matches!(error, MountError::NotOurs(_)) => {
            tracing::info!("{error}, so it is taken away from under its users");
            // A lazy unmount does not write back.
            if let Err(error) = mounting.sync(mount) {
                tracing::error!(
                    "cannot write back {}: {error}",
                    mount.mountpoint().display()
                );
            }
            mounting.unmount(mount, Unmount::Lazily)
        }
        done => done,
    };
    if let Err(error) = gone {
        tracing::error!("{error}");
    }
}

/// Makes everything durable and answers everyone who waited for that.
pub(crate) fn finish(
    mounted: &MountedVolume,
    socket: SocketFile,
    mut waiting: Vec<UnixStream>,
    inbox: &Receiver<EndingEvent>,
) -> Result<(), DaemonFailure> {
    let (closed, hanging) = match mounted.take() {
        Some(volume) => {
            let transactions = Arc::clone(&volume.transactions);
            let closed = volume.close();
            let closed = closed.map_err(|failure| DaemonFailure::ClosedInPart { failure });
            record_end(mounted, &transactions, closed.is_ok());
            (closed, transactions.members().release())
        }
        None => (Err(DaemonFailure::VolumeAway), Vec::new()),
    };
    if !hanging.is_empty() {
        tracing::warn!("this process ends when {} answers", hanging.join(" and "));
    }
    waiting.extend(inbox.try_iter().filter_map(|event| match event {
        EndingEvent::Asked { client, .. } => Some(client),
        EndingEvent::Over(_) | EndingEvent::Signal(_) => None,
    }));
    let answer = match &closed {
        Ok(()) if hanging.is_empty() => Answer::Unmounted,
        Ok(()) => Answer::Lingering(hanging),
        Err(failure) => Answer::Failed(failure.clone()),
    };
    drop(socket);
    for client in &waiting {
        server::answer(client, &answer);
    }
    closed
}

/// Records that the daemon ends. The members are released after that.
fn record_end(mounted: &MountedVolume, transactions: &Transactions, durable: bool) {
    let events = mounted.events();
    events.attach(transactions.members());
    record_changes(mounted);
    events.record(None, EventKind::DaemonStopped { durable });
    events.close(LAST_EVENTS_TIMEOUT);
    events.detach();
}
