//! A small process that mounts and unmounts for a confined daemon.
//!
//! A daemon that can gain no privileges cannot use `fusermount3`, which is a setuid program. The daemon of a foreign
//! volume, run by the superuser, is to keep no right to mount. Both start this process before they confine
//! themselves, and before they read a member.
//!
//! It works on one mountpoint, which its arguments name. It mounts there once and passes the descriptor on. From
//! then on it syncs and unmounts that filesystem, which it tells from others by the device number. It may also take
//! away a dead mount of ours that lies there before. Its arguments can name the log file of the daemon too, which the
//! daemon itself may not be able to open again. It does nothing else.
//!
//! It holds no descriptor of the daemon but its end of a socket, and ends when the other end is closed. So it does not
//! outlive the daemon, however that ends. Signals that end the daemon do not end it, because the daemon then unmounts.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use cauchyfs_sandbox::calls::{self, Daemon};
use cauchyfs_sandbox::privileges;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use super::dead_mount::{self, ClearedMounts};
use super::log_file;
use super::mount_refusal::{MountRefusal, SystemError};
use super::passing::{receive, send, socket_pair};
use super::process;
use crate::fuse::mount::{Mount, MountError, MountFlavor, Mounted, Mounter, Unmount, mount};
use crate::fuse::mountinfo::{self, MountEntry};

/// Argument that asks for this process; the mountpoint follows, and then the log file, if there is one.
const WORD: &str = "--mounter";

/// Name of the process, of which the kernel keeps 15 bytes.
const NAME: &std::ffi::CStr = c"cauchyfs-mount";

/// Request of a daemon, one message each.
#[derive(Debug, Serialize, Deserialize)]
enum MounterRequest {
    /// Take away the dead mount with this device number.
    Clear(String),
    /// Mount; once.
    Mount(MountFlavor),
    /// Unmount what was mounted.
    Unmount(Unmount),
    /// Have the kernel write what it holds of what was mounted.
    Sync,
    /// Open the log file of the daemon.
    OpenLog,
}

/// Answer to a request, one message each.
#[derive(Debug, Serialize, Deserialize)]
enum MounterAnswer {
    /// The dead mount is gone; none if another process took it away.
    Cleared(Option<ClearedMounts>),
    /// It is mounted, with this device number; the descriptor comes along.
    Mounted(String),
    /// It is unmounted.
    Unmounted,
    /// The kernel has written what it held.
    Synced,
    /// The kernel could not write all of it.
    NotSynced(SystemError),
    /// The log file is open; the descriptor comes along.
    LogOpened,
    /// The log file could not be opened, or there is none.
    LogNotOpened(SystemError),
    /// Mounting or unmounting failed.
    Refused(MountRefusal),
}

/// The process that mounts and unmounts for a daemon.
#[derive(Debug)]
pub(crate) enum Mounting {
    /// The daemon itself.
    Itself,
    /// A process of its own, at the other end of a socket. One request at a time is under way.
    Helper(Mutex<OwnedFd>),
}

impl Mounting {
    /// Starts a process that mounts and unmounts at `mountpoint`, and opens the log file `log`.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub(crate) fn helper(mountpoint: &Path, log: Option<&Path>) -> io::Result<Self> {
        process::keep_descriptors_to_ourselves();
        let (ours, theirs) = socket_pair()?;
        let path = std::env::var_os("PATH");
        process::program()
            .arg(WORD)
            .arg(mountpoint)
            .args(log)
            .env_clear()
            .envs(path.map(|path| ("PATH", path)))
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self::Helper(Mutex::new(ours)))
    }

    /// Says whether a process of its own mounts and unmounts.
    pub(crate) fn is_helper(&self) -> bool {
        matches!(self, Self::Helper(_))
    }

    /// Opens the log file of the daemon; see [`log_file::open`].
    ///
    /// # Errors
    ///
    /// As [`log_file::open`].
    pub(crate) fn open_log(&self, path: &Path) -> io::Result<File> {
        let Self::Helper(socket) = self else {
            return log_file::open(path);
        };
        match ask(socket, &MounterRequest::OpenLog)? {
            (MounterAnswer::LogOpened, Some(log)) => Ok(log.into()),
            (MounterAnswer::LogNotOpened(cause), _) => Err(cause.into()),
            _ => Err(beside_the_point()),
        }
    }

    /// Takes away a dead mount as [`dead_mount::clear_abandoned`] does.
    ///
    /// # Errors
    ///
    /// If it cannot be taken away.
    pub(crate) fn clear(
        &self,
        mountpoint: &Path,
        dead: &MountEntry,
    ) -> Result<Option<ClearedMounts>, MountError> {
        let Self::Helper(socket) = self else {
            return dead_mount::clear_abandoned(mountpoint, dead);
        };
        let stuck = |source| MountError::Stuck {
            mountpoint: mountpoint.to_owned(),
            source,
        };
        match ask(socket, &MounterRequest::Clear(dead.device.clone())).map_err(stuck)? {
            (MounterAnswer::Cleared(cleared), _) => Ok(cleared),
            (MounterAnswer::Refused(refusal), _) => Err(refusal.at(mountpoint)),
            _ => Err(stuck(beside_the_point())),
        }
    }
}

impl Mounter for Mounting {
    fn mount(&self, mountpoint: &Path, flavor: &MountFlavor) -> Result<Mounted, MountError> {
        let Self::Helper(socket) = self else {
            return mount(mountpoint, flavor);
        };
        let refused = |source| MountError::Refused {
            mountpoint: mountpoint.to_owned(),
            source,
        };
        match ask(socket, &MounterRequest::Mount(flavor.clone())).map_err(refused)? {
            (MounterAnswer::Mounted(device_number), Some(device)) => Ok(Mounted {
                device,
                mount: Mount::new(mountpoint, device_number),
            }),
            (MounterAnswer::Refused(refusal), _) => Err(refusal.at(mountpoint)),
            _ => Err(refused(beside_the_point())),
        }
    }

    fn unmount(&self, mount: &Mount, how: Unmount) -> Result<(), MountError> {
        let Self::Helper(socket) = self else {
            return mount.unmount(how);
        };
        let stuck = |source| MountError::Stuck {
            mountpoint: mount.mountpoint().to_owned(),
            source,
        };
        match ask(socket, &MounterRequest::Unmount(how)).map_err(stuck)? {
            (MounterAnswer::Unmounted, _) => Ok(()),
            (MounterAnswer::Refused(refusal), _) => Err(refusal.at(mount.mountpoint())),
            _ => Err(stuck(beside_the_point())),
        }
    }

    fn sync(&self, mount: &Mount) -> io::Result<()> {
        let Self::Helper(socket) = self else {
            return mount.sync();
        };
        match ask(socket, &MounterRequest::Sync)? {
            (MounterAnswer::Synced, _) => Ok(()),
            (MounterAnswer::NotSynced(cause), _) => Err(cause.into()),
            (MounterAnswer::Refused(refusal), _) => {
                Err(io::Error::other(refusal.at(mount.mountpoint())))
            }
            _ => Err(beside_the_point()),
        }
    }
}

fn beside_the_point() -> io::Error {
    io::Error::other("the process that mounts and unmounts gave no answer to the question")
}

/// Sends a request and waits for the answer.
fn ask(
    socket: &Mutex<OwnedFd>,
    request: &MounterRequest,
) -> io::Result<(MounterAnswer, Option<OwnedFd>)> {
    let socket = socket.lock();
    let gone = || io::Error::other("the process that mounts and unmounts is gone");
    match send(socket.as_fd(), request, None) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(gone()),
        sent => sent?,
    }
    receive(socket.as_fd())?.ok_or_else(gone)
}

/// The places at which the process works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places<'a> {
    mountpoint: &'a Path,
    log: Option<&'a Path>,
}

/// Returns the places at which to work if the program was started as this process.
pub(crate) fn asked_for(given: &[OsString]) -> Option<Places<'_>> {
    let (mountpoint, log) = match given {
        [_, word, mountpoint] if word == WORD => (mountpoint, None),
        [_, word, mountpoint, log] if word == WORD => (mountpoint, Some(Path::new(log))),
        _ => return None,
    };
    let mountpoint = Path::new(mountpoint);
    Some(Places { mountpoint, log })
}

/// Works for the daemon at the other end of standard input, until that is closed.
///
/// # Errors
///
/// If the process cannot be prepared, or the daemon's end breaks.
pub(crate) fn run(places: Places<'_>) -> io::Result<()> {
    serve(&prepare()?, places)
}

fn prepare() -> io::Result<OwnedFd> {
    // Signals to the daemon's terminal are the daemon's to act upon.
    rustix::process::setsid()?;
    rustix::thread::set_name(NAME)?;
    for signal in [SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    if rustix::process::geteuid().is_root() {
        privileges::keep(privileges::mounting())?;
        for denied in [Daemon::Starting, Daemon::Foreign] {
            calls::deny_to_daemon(denied)?;
        }
    }
    io::stdin().as_fd().try_clone_to_owned()
}

fn serve(socket: &OwnedFd, Places { mountpoint, log }: Places<'_>) -> io::Result<()> {
    let mut mounted: Option<Mount> = None;
    while let Some((request, _)) = receive(socket.as_fd())? {
        let done = match (request, &mounted) {
            (MounterRequest::Clear(device), None) => {
                clear(mountpoint, &device).map(|cleared| (MounterAnswer::Cleared(cleared), None))
            }
            (MounterRequest::Mount(flavor), None) => mount(mountpoint, &flavor).map(|new| {
                let number = new.mount.device().to_owned();
                mounted = Some(new.mount);
                (MounterAnswer::Mounted(number), Some(new.device))
            }),
            (MounterRequest::Unmount(how), Some(mount)) => mount
                .unmount(how)
                .map(|()| (MounterAnswer::Unmounted, None)),
            (MounterRequest::Sync, Some(mount)) => {
                let synced = mount.sync().map(|()| MounterAnswer::Synced);
                let failed = |error| MounterAnswer::NotSynced(SystemError::from(&error));
                Ok((synced.unwrap_or_else(failed), None))
            }
            (MounterRequest::OpenLog, _) => Ok(match open_log(log) {
                Ok(file) => (MounterAnswer::LogOpened, Some(file.into())),
                Err(error) => (MounterAnswer::LogNotOpened(SystemError::from(&error)), None),
            }),
            _ => Err(MountError::NotOurs(mountpoint.to_owned())),
        };
        let has_mounted = matches!(done, Ok((MounterAnswer::Mounted(_), _)));
        if has_mounted && rustix::process::geteuid().is_root() {
            calls::deny_to_daemon(Daemon::Mounted)?;
        }
        let (answer, device) =
            done.unwrap_or_else(|error| (MounterAnswer::Refused(MountRefusal::from(&error)), None));
        let device = device.as_ref().map(AsFd::as_fd);
        send(socket.as_fd(), &answer, device)?;
    }
    Ok(())
}

/// Opens the log file that the arguments named.
fn open_log(log: Option<&Path>) -> io::Result<File> {
    log.map_or_else(|| Err(io::ErrorKind::NotFound.into()), log_file::open)
}

/// Takes away the dead mount of ours at `mountpoint` that has this device number.
fn clear(mountpoint: &Path, device: &str) -> Result<Option<ClearedMounts>, MountError> {
    let on_top = mountinfo::mount_at(mountpoint).map_err(|source| MountError::Stuck {
        mountpoint: mountpoint.to_owned(),
        source,
    })?;
    match on_top.filter(|entry| entry.is_ours() && entry.device == device) {
        Some(entry) => dead_mount::clear_abandoned(mountpoint, &entry),
        None => Ok(None),
    }
}
