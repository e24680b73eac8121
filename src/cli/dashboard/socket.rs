//! The socket on which the dashboard listens.
//!
//! The manager of services may hold it and pass it (`LISTEN_FDS`). Then the port is held while no dashboard runs, so no other
//! process can take it and be given the token.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::net::SocketType;
use rustix::net::sockopt::{socket_acceptconn, socket_type};

use crate::cli::failure::Failure;

/// The address of a dashboard that is given none.
pub(super) const USUAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9433);

/// The time that a listener of this machine may take to let a connection in.
const PATIENCE: Duration = Duration::from_secs(2);

/// A socket that listens, and its address.
type Bound = (TcpListener, SocketAddr);

/// Returns the sockets that were passed, or one at the address that was given. There is at least one. Sockets that were
/// passed serve whatever address is given: a service that failed for good would be started again and again.
///
/// # Errors
///
/// If the address cannot be listened at, or something else was passed.
pub(super) fn listeners(given: Option<SocketAddr>) -> Result<Vec<Bound>, Failure> {
    let passed = passed().map_err(|error| {
        Failure::usage(format!(
            "the manager of services does not pass the socket of a dashboard: {error}"
        ))
        .advise("give the socket unit a `ListenStream=` with an IP address and a port")
    })?;
    if !passed.is_empty() {
        return Ok(passed);
    }
    let address = given.unwrap_or(USUAL);
    let bound = TcpListener::bind(address)
        .and_then(with_address)
        .map_err(|error| {
            Failure::environment(format!("cannot listen at {address}: {error}"))
                .advise("give another address or port with `--listen`")
        })?;
    Ok(vec![bound])
}

fn with_address(listener: TcpListener) -> io::Result<Bound> {
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

/// Returns the listeners that were passed to this process.
fn passed() -> io::Result<Vec<Bound>> {
    // This marks them as those of this process alone, and fails if one is not open.
    sd_notify::listen_fds()?.map(listener_of).collect()
}

fn listener_of(number: RawFd) -> io::Result<Bound> {
    let socket = copy_of(number)?;
    if socket_type(&socket)? != SocketType::STREAM || !socket_acceptconn(&socket)? {
        return Err(io::Error::other("it passes one that does not listen"));
    }
    // One of another family has no such address.
    with_address(TcpListener::from(socket))
}

/// Returns a copy of a descriptor. The original stays open: no value owns it, unless the number is not that of a socket that
/// was passed.
#[expect(
    unsafe_code,
    reason = "a passed descriptor is known by its number alone"
)]
fn copy_of(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: `listen_fds` saw that the descriptor is open. It is borrowed for this one call and never closed, so whatever
    // owns the number goes on to own it.
    let passed = unsafe { BorrowedFd::borrow_raw(number) };
    passed.try_clone_to_owned()
}

/// Returns the users whose processes listen where `address` leads, with root for the manager of services. Each takes some of
/// the connections if several share the address.
///
/// # Errors
///
/// If the kernel does not tell.
pub(super) fn holders(address: SocketAddr) -> io::Result<Vec<u32>> {
    let read = |name: &str| match fs::read_to_string(format!("/proc/self/net/{name}")) {
        // A kernel without IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound && name == "tcp6" => {
            Ok(String::new())
        }
        read => read,
    };
    let table = read("tcp")? + &read("tcp6")?;
    let found = nearest(table.lines().filter_map(listener_in), address);
    let Some((way, users)) = found else {
        return Ok(Vec::new());
    };
    // The table does not tell which wildcards of IPv6 take no connection of IPv4.
    if way == Route::OtherFamily {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(Vec::new()),
            connected => drop(connected?),
        }
    }
    Ok(users)
}

/// Returns the best route to `address`, and the users of all listeners on it. None if none is on any.
fn nearest(
    listeners: impl Iterator<Item = (SocketAddr, u32)>,
    address: SocketAddr,
) -> Option<(Route, Vec<u32>)> {
    let mut ways: BTreeMap<Route, Vec<u32>> = BTreeMap::new();
    for (at, user) in listeners {
        if let Some(way) = route(address, at) {
            ways.entry(way).or_default().push(user);
        }
    }
    ways.pop_last()
}

/// How a connection comes to a socket that listens. The kernel takes the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Route {
    /// It listens at all addresses of IPv6, and perhaps of IPv4.
    OtherFamily,
    /// It listens at all addresses of the family.
    Wildcard,
    Exact,
}

/// Returns how a connection to `address` comes to a socket that listens at `at`, if it does.
fn route(address: SocketAddr, at: SocketAddr) -> Option<Route> {
    let (to, ip) = (address.ip().to_canonical(), at.ip().to_canonical());
    if address.port() != at.port() {
        return None;
    }
    if ip == to {
        return Some(Route::Exact);
    }
    match (ip.is_unspecified(), ip.is_ipv6(), to.is_ipv6()) {
        (true, false, false) | (true, true, true) => Some(Route::Wildcard),
        (true, true, false) => Some(Route::OtherFamily),
        _ => None,
    }
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
    fn a_connection_goes_to_the_nearest_listener_of_its_family() {
        let ways = |address: &str| {
            let address: SocketAddr = address.parse().unwrap();
            [
                "127.0.0.1:1",
                "[::1]:1",
                "0.0.0.0:1",
                "[::ffff:0.0.0.0]:1",
                "[::]:1",
                "127.0.0.1:2",
            ]
            .map(|at| route(address, at.parse().unwrap()))
        };
        let (exact, wildcard, other) = (
            Some(Route::Exact),
            Some(Route::Wildcard),
            Some(Route::OtherFamily),
        );
        let of_four = [exact, None, wildcard, wildcard, other, None];
        assert_eq!(ways("127.0.0.1:1"), of_four);
        assert_eq!(ways("[::ffff:127.0.0.1]:1"), of_four);
        assert_eq!(ways("[::1]:1"), [None, exact, None, None, wildcard, None]);
        assert!(exact > wildcard && wildcard > other);
    }

    #[test]
    fn all_users_on_the_best_route_are_found_and_no_others() {
        let listeners = [
            ("0.0.0.0:1", 1),
            ("127.0.0.1:1", 1000),
            ("127.0.0.1:1", 0),
            ("127.0.0.1:2", 3),
            ("127.0.0.1:1", 1001),
        ];
        let found = |address: &str| {
            let listeners = listeners.map(|(at, user)| (at.parse().unwrap(), user));
            nearest(listeners.into_iter(), address.parse().unwrap())
        };
        let exact = Some((Route::Exact, vec![1000, 0, 1001]));
        assert_eq!(found("127.0.0.1:1"), exact);
        assert_eq!(found("127.0.0.2:1"), Some((Route::Wildcard, vec![1])));
        assert_eq!(found("127.0.0.2:2"), None);
    }

    #[test]
    fn a_wildcard_of_ipv6_alone_is_no_listener_of_ipv4() {
        use rustix::net::sockopt::set_ipv6_v6only;
        use rustix::net::{AddressFamily, bind, listen, socket};

        for (is_alone, own) in [
            (true, vec![]),
            (false, vec![rustix::process::geteuid().as_raw()]),
        ] {
            let Ok(all) = socket(AddressFamily::INET6, SocketType::STREAM, None) else {
                // This kernel has no IPv6, so no such listener either.
                return;
            };
            set_ipv6_v6only(&all, is_alone).unwrap();
            bind(&all, &SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0)).unwrap();
            listen(&all, 1).unwrap();
            let all = TcpListener::from(all);
            let port = all.local_addr().unwrap().port();
            let asked = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
            assert_eq!(holders(asked).unwrap(), own, "alone: {is_alone}");
        }
    }

    #[test]
    fn the_user_of_a_listener_is_found_at_its_address_and_at_a_wildcard() {
        let own = rustix::process::geteuid().as_raw();
        for (bound, asked) in [("127.0.0.1:0", "127.0.0.1"), ("0.0.0.0:0", "127.0.0.1")] {
            let listener = TcpListener::bind(bound).unwrap();
            let port = listener.local_addr().unwrap().port();
            let asked = SocketAddr::new(asked.parse().unwrap(), port);
            assert_eq!(holders(asked).unwrap(), [own], "{bound}");
            let other = SocketAddr::new(Ipv4Addr::new(127, 0, 0, 9).into(), port);
            let at_other = holders(other).unwrap();
            assert_eq!(!at_other.is_empty(), bound.starts_with("0."), "{bound}");
            drop(listener);
            assert!(holders(asked).unwrap().is_empty(), "{bound}");
        }
    }
}
