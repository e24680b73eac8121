//! The control socket: how commands talk to the daemon behind a mountpoint.
//!
//! One Unix socket for each mount, named after the mountpoint, in the runtime directory of the user
//! who mounted it. A connection carries one request and one answer, each a line of JSON; empty lines
//! before an answer say that it takes its time, and lines of JSON how far it is. The daemon's process ends soon after its answer, and
//! whoever unmounts waits for that too.

use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use super::failure::Failure;
use super::report::{RebuildReport, Report};
use super::scrub::{Progress, Scrubbed};
use crate::fuse::mountinfo::{self, MountEntry};

/// How long a daemon may be silent, and how long it may take to end.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// How long to wait for a daemon that is perhaps none of our business.
const BRIEF_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a client may take for its request, and to take a piece of its answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest request that is read.
const MAX_REQUEST_BYTES: u64 = 32 << 10;

/// What a daemon can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Request {
    /// How is the volume?
    Status,
    /// Which directories are in use? Answered at once, where a status may have to count.
    Directories,
    /// Which volume is it, and which members is it without?
    Membership,
    /// Verify everything and repair what is wrong; goes on as long as the client is there.
    Scrub {
        /// The most that may be read in a second.
        bytes_per_second: Option<u64>,
    },
    /// Unmount, make everything durable, answer, exit.
    Unmount {
        /// Although something below the mountpoint is in use.
        lazy: bool,
    },
    /// Rebuild what is missing.
    Rebuild {
        /// No faster than this, if it is said.
        bytes_per_second: Option<u64>,
    },
    /// Take a directory into the volume, and rebuild what it is to have.
    Join {
        /// The member whose place it takes, by path or number; it gets one of its own without.
        old: Option<String>,
        /// The directory.
        directory: PathBuf,
        /// Whether old data is to move there.
        balance: bool,
        /// No faster than this, if it is said.
        bytes_per_second: Option<u64>,
    },
    /// Move everything off a member, and let it go.
    Remove {
        /// The member, by path or number.
        member: String,
        /// No faster than this, if it is said.
        bytes_per_second: Option<u64>,
    },
    /// How far is that? Answered once it is done, and otherwise in a moment.
    RebuildProgress {
        /// What was answered to the order.
        order: u64,
    },
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Answer {
    /// How the volume is.
    Status(Box<Report>),
    /// The directories that are open and locked.
    Directories(Vec<PathBuf>),
    /// Which volume it is.
    Membership(Membership),
    /// How far a scrub is; the answer is yet to come.
    Scrubbing(Progress),
    /// What a scrub came to.
    Scrubbed(Scrubbed),
    /// It will be rebuilt; the number of the order.
    Ordered(u64),
    /// A directory is a member now.
    Joined {
        /// Its number.
        member: u16,
        /// The number of the order to rebuild.
        order: u64,
    },
    /// A member is to be emptied and let go.
    Leaving {
        /// Its number.
        member: u16,
        /// The number of the order to rebuild.
        order: u64,
    },
    /// How far a rebuild is.
    Rebuild {
        /// In numbers.
        report: RebuildReport,
        /// Whether the order is carried out.
        done: bool,
    },
    /// Unmounted; everything is durable.
    Unmounted,
    /// The same, but the kernel lets the process end only when these directories answer.
    Lingering(Vec<String>),
    /// It could not be done.
    Failed(Failure),
}

/// Which volume a mount serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Membership {
    /// Its identity.
    pub(super) volume: String,
    /// Whether it is written to.
    pub(super) writable: bool,
    /// The members that it is without.
    pub(super) away: Vec<Absentee>,
}

/// A member that a mount is without.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Absentee {
    /// Its number.
    pub(super) index: u16,
    /// Its identity.
    pub(super) id: String,
}

/// Returns the directories in which the sockets of `user` may be, the best one first. Which one a
/// daemon took depends on the session that started it.
fn runtime_directories(user: u32) -> Vec<PathBuf> {
    if user == 0 {
        return vec![PathBuf::from("/run/cauchyfs")];
    }
    let mine = rustix::process::geteuid().as_raw() == user;
    let from_session = mine.then(|| std::env::var_os("XDG_RUNTIME_DIR")).flatten();
    let sessions = from_session
        .map(PathBuf::from)
        .into_iter()
        .chain([PathBuf::from(format!("/run/user/{user}"))]);
    let mut directories: Vec<PathBuf> = sessions
        .filter(|directory| directory.is_dir())
        .map(|directory| directory.join("cauchyfs"))
        .collect();
    directories.push(PathBuf::from(format!("/tmp/cauchyfs-{user}")));
    directories.dedup();
    directories
}

/// Makes and returns our own directory for sockets, which nobody else can write to.
///
/// # Errors
///
/// If it cannot be made, or if it belongs to someone else.
pub(super) fn own_directory() -> io::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let directory = runtime_directories(user).swap_remove(0);
    match DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let meta = fs::symlink_metadata(&directory)?;
    if !meta.is_dir() || meta.uid() != user || meta.mode() & 0o022 != 0 {
        return Err(io::Error::other(format!(
            "{} is not a directory of ours alone",
            directory.display()
        )));
    }
    Ok(directory)
}

/// Returns the name under which files about `mountpoint` go into a runtime directory.
pub(super) fn file_stem(mountpoint: &Path) -> String {
    // FNV-1a, 64 bits: stable over builds, and short enough for a socket's path.
    let hash = mountpoint
        .as_os_str()
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("{hash:016x}")
}

/// The daemon's end: the socket of one mount.
#[derive(Debug)]
pub(super) struct ControlSocket(UnixListener);

/// The name under which commands find a daemon; removed when dropped.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Tells our socket from one that a later daemon put in its place.
    inode: u64,
}

/// Opens the socket of `mountpoint` for commands of the same user.
///
/// # Errors
///
/// If the runtime directory cannot be used.
pub(super) fn open(mountpoint: &Path) -> io::Result<(ControlSocket, SocketFile)> {
    let path = own_directory()?
        .join(file_stem(mountpoint))
        .with_extension("sock");
    // What is there belongs to a daemon that is gone: this one has the mountpoint.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    let inode = fs::symlink_metadata(&path)?.ino();
    Ok((ControlSocket(listener), SocketFile { path, inode }))
}

impl ControlSocket {
    /// Waits for a connection.
    ///
    /// # Errors
    ///
    /// If none can be taken.
    pub(super) fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = self.0.accept()?;
        stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
        stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        Ok(stream)
    }
}

/// Reads the request of a client.
///
/// # Errors
///
/// If the client said nothing in time, or nothing that makes sense.
pub(super) fn receive(stream: &UnixStream) -> io::Result<Request> {
    let mut line = String::new();
    BufReader::new(stream.take(MAX_REQUEST_BYTES)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Tells a client that its answer is on its way: an empty line, which an answer may begin with.
///
/// # Errors
///
/// If the client is gone.
pub(super) fn give_sign(mut stream: &UnixStream) -> io::Result<()> {
    stream.write_all(b"\n")
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() != self.inode) {
            return;
        }
        if let Err(error) = fs::remove_file(&self.path) {
            log::warn!("{} stays behind: {error}", self.path.display());
        }
    }
}

/// Takes away the socket that the daemon of `entry` left at `mountpoint` when it died.
pub(super) fn clear(mountpoint: &Path, entry: &MountEntry) {
    let user = entry
        .user()
        .unwrap_or_else(|| rustix::process::geteuid().as_raw());
    for directory in runtime_directories(user) {
        let path = directory.join(file_stem(mountpoint)).with_extension("sock");
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                log::warn!("{} stays behind: {error}", path.display());
            }
            _ => {}
        }
    }
}

/// Sends an answer and logs if nobody took it.
pub(super) fn answer(stream: &UnixStream, answer: &Answer) {
    if let Err(error) = tell(stream, answer) {
        log::info!("an answer on the control socket was not taken: {error}");
    }
}

/// Sends a line.
///
/// # Errors
///
/// If the client is gone.
pub(super) fn tell(mut stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Who is behind a mountpoint.
pub(super) enum Peer {
    /// A daemon, to be asked.
    Daemon(UnixStream),
    /// What is left of one that has ended and yet keeps the mount: it answers nothing any more.
    Remains(Pid),
    /// Nobody.
    None,
}

/// Connects to the daemon behind `mountpoint`; `None` if there is none that could answer.
///
/// # Errors
///
/// As [`find_peer`].
fn connect(mountpoint: &Path, entry: &MountEntry) -> Result<Option<UnixStream>, Failure> {
    Ok(match find_peer(mountpoint, Some(entry))? {
        Peer::Daemon(stream) => Some(stream),
        Peer::Remains(_) | Peer::None => None,
    })
}

/// Returns who is behind `mountpoint`. One that is just ending is waited for.
///
/// # Errors
///
/// If there is a daemon and this user may not talk to it.
pub(super) fn find_peer(mountpoint: &Path, entry: Option<&MountEntry>) -> Result<Peer, Failure> {
    let own = rustix::process::geteuid().as_raw();
    let user = entry.and_then(MountEntry::user).unwrap_or(own);
    let stem = file_stem(mountpoint);
    let mut directories = runtime_directories(user);
    directories.extend(runtime_directories(own));
    for directory in directories {
        let path = directory.join(&stem).with_extension("sock");
        match UnixStream::connect(&path) {
            Ok(stream) if serves(&stream, &[user, own]) => {
                let departure = Departure::of(&stream);
                if !departure.is_under_way() {
                    return Ok(Peer::Daemon(stream));
                }
                if let Some(pid) = departure.wait(BRIEF_TIMEOUT)? {
                    return Ok(Peer::Remains(pid));
                }
            }
            // Anybody can put a socket where anybody can write.
            Ok(_) => log::warn!("{} is not a daemon of user {user}", path.display()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(Failure::environment(format!(
                    "{} was mounted by user {user}, who alone may control it",
                    mountpoint.display()
                ))
                .advise("run this command as that user or as the superuser"));
            }
            // Refused: the socket is there and its daemon is not.
            Err(_) => {}
        }
    }
    Ok(Peer::None)
}

/// Says whether the process at the other end runs as one of `users`.
fn serves(stream: &UnixStream, users: &[u32]) -> bool {
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| users.contains(&peer.uid.as_raw()))
}

/// Asks a daemon, and waits for its answer for as long as `request` may take.
///
/// # Errors
///
/// If the daemon does not answer, or answers with a failure.
pub(super) fn ask(stream: UnixStream, request: &Request) -> Result<Answer, Failure> {
    ask_and_heed(stream, request, |_| {})
}

/// The same; `heed` gets what the daemon says before its answer.
///
/// # Errors
///
/// As [`ask`].
fn ask_and_heed(
    stream: UnixStream,
    request: &Request,
    heed: impl FnMut(&Answer),
) -> Result<Answer, Failure> {
    let departure = Departure::of(&stream);
    let silent = |error: io::Error| match departure.wait(BRIEF_TIMEOUT) {
        Ok(None) if is_hangup(&error) => {
            Failure::environment("the daemon was gone before it answered")
                .advise("mount the volume again; the log says why it ended, unless it was killed")
        }
        _ => Failure::environment(format!("the daemon does not answer: {error}"))
            .advise("look at its log; `kill -TERM` of its process unmounts in good order"),
    };
    match exchange(stream, request, &departure, heed).map_err(silent)? {
        Answer::Failed(failure) => Err(failure),
        answer => Ok(answer),
    }
}

/// Says whether the other end was closed.
fn is_hangup(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn exchange(
    mut stream: UnixStream,
    request: &Request,
    departure: &Departure,
    mut heed: impl FnMut(&Answer),
) -> io::Result<Answer> {
    let (patience, is_endless) = match request {
        Request::Membership => (BRIEF_TIMEOUT, false),
        Request::Status
        | Request::Directories
        | Request::Scrub { .. }
        | Request::Rebuild { .. }
        | Request::Join { .. }
        | Request::Remove { .. }
        | Request::RebuildProgress { .. } => (ANSWER_TIMEOUT, false),
        // Flushing takes as long as there is to flush, for a daemon that lives.
        Request::Unmount { .. } => (BRIEF_TIMEOUT, true),
    };
    let is_waited_for = |error: &io::Error| {
        is_endless && error.kind() == io::ErrorKind::WouldBlock && !departure.is_under_way()
    };
    stream.set_read_timeout(Some(patience))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut lines = BufReader::new(stream);
    let mut text = Vec::new();
    loop {
        match lines.read_until(b'\n', &mut text) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if is_waited_for(&error) => continue,
            Err(error) => return Err(error),
        }
        let line = std::mem::take(&mut text);
        if line.trim_ascii().is_empty() {
            continue;
        }
        match serde_json::from_slice(&line)? {
            said @ Answer::Scrubbing(_) => heed(&said),
            answer => return Ok(answer),
        }
    }
}

/// Waits until the process at the other end of a connection is gone, once it has said that it ends or hung up.
///
/// Taken before the request is sent, so that the process is the right one.
pub(super) struct Departure(Option<Leaving>);

struct Leaving {
    process: OwnedFd,
    pid: Pid,
}

impl Departure {
    /// Remembers the process behind `stream`; nothing to wait for if it cannot be told.
    pub(super) fn of(stream: &UnixStream) -> Self {
        let leaving = rustix::net::sockopt::socket_peercred(stream).and_then(|peer| {
            let process = pidfd_open(peer.pid, PidfdFlags::empty())?;
            Ok(Leaving {
                process,
                pid: peer.pid,
            })
        });
        Self(leaving.ok())
    }

    /// Says whether the process has ended and the system is yet to close what it had open, its socket among that.
    fn is_under_way(&self) -> bool {
        // Its memory goes first, and with it the words that it was started with.
        let has_no_memory = |Leaving { pid, .. }: &Leaving| {
            fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()))
                .is_ok_and(|words| words.is_empty())
        };
        self.0.as_ref().is_some_and(has_no_memory)
    }

    /// Waits for at most `patience`; returns the process if it is still there then.
    ///
    /// # Errors
    ///
    /// If the system cannot say.
    pub(super) fn wait(&self, patience: Duration) -> Result<Option<Pid>, Failure> {
        let Some(Leaving { process, pid }) = &self.0 else {
            return Ok(None);
        };
        let timeout = Timespec::try_from(patience).map_err(Failure::environment)?;
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => Ok(Some(*pid)),
            Ok(_) => Ok(None),
            Err(error) => Err(Failure::environment(io::Error::from(error))),
        }
    }
}

/// A volume that is mounted, to be talked to.
#[derive(Debug)]
pub(super) struct LiveMount {
    mountpoint: PathBuf,
    entry: MountEntry,
}

impl LiveMount {
    /// Finds the mount at `path`.
    ///
    /// # Errors
    ///
    /// If nothing of ours is mounted there.
    pub(super) fn at(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let mountpoint = mountinfo::locate(path)
            .map_err(|error| Failure::usage(format!("cannot find {shown}: {error}")))?;
        let entry = mountinfo::mount_at(&mountpoint).map_err(|error| {
            Failure::environment(format!("cannot read the mount table: {error}"))
        })?;
        match entry {
            Some(entry) if entry.is_ours() => Ok(Self { mountpoint, entry }),
            _ => Err(
                Failure::usage(format!("no volume is mounted at {shown}")).advise(
                    "this works on a mounted volume: `cauchyfs mount DIR... MOUNTPOINT` first",
                ),
            ),
        }
    }

    /// Returns where it is mounted.
    pub(super) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Asks its daemon.
    ///
    /// # Errors
    ///
    /// As [`ask`], and if there is no daemon.
    pub(super) fn ask(&self, request: &Request) -> Result<Answer, Failure> {
        self.ask_and_heed(request, |_| {})
    }

    /// The same; `heed` gets what the daemon says before its answer.
    ///
    /// # Errors
    ///
    /// As [`LiveMount::ask`].
    pub(super) fn ask_and_heed(
        &self,
        request: &Request,
        heed: impl FnMut(&Answer),
    ) -> Result<Answer, Failure> {
        ask_and_heed(connect_to(&self.mountpoint, &self.entry)?, request, heed)
    }

    /// Returns how it is.
    ///
    /// # Errors
    ///
    /// As [`live_report`].
    pub(super) fn report(&self) -> Result<Report, Failure> {
        live_report(&self.mountpoint, &self.entry)
    }

    /// Says that an answer is none to what was asked.
    pub(super) fn beside_the_point(&self, answer: &Answer) -> Failure {
        let shown = self.mountpoint.display();
        Failure::environment(format!(
            "the daemon of {shown} answered beside the point: {answer:?}"
        ))
    }
}

/// Returns how the volume mounted at `mountpoint` is, from its daemon.
///
/// # Errors
///
/// If there is no daemon, or it does not answer.
pub(super) fn live_report(mountpoint: &Path, entry: &MountEntry) -> Result<Report, Failure> {
    match ask(connect_to(mountpoint, entry)?, &Request::Status)? {
        Answer::Status(report) => Ok(*report),
        other => Err(Failure::environment(format!(
            "the daemon of {} answered beside the point: {other:?}",
            mountpoint.display()
        ))),
    }
}

/// Connects to the daemon of a mount of ours.
///
/// # Errors
///
/// If it is gone, or this user may not talk to it.
pub(super) fn connect_to(mountpoint: &Path, entry: &MountEntry) -> Result<UnixStream, Failure> {
    let shown = mountpoint.display();
    connect(mountpoint, entry)?.ok_or_else(|| {
        Failure::environment(format!("the daemon that served {shown} is gone")).advise(format!(
            "mount the volume at {shown} again; to be without it, `cauchyfs unmount {shown}`"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sockets_are_short_and_differ_with_the_mountpoint() {
        let (one, other) = (
            file_stem(Path::new("/mnt/a")),
            file_stem(Path::new("/mnt/b")),
        );
        assert_ne!(one, other);
        assert_eq!(one.len(), 16);
        // Stable over builds: commands of a newer version find older daemons.
        assert_eq!(file_stem(Path::new("")), "cbf29ce484222325");
    }

    #[test]
    fn a_request_and_its_answer_are_a_line_of_json_each() {
        let request = serde_json::to_string(&Request::Unmount { lazy: true }).unwrap();
        assert_eq!(request, r#"{"unmount":{"lazy":true}}"#);
        assert_eq!(
            serde_json::to_string(&Request::Status).unwrap(),
            r#""status""#
        );
    }
}
