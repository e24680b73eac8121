//! From a request to its one reply, whatever happens in between.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::convert::supplementary_groups;
use super::errno::errno;
use super::operation_counts::OperationCounts;
use super::protocol::{Answer, Header, Malformed, Operation, OperationKind};
use crate::format::Ino;
use crate::fs::{Caller, FsError};
use crate::rate_limit::RateLimit;

/// The memory in which a transport delivers one request, and the way of the answer. The same memory may take the
/// answer: it then replaces the request.
pub(super) trait Carrier: Send {
    /// Returns the fixed fields of operation `opcode`, behind which may be other bytes, and what follows them.
    fn arguments(&self, opcode: u32) -> (&[u8], &[u8]);

    /// Returns all the memory that there is for an answer. Its contents are of no use.
    fn memory(&mut self) -> &mut [u8];

    /// Prepares for a wait of the request that may last, for an outage say.
    fn set_aside(&mut self);

    /// Prepares for work on the request, after [`Self::set_aside`].
    fn take_up(&mut self);

    /// Returns the bytes that the request has, apart from its header.
    fn len(&self) -> usize;

    /// Sends the answer to request `unique`, if it has one. A failure is logged.
    fn send(self: Box<Self>, unique: u64, reply: Reply<'_>);
}

/// The part that works on the requests of one mount.
pub(super) trait Service: Send + Sync {
    /// Works on a request, here or on another thread, and answers it.
    fn serve(&self, request: Request);

    /// Returns the requests that are not answered yet.
    fn in_flight(&self) -> &InFlight;

    /// Returns whether the volume behind the mount is open, and has enough members.
    fn is_open(&self) -> bool {
        true
    }
}

/// The reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply<'a> {
    /// A failure.
    Error(Errno),
    /// Success, with these bytes.
    Bytes(&'a [u8]),
    /// Success, with so many bytes of [`Carrier::memory`].
    Memory(usize),
    /// The kernel waits for none.
    None,
}

/// A request of the kernel. It can be answered on any thread; if it is dropped, the answer is `EIO`.
pub(super) struct Request {
    header: Header,
    carrier: Option<Box<dyn Carrier>>,
}

impl Request {
    /// Takes what a transport delivered.
    pub(super) fn new(header: Header, carrier: Box<dyn Carrier>) -> Self {
        Self {
            header,
            carrier: Some(carrier),
        }
    }

    /// Returns the header.
    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the inode that it is about.
    pub(super) fn ino(&self) -> Ino {
        self.header.ino
    }

    /// Reads the operation.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if something is missing.
    pub(super) fn operation(&self) -> Result<Operation<'_>, Malformed> {
        let (fixed, rest) = self.carrier().arguments(self.header.opcode);
        Operation::parse(self.header.opcode, self.header.ino, fixed, rest)
    }

    /// Returns everything behind the header of a request that has no fixed fields to us, such as INIT.
    pub(super) fn body(&self) -> &[u8] {
        let (fixed, rest) = self.carrier().arguments(self.header.opcode);
        debug_assert!(fixed.is_empty(), "INIT alone is read so");
        rest
    }

    /// Returns how many bytes of a file a read or a write moves; 0 for other requests.
    pub(super) fn data_len(&self) -> usize {
        match self.operation() {
            Ok(Operation::Read { size, .. }) => size as usize,
            Ok(Operation::Write { data, .. }) => data.len(),
            _ => 0,
        }
    }

    /// Returns the user and groups of the process that asks.
    pub(super) fn caller(&self, umask: u32) -> Caller {
        Caller {
            uid: self.header.uid,
            gid: self.header.gid,
            pid: self.header.pid,
            umask,
            groups: supplementary_groups,
        }
    }

    /// Returns memory for an answer of `len` bytes, or for as many as there is room for. The operation is gone then.
    pub(super) fn memory(&mut self, len: usize) -> &mut [u8] {
        let memory = self.carrier.as_mut().expect(UNSENT).memory();
        let len = len.min(memory.len());
        &mut memory[..len]
    }

    /// Prepares for a wait that may last, for an outage say.
    pub(super) fn set_aside(&mut self) {
        self.carrier.as_mut().expect(UNSENT).set_aside();
    }

    /// Prepares for work, after [`Self::set_aside`].
    pub(super) fn take_up(&mut self) {
        self.carrier.as_mut().expect(UNSENT).take_up();
    }

    /// Returns the bytes of memory that it holds while it is set aside.
    pub(super) fn held_bytes(&self) -> usize {
        Header::LEN + self.carrier().len()
    }

    /// Answers.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "an outcome is made for this answer alone"
    )]
    pub(super) fn answer(self, outcome: Result<Answer, Errno>) {
        match &outcome {
            Ok(answer) => self.send(Reply::Bytes(answer.bytes())),
            Err(errno) => self.send(Reply::Error(*errno)),
        }
    }

    /// Answers with these bytes.
    pub(super) fn answer_bytes(self, bytes: &[u8]) {
        self.send(Reply::Bytes(bytes));
    }

    /// Answers with so many bytes of [`Request::memory`].
    pub(super) fn answer_memory(self, outcome: Result<usize, Errno>) {
        self.send(outcome.map_or_else(Reply::Error, Reply::Memory));
    }

    /// Ends a request that has no answer.
    pub(super) fn end(self) {
        self.send(Reply::None);
    }

    fn carrier(&self) -> &dyn Carrier {
        self.carrier.as_deref().expect(UNSENT)
    }

    fn send(mut self, reply: Reply<'_>) {
        let carrier = self.carrier.take().expect(UNSENT);
        carrier.send(self.header.unique, reply);
    }
}

/// Only methods that consume a request take its carrier.
const UNSENT: &str = "a request that was answered is gone";

impl std::fmt::Debug for Request {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.header.fmt(formatter)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(carrier) = self.carrier.take() {
            carrier.send(self.header.unique, Reply::Error(Errno::IO));
        }
    }
}

/// Runs `work` and logs a panic. The threads that serve requests must not end: requests would wait for them without end.
///
/// A request that `work` owns is dropped by the panic, and so answers `EIO`.
pub(super) fn contain(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        // The panic hook has logged message and place.
        tracing::error!("work on a request panicked");
    }
}

/// A failure: the operation, the inode, and the reason.
type Failing = (&'static str, u64, String);

/// The requests of one mount that are not answered yet, the rate-limited log of those that failed, and the counts of all.
#[derive(Clone, Debug)]
pub(super) struct InFlight(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    failures: RateLimit<Failing>,
    /// None if requests are not counted.
    counts: Option<Arc<OperationCounts>>,
}

impl Default for InFlight {
    fn default() -> Self {
        Self::counting(None)
    }
}

impl InFlight {
    /// Returns no requests. Those to come are counted in `counts`, if that is there.
    pub(super) fn counting(counts: Option<Arc<OperationCounts>>) -> Self {
        let failures = RateLimit::once_a_minute();
        Self(Arc::new(Shared { failures, counts }))
    }

    /// Starts a request for an operation.
    pub(super) fn begin(&self, kind: OperationKind, header: &Header) -> Context {
        Context {
            kind,
            request: header.unique,
            ino: header.ino.0,
            began: self.0.counts.as_ref().map(|_| Instant::now()),
            moved: Cell::new(0),
            has_failed: Cell::new(false),
            in_flight: self.clone(),
        }
    }

    /// Returns how many share this: each owner of a clone, and each request until it is answered.
    pub(super) fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

/// A request that is being worked on. The log names it by these fields: `op=read req=981 ino=4711`.
///
/// It is dropped once the request is answered, or has to wait for the volume. That ends the time which is counted.
#[derive(Debug)]
pub(super) struct Context {
    kind: OperationKind,
    request: u64,
    ino: u64,
    /// None if requests are not counted.
    began: Option<Instant>,
    /// The bytes of a file that it read or wrote.
    moved: Cell<u64>,
    has_failed: Cell<bool>,
    in_flight: InFlight,
}

impl Drop for Context {
    fn drop(&mut self) {
        if let (Some(counts), Some(began)) = (&self.in_flight.0.counts, self.began) {
            let (bytes, has_failed) = (self.moved.get(), self.has_failed.get());
            counts.count(self.kind, began.elapsed(), bytes, has_failed);
        }
    }
}

/// Logs an event with the fields of a request.
///
/// The event has them itself, because the span of the request exists at the level `debug` alone, and work is over here.
macro_rules! log_of {
    ($level:ident, $context:expr, $($message:tt)+) => {
        tracing::$level!(
            op = $context.kind.name(),
            req = $context.request,
            ino = $context.ino,
            $($message)+
        )
    };
}

impl Context {
    /// Runs `work` and returns its value, or the errno to reply; errors and panics are logged.
    pub(super) fn attempt<T>(&self, work: impl FnOnce() -> Result<T, FsError>) -> Result<T, Errno> {
        let outcome = match self.guard(work) {
            Some(result) => result.map_err(|error| self.report(&error)),
            None => Err(Errno::IO),
        };
        self.has_failed.set(outcome.is_err());
        outcome
    }

    /// Counts the request as one that is answered with an error, without work that failed.
    pub(super) fn fail(&self) {
        self.has_failed.set(true);
    }

    /// Notes the bytes of a file that the request read or wrote.
    pub(super) fn moved(&self, bytes: usize) {
        self.moved.set(bytes as u64);
    }

    /// Runs `work` and returns its value, or none if it panicked, which is logged. A thread that serves requests must
    /// not end, because the loss of threads would show only when the last is gone.
    ///
    /// At the level `debug`, whatever `work` logs on this thread names the request.
    pub(super) fn guard<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let span = tracing::debug_span!(
            "request",
            op = self.kind.name(),
            req = self.request,
            ino = self.ino
        );
        let value = span.in_scope(|| catch_unwind(AssertUnwindSafe(work)).ok());
        if value.is_none() {
            // The panic hook has logged message and place.
            log_of!(error, self, "panicked");
        }
        value
    }

    /// Runs `telling`, which tells the kernel something unasked; returns whether that was done. If
    /// not, it is logged.
    pub(super) fn tell(&self, telling: impl FnOnce() -> io::Result<()>) -> bool {
        match self.guard(telling) {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                log_of!(error, self, "the kernel cannot be told: {error}");
                false
            }
            None => false,
        }
    }

    /// Logs an error that says something about the volume, once in a while; a caller's mistake is no news.
    fn report(&self, error: &FsError) -> Errno {
        let errno = errno(error);
        match errno.raw_os_error() {
            libc::EIO | libc::EUCLEAN => self.warn(error, Instant::now()),
            libc::ENOSPC | libc::EROFS => log_of!(info, self, "{}", one_line(error)),
            _ => log_of!(debug, self, "{}", one_line(error)),
        }
        errno
    }
}

impl Context {
    /// Logs an error. A reader of a file in which much is wrong fails block by block, and may try again and again.
    fn warn(&self, error: &FsError, now: Instant) {
        if let Some(left_out) = self.is_to_be_logged(error, now) {
            if left_out > 0 {
                tracing::warn!(
                    "{left_out} failures of other files, or of other kinds, were not logged"
                );
            }
            log_of!(warn, self, "{}", one_line(error));
        }
    }

    fn is_to_be_logged(&self, error: &FsError, now: Instant) -> Option<u64> {
        let why = match error {
            // Wherever in the file.
            FsError::FailedWriteback { .. } => String::new(),
            error => one_line(error),
        };
        let failing = (self.kind.name(), self.ino, why);
        self.in_flight.0.failures.admit(failing, now)
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

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _};
    use std::time::Duration;

    use tracing::Level;

    use super::*;

    #[test]
    fn a_request_names_itself_once_in_its_own_lines_and_at_debug_in_those_of_its_work() {
        for (level, is_work_named) in [(Level::INFO, false), (Level::DEBUG, true)] {
            let log = Arc::new(tempfile::tempfile().unwrap());
            let subscriber = tracing_subscriber::fmt()
                .with_max_level(level)
                .with_writer(Arc::clone(&log));
            tracing::subscriber::with_default(subscriber.finish(), || {
                let context = Context {
                    kind: OperationKind::Read,
                    request: 981,
                    ino: 4711,
                    began: None,
                    moved: Cell::new(0),
                    has_failed: Cell::new(false),
                    in_flight: InFlight::default(),
                };
                let outcome = context.attempt::<()>(|| {
                    tracing::warn!("a member is slow");
                    let what = "its records contradict each other";
                    Err(FsError::Corrupt { ino: 4711, what })
                });
                assert!(outcome.is_err());
            });
            let mut text = String::new();
            (&*log).rewind().unwrap();
            (&*log).read_to_string(&mut text).unwrap();
            let of_request = ["op=\"read\"", "req=981", "ino=4711"];
            let named = |line: &str| of_request.map(|field| line.matches(field).count());
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.len(), 2, "{text}");
            assert_eq!(named(lines[0]), [usize::from(is_work_named); 3], "{text}");
            assert_eq!(named(lines[1]), [1; 3], "{text}");
        }
    }

    #[test]
    fn a_file_that_fails_block_by_block_is_named_once_a_minute() {
        let in_flight = InFlight::default();
        let context = |kind, request, ino| Context {
            kind,
            request,
            ino,
            began: None,
            moved: Cell::new(0),
            has_failed: Cell::new(false),
            in_flight: in_flight.clone(),
        };
        let now = Instant::now();
        let refused = |offset| FsError::FailedWriteback { ino: 7, offset };
        let is_logged = |context: &Context, error: &FsError, after: u64| {
            let at = now + Duration::from_secs(after);
            context.is_to_be_logged(error, at).is_some()
        };
        assert!(is_logged(
            &context(OperationKind::Read, 1, 7),
            &refused(0),
            0
        ));
        for request in 2..1000 {
            let offset = request * 4096;
            assert!(!is_logged(
                &context(OperationKind::Read, request, 7),
                &refused(offset),
                59
            ));
        }
        assert!(is_logged(
            &context(OperationKind::Read, 1000, 7),
            &refused(0),
            60
        ));
        assert!(is_logged(
            &context(OperationKind::Read, 1001, 8),
            &refused(0),
            60
        ));
        assert!(is_logged(
            &context(OperationKind::Write, 1002, 7),
            &refused(0),
            60
        ));
        let what = "its records contradict each other";
        let other = FsError::Corrupt { ino: 7, what };
        assert!(is_logged(
            &context(OperationKind::Read, 1003, 7),
            &other,
            60
        ));
    }

    #[test]
    fn a_request_counts_once_it_is_over_with_the_outcome_of_its_work() {
        let counts = Arc::new(OperationCounts::default());
        let in_flight = InFlight::counting(Some(Arc::clone(&counts)));
        let context = |kind| Context {
            kind,
            request: 1,
            ino: 7,
            began: Some(Instant::now()),
            moved: Cell::new(0),
            has_failed: Cell::new(false),
            in_flight: in_flight.clone(),
        };
        let of = |kind: OperationKind| {
            let all = counts.all();
            let found = all.into_iter().find(|it| it.name == kind.name()).unwrap();
            (found.count(), found.failed)
        };
        let read = context(OperationKind::Read);
        read.attempt(|| Ok(())).unwrap();
        read.moved(4096);
        assert_eq!(of(OperationKind::Read), (0, 0), "it is not answered yet");
        drop(read);
        let failed = context(OperationKind::Read).attempt(|| Err::<(), _>(FsError::Invalid));
        assert!(failed.is_err());
        let panicked = context(OperationKind::Write);
        assert!(
            panicked
                .attempt(|| -> Result<(), FsError> { panic!("as a bug would") })
                .is_err()
        );
        panicked.moved(3);
        drop(panicked);
        assert_eq!(of(OperationKind::Read), (2, 1));
        assert_eq!(of(OperationKind::Write), (1, 1));
        assert_eq!(of(OperationKind::Fsync), (0, 0));
        assert_eq!((counts.bytes_read(), counts.bytes_written()), (4096, 3));
    }
}
