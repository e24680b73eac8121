//! Alerts of a mounted volume: to programs, webhooks and mailboxes, also those that are away at first.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use hmac::{Hmac, KeyInit, Mac};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sha2::Sha256;

use crate::support::{CAUCHYFS, Shape, TestVolume, eventually, run, said, skip_mounts, text};

const SECRET: &str = "a key of the test";

/// A directory with a configuration, the state, and what a program received.
pub(crate) struct Site {
    pub(crate) home: tempfile::TempDir,
    pub(crate) config: PathBuf,
}

impl Site {
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().expect("there is room");
        let config = home.path().join("alerts.toml");
        fs::create_dir(home.path().join("got")).expect("this machine can do it");
        let state = home.path().join("state");
        fs::write(
            &config,
            format!("state-directory = \"{}\"\n", state.display()),
        )
        .expect("this machine can do it");
        // It has secrets.
        fs::set_permissions(&config, fs::Permissions::from_mode(0o600))
            .expect("this machine can do it");
        Self { home, config }
    }

    pub(crate) fn add(&self, receiver: &str) {
        let before = fs::read_to_string(&self.config).expect("this machine can do it");
        fs::write(&self.config, format!("{before}[[receiver]]\n{receiver}\n"))
            .expect("this machine can do it");
    }

    /// Adds a program that keeps every document in a file of its own.
    fn add_program(&self) {
        let got = self.home.path().join("got");
        let got = got.display();
        let script = format!("cat > '{got}'/new.$$ && mv '{got}'/new.$$ '{got}'/$$.json");
        let command = format!("command = [\"/bin/sh\", \"-c\", {script:?}]");
        self.add(&format!(
            "name = \"program\"\nkind = \"program\"\n{command}"
        ));
    }

    fn add_webhook(&self, port: u16) {
        self.add(&format!(
            "name = \"hook\"\nkind = \"webhook\"\nurl = \"http://127.0.0.1:{port}/a\"\nsecret = \"{SECRET}\""
        ));
    }

    /// Returns what the program got.
    fn documents(&self) -> Vec<Value> {
        let files = fs::read_dir(self.home.path().join("got")).expect("this machine can do it");
        let files = files.map(|file| file.expect("the directory can be read").path());
        let mut whole: Vec<PathBuf> = files
            .filter(|path| path.extension().is_some_and(|it| it == "json"))
            .collect();
        whole.sort_by_key(|path| {
            fs::metadata(path)
                .expect("this machine can do it")
                .modified()
                .expect("this machine can do it")
        });
        whole
            .iter()
            .map(|path| json(&fs::read(path).expect("this machine can do it")))
            .collect()
    }

    /// Returns the notices that wait for a receiver by the state file.
    fn waiting(&self, receiver: &str) -> Vec<Value> {
        let waiting = &self.state()["mailboxes"][receiver]["waiting"];
        waiting.as_array().cloned().unwrap_or_default()
    }

    /// Returns whether events about a subject are held back from the program by the state file.
    fn is_holding(&self, subject: &str) -> bool {
        self.state()["mailboxes"]["program"]["held"][subject].is_object()
    }

    /// Returns what the state file has, or nothing.
    fn state(&self) -> Value {
        let Ok(files) = fs::read_dir(self.home.path().join("state")) else {
            return Value::Null;
        };
        let mut files = files.map(|file| file.expect("the directory can be read").path());
        let file = files.find(|path| path.extension().is_some_and(|it| it == "json"));
        file.map_or(Value::Null, |file| {
            json(&fs::read(file).expect("this machine can do it"))
        })
    }

    #[track_caller]
    fn mount(&self, volume: &TestVolume, members: &[usize]) {
        let output = volume.try_mount(members, &["--alerts", text(&self.config)]);
        let is_mounted = matches!(output.status.code(), Some(0 | 3));
        assert!(is_mounted, "{output:?}\n{}", volume.log());
    }
}

const ALL: [usize; 6] = [0, 1, 2, 3, 4, 5];

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("it is JSON")
}

/// A port that nothing listens on, until a server of this test does. No other program gets it meanwhile.
pub(crate) struct Port {
    pub(crate) number: u16,
    /// Two sockets that both ask for reuse may have one port, if only one listens.
    _held: OwnedFd,
}

impl Port {
    pub(crate) fn take() -> Self {
        use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};
        let held =
            socket(AddressFamily::INET, SocketType::STREAM, None).expect("this machine can do it");
        sockopt::set_socket_reuseaddr(&held, true).expect("this machine can do it");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        bind(&held, &address).expect("this machine can do it");
        let address = getsockname(&held).expect("this machine can do it");
        let address = SocketAddr::try_from(address).expect("it is of the internet");
        Self {
            number: address.port(),
            _held: held,
        }
    }
}

/// Requests with their signatures, as an HTTP server got them.
type Requests = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// Starts an HTTP server. The first request fails with code 503, and all others succeed.
fn serve(port: u16) -> Requests {
    let requests = Requests::default();
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("this machine can do it");
    let kept = Arc::clone(&requests);
    thread::spawn(move || {
        let mut is_first = true;
        for stream in listener.incoming() {
            let stream = stream.expect("a client comes");
            let mut reader = BufReader::new(stream.try_clone().expect("this machine can do it"));
            let (mut len, mut signature) = (0, String::new());
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).expect("this machine can do it");
                let line = line.trim();
                let Some((name, value)) = line.split_once(": ") else {
                    if line.is_empty() {
                        break;
                    }
                    continue;
                };
                match name.to_ascii_lowercase().as_str() {
                    "content-length" => len = value.parse().expect("it is a number"),
                    "x-cauchyfs-signature" => value.clone_into(&mut signature),
                    _ => {}
                }
            }
            let mut body = vec![0; len];
            reader
                .read_exact(&mut body)
                .expect("this machine can do it");
            let status = if is_first { "503 Wait" } else { "204 Done" };
            if !is_first {
                kept.lock()
                    .expect("no thread panicked")
                    .push((signature, body));
            }
            is_first = false;
            let answer =
                format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            (&stream)
                .write_all(answer.as_bytes())
                .expect("this machine can do it");
        }
    });
    requests
}

#[track_caller]
fn assert_signed((signature, body): &(String, Vec<u8>)) {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).expect("this machine can do it");
    mac.update(body);
    let bytes = mac.finalize().into_bytes();
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let hex = hex.concat();
    assert_eq!(*signature, format!("sha256={hex}"));
}

/// A mail server, which writes each mail to a file.
struct MailServer(Child);

impl MailServer {
    fn start(port: u16, into: &Path) -> Self {
        const PROGRAM: &str = "
import sys, time
from aiosmtpd.controller import Controller
class Keep:
    async def handle_DATA(self, server, session, envelope):
        with open(sys.argv[2], 'ab') as out:
            out.write(b'To ' + ','.join(envelope.rcpt_tos).encode() + b'\\n' + envelope.content + b'\\n')
        return '250 kept'
Controller(Keep(), hostname='127.0.0.1', port=int(sys.argv[1])).start()
time.sleep(600)
";
        let child = Command::new("/usr/bin/python3")
            .args(["-c", PROGRAM, &port.to_string(), text(into)])
            .stdin(Stdio::null())
            .spawn()
            .expect("there is Python");
        Self(child)
    }
}

impl Drop for MailServer {
    fn drop(&mut self) {
        self.0.kill().expect("this machine can do it");
        self.0.wait().expect("this machine can do it");
    }
}

fn names(document: &Value) -> Vec<&str> {
    let events = document["events"].as_array().expect("it is a list");
    events
        .iter()
        .map(|it| it["event"].as_str().expect("it is a text"))
        .collect()
}

fn write_some(volume: &TestVolume) {
    let path = volume.path("f");
    fs::write(&path, vec![7; 3 << 20]).expect("this machine can do it");
    fs::File::open(path)
        .expect("this machine can do it")
        .sync_all()
        .expect("this machine can do it");
}

/// Returns the process of this name whose parent is `parent`.
fn child_of(parent: Pid, name: &str) -> Option<Pid> {
    let parent = parent.as_raw_nonzero().to_string();
    let all = fs::read_dir("/proc").expect("this machine can do it");
    let mut pids = all.filter_map(|entry| {
        let name = entry.expect("the directory can be read").file_name();
        name.to_str()?.parse::<i32>().ok()
    });
    let found = pids.find(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Its name is in parentheses; its state and its parent follow.
        let rest = stat.split_once(&format!(" ({name}) "));
        let mut words = rest.map_or("", |(_, rest)| rest).split(' ');
        words.next() != Some("Z") && words.next() == Some(&parent)
    });
    Pid::from_raw(found?)
}

/// Returns the supervisor and the process that delivers alerts for the daemon of a volume.
fn alert_processes(volume: &TestVolume) -> (Pid, Pid) {
    let daemon = volume.daemon().expect("this machine can do it");
    let daemon = i32::try_from(daemon).expect("it is a number of a process");
    let daemon = Pid::from_raw(daemon).expect("it is a number of a process");
    let mut found = None;
    eventually("the process for alerts is there", || {
        found = child_of(daemon, "cauchyfs-superv").and_then(|supervisor| {
            let process = child_of(supervisor, "cauchyfs-alerts")?;
            Some((supervisor, process))
        });
        found.is_some()
    });
    found.expect("it was found")
}

fn kill(process: Pid) {
    kill_process(process, Signal::KILL).expect("it runs");
}

fn alerts_state(volume: &TestVolume) -> Value {
    volume.status().0["alerts"].clone()
}

#[test]
fn a_loss_and_a_return_are_one_message_each_to_every_receiver_also_those_that_were_down() {
    if skip_mounts() {
        return;
    }
    let (http_port, smtp_port) = (Port::take(), Port::take());
    let (http, smtp) = (http_port.number, smtp_port.number);
    let site = Site::new();
    site.add_program();
    site.add_webhook(http);
    site.add(&format!(
        "name = \"mail\"\nkind = \"mail\"\nfrom = \"fs@example.org\"\nto = [\"a@example.org\"]\nsmtp = \"127.0.0.1:{smtp}\""
    ));
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    site.mount(&volume, &ALL);
    write_some(&volume);
    let (here, away) = (&volume.members[2], volume.members[2].with_file_name("away"));
    fs::rename(here, &away).unwrap();
    eventually("the program has it", || !site.documents().is_empty());
    let document = site.documents().remove(0);
    assert_eq!(document["kind"], "problem");
    assert_eq!(document["severity"], "critical");
    let found = names(&document);
    assert!(found.contains(&"member_missing"), "{document}");
    let shown = here.display();
    let subject = document["subject"].as_str().unwrap();
    let start = format!("Volume test: member {shown} is missing");
    assert!(subject.starts_with(&start), "{subject}");
    if found.contains(&"redundancy_reduced") {
        assert_eq!(
            subject,
            format!("{start}; the volume survives the loss of 1 more")
        );
    }
    let next = format!("cauchyfs status '{}'", volume.mountpoint.display());
    assert!(
        document["text"].as_str().unwrap().contains(&next),
        "{document}"
    );

    let mails = site.home.path().join("mails");
    let _server = MailServer::start(smtp, &mails);
    let requests = serve(http);
    let read_mails = || fs::read_to_string(&mails).unwrap_or_default();
    eventually("the mail is there", || read_mails().contains("\nSubject: "));
    eventually("the request is there", || {
        !requests.lock().unwrap().is_empty()
    });
    let id = document["id"].as_str().unwrap();
    assert!(
        read_mails().starts_with("To a@example.org\n"),
        "{}",
        read_mails()
    );
    assert!(
        volume.log().contains("is not delivered to hook yet"),
        "{}",
        volume.log()
    );

    fs::rename(&away, here).unwrap();
    eventually("the program has the recovery", || {
        site.documents().len() > 1
    });
    eventually("the request is there", || {
        requests.lock().unwrap().len() > 1
    });
    eventually("the mail is there", || {
        read_mails().matches("\nSubject: ").count() > 1
    });
    volume.unmount();
    let documents = site.documents();
    assert_eq!(documents.len(), 2, "{documents:#?}");
    assert_eq!(documents[1]["kind"], "recovery");
    assert!(
        names(&documents[1]).contains(&"member_back"),
        "{documents:#?}"
    );
    assert_eq!(read_mails().matches("\nSubject: ").count(), 2);
    let requests = requests.lock().unwrap();
    assert_eq!(requests.len(), 2);
    requests.iter().for_each(assert_signed);
    assert_eq!(json(&requests[0].1)["events"], document["events"]);
    assert_ne!(
        json(&requests[0].1)["id"],
        id,
        "each receiver has a notice of its own"
    );
}

/// Prints the time from the removal of a member's directory to its mail. Nothing depends on the figure.
#[test]
fn the_mail_about_a_removed_member_comes_within_the_patience_of_the_tests() {
    if skip_mounts() {
        return;
    }
    let port = Port::take();
    let smtp = port.number;
    let site = Site::new();
    site.add(&format!(
        "name = \"mail\"\nkind = \"mail\"\nfrom = \"fs@example.org\"\nto = [\"a@example.org\"]\nsmtp = \"127.0.0.1:{smtp}\""
    ));
    let mails = site.home.path().join("mails");
    let _server = MailServer::start(smtp, &mails);
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    site.mount(&volume, &ALL);
    write_some(&volume);
    let began = Instant::now();
    volume.delete_member(3);
    eventually("the mail is there", || {
        fs::read_to_string(&mails).is_ok_and(|it| it.contains("\nSubject: "))
    });
    println!("the mail came {:.1?} after the removal", began.elapsed());
    volume.unmount();
}

#[test]
fn no_alert_is_lost_when_daemon_and_process_are_killed_or_the_volume_is_unmounted() {
    if skip_mounts() {
        return;
    }
    let port = Port::take();
    let http = port.number;
    let site = Site::new();
    site.add_webhook(http);
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    site.mount(&volume, &ALL);
    write_some(&volume);
    // The process is dead before the loss, so the log of events alone has it.
    let (supervisor, process) = alert_processes(&volume);
    kill(supervisor);
    kill(process);
    eventually("status says so", || {
        alerts_state(&volume)["state"] == "ended"
    });
    let (_, shown) = volume.command(&["status"], &[]);
    let next = format!(
        "its supervisor ended; `cauchyfs unmount '{}'`",
        volume.mountpoint.display()
    );
    assert!(shown.contains(&next), "{shown}");
    volume.delete_member(1);
    eventually("the loss is recorded", || {
        let out = volume.command(&["events"], &[]).1;
        out.contains("is missing") && out.contains("redundancy is reduced")
    });
    volume.unmount();
    // It waits in the state file, and the process is killed with its daemon.
    site.mount(&volume, &[0, 2, 3, 4, 5]);
    eventually("it waits", || {
        let waiting = site.waiting("hook");
        waiting
            .iter()
            .any(|it| names(it).contains(&"member_missing"))
    });
    let waiting = site.waiting("hook");
    let (supervisor, process) = alert_processes(&volume);
    kill(supervisor);
    volume.kill();
    kill(process);
    let requests = serve(http);
    site.mount(&volume, &[0, 2, 3, 4, 5]);
    eventually("it is delivered", || {
        let requests = requests.lock().unwrap();
        let mut ids = requests.iter().map(|it| json(&it.1)["id"].clone());
        ids.any(|id| id == waiting[0]["id"])
    });
    let first = requests.lock().unwrap()[0].clone();
    let first = json(&first.1);
    let missing = first["events"].as_array().unwrap().iter();
    let mut missing = missing.filter(|it| it["event"] == "member_missing");
    assert_eq!(
        missing.next().expect("it tells of the loss")["member"],
        1,
        "{first}"
    );
    eventually("nothing waits", || site.waiting("hook").is_empty());
    volume.unmount();
}

#[test]
fn a_process_for_alerts_that_dies_is_started_again_and_misses_nothing() {
    if skip_mounts() {
        return;
    }
    let site = Site::new();
    site.add_program();
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    site.mount(&volume, &ALL);
    write_some(&volume);
    assert_eq!(alerts_state(&volume)["state"], "running");
    // Each pause is longer than the one before, so status shows one.
    eventually("status says so", || {
        kill(alert_processes(&volume).1);
        let waits = || alerts_state(&volume)["state"] == "restarting";
        (0..50).any(|_| waits())
    });
    assert_eq!(alerts_state(&volume)["reason"], "signal 9 ended it");
    let (_, shown) = volume.command(&["status"], &[]);
    assert!(shown.contains("no alerts are sent since"), "{shown}");
    volume.delete_member(1);
    eventually("the program has it", || !site.documents().is_empty());
    assert_eq!(alerts_state(&volume)["state"], "running");
    // It dies between the event and the notice.
    volume.delete_member(4);
    eventually("the loss is recorded", || {
        volume
            .command(&["events"], &[])
            .1
            .matches("is missing")
            .count()
            > 1
    });
    kill(alert_processes(&volume).1);
    let members = || -> Vec<Value> {
        let documents = site.documents();
        let events = documents
            .iter()
            .filter_map(|it| it["events"].as_array().cloned());
        let events = events
            .flatten()
            .filter(|it| it["event"] == "member_missing");
        events.map(|it| it["member"].clone()).collect()
    };
    eventually("the program has both", || members().len() > 1);
    volume.unmount();
    assert_eq!(members(), [1, 4], "each once");
}

/// The second receiver has an error from one mount to the middle of the next.
#[test]
fn a_receiver_gets_what_happened_while_its_configuration_had_an_error() {
    if skip_mounts() {
        return;
    }
    let site = Site::new();
    site.add_program();
    let other = site.home.path().join("other");
    let command = format!("command = [\"/usr/bin/tee\", \"-a\", \"{}\"]", text(&other));
    site.add(&format!("name = \"other\"\nkind = \"program\"\n{command}"));
    let sound = fs::read_to_string(&site.config).unwrap();
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    site.mount(&volume, &ALL);
    write_some(&volume);
    volume.unmount();
    fs::write(&site.config, sound.replace("/usr/bin/tee", "tee")).unwrap();
    site.mount(&volume, &ALL);
    volume.delete_member(1);
    eventually("the program has it", || !site.documents().is_empty());
    assert!(!other.exists());
    fs::write(&site.config, sound).unwrap();
    eventually("the other has it without another mount", || {
        fs::read_to_string(&other).is_ok_and(|it| it.contains("member_missing"))
    });
    volume.unmount();
    let missing = |it: &Value| names(it).contains(&"member_missing");
    let documents = site.documents();
    assert_eq!(
        documents.iter().filter(|it| missing(it)).count(),
        1,
        "{documents:#?}"
    );
}

/// The directory of a member goes and returns, again and again.
#[test]
fn a_flapping_member_gives_at_most_four_messages_in_an_hour() {
    if skip_mounts() {
        return;
    }
    let site = Site::new();
    site.add_program();
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    site.mount(&volume, &ALL);
    write_some(&volume);
    let (here, away) = (&volume.members[2], volume.members[2].with_file_name("away"));
    let told = |words: &str| volume.command(&["events"], &[]).1.matches(words).count();
    let mut seen = 0;
    for flap in 1..=5 {
        fs::rename(here, &away).unwrap();
        eventually("the loss is recorded", || told("is missing") >= flap);
        // Each loss is a message of its own, as long as there is room for one.
        eventually("it is told or held back", || {
            let count = site.documents().len();
            let is_told = count > seen || count >= 4 || site.is_holding("member 2");
            seen = count;
            is_told
        });
        fs::rename(&away, here).unwrap();
        if flap > 3 {
            // It does not rejoin by itself any more.
            let (code, out) = volume.command(&["member", "replace"], &["2", text(here)]);
            assert!(matches!(code, Some(0 | 3)), "{out}");
        }
        eventually("the return is recorded", || told("is back") >= flap);
    }
    eventually("the rest is held back", || site.is_holding("member 2"));
    volume.unmount();
    let documents = site.documents();
    assert!((3..=4).contains(&documents.len()), "{documents:#?}");
    let last = documents.last().unwrap();
    assert_eq!(last["holding_back"], serde_json::json!([2]), "{last:#}");
}

#[test]
fn an_error_of_the_configuration_is_named_and_the_other_receivers_get_their_alerts() {
    if skip_mounts() {
        return;
    }
    let site = Site::new();
    site.add("name = \"broken\"\nkind = \"program\"\ncommand = [\"true\"]");
    site.add_program();
    let volume = TestVolume::create(Shape::FOUR_TWO, 2048);
    let output = volume.try_mount(&ALL, &["--alerts", text(&site.config)]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let expected = format!(
        "no alerts are sent to broken: {}:5: command: ",
        text(&site.config)
    );
    assert!(said(&output).contains(&expected), "{}", said(&output));
    assert!(volume.log().contains(&expected), "{}", volume.log());
    write_some(&volume);
    volume.delete_member(3);
    eventually("the program has it", || !site.documents().is_empty());
    volume.unmount();
}

#[test]
fn the_test_of_alerts_tells_what_became_of_each_and_check_sends_none() {
    let site = Site::new();
    site.add_program();
    let port = Port::take();
    site.add_webhook(port.number);
    let alerts = |words: &[&str]| {
        run(
            CAUCHYFS,
            &[&["alerts"], words, &["--config", text(&site.config)]].concat(),
        )
    };
    let checked = alerts(&["check"]);
    assert_eq!(checked.status.code(), Some(0), "{}", said(&checked));
    assert_eq!(site.documents(), Vec::<Value>::new());
    let tested = alerts(&["test"]);
    assert_eq!(tested.status.code(), Some(3), "{}", said(&tested));
    let table = said(&tested);
    let row = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(row("program").ends_with("delivered"), "{table}");
    assert!(row("hook").contains("failed: "), "{table}");
    assert_eq!(site.documents()[0]["kind"], "test");
    let tested = alerts(&["test", "--json"]);
    let rows = json(&tested.stdout);
    assert_eq!(rows[0]["result"], "delivered");
    fs::remove_file(&site.config).unwrap();
    assert_eq!(alerts(&["test"]).status.code(), Some(2));
}
