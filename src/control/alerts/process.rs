//! The process that delivers alerts for a daemon.
//!
//! Its supervisor starts it. It holds no descriptor of the daemon but its end of a socket. When the daemon ends, it delivers what waits for a short
//! time, and ends too. The rest stays in the state file for the next mount.

use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver as Inbox, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use super::config::AlertConfig;
use super::grouping::{Group, Grouper, Incoming};
use super::notice::Wording;
use super::parts::{BEGIN_AGAIN, ProcessPlaces};
use super::protocol::{self, FromDaemon, FromProcess, LogPlace};
use super::sender::Post;
use super::state::{StateDirectory, VolumeLock};
use crate::events::now_ms;

/// Name of the process, of which the kernel keeps 15 bytes.
const NAME: &std::ffi::CStr = c"cauchyfs-alerts";

/// The time for which it goes on after a daemon that ended in good order, and after one that was killed.
const AFTER_END: Duration = Duration::from_secs(3);
const AFTER_DEATH: Duration = Duration::from_secs(20);

/// The interval at which it looks whether it is still needed then.
const LOOK: Duration = Duration::from_millis(100);

/// The interval at which limits and ages are looked at.
const CHORES: Duration = Duration::from_secs(30);

/// The interval at which the configuration is read again, or at which its reading is waited for.
const CONFIG_INTERVAL: Duration = Duration::from_secs(2);

/// Messages of the daemon that wait.
const MOST_WAITING: usize = 64;

/// The reason to take no more events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Departure {
    /// The daemon ends in good order.
    InGoodOrder,
    /// The daemon was killed, or its connection broke.
    Killed,
    /// The configuration is another one by now.
    NewConfig,
}

/// Delivers alerts for the daemon at the other end of standard input, until some time after its end. Returns the code with
/// which to end.
///
/// # Errors
///
/// If the process cannot be prepared, or the daemon's end breaks.
pub(super) fn run(places: &ProcessPlaces, wording: Wording) -> io::Result<u8> {
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
        let path = path.display();
        let text = format!("no alerts are delivered: cannot {what} {path}: {error}");
        tell(FromProcess::log(true, &text));
        error
    };
    // Without receivers, events must not count as seen.
    let config =
        read_config(&places.config, &tell).map_err(|error| failed("use", &places.config, error))?;
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
    // Only a daemon that says so ends in good order.
    let broke = || io::Error::other("the connection to the daemon broke");
    let Ok(FromDaemon::Volume { about, newest }) = inbox.recv() else {
        return Err(broke());
    };
    // The daemon sends nothing more before it is asked.
    let lock = VolumeLock::wait(&directory, &about.volume, || {
        std::thread::sleep(LOOK);
        matches!(inbox.try_recv(), Err(TryRecvError::Disconnected) | Ok(_))
    });
    let Some(lock) = lock.map_err(|error| failed("lock a file in", &places.state, error))? else {
        return Err(broke());
    };
    if let Err(error) = directory.remove_forgotten(&about.volume) {
        failed("remove old files in", &places.state, error);
    }
    let state = directory.load(&about.volume, |text| tell(FromProcess::log(true, text)));
    let state = state.map_err(|error| failed("read the state in", &places.state, error))?;
    let grouper = Grouper::after(state.volume.clone());
    let post = Arc::new(Post::new(directory, about, state, wording, Box::new(tell)));
    let mut office = Office {
        post: Arc::clone(&post),
        path: places.config.clone(),
        config,
        reading: None,
        grouper,
    };
    let seen = office.prepare(newest.unwrap_or(LogPlace::START));
    for receiver in &office.config.receivers {
        post.start(receiver.clone())?;
    }
    protocol::write(&mut *answers.lock(), &FromProcess::SendAfter(seen))?;
    let departure = office.serve(&inbox);
    if departure == Departure::NewConfig {
        return Ok(BEGIN_AGAIN);
    }
    if post.is_saved() {
        // A daemon that was killed does not wait for it.
        protocol::write(&mut *answers.lock(), &FromProcess::Saved).unwrap_or_default();
    }
    office.finish(&lock, departure)?;
    match departure {
        Departure::InGoodOrder => Ok(0),
        // The daemon may be there still, and only the connection broke.
        _ => Err(broke()),
    }
}

/// Reads the configuration once more, now that the mount has begun. Logs its errors.
fn read_config(path: &Path, tell: &impl Fn(FromProcess)) -> io::Result<AlertConfig> {
    let config = AlertConfig::read(path).ok_or(io::ErrorKind::NotFound)?;
    for problem in &config.problems {
        let text = format!("the process for alerts goes without: {problem}");
        tell(FromProcess::log(true, &text));
    }
    if config.receivers.is_empty() {
        return Err(io::Error::other("it has no sound receiver by now"));
    }
    Ok(config)
}

/// The part that makes notices of events.
struct Office {
    post: Arc<Post>,
    /// The file of the configuration, and how it was read.
    path: PathBuf,
    config: AlertConfig,
    /// A reading of the file that is under way.
    reading: Option<Inbox<Option<AlertConfig>>>,
    grouper: Grouper,
}

impl Office {
    /// Prepares the mailboxes. A receiver without one gets the events behind `newest`, also while the configuration of it
    /// has an error. Returns the place behind which the daemon is to send events.
    fn prepare(&self, newest: LogPlace) -> LogPlace {
        let mut nearest = None;
        self.post.change(|state| {
            let seen = state.seen.unwrap_or(newest);
            for name in self.names() {
                let mailbox = state.mailboxes.entry(name.to_owned()).or_default();
                let place = *mailbox.seen.get_or_insert(seen);
                if self.config.receivers.iter().any(|it| it.name == name) {
                    nearest = Some(nearest.map_or(place, |it| place.nearest(it)));
                }
            }
            // From here on a later process finds what this one was to send.
            state.seen = Some(seen);
        });
        nearest.unwrap_or(newest)
    }

    /// Returns the names of all receivers, also of those with an error.
    fn names(&self) -> impl Iterator<Item = &str> {
        let wrong = self.config.problems.iter();
        let wrong = wrong.filter_map(|problem| problem.receiver.as_deref());
        let sound = self.config.receivers.iter();
        sound.map(|receiver| receiver.name.as_str()).chain(wrong)
    }

    /// Takes events until the daemon goes.
    fn serve(&mut self, inbox: &Inbox<FromDaemon>) -> Departure {
        let mut chores = Instant::now() + CHORES;
        let mut look = Instant::now() + CONFIG_INTERVAL;
        self.do_chores();
        let departure = loop {
            let now = Instant::now();
            if now >= chores {
                self.do_chores();
                chores = now + CHORES;
            }
            if now >= look {
                if self.has_new_config() && !self.post.is_delivering() {
                    // The next process gets the events of the open group again.
                    return Departure::NewConfig;
                }
                look = now + CONFIG_INTERVAL;
            }
            let wait = self.grouper.wait(now).unwrap_or(CONFIG_INTERVAL);
            let wait = wait.min(CONFIG_INTERVAL);
            match inbox.recv_timeout(wait) {
                Ok(FromDaemon::Event {
                    time_ms,
                    is_new,
                    event,
                }) => {
                    let place = LogPlace {
                        sequence: event.sequence,
                        time_ms,
                    };
                    let event = *event;
                    let incoming = Incoming {
                        event,
                        place,
                        is_new,
                    };
                    for group in self.grouper.add(incoming, Instant::now()) {
                        self.take(&group);
                    }
                }
                Ok(FromDaemon::End) => break Departure::InGoodOrder,
                Err(RecvTimeoutError::Disconnected) => break Departure::Killed,
                // It names its volume once.
                Ok(FromDaemon::Volume { .. }) | Err(RecvTimeoutError::Timeout) => {}
            }
            if self.grouper.wait(Instant::now()) == Some(Duration::ZERO) {
                self.close();
            }
        };
        self.close();
        departure
    }

    fn close(&mut self) {
        if let Some(group) = self.grouper.close() {
            self.take(&group);
        }
    }

    /// Makes the notices of a group, and marks its events as seen, in one step.
    fn take(&self, group: &Group) {
        let about = self.post.about();
        let now = now_ms();
        self.post.change(|state| {
            for receiver in &self.config.receivers {
                let mailbox = state.mailboxes.entry(receiver.name.clone()).or_default();
                mailbox.take(group, receiver.severity, about, now);
            }
            let seen = state.seen.unwrap_or(group.place);
            state.seen = Some(seen.furthest(group.place));
            state.volume = self.grouper.state.clone();
        });
    }

    /// Sends summaries of what was held back, and drops mailboxes without receivers. Tries again to save what could not be
    /// saved.
    fn do_chores(&self) {
        let about = self.post.about();
        let mut dropped = Vec::new();
        self.post.change(|state| {
            let now = now_ms();
            for receiver in &self.config.receivers {
                if let Some(mailbox) = state.mailboxes.get_mut(&receiver.name) {
                    mailbox.summarise(about, now);
                }
            }
            // An error may hide the name of a receiver.
            let is_complete = self.config.problems.iter().all(|it| it.receiver.is_some());
            state.mailboxes.retain(|name, mailbox| {
                let is_named = !is_complete || self.names().any(|it| it == name);
                let is_forgotten = mailbox.is_forgotten(is_named, now);
                if is_forgotten {
                    dropped.push((name.clone(), mailbox.waiting().count()));
                }
                !is_forgotten
            });
        });
        for (name, count) in dropped {
            let text = format!(
                "the configuration has not named {name} for a week; {count} alerts that waited for it are dropped"
            );
            self.post.log(true, &text);
        }
    }

    /// Returns whether the configuration is another one by now, and has receivers. A thread reads it, because the file may lie
    /// on a volume that does not answer.
    fn has_new_config(&mut self) -> bool {
        let Some(reading) = &self.reading else {
            let (done, reading) = mpsc::channel();
            let path = self.path.clone();
            let reader = std::thread::Builder::new().name("alert-config".to_owned());
            let started = reader.spawn(move || {
                // Without a process that waits, nothing is to be told.
                drop(done.send(AlertConfig::read(&path)));
            });
            match started {
                Ok(_) => self.reading = Some(reading),
                Err(error) => {
                    let text = format!("the configuration of alerts is not read again: {error}");
                    self.post.log(true, &text);
                }
            }
            return false;
        };
        let read = match reading.try_recv() {
            Ok(read) => read,
            Err(TryRecvError::Empty) => return false,
            Err(TryRecvError::Disconnected) => None,
        };
        self.reading = None;
        read.is_some_and(|now| now != self.config && !now.receivers.is_empty())
    }

    /// Goes on for a short time while notices wait and no other process wants to go on.
    fn finish(&self, lock: &VolumeLock, departure: Departure) -> io::Result<()> {
        let until = Instant::now()
            + match departure {
                Departure::InGoodOrder => AFTER_END,
                Departure::Killed => AFTER_DEATH,
                Departure::NewConfig => Duration::ZERO,
            };
        while Instant::now() < until
            && !self.post.is_done(&self.config.receivers)
            && !lock.is_wanted()?
        {
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}
