//! The daemon's end of the connection to its process for alerts.

use std::io::{self, BufReader};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use super::notice::NoticeVolume;
use super::process::WORD;
use super::protocol::{self, FromDaemon, FromProcess, LogPlace};
use crate::control::event_report::EventReport;
use crate::control::mounted::MountedVolume;
use crate::control::process;
use crate::events::MOST_REMEMBERED;

/// The interval at which new events are looked for.
const INTERVAL: Duration = Duration::from_millis(200);

/// The time that the process has to take the last events and to save them.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The time for which the process may take nothing.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// A process for alerts that has been started.
#[derive(Debug)]
pub(crate) struct AlertProcess(UnixStream);

impl AlertProcess {
    /// Starts the process. Call it before the daemon is confined.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub(crate) fn start(config: &Path, state: &Path) -> io::Result<Self> {
        process::keep_descriptors_to_ourselves();
        let (ours, theirs) = UnixStream::pair()?;
        process::program()
            .arg(WORD)
            .args([config, state])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        ours.set_write_timeout(Some(WRITE_TIMEOUT))?;
        Ok(Self(ours))
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
        let (to_feed, asked) = mpsc::channel();
        let answers = self.0.try_clone()?;
        let reader = thread::Builder::new().name("alert-log".to_owned());
        reader.spawn(move || read_answers(answers, &to_feed))?;
        let (end, ended) = mpsc::channel();
        let (done, is_done) = mpsc::channel();
        let mut feed = Feed {
            volume: Arc::clone(volume),
            socket: self.0,
            ended,
            place: newest,
        };
        let writer = thread::Builder::new().name("alert-feed".to_owned());
        writer.spawn(move || {
            if let Err(error) = feed.run(about, &asked) {
                tracing::error!("alerts are not delivered any more: {error}");
            }
            drop(done);
        })?;
        Ok(AlertFeed { end, is_done })
    }
}

/// Logs what the process says, and passes everything else on.
fn read_answers(socket: UnixStream, to_feed: &Sender<FromProcess>) {
    let mut socket = BufReader::new(socket);
    while let Ok(Some(message)) = protocol::read::<FromProcess>(&mut socket) {
        match message {
            FromProcess::Log {
                is_warning: true,
                text,
            } => tracing::warn!("{text}"),
            FromProcess::Log { text, .. } => tracing::info!("{text}"),
            other => {
                if to_feed.send(other).is_err() {
                    return;
                }
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

struct Feed {
    volume: Arc<MountedVolume>,
    socket: UnixStream,
    ended: Receiver<()>,
    /// The last event that was sent.
    place: Option<LogPlace>,
}

impl Feed {
    fn run(&mut self, about: NoticeVolume, answers: &Receiver<FromProcess>) -> io::Result<()> {
        protocol::write(&self.socket, &FromDaemon::Volume(about))?;
        let gone = || io::Error::other("the process for alerts is gone");
        // It waits for the process of the mount before.
        let asked = loop {
            match answers.recv_timeout(INTERVAL) {
                Ok(FromProcess::SendAfter(place)) => break place,
                Ok(_) | Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) if self.is_ended(Duration::ZERO) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {}
            }
        };
        if let Some(seen) = asked {
            self.send_unseen(seen)?;
        }
        loop {
            let is_ended = self.is_ended(INTERVAL);
            self.send_new()?;
            if is_ended {
                break;
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
            let place = LogPlace {
                sequence: event.sequence,
                time_ms: event.time_ms,
            };
            if seen.precedes(place) {
                self.send(event)?;
            }
            self.place = Some(place);
        }
        Ok(())
    }

    /// Sends the events behind the last one.
    fn send_new(&mut self) -> io::Result<()> {
        let after = self.place.map(|place| place.sequence);
        let new = self
            .volume
            .events()
            .newer_than(after, None, MOST_REMEMBERED);
        for event in new.events {
            let place = LogPlace {
                sequence: event.sequence,
                time_ms: event.time_ms,
            };
            self.send(event)?;
            self.place = Some(place);
        }
        Ok(())
    }

    fn send(&self, event: crate::format::event::Event) -> io::Result<()> {
        let time_ms = event.time_ms;
        let event = Box::new(EventReport::of(event));
        protocol::write(&self.socket, &FromDaemon::Event { time_ms, event })
    }
}
