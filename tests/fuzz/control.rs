//! The control protocol from both ends: a daemon that lies to commands, and a client that lies to a daemon.
//!
//! Nothing here knows the protocol but for this: a client sends a line, and gets lines. The lies are changed copies of
//! real requests of commands and real answers of a daemon. A proxy in the place of its socket listens to these.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rustix::process::Pid;

use super::cage::Ended;
use super::mutate::{number, poke};
use super::run::Arena;
use super::volumes::Base;

/// Commands that talk to a daemon; `MOUNT` and `NEW` stand for paths. The last one ends it, or should.
const COMMANDS: [&[&str]; 12] = [
    &["status", "MOUNT"],
    &["status", "--json", "MOUNT"],
    &["usage", "MOUNT"],
    &["events", "MOUNT"],
    &["events", "--json", "MOUNT"],
    &["scrub", "MOUNT"],
    &["scrub", "--json", "MOUNT"],
    &["rebuild", "MOUNT"],
    &["member", "add", "MOUNT", "NEW"],
    &["member", "remove", "MOUNT", "0"],
    &["member", "replace", "MOUNT", "0", "NEW"],
    &["unmount", "MOUNT"],
];

/// The most that the proxy sends without end, in bytes.
const FLOOD: usize = 300 << 20;

/// The time for which the proxy waits for a word from either side.
const SILENCE: Duration = Duration::from_millis(300);

/// Returns the path of the socket on which a process listens.
fn socket_of(daemon: Pid) -> Option<PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", daemon.as_raw_nonzero())).ok()?;
    let links = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let inodes: Vec<String> = links
        .filter_map(|link| {
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some(inode.to_owned())
        })
        .collect();
    let sockets = fs::read_to_string("/proc/net/unix").ok()?;
    sockets.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let listens = fields.get(3).is_some_and(|flags| *flags == "00010000");
        let is_ours = inodes
            .iter()
            .any(|inode| fields.get(6) == Some(&inode.as_str()));
        let path = fields.get(7).filter(|path| path.starts_with('/'))?;
        (listens && is_ours).then(|| PathBuf::from(path))
    })
}

/// Messages that a real daemon received and sent.
#[derive(Default)]
struct Heard {
    requests: Mutex<Vec<Vec<u8>>>,
    answers: Mutex<Vec<Vec<u8>>>,
}

/// Reads until a line ends, the other side is silent or gone, or there is much.
fn read_some(stream: &mut UnixStream, until_line: bool) -> Vec<u8> {
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    while bytes.len() < 1 << 20 {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(count) => bytes.extend(&piece[..count]),
        }
        if until_line && bytes.contains(&b'\n') {
            break;
        }
    }
    bytes
}

/// Sends bytes as long as the other side takes them.
fn send(stream: &mut UnixStream, bytes: &[u8]) -> bool {
    stream
        .set_write_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream.write_all(bytes).is_ok()
}

/// Answers one client with a changed copy of what the daemon says.
fn lie(client: &mut UnixStream, real: &Path, heard: &Heard, rng: &mut StdRng) {
    let request = read_some(client, true);
    let answer = UnixStream::connect(real).map_or_else(
        |_| Vec::new(),
        |mut daemon| {
            // Nothing that ends the daemon gets there: it is still to be lied to.
            let harmless = !request
                .windows(7)
                .any(|word| word == b"nmount\"" || word == b"unmount");
            if harmless && send(&mut daemon, &request) {
                read_some(&mut daemon, false)
            } else {
                b"\"unmounted\"\n".to_vec()
            }
        },
    );
    heard.requests.lock().unwrap().push(request);
    heard.answers.lock().unwrap().push(answer.clone());
    if rng.random_ratio(1, 12) {
        flood(client, rng);
        return;
    }
    let mut answer = if rng.random_ratio(1, 6) {
        heard.answers.lock().unwrap().choose(rng).unwrap().clone()
    } else {
        answer
    };
    for _ in 0..*[0, 1, 1, 1, 2].choose(rng).unwrap() {
        change(&mut answer, rng);
    }
    send(client, &answer);
}

/// Sends without end.
fn flood(client: &mut UnixStream, rng: &mut StdRng) {
    let piece = [&b"\n"[..], b"x", b"[", b"{\"a\":", b"\"\\u001b\",", b" "]
        .choose(rng)
        .unwrap()
        .repeat(64 << 10);
    let mut sent = 0;
    while sent < FLOOD && send(client, &piece) {
        sent += piece.len();
    }
}

/// Changes a line of JSON somewhere.
fn change(line: &mut Vec<u8>, rng: &mut StdRng) {
    let starts = |wanted: fn(&u8) -> bool| -> Vec<usize> {
        line.iter()
            .enumerate()
            .filter(|(_, byte)| wanted(byte))
            .map(|(at, _)| at)
            .collect()
    };
    let digits = starts(u8::is_ascii_digit);
    let quotes = starts(|byte| *byte == b'"');
    let long = "A".repeat(1 << 20);
    let texts = [
        "\\u001b]0;evil\\u0007\\u001b[2J",
        "\\n\\ncauchyfs: fake",
        "\u{9b}31m",
        "",
        &long,
        "..",
        "\\ud800",
        "/",
    ];
    match rng.random_range(0..8) {
        0 => {
            let range = 0..line.len();
            poke(line, range, rng);
        }
        1 | 2 if !digits.is_empty() => {
            let at = *digits.choose(rng).unwrap();
            let number = [
                number(rng).to_string(),
                "-1".into(),
                "1e999".into(),
                "0.5".into(),
                "null".into(),
            ];
            line.splice(at..=at, number.choose(rng).unwrap().bytes());
        }
        3 | 4 if !quotes.is_empty() => {
            // Every other one opens a string.
            let at = quotes[rng.random_range(0..quotes.len()) / 2 * 2] + 1;
            line.splice(at..at, texts.choose(rng).unwrap().bytes());
        }
        5 => line.truncate(rng.random_range(0..=line.len())),
        6 => {
            let again = line.clone();
            for _ in 0..rng.random_range(1..200) {
                line.extend(&again[..again.len().min(10_000)]);
            }
        }
        _ => {
            let front = [&b"\n"[..], b"[", b"\0", b"\xff\xfe", b"null\n", b"{}\n"]
                .choose(rng)
                .unwrap()
                .repeat(rng.random_range(1..5000));
            line.splice(0..0, front);
        }
    }
}

/// Serves lies in the daemon's place until told to stop.
fn serve(listener: &UnixListener, real: &Path, heard: &Heard, stop: &AtomicBool, seed: u64) {
    listener.set_nonblocking(true).unwrap();
    std::thread::scope(|scope| {
        let mut seeds = StdRng::seed_from_u64(seed);
        while !stop.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((mut client, _)) => {
                    client.set_nonblocking(false).unwrap();
                    let mut rng = StdRng::seed_from_u64(seeds.random());
                    scope.spawn(move || lie(&mut client, real, heard, &mut rng));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => panic!("the proxy's socket: {error}"),
            }
        }
    });
}

/// Lies to every command `rounds` times, then to the daemon as often, and returns what they did that they may not do.
pub(crate) fn judge(arena: &Arena, base: &Base, seed: u64, rounds: u64) -> Vec<String> {
    let mut offences = Vec::new();
    let mount = || {
        let daemon = arena.mount(&base.image).expect("a sound volume is mounted");
        let socket = socket_of(daemon.pid).expect("the daemon listens in a directory");
        (daemon, socket)
    };
    let (mut daemon, mut socket) = mount();
    let heard = Heard::default();
    for round in 0..rounds {
        let real = socket.with_file_name("real");
        fs::rename(&socket, &real).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        fs::set_permissions(&socket, fs::metadata(&real).unwrap().permissions()).unwrap();
        let stop = AtomicBool::new(false);
        let ends: Vec<Ended> = std::thread::scope(|scope| {
            let (listener, real, heard, stop) = (&listener, &real, &heard, &stop);
            scope.spawn(move || serve(listener, real, heard, stop, seed ^ round << 32));
            // Side by side: each waits some seconds after an answer that it does not understand.
            let commands = COMMANDS.map(|words| scope.spawn(move || arena.command(words)));
            let ends = commands.map(|command| command.join().unwrap());
            stop.store(true, Ordering::Relaxed);
            ends.into()
        });
        assert!(
            heard.requests.lock().unwrap().len() > 5,
            "few commands came to the proxy: {ends:?}"
        );
        offences.extend(ends.iter().flat_map(Ended::offences));
        if arena.is_mounted() {
            fs::rename(&real, &socket).unwrap();
        } else {
            // `unmount` takes the mount of a daemon away that claims to be of another version.
            let unmounted = ends.last().and_then(Ended::code);
            if unmounted != Some(3) {
                offences.push(format!("DAEMON: the mount is gone: {ends:?}"));
            }
            offences.extend(daemon.wait().offences());
            (daemon, socket) = mount();
        }
        bother(&socket, &heard, seed ^ round << 16);
        let ended = arena.command(&["status", "MOUNT"]);
        if !matches!(ended.code(), Some(0 | 3)) {
            offences.push(format!(
                "DAEMON: no status after hostile requests: {ended:?}"
            ));
        }
        offences.extend(ended.offences());
    }
    let ended = arena.command(&["unmount", "MOUNT"]);
    if !matches!(ended.code(), Some(0 | 3)) {
        offences.push(format!(
            "DAEMON: not unmounted after hostile requests: {ended:?}"
        ));
    }
    offences.extend(ended.offences());
    offences.extend(daemon.wait().offences());
    offences
}

/// Sends a daemon what no command sends: changed requests, too much, too little, and nothing at all.
fn bother(socket: &Path, heard: &Heard, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let requests = heard.requests.lock().unwrap();
    let requests: Vec<&Vec<u8>> = requests
        .iter()
        .filter(|line| !contains(line, b"nmount"))
        .collect();
    // Clients that say nothing are there all the time.
    let silent: Vec<_> = (0..40)
        .filter_map(|_| UnixStream::connect(socket).ok())
        .collect();
    let start = Instant::now();
    for _ in 0..40 {
        let Ok(mut daemon) = UnixStream::connect(socket) else {
            continue;
        };
        let Some(request) = requests.choose(&mut rng) else {
            break;
        };
        let mut request = (*request).clone();
        change(&mut request, &mut rng);
        match rng.random_range(0..6) {
            0 => request.extend(vec![b'['; 1 << 20]),
            1 => request.retain(|byte| *byte != b'\n'),
            _ => {}
        }
        if contains(&request, b"nmount") {
            continue;
        }
        daemon.set_write_timeout(Some(SILENCE)).unwrap();
        let _ = daemon.write_all(&request);
        if rng.random() && start.elapsed() < Duration::from_secs(5) {
            let _ = read_some(&mut daemon, true);
        }
    }
    drop(silent);
}

fn contains(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|part| part == word)
}
