//! Requests over HTTP, byte by byte, and the answers to them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::PATIENCE;

/// The field that names a host which every server here answers for.
pub(crate) const HOST: &str = "Host: localhost\r\n";

/// Sends a request, and returns all that comes back.
pub(crate) fn send(address: SocketAddr, request: &str) -> io::Result<String> {
    let mut client = TcpStream::connect(address)?;
    client.set_read_timeout(Some(PATIENCE))?;
    client.write_all(request.as_bytes())?;
    let mut answer = String::new();
    client.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Sends a request with a first line and fields, and returns its answer.
#[track_caller]
pub(crate) fn ask(address: SocketAddr, line: &str, fields: &str) -> String {
    send(address, &format!("{line}\r\n{fields}\r\n")).expect("there is an answer")
}

/// The same. Fails unless the answer has a status.
#[track_caller]
pub(crate) fn ask_for_status(
    address: SocketAddr,
    line: &str,
    fields: &str,
    status: &str,
) -> String {
    let answer = ask(address, line, fields);
    assert!(
        answer.starts_with(&format!("HTTP/1.1 {status} ")),
        "{line} {fields}: {answer}"
    );
    answer
}

/// Returns the body at a path. None if it is refused, for example because the house is full.
pub(crate) fn get(address: SocketAddr, path: &str) -> Option<String> {
    let request = format!("GET {path} HTTP/1.1\r\n{HOST}\r\n");
    let answer = send(address, &request).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200 OK\r\n")
        .then(|| body.to_owned())
}

/// Returns the value of a series on a page of metrics. `None` if it is not there.
pub(crate) fn value(page: &str, series: &str) -> Option<f64> {
    let mut lines = page.lines();
    let found = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found.map(|it| it.parse().expect("it is a number"))
}
