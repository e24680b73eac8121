//! The daemon's end of the connections to its process for alerts, and to the supervisor of that.

use std::io::{self, BufReader};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::notice::NoticeVolume;
use super::parts;
use super::protocol::{self, FromDaemon, FromProcess, LogPlace};
use super::supervisor::FromSupervisor;
use crate::control::event_report::EventReport;
use crate::control::mounted::MountedVolume;
use crate::control::passing::{receive, socket_pair};
use crate::control::process;
use crate::control::report::{AlertsReport, AlertsState};
use crate::events::MOST_REMEMBERED;
use crate::format::event::Event;

/// The interval at which new events are looked for.
const INTERVAL: Duration = Duration::from_millis(200);

/// The time that the process has to take the last events and to save them.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The time for which the process may take nothing.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// A supervisor of the process for alerts that has been started.
#[derive(Debug)]
pub(crate) struct AlertProcess {
    control: OwnedFd,
    supervisor: Child,
}

impl AlertProcess {
    /// Starts the supervisor, which starts the process. Call it before the daemon is confined.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub(crate) fn start(config: &Path, state: &Path) -> io::Result<Self> {
        process::keep_descriptors_to_ourselves();
        let (control, theirs) = socket_pair()?;
        set_socket_timeout(&control, Timeout::Recv, Some(INTERVAL))?;
        let supervisor = parts::same_program()
            .arg(parts::SUPERVISOR)
            .args([config, state])
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self {
            control,
            supervisor,
        })
    }

    /// Sends it the events of a volume that is about to be mounted, from now on. It gets earlier ones as well that it has
    /// not seen, if it knows the volume.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub(crate) fn follow(
        self,
        volume: &Arc<MountedVolume>,
        about: NoticeVolume,
    ) -> io::Result<AlertFeed> {
        let newest = volume.events().newer_than(None, None, MOST_REMEMBERED);
        let newest = newest.events.last().map(|event| LogPlace {
            sequence: event.sequence,
            time_ms: event.time_ms,
        });
        let (end, ended) = mpsc::channel();
        let (done, is_done) = mpsc::channel();
        let mut link = Link {
            volume: Arc::clone(volume),
            about,
            control: self.control,
            supervisor: self.supervisor,
            ended,
            newest,
            told: None,
        };
        let feeder = thread::Builder::new().name("alert-feed".to_owned());
        feeder.spawn(move || {
            link.run();
            drop(done);
        })?;
        Ok(AlertFeed { end, is_done })
    }
}

/// Logs what the process says, and passes everything else on.
fn read_answers(socket: &UnixStream, to_feed: &Sender<FromProcess>) {
    let mut socket = BufReader::new(socket);
    loop {
        let message = match protocol::read::<FromProcess>(&mut socket) {
            Ok(Some(message)) => message,
            Ok(None) => return,
            // It ended before it read all.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return,
            Err(error) => {
                tracing::error!("the process for alerts cannot be understood: {error}");
                return;
            }
        };
        match message {
            FromProcess::Log {
                is_warning: true,
                text,
            } => tracing::warn!("{text}"),
            FromProcess::Log { text, .. } => tracing::info!("{text}"),
            other => {
                // A feed that has ended needs none.
                to_feed.send(other).unwrap_or_default();
            }
        }
    }
}

/// The events on their way to the process, until the feed is ended or dropped.
#[derive(Debug)]
pub(crate) struct AlertFeed {
    end: Sender<()>,
    is_done: Receiver<()>,
}

impl AlertFeed {
    /// Sends the last events, and waits a moment until they are saved.
    pub(crate) fn end(self) {
        drop(self.end);
        // Nothing is ever sent.
        if self.is_done.recv_timeout(2 * END_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(
                "the process for alerts does not take the last events; the next mount sends them"
            );
        }
    }
}

/// The connection to the supervisor, and to one process after the other.
struct Link {
    volume: Arc<MountedVolume>,
    about: NoticeVolume,
    control: OwnedFd,
    supervisor: Child,
    /// Closed once the daemon ends.
    ended: Receiver<()>,
    /// The newest event before the mount.
    newest: Option<LogPlace>,
    /// The newest event that a process was told of.
    told: Option<LogPlace>,
}

impl Link {
    fn run(&mut self) {
        self.note(AlertsState::Running, None, None);
        while !self.is_ended() {
            match receive::<FromSupervisor>(self.control.as_fd()) {
                Ok(Some((FromSupervisor::Started, Some(connection)))) => {
                    self.note(AlertsState::Running, None, None);
                    if self.feed(connection.into()) {
                        return;
                    }
                }
                Ok(Some((FromSupervisor::Ended { how, again_in }, _))) => {
                    let seconds = again_in.as_secs();
                    tracing::error!(
                        "the process for alerts ended: {how}; it is started again in {seconds} s, and no alert is lost"
                    );
                    self.note(AlertsState::Restarting, Some(how), Some(seconds));
                }
                // No descriptor was left for its connection, so that process finds it closed.
                Ok(Some((FromSupervisor::Started, None))) => {
                    tracing::warn!("the daemon has no descriptor left for the process for alerts");
                }
                Ok(None) => {
                    return self.give_up("its supervisor ended");
                }
                Err(error) if is_for_now(&error) => {}
                Err(error) => return self.give_up(&error.to_string()),
            }
        }
    }

    fn is_ended(&self) -> bool {
        self.ended.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Feeds one process. Returns whether the daemon ended meanwhile.
    fn feed(&mut self, socket: UnixStream) -> bool {
        let mut feed = Feed {
            volume: &self.volume,
            socket,
            ended: &self.ended,
            newest: self.newest,
            told: self.told,
            place: None,
        };
        let outcome = feed.run(&self.about);
        self.told = feed.told;
        if let Err(error) = &outcome {
            tracing::debug!("no more events are sent to this process for alerts: {error}");
            // It may be there still, and has nothing to do.
            feed.socket.shutdown(Shutdown::Both).unwrap_or_default();
        }
        outcome.is_ok()
    }

    /// Notes that no alerts are delivered any more.
    fn give_up(&mut self, why: &str) {
        if let Err(error) = self.supervisor.try_wait() {
            tracing::debug!("the supervisor of the process for alerts stays a zombie: {error}");
        }
        tracing::error!(
            "no alerts are delivered until the next mount, which sends them: the process for alerts is not started again: {why}"
        );
        self.note(AlertsState::Ended, Some(why.to_owned()), None);
    }

    fn note(&self, state: AlertsState, reason: Option<String>, seconds_to_next: Option<u64>) {
        self.volume.note_alerts(AlertsReport {
            state,
            since: format!("{:.0}", Timestamp::now()),
            reason,
            seconds_to_next,
        });
    }
}

/// Returns whether a receipt only took too long.
fn is_for_now(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// The events on their way to one process.
struct Feed<'a> {
    volume: &'a MountedVolume,
    socket: UnixStream,
    ended: &'a Receiver<()>,
    /// The newest event before the mount. All later ones are sent, whatever their time.
    newest: Option<LogPlace>,
    /// The newest event that a process was told of.
    told: Option<LogPlace>,
    /// The last event that was sent, or need not be.
    place: Option<LogPlace>,
}

impl Feed<'_> {
    /// Sends events until the daemon ends.
    ///
    /// # Errors
    ///
    /// If the process is gone before.
    fn run(&mut self, about: &NoticeVolume) -> io::Result<()> {
        self.socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let (to_feed, answers) = mpsc::channel();
        let socket = self.socket.try_clone()?;
        let reader = thread::Builder::new().name("alert-log".to_owned());
        reader.spawn(move || read_answers(&socket, &to_feed))?;
        let (about, newest) = (about.clone(), self.newest);
        protocol::write(&self.socket, &FromDaemon::Volume { about, newest })?;
        // It waits for the process of the mount before.
        let seen = loop {
            match answers.recv_timeout(INTERVAL) {
                Ok(FromProcess::SendAfter(place)) => break place,
                Ok(_) | Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) if self.is_ended(Duration::ZERO) => {
                    return self.socket.shutdown(Shutdown::Both);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        };
        self.send_unseen(seen)?;
        loop {
            let is_ended = self.is_ended(INTERVAL);
            self.send_new()?;
            if is_ended {
                break;
            }
            if matches!(answers.try_recv(), Err(TryRecvError::Disconnected)) {
                return Err(gone());
            }
        }
        protocol::write(&self.socket, &FromDaemon::End)?;
        if answers.recv_timeout(END_TIMEOUT).is_err() {
            tracing::warn!("the process for alerts has not saved the last events yet");
        }
        self.socket.shutdown(Shutdown::Both)
    }

    fn is_ended(&self, patience: Duration) -> bool {
        self.ended.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
    }

    /// Sends the events that are remembered and that the process has not seen.
    fn send_unseen(&mut self, seen: LogPlace) -> io::Result<()> {
        let all = self.volume.events().newer_than(None, None, MOST_REMEMBERED);
        for event in all.events {
            let place = place_of(&event);
            let is_new = self.is_new(place);
            if is_new || seen.precedes(place) {
                self.send(event, is_new)?;
            }
            self.place = Some(place);
        }
        Ok(())
    }

    /// Sends the events behind the last one.
    fn send_new(&mut self) -> io::Result<()> {
        let after = self.place.map(|place| place.sequence);
        let events = self.volume.events();
        let new = events.newer_than(after, None, MOST_REMEMBERED);
        for event in new.events {
            let place = place_of(&event);
            self.send(event, self.is_new(place))?;
            self.place = Some(place);
        }
        Ok(())
    }

    /// Returns whether an event happened since the mount, and no process was told of it.
    fn is_new(&self, place: LogPlace) -> bool {
        let is_behind = |it: Option<LogPlace>| it.is_none_or(|it| place.sequence > it.sequence);
        is_behind(self.newest) && is_behind(self.told)
    }

    fn send(&mut self, event: Event, is_new: bool) -> io::Result<()> {
        let place = place_of(&event);
        let message = FromDaemon::Event {
            time_ms: event.time_ms,
            is_new,
            event: Box::new(EventReport::of(event)),
        };
        protocol::write(&self.socket, &message)?;
        let told = self.told.unwrap_or(place);
        self.told = Some(told.furthest(place));
        Ok(())
    }
}

fn place_of(event: &Event) -> LogPlace {
    LogPlace {
        sequence: event.sequence,
        time_ms: event.time_ms,
    }
}

fn gone() -> io::Error {
    io::Error::other("the process for alerts is gone")
}
