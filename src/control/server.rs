//! The daemon's end of the control socket.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::unistd::Group;
use parking_lot::{Condvar, Mutex};
use serde::Serialize;
use uuid::Uuid;

use super::departure::Departure;
use super::exchange::{BRIEF_TIMEOUT, Lines, send};
use super::failure::DaemonFailure;
use super::in_time::ask_each;
use super::peer::peer_of;
use super::places::{Places, RuntimeDirectory, SocketKind, file_stem};
use super::protocol::{Answer, Envelope, Identity, Request, RequestRefusal, VERSION, Versioned};
use crate::fuse::Transport;
use crate::fuse::mount::Mount;

/// The time for which a client may do nothing while it takes a piece of its answer.
const PIECE_TIMEOUT: Duration = Duration::from_secs(2);

/// The time that a client may take for a request, and to take all of an answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The interval at which a client that waits for a slow answer is told that it is on its way.
const SIGN_INTERVAL: Duration = Duration::from_secs(2);

/// The longest request that is read, in bytes.
const MAX_REQUEST_BYTES: usize = 32 << 10;

/// The socket of one mount.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    listener: UnixListener,
    announced: Arc<Announced>,
}

/// The socket of a mount of root on which a group asks questions. The kernel lets no other user connect to it.
#[derive(Debug)]
pub(crate) struct QuestionSocket {
    listener: UnixListener,
    _file: SocketFile,
}

/// The mount that a daemon serves, once it is mounted.
#[derive(Debug)]
pub(crate) struct Announced {
    volume: String,
    mount: Mutex<Option<Identity>>,
    transport: OnceLock<Transport>,
    is_mounted: Condvar,
}

impl Announced {
    pub(crate) fn of(volume: String) -> Self {
        Self {
            volume,
            mount: Mutex::default(),
            transport: OnceLock::new(),
            is_mounted: Condvar::new(),
        }
    }

    /// Lets commands know where the volume is mounted. They wait for that until then.
    pub(crate) fn announce(&self, mount: &Mount, transport: Transport) {
        self.transport.get_or_init(|| transport);
        *self.mount.lock() = Some(Identity::of(self.volume.clone(), mount));
        self.is_mounted.notify_all();
    }

    /// Returns the way on which requests of the kernel come, once it is mounted.
    pub(crate) fn transport(&self) -> Option<Transport> {
        self.transport.get().copied()
    }

    /// Returns the mount; a daemon that is just mounting it is given a moment.
    fn identity(&self, patience: Duration) -> Option<Identity> {
        let mut mount = self.mount.lock();
        let is_unknown = |mount: &mut Option<Identity>| mount.is_none();
        self.is_mounted
            .wait_while_for(&mut mount, is_unknown, patience);
        mount.clone()
    }
}

/// The name under which commands find a daemon; removed when dropped.
#[derive(Debug)]
pub(crate) struct SocketFile {
    directory: RuntimeDirectory,
    name: OsString,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // No other daemon has a socket of that name.
        match self.directory.remove(&self.name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let path = self.directory.path().join(&self.name);
                tracing::warn!("{} stays behind: {error}", path.display());
            }
            _ => {}
        }
    }
}

/// Makes and returns our own directory for sockets and logs of the mount at `mountpoint`.
///
/// # Errors
///
/// If there is none that only this user can write to.
pub(crate) fn own_directory(mountpoint: &Path) -> io::Result<PathBuf> {
    let directory = own_places().open_or_make(mountpoint, BRIEF_TIMEOUT)?;
    Ok(directory.path().to_owned())
}

fn own_places() -> Places {
    Places::of(rustix::process::geteuid().as_raw())
}

/// Opens our own directory for the socket of `mountpoint`. Removes sockets that dead daemons left there.
///
/// # Errors
///
/// If there is no directory for it.
pub(crate) fn prepare(mountpoint: &Path) -> io::Result<RuntimeDirectory> {
    prepare_in(&own_places(), mountpoint, BRIEF_TIMEOUT)
}

/// The same in given places, of which those that do not answer within `patience` are left out.
pub(crate) fn prepare_in(
    places: &Places,
    mountpoint: &Path,
    patience: Duration,
) -> io::Result<RuntimeDirectory> {
    clear_in(places, mountpoint, patience);
    places.open_or_make(mountpoint, patience)
}

/// Opens the socket of `mountpoint` in `directory` for commands of the same user and of the superuser.
///
/// # Errors
///
/// If it cannot be made.
pub(crate) fn open(
    directory: RuntimeDirectory,
    mountpoint: &Path,
    volume: String,
) -> io::Result<(ControlSocket, SocketFile)> {
    // No other user can have made a link to it before.
    let name = format!("{}-{}.sock", file_stem(mountpoint), Uuid::new_v4().simple());
    let path = directory.short_path(&name);
    let listener = UnixListener::bind(&path)?;
    let file = SocketFile {
        directory,
        name: name.into(),
    };
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    let announced = Arc::new(Announced::of(volume));
    Ok((
        ControlSocket {
            listener,
            announced,
        },
        file,
    ))
}

/// The group whose members may ask how root's volumes are.
pub(crate) const GROUP: &str = "cauchyfs";

/// Opens the socket for questions of the group, if this is root's mount and there is such a group.
///
/// # Errors
///
/// If it cannot be made.
pub(crate) fn open_for_group(
    directory: &RuntimeDirectory,
    mountpoint: &Path,
) -> io::Result<Option<QuestionSocket>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let Some(group) = Group::from_name(GROUP).map_err(io::Error::from)? else {
        return Ok(None);
    };
    let group = group.gid.as_raw();
    let stem = file_stem(mountpoint);
    let end = SocketKind::Questions.end();
    let name = format!("{stem}-{}{end}", Uuid::new_v4().simple());
    let path = directory.short_path(&name);
    let listener = UnixListener::bind(&path)?;
    let file = SocketFile {
        directory: directory.try_clone()?,
        name: name.into(),
    };
    std::os::unix::fs::chown(&path, None, Some(group))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660))?;
    directory.open_to_group(group)?;
    Ok(Some(QuestionSocket {
        listener,
        _file: file,
    }))
}

impl QuestionSocket {
    /// Waits for a connection.
    ///
    /// # Errors
    ///
    /// If none can be taken.
    pub(crate) fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = self.listener.accept()?;
        stream.set_write_timeout(Some(PIECE_TIMEOUT))?;
        Ok(stream)
    }
}

/// Removes the sockets that daemons of ours left at `mountpoint` when they died.
pub(crate) fn clear(mountpoint: &Path) {
    clear_in(&own_places(), mountpoint, BRIEF_TIMEOUT);
}

/// Clears places one after the other, and waits no longer than `patience`. The rest stays for the next time.
fn clear_in(places: &Places, mountpoint: &Path, patience: Duration) {
    let places = places.clone();
    let clear = move |mountpoint: &Path| clear_each(&places, mountpoint);
    ask_each(&[mountpoint.to_owned()], patience, clear);
}

fn clear_each(places: &Places, mountpoint: &Path) {
    let stem = file_stem(mountpoint);
    for directory in places.existing() {
        let kinds = [SocketKind::Commands, SocketKind::Questions];
        let names = kinds.map(|kind| directory.sockets_of(&stem, kind));
        for name in names.into_iter().flatten() {
            let Ok(socket) = directory.open_socket(&name, places.user) else {
                continue;
            };
            let is_dead = match socket.connect(BRIEF_TIMEOUT) {
                Ok(stream) => Departure::of(&stream).is_under_way(),
                Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
            };
            if is_dead && let Err(error) = directory.remove(&name) {
                let path = directory.path().join(&name);
                tracing::warn!("{} stays behind: {error}", path.display());
            }
        }
    }
}

impl ControlSocket {
    /// Returns what lets commands know where the volume is mounted.
    pub(crate) fn announced(&self) -> Arc<Announced> {
        Arc::clone(&self.announced)
    }

    /// Waits for a connection of our own user or of the superuser.
    ///
    /// # Errors
    ///
    /// If none can be taken, or it is another user's.
    pub(crate) fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = self.listener.accept()?;
        stream.set_write_timeout(Some(PIECE_TIMEOUT))?;
        let user = peer_of(&stream)?.user;
        if user == 0 || user == rustix::process::geteuid().as_raw() {
            return Ok(stream);
        }
        Err(io::Error::other(format!(
            "user {user} may not give commands"
        )))
    }
}

/// Reads the request of a client, having told it which mount this is if it asked.
///
/// # Errors
///
/// If the client said nothing in time, or nothing that is for this daemon; it is told so.
pub(crate) fn receive(stream: &UnixStream, announced: &Announced) -> io::Result<Request> {
    let mut lines = Lines::of(stream.try_clone()?);
    let mut next = || {
        let until = Instant::now() + CLIENT_TIMEOUT;
        lines.next(MAX_REQUEST_BYTES, Some(until), || false)
    };
    let mut asked = judge(&next()?, announced);
    if let Ok(Request::Identify) = asked {
        let identity = announced.identity(CLIENT_TIMEOUT);
        let answer = identity.map_or(Answer::Refused(RequestRefusal::Unnamed), |mount| {
            let version = VERSION;
            Answer::Identity { version, mount }
        });
        tell(stream, &answer)?;
        asked = judge(&next()?, announced);
    }
    match asked {
        Ok(Request::Identify) => Err(io::Error::other("it asked twice which mount this is")),
        Ok(request) => Ok(request),
        Err(Refused::Request(refusal)) => {
            let reason = format!("it was refused: {refusal:?}");
            tell(stream, &Answer::Refused(refusal))?;
            Err(io::Error::other(reason))
        }
        Err(Refused::Version1) => {
            send_line(stream, &Version1Answer::too_old())?;
            Err(io::Error::other("it is of version 1"))
        }
    }
}

/// A line that is no request for this daemon.
enum Refused {
    /// A line of version 1, which had no envelopes.
    Version1,
    /// Any other.
    Request(RequestRefusal),
}

/// Returns the request of a line, if it is for this daemon.
fn judge(line: &[u8], announced: &Announced) -> Result<Request, Refused> {
    match serde_json::from_slice(line) {
        Ok(Versioned { version: VERSION }) => {}
        Ok(Versioned { .. }) => {
            let spoken = VERSION;
            return Err(Refused::Request(RequestRefusal::Version { spoken }));
        }
        Err(_) => return Err(Refused::Version1),
    }
    let Ok(Envelope { mount, request, .. }) = serde_json::from_slice(line) else {
        return Err(Refused::Request(RequestRefusal::Malformed));
    };
    let served = announced.identity(Duration::ZERO);
    match (mount, served) {
        _ if request == Request::Identify => Ok(request),
        (Some(mount), Some(served)) if mount == served => Ok(request),
        (Some(_), Some(served)) => Err(Refused::Request(RequestRefusal::Mount { served })),
        _ => Err(Refused::Request(RequestRefusal::Unnamed)),
    }
}

/// An answer that commands of version 1 know.
#[derive(Serialize)]
struct Version1Answer {
    failed: Version1Failure,
}

#[derive(Serialize)]
struct Version1Failure {
    fault: &'static str,
    message: String,
    advice: &'static str,
}

impl Version1Answer {
    /// Says that this daemon is of another version.
    fn too_old() -> Self {
        let message = format!(
            "the daemon speaks version {VERSION} of the control protocol, and the command no version that it knows"
        );
        Self {
            failed: Version1Failure {
                fault: "Environment",
                message,
                advice: "use the `cauchyfs` that mounted the volume, or `umount` and mount it again",
            },
        }
    }
}

/// A failure in the form of every version: those up to 2 knew sentences, and later ones know a word with fields. Each
/// ignores the fields of the others.
#[derive(Serialize)]
struct AnswerOfEveryVersion {
    failed: FailureOfEveryVersion,
}

#[derive(Serialize)]
struct FailureOfEveryVersion {
    #[serde(flatten)]
    failure: DaemonFailure,
    #[serde(flatten)]
    sentences: Version1Failure,
}

/// Tells a client that the daemon answers as many commands as it can. Its request is not read, so its version is unknown.
///
/// # Errors
///
/// If the client is gone.
pub(crate) fn refuse_one_too_many(stream: &UnixStream) -> io::Result<()> {
    let answer = AnswerOfEveryVersion {
        failed: FailureOfEveryVersion {
            failure: DaemonFailure::TooManyCommands,
            sentences: Version1Failure {
                fault: "Environment",
                message: "the daemon is answering too many commands".to_owned(),
                advice: "try again",
            },
        },
    };
    send_line(stream, &answer)
}

/// Tells a client that its answer is on its way: an empty line, which an answer may begin with.
///
/// # Errors
///
/// If the client is gone.
pub(crate) fn give_sign(stream: &UnixStream) -> io::Result<()> {
    send(stream, b"\n", Instant::now() + CLIENT_TIMEOUT)
}

/// Does what may take long, and gives signs of life meanwhile.
pub(crate) fn meanwhile<T>(client: &UnixStream, work: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        let signs = move || {
            while is_done.recv_timeout(SIGN_INTERVAL) == Err(RecvTimeoutError::Timeout)
                && give_sign(client).is_ok()
            {}
        };
        if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, signs) {
            tracing::warn!("a command gets no signs of life: {error}");
        }
        let outcome = work();
        drop(done);
        outcome
    })
}

/// Sends an answer, and logs if the client did not take it.
pub(crate) fn answer(stream: &UnixStream, answer: &Answer) {
    if let Err(error) = tell(stream, answer) {
        note_dropped("an answer", &error);
    }
}

/// Logs that `what` was dropped on the control socket, unless the client hung up: a command may be ended at any time, and
/// other programs may look whether a socket is served.
pub(crate) fn note_dropped(what: &str, error: &io::Error) {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected, UnexpectedEof};
    if matches!(
        error.kind(),
        BrokenPipe | ConnectionReset | NotConnected | UnexpectedEof
    ) {
        tracing::trace!("{what} on the control socket was cut off: {error}");
    } else {
        tracing::info!("{what} on the control socket was dropped: {error}");
    }
}

/// Sends a line.
///
/// # Errors
///
/// If the client is gone.
pub(crate) fn tell(stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    send_line(stream, answer)
}

fn send_line(stream: &UnixStream, answer: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    send(stream, &line, Instant::now() + CLIENT_TIMEOUT)
}
