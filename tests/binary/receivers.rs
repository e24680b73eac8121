//! Deliveries to real receivers: servers with certificates, mail programs, and those that are not to be trusted.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::alerts::{Port, Site};
use crate::support::{CAUCHYFS, eventually, run, said, text};

/// Sends one alert to every receiver, and trusts the certificates of `trusted` if it is given.
fn test_alerts(site: &Site, trusted: Option<&PathBuf>) -> (Vec<Value>, Output) {
    let mut command = Command::new(CAUCHYFS);
    command.args(["alerts", "test", "--json", "--config", text(&site.config)]);
    if let Some(trusted) = trusted {
        command.env("SSL_CERT_FILE", trusted);
    }
    let output = command.output().expect("the program is there");
    let rows = serde_json::from_slice(&output.stdout).expect("it is JSON");
    (rows, output)
}

/// Makes a certificate for this machine that it signed itself. Returns the paths of the certificate and of its key.
fn certificate(site: &Site) -> (PathBuf, PathBuf) {
    let paths = ["certificate.pem", "key.pem"].map(|name| site.home.path().join(name));
    let [certificate, key] = &paths;
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
                 -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE";
    let mut arguments: Vec<&str> = words.split_whitespace().collect();
    arguments.extend(["-out", text(certificate), "-keyout", text(key)]);
    let made = run("openssl", &arguments);
    assert!(made.status.success(), "{}", said(&made));
    let [certificate, key] = paths;
    (certificate, key)
}

/// A server of a test, written in Python.
struct Server(Child);

impl Server {
    fn start(program: &str, arguments: &[&str]) -> Self {
        let child = Command::new("/usr/bin/python3")
            .args(["-c", program])
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .expect("there is Python");
        Self(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().expect("this machine can do it");
        self.0.wait().expect("this machine can do it");
    }
}

const HTTPS: &str = "
import http.server, ssl, sys
class Keep(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        with open(sys.argv[4], 'ab') as out:
            out.write(self.rfile.read(int(self.headers['Content-Length'])))
        self.send_response(204)
        self.end_headers()
server = http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Keep)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2], sys.argv[3])
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
";

#[test]
fn a_server_must_prove_itself_with_a_certificate_that_this_system_trusts() {
    let site = Site::new();
    let (certificate, key) = certificate(&site);
    let held = Port::take();
    let port = held.number.to_string();
    let got = site.home.path().join("https");
    let _server = Server::start(HTTPS, &[&port, text(&certificate), text(&key), text(&got)]);
    site.add(&format!(
        "name = \"hook\"\nkind = \"webhook\"\nurl = \"https://localhost:{port}/a\""
    ));
    eventually("the server is there", || {
        std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_ok()
    });
    let (rows, _) = test_alerts(&site, None);
    assert_eq!(rows[0]["result"], "failed", "{rows:?}");
    let reason = rows[0]["reason"].as_str().expect("there is one");
    assert!(reason.to_lowercase().contains("certificate"), "{reason}");
    assert!(!got.exists());
    let (rows, output) = test_alerts(&site, Some(&certificate));
    assert_eq!(rows[0]["result"], "delivered", "{rows:?}");
    assert_eq!(output.status.code(), Some(0));
    let body: Value =
        serde_json::from_slice(&fs::read(got).expect("it was kept")).expect("it is JSON");
    assert_eq!(body["kind"], "test");
}

const STARTTLS: &str = "
import ssl, sys, time
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult
class Keep:
    async def handle_DATA(self, server, session, envelope):
        with open(sys.argv[4], 'ab') as out:
            out.write(b'User ' + session.auth_data.login + b'\\n' + envelope.content)
        return '250 kept'
def authenticate(server, session, envelope, mechanism, data):
    is_right = data.login == b'fs' and data.password == b'a secret' and session.ssl is not None
    return AuthResult(success=is_right, handled=False, auth_data=data)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2], sys.argv[3])
Controller(Keep(), hostname='127.0.0.1', port=int(sys.argv[1]), tls_context=context, require_starttls=True,
    auth_required=True, authenticator=authenticate).start()
time.sleep(600)
";

#[test]
fn mail_goes_encrypted_to_a_server_that_demands_a_login() {
    let site = Site::new();
    let (certificate, key) = certificate(&site);
    let held = Port::take();
    let port = held.number.to_string();
    let got = site.home.path().join("mails");
    let arguments = [&port, text(&certificate), text(&key), text(&got)];
    let _server = Server::start(STARTTLS, &arguments);
    for (name, password) in [("right", "a secret"), ("wrong", "another")] {
        site.add(&format!(
            "name = \"{name}\"\nkind = \"mail\"\nfrom = \"fs@example.org\"\nto = [\"{name}@example.org\"]\n\
             smtp = \"localhost:{port}\"\ntls = \"starttls\"\nuser = \"fs\"\npassword = \"{password}\""
        ));
    }
    eventually("the server is there", || {
        std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_ok()
    });
    let (rows, _) = test_alerts(&site, None);
    assert!(rows.iter().all(|row| row["result"] == "failed"), "{rows:?}");
    assert!(!got.exists(), "its certificate is not trusted");
    let (rows, output) = test_alerts(&site, Some(&certificate));
    assert_eq!(rows[0]["result"], "delivered", "{rows:?}");
    assert_eq!(rows[1]["result"], "failed", "{rows:?}");
    assert!(!said(&output).contains("another"), "no password is shown");
    let mail = fs::read_to_string(got).expect("it was kept");
    assert!(mail.starts_with("User fs\n"), "{mail}");
    assert!(
        mail.contains("right@example.org") && mail.contains("Subject: "),
        "{mail}"
    );
    assert_eq!(mail.matches("Message-ID: ").count(), 1, "{mail}");
}

/// A server that sends a byte from time to time keeps each step within its limit, and never ends.
#[test]
fn a_delivery_of_mail_has_one_limit_of_time_for_all_its_steps() {
    let site = Site::new();
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("this machine can do it");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.expect("a client comes");
            // Its end is an error.
            while client.write_all(b"2").is_ok() {
                thread::sleep(Duration::from_millis(200));
            }
        }
    });
    site.add(&format!(
        "name = \"slow\"\nkind = \"mail\"\nfrom = \"fs@example.org\"\nto = [\"a@example.org\"]\n\
         smtp = \"127.0.0.1:{port}\"\ntimeout-seconds = 2"
    ));
    let (rows, _) = test_alerts(&site, None);
    let reason = rows[0]["reason"].as_str().expect("it failed");
    let expected = format!("127.0.0.1:{port}: it took more than 2 s, and was killed");
    assert_eq!(reason, expected);
}

#[test]
fn a_mail_program_gets_the_message_and_the_addresses() {
    let site = Site::new();
    let got = site.home.path().join("mail");
    let program = site.home.path().join("sendmail");
    let shown = text(&got);
    fs::write(
        &program,
        format!("#!/bin/sh\n{{ echo \"$@\"; cat; }} > '{shown}'\n"),
    )
    .expect("this machine can do it");
    let executable = || fs::Permissions::from_mode(0o755);
    fs::set_permissions(&program, executable()).expect("this machine can do it");
    site.add(&format!(
        "name = \"mail\"\nkind = \"mail\"\nfrom = \"fs@example.org\"\nto = [\"a@example.org\", \"b@example.org\"]\n\
         sendmail = \"{}\"",
        text(&program)
    ));
    let (rows, _) = test_alerts(&site, None);
    assert_eq!(rows[0]["result"], "delivered", "{rows:?}");
    let mail = fs::read_to_string(&got).expect("it was kept");
    let first = "-i -f fs@example.org -- a@example.org b@example.org\n";
    assert!(mail.starts_with(first), "{mail}");
    assert!(mail.contains("\nSubject: "), "{mail}");
}

/// The program is its owner's alone, and anybody could put another one in its place.
#[test]
fn a_program_in_a_directory_that_others_can_write_is_refused_by_name() {
    let site = Site::new();
    let open = site.home.path().join("open");
    let inner = open.join("inner");
    fs::create_dir_all(&inner).expect("this machine can do it");
    let (program, got) = (inner.join("program"), site.home.path().join("ran"));
    fs::write(&program, format!("#!/bin/sh\ntouch '{}'\n", text(&got)))
        .expect("this machine can do it");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
        .expect("this machine can do it");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("this machine can do it");
    site.add(&format!(
        "name = \"script\"\nkind = \"program\"\ncommand = [\"{}\"]",
        text(&program)
    ));
    let check = || {
        run(
            CAUCHYFS,
            &["alerts", "check", "--config", text(&site.config)],
        )
    };
    let checked = check();
    assert_eq!(checked.status.code(), Some(3), "{}", said(&checked));
    let expected = format!(
        "command: {}: {} lies on its path, and other users can write it",
        text(&program),
        text(&open)
    );
    assert!(said(&checked).contains(&expected), "{}", said(&checked));
    let (rows, output) = test_alerts(&site, None);
    assert_eq!((rows.len(), output.status.code()), (0, Some(3)));
    assert!(!got.exists(), "it did not run");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).expect("this machine can do it");
    assert_eq!(check().status.code(), Some(0));
}
