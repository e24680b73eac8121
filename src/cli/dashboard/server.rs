//! The dashboard over HTTP.
//!
//! The stack is hyper on one thread: the parser and the timers are not ours. Each connection has one request and one
//! answer, and a limit on the time of each. Beyond [`MOST_AT_ONCE`], a new connection takes the place of the slowest.
//!
//! An answer serves all clients for a while, which is the longer the larger it is. So the answers that slow clients have not
//! taken yet are of few moments, and have a limit together.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue,
    REFERRER_POLICY, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use super::document::VolumesDocument;
use super::guard::{Guard, Shown, VisitRefusal};
use super::watch::Board;
use crate::control::metrics::crowd::{Client, Crowd, Stage};
use crate::control::metrics::families;
use crate::control::metrics::request::Format;

/// Connections that are served at once at most.
const MOST_AT_ONCE: usize = 64;

/// Scrapes of them at most. A scrape waits for daemons, and must not keep out the page.
const MOST_SCRAPES: usize = 8;

/// The time that a client may take for its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// The time of a whole connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);

/// The most bytes of a request, and those of an answer that wait for a slow reader beyond the answer itself.
const BUFFER_BYTES: usize = 16 << 10;

/// The most header fields of a request.
const MOST_HEADERS: usize = 64;

/// The pause after a connection could not be taken, for example for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The time for which a small document of the state serves all clients.
const STATE_GOOD_FOR: Duration = Duration::from_millis(250);

/// The time for which a small page of metrics serves all scrapes.
const METRICS_GOOD_FOR: Duration = Duration::from_secs(1);

/// The time by which an answer serves longer for each MiB that it has.
const GOOD_FOR_MIB: Duration = Duration::from_millis(500);

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

type Answer = Response<Full<Bytes>>;

/// Parts of all answers.
struct DashboardSite {
    board: Arc<Board>,
    guard: Guard,
    page: Bytes,
    policy: HeaderValue,
    state: Mutex<Option<Kept>>,
    /// A scrape that was cut off keeps its lock until its work is done. So at most one is under way for each format.
    metrics: [Arc<tokio::sync::Mutex<Option<Kept>>>; 2],
    /// The places of scrapes.
    scrapes: Semaphore,
}

/// An answer that serves for a while.
struct Kept {
    since: Instant,
    body: Bytes,
}

impl Kept {
    fn new(body: Bytes) -> Self {
        let since = Instant::now();
        Self { since, body }
    }

    /// Returns the answer if it serves still. A small one does for `good_for`.
    fn fresh(&self, good_for: Duration) -> Option<Bytes> {
        let mib = u32::try_from(self.body.len() >> 20).unwrap_or(u32::MAX);
        let good_for = good_for + GOOD_FOR_MIB.saturating_mul(mib);
        (self.since.elapsed() < good_for).then(|| self.body.clone())
    }
}

/// Serves until the listener fails.
///
/// # Errors
///
/// If the runtime cannot be made.
pub(super) fn serve(
    listeners: Vec<TcpListener>,
    board: Arc<Board>,
    guard: Guard,
) -> io::Result<()> {
    let site = Arc::new(DashboardSite::new(board, guard)?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        // Scrapes wait for daemons one after the other.
        .max_blocking_threads(4)
        .build()?;
    runtime.block_on(async {
        let crowd = Arc::new(Crowd::new(MOST_AT_ONCE));
        let mut accepting = tokio::task::JoinSet::new();
        for listener in listeners {
            listener.set_nonblocking(true)?;
            let listener = tokio::net::TcpListener::from_std(listener)?;
            accepting.spawn(accept_all(listener, Arc::clone(&site), Arc::clone(&crowd)));
        }
        // None of them ends.
        accepting.join_next().await.transpose()?;
        Ok(())
    })
}

async fn accept_all(
    listener: tokio::net::TcpListener,
    site: Arc<DashboardSite>,
    crowd: Arc<Crowd>,
) {
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                admit(client, &site, &crowd);
                // A connection that lost its place is closed before the next one is taken, however many wait.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                tracing::debug!("no connection for the dashboard: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Serves a connection, if there is a place for it. Otherwise it is closed by its drop.
fn admit(client: TcpStream, site: &Arc<DashboardSite>, crowd: &Arc<Crowd>) {
    let task = Arc::new(OnceLock::<AbortHandle>::new());
    let to_end = Arc::clone(&task);
    let end = move || {
        if let Some(task) = to_end.get() {
            task.abort();
        }
    };
    let Some(place) = crowd.admit(end) else {
        return;
    };
    let place = CrowdPlace {
        client: place,
        crowd: Arc::clone(crowd),
    };
    let serving = tokio::spawn(attend_to(client, Arc::clone(site), place));
    // It is set once, here.
    drop(task.set(serving.abort_handle()));
}

/// The place of a connection, which it leaves however it ends.
struct CrowdPlace {
    client: Arc<Client>,
    crowd: Arc<Crowd>,
}

impl Drop for CrowdPlace {
    fn drop(&mut self) {
        self.crowd.leave(&self.client);
    }
}

async fn attend_to(client: TcpStream, site: Arc<DashboardSite>, place: CrowdPlace) {
    let Ok(local) = client.local_addr() else {
        return;
    };
    let answering = service_fn(|request| {
        let (site, served) = (Arc::clone(&site), Arc::clone(&place.client));
        async move {
            served.enter(Stage::Working);
            let answer = site.answer(&request, local.ip()).await;
            served.enter(Stage::Answering);
            Ok::<_, Infallible>(answer)
        }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(BUFFER_BYTES)
        .max_headers(MOST_HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(client), answering);
    match tokio::time::timeout(CONNECTION_TIMEOUT, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::trace!("a request was cut off: {error}"),
        Err(_) => tracing::trace!("a client was too slow"),
    }
}

impl DashboardSite {
    fn new(board: Arc<Board>, guard: Guard) -> io::Result<Self> {
        let page = PAGE
            .replace("/*STYLE*/", STYLE)
            .replace("/*SCRIPT*/", SCRIPT);
        let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text));
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            hash(SCRIPT),
            hash(STYLE)
        );
        Ok(Self {
            board,
            guard,
            page: page.into(),
            policy: policy.parse().map_err(io::Error::other)?,
            state: Mutex::default(),
            metrics: Default::default(),
            scrapes: Semaphore::new(MOST_SCRAPES),
        })
    }

    async fn answer(&self, request: &Request<Incoming>, local: IpAddr) -> Answer {
        let headers = request.headers();
        let judged = self
            .guard
            .judge(request.method(), request.uri(), headers, local);
        let mut answer = match judged {
            Ok(Shown::Page) => text(
                StatusCode::OK,
                "text/html; charset=utf-8",
                self.page.clone(),
            ),
            Ok(Shown::State) => self.state(),
            Ok(Shown::Metrics) => self.metrics(headers).await,
            Err(refusal) => refused(refusal),
        };
        let fields = answer.headers_mut();
        fields.insert(CONTENT_SECURITY_POLICY, self.policy.clone());
        for (name, value) in [
            (CACHE_CONTROL, "no-store"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (X_FRAME_OPTIONS, "DENY"),
            (REFERRER_POLICY, "no-referrer"),
        ] {
            fields.insert(name, HeaderValue::from_static(value));
        }
        for (name, value) in [
            ("cross-origin-resource-policy", "same-origin"),
            ("cross-origin-opener-policy", "same-origin"),
        ] {
            fields.insert(name, HeaderValue::from_static(value));
        }
        answer
    }

    /// Returns the document of the state. All clients of one moment get the same.
    fn state(&self) -> Answer {
        let mut state = self.state.lock();
        if let Some(body) = state.as_ref().and_then(|it| it.fresh(STATE_GOOD_FOR)) {
            return text(StatusCode::OK, "application/json", body);
        }
        match serde_json::to_vec(&VolumesDocument::of(&self.board)).map(Bytes::from) {
            Ok(body) => {
                *state = Some(Kept::new(body.clone()));
                text(StatusCode::OK, "application/json", body)
            }
            Err(error) => {
                tracing::error!("the state of volumes cannot be written: {error}");
                refusal_text(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "The state cannot be written.",
                )
            }
        }
    }

    /// Returns the metrics. One scrape at a time asks for them, and those that wait get the same.
    async fn metrics(&self, headers: &HeaderMap) -> Answer {
        let Ok(_place) = self.scrapes.try_acquire() else {
            return busy();
        };
        let mut accepted = headers.get_all(ACCEPT).iter();
        let is_open = |it: &HeaderValue| {
            let text = String::from_utf8_lossy(it.as_bytes());
            text.contains("application/openmetrics-text")
        };
        let (format, kept) = if accepted.any(is_open) {
            (Format::OpenMetrics, &self.metrics[0])
        } else {
            (Format::Text, &self.metrics[1])
        };
        let mut kept = Arc::clone(kept).lock_owned().await;
        let found = kept.as_ref().and_then(|it| it.fresh(METRICS_GOOD_FOR));
        if let Some(page) = found {
            return text(StatusCode::OK, format.content_type(), page);
        }
        let board = Arc::clone(&self.board);
        // The work has the lock: if this scrape is cut off, the next one waits for the same work.
        let asked = tokio::task::spawn_blocking(move || {
            let page = Bytes::from(families::page(board.metrics(), format)?);
            *kept = Some(Kept::new(page.clone()));
            Ok::<_, std::fmt::Error>(page)
        });
        if let Ok(Ok(page)) = asked.await {
            return text(StatusCode::OK, format.content_type(), page);
        }
        tracing::error!("metrics cannot be written");
        refusal_text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "The metrics cannot be written.",
        )
    }
}

fn text(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

fn refusal_text(status: StatusCode, sentence: &'static str) -> Answer {
    let body = Bytes::from_static(sentence.as_bytes());
    text(status, "text/plain; charset=utf-8", body)
}

/// Answers a scrape for which there is no place.
fn busy() -> Answer {
    let sentence = "Too many scrapes wait for metrics.\n";
    let mut answer = refusal_text(StatusCode::SERVICE_UNAVAILABLE, sentence);
    let later = HeaderValue::from_static("5");
    answer.headers_mut().insert(RETRY_AFTER, later);
    answer
}

fn refused(refusal: VisitRefusal) -> Answer {
    let (status, sentence) = match refusal {
        VisitRefusal::Malformed => (StatusCode::BAD_REQUEST, "The request is malformed.\n"),
        VisitRefusal::Unknown => (
            StatusCode::UNAUTHORIZED,
            "Give the token as the password of any user.\n",
        ),
        VisitRefusal::Foreign => (
            StatusCode::FORBIDDEN,
            "The request is for another host, or comes from another site.\n",
        ),
        VisitRefusal::OtherPath => (
            StatusCode::NOT_FOUND,
            "The page is at /, and the metrics are at /metrics.\n",
        ),
        VisitRefusal::OtherMethod => (
            StatusCode::METHOD_NOT_ALLOWED,
            "Only GET and HEAD are answered.\n",
        ),
    };
    let mut answer = refusal_text(status, sentence);
    let fields = answer.headers_mut();
    if refusal == VisitRefusal::OtherMethod {
        fields.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    if refusal == VisitRefusal::Unknown {
        let asked = HeaderValue::from_static("Basic realm=\"CauchyFS\", charset=\"UTF-8\"");
        fields.insert(WWW_AUTHENTICATE, asked);
    }
    answer
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn scrapes_beyond_a_few_are_sent_away_while_others_wait() {
        let board = Board::start().unwrap();
        let site = DashboardSite::new(board, Guard::new(None, Vec::new())).unwrap();
        let headers = HeaderMap::new();
        // The scrape that asks daemons has this lock.
        let asking = site.metrics[1].try_lock().unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting: Vec<_> = (0..MOST_SCRAPES)
            .map(|_| Box::pin(site.metrics(&headers)))
            .collect();
        for scrape in &mut waiting {
            assert!(scrape.as_mut().poll(&mut context).is_pending());
        }
        let Poll::Ready(answer) = Box::pin(site.metrics(&headers)).as_mut().poll(&mut context)
        else {
            panic!("it waits, too");
        };
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(answer.headers().contains_key(RETRY_AFTER));
        // A scrape that is cut off gives its place to another.
        waiting.pop();
        let mut next = Box::pin(site.metrics(&headers));
        assert!(next.as_mut().poll(&mut context).is_pending());
        drop(asking);
    }
}
