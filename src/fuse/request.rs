//! From a request to its one reply, whatever happens in between.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use fuser::{
    Errno, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request,
};

use super::errno::errno;
use crate::fs::FsError;

/// The requests of one mount that are not answered yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Underway(Arc<()>);

impl Underway {
    /// Begins with request `request` for `operation` on inode `ino`.
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
            _underway: self.clone(),
        }
    }

    /// Returns how many share this: whoever cloned it, and each request until it is answered.
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
    _underway: Underway,
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

    /// Runs `work` and returns its value, or none if it panicked, which is logged: a thread that
    /// serves requests must not end, and nobody would miss it before the last is gone.
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

    /// Logs an error that says something about the volume, once; a caller's mistake is no news.
    fn report(&self, error: &FsError) -> Errno {
        let errno = errno(error);
        match i32::from(errno) {
            libc::EIO | libc::EUCLEAN => log::warn!("{self}: {}", one_line(error)),
            libc::ENOSPC | libc::EROFS => log::info!("{self}: {}", one_line(error)),
            _ => log::debug!("{self}: {}", one_line(error)),
        }
        errno
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
