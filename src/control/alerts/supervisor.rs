//! The supervisor of the process for alerts: it starts the process, and starts it again whenever it dies.
//!
//! A daemon that has confined itself can start no program, so it starts this process before. The supervisor makes a
//! connection for every process that it starts, and passes one end on to the daemon. It reads nothing else, and ends with
//! the daemon.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use super::parts::{BEGIN_AGAIN, PROCESS, ProcessPlaces, same_program};
use crate::control::passing::{receive, send};

/// Name of the supervisor, of which the kernel keeps 15 bytes.
const NAME: &std::ffi::CStr = c"cauchyfs-superv";

/// The first and the longest pause before the process is started again. Each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The life of a process after which pauses begin again.
const LONG_LIFE: Duration = Duration::from_secs(600);

/// A message to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FromSupervisor {
    /// The process was started; its connection comes along.
    Started,
    /// The process ended before its time, or could not be started.
    Ended {
        /// The way it ended.
        how: String,
        /// The time until it is started again.
        again_in: Duration,
    },
}

/// Keeps the process running for the daemon at the other end of standard input.
///
/// # Errors
///
/// If it cannot be prepared.
pub(super) fn run(places: &ProcessPlaces) -> io::Result<()> {
    // Signals to the daemon's terminal are the daemon's to act upon.
    rustix::process::setsid()?;
    rustix::thread::set_name(NAME)?;
    for signal in [SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    let daemon = io::stdin().as_fd().try_clone_to_owned()?;
    let (is_there, gone) = mpsc::channel::<()>();
    let listened = daemon.try_clone()?;
    std::thread::Builder::new().spawn(move || {
        // The daemon says nothing, so this waits for its end.
        while let Ok(Some(())) = receive(listened.as_fd()).map(|it| it.map(|((), _)| ())) {}
        drop(is_there);
    })?;
    supervise(places, &daemon, &gone);
    Ok(())
}

/// Starts the process until the daemon is gone, or the process ends in good order.
fn supervise(places: &ProcessPlaces, daemon: &OwnedFd, gone: &Receiver<()>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let began = Instant::now();
        let how = match start(places, daemon).and_then(|mut child| child.wait()) {
            Ok(status) if status.success() => return,
            Ok(status) if status.code() == Some(BEGIN_AGAIN.into()) => continue,
            Ok(status) => ending(status),
            Err(error) => format!("it cannot be started: {error}"),
        };
        if began.elapsed() >= LONG_LIFE {
            pause = FIRST_PAUSE;
        }
        if gone.try_recv() == Err(TryRecvError::Disconnected) {
            return;
        }
        let again_in = pause;
        let told = FromSupervisor::Ended { how, again_in };
        if send(daemon.as_fd(), &told, None).is_err()
            || gone.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected)
        {
            return;
        }
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// Starts the process, and passes the other end of its connection on.
fn start(places: &ProcessPlaces, daemon: &OwnedFd) -> io::Result<Child> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = same_program()
        .arg(PROCESS)
        .args([&places.config, &places.state])
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let connection = ours.as_fd();
    // Without a daemon, the process finds its connection closed.
    if let Err(error) = send(daemon.as_fd(), &FromSupervisor::Started, Some(connection)) {
        tracing::debug!("the daemon is gone: {error}");
    }
    Ok(child)
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with code {code}"),
        (None, Some(signal)) => format!("signal {signal} ended it"),
        (None, None) => "it ended".to_owned(),
    }
}
