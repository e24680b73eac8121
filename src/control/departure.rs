//! Waiting for the end of the process at the other end of a connection.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::peer::peer_of;

/// Waits until the process at the other end of a connection is gone, once it has said that it ends or hung up.
///
/// Taken before the request is sent, so that the process is the right one.
#[derive(Clone, Debug)]
pub(crate) struct Departure(Option<Arc<Leaving>>);

#[derive(Debug)]
struct Leaving {
    process: OwnedFd,
    pid: Pid,
}

impl Departure {
    /// Remembers the process behind `stream`; nothing to wait for if it cannot be told.
    pub(crate) fn of(stream: &UnixStream) -> Self {
        let pid = peer_of(stream).ok().and_then(|peer| peer.pid);
        let leaving = pid.and_then(|pid| {
            let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            Some(Leaving { process, pid })
        });
        Self(leaving.map(Arc::new))
    }

    /// Says whether the process has ended and the system is yet to close what it had open, its socket among that.
    pub(crate) fn is_under_way(&self) -> bool {
        // Its memory goes first, and with it the words that it was started with.
        let has_no_memory = |leaving: &Arc<Leaving>| {
            fs::read(format!("/proc/{}/cmdline", leaving.pid.as_raw_nonzero()))
                .is_ok_and(|words| words.is_empty())
        };
        self.0.as_ref().is_some_and(has_no_memory)
    }

    /// Waits for at most `patience`, and says whether the process is surely gone. Systems without descriptors of
    /// processes, as before Linux 5.3, cannot say.
    pub(crate) fn has_ended(&self, patience: Duration) -> bool {
        self.0.is_some() && matches!(self.wait(patience), Ok(None))
    }

    /// Waits for at most `patience`; returns the process if it is known to be there still.
    ///
    /// # Errors
    ///
    /// If the system cannot say.
    pub(crate) fn wait(&self, patience: Duration) -> io::Result<Option<Pid>> {
        let Some(leaving) = &self.0 else {
            return Ok(None);
        };
        let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
        let mut polled = [PollFd::new(&leaving.process, PollFlags::IN)];
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) => Ok(Some(leaving.pid)),
            Ok(_) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_which_nothing_is_known_is_not_gone() {
        assert!(!Departure(None).has_ended(Duration::ZERO));
        let (_end, own) = UnixStream::pair().unwrap();
        assert!(!Departure::of(&own).has_ended(Duration::ZERO));
    }
}
