//! The end of a daemon: what leads to it, and what the daemon does about it.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use signal_hook::consts::SIGHUP;

use super::mount_failure;
use crate::cli::control::{self, Answer, SocketFile};
use crate::cli::failure::{Failure, Outcome};
use crate::cli::mounter::Mounting;
use crate::cli::volume::Volume;
use crate::fuse::mount::{MountError, Mounter, Place, Unmount};

/// How long what is open below a mount may stay open after the mount was taken away by a signal.
const GRACE: Duration = Duration::from_secs(5);

/// What can happen to a daemon.
pub(super) enum Event {
    /// The mount is gone and all requests are answered.
    Over(io::Result<()>),
    /// A signal asks it to end.
    Signal(i32),
    /// A command asks it to unmount, and waits on this connection.
    Unmount { lazy: bool, client: UnixStream },
}

/// Works until the mount is gone; returns the connections that wait for the end.
pub(super) fn serve_events(
    mounting: &Mounting,
    place: &Place,
    inbox: &Receiver<Event>,
) -> Vec<UnixStream> {
    let mut waiting = Vec::new();
    let mut patience = None;
    loop {
        let event = match patience {
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(patience) => inbox.recv_timeout(patience),
        };
        match event {
            Ok(Event::Over(Ok(()))) | Err(RecvTimeoutError::Disconnected) => return waiting,
            Ok(Event::Over(Err(error))) => {
                log::error!("the connection to the kernel broke: {error}");
                return waiting;
            }
            Ok(Event::Signal(SIGHUP)) => log::info!("SIGHUP: nothing to read again"),
            Ok(Event::Signal(signal)) => {
                log::info!("signal {signal}: unmounting");
                patience = Some(GRACE);
                take_away(mounting, place);
            }
            Ok(Event::Unmount { lazy, client }) => match unmount(mounting, place, lazy) {
                Ok(()) => {
                    waiting.push(client);
                    patience = lazy.then_some(GRACE);
                }
                Err(MountError::Busy(_)) => control::answer(&client, &Answer::Busy),
                Err(error) => control::answer(&client, &Answer::Failed(mount_failure(&error))),
            },
            Err(RecvTimeoutError::Timeout) => {
                log::warn!(
                    "files are still open in the mount that was taken away; they get errors"
                );
                return waiting;
            }
        }
    }
}

fn unmount(mounting: &Mounting, place: &Place, lazy: bool) -> Result<(), MountError> {
    if lazy {
        write_back(mounting, place);
        mounting.unmount(place, Unmount::Lazily)
    } else {
        mounting.unmount(place, Unmount::WhenIdle)
    }
}

/// Unmounts although something may be in use: a signal leaves no choice.
pub(super) fn take_away(mounting: &Mounting, place: &Place) {
    let gone = match mounting.unmount(place, Unmount::WhenIdle) {
        Err(error) if !matches!(error, MountError::NotOurs(_)) => {
            log::info!("{error}, so it is taken away from under its users");
            write_back(mounting, place);
            mounting.unmount(place, Unmount::Lazily)
        }
        done => done,
    };
    if let Err(error) = gone {
        log::error!("{error}");
    }
}

/// Has the kernel write what it holds, since a lazy unmount does not.
fn write_back(mounting: &Mounting, place: &Place) {
    if let Err(error) = mounting.sync(place) {
        log::error!(
            "cannot write back {}: {error}",
            place.mountpoint().display()
        );
    }
}

/// Makes everything durable and answers everyone who waited for that.
pub(super) fn finish(
    volume: Volume,
    socket: SocketFile,
    mut waiting: Vec<UnixStream>,
    inbox: &Receiver<Event>,
) -> Result<Outcome, Failure> {
    let pipeline = Arc::clone(&volume.pipeline);
    let closed = volume.close().map_err(|failure| {
        let message = format!(
            "it is unmounted, perhaps without its last changes: {}",
            failure.message
        );
        Failure { message, ..failure }.advise(
            "see that its directories are there, and mount it again: what was synced is on them",
        )
    });
    let hanging = pipeline.members().release();
    if !hanging.is_empty() {
        log::warn!("this process ends when {} answers", hanging.join(" and "));
    }
    waiting.extend(inbox.try_iter().filter_map(|event| match event {
        Event::Unmount { client, .. } => Some(client),
        Event::Over(_) | Event::Signal(_) => None,
    }));
    let answer = match &closed {
        Ok(()) if hanging.is_empty() => Answer::Unmounted,
        Ok(()) => Answer::Lingering(hanging),
        Err(failure) => Answer::Failed(failure.clone()),
    };
    drop(socket);
    for client in &waiting {
        control::answer(client, &answer);
    }
    closed.map(|()| Outcome::Done)
}
