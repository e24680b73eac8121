//! `cauchyfs dashboard`: a page about all mounted volumes, and their metrics.
//!
//! It is a process apart from all daemons. `watch` asks each of these over its control socket, on threads of their own, and
//! remembers the answers. `document` puts them into sentences and numbers. `server` shows them over HTTP to those whom
//! `guard` lets pass. The page has no way to change anything.
//!
//! # Invariants
//!
//! - A daemon that hangs delays the display of no other volume, because threads of its own ask it. No request over HTTP
//!   waits for a daemon longer than [`watch::METRICS_PATIENCE`].
//! - All that grows has a limit: volumes, events, history, connections, requests, and the time of each.
//! - Texts of daemons are escaped before they get into the document, and the page shows them as text.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::Args;
use sd_notify::NotifyState;

use super::failure::{Failure, Outcome};
use super::shell::quoted_path;
use super::terminal;

mod activity;
mod commands;
mod document;
mod guard;
mod history;
mod known;
mod progress;
mod room;
mod server;
mod socket;
mod token;
mod watch;

use guard::Guard;
use token::Token;
use watch::Board;

/// Serve a page with all mounted volumes: their state, members, redundancy, throughput, background work, lost files and
/// events, and what to do next. It is updated live, and it changes nothing. `/metrics` has the metrics of all volumes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cauchyfs dashboard
  cauchyfs dashboard --listen 9500
  cauchyfs dashboard --listen 192.0.2.1:9433 \\
      --token-file /etc/cauchyfs/dashboard.token
  sudo cauchyfs dashboard --url

Root sees all volumes of the machine, and any other user its own. Members of the group cauchyfs see those that root \
mounted, too.

Every user of this machine can reach the loopback. With --token-file, every request must have the token: as the \
password of any user name, for which a browser asks, or as `Authorization: Bearer TOKEN`. It has at least 16 \
characters, for example those of `openssl rand -hex 16`. The file is one that other users cannot read. The token \
passes the network as it is: beyond this machine, put a proxy with HTTPS before the dashboard, or use a tunnel such as \
`ssh -L 9433:127.0.0.1:9433 HOST`.

cauchyfs-dashboard.service has a token, which it makes at its first start in /var/lib/cauchyfs-dashboard/token. `sudo \
cauchyfs dashboard --url` prints the address to open, token included. If the unit has another address or another file, \
give --listen and --token-file there, too. Paste the address into a browser. As an argument of a command, it can be \
read by every user of the machine. It is printed only if root or systemd has the port. With --token-file, the owner of \
that file, and the user who asks, may have it, too. The port is looked for in the network namespace of this command: for a \
dashboard in a container or on another machine, print the token with `cat`.

cauchyfs-dashboard.socket holds the port of 127.0.0.1 and of ::1 from boot on, whether the service runs or not: another \
process at the port would be given the token. `systemctl edit cauchyfs-dashboard.socket` sets another address. Before you stop that unit, stop \
all scrapes. To renew the token, remove the file and restart the service.

A scrape gives the token, too: `authorization: {credentials_file: /etc/prometheus/cauchyfs.token}` in the configuration \
of Prometheus. Prometheus cannot read the file of the service, so give it a copy, and again after a renewal: \
`sudo install -o prometheus -m 400 /var/lib/cauchyfs-dashboard/token /etc/prometheus/cauchyfs.token`.

Metrics are in the OpenMetrics format, or in that of Prometheus. Every series has the labels `volume` and `mountpoint`.")]
pub(super) struct DashboardArguments {
    /// Listen at this address, and at 127.0.0.1:9433 if none is given. A port alone is one of 127.0.0.1. Any address
    /// beyond the loopback needs --token-file. Sockets that systemd passes serve instead.
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    listen: Option<SocketAddr>,
    /// Answer only requests with the token in this file.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Make the file of --token-file with a new token, if there is none yet.
    #[arg(long, requires = "token_file")]
    make_token: bool,
    /// Print the address of a dashboard that runs, token included, and end. It is that of --listen, with the token of
    /// --token-file. Without that option it is the token of cauchyfs-dashboard.service, which root can read.
    #[arg(long, conflicts_with_all = ["make_token", "hosts"])]
    url: bool,
    /// Answer requests to this host name, too, such as the one of a proxy. Without it the host is an address, or
    /// localhost. Can be given several times.
    #[arg(long = "host", value_name = "NAME", value_parser = guard::host_name)]
    hosts: Vec<String>,
}

/// Serves until it is ended.
///
/// # Errors
///
/// If the address cannot be listened at, or needs a token.
pub(super) fn run(arguments: &DashboardArguments) -> Result<Outcome, Failure> {
    let file = arguments.token_file.as_deref();
    if arguments.url {
        let address = arguments.listen.unwrap_or(socket::USUAL);
        return print_url(address, file);
    }
    if let Some(file) = file.filter(|_| arguments.make_token) {
        token::make(file)?;
    }
    let token = file.map(Token::read).transpose()?;
    let is_open_to_others = |address: SocketAddr| {
        let is_loopback = address.ip().to_canonical().is_loopback();
        token.is_none() && !is_loopback
    };
    if let Some(given) = arguments.listen.filter(|given| is_open_to_others(*given)) {
        return Err(needs_token(given));
    }
    let (listeners, bound): (Vec<_>, Vec<_>) =
        socket::listeners(arguments.listen)?.into_iter().unzip();
    if let Some(open) = bound.iter().find(|bound| is_open_to_others(**bound)) {
        return Err(needs_token(*open));
    }
    let board = Board::start().map_err(|error| {
        Failure::environment(format!("cannot start to look at volumes: {error}"))
    })?;
    let has_token = token.is_some();
    let guard = Guard::new(token, arguments.hosts.clone());
    tell_where(&bound, arguments.listen);
    if !has_token {
        terminal::line(
            "every user of this machine can open it; `--token-file FILE` lets in those with a token alone",
        );
    }
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        tracing::debug!("the manager of services is not told: {error}");
    }
    let served = server::serve(listeners, board, guard);
    Err(Failure::environment(format!(
        "cannot go on to serve: {}",
        served
            .err()
            .map_or_else(|| "it has ended".to_owned(), |error| error.to_string())
    )))
}

/// Says where the dashboard is, and that `given` is not heeded if it is not there.
fn tell_where(bound: &[SocketAddr], given: Option<SocketAddr>) {
    for bound in bound {
        terminal::line(format_args!(
            "the dashboard is at http://{}/",
            opened_at(*bound)
        ));
    }
    if bound.iter().any(|bound| bound.ip().is_unspecified()) {
        terminal::line("it is at every other address of this machine, too");
    }
    // Port 0 becomes one that is free.
    let is_there = |given: SocketAddr| bound.contains(&given) || given.port() == 0;
    if let Some(given) = given.filter(|given| !is_there(*given)) {
        terminal::line(format_args!(
            "`--listen {given}` has no effect, because the manager of services passes a socket; \
             `systemctl edit cauchyfs-dashboard.socket` sets its address"
        ));
    }
}

fn needs_token(address: SocketAddr) -> Failure {
    Failure::usage(format!(
        "{} is an address that others may reach, and there is no token",
        address.ip()
    ))
    .advise("give a file with a token: `--token-file FILE`; or an address of the loopback")
}

/// The token of `cauchyfs-dashboard.service`.
const SERVICE_TOKEN: &str = "/var/lib/cauchyfs-dashboard/token";

/// Prints the address of the page with a token, which browsers take from there. Only processes of root and the manager of
/// services may hold the address. With a file, those of its owner and of the user who asks may, too. A browser gives the token
/// to any process that listens there.
fn print_url(address: SocketAddr, file: Option<&Path>) -> Result<Outcome, Failure> {
    let (token, owner) = match file {
        Some(file) => token::text_in(file)?,
        None => service_token()?,
    };
    let holders = socket::holders(opened_at(address)).map_err(|error| {
        Failure::environment(format!(
            "cannot tell which process listens at {address}: {error}"
        ))
    })?;
    if holders.is_empty() {
        let advice = file.map_or_else(
            || format!("start the service: {START_SERVICE}"),
            |file| {
                let place = quoted_path(file);
                format!(
                    "start the dashboard, or give its address with `--listen`; \
                     if it runs in a container or on another machine, `cat {place}` prints the token"
                )
            },
        );
        return Err(
            Failure::environment(format!("no process listens at {address}")).advise(advice),
        );
    }
    let own = rustix::process::geteuid().as_raw();
    let may_hold = |user: u32| user == 0 || file.is_some() && (user == owner || user == own);
    if let Some(user) = holders.into_iter().find(|user| !may_hold(*user)) {
        let advice = file.map_or_else(
            || "end that process, then `systemctl restart cauchyfs-dashboard.socket`".to_owned(),
            |file| {
                let place = quoted_path(file);
                format!("if the dashboard runs as that user, `cat {place}` prints the token")
            },
        );
        return Err(Failure::environment(format!(
            "a process of user {user} listens at {address}, and would be given the token"
        ))
        .advise(advice));
    }
    terminal::line(format_args!(
        "http://cauchyfs:{}@{}/",
        percent_encoded(&token),
        opened_at(address)
    ));
    Ok(Outcome::Done)
}

/// The command that starts the service.
const START_SERVICE: &str = "`systemctl enable --now cauchyfs-dashboard`";

/// Returns the token of the service, and the owner of its file.
fn service_token() -> Result<(String, u32), Failure> {
    let file = Path::new(SERVICE_TOKEN);
    token::text_in(file).map_err(|failure| {
        // If the service never ran, there is no directory for the token either.
        match file.try_exists() {
            Ok(false) => failure.advise(format!("the service makes it: {START_SERVICE}")),
            _ => failure,
        }
    })
}

/// Returns an address at which a browser on this machine reaches a listener: one of the loopback if it listens at all.
fn opened_at(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        ip if !ip.is_unspecified() => return bound,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, bound.port())
}

/// Returns a text of ASCII as it stands in an address as the name or password of a user.
fn percent_encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encoded = text.bytes().map(|byte| {
        if is_plain(byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    encoded.collect()
}

/// Reads the address of a listener: a port of the loopback, or an address with a port. Names are not looked up.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix(':').unwrap_or(text);
    match port.parse::<u16>() {
        Ok(port) => Ok((Ipv4Addr::LOCALHOST, port).into()),
        Err(_) => text.parse().map_err(|_| {
            "give a port, or an IP address with a port: 9433, 127.0.0.1:9433, [::1]:9433".to_owned()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_printed_can_be_opened() {
        for (bound, opened) in [
            ("0.0.0.0:9433", "127.0.0.1:9433"),
            ("[::]:9433", "[::1]:9433"),
            ("192.0.2.1:80", "192.0.2.1:80"),
            ("127.0.0.1:1", "127.0.0.1:1"),
        ] {
            let bound: SocketAddr = bound.parse().unwrap();
            assert_eq!(opened_at(bound).to_string(), opened);
        }
    }

    #[test]
    fn a_token_in_an_address_ends_neither_the_token_nor_the_host() {
        assert_eq!(percent_encoded("aZ09-._~"), "aZ09-._~");
        assert_eq!(percent_encoded("a@b/c:d?e#f%"), "a%40b%2Fc%3Ad%3Fe%23f%25");
    }
}
