//! Reports to the manager of services that started the daemon: `sd_notify(3)`, and the watchdog.
//!
//! The watchdog is told only what was proved just before: the control socket of this daemon answers, and so does a
//! `statfs(2)` of its mount, which the kernel always passes on to the daemon. While too many members are away, programs
//! may be made to wait, and the mount is not asked then.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

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
    _end: Option<Sender<()>>,
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
            return Self { _end: None };
        };
        let (end, ended) = mpsc::channel();
        let proof = Proof {
            mountpoint: mountpoint.to_owned(),
            volume: Arc::clone(volume),
            statfs: Statfs::default(),
        };
        let work = move || watch(proof, interval / PROOFS, &ended);
        let started = thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(work);
        if let Err(error) = started {
            tracing::error!(
                "no thread for the watchdog, so the manager will end this daemon: {error}"
            );
        }
        Self { _end: Some(end) }
    }
}

impl Drop for Supervision {
    fn drop(&mut self) {
        tell(&[NotifyState::Stopping]);
    }
}

/// Reports proofs until the other end of `ended` is gone.
fn watch(mut proof: Proof, interval: Duration, ended: &Receiver<()>) {
    loop {
        match proof.obtain(interval) {
            Ok(()) => tell(&[NotifyState::Watchdog]),
            Err(problem) => {
                tracing::error!("the watchdog is not told that this daemon serves: {problem}");
            }
        }
        match ended.recv_timeout(interval) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The means to prove that a daemon serves.
struct Proof {
    mountpoint: PathBuf,
    volume: Arc<MountedVolume>,
    statfs: Statfs,
}

impl Proof {
    /// Proves it, or says what does not answer within `patience`.
    fn obtain(&mut self, patience: Duration) -> Result<(), String> {
        self.ask_socket()?;
        if self.is_volume_away() {
            return Ok(());
        }
        self.statfs.ask(&self.mountpoint, patience)
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

/// Questions to a mount, one at a time.
#[derive(Debug, Default)]
struct Statfs {
    /// The answer that a question still owes.
    pending: Option<Receiver<()>>,
}

impl Statfs {
    /// Asks on a thread, which a mount that does not answer keeps. Asks nothing new while an answer is owed.
    fn ask(&mut self, mountpoint: &Path, patience: Duration) -> Result<(), String> {
        let pending = match self.pending.take() {
            Some(pending) => pending,
            None => start_statfs(mountpoint)
                .map_err(|error| format!("no thread to ask the mount: {error}"))?,
        };
        match pending.recv_timeout(patience) {
            // The thread drops its end with the answer. An error is an answer, too.
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                self.pending = Some(pending);
                Err(format!("the mount does not answer within {patience:?}"))
            }
        }
    }
}

/// Starts a thread that asks. Its end of the channel is dropped when the mount has answered.
fn start_statfs(mountpoint: &Path) -> io::Result<Receiver<()>> {
    let (owed, pending) = mpsc::channel();
    let mountpoint = mountpoint.to_owned();
    let ask = move || {
        if let Err(error) = rustix::fs::statfs(&mountpoint) {
            tracing::debug!("statfs of {}: {error}", mountpoint.display());
        }
        drop(owed);
    };
    let thread = thread::Builder::new().name("watchdog-statfs".to_owned());
    thread.spawn(ask)?;
    Ok(pending)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_owes_an_answer_proves_nothing_until_it_answers() {
        let (owed, pending) = mpsc::channel();
        let mut statfs = Statfs {
            pending: Some(pending),
        };
        let brief = Duration::from_millis(10);
        for _ in 0..2 {
            let problem = statfs.ask(Path::new("/"), brief).unwrap_err();
            assert!(problem.contains("does not answer"), "{problem}");
        }
        drop(owed);
        statfs.ask(Path::new("/"), brief).unwrap();
        // The next one is a question of its own.
        statfs.ask(Path::new("/"), Duration::from_secs(60)).unwrap();
        assert!(statfs.pending.is_none());
    }
}
