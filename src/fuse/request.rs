//! From a request to its one reply, whatever happens in between.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use fuser::{
    Errno, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request,
};

use super::errno::errno;
use crate::fs::FsError;
use crate::rate_limit::RateLimit;

/// A failure: the operation, the inode, and the reason.
type Failing = (&'static str, u64, String);

/// The requests of one mount that are not answered yet, and the rate-limited log of those that failed.
#[derive(Clone, Debug)]
pub(super) struct InFlight(Arc<RateLimit<Failing>>);

impl Default for InFlight {
    fn default() -> Self {
        Self(Arc::new(RateLimit::once_a_minute()))
    }
}

impl InFlight {
    /// Starts request `request` for `operation` on inode `ino`.
    pub(super) fn begin(
        &self,
        operation: &'static str,
        request: &Request,
        ino: fuser::INodeNo,
    ) -> Context {
        Context {
            operation,
            request: request.unique().0,
            ino: ino.0,
            in_flight: self.clone(),
        }
    }

    /// Returns how many share this: each owner of a clone, and each request until it is answered.
    pub(super) fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

/// A request that is being worked on, as the log names it: `read{req=981 ino=4711}`.
#[derive(Debug)]
pub(super) struct Context {
    operation: &'static str,
    request: u64,
    ino: u64,
    in_flight: InFlight,
}

impl Context {
    /// Runs `work` and sends its value, or the errno of its error, as the reply.
    ///
    /// A panic is answered with EIO, so the caller never hangs, and is logged; in `send` it is the
    /// unsent reply that answers so when it is dropped.
    pub(super) fn answer<T, R: Refuse>(
        self,
        reply: R,
        work: impl FnOnce() -> Result<T, FsError>,
        send: impl FnOnce(R, T),
    ) {
        match self.attempt(work) {
            Ok(value) => {
                self.guard(|| send(reply, value));
            }
            Err(errno) => reply.refuse(errno),
        }
    }

    /// Runs `work` and returns its value, or the errno to reply; errors and panics are logged.
    pub(super) fn attempt<T>(&self, work: impl FnOnce() -> Result<T, FsError>) -> Result<T, Errno> {
        match self.guard(work) {
            Some(result) => result.map_err(|error| self.report(&error)),
            None => Err(Errno::EIO),
        }
    }

    /// Runs `work` and returns its value, or none if it panicked, which is logged. A thread that serves requests must
    /// not end, because the loss of threads would show only when the last is gone.
    pub(super) fn guard<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let value = catch_unwind(AssertUnwindSafe(work)).ok();
        if value.is_none() {
            // The panic hook has logged message and place.
            log::error!("{self}: panicked");
        }
        value
    }

    /// Runs `telling`, which tells the kernel something unasked; returns whether that was done. If
    /// not, it is logged.
    pub(super) fn tell(&self, telling: impl FnOnce() -> io::Result<()>) -> bool {
        match self.guard(telling) {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                log::error!("{self}: the kernel cannot be told: {error}");
                false
            }
            None => false,
        }
    }

    /// Logs an error that says something about the volume, once in a while; a caller's mistake is no news.
    fn report(&self, error: &FsError) -> Errno {
        let errno = errno(error);
        match i32::from(errno) {
            libc::EIO | libc::EUCLEAN => self.warn(error, Instant::now()),
            libc::ENOSPC | libc::EROFS => log::info!("{self}: {}", one_line(error)),
            _ => log::debug!("{self}: {}", one_line(error)),
        }
        errno
    }
}

impl Context {
    /// Logs an error. A reader of a file in which much is wrong fails block by block, and may try again and again.
    fn warn(&self, error: &FsError, now: Instant) {
        if let Some(left_out) = self.is_to_be_logged(error, now) {
            if left_out > 0 {
                log::warn!(
                    "{left_out} failures of other files, or of other kinds, were not logged"
                );
            }
            log::warn!("{self}: {}", one_line(error));
        }
    }

    fn is_to_be_logged(&self, error: &FsError, now: Instant) -> Option<u64> {
        let why = match error {
            // Wherever in the file.
            FsError::FailedWriteback { .. } => String::new(),
            error => one_line(error),
        };
        let InFlight(limit) = &self.in_flight;
        limit.admit((self.operation, self.ino, why), now)
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}{{req={} ino={}}}",
            self.operation, self.request, self.ino
        )
    }
}

/// Returns an error and what caused it in one line, nothing twice.
#[must_use]
pub fn one_line(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Many errors quote their source already.
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = error.source();
    }
    line
}

/// A reply that can be an error.
pub(super) trait Refuse {
    /// Sends `errno`.
    fn refuse(self, errno: Errno);
}

macro_rules! refuse {
    ($($reply:ty),* $(,)?) => {$(
        impl Refuse for $reply {
            fn refuse(self, errno: Errno) {
                self.error(errno);
            }
        }
    )*};
}

refuse!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyEmpty,
    ReplyEntry,
    ReplyLseek,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr,
);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_that_fails_block_by_block_is_named_once_a_minute() {
        let in_flight = InFlight::default();
        let context = |operation, request, ino| Context {
            operation,
            request,
            ino,
            in_flight: in_flight.clone(),
        };
        let now = Instant::now();
        let refused = |offset| FsError::FailedWriteback { ino: 7, offset };
        let is_logged = |context: &Context, error: &FsError, after: u64| {
            let at = now + Duration::from_secs(after);
            context.is_to_be_logged(error, at).is_some()
        };
        assert!(is_logged(&context("read", 1, 7), &refused(0), 0));
        for request in 2..1000 {
            let offset = request * 4096;
            assert!(!is_logged(
                &context("read", request, 7),
                &refused(offset),
                59
            ));
        }
        assert!(is_logged(&context("read", 1000, 7), &refused(0), 60));
        assert!(is_logged(&context("read", 1001, 8), &refused(0), 60));
        assert!(is_logged(&context("write", 1002, 7), &refused(0), 60));
        let what = "its records contradict each other";
        let other = FsError::Corrupt { ino: 7, what };
        assert!(is_logged(&context("read", 1003, 7), &other, 60));
    }
}
