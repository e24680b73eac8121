//! Reports to the manager of services that started the daemon: `sd_notify(3)`, and the watchdog.
//!
//! The watchdog is told only what was proved just before: the control socket of this daemon answers, and so does its mount,
//! which is asked for the attributes of its root. As a rule the daemon has these in memory, and no member is asked.
//! While too many members are away, programs may be made to wait, and the mount is not asked then. During an unmount it is
//! not asked either, because a question would hold it; but one that takes more than a minute is no excuse.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use sd_notify::NotifyState;

use super::super::client::{self, Peer};
use crate::control::exchange::BRIEF_TIMEOUT;
use crate::control::mounted::MountedVolume;
use crate::fuse::mountinfo;

/// Proofs in each interval of the watchdog: one may come late without harm.
const PROOFS: u32 = 3;

/// The reports of a daemon that serves, until this is dropped.
#[derive(Debug)]
pub(in crate::cli) struct Supervision {
    /// Ends the thread of the watchdog.
    end: Option<Sender<SupervisionEvent>>,
}

/// Tells the manager, if there is one.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot report to the manager of services: {error}");
    }
}

/// Tells a person who asks the manager what the daemon does.
pub(super) fn tell_status(text: &str) {
    tell(&[NotifyState::Status(text)]);
}

impl Supervision {
    /// Reports that the mount is usable, and from then on that the daemon serves, as often as the manager wants.
    pub(in crate::cli) fn begin(mountpoint: &Path, volume: &Arc<MountedVolume>) -> Self {
        let shown = format!("mounted at {}", mountpoint.display());
        tell(&[NotifyState::Ready, NotifyState::Status(&shown)]);
        let Some(interval) = sd_notify::watchdog_enabled() else {
            return Self { end: None };
        };
        let (end, events) = mpsc::channel();
        let proof = Arc::new(Proof {
            mountpoint: mountpoint.to_owned(),
            volume: Arc::clone(volume),
        });
        let answers = end.clone();
        let work = move || watch(&proof, interval / PROOFS, &answers, &events);
        let started = thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(work);
        if let Err(error) = started {
            tracing::error!(
                "no thread for the watchdog, so the manager will end this daemon: {error}"
            );
        }
        Self { end: Some(end) }
    }
}

impl Drop for Supervision {
    fn drop(&mut self) {
        let end = self.end.take();
        // A thread that has ended needs no end.
        let _ = end.map(|end| end.send(SupervisionEvent::End));
        tell(&[NotifyState::Stopping]);
    }
}

/// News for the thread of the watchdog.
#[derive(Debug)]
enum SupervisionEvent {
    /// A proof was obtained, or something did not answer.
    Answered(Result<(), String>),
    /// The daemon is about to end.
    End,
}

/// Reports proofs until the end. Answers come as `events`, whose other end is `answers`.
fn watch(
    proof: &Arc<Proof>,
    tick: Duration,
    answers: &Sender<SupervisionEvent>,
    events: &Receiver<SupervisionEvent>,
) {
    let mut rounds = Rounds::begin(tick, Instant::now());
    loop {
        match rounds.turn(Instant::now()) {
            Turn::Ask => {
                if let Err(error) = proof.start(answers.clone()) {
                    tracing::error!("no thread to ask the mount: {error}");
                    rounds.answered();
                }
            }
            // It may wait for members, which is no fault of this daemon.
            Turn::Overdue if proof.is_volume_away() => tell(&[NotifyState::Watchdog]),
            Turn::Overdue => tracing::warn!(
                "the mount has not answered the watchdog within {tick:?}; it is not asked again before it does"
            ),
            Turn::Wait(time) => match events.recv_timeout(time) {
                Ok(SupervisionEvent::Answered(answer)) => {
                    rounds.answered();
                    report(answer);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(SupervisionEvent::End) | Err(RecvTimeoutError::Disconnected) => return,
            },
        }
    }
}

fn report(answer: Result<(), String>) {
    match answer {
        Ok(()) => tell(&[NotifyState::Watchdog]),
        Err(problem) => {
            tracing::error!("the watchdog is not told that this daemon serves: {problem}");
        }
    }
}

/// The thing to do now.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    /// Ask for a proof.
    Ask,
    /// Another one is due, and the last question has no answer yet.
    Overdue,
    /// Wait for an answer, so long at most.
    Wait(Duration),
}

/// The times of questions, of which one at a time is asked. A late answer puts off no later question.
#[derive(Debug)]
struct Rounds {
    tick: Duration,
    next: Instant,
    is_due: bool,
    is_owed: bool,
}

impl Rounds {
    fn begin(tick: Duration, now: Instant) -> Self {
        Self {
            // A manager that wants reports all the time gets a thousand a second.
            tick: tick.max(Duration::from_millis(1)),
            next: now,
            is_due: false,
            is_owed: false,
        }
    }

    fn turn(&mut self, now: Instant) -> Turn {
        let comes = now >= self.next;
        while self.next <= now {
            self.next += self.tick;
        }
        self.is_due |= comes;
        if self.is_due && !self.is_owed {
            (self.is_due, self.is_owed) = (false, true);
            return Turn::Ask;
        }
        if comes {
            return Turn::Overdue;
        }
        Turn::Wait(self.next - now)
    }

    fn answered(&mut self) {
        self.is_owed = false;
    }
}

/// The means to prove that a daemon serves.
struct Proof {
    mountpoint: PathBuf,
    volume: Arc<MountedVolume>,
}

impl Proof {
    /// Obtains a proof on a thread, which something that does not answer keeps.
    fn start(self: &Arc<Self>, answers: Sender<SupervisionEvent>) -> io::Result<()> {
        let proof = Arc::clone(self);
        let ask = move || {
            // The watchdog may have ended meanwhile.
            let _ = answers.send(SupervisionEvent::Answered(proof.obtain()));
        };
        let thread = thread::Builder::new().name("watchdog-proof".to_owned());
        thread.spawn(ask).map(drop)
    }

    /// Proves it, or says what does not answer.
    fn obtain(&self) -> Result<(), String> {
        self.ask_socket()?;
        // An unmount that is under way would be refused if the mount were asked. So the gate stands for an answer, for a
        // minute.
        if !self.is_volume_away()
            && let Some(_probe) = self.volume.probe_gate().enter()
        {
            ask_mount(&self.mountpoint);
        }
        Ok(())
    }

    /// Asks the control socket as a command does.
    fn ask_socket(&self) -> Result<(), String> {
        let entry = mountinfo::mount_at(&self.mountpoint)
            .map_err(|error| format!("the mounts cannot be listed: {error}"))?;
        match client::find_peer(&self.mountpoint, entry.as_ref(), BRIEF_TIMEOUT) {
            // It has said which mount it serves.
            Ok(Peer::Daemon(_)) => Ok(()),
            // The mount was taken away, and this daemon is about to end.
            Ok(_) if entry.is_none() => Ok(()),
            Ok(_) => Err("nothing listens on the control socket".to_owned()),
            Err(failure) => Err(failure.message),
        }
    }

    fn is_volume_away(&self) -> bool {
        let served = self.volume.served().current();
        let fs = served.as_ref();
        fs.is_none_or(|fs| fs.transactions().lacks_members())
    }
}

/// Has the kernel ask the daemon for the attributes of the root. An error is an answer, too.
fn ask_mount(mountpoint: &Path) {
    let flags = AtFlags::STATX_FORCE_SYNC | AtFlags::NO_AUTOMOUNT;
    if let Err(error) = statx(CWD, mountpoint, flags, StatxFlags::BASIC_STATS) {
        tracing::debug!("statx of {}: {error}", mountpoint.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the longest time between two reports to the watchdog, if each answer takes `delay`.
    fn longest_silence(tick: Duration, delay: Duration) -> Duration {
        let start = Instant::now();
        let mut rounds = Rounds::begin(tick, start);
        let (mut now, mut told, mut longest) = (start, start, Duration::ZERO);
        let mut answer = None;
        while now < start + 100 * tick {
            match rounds.turn(now) {
                Turn::Ask => answer = Some(now + delay),
                Turn::Overdue => {}
                Turn::Wait(time) => {
                    let until = now + time;
                    now = answer.map_or(until, |at: Instant| at.min(until));
                    if answer.take_if(|at| *at <= now).is_some() {
                        rounds.answered();
                        longest = longest.max(now - told);
                        told = now;
                    }
                }
            }
        }
        assert!(told > start, "it was never told");
        longest
    }

    #[test]
    fn an_answer_that_takes_most_of_the_interval_is_not_fatal() {
        let interval = Duration::from_secs(600);
        for percent in [0, 10, 33, 34, 60, 90, 99] {
            let silence = longest_silence(interval / PROOFS, interval * percent / 100);
            assert!(silence < interval, "{percent} %: {silence:?}");
        }
        let silence = longest_silence(interval / PROOFS, interval * 2);
        assert!(
            silence > interval,
            "a daemon that hangs is not told of: {silence:?}"
        );
    }

    #[test]
    fn nothing_new_is_asked_while_an_answer_is_owed() {
        let (start, tick) = (Instant::now(), Duration::from_secs(3));
        let mut rounds = Rounds::begin(tick, start);
        assert_eq!(rounds.turn(start), Turn::Ask);
        assert_eq!(rounds.turn(start), Turn::Wait(tick));
        assert_eq!(rounds.turn(start + tick), Turn::Overdue);
        assert_eq!(rounds.turn(start + tick * 5 / 2), Turn::Overdue);
        rounds.answered();
        assert_eq!(rounds.turn(start + tick * 5 / 2), Turn::Ask);
        assert_eq!(rounds.turn(start + tick * 5 / 2), Turn::Wait(tick / 2));
    }
}
