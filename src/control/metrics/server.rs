//! The listener for metrics: a thread that takes connections, and one for each of a few.
//!
//! Each connection has one request and one answer, and a limit on the time of each. Beyond [`MOST_AT_ONCE`], a new connection
//! takes the place of the slowest ([`super::crowd`]). So neither many connections nor slow ones take memory or threads from
//! the volume, and slow ones keep out no other.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::crowd::{Client, Crowd, Stage};
use super::request::{Format, HttpRefusal, MAX_BYTES, judge};

/// Connections that are served at once at most.
const MOST_AT_ONCE: usize = 16;

/// The time that a client may take for its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The time that a client may take to read its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The time for which a client that was refused may go on to send.
const LINGER: Duration = Duration::from_millis(200);

/// The pause after a connection could not be taken, for example for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The stack of a thread that serves a connection.
const STACK_BYTES: usize = 256 << 10;

/// Writes the page of metrics. None if there are no numbers now.
pub(super) type Page = Arc<dyn Fn(Format) -> Option<String> + Send + Sync>;

/// A listener that is served.
pub(super) struct Server {
    listener: Arc<TcpListener>,
    has_ended: Arc<AtomicBool>,
}

impl Server {
    /// Serves a listener.
    ///
    /// # Errors
    ///
    /// If the system has no thread left to give.
    pub(super) fn start(listener: TcpListener, page: Page) -> io::Result<Self> {
        Self::start_with(listener, page, ANSWER_TIMEOUT)
    }

    fn start_with(listener: TcpListener, page: Page, answer_timeout: Duration) -> io::Result<Self> {
        let listener = Arc::new(listener);
        let has_ended = Arc::new(AtomicBool::new(false));
        let served = Self {
            listener: Arc::clone(&listener),
            has_ended: Arc::clone(&has_ended),
        };
        std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || accept_all(&listener, &has_ended, &page, answer_timeout))?;
        Ok(served)
    }

    /// Takes no more connections.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        // Wakes the thread, which waits for a connection.
        if let Err(error) = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both) {
            tracing::debug!("the listener for metrics still waits: {error}");
        }
    }
}

fn accept_all(
    listener: &TcpListener,
    has_ended: &AtomicBool,
    page: &Page,
    answer_timeout: Duration,
) {
    let crowd = Arc::new(Crowd::new(MOST_AT_ONCE));
    while !has_ended.load(Ordering::Acquire) {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!("no connection for metrics: {error}");
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        let stream = Arc::new(stream);
        let ended = Arc::clone(&stream);
        let end = move || {
            // Ends what its thread waits for.
            if let Err(error) = ended.shutdown(Shutdown::Both) {
                tracing::trace!("a slow scrape has ended by itself: {error}");
            }
        };
        // A connection without a place is closed by its drop.
        let Some(client) = crowd.admit(end) else {
            continue;
        };
        let (page, served, at) = (Arc::clone(page), Arc::clone(&client), Arc::clone(&crowd));
        let thread = std::thread::Builder::new()
            .name("scrape".to_owned())
            .stack_size(STACK_BYTES);
        let serving = thread.spawn(move || {
            if let Err(error) = serve(&stream, &served, &page, answer_timeout) {
                tracing::trace!("a scrape was cut off: {error}");
            }
            at.leave(&served);
        });
        if let Err(error) = serving {
            tracing::debug!("no thread for a scrape: {error}");
            crowd.leave(&client);
        }
    }
}

/// Reads a request and answers it.
fn serve(
    client: &TcpStream,
    served: &Client,
    page: &Page,
    answer_timeout: Duration,
) -> io::Result<()> {
    let local = client.local_addr()?.ip();
    let request = receive(client, local)?;
    served.enter(Stage::Working);
    let (status, format, body) = match request {
        Ok(format) => match page(format) {
            Some(text) => ("200 OK", format, text),
            None => ("503 Service Unavailable", Format::Text, String::new()),
        },
        Err(refusal) => (refusal.status(), Format::Text, String::new()),
    };
    let kind = format.content_type();
    let allowed = if status == HttpRefusal::OtherMethod.status() {
        "Allow: GET\r\n"
    } else {
        ""
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allowed}Cache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        body.len()
    );
    served.enter(Stage::Answering);
    let until = Instant::now() + answer_timeout;
    send(client, head.as_bytes(), until)?;
    send(client, body.as_bytes(), until)?;
    client.shutdown(Shutdown::Write)?;
    linger(client)
}

/// Reads until a request is complete or refused.
fn receive(mut client: &TcpStream, local: IpAddr) -> io::Result<Result<Format, HttpRefusal>> {
    let until = Instant::now() + REQUEST_TIMEOUT;
    let mut bytes = [0; MAX_BYTES];
    let mut len = 0;
    loop {
        client.set_read_timeout(Some(time_until(until)?))?;
        match client.read(&mut bytes[len..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => len += more,
        }
        match judge(&bytes[..len], local) {
            Ok(None) => {}
            Ok(Some(format)) => return Ok(Ok(format)),
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
}

fn send(mut client: &TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        client.set_write_timeout(Some(time_until(until)?))?;
        match client.write(bytes)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            sent => bytes = &bytes[sent..],
        }
    }
    Ok(())
}

/// Reads what a client still sends, for a moment: to close a connection with unread bytes may take the answer back.
fn linger(mut client: &TcpStream) -> io::Result<()> {
    let until = Instant::now() + LINGER;
    let mut rest = [0; 1024];
    loop {
        client.set_read_timeout(Some(time_until(until)?))?;
        if client.read(&mut rest)? == 0 {
            return Ok(());
        }
    }
}

/// Returns the time that is left, which is never zero.
fn time_until(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(left.max(Duration::from_millis(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn start(text: &str) -> (Server, std::net::SocketAddr) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let text = text.to_owned();
        let page: Page = Arc::new(move |_| Some(text.clone()));
        // No test depends on the speed of this machine.
        let server = Server::start_with(listener, page, PATIENCE).unwrap();
        (server, address)
    }

    fn ask(address: std::net::SocketAddr) -> io::Result<String> {
        let mut client = TcpStream::connect(address)?;
        client.set_read_timeout(Some(PATIENCE))?;
        client.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut text = String::new();
        client.read_to_string(&mut text)?;
        Ok(text)
    }

    fn ask_until_answered(address: std::net::SocketAddr) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            match ask(address) {
                Ok(text) if !text.is_empty() => return text,
                other => assert!(Instant::now() < until, "{other:?}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn silent_clients_and_those_that_read_nothing_are_cut_off_and_others_are_served_meanwhile() {
        // More than the buffers of a connection take.
        let (server, address) = start(&"x".repeat(16 << 20));
        let mut slow = Vec::new();
        for number in 0..100 {
            let mut client = TcpStream::connect(address).unwrap();
            if number % 2 == 0 {
                // Those beyond the limit may be closed already.
                let _ = client.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
            }
            slow.push(client);
        }
        let answer = ask_until_answered(address);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"));
        assert!(answer.len() > 16 << 20);
        for client in &mut slow {
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut buffer = vec![0; 1 << 20];
            while matches!(client.read(&mut buffer), Ok(len) if len > 0) {}
        }
        server.end();
    }

    #[test]
    fn a_listener_that_ended_takes_no_connection() {
        let (server, address) = start("x");
        assert!(ask(address).unwrap().ends_with("\r\n\r\nx"));
        server.end();
        assert!(ask(address).is_err());
    }
}
