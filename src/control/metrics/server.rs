//! The listener for metrics: a thread that takes connections, and one for each of a few.
//!
//! Each connection has one request and one answer, and a limit on the time of each. Connections beyond [`MOST_AT_ONCE`] are
//! closed at once, so neither many connections nor slow ones take memory or threads from the volume.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::request::{Format, MAX_BYTES, Refusal, judge};

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
        let listener = Arc::new(listener);
        let has_ended = Arc::new(AtomicBool::new(false));
        let served = Self {
            listener: Arc::clone(&listener),
            has_ended: Arc::clone(&has_ended),
        };
        std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || accept_all(&listener, &has_ended, &page))?;
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

/// A place among the connections that are served at once, until it is dropped.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(busy: &Arc<AtomicUsize>) -> Option<Self> {
        let before = busy.fetch_add(1, Ordering::Relaxed);
        let place = Self(Arc::clone(busy));
        (before < MOST_AT_ONCE).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn accept_all(listener: &TcpListener, has_ended: &AtomicBool, page: &Page) {
    let busy = Arc::new(AtomicUsize::new(0));
    while !has_ended.load(Ordering::Acquire) {
        let (client, place) = match listener.accept() {
            Ok((client, _)) => (client, Place::take(&busy)),
            Err(error) => {
                tracing::debug!("no connection for metrics: {error}");
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        // A client without a place is closed by the drop of its connection.
        let Some(place) = place else { continue };
        let page = Arc::clone(page);
        let thread = std::thread::Builder::new()
            .name("scrape".to_owned())
            .stack_size(STACK_BYTES);
        let serving = thread.spawn(move || {
            if let Err(error) = serve(&client, &page) {
                tracing::trace!("a scrape was cut off: {error}");
            }
            drop(place);
        });
        if let Err(error) = serving {
            tracing::debug!("no thread for a scrape: {error}");
        }
    }
}

/// Reads a request and answers it.
fn serve(client: &TcpStream, page: &Page) -> io::Result<()> {
    let local = client.local_addr()?.ip();
    let (status, format, body) = match receive(client, local)? {
        Ok(format) => match page(format) {
            Some(text) => ("200 OK", format, text),
            None => ("503 Service Unavailable", Format::Text, String::new()),
        },
        Err(refusal) => (refusal.status(), Format::Text, String::new()),
    };
    let kind = format.content_type();
    let allowed = if status == Refusal::OtherMethod.status() {
        "Allow: GET\r\n"
    } else {
        ""
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allowed}Cache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let until = Instant::now() + ANSWER_TIMEOUT;
    send(client, head.as_bytes(), until)?;
    send(client, body.as_bytes(), until)?;
    client.shutdown(Shutdown::Write)?;
    linger(client)
}

/// Reads until a request is complete or refused.
fn receive(mut client: &TcpStream, local: IpAddr) -> io::Result<Result<Format, Refusal>> {
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
        let server = Server::start(listener, Arc::new(move |_| Some(text.clone()))).unwrap();
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
    fn silent_clients_and_those_that_read_nothing_are_cut_off_and_others_are_served_again() {
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
