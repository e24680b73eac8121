//! The one HTTP request that is answered: `GET /metrics`.
//!
//! A page in a browser may send requests to addresses of this machine. It cannot leave out the header `Origin` where another
//! site would read the answer, and its own site has a name. So a request with an origin is refused, and only the
//! local address is taken as its host, or a name of the loopback there. A name made to point here (DNS rebinding) is none.

use std::net::IpAddr;

/// The most bytes of a request.
pub(crate) const MAX_BYTES: usize = 8 << 10;

/// The most header fields of a request.
const MAX_HEADERS: usize = 64;

/// A format of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// `OpenMetrics` 1.0.
    OpenMetrics,
    /// The text format of Prometheus, version 0.0.4.
    Text,
}

impl Format {
    /// Returns its name in the header `Content-Type`.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpRefusal {
    /// It is no request of HTTP/1, or has a body.
    Malformed,
    /// It has too many bytes or header fields.
    TooLarge,
    /// It has an origin, or names a host that this is not.
    Foreign,
    /// It is for another path.
    OtherPath,
    /// It has another method.
    OtherMethod,
}

impl HttpRefusal {
    /// Returns the status of the answer.
    pub(crate) fn status(self) -> &'static str {
        match self {
            Self::Malformed => "400 Bad Request",
            Self::TooLarge => "431 Request Header Fields Too Large",
            Self::Foreign => "403 Forbidden",
            Self::OtherPath => "404 Not Found",
            Self::OtherMethod => "405 Method Not Allowed",
        }
    }
}

/// Judges the bytes of a request that came so far. Returns the format of the answer, or none if more bytes are to come.
/// `local` is the address that it was sent to.
///
/// # Errors
///
/// The reason to refuse it.
pub(crate) fn judge(bytes: &[u8], local: IpAddr) -> Result<Option<Format>, HttpRefusal> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < MAX_BYTES => return Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err(HttpRefusal::TooLarge);
        }
        Err(_) => return Err(HttpRefusal::Malformed),
    }
    let named = |name: &str| {
        let fields = request.headers.iter();
        fields
            .filter(|it| it.name.eq_ignore_ascii_case(name))
            .map(|it| it.value)
            .collect::<Vec<_>>()
    };
    if !named("origin").is_empty() {
        return Err(HttpRefusal::Foreign);
    }
    match named("host")[..] {
        [host] if !is_name_of(host, local) => return Err(HttpRefusal::Foreign),
        [_] => {}
        _ => return Err(HttpRefusal::Malformed),
    }
    if request.method != Some("GET") {
        return Err(HttpRefusal::OtherMethod);
    }
    if request.path != Some("/metrics") {
        return Err(HttpRefusal::OtherPath);
    }
    let has_body = named("content-length").iter().any(|len| *len != b"0")
        || !named("transfer-encoding").is_empty();
    if has_body {
        return Err(HttpRefusal::Malformed);
    }
    let accepted = named("accept");
    let mut accepted = accepted.iter().map(|it| String::from_utf8_lossy(it));
    let wants_open = accepted.any(|it| it.contains("application/openmetrics-text"));
    Ok(Some(if wants_open {
        Format::OpenMetrics
    } else {
        Format::Text
    }))
}

/// Returns whether the value of a header `Host` is a local address: for the loopback `localhost`, or any address of it, too.
/// It may have a port.
pub(crate) fn is_name_of(host: &[u8], local: IpAddr) -> bool {
    let local = local.to_canonical();
    let Ok(host) = std::str::from_utf8(host) else {
        return false;
    };
    let (name, port) = match host.rsplit_once(':') {
        // The last colon of a bare address of IPv6 is in brackets.
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return false;
    }
    let bare = name.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    local.is_loopback() && name.eq_ignore_ascii_case("localhost")
        || bare.unwrap_or(name).parse().is_ok_and(|it: IpAddr| {
            let is_ours = it == local || local.is_loopback() && it.is_loopback();
            is_ours && it.is_ipv6() == bare.is_some()
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with(line: &str, fields: &[&str]) -> Vec<u8> {
        let lines = [&[line], fields, &["", ""]].concat();
        lines.join("\r\n").into_bytes()
    }

    const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    const LINE: &str = "GET /metrics HTTP/1.1";

    #[test]
    fn metrics_are_given_in_the_format_that_is_asked_for() {
        let plain = with(LINE, &["Host: localhost:9464"]);
        assert_eq!(judge(&plain, LOOPBACK), Ok(Some(Format::Text)));
        let accept = "accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        let open = with(LINE, &["Host: localhost:9464", accept]);
        assert_eq!(judge(&open, LOOPBACK), Ok(Some(Format::OpenMetrics)));
    }

    #[test]
    fn a_loopback_listener_takes_names_of_the_loopback_alone_and_no_listener_an_origin() {
        for (host, is_ours) in [
            ("localhost", true),
            ("LocalHost:1", true),
            ("127.0.0.1:9464", true),
            ("127.8.9.1", true),
            ("[::1]:9464", true),
            ("[::1]", true),
            ("::1", false),
            ("[127.0.0.1]", false),
            ("evil.example:9464", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("10.0.0.1:9464", false),
            ("localhost:x", false),
            ("localhost:99999", false),
            ("", false),
        ] {
            let request = with(LINE, &[&format!("Host: {host}")]);
            let expected = if is_ours {
                Ok(Some(Format::Text))
            } else {
                Err(HttpRefusal::Foreign)
            };
            assert_eq!(judge(&request, LOOPBACK), expected, "{host}");
            let is_other = judge(&request, OTHER) == Ok(Some(Format::Text));
            assert_eq!(is_other, host == "10.0.0.1:9464", "{host}");
            let from_page = with(LINE, &[&format!("Host: {host}"), "Origin: null"]);
            for local in [LOOPBACK, OTHER] {
                assert_eq!(
                    judge(&from_page, local),
                    Err(HttpRefusal::Foreign),
                    "{host}"
                );
            }
        }
    }

    #[test]
    fn other_requests_are_refused_each_for_its_reason() {
        let host = "Host: localhost";
        for (line, refusal) in [
            ("POST /metrics HTTP/1.1", HttpRefusal::OtherMethod),
            ("HEAD /metrics HTTP/1.1", HttpRefusal::OtherMethod),
            ("OPTIONS /metrics HTTP/1.1", HttpRefusal::OtherMethod),
            ("GET / HTTP/1.1", HttpRefusal::OtherPath),
            ("GET /metrics/ HTTP/1.1", HttpRefusal::OtherPath),
            ("GET /metrics?a=1 HTTP/1.1", HttpRefusal::OtherPath),
            (
                "GET http://localhost/metrics HTTP/1.1",
                HttpRefusal::OtherPath,
            ),
            ("GET /metrics HTTP/2.0", HttpRefusal::Malformed),
            ("GET", HttpRefusal::Malformed),
        ] {
            assert_eq!(
                judge(&with(line, &[host]), LOOPBACK),
                Err(refusal),
                "{line}"
            );
        }
        for fields in [
            &[][..],
            &[host, host],
            &[host, "Content-Length: 1"],
            &[host, "Content-Length: 0", "Content-Length: 7"],
            &[host, "Transfer-Encoding: chunked"],
        ] {
            let refused = judge(&with(LINE, fields), LOOPBACK);
            assert_eq!(refused, Err(HttpRefusal::Malformed), "{fields:?}");
        }
        let many = vec![host; MAX_HEADERS + 1];
        assert_eq!(
            judge(&with(LINE, &many), LOOPBACK),
            Err(HttpRefusal::TooLarge)
        );
        let long = format!("{LINE}\r\nA: {}", "a".repeat(MAX_BYTES));
        assert_eq!(judge(long.as_bytes(), LOOPBACK), Err(HttpRefusal::TooLarge));
    }

    #[test]
    fn a_request_is_judged_once_its_last_byte_is_there() {
        let whole = with(LINE, &["Host: [::1]:9464", "User-Agent: x"]);
        for len in 0..whole.len() {
            assert_eq!(judge(&whole[..len], LOOPBACK), Ok(None), "{len}");
        }
        assert_eq!(judge(&whole, LOOPBACK), Ok(Some(Format::Text)));
    }

    proptest! {
        /// Nothing but a request with a host of the loopback and without an origin gets an answer, whatever the bytes.
        #[test]
        fn any_bytes_are_judged_without_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..512),
            cut in 0usize..64,
            is_loopback in any::<bool>(),
        ) {
            let local = if is_loopback { LOOPBACK } else { OTHER };
            let _ = judge(&bytes, local);
            let mut mixed = with(LINE, &["Host: localhost", "Origin: http://x"]);
            let at = cut.min(mixed.len());
            mixed.splice(at..at, bytes);
            if let Ok(Some(_)) = judge(&mixed, local) {
                let text = String::from_utf8_lossy(&mixed);
                prop_assert!(!text.ends_with("\r\nOrigin: http://x\r\n\r\n") || at < mixed.len());
            }
        }
    }
}
