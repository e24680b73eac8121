//! Lines over the control socket, with limits on all that the other end can ask for: bytes, values, lines, and time.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::budget::Account;
use super::departure::Departure;
use super::protocol::{Answer, DirectoryCodeRequest, Envelope, Request};
use super::quota::QuotaRequest;

/// The time for which a daemon may be silent.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// The time to wait for a daemon that is perhaps not concerned.
pub(crate) const BRIEF_TIMEOUT: Duration = Duration::from_secs(3);

/// The time that a daemon whose mount was taken away may take to end, or to make everything durable. Commands that wait
/// for the end go on by themselves then.
const END_TIMEOUT: Duration = Duration::from_secs(7);

/// The time that a daemon may take for an answer, as long as it gives signs of life.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(600);

/// The interval at which a silent peer is checked.
const LOOK_INTERVAL: Duration = Duration::from_secs(3);

/// The longest answer with a report in it. A report is cut to less than half of that.
const MOST_REPORT_BYTES: usize = 16 << 20;

/// The most bytes of names of lost files in an answer, which has a limit at the other end.
pub(crate) const MOST_LISTED_BYTES: usize = 6 << 20;

/// The longest answer otherwise.
const MOST_ANSWER_BYTES: usize = 1 << 20;

/// The longest answer with the mount of a daemon: its mountpoint, numbers, and signs before them.
const MOST_IDENTITY_BYTES: usize = 64 << 10;

/// The most values in an answer. A value of one byte can take a hundred in memory.
const MOST_VALUES: usize = 1 << 20;

/// The most progress reports before an answer; a daemon that sends four a second gets there in a month.
const MOST_PROGRESS: u64 = 10_000_000;

/// The most empty lines before an answer; a daemon that sends one a second gets there in eleven days.
const MOST_SIGNS: u64 = 1_000_000;

/// The number of bytes that are sent or read at once.
const CHUNK: usize = 64 << 10;

/// Limits of time and memory for the answers of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The time that it may take for a line; without a limit, as long as its process lives.
    pub(crate) line: Option<Duration>,
    /// The time that it may take for the answer, or from one progress report to the next.
    pub(crate) answer: Option<Duration>,
    /// The longest line, in bytes.
    pub(crate) bytes: usize,
    /// The most progress reports.
    pub(crate) progress: u64,
    /// The most empty lines, each of which extends the time for a line, and none that for the answer.
    pub(crate) signs: u64,
}

impl Limits {
    /// Returns those of the answer to a request. `is_own` says that the daemon runs as the user who asks.
    pub(crate) fn of(request: &Request, is_own: bool) -> Self {
        let bounded = Self {
            line: Some(ANSWER_TIMEOUT),
            answer: Some(TOTAL_TIMEOUT),
            bytes: MOST_ANSWER_BYTES,
            progress: 0,
            signs: MOST_SIGNS,
        };
        match request {
            Request::Identify => Self::of_identity(ANSWER_TIMEOUT),
            // Answered without a look at anything. Commands ask every mount, also those of users who mean no good.
            Request::Membership | Request::Activity => Self {
                line: Some(BRIEF_TIMEOUT),
                answer: Some(BRIEF_TIMEOUT),
                ..bounded
            },
            Request::Metrics => Self {
                answer: Some(ANSWER_TIMEOUT),
                bytes: 2 * MOST_ANSWER_BYTES,
                ..bounded
            },
            Request::Directories => Self {
                answer: Some(ANSWER_TIMEOUT),
                ..bounded
            },
            Request::Status
            | Request::Usage { .. }
            | Request::Quota(QuotaRequest::List { .. })
            | Request::DirectoryCode(DirectoryCodeRequest::List)
            | Request::Events { .. } => Self {
                bytes: MOST_REPORT_BYTES,
                ..bounded
            },
            Request::Scrub { .. } => Self {
                bytes: MOST_REPORT_BYTES,
                progress: MOST_PROGRESS,
                ..bounded
            },
            // Flushing takes as long as there is to flush. Another user's daemon is not believed that for ever.
            Request::Unmount { .. } => Self {
                line: None,
                answer: (!is_own).then_some(TOTAL_TIMEOUT),
                ..bounded
            },
            // So does giving millions of files a code.
            Request::DirectoryCode(DirectoryCodeRequest::Set { .. }) => Self {
                answer: (!is_own).then_some(TOTAL_TIMEOUT),
                ..bounded
            },
            Request::AwaitEnd => Self {
                line: Some(END_TIMEOUT),
                answer: Some(END_TIMEOUT),
                ..bounded
            },
            Request::Rebuild { .. }
            | Request::Quota(QuotaRequest::Set { .. } | QuotaRequest::Clear { .. })
            | Request::Balance { .. }
            | Request::Join { .. }
            | Request::Remove { .. }
            | Request::SetCode { .. }
            | Request::DirectoryCode(DirectoryCodeRequest::Show { .. })
            | Request::Pause
            | Request::Resume
            | Request::RebuildProgress { .. } => bounded,
        }
    }

    /// Returns those of the answer to [`Request::Identify`].
    pub(crate) fn of_identity(patience: Duration) -> Self {
        Self {
            line: Some(patience),
            answer: Some(patience),
            bytes: MOST_IDENTITY_BYTES,
            progress: 0,
            signs: MOST_SIGNS,
        }
    }
}

/// The lines that arrive on a connection.
#[derive(Debug)]
pub(crate) struct Lines {
    stream: UnixStream,
    /// Bytes that arrived; those before `start` belong to lines that were returned.
    arrived: Vec<u8>,
    start: usize,
    /// Room for what is read at once; none before the first read.
    chunk: Vec<u8>,
    /// The account of what arrived, if that is limited together with what arrives on others.
    account: Option<Account>,
}

impl Lines {
    pub(crate) fn of(stream: UnixStream) -> Self {
        Self {
            stream,
            arrived: Vec::new(),
            start: 0,
            chunk: Vec::new(),
            account: None,
        }
    }

    /// Limits what arrives from now on by an account.
    pub(crate) fn charge(&mut self, account: Account) {
        self.account = Some(account);
    }

    /// Counts an answer that is refused.
    pub(crate) fn refuse(&self) {
        if let Some(account) = &self.account {
            account.refuse();
        }
    }

    /// Returns the next line without its end.
    ///
    /// # Errors
    ///
    /// If it is longer than `most` bytes, is not complete by `until`, or the peer hung up. While the peer is silent,
    /// `is_over` is asked from time to time whether to wait no longer.
    pub(crate) fn next(
        &mut self,
        most: usize,
        until: Option<Instant>,
        is_over: impl Fn() -> bool,
    ) -> io::Result<Vec<u8>> {
        let mut seen = 0;
        loop {
            let unread = &self.arrived[self.start..];
            let end = unread[seen..].iter().position(|&byte| byte == b'\n');
            if let Some(end) = end.map(|end| seen + end)
                && end <= most
            {
                let line = unread[..end].to_vec();
                self.start += end + 1;
                return Ok(line);
            }
            seen = unread.len();
            if seen > most {
                self.refuse();
                let what = format!("it sent a line of more than {most} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                let account = self.account.as_ref();
                return Err(account.map_or_else(|| io::ErrorKind::TimedOut.into(), Account::late));
            }
            let wait = left.map_or(LOOK_INTERVAL, |left| left.min(LOOK_INTERVAL));
            self.stream
                .set_read_timeout(Some(wait.max(Duration::from_millis(1))))?;
            self.arrived.drain(..self.start);
            self.start = 0;
            self.chunk.resize(CHUNK, 0);
            match self.stream.read(&mut self.chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    if let Some(account) = &mut self.account {
                        let until = until.unwrap_or_else(|| Instant::now() + TOTAL_TIMEOUT);
                        account.hold(self.arrived.len() + read, until)?;
                    }
                    self.arrived.extend_from_slice(&self.chunk[..read]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => {
                    if is_over() {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Says whether a call ended because the peer did nothing for some time.
fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// Sends bytes to a peer that takes all of them by `until`. A single call waits as long as the stream's own timeout says.
///
/// # Errors
///
/// If the peer does not, or is gone.
pub(crate) fn send(mut stream: &UnixStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match stream.write(&bytes[..bytes.len().min(CHUNK)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends a request, and waits for its answer; `heed` gets the progress reports before it.
///
/// # Errors
///
/// If the daemon exceeds a limit, hangs up, or answers nothing that makes sense.
pub(crate) fn exchange(
    lines: &mut Lines,
    envelope: &Envelope,
    limits: &Limits,
    departure: &Departure,
    mut heed: impl FnMut(&Answer),
) -> io::Result<Answer> {
    let mut answering = Answering::begin(lines, envelope, limits)?;
    let mut progress_left = limits.progress;
    loop {
        let line = answering.next_line(lines, departure)?;
        match parse(&line)? {
            Answer::Scrubbing(_) if progress_left == 0 => {
                let what = "it sent more progress reports than were asked for";
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            progress @ Answer::Scrubbing(_) => {
                progress_left -= 1;
                answering.extend();
                heed(&progress);
            }
            answer => return Ok(answer),
        }
    }
}

/// Sends a request that has no progress reports, and waits for its answer, which [`parse`] reads.
///
/// # Errors
///
/// If the daemon exceeds a limit, or hangs up.
pub(crate) fn exchange_line(
    lines: &mut Lines,
    envelope: &Envelope,
    limits: &Limits,
    departure: &Departure,
) -> io::Result<Vec<u8>> {
    Answering::begin(lines, envelope, limits)?.next_line(lines, departure)
}

/// An answer that is waited for.
struct Answering<'a> {
    limits: &'a Limits,
    until: Option<Instant>,
    signs_left: u64,
}

impl<'a> Answering<'a> {
    /// Sends a request.
    fn begin(lines: &Lines, envelope: &Envelope, limits: &'a Limits) -> io::Result<Self> {
        let mut line = serde_json::to_vec(envelope)?;
        line.push(b'\n');
        lines.stream.set_write_timeout(Some(BRIEF_TIMEOUT))?;
        match send(&lines.stream, &line, Instant::now() + BRIEF_TIMEOUT) {
            // A daemon that answers too many commands answers before it is asked, and hangs up.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent?,
        }
        let mut answering = Self {
            limits,
            until: None,
            signs_left: limits.signs,
        };
        answering.extend();
        Ok(answering)
    }

    /// Gives the daemon the whole time for an answer again.
    fn extend(&mut self) {
        self.until = self.limits.answer.map(|limit| Instant::now() + limit);
    }

    /// Waits for a line that is not empty.
    fn next_line(&mut self, lines: &mut Lines, departure: &Departure) -> io::Result<Vec<u8>> {
        let limits = self.limits;
        loop {
            let line_until = limits.line.map(|limit| Instant::now() + limit);
            let earliest = [line_until, self.until].into_iter().flatten().min();
            let line = lines.next(limits.bytes, earliest, || departure.is_under_way())?;
            if !line.trim_ascii().is_empty() {
                return Ok(line);
            }
            self.signs_left = self.signs_left.checked_sub(1).ok_or_else(|| {
                lines.refuse();
                let what = format!("it sent more than {} empty lines", limits.signs);
                io::Error::new(io::ErrorKind::InvalidData, what)
            })?;
        }
    }
}

/// Reads an answer. The parser itself bounds how deep values lie in one another, at 128.
///
/// # Errors
///
/// If it has too many values, or makes no sense.
pub(crate) fn parse(line: &[u8]) -> io::Result<Answer> {
    if count_values(line) > MOST_VALUES {
        let what = format!("it sent an answer of more than {MOST_VALUES} values");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(serde_json::from_slice(line)?)
}

/// Counts what separates or opens values in a text of JSON, outside of its strings.
fn count_values(text: &[u8]) -> usize {
    let mut count = 0;
    let (mut in_string, mut is_escaped) = (false, false);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}
