//! The process that delivers alerts for a daemon.
//!
//! It holds no descriptor of the daemon but its end of a socket. When the daemon ends, it delivers what waits for a short
//! time, and ends too. The rest stays in the state file for the next mount.

use std::ffi::OsString;
use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver as Inbox, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use super::config::{AlertConfig, Receiver};
use super::grouping::{Group, Grouper};
use super::notice::{NoticeVolume, Wording};
use super::protocol::{self, FromDaemon, FromProcess};
use super::sender::Post;
use super::state::{AlertState, StateDirectory, VolumeLock};
use crate::events::now_ms;

/// Argument that asks for this process; the configuration and the directory of the state follow.
pub(super) const WORD: &str = "--alerts-process";

/// Name of the process, of which the kernel keeps 15 bytes.
const NAME: &std::ffi::CStr = c"cauchyfs-alerts";

/// The time for which it goes on after a daemon that ended in good order, and after one that was killed.
const AFTER_END: Duration = Duration::from_secs(3);
const AFTER_DEATH: Duration = Duration::from_secs(20);

/// The interval at which it looks whether it is still needed then.
const LOOK: Duration = Duration::from_millis(100);

/// The interval at which limits and ages are looked at.
const CHORES: Duration = Duration::from_secs(30);

/// Messages of the daemon that wait.
const MOST_WAITING: usize = 64;

/// The places at which the process works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessPlaces {
    config: PathBuf,
    state: PathBuf,
}

/// Returns the places at which to work if the program was started as this process.
pub(crate) fn asked_for(given: &[OsString]) -> Option<ProcessPlaces> {
    match given {
        [_, word, config, state] if word == WORD => Some(ProcessPlaces {
            config: config.into(),
            state: state.into(),
        }),
        _ => None,
    }
}

/// The way by which the daemon went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Departure {
    InGoodOrder,
    Killed,
}

/// Delivers alerts for the daemon at the other end of standard input, until some time after its end.
///
/// # Errors
///
/// If the process cannot be prepared, or the daemon's end breaks.
pub(crate) fn run(places: &ProcessPlaces, wording: Wording) -> io::Result<()> {
    // Signals to the daemon's terminal are the daemon's to act upon.
    rustix::process::setsid()?;
    rustix::thread::set_name(NAME)?;
    for signal in [SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let answers = Arc::new(Mutex::new(socket.try_clone()?));
    let tell = {
        let answers = Arc::clone(&answers);
        move |message: FromProcess| {
            // A daemon that is gone has no log.
            drop(protocol::write(&mut *answers.lock(), &message));
        }
    };
    let failed = |what: &str, path: &Path, error: io::Error| {
        let text = format!(
            "no alerts are delivered: cannot {what} {}: {error}",
            path.display()
        );
        let is_warning = true;
        tell(FromProcess::Log { is_warning, text });
        error
    };
    let config = AlertConfig::read(&places.config).unwrap_or_default();
    let directory = StateDirectory::open(&places.state);
    let directory = directory.map_err(|error| failed("use", &places.state, error))?;
    let (to_inbox, inbox) = mpsc::sync_channel(MOST_WAITING);
    std::thread::Builder::new().spawn(move || {
        let mut socket = BufReader::new(socket);
        while let Ok(Some(message)) = protocol::read::<FromDaemon>(&mut socket) {
            if to_inbox.send(message).is_err() {
                return;
            }
        }
    })?;
    let Ok(FromDaemon::Volume(about)) = inbox.recv() else {
        return Ok(());
    };
    // The daemon sends nothing more before it is asked.
    let lock = VolumeLock::wait(&directory, &about.volume, || {
        std::thread::sleep(LOOK);
        matches!(inbox.try_recv(), Err(TryRecvError::Disconnected) | Ok(_))
    });
    let Some(lock) = lock.map_err(|error| failed("lock a file in", &places.state, error))? else {
        return Ok(());
    };
    let state = load(&directory, &about, |text| {
        let is_warning = true;
        tell(FromProcess::Log { is_warning, text });
    });
    let seen = state.seen;
    let grouper = Grouper::after(state.volume.clone());
    let post = Arc::new(Post::new(directory, about, state, wording, Box::new(tell)));
    for receiver in &config.receivers {
        post.start(receiver.clone())?;
    }
    protocol::write(&mut *answers.lock(), &FromProcess::SendAfter(seen))?;
    let mut office = Office {
        post: Arc::clone(&post),
        receivers: config.receivers,
        grouper,
    };
    let departure = office.serve(&inbox);
    protocol::write(&mut *answers.lock(), &FromProcess::Saved).unwrap_or_default();
    office.finish(&lock, departure)
}

/// Reads the state. A damaged one is left, and alerts begin anew.
fn load(directory: &StateDirectory, about: &NoticeVolume, tell: impl Fn(String)) -> AlertState {
    directory.load(&about.volume).unwrap_or_else(|error| {
        tell(format!(
            "the state of alerts cannot be read, and alerts that waited are lost: {error}"
        ));
        AlertState::default()
    })
}

/// The part that makes notices of events.
struct Office {
    post: Arc<Post>,
    receivers: Vec<Receiver>,
    grouper: Grouper,
}

impl Office {
    /// Takes events until the daemon goes.
    fn serve(&mut self, inbox: &Inbox<FromDaemon>) -> Departure {
        let mut chores = Instant::now();
        let departure = loop {
            let now = Instant::now();
            if now >= chores {
                self.do_chores();
                chores = now + CHORES;
            }
            let wait = self.grouper.wait(now).unwrap_or(CHORES).min(CHORES);
            match inbox.recv_timeout(wait) {
                Ok(FromDaemon::Event { time_ms, event }) => {
                    let place = protocol::LogPlace {
                        sequence: event.sequence,
                        time_ms,
                    };
                    for group in self.grouper.add(*event, place, Instant::now()) {
                        self.take(&group);
                    }
                }
                Ok(FromDaemon::End) => break Departure::InGoodOrder,
                Err(RecvTimeoutError::Disconnected) => break Departure::Killed,
                // It names its volume once.
                Ok(FromDaemon::Volume(_)) | Err(RecvTimeoutError::Timeout) => {}
            }
            if self.grouper.wait(Instant::now()) == Some(Duration::ZERO) {
                self.close();
            }
        };
        self.close();
        departure
    }

    fn close(&mut self) {
        if let Some(group) = self.grouper.close(Instant::now()) {
            self.take(&group);
        }
    }

    /// Makes the notices of a group, and marks its events as seen, in one step.
    fn take(&self, group: &Group) {
        let about = self.post.about();
        let now = now_ms();
        self.post.change(|state| {
            for receiver in &self.receivers {
                let mailbox = state.mailboxes.entry(receiver.name.clone()).or_default();
                mailbox.take(group, receiver.severity, about, now);
            }
            let seen = state.seen.unwrap_or(group.place);
            state.seen = Some(seen.furthest(group.place));
            state.volume = self.grouper.state.clone();
        });
    }

    /// Sends summaries of what was held back, and gives up old notices.
    fn do_chores(&self) {
        let about = self.post.about();
        let mut given_up = 0;
        self.post.change(|state| {
            for mailbox in state.mailboxes.values_mut() {
                given_up += mailbox.give_up_old(Timestamp::now());
                mailbox.summarise(about, now_ms());
            }
        });
        if given_up > 0 {
            let text =
                format!("{given_up} alerts were given up: their receivers took none for a week");
            self.post.log(true, text);
        }
    }

    /// Goes on for a short time while notices wait and no other process wants to go on.
    fn finish(&self, lock: &VolumeLock, departure: Departure) -> io::Result<()> {
        let until = Instant::now()
            + match departure {
                Departure::InGoodOrder => AFTER_END,
                Departure::Killed => AFTER_DEATH,
            };
        while Instant::now() < until && !self.post.is_done(&self.receivers) && !lock.is_wanted()? {
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}
