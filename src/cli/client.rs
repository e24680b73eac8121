//! A command's end of the control socket.
//!
//! Commands that work on directories also find a daemon whose mount was taken away, by its socket (`unlisted`).

use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

use rustix::process::Pid;

use super::failure::Failure;
use super::sentences::too_many_commands;
use super::shell::quoted_path;
use crate::control::budget::Account;
use crate::control::departure::Departure;
use crate::control::exchange::{
    ANSWER_TIMEOUT, BRIEF_TIMEOUT, Limits, Lines, exchange, exchange_line, parse,
};
use crate::control::failure::{DaemonFailure, NotDurable};
use crate::control::in_time::ask_each;
use crate::control::peer::peer_of;
use crate::control::places::{Places, SocketKind, file_stem};
use crate::control::protocol::{Answer, Envelope, Identity, Request, RequestRefusal, VERSION};
use crate::control::report::StatusReport;
use crate::fuse::mountinfo::{self, MountEntry};

#[cfg(test)]
mod tests;
mod unlisted;

pub(super) use unlisted::{Unlisted, unlisted};

/// Processes that are asked whether they serve a mount.
const MOST_ASKED: usize = 8;

/// The longest message of a daemon that is passed on, in characters.
const MOST_SAID: usize = 4096;

/// The process behind a mountpoint.
#[derive(Debug)]
pub(super) enum Peer {
    /// A daemon, to be asked.
    Daemon(Connection),
    /// A daemon that speaks another version of the protocol: this one, unless it is so old that it does not say.
    OtherVersion(Option<u32>),
    /// The remains of one that has ended and yet keeps the mount: it answers nothing any more.
    Remains(Pid),
    /// None.
    None,
}

/// A connection to the daemon of a mount, which has said that it is.
#[derive(Debug)]
pub(super) struct Connection {
    lines: Lines,
    identity: Identity,
    departure: Departure,
    /// True if it runs as our own user.
    is_own: bool,
}

impl Connection {
    /// Returns what the end of the daemon can be waited for with.
    pub(super) fn departure(&self) -> Departure {
        self.departure.clone()
    }

    /// Returns which mount the daemon says it serves.
    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the place where the daemon says it is mounted.
    fn mountpoint(&self) -> PathBuf {
        PathBuf::from(&self.identity.mountpoint)
    }

    /// Has `work` send a request and wait for its answer.
    fn exchange<T>(
        &mut self,
        request: &Request,
        work: impl FnOnce(&mut Lines, &Envelope, &Departure) -> io::Result<T>,
    ) -> Result<T, Failure> {
        let envelope = Envelope::new(Some(self.identity.clone()), request.clone());
        work(&mut self.lines, &envelope, &self.departure).map_err(|error| {
            if is_hangup(&error) && self.departure.has_ended(BRIEF_TIMEOUT) {
                return Failure::environment("the daemon was gone before it answered").advise(
                    "mount the volume again; the log says why it ended, unless it was killed",
                );
            }
            silent(&error)
        })
    }

    /// Returns the device number of the filesystem that the daemon says it serves.
    pub(super) fn device(&self) -> &str {
        &self.identity.device
    }
}

/// A mount whose daemon is looked for.
#[derive(Clone, Debug)]
pub(super) struct SoughtMount {
    pub(super) mountpoint: PathBuf,
    /// The device number; none if it is in the mount table no more.
    pub(super) device: Option<String>,
    /// The user whose daemon it is. No other process is asked.
    pub(super) user: u32,
}

/// Finds the daemon behind `mountpoint`. One that is just ending is waited for.
///
/// # Errors
///
/// If there is a daemon, and this user may not talk to it, or it does not say within `patience` which mount it serves.
pub(super) fn find_peer(
    mountpoint: &Path,
    entry: Option<&MountEntry>,
    patience: Duration,
) -> Result<Peer, Failure> {
    let own = rustix::process::geteuid();
    let user = entry.and_then(MountEntry::user).unwrap_or(own.as_raw());
    let shown = mountpoint.display();
    if user != own.as_raw() && !own.is_root() {
        return Err(Failure::environment(format!(
            "{shown} was mounted by user {user}, who alone may control it"
        ))
        .advise("run this command as that user or as the superuser"));
    }
    let target = SoughtMount {
        mountpoint: mountpoint.to_owned(),
        device: entry.map(|entry| entry.device.clone()),
        user,
    };
    search_in_time(target, patience)
}

/// Searches the places of the target's user. These may lie on anything, and get as much time again as the daemon.
pub(super) fn search_in_time(target: SoughtMount, patience: Duration) -> Result<Peer, Failure> {
    let (user, mountpoint) = (target.user, target.mountpoint.clone());
    let shown = mountpoint.display();
    let place = quoted_path(&mountpoint);
    let limits = Limits::of_identity(patience);
    let find = move |_: &Path| search(&Places::of(user), &target, &limits);
    let mut found = ask_each(slice::from_ref(&mountpoint), 2 * patience, find);
    found.pop().flatten().unwrap_or_else(|| {
        Err(Failure::environment(format!(
            "the directories of user {user} do not answer, in one of which is the socket of the daemon of {shown}"
        ))
        .advise(format!("`umount --lazy {place}` takes the mount away")))
    })
}

/// The same in given places. Failed attempts count for nothing once the daemon is found.
pub(super) fn search(
    places: &Places,
    target: &SoughtMount,
    limits: &Limits,
) -> Result<Peer, Failure> {
    let stem = file_stem(&target.mountpoint);
    let patience = limits.answer.unwrap_or(ANSWER_TIMEOUT);
    let (mut asked, mut remains, mut other, mut doubt) = (0, None, None, None);
    'places: for directory in places.existing() {
        for name in directory.sockets_of(&stem, SocketKind::towards(target.user)) {
            // One to which nothing listens, or that is no socket of the user, is none.
            let connected = directory.open_socket(&name, target.user);
            let connected = connected.and_then(|socket| socket.connect(patience));
            let stream = match connected {
                Ok(stream) => stream,
                // As expensive as one that takes connections and says nothing.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    doubt = Some(silent(&error));
                    asked += 1;
                    if asked >= MOST_ASKED {
                        break 'places;
                    }
                    continue;
                }
                Err(error) => {
                    tracing::debug!("{}: {error}", directory.path().join(&name).display());
                    continue;
                }
            };
            asked += 1;
            if asked > MOST_ASKED {
                break 'places;
            }
            let is_target =
                |identity: &Identity| identity.is_at(&target.mountpoint, target.device.as_deref());
            match question(stream, target.user, is_target, limits) {
                Ok(Peer::None) => {}
                Ok(Peer::Remains(pid)) => remains = Some(pid),
                Ok(Peer::OtherVersion(spoken)) => other = Some(spoken),
                Ok(daemon @ Peer::Daemon(_)) => return Ok(daemon),
                Err(failure) => doubt = Some(failure),
            }
        }
    }
    match (other, doubt, remains) {
        (Some(spoken), ..) => Ok(Peer::OtherVersion(spoken)),
        (None, Some(failure), _) => Err(failure),
        (None, None, Some(pid)) => Ok(Peer::Remains(pid)),
        (None, None, None) => Ok(Peer::None),
    }
}

/// Returns whether it is proven that the daemon of a mount has ended, to one who may ask its socket for questions alone. Then
/// there are such sockets of the mount, nothing listens to any, and none for commands lacks its counterpart.
pub(super) fn all_refuse(places: &Places, target: &SoughtMount, limits: &Limits) -> bool {
    let stem = file_stem(&target.mountpoint);
    let patience = limits.answer.unwrap_or(ANSWER_TIMEOUT);
    let mut refused = 0;
    for directory in places.existing() {
        let sockets = directory.sockets_of(&stem, SocketKind::Questions);
        if directory.sockets_of(&stem, SocketKind::Commands).len() > sockets.len() {
            return false;
        }
        for name in sockets {
            let socket = directory.open_socket(&name, target.user);
            match socket.and_then(|socket| socket.connect(patience)) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => refused += 1,
                Ok(_) | Err(_) => return false,
            }
        }
    }
    refused > 0
}

/// Asks the process at the other end which mount it serves; [`Peer::None`] if it is no daemon of `user`, or of a mount
/// that `is_wanted` refuses.
pub(super) fn question(
    stream: UnixStream,
    user: u32,
    is_wanted: impl Fn(&Identity) -> bool,
    limits: &Limits,
) -> Result<Peer, Failure> {
    // The process that listens, whatever is said over the socket.
    match peer_of(&stream) {
        Ok(peer) if peer.user == user => {}
        Ok(peer) => {
            tracing::warn!(
                "a process of user {} listens on a socket where only user {user} may",
                peer.user
            );
            return Ok(Peer::None);
        }
        Err(error) => {
            tracing::warn!("cannot tell who listens on a socket of user {user}: {error}");
            return Ok(Peer::None);
        }
    }
    let departure = Departure::of(&stream);
    if departure.is_under_way() {
        let pid = wait(&departure, BRIEF_TIMEOUT)?;
        return Ok(pid.map_or(Peer::None, Peer::Remains));
    }
    let mut lines = Lines::of(stream);
    let first = Envelope::new(None, Request::Identify);
    match exchange(&mut lines, &first, limits, &departure, |_| {}) {
        // The daemon of another mount, of whatever version, is none.
        Ok(Answer::Identity { mount, .. }) if !is_wanted(&mount) => Ok(Peer::None),
        Ok(Answer::Identity { version, .. }) if version != VERSION => {
            Ok(Peer::OtherVersion(Some(version)))
        }
        Ok(Answer::Identity { mount, .. }) => {
            let is_own = rustix::process::geteuid().as_raw() == user;
            Ok(Peer::Daemon(Connection {
                lines,
                identity: mount,
                departure,
                is_own,
            }))
        }
        Ok(Answer::Refused(RequestRefusal::Version { spoken })) => {
            Ok(Peer::OtherVersion(Some(spoken)))
        }
        // One that is not mounted yet.
        Ok(Answer::Refused(_)) => Ok(Peer::None),
        Ok(Answer::Failed(DaemonFailure::TooManyCommands)) => Err(too_many_commands()),
        Ok(_) => Err(Failure::environment(
            "the daemon did not say which mount it serves",
        )),
        // Its process has ended, or is about to.
        Err(_) if departure.has_ended(Duration::ZERO) => Ok(Peer::None),
        Err(_) if departure.is_under_way() => {
            let pid = wait(&departure, BRIEF_TIMEOUT)?;
            Ok(pid.map_or(Peer::None, Peer::Remains))
        }
        // Daemons of version 1 hang up on what they do not know.
        Err(error) if is_hangup(&error) => Ok(Peer::OtherVersion(None)),
        Err(error) => Err(silent(&error)),
    }
}

/// Waits for at most `patience` for the end of a daemon's process; returns the process if it is there still.
///
/// # Errors
///
/// If the system cannot say.
pub(super) fn wait(departure: &Departure, patience: Duration) -> Result<Option<Pid>, Failure> {
    departure.wait(patience).map_err(Failure::environment)
}

/// Returns the failure for a path that lies in no mount of ours.
fn in_no_volume(path: &Path) -> Failure {
    Failure::usage(format!("{} lies in no mounted volume", path.display()))
        .advise("this works on a mounted volume: `cauchyfs mount DIR... MOUNTPOINT` first")
}

fn silent(error: &io::Error) -> Failure {
    Failure::environment(format!("the daemon does not answer: {error}"))
        .advise("look at its log; `kill -TERM` of its process unmounts in good order")
}

/// Says why the daemon of a mount refused a request.
fn refused(refusal: &RequestRefusal, mountpoint: &Path) -> Failure {
    match refusal {
        RequestRefusal::Version { spoken } => other_version(Some(*spoken), mountpoint),
        RequestRefusal::Mount { served } => Failure::environment(format!(
            "the daemon serves another mount: {} of volume {} at {}",
            served.device, served.volume, served.mountpoint
        )),
        RequestRefusal::Unnamed => {
            Failure::environment("the daemon has not mounted the volume yet")
        }
        RequestRefusal::QuestionsOnly => {
            Failure::environment("the daemon takes no orders on its socket for questions")
        }
        RequestRefusal::Malformed => Failure::environment("the daemon does not know this request"),
    }
}

/// Says that the daemon of a mount speaks another version of the protocol: `spoken`, unless it is too old to say.
pub(super) fn other_version(spoken: Option<u32>, mountpoint: &Path) -> Failure {
    let spoken = spoken.map_or_else(
        || "an older version".to_owned(),
        |spoken| format!("version {spoken}"),
    );
    Failure::environment(format!(
        "the daemon speaks {spoken} of the control protocol, and this command version {VERSION}"
    ))
    .advise(format!(
        "use the `cauchyfs` that mounted the volume, or `umount {}` and mount it again",
        quoted_path(mountpoint)
    ))
}

/// Asks a daemon, and waits for its answer for as long as `request` may take.
///
/// # Errors
///
/// If the daemon does not answer, or answers with a failure.
pub(super) fn ask(connection: Connection, request: &Request) -> Result<Answer, Failure> {
    ask_and_heed(connection, request, |_| {})
}

/// The same; `heed` gets what the daemon says before its answer.
///
/// # Errors
///
/// As [`ask`].
fn ask_and_heed(
    connection: Connection,
    request: &Request,
    heed: impl FnMut(&Answer),
) -> Result<Answer, Failure> {
    let limits = Limits::of(request, connection.is_own);
    ask_within(connection, request, &limits, heed)
}

/// The same within given limits.
pub(super) fn ask_within(
    mut connection: Connection,
    request: &Request,
    limits: &Limits,
    heed: impl FnMut(&Answer),
) -> Result<Answer, Failure> {
    let mountpoint = connection.mountpoint();
    let exchanged = connection.exchange(request, |lines, envelope, departure| {
        exchange(lines, envelope, limits, departure, heed)
    });
    judged(exchanged?, &mountpoint)
}

/// Asks within given limits, and charges what arrives to an account. Then calls `read`, which lets one answer after the
/// other be read, and `take` with the answer.
pub(super) fn ask_charged<G, T>(
    mut connection: Connection,
    request: &Request,
    limits: &Limits,
    account: Account,
    read: impl FnOnce() -> G,
    take: impl FnOnce(Answer) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mountpoint = connection.mountpoint();
    connection.lines.charge(account);
    let line = connection.exchange(request, |lines, envelope, departure| {
        exchange_line(lines, envelope, limits, departure)
    })?;
    let _turn = read();
    let answer = parse(&line).map_err(|error| {
        connection.lines.refuse();
        silent(&error)
    })?;
    take(judged(answer, &mountpoint)?)
}

/// Returns the answer of a daemon that did what it was asked.
fn judged(answer: Answer, mountpoint: &Path) -> Result<Answer, Failure> {
    match answer {
        Answer::Failed(failure) => Err(shortened(failure.at(mountpoint))),
        Answer::Refused(refusal) => Err(refused(&refusal, mountpoint)),
        Answer::Held(Some(NotDurable::Failed { error })) => {
            let error = cut(error);
            Ok(Answer::Held(Some(NotDurable::Failed { error })))
        }
        answer => Ok(answer),
    }
}

/// Cuts what a daemon said to what fits on a screen.
fn shortened(failure: Failure) -> Failure {
    Failure {
        message: cut(failure.message),
        advice: failure.advice.map(cut),
        ..failure
    }
}

fn cut(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MOST_SAID) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Says whether the other end was closed.
fn is_hangup(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
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

    /// Finds the mount in which `path` lies. Returns it with the number of the inode there, or with none if the path is
    /// the mountpoint itself.
    ///
    /// # Errors
    ///
    /// If there is nothing at `path`, or it lies in no mount of ours.
    pub(super) fn holding(path: &Path) -> Result<(Self, Option<u64>), Failure> {
        let shown = path.display();
        let unreadable =
            |error| Failure::environment(format!("cannot read the mount table: {error}"));
        let located = mountinfo::locate(path)
            .map_err(|error| Failure::usage(format!("cannot find {shown}: {error}")))?;
        if mountinfo::mount_at(&located).map_err(unreadable)?.is_some() {
            return Ok((Self::at(path)?, None));
        }
        let found = std::fs::symlink_metadata(path)
            .map_err(|error| Failure::environment(format!("cannot look at {shown}: {error}")))?;
        let device = found.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let device = format!("{major}:{minor}");
        let entries = mountinfo::mounts().map_err(unreadable)?.into_iter();
        let mut entries = entries.filter(|entry| entry.is_ours() && entry.device == device);
        // The first is the daemon's own; later ones are bound to other places.
        let Some(entry) = entries.next() else {
            return Err(in_no_volume(path));
        };
        let mountpoint = entry.mountpoint.clone();
        Ok((Self { mountpoint, entry }, Some(found.ino())))
    }

    /// Finds the mount in which a path lies that is absolute and free of symbolic links.
    ///
    /// # Errors
    ///
    /// If it lies in no mount of ours.
    pub(super) fn around(path: &Path) -> Result<Self, Failure> {
        for mountpoint in path.ancestors() {
            let entry = mountinfo::mount_at(mountpoint).map_err(|error| {
                Failure::environment(format!("cannot read the mount table: {error}"))
            })?;
            match entry {
                None => {}
                Some(entry) if entry.is_ours() => {
                    return Ok(Self {
                        mountpoint: mountpoint.to_owned(),
                        entry,
                    });
                }
                Some(_) => break,
            }
        }
        Err(in_no_volume(path))
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
    pub(super) fn report(&self) -> Result<StatusReport, Failure> {
        live_report(&self.mountpoint, &self.entry)
    }

    /// Says that an answer is none to what was asked.
    pub(super) fn beside_the_point(&self) -> Failure {
        beside_the_point(&self.mountpoint)
    }
}

/// Says that an answer is none to what was asked.
pub(super) fn beside_the_point(mountpoint: &Path) -> Failure {
    Failure::environment(format!(
        "the daemon of {} answered something that was not asked",
        mountpoint.display()
    ))
}

/// Returns how the volume mounted at `mountpoint` is, from its daemon.
///
/// # Errors
///
/// If there is no daemon, or it does not answer.
pub(super) fn live_report(mountpoint: &Path, entry: &MountEntry) -> Result<StatusReport, Failure> {
    match ask(connect_to(mountpoint, entry)?, &Request::Status)? {
        Answer::Status(report) => Ok(*report),
        _ => Err(beside_the_point(mountpoint)),
    }
}

/// Connects to the daemon of a mount of ours.
///
/// # Errors
///
/// If it is gone, or this user may not talk to it.
fn connect_to(mountpoint: &Path, entry: &MountEntry) -> Result<Connection, Failure> {
    connected(
        find_peer(mountpoint, Some(entry), ANSWER_TIMEOUT)?,
        mountpoint,
    )
}

/// Returns the connection to the daemon of a mount of ours that was looked for.
///
/// # Errors
///
/// If there is none, or it speaks another version.
pub(super) fn connected(peer: Peer, mountpoint: &Path) -> Result<Connection, Failure> {
    match peer {
        Peer::Daemon(connection) => Ok(connection),
        Peer::OtherVersion(spoken) => Err(other_version(spoken, mountpoint)),
        Peer::Remains(_) | Peer::None => {
            let shown = mountpoint.display();
            let place = quoted_path(mountpoint);
            Err(
                Failure::environment(format!("the daemon that served {shown} is gone")).advise(
                    format!(
                        "mount the volume at {shown} again; to be without it, `cauchyfs unmount {place}`"
                    ),
                ),
            )
        }
    }
}
