//! A port that the manager of services holds, whether a dashboard runs or not.

use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

use super::*;

/// Returns a command that becomes a dashboard and is passed two sockets, as systemd does.
fn passing_both(first: OwnedFd, second: OwnedFd) -> Command {
    let script = "LISTEN_PID=$$ LISTEN_FDS=2 exec \"$@\" 3<&0 4<&2 </dev/null 2>/dev/null";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh", CAUCHYFS, "dashboard"])
        .stdin(first)
        .stderr(second);
    command
}

/// Returns a command that becomes a dashboard and is passed a socket `count` times, as systemd does.
fn passing(socket: OwnedFd, count: u8, options: &[&str]) -> Command {
    let script = format!("LISTEN_PID=$$ LISTEN_FDS={count} exec \"$@\" 3<&0 4<&0 </dev/null");
    let mut command = Command::new("sh");
    command
        .args(["-c", &script, "sh", CAUCHYFS, "dashboard"])
        .args(options)
        .stdin(socket);
    command
}

fn listen(address: &str) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(address).expect("this machine can do it");
    let address = listener.local_addr().expect("it is bound");
    (listener, address)
}

fn copy_of(listener: &TcpListener) -> OwnedFd {
    listener.try_clone().expect("there are descriptors").into()
}

#[test]
fn a_port_that_is_held_is_served_again_after_a_crash_and_no_other_process_gets_it() {
    let (held, address) = listen("127.0.0.1:0");
    let at = address.to_string();
    let start = || Dashboard::start_command(&mut passing(copy_of(&held), 1, &[]));
    let mut dashboard = start();
    assert_eq!(dashboard.address, address);
    dashboard.get("/state");
    dashboard.child.kill().expect("it runs");
    dashboard.child.wait().expect("it was killed");
    let other = run(CAUCHYFS, &["dashboard", "--listen", &at]);
    assert_eq!(other.status.code(), Some(2), "{}", said(&other));
    let refused = format!("cannot listen at {at}");
    assert!(said(&other).contains(&refused), "{}", said(&other));
    let mut client = TcpStream::connect(address).expect("it is held");
    client
        .set_read_timeout(Some(PATIENCE))
        .expect("it takes a time");
    write!(client, "{GET}\r\n{HOST}\r\n").expect("it is held");
    let again = start();
    let mut answer = String::new();
    client
        .read_to_string(&mut answer)
        .expect("there is an answer");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    drop(again);
    // The same address may be given, too.
    let mut same = passing(copy_of(&held), 1, &["--listen", &at]);
    Dashboard::start_command(&mut same).get("/state");
    // Another one is not heeded.
    let mut other = passing(copy_of(&held), 1, &["--listen", "1"]);
    let dashboard = Dashboard::start_command(&mut other);
    assert_eq!(dashboard.address, address);
    dashboard.get("/state");
}

#[test]
fn all_sockets_that_are_passed_are_served() {
    let [(first, one), (second, other)] = ["127.0.0.1:0", "127.0.0.2:0"].map(listen);
    let mut both = passing_both(copy_of(&first), copy_of(&second));
    let dashboard = Dashboard::start_command(&mut both);
    assert_eq!(dashboard.address, one);
    dashboard.get("/state");
    let at_other = http::ask(other, GET, HOST);
    assert!(at_other.starts_with("HTTP/1.1 200 "), "{at_other}");
}

#[test]
fn a_socket_that_is_none_of_a_dashboard_is_refused() {
    let (held, _) = listen("127.0.0.1:0");
    let (open, _) = listen("0.0.0.0:0");
    let home = tempfile::tempdir().expect("there is room");
    let local = UnixListener::bind(home.path().join("s")).expect("this machine can do it");
    let datagrams = UdpSocket::bind("127.0.0.1:0").expect("this machine can do it");
    let refused = |socket: OwnedFd, count: u8, options: &[&str], reason: &str| {
        let output = passing(socket, count, options).output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(reason), "{}", said(&output));
    };
    let both = passing_both(copy_of(&held), copy_of(&open)).output();
    assert_eq!(both.expect("it runs").status.code(), Some(1));
    refused(copy_of(&open), 1, &[], "--token-file FILE");
    refused(datagrams.into(), 1, &[], "does not listen");
    refused(local.into(), 1, &[], "ListenStream=");
}
