//! The socket on which the dashboard listens.
//!
//! The manager of services may hold it and pass it (`LISTEN_FDS`). Then the port is held while no dashboard runs, so no other
//! process can take it and be given the token.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::SocketType;
use rustix::net::sockopt::{socket_acceptconn, socket_type};

use crate::cli::failure::Failure;

/// The address of a dashboard that is given none.
pub(super) const USUAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9433);

/// Returns the socket that was passed, or one at the address that was given. The other may be missing.
///
/// # Errors
///
/// If the address cannot be listened at, or another one was passed.
pub(super) fn listener(given: Option<SocketAddr>) -> Result<(TcpListener, SocketAddr), Failure> {
    let passed = passed().map_err(|error| {
        Failure::usage(format!(
            "the manager of services does not pass the socket of a dashboard: {error}"
        ))
        .advise("give the socket unit one `ListenStream=` with an IP address and a port")
    })?;
    let Some((listener, bound)) = passed else {
        let address = given.unwrap_or(USUAL);
        return TcpListener::bind(address)
            .and_then(with_address)
            .map_err(|error| {
                Failure::environment(format!("cannot listen at {address}: {error}"))
                    .advise("give another address or port with `--listen`")
            });
    };
    match given.filter(|given| *given != bound) {
        Some(given) => Err(Failure::usage(format!(
            "the manager of services passes the socket {bound}, and `--listen` names {given}"
        ))
        .advise(
            "set `ListenStream=` with `systemctl edit cauchyfs-dashboard.socket`, without `--listen`",
        )),
        None => Ok((listener, bound)),
    }
}

fn with_address(listener: TcpListener) -> io::Result<(TcpListener, SocketAddr)> {
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

/// Returns the listener that was passed to this process, once.
fn passed() -> io::Result<Option<(TcpListener, SocketAddr)>> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    // This marks them as those of this process alone, and fails if one is not open.
    let mut passed = sd_notify::listen_fds()?;
    let Some(first) = passed.next() else {
        return Ok(None);
    };
    if passed.next().is_some() {
        return Err(io::Error::other("it passes several"));
    }
    if IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Err(io::Error::other("it was taken already"));
    }
    let socket = owned(first);
    if socket_type(&socket)? != SocketType::STREAM || !socket_acceptconn(&socket)? {
        return Err(io::Error::other("it passes one that does not listen"));
    }
    // One of another family has no such address.
    with_address(TcpListener::from(socket)).map(Some)
}

#[expect(
    unsafe_code,
    reason = "a passed descriptor is known by its number alone"
)]
fn owned(number: RawFd) -> OwnedFd {
    // SAFETY: `listen_fds` saw that the descriptor is open and was passed to this very process (`LISTEN_PID`). It was open
    // when the program began, so no value of it owns the number. `IS_TAKEN` has it owned once.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Returns the user whose process listens where `address` leads, or root for the manager of services. None if none does.
///
/// # Errors
///
/// If the kernel does not tell.
pub(super) fn holder(address: SocketAddr) -> io::Result<Option<u32>> {
    let read = |name: &str| match fs::read_to_string(format!("/proc/self/net/{name}")) {
        // A kernel without IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound && name == "tcp6" => {
            Ok(String::new())
        }
        read => read,
    };
    let table = read("tcp")? + &read("tcp6")?;
    let mut found: Vec<u32> = table
        .lines()
        .filter_map(listener_in)
        .filter(|(at, _)| leads_to(address, *at))
        .map(|(_, user)| user)
        .collect();
    // The one that is not root, if there are several.
    found.sort_unstable();
    Ok(found.pop())
}

/// Returns whether a connection to `address` may come to a socket that listens at `at`.
fn leads_to(address: SocketAddr, at: SocketAddr) -> bool {
    let ip = at.ip().to_canonical();
    address.port() == at.port() && (ip == address.ip().to_canonical() || ip.is_unspecified())
}

/// Reads a row of the table of TCP sockets: the address of one that listens, and its user.
fn listener_in(row: &str) -> Option<(SocketAddr, u32)> {
    const LISTENS: &str = "0A";
    let mut fields = row.split_whitespace().skip(1);
    let (ip, port) = fields.next()?.split_once(':')?;
    if fields.nth(1)? != LISTENS {
        return None;
    }
    let user = fields.nth(3)?.parse().ok()?;
    // Words of the machine whose bytes are those of the network.
    let words = ip.as_bytes().chunks(8).map(|word| {
        let word: [u8; 8] = word.try_into().ok()?;
        let word = u32::from_str_radix(std::str::from_utf8(&word).ok()?, 16).ok()?;
        Some(word.to_ne_bytes())
    });
    let words = words.collect::<Option<Vec<[u8; 4]>>>()?;
    let ip: IpAddr = match *words.as_flattened() {
        [a, b, c, d] => Ipv4Addr::new(a, b, c, d).into(),
        ref bytes => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into(),
    };
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((SocketAddr::new(ip, port), user))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel writes them on a machine with the low byte first.
    #[cfg(target_endian = "little")]
    #[test]
    fn rows_of_sockets_that_listen_are_read_and_others_are_not() {
        let row = |at: &str, state: &str| {
            format!(
                "   0: {at} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  1000        0 7 1 0"
            )
        };
        for (at, state, read) in [
            ("0100007F:24D9", "0A", Some("127.0.0.1:9433")),
            ("00000000:0050", "0A", Some("0.0.0.0:80")),
            (
                "00000000000000000000000001000000:24D9",
                "0A",
                Some("[::1]:9433"),
            ),
            ("0100007F:24D9", "01", None),
            ("0100007F", "0A", None),
            ("01007F:24D9", "0A", None),
            ("zz00007F:24D9", "0A", None),
            ("ä00007F:24D9", "0A", None),
        ] {
            let read: Option<SocketAddr> = read.map(|it| it.parse().unwrap());
            let found = listener_in(&row(at, state));
            assert_eq!(found, read.map(|at| (at, 1000)), "{at} {state}");
        }
        assert_eq!(listener_in("sl local_address rem_address st"), None);
        assert_eq!(listener_in(""), None);
    }

    #[test]
    fn the_user_of_a_listener_is_found_at_its_address_and_at_a_wildcard() {
        let own = rustix::process::geteuid().as_raw();
        for (bound, asked) in [("127.0.0.1:0", "127.0.0.1"), ("0.0.0.0:0", "127.0.0.1")] {
            let listener = TcpListener::bind(bound).unwrap();
            let port = listener.local_addr().unwrap().port();
            let asked = SocketAddr::new(asked.parse().unwrap(), port);
            assert_eq!(holder(asked).unwrap(), Some(own), "{bound}");
            let other = SocketAddr::new(Ipv4Addr::new(127, 0, 0, 9).into(), port);
            let at_other = holder(other).unwrap();
            assert_eq!(at_other.is_some(), bound.starts_with("0."), "{bound}");
            drop(listener);
            assert_eq!(holder(asked).unwrap(), None, "{bound}");
        }
    }
}
