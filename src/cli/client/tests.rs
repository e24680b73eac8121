//! Commands against daemons that lie, and daemons against commands that ask for another mount.

#![expect(clippy::print_stderr, reason = "tests say what they leave out")]

mod places;
mod unlisted;

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::{Peer, SoughtMount, ask_within, other_version, question, search};
use crate::cli::failure::Failure;
use crate::control::exchange::{ANSWER_TIMEOUT, BRIEF_TIMEOUT, Limits};
use crate::control::failure::DaemonFailure;
use crate::control::fault::Fault;
use crate::control::places::file_stem;
use crate::control::places::{Places, Spot};
use crate::control::protocol::{Answer, Envelope, Identity, Request, RequestRefusal, VERSION};
use crate::control::server::{
    Announced, ControlSocket, SocketFile, open, prepare_in, receive, refuse_one_too_many, tell,
};
use crate::control::volume_failure::VolumeFailure;
use crate::fuse::Transport;
use crate::fuse::mount::Mount;
use crate::fuse::mountinfo::{self, MountEntry};

/// Long enough for any machine, and never waited for.
const LONG: Duration = Duration::from_secs(60);

/// A user who is neither the superuser nor the one who runs the tests.
const OTHER: u32 = 65534;

/// Some mount of this machine, in the place of one of ours.
fn some_mount() -> MountEntry {
    let mount = mountinfo::mount_at(Path::new("/proc")).unwrap();
    mount.expect("it is mounted")
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn limits() -> Limits {
    Limits::of_identity(LONG)
}

/// The runtime directory of a user in a directory for a test.
struct Home {
    base: TempDir,
    entry: MountEntry,
}

impl Home {
    fn new() -> Self {
        let home = Self {
            base: tempfile::tempdir().unwrap(),
            entry: some_mount(),
        };
        fs::create_dir(home.directory()).unwrap();
        set_mode(&home.directory(), 0o700);
        home
    }

    fn directory(&self) -> PathBuf {
        self.base.path().join("cauchyfs")
    }

    fn places(&self) -> Places {
        self.places_of(own_user())
    }

    fn places_of(&self, user: u32) -> Places {
        Places {
            user,
            spots: vec![Spot {
                base: self.base.path().to_owned(),
                below: "cauchyfs",
            }],
            home: |_| None,
            shared: None,
        }
    }

    fn target(&self) -> SoughtMount {
        SoughtMount {
            mountpoint: self.entry.mountpoint.clone(),
            device: Some(self.entry.device.clone()),
            user: own_user(),
        }
    }

    /// Returns where a socket is looked for.
    fn socket(&self) -> PathBuf {
        let name = format!("{}-fake.sock", file_stem(&self.entry.mountpoint));
        self.directory().join(name)
    }

    fn identity(&self) -> Identity {
        Identity::of("volume".to_owned(), &Mount::of(&self.entry))
    }

    /// Starts a real daemon's end, which answers a request for the directories.
    fn serve(&self) {
        let (socket, file) = open_in(
            &self.places(),
            &self.entry.mountpoint,
            "volume".to_owned(),
            LONG,
        )
        .unwrap();
        socket
            .announced()
            .announce(&Mount::of(&self.entry), Transport::Classic);
        // It stays as long as the test runs.
        std::mem::forget(file);
        answer_all(socket);
    }

    /// Starts a process that says it is the daemon, reads a request, and then does what it likes.
    fn lie(&self, behave: impl Fn(&UnixStream) + Send + 'static) {
        let identity = self.identity();
        listen(&self.socket(), move |stream| {
            let mut lines = BufReader::new(stream);
            let mut line = String::new();
            lines.read_line(&mut line).unwrap();
            let mount = identity.clone();
            let version = VERSION;
            tell(stream, &Answer::Identity { version, mount }).unwrap();
            lines.read_line(&mut line).unwrap();
            behave(stream);
        });
    }

    fn find(&self) -> Result<Peer, Failure> {
        search(&self.places(), &self.target(), &limits())
    }

    /// Asks the daemon that is found.
    fn ask(&self, request: &Request, limits: &Limits) -> Result<Answer, Failure> {
        match self.find()? {
            Peer::Daemon(connection) => ask_within(connection, request, limits, |_| {}),
            other => panic!("{other:?}"),
        }
    }
}

/// Opens the socket of a mount in given places.
fn open_in(
    places: &Places,
    mountpoint: &Path,
    volume: String,
    patience: Duration,
) -> io::Result<(ControlSocket, SocketFile)> {
    open(
        prepare_in(places, mountpoint, patience)?,
        mountpoint,
        volume,
    )
}

fn answer_all(socket: ControlSocket) {
    thread::spawn(move || {
        let announced = socket.announced();
        loop {
            let stream = socket.accept().unwrap();
            if let Ok(Request::Directories) = receive(&stream, &announced) {
                tell(&stream, &Answer::Directories(Vec::new())).unwrap();
            }
        }
    });
}

/// Does something with every connection to a socket.
fn listen(path: &Path, behave: impl Fn(&UnixStream) + Send + 'static) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            behave(&stream.unwrap());
        }
    });
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[track_caller]
fn assert_none(found: &Result<Peer, Failure>) {
    assert!(matches!(found, Ok(Peer::None)), "{found:?}");
}

#[test]
fn a_daemon_is_found_and_answers() {
    let home = Home::new();
    home.serve();
    let answer = home.ask(&Request::Directories, &limits()).unwrap();
    assert_eq!(answer, Answer::Directories(Vec::new()));
}

#[test]
fn the_daemon_of_another_mount_is_none() {
    let home = Home::new();
    home.serve();
    let other_device = SoughtMount {
        device: Some("0:99999".to_owned()),
        ..home.target()
    };
    assert_none(&search(&home.places(), &other_device, &limits()));
    // A name that leads to it, and yet is not where it is mounted.
    let elsewhere = PathBuf::from("/mnt/elsewhere");
    let name = format!("{}-fake.sock", file_stem(&elsewhere));
    let real = fs::read_dir(home.directory()).unwrap().next().unwrap();
    fs::rename(real.unwrap().path(), home.directory().join(name)).unwrap();
    let other_place = SoughtMount {
        mountpoint: elsewhere,
        device: None,
        ..home.target()
    };
    assert_none(&search(&home.places(), &other_place, &limits()));
}

#[test]
fn symlinks_to_a_daemon_are_not_followed() {
    let real = Home::new();
    real.serve();
    let socket = fs::read_dir(real.directory()).unwrap().next().unwrap();
    let socket = socket.unwrap().path();
    let home = Home::new();
    symlink(&socket, home.socket()).unwrap();
    assert_none(&home.find());
    fs::remove_file(home.socket()).unwrap();
    fs::remove_dir(home.directory()).unwrap();
    symlink(real.directory(), home.directory()).unwrap();
    assert_none(&home.find());
    fs::remove_file(home.directory()).unwrap();
    fs::rename(real.directory(), home.directory()).unwrap();
    assert!(matches!(home.find(), Ok(Peer::Daemon(_))));
}

#[test]
fn a_socket_that_another_user_can_have_put_there_is_none() {
    let home = Home::new();
    home.serve();
    for mode in [0o720, 0o702, 0o777] {
        set_mode(&home.directory(), mode);
        assert_none(&home.find());
    }
    set_mode(&home.directory(), 0o755);
    assert!(matches!(home.find(), Ok(Peer::Daemon(_))));
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped in part: only the superuser can give files away");
        return;
    }
    chown(home.directory(), Some(OTHER), None).unwrap();
    assert_none(&home.find());
    chown(home.directory(), Some(own_user()), None).unwrap();
    let socket = fs::read_dir(home.directory()).unwrap().next().unwrap();
    chown(socket.unwrap().path(), Some(OTHER), None).unwrap();
    assert_none(&home.find());
}

#[test]
fn a_process_of_another_user_than_the_mounts_is_none_not_even_the_superusers() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only the superuser can give files away");
        return;
    }
    let home = Home::new();
    home.serve();
    let socket = fs::read_dir(home.directory()).unwrap().next().unwrap();
    chown(socket.unwrap().path(), Some(OTHER), None).unwrap();
    chown(home.directory(), Some(OTHER), None).unwrap();
    let target = SoughtMount {
        user: OTHER,
        ..home.target()
    };
    assert_none(&search(&home.places_of(OTHER), &target, &limits()));
}

#[track_caller]
fn assert_other_version(home: &Home, spoken: Option<u32>) {
    match home.find() {
        Ok(Peer::OtherVersion(version)) => assert_eq!(version, spoken),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_daemon_that_hangs_up_or_speaks_another_version_is_reported() {
    let home = Home::new();
    listen(&home.socket(), |stream| drop(stream.try_clone()));
    assert_other_version(&home, None);
    let home = Home::new();
    listen(&home.socket(), |stream| {
        BufReader::new(stream)
            .read_line(&mut String::new())
            .unwrap();
        let refusal = RequestRefusal::Version { spoken: 7 };
        tell(stream, &Answer::Refused(refusal)).unwrap();
    });
    assert_other_version(&home, Some(7));
    // Beside it, the right one is found all the same.
    home.serve();
    assert!(matches!(home.find(), Ok(Peer::Daemon(_))));
}

/// The line with which a daemon of version 2 answers a command of any other version.
const REFUSAL_OF_VERSION_2: &str = r#"{"refused":{"version":{"spoken":2}}}"#;

/// Returns the line with which a daemon of a newer version says which mount it serves.
fn identity_of_version_4(mount: &Identity) -> String {
    let mount = serde_json::to_string(mount).unwrap();
    format!(r#"{{"identity":{{"version":4,"mount":{mount}}}}}"#)
}

/// Starts a process that answers the first line with this one.
fn answer_with(home: &Home, line: String) {
    listen(&home.socket(), move |mut stream| {
        let mut asked = String::new();
        BufReader::new(stream).read_line(&mut asked).unwrap();
        // A daemon of any version looks here first.
        assert!(asked.starts_with(r#"{"version":3,"#), "{asked}");
        stream.write_all(line.as_bytes()).unwrap();
        stream.write_all(b"\n").unwrap();
    });
}

/// Its socket may only have a name like that of the right one.
#[test]
fn the_daemon_of_another_mount_is_none_whatever_its_version() {
    let home = Home::new();
    let mount = Identity {
        device: "0:99999".to_owned(),
        ..home.identity()
    };
    answer_with(&home, identity_of_version_4(&mount));
    assert_none(&home.find());
}

#[test]
fn a_command_understands_that_an_older_or_newer_daemon_speaks_another_version() {
    let newer = identity_of_version_4(&Home::new().identity());
    for (line, spoken) in [(REFUSAL_OF_VERSION_2.to_owned(), 2), (newer, 4)] {
        let home = Home::new();
        answer_with(&home, line);
        assert_other_version(&home, Some(spoken));
        let failure = other_version(Some(spoken), Path::new("/mnt/my photos"));
        let expected = format!("the daemon speaks version {spoken} of the control protocol");
        assert!(failure.message.starts_with(&expected), "{failure:?}");
        assert!(
            failure.message.ends_with("command version 3"),
            "{failure:?}"
        );
        assert_eq!(Failure::exit_code(failure.fault), 2);
        let advice = failure.advice.unwrap();
        assert!(advice.contains("`umount '/mnt/my photos'`"), "{advice}");
    }
}

#[test]
fn an_older_command_understands_that_this_daemon_speaks_another_version() {
    let refused =
        said_to(&[r#"{"version":2,"mount":null,"request":"identify"}"#.to_owned() + "\n"]);
    // Version 2 knew this form.
    let expected = REFUSAL_OF_VERSION_2.replace('2', &VERSION.to_string());
    assert_eq!(refused, expected + "\n");
    // Version 1 knew `failed`, with these fields.
    for old in ["\"status\"\n", "{\"unmount\":{\"lazy\":true}}\n"] {
        let said: serde_json::Value = serde_json::from_str(&said_to(&[old.to_owned()])).unwrap();
        let failure = &said["failed"];
        assert_eq!(failure["fault"], "Environment");
        let message = failure["message"].as_str().unwrap();
        assert!(message.contains("version 3"), "{message}");
        assert!(failure["advice"].is_string());
    }
}

/// Returns what a daemon says that answers too many commands, before it is asked anything.
fn said_to_one_too_many() -> String {
    let (theirs, ours) = UnixStream::pair().unwrap();
    refuse_one_too_many(&ours).unwrap();
    drop(ours);
    let mut said = String::new();
    (&theirs).read_to_string(&mut said).unwrap();
    said
}

/// A daemon answers so before it knows the version of the command.
#[test]
fn a_command_of_any_version_reads_that_the_daemon_answers_too_many() {
    let said = said_to_one_too_many();
    let read: Answer = serde_json::from_str(&said).unwrap();
    assert_eq!(read, Answer::Failed(DaemonFailure::TooManyCommands));
    // Versions 1 and 2 knew `failed`, with these fields.
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let failure = &said["failed"];
    assert_eq!(failure["fault"], "Environment");
    assert_eq!(
        failure["message"],
        "the daemon is answering too many commands"
    );
    assert_eq!(failure["advice"], "try again");
}

/// Such a daemon may have hung up before the command sends its request.
#[test]
fn a_command_reports_that_the_daemon_answers_too_many_also_if_that_hung_up() {
    let (theirs, ours) = UnixStream::pair().unwrap();
    refuse_one_too_many(&ours).unwrap();
    drop(ours);
    let failure = question(theirs, own_user(), |_| true, &limits()).unwrap_err();
    assert_eq!(failure, DaemonFailure::TooManyCommands.at(Path::new("/m")));
    // One that hung up without an answer is still taken for one of version 1.
    let (theirs, ours) = UnixStream::pair().unwrap();
    drop(ours);
    let found = question(theirs, own_user(), |_| true, &limits());
    assert!(matches!(found, Ok(Peer::OtherVersion(None))), "{found:?}");
}

/// Says to a daemon's end what the lines say, and returns what it answers to the last one.
fn answer_to(lines: &[String]) -> Answer {
    let said = said_to(lines);
    serde_json::from_str(said.lines().last().unwrap()).unwrap()
}

/// Says to a daemon's end what the lines say, and returns what it says before it hangs up.
fn said_to(lines: &[String]) -> String {
    let home = Home::new();
    let announced = Announced::of("volume".to_owned());
    announced.announce(&Mount::of(&home.entry), Transport::Classic);
    let (theirs, ours) = UnixStream::pair().unwrap();
    let asked = lines.concat();
    (&theirs).write_all(asked.as_bytes()).unwrap();
    let received = receive(&ours, &announced);
    drop(ours);
    let mut said = String::new();
    (&theirs).read_to_string(&mut said).unwrap();
    assert!(received.is_err(), "{received:?}");
    said
}

fn line_of(envelope: &Envelope) -> String {
    serde_json::to_string(envelope).unwrap() + "\n"
}

#[test]
fn a_daemon_refuses_a_request_that_names_another_mount() {
    let home = Home::new();
    let served = home.identity();
    let identify = line_of(&Envelope::new(None, Request::Identify));
    let unmount = Request::Unmount { lazy: true };
    let wrong = |change: fn(&mut Identity)| {
        let mut mount = served.clone();
        change(&mut mount);
        line_of(&Envelope::new(Some(mount), unmount.clone()))
    };
    let refused = Answer::Refused(RequestRefusal::Mount {
        served: served.clone(),
    });
    for line in [
        wrong(|mount| mount.device = "0:99999".to_owned()),
        wrong(|mount| mount.mountpoint = "/elsewhere".to_owned()),
        wrong(|mount| mount.volume = "another".to_owned()),
    ] {
        assert_eq!(answer_to(std::slice::from_ref(&line)), refused);
        assert_eq!(answer_to(&[identify.clone(), line]), refused);
    }
    let unnamed = line_of(&Envelope::new(None, unmount.clone()));
    assert_eq!(
        answer_to(&[unnamed]),
        Answer::Refused(RequestRefusal::Unnamed)
    );
}

#[test]
fn a_daemon_tells_commands_of_other_versions_that_it_does_not_understand_them() {
    let newer = r#"{"version":4,"anything":{"else":[]}}"#.to_owned() + "\n";
    let spoken = Answer::Refused(RequestRefusal::Version { spoken: 3 });
    assert_eq!(answer_to(&[newer]), spoken);
    let malformed = r#"{"version":3,"mount":null,"request":"dance"}"#.to_owned() + "\n";
    assert_eq!(
        answer_to(&[malformed]),
        Answer::Refused(RequestRefusal::Malformed)
    );
}

#[test]
fn the_form_of_a_request_is_that_of_this_version() {
    let mount = Identity {
        volume: "v".to_owned(),
        device: "0:7".to_owned(),
        mountpoint: "/m".to_owned(),
    };
    let line = line_of(&Envelope::new(Some(mount), Request::Unmount { lazy: true }));
    let expected = r#"{"version":3,"mount":{"volume":"v","device":"0:7","mountpoint":"/m"},"request":{"unmount":{"lazy":true}}}"#;
    assert_eq!(line.trim_end(), expected);
    let line = line_of(&Envelope::new(None, Request::Identify));
    let expected = r#"{"version":3,"mount":null,"request":"identify"}"#;
    assert_eq!(line.trim_end(), expected);
}

/// Writes bytes again and again until the other end hangs up.
fn flood(mut stream: &UnixStream, bytes: &[u8]) {
    while stream.write_all(bytes).is_ok() {}
}

#[track_caller]
fn assert_refused(answer: Result<Answer, Failure>, why: &str) {
    let failure = answer.expect_err("it is too much");
    assert!(failure.message.contains(why), "{failure:?}");
}

#[test]
fn an_answer_has_a_greatest_length() {
    let home = Home::new();
    home.lie(|stream| flood(stream, &[b'x'; 4096]));
    let few = Limits {
        bytes: 100_000,
        ..limits()
    };
    assert_refused(home.ask(&Request::Status, &few), "more than 100000 bytes");
    // Real requests have one too.
    let limits = Limits::of(&Request::Status, false);
    assert_refused(home.ask(&Request::Status, &limits), "more than");
}

#[test]
fn an_answer_has_a_greatest_number_of_values_and_a_greatest_depth() {
    let home = Home::new();
    home.lie(|mut stream| {
        let values = "1,".repeat(2 << 20);
        let line = format!("{{\"status\":{{\"unknown\":[{values}1]}}}}\n");
        drop(stream.write_all(line.as_bytes()));
    });
    let limits = Limits::of(&Request::Status, false);
    assert_refused(home.ask(&Request::Status, &limits), "values");
    let home = Home::new();
    home.lie(|mut stream| {
        let line = format!("{{\"status\":{{\"unknown\":{}\n", "[".repeat(200_000));
        drop(stream.write_all(line.as_bytes()));
    });
    assert_refused(home.ask(&Request::Status, &limits), "recursion limit");
}

#[test]
fn a_daemon_that_drips_or_stalls_is_not_waited_for_beyond_the_limit() {
    let brief = Limits {
        line: Some(LONG),
        answer: Some(Duration::from_millis(50)),
        ..limits()
    };
    let home = Home::new();
    home.lie(|stream| flood_slowly(stream, b"x"));
    assert_refused(home.ask(&Request::Status, &brief), "timed out");
    // Signs of life do not help.
    let home = Home::new();
    home.lie(|stream| flood_slowly(stream, b"\n"));
    assert_refused(home.ask(&Request::Status, &brief), "timed out");
    let home = Home::new();
    home.lie(|mut stream| drop(stream.read(&mut [0])));
    assert_refused(home.ask(&Request::Status, &brief), "timed out");
    let line = Limits {
        line: brief.answer,
        answer: Some(LONG),
        ..brief
    };
    assert_refused(home.ask(&Request::Status, &line), "timed out");
}

fn flood_slowly(mut stream: &UnixStream, bytes: &[u8]) {
    while stream.write_all(bytes).is_ok() {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_daemon_that_does_not_say_which_mount_it_serves_is_not_waited_for_beyond_the_limit() {
    let home = Home::new();
    listen(&home.socket(), |stream| flood_slowly(stream, b" "));
    let brief = Limits::of_identity(Duration::from_millis(50));
    let found = search(&home.places(), &home.target(), &brief);
    let failure = found.expect_err("it says nothing");
    assert!(failure.message.contains("does not answer"), "{failure:?}");
}

#[test]
fn progress_reports_are_taken_from_a_scrub_alone_and_not_without_end() {
    const REPORT: &str =
        r#"{"scrubbing":{"bytes_passed":1,"bytes_total":2,"repaired":0,"wrong":0}}"#;
    let home = Home::new();
    home.lie(|stream| flood(stream, format!("{REPORT}\n").as_bytes()));
    let some = Limits {
        progress: 100,
        ..limits()
    };
    let scrub = Request::Scrub {
        bytes_per_second: None,
    };
    assert_refused(home.ask(&scrub, &some), "more progress reports");
    let limits = Limits::of(&Request::Status, false);
    assert_eq!(limits.progress, 0);
    assert_refused(home.ask(&Request::Status, &limits), "more progress reports");
}

#[test]
fn empty_lines_are_not_taken_without_end() {
    let home = Home::new();
    home.lie(|stream| flood(stream, &[b'\n'; 1 << 10]));
    let some = Limits {
        signs: 10_000,
        ..limits()
    };
    assert_refused(
        home.ask(&Request::Status, &some),
        "more than 10000 empty lines",
    );
    // Those that are few, and longer than what is read at once, do no harm.
    let home = Home::new();
    home.lie(|stream| {
        let mut stream = stream;
        stream.write_all(&vec![b'\n'; 100_000]).unwrap();
        tell(stream, &Answer::Directories(vec!["/a".into()])).unwrap();
    });
    let answer = home.ask(&Request::Directories, &limits());
    assert_eq!(answer.unwrap(), Answer::Directories(vec!["/a".into()]));
}

#[test]
fn polling_every_mount_shares_one_deadline() {
    for is_own in [false, true] {
        let limits = Limits::of(&Request::Membership, is_own);
        assert_eq!(limits.answer, Some(BRIEF_TIMEOUT));
        let limits = Limits::of(&Request::Directories, is_own);
        assert_eq!(limits.answer, Some(ANSWER_TIMEOUT));
    }
}

/// Processes that take no connections take as much time as those that say nothing.
#[test]
fn sockets_that_take_no_connections_are_tried_in_small_number() {
    let home = Home::new();
    let mut full = Vec::new();
    for number in 0..20 {
        let name = format!("{}-{number:02}.sock", file_stem(&home.entry.mountpoint));
        let path = home.directory().join(name);
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            None,
        );
        let socket = socket.unwrap();
        let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        full.push((UnixStream::connect(&path).unwrap(), socket));
    }
    // A daemon whose name comes after all of theirs.
    home.lie(|_| {});
    let brief = Limits::of_identity(Duration::from_millis(5));
    let found = search(&home.places(), &home.target(), &brief);
    let failure = found.expect_err("the eighth is the last");
    assert!(failure.message.contains("does not answer"), "{failure:?}");
    drop(full);
}

#[test]
fn every_request_but_unmounting_our_own_has_a_limit_of_time() {
    let limit = |request: Request, is_own| Limits::of(&request, is_own).answer;
    let unmount = Request::Unmount { lazy: false };
    assert_eq!(limit(unmount.clone(), true), None);
    assert!(limit(unmount, false).is_some());
    assert!(limit(Request::Status, true).is_some());
}

#[test]
fn a_long_message_of_a_daemon_is_cut() {
    let home = Home::new();
    home.lie(|stream| {
        let failure = VolumeFailure {
            error: "ü".repeat(100_000),
            fault: Fault::Environment,
            remedy: None,
        };
        tell(stream, &Answer::Failed(failure.into())).unwrap();
    });
    let limits = Limits::of(&Request::Status, false);
    let failure = home.ask(&Request::Status, &limits).expect_err("it failed");
    assert!(failure.message.chars().count() < 5000);
    assert!(failure.message.ends_with("ü…"));
}
