use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

use super::*;
use crate::format::Ino;
use crate::fuse::protocol::{Header, opcode};
use crate::fuse::request::{Carrier, InFlight, Reply};

const PATIENCE: Duration = Duration::from_secs(60);

/// The reply to a request: its number, and the error or none.
type Replied = (u64, Option<Errno>);

struct Message {
    len: usize,
    replies: Sender<Replied>,
}

impl Carrier for Message {
    fn arguments(&self, _opcode: u32) -> (&[u8], &[u8]) {
        (&[], &[])
    }

    fn memory(&mut self) -> &mut [u8] {
        &mut []
    }

    fn set_aside(&mut self) {}

    fn take_up(&mut self) {}

    fn len(&self) -> usize {
        self.len
    }

    fn send(self: Box<Self>, unique: u64, reply: Reply<'_>) {
        let error = match reply {
            Reply::Error(errno) => Some(errno),
            _ => None,
        };
        let _ = self.replies.send((unique, error));
    }
}

/// A service that answers while its volume is open, and else as [`super::super::adapter`] does.
struct Volume {
    is_open: AtomicBool,
    waiting: Arc<WaitingRequests>,
    in_flight: InFlight,
}

impl Service for Volume {
    fn serve(&self, request: Request) {
        if self.is_open() {
            request.answer_bytes(&[]);
        } else if let Err(request) = self.waiting.add(request) {
            request.answer(Err(Errno::IO));
        }
    }

    fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }
}

struct Rig {
    volume: Arc<Volume>,
    replies: (Sender<Replied>, Receiver<Replied>),
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Rig {
    fn new() -> Self {
        let waiting = Arc::new(WaitingRequests::new(OnFailure::Wait));
        let volume = Arc::new(Volume {
            is_open: AtomicBool::new(false),
            waiting,
            in_flight: InFlight::default(),
        });
        let served = Arc::clone(&volume);
        let thread = std::thread::spawn(move || served.waiting.serve(&*served));
        Self {
            volume,
            replies: mpsc::channel(),
            thread: Some(thread),
        }
    }

    fn request(&self, unique: u64, len: usize) -> Request {
        self.request_of(0, unique, len)
    }

    /// Returns a request of a thread.
    fn request_of(&self, pid: u32, unique: u64, len: usize) -> Request {
        let header = Header {
            opcode: opcode::READ,
            unique,
            ino: Ino(1),
            uid: 0,
            gid: 0,
            pid,
        };
        let replies = self.replies.0.clone();
        Request::new(header, Box::new(Message { len, replies }))
    }

    fn serve(&self, unique: u64) {
        self.volume.serve(self.request(unique, 0));
    }

    fn reply(&self) -> Replied {
        self.replies.1.recv_timeout(PATIENCE).expect("it answers")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.volume.waiting.end();
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(ended.is_some_and(|ended| ended.is_ok()));
    }
}

#[test]
fn requests_wait_until_the_volume_is_open_and_then_succeed() {
    let rig = Rig::new();
    for unique in 1..=100 {
        rig.serve(unique);
    }
    rig.volume.waiting.resume();
    assert!(rig.replies.1.try_recv().is_err(), "the volume is away");
    rig.volume.is_open.store(true, Ordering::SeqCst);
    rig.volume.waiting.resume();
    let mut replies: Vec<Replied> = (0..100).map(|_| rig.reply()).collect();
    replies.sort_unstable_by_key(|(unique, _)| *unique);
    let expected: Vec<Replied> = (1..=100).map(|unique| (unique, None)).collect();
    assert_eq!(replies, expected);
}

#[test]
fn a_request_that_finds_the_volume_away_does_not_miss_its_return() {
    let rig = Rig::new();
    let late = rig.request(1, 0);
    // It was found away, and comes back before the request waits.
    rig.volume.is_open.store(true, Ordering::SeqCst);
    rig.volume.waiting.resume();
    assert!(rig.volume.waiting.add(late).is_ok());
    assert_eq!(rig.reply(), (1, None));
}

/// Starts a program that does nothing.
fn program() -> Child {
    let mut program = Command::new("sleep");
    program.arg("1000").spawn().expect("it runs")
}

#[test]
fn a_signal_that_ends_no_program_ends_no_wait() {
    let rig = Rig::new();
    let mut program = program();
    rig.volume.serve(rig.request_of(program.id(), 1, 0));
    rig.volume.waiting.interrupt(1);
    rig.volume.waiting.interrupt(2);
    rig.volume.serve(rig.request_of(program.id(), 2, 0));
    assert!(rig.replies.1.try_recv().is_err(), "both go on waiting");
    program.kill().expect("it runs");
    // It is not waited for yet, so it is a process that ends.
    let mut replies = [rig.reply(), rig.reply()];
    replies.sort_unstable_by_key(|(unique, _)| *unique);
    assert_eq!(replies, [1, 2].map(|unique| (unique, Some(Errno::INTR))));
    program.wait().expect("it was killed");
}

/// The kernel tells of no signal to a program that waits in direct I/O.
#[test]
fn the_end_of_a_program_ends_its_waits_alone_without_a_word_of_the_kernel() {
    let rig = Rig::new();
    let mut programs = [program(), program()];
    let own = std::process::id();
    for (unique, pid) in (1..).zip([programs[0].id(), programs[1].id(), own, 0]) {
        rig.volume.serve(rig.request_of(pid, unique, 0));
    }
    programs[1].kill().expect("it runs");
    assert_eq!(rig.reply(), (2, Some(Errno::INTR)));
    assert!(
        rig.replies.1.try_recv().is_err(),
        "the others go on waiting"
    );
    rig.volume.is_open.store(true, Ordering::SeqCst);
    rig.volume.waiting.resume();
    let mut replies = [rig.reply(), rig.reply(), rig.reply()];
    replies.sort_unstable_by_key(|(unique, _)| *unique);
    assert_eq!(replies, [1, 3, 4].map(|unique| (unique, None)));
    for mut program in programs {
        program.kill().expect("it was started");
        program.wait().expect("it was killed");
    }
}

/// A thread of a program begins asynchronous I/O and ends, while the program goes on.
#[test]
fn the_end_of_a_thread_ends_no_wait_of_its_process() {
    let rig = Rig::new();
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let id = rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .unsigned_abs();
        tell.send(id).expect("it is awaited");
        ended.recv().expect_err("nothing is sent");
    });
    let id = told.recv().expect("it runs");
    rig.volume.serve(rig.request_of(id, 1, 0));
    rig.volume.waiting.end_of_dying();
    drop(end);
    thread.join().expect("it does not panic");
    cauchyfs_testkit::eventually("it is gone", PATIENCE, || life_of(id) == Life::Gone);
    rig.volume.waiting.end_of_dying();
    assert!(rig.replies.1.try_recv().is_err(), "its process lives");
}

#[test]
fn a_signal_to_an_unknown_program_ends_the_wait_of_its_request_alone_also_if_it_comes_first() {
    let rig = Rig::new();
    rig.serve(1);
    rig.serve(2);
    rig.volume.waiting.interrupt(1);
    assert_eq!(rig.reply(), (1, Some(Errno::INTR)));
    rig.volume.waiting.interrupt(3);
    rig.serve(3);
    assert_eq!(rig.reply(), (3, Some(Errno::INTR)));
    assert!(rig.replies.1.try_recv().is_err(), "one goes on waiting");
}

#[test]
fn an_unmount_fails_all_that_wait_and_those_that_come() {
    let rig = Rig::new();
    rig.serve(1);
    rig.volume.waiting.release();
    assert_eq!(rig.reply(), (1, Some(Errno::IO)));
    rig.serve(2);
    assert_eq!(rig.reply(), (2, Some(Errno::IO)));
    rig.volume.waiting.take_again();
    rig.serve(3);
    assert!(rig.replies.1.try_recv().is_err(), "the mount stays");
}

#[test]
fn the_end_of_the_mount_fails_all_that_wait() {
    let rig = Rig::new();
    rig.serve(1);
    rig.volume.waiting.end();
    assert_eq!(rig.reply(), (1, Some(Errno::IO)));
}

#[test]
fn no_more_requests_and_bytes_wait_than_there_is_memory_for() {
    let rig = Rig::new();
    let mut count = 0;
    while rig.volume.waiting.add(rig.request(count, 0)).is_ok() {
        count += 1;
    }
    assert_eq!(count, MOST_REQUESTS as u64);
    assert_eq!(count, rig.volume.waiting.most() as u64);
    let rig = Rig::new();
    let mut bytes = 0;
    while let Ok(()) = rig.volume.waiting.add(rig.request(bytes, 1 << 20)) {
        bytes += 1 << 20;
    }
    assert!(bytes <= MOST_BYTES as u64 && bytes > MOST_BYTES as u64 / 2);
}

#[test]
fn nothing_waits_on_a_mount_that_reports_errors() {
    let rig = Rig::new();
    let waiting = WaitingRequests::new(OnFailure::Error);
    assert!(waiting.add(rig.request(1, 0)).is_err());
    assert!(!waiting.takes());
    assert_eq!(waiting.most(), 0);
}
