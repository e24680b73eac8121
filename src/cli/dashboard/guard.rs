//! The judgement of requests: which are answered at all.
//!
//! A page of another site may have a browser send requests here. It cannot read the answers, because none of them allows
//! that, and no request changes anything. Another site could have its name point here (DNS rebinding). So the host
//! must be an address at which the request came, a name of the loopback, or a name that was given.

use std::net::IpAddr;

use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderMap, ORIGIN, TRANSFER_ENCODING};
use hyper::{Method, Uri};

use super::token::Token;
use crate::control::metrics::request::is_name_of;

/// The subject of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// The page.
    Page,
    /// The state of all volumes.
    State,
    /// The metrics of all volumes.
    Metrics,
}

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VisitRefusal {
    /// It has no host or several, or a body.
    Malformed,
    /// It has no token, or a wrong one.
    Unknown,
    /// It names another host, or comes from a page of another site.
    Foreign,
    /// It is for another path.
    OtherPath,
    /// It has another method.
    OtherMethod,
}

/// Judges requests.
#[derive(Debug)]
pub(super) struct Guard {
    token: Option<Token>,
    hosts: Vec<String>,
}

impl Guard {
    pub(super) fn new(token: Option<Token>, hosts: Vec<String>) -> Self {
        Self { token, hosts }
    }

    /// Judges a request that came at the address `local`.
    ///
    /// # Errors
    ///
    /// The reason to refuse it.
    pub(super) fn judge(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        local: IpAddr,
    ) -> Result<Shown, VisitRefusal> {
        let mut hosts = headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return Err(VisitRefusal::Malformed);
        };
        if !self.is_ours(host.as_bytes(), local) {
            return Err(VisitRefusal::Foreign);
        }
        let is_page = uri.path() == "/";
        if !comes_from_here(headers, host.as_bytes(), is_page) {
            return Err(VisitRefusal::Foreign);
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Err(VisitRefusal::OtherMethod);
        }
        // A request to a proxy has a scheme.
        if uri.authority().is_some() || uri.query().is_some() {
            return Err(VisitRefusal::OtherPath);
        }
        let shown = match uri.path() {
            "/" => Shown::Page,
            "/state" => Shown::State,
            "/metrics" => Shown::Metrics,
            _ => return Err(VisitRefusal::OtherPath),
        };
        let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
        if lengths.any(|len| len != "0") || headers.contains_key(TRANSFER_ENCODING) {
            return Err(VisitRefusal::Malformed);
        }
        if !self.is_known(headers) {
            return Err(VisitRefusal::Unknown);
        }
        Ok(shown)
    }

    fn is_ours(&self, host: &[u8], local: IpAddr) -> bool {
        let is_given = || {
            let text = std::str::from_utf8(host).unwrap_or_default();
            let name = match text.rsplit_once(':') {
                Some((name, port)) if port.parse::<u16>().is_ok() => name,
                _ => text,
            };
            self.hosts.iter().any(|it| it.eq_ignore_ascii_case(name))
        };
        is_name_of(host, local) || is_given()
    }

    fn is_known(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let mut given = headers.get_all(AUTHORIZATION).iter();
        match (given.next(), given.next()) {
            (Some(value), None) => token.is_in(value.as_bytes()),
            _ => false,
        }
    }
}

/// Returns whether a request comes from this site, or from no page at all, as far as its headers tell. A link of another
/// site may open the page itself.
fn comes_from_here(headers: &HeaderMap, host: &[u8], is_page: bool) -> bool {
    let is_own_origin = |origin: &[u8]| {
        let rest = origin.strip_prefix(b"http://");
        let rest = rest.or_else(|| origin.strip_prefix(b"https://"));
        rest == Some(host)
    };
    let mut origins = headers.get_all(ORIGIN).iter();
    if !origins.all(|origin| is_own_origin(origin.as_bytes())) {
        return false;
    }
    let is_opened = is_page
        && headers
            .get("sec-fetch-mode")
            .is_some_and(|it| it == "navigate")
        && headers
            .get("sec-fetch-dest")
            .is_some_and(|it| it == "document");
    let mut sites = headers.get_all("sec-fetch-site").iter();
    sites.all(|site| site == "same-origin" || site == "none" || is_opened)
}

/// Reads the name of a host.
pub(super) fn host_name(text: &str) -> Result<String, String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if text.is_empty() || text.len() > 253 || !text.bytes().all(is_part) {
        return Err("give the name of a host without a port: status.example.org".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use hyper::header::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            let name: HeaderName = name.parse().unwrap();
            map.append(name, HeaderValue::from_str(value).unwrap());
        }
        map
    }

    fn judge(guard: &Guard, target: &str, fields: &[(&str, &str)]) -> Result<Shown, VisitRefusal> {
        let uri: Uri = target.parse().unwrap();
        guard.judge(&Method::GET, &uri, &headers(fields), LOOPBACK)
    }

    fn open() -> Guard {
        Guard::new(None, vec!["status.example.org".to_owned()])
    }

    const HOST_HERE: (&str, &str) = ("host", "localhost:9433");

    #[test]
    fn three_paths_are_shown_and_no_others() {
        for (target, shown) in [
            ("/", Ok(Shown::Page)),
            ("/state", Ok(Shown::State)),
            ("/metrics", Ok(Shown::Metrics)),
            ("/state?x=1", Err(VisitRefusal::OtherPath)),
            ("/state/", Err(VisitRefusal::OtherPath)),
            ("/../state", Err(VisitRefusal::OtherPath)),
            ("/%2e", Err(VisitRefusal::OtherPath)),
            ("http://localhost/state", Err(VisitRefusal::OtherPath)),
            ("*", Err(VisitRefusal::OtherPath)),
        ] {
            assert_eq!(judge(&open(), target, &[HOST_HERE]), shown, "{target}");
        }
    }

    #[test]
    fn other_methods_and_bodies_are_refused() {
        let uri: Uri = "/".parse().unwrap();
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "X"] {
            let method: Method = method.parse().unwrap();
            let refused = open().judge(&method, &uri, &headers(&[HOST_HERE]), LOOPBACK);
            assert_eq!(refused, Err(VisitRefusal::OtherMethod), "{method}");
        }
        for field in [("content-length", "1"), ("transfer-encoding", "chunked")] {
            let refused = judge(&open(), "/", &[HOST_HERE, field]);
            assert_eq!(refused, Err(VisitRefusal::Malformed), "{field:?}");
        }
        let head = open().judge(&Method::HEAD, &uri, &headers(&[HOST_HERE]), LOOPBACK);
        assert_eq!(head, Ok(Shown::Page));
    }

    #[test]
    fn only_hosts_of_this_machine_and_given_names_are_answered() {
        for (host, is_ours) in [
            ("localhost", true),
            ("127.0.0.1:9433", true),
            ("[::1]:9433", true),
            ("Status.Example.Org", true),
            ("status.example.org:80", true),
            ("status.example.org:x", false),
            ("evil.example", false),
            ("status.example.org.evil.example", false),
            ("localhost.evil.example:9433", false),
            ("10.0.0.1", false),
            ("", false),
        ] {
            let answer = judge(&open(), "/state", &[("host", host)]);
            assert_eq!(answer.is_ok(), is_ours, "{host}");
        }
        let uri: Uri = "/".parse().unwrap();
        let at_other = |host| {
            let headers = headers(&[("host", host)]);
            open().judge(&Method::GET, &uri, &headers, OTHER)
        };
        assert!(at_other("10.0.0.1:9433").is_ok());
        assert_eq!(at_other("localhost"), Err(VisitRefusal::Foreign));
        for fields in [&[][..], &[HOST_HERE, HOST_HERE]] {
            assert_eq!(judge(&open(), "/", fields), Err(VisitRefusal::Malformed));
        }
    }

    #[test]
    fn pages_of_other_sites_get_nothing_but_may_link_to_the_page() {
        for (field, is_taken) in [
            (("origin", "http://localhost:9433"), true),
            (("origin", "http://localhost:1"), false),
            (("origin", "http://evil.example"), false),
            (("origin", "null"), false),
            (("sec-fetch-site", "same-origin"), true),
            (("sec-fetch-site", "none"), true),
            (("sec-fetch-site", "same-site"), false),
            (("sec-fetch-site", "cross-site"), false),
        ] {
            for target in ["/state", "/metrics", "/"] {
                let answer = judge(&open(), target, &[HOST_HERE, field]);
                assert_eq!(answer.is_ok(), is_taken, "{target} {field:?}");
            }
        }
        let link = [
            HOST_HERE,
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        assert_eq!(judge(&open(), "/", &link), Ok(Shown::Page));
        assert_eq!(judge(&open(), "/state", &link), Err(VisitRefusal::Foreign));
        let mut framed = link;
        framed[3].1 = "iframe";
        assert_eq!(judge(&open(), "/", &framed), Err(VisitRefusal::Foreign));
    }

    #[test]
    fn with_a_token_nothing_is_shown_without_it() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("token");
        std::fs::write(&path, "0123456789abcdef").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        let guard = Guard::new(Some(Token::read(&path).unwrap()), Vec::new());
        let right = ("authorization", "Bearer 0123456789abcdef");
        let wrong = ("authorization", "Bearer 0123456789abcdeg");
        for target in ["/", "/state", "/metrics"] {
            assert!(judge(&guard, target, &[HOST_HERE, right]).is_ok());
            for fields in [
                &[HOST_HERE][..],
                &[HOST_HERE, wrong],
                &[HOST_HERE, wrong, right],
            ] {
                assert_eq!(judge(&guard, target, fields), Err(VisitRefusal::Unknown));
            }
        }
    }

    proptest! {
        #[test]
        fn no_host_but_ours_passes_whatever_its_bytes(host in "[ -~]{0,40}", origin in "[ -~]{0,40}") {
            let value = HeaderValue::from_str(&host).unwrap();
            let mut map = HeaderMap::new();
            map.insert(HOST, value);
            let uri: Uri = "/state".parse().unwrap();
            if open().judge(&Method::GET, &uri, &map, LOOPBACK).is_ok() {
                let lower = host.to_ascii_lowercase();
                prop_assert!(
                    ["localhost", "127.", "[", "status.example.org"].iter().any(|it| lower.starts_with(it)),
                    "{host}"
                );
            }
            map.insert(HOST, HeaderValue::from_static("localhost"));
            map.insert(ORIGIN, HeaderValue::from_str(&origin).unwrap());
            if open().judge(&Method::GET, &uri, &map, LOOPBACK).is_ok() {
                prop_assert!(origin == "http://localhost" || origin == "https://localhost");
            }
        }
    }
}
