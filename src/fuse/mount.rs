//! Mounting and unmounting, without a FUSE library.
//!
//! The superuser calls `mount(2)`; anyone else goes through `fusermount3`, the setuid helper of libfuse. Either way the
//! result is a descriptor of `/dev/fuse`. Nothing here unmounts anything by itself: a FUSE library that does so hits
//! whatever is mounted there next.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};

use super::mountinfo::{self, FS_TYPE, MountEntry};
use super::walk;

/// Bytes that the kernel reads ahead on a sequential read, in KiB. One request is at most 1 MiB.
const READ_AHEAD_KIB: u32 = 4096;

/// The options of a mount, apart from those of the filesystem itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a mount option of its own, independent of the others"
)]
pub struct MountFlavor {
    /// The source that `df` and `mount` show.
    pub source: OsString,
    /// Let other users in; permissions are checked by the kernel in any case.
    pub allow_other: bool,
    /// Refuse changes.
    pub read_only: bool,
    /// Honour set-user-id bits.
    pub suid: bool,
    /// Honour device nodes.
    pub dev: bool,
    /// Allow programs to be run.
    pub exec: bool,
    /// Make every write wait until it is durable.
    pub sync: bool,
    /// Make every change of a directory wait until it is durable.
    pub dirsync: bool,
    /// Show that reading leaves access times alone.
    pub no_atime: bool,
}

/// The failure of mounting or unmounting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The kernel has no FUSE, or this user may not use it.
    #[error("cannot open /dev/fuse: {0}")]
    Device(#[source] io::Error),
    /// The mountpoint is no directory that can be mounted on.
    #[error("cannot mount on {mountpoint}: {source}")]
    Refused {
        /// The mountpoint.
        mountpoint: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The setuid helper could not be run.
    #[error("cannot run fusermount3: {0}")]
    NoHelper(#[source] io::Error),
    /// The setuid helper said no.
    #[error("{0}")]
    Helper(String),
    /// Something is open below the mountpoint.
    #[error("{0} is busy")]
    Busy(PathBuf),
    /// Something else is mounted there, over ours or after it.
    #[error("what is mounted at {0} now is not this volume")]
    NotOurs(PathBuf),
    /// It could not be unmounted for another reason.
    #[error("cannot unmount {mountpoint}: {source}")]
    Stuck {
        /// The mountpoint.
        mountpoint: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// A new mount that is yet to be served.
#[derive(Debug)]
pub struct Mounted {
    /// Descriptor over which the kernel sends its requests. The first request, INIT, waits on it; until it is
    /// answered every access to the mount blocks.
    pub device: OwnedFd,
    /// The mount itself.
    pub mount: Mount,
}

/// A process that mounts and unmounts: this one, or another on its behalf.
pub trait Mounter {
    /// Mounts on `mountpoint`.
    ///
    /// # Errors
    ///
    /// If there is no `/dev/fuse`, or if the kernel or `fusermount3` refuses.
    fn mount(&self, mountpoint: &Path, flavor: &MountFlavor) -> Result<Mounted, MountError>;

    /// Unmounts it, as [`Mount::unmount`] does.
    ///
    /// # Errors
    ///
    /// As [`Mount::unmount`].
    fn unmount(&self, mount: &Mount, how: Unmount) -> Result<(), MountError>;

    /// Has the kernel write what it holds of it.
    ///
    /// # Errors
    ///
    /// As [`Mount::sync`].
    fn sync(&self, mount: &Mount) -> io::Result<()>;
}

/// Mounts on `mountpoint`.
///
/// # Errors
///
/// If there is no `/dev/fuse`, or if the kernel or `fusermount3` refuses.
pub fn mount(mountpoint: &Path, flavor: &MountFlavor) -> Result<Mounted, MountError> {
    let device = if rustix::process::geteuid().is_root() {
        mount_directly(mountpoint, flavor)?
    } else {
        mount_through_helper(mountpoint, flavor)?
    };
    match Mount::on_top(mountpoint) {
        Ok(mount) => Ok(Mounted { device, mount }),
        Err(source) => {
            // Closing the device kills the mount, which then cannot be taken for another one at this place.
            drop(device);
            if let Err(stuck) = detach_dead(mountpoint) {
                tracing::error!("the mount that could not be found stays: {stuck}");
            }
            let mountpoint = mountpoint.to_owned();
            Err(MountError::Refused { mountpoint, source })
        }
    }
}

fn mount_directly(mountpoint: &Path, flavor: &MountFlavor) -> Result<OwnedFd, MountError> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .map_err(MountError::Device)?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if flavor.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).expect("numbers and words hold no NUL");
    rustix::mount::mount(
        flavor.source.as_os_str(),
        mountpoint,
        FS_TYPE,
        flavor.flags(),
        data.as_c_str(),
    )
    .map_err(|errno| MountError::Refused {
        mountpoint: mountpoint.to_owned(),
        source: errno.into(),
    })?;
    Ok(device.into())
}

/// Runs `fusermount3` with one end of a socket pair as its standard input; it mounts, and sends
/// the descriptor of `/dev/fuse` back over that socket.
fn mount_through_helper(mountpoint: &Path, flavor: &MountFlavor) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|errno| MountError::NoHelper(errno.into()))?;
    let output = Command::new("fusermount3")
        .arg("-o")
        .arg(flavor.helper_options())
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", "0")
        .env("LC_ALL", "C")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(MountError::NoHelper)?;
    if !output.status.success() {
        return Err(MountError::Helper(helper_message(&output.stderr)));
    }
    receive_descriptor(&ours).map_err(MountError::NoHelper)
}

fn helper_message(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    match text.trim() {
        "" => "fusermount3 failed without saying why".to_owned(),
        said => said.lines().collect::<Vec<_>>().join("; "),
    }
}

fn receive_descriptor(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(descriptor) = descriptors.next()
        {
            return Ok(descriptor);
        }
    }
    Err(io::Error::other("it passed no descriptor"))
}

impl MountFlavor {
    fn flags(&self) -> MountFlags {
        [
            (self.read_only, MountFlags::RDONLY),
            (!self.suid, MountFlags::NOSUID),
            (!self.dev, MountFlags::NODEV),
            (!self.exec, MountFlags::NOEXEC),
            (self.sync, MountFlags::SYNCHRONOUS),
            (self.dirsync, MountFlags::DIRSYNC),
            (self.no_atime, MountFlags::NOATIME),
        ]
        .into_iter()
        .filter(|(wanted, _)| *wanted)
        .fold(MountFlags::empty(), |flags, (_, flag)| flags | flag)
    }

    /// The same for `fusermount3`, which allows an ordinary user neither `suid` nor `dev`.
    fn helper_options(&self) -> OsString {
        let mut options = OsString::from("subtype=cauchyfs,default_permissions");
        for (wanted, name) in [
            (self.allow_other, ",allow_other"),
            (self.read_only, ",ro"),
            (!self.exec, ",noexec"),
            (self.sync, ",sync"),
            (self.dirsync, ",dirsync"),
            (self.no_atime, ",noatime"),
        ] {
            if wanted {
                options.push(name);
            }
        }
        options.push(",fsname=");
        for &byte in self.source.as_bytes() {
            if matches!(byte, b',' | b'\\') {
                options.push("\\");
            }
            options.push(OsStr::from_bytes(&[byte]));
        }
        options
    }
}

/// Raises the kernel's read-ahead for the mount at `mountpoint`, which only the superuser may. Returns whether
/// that was done.
#[must_use]
pub fn raise_read_ahead(mountpoint: &Path) -> bool {
    let Ok(Some(entry)) = mountinfo::mount_at(mountpoint) else {
        return false;
    };
    let knob = format!("/sys/class/bdi/{}/read_ahead_kb", entry.device);
    fs::write(knob, READ_AHEAD_KIB.to_string()).is_ok()
}

/// Returns whether a call failed because the connection to the daemon is closed.
fn is_closed(failure: Option<Errno>) -> bool {
    matches!(failure, Some(Errno::NOTCONN | Errno::CONNABORTED))
}

/// A mounted filesystem: its mountpoint, and the device number that tells it from any other mount there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    mountpoint: PathBuf,
    /// The device number of the mounted filesystem, as `MAJ:MIN`.
    device: String,
}

/// The root of a mount, opened without a word to its daemon.
struct OpenMount {
    /// The directory that the mountpoint is in; no symlink led there.
    parent: OwnedFd,
    name: OsString,
    root: OwnedFd,
}

impl Mount {
    /// Takes what is on top at `mountpoint`, right after it was mounted.
    ///
    /// # Errors
    ///
    /// If nothing is mounted there, or the mount table cannot be read.
    pub fn on_top(mountpoint: &Path) -> io::Result<Self> {
        let entry = mountinfo::mount_at(mountpoint)?
            .ok_or_else(|| io::Error::other("the mount went away at once"))?;
        Ok(Self::of(&entry))
    }

    /// Takes a filesystem by its device number, as [`Mount::device`] returned it.
    #[must_use]
    pub fn new(mountpoint: &Path, device: String) -> Self {
        Self {
            mountpoint: mountpoint.to_owned(),
            device,
        }
    }

    /// Takes a mount of the table.
    #[must_use]
    pub fn of(entry: &MountEntry) -> Self {
        Self {
            mountpoint: entry.mountpoint.clone(),
            device: entry.device.clone(),
        }
    }

    /// Returns the path.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Returns the device number of the filesystem, as `MAJ:MIN`.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Checks that the filesystem is still what the path leads to.
    ///
    /// # Errors
    ///
    /// [`MountError::NotOurs`] if it is not.
    pub fn check(&self) -> Result<(), MountError> {
        let is_ours = mountinfo::mount_at(&self.mountpoint)
            .is_ok_and(|entry| entry.is_some_and(|entry| entry.device == self.device));
        if is_ours {
            Ok(())
        } else {
            Err(self.not_ours())
        }
    }

    /// Returns whether the daemon is gone, and the mount is still there. A daemon that has the connection and answers
    /// nothing keeps the caller waiting.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        // Other calls may be answered from the kernel's caches.
        self.open().is_ok_and(|opened| {
            loop {
                match rustix::fs::fstatfs(&opened.root) {
                    // A thread of the daemon was to take it over io_uring, and ended. The connection may end next.
                    Err(Errno::CANCELED) => {}
                    outcome => return is_closed(outcome.err()),
                }
            }
        })
    }

    /// Unmounts it, and nothing that took its place. Waits if it is in use for a moment only.
    ///
    /// The kernel writes its dirty pages first, so the daemon must still be serving.
    ///
    /// # Errors
    ///
    /// If something else is there ([`MountError::NotOurs`]), if something below is in use ([`MountError::Busy`], only
    /// with [`Unmount::WhenIdle`]), or if this user may not.
    pub fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        let started = Instant::now();
        loop {
            match self.unmount_at_once(how) {
                Err(MountError::Busy(_)) if started.elapsed() < BUSY_TIMEOUT => {
                    std::thread::sleep(BUSY_POLL);
                }
                outcome => return outcome,
            }
        }
    }

    fn unmount_at_once(&self, how: Unmount) -> Result<(), MountError> {
        if rustix::process::geteuid().is_root() {
            self.unmount_directly(how)
        } else {
            self.check()?;
            unmount_through_helper(&self.mountpoint, how)
        }
    }

    /// Unmounts what was verified. The path may belong to another user, who can put a symlink into it at any time, so it
    /// is not looked up again.
    fn unmount_directly(&self, how: Unmount) -> Result<(), MountError> {
        let OpenMount { parent, name, root } = self.open()?;
        let unmounted = match how {
            // An open root would keep the mount busy. Below the parent, the name leads to the mount or to nothing: the
            // kernel lets no user rename or remove a mountpoint.
            Unmount::WhenIdle => {
                drop(root);
                let path = descriptor_path(&parent).join(name);
                rustix::mount::unmount(path, UnmountFlags::NOFOLLOW)
            }
            Unmount::Lazily => rustix::mount::unmount(descriptor_path(&root), UnmountFlags::DETACH),
            Unmount::Abandoned => rustix::mount::unmount(
                descriptor_path(&root),
                UnmountFlags::DETACH | UnmountFlags::FORCE,
            ),
        };
        unmounted.map_err(|errno| match errno {
            Errno::BUSY => MountError::Busy(self.mountpoint.clone()),
            other => self.stuck(other.into()),
        })
    }

    /// Writes back what the kernel still holds for this mount, and what the daemon holds.
    ///
    /// # Errors
    ///
    /// If something else is mounted there now, or writing failed.
    pub fn sync(&self) -> io::Result<()> {
        let OpenMount { root, .. } = self.open().map_err(io::Error::other)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(&root, ".", flags, Mode::empty())?;
        rustix::fs::syncfs(&root)?;
        Ok(rustix::fs::fsync(&root)?)
    }

    /// Opens the root of the mount by the path, and verifies that it is of this filesystem.
    fn open(&self) -> Result<OpenMount, MountError> {
        let (Some(parent), Some(name)) = (self.mountpoint.parent(), self.mountpoint.file_name())
        else {
            return Err(self.not_ours());
        };
        let opened = walk::open_directory(parent).and_then(|parent| {
            let root = walk::open_entry(&parent, name)?;
            Ok((parent, root))
        });
        let (parent, root) = opened.map_err(|error| self.stuck(error))?;
        let device = mounted_device(&root).map_err(|error| self.stuck(error))?;
        if device.as_deref() != Some(self.device.as_str()) {
            return Err(self.not_ours());
        }
        Ok(OpenMount {
            parent,
            name: name.to_owned(),
            root,
        })
    }

    fn not_ours(&self) -> MountError {
        MountError::NotOurs(self.mountpoint.clone())
    }

    fn stuck(&self, source: io::Error) -> MountError {
        MountError::Stuck {
            mountpoint: self.mountpoint.clone(),
            source,
        }
    }
}

/// Returns the path that leads to what a descriptor is open on, whatever has become of its name.
fn descriptor_path(descriptor: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}

/// Returns the device number of the mount that a descriptor is open on, from the kernel's tables: the mount itself may
/// not answer, or not to this user.
fn mounted_device(descriptor: &OwnedFd) -> io::Result<Option<String>> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    let id: Option<u64> = id.and_then(|id| id.trim().parse().ok());
    // The open descriptor keeps the number from being used again.
    let mut mounts = mountinfo::mounts()?.into_iter();
    Ok(mounts
        .find(|entry| Some(entry.id) == id)
        .map(|entry| entry.device))
}

/// The way to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unmount {
    /// Refuse while anything below is in use.
    WhenIdle,
    /// Take it out of the tree at once; what is open stays usable until it is closed.
    Lazily,
    /// The same for a mount that is not served any more: processes that wait for an answer get an error.
    Abandoned,
}

/// The time for which a mount may be in use before it counts as busy. A program that is just starting has its parent's
/// files open for a moment; one that looks at every mount in turn is gone the next moment.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause between two attempts.
const BUSY_POLL: Duration = Duration::from_millis(20);

/// Unmounts what a path leads to, lazily, if it is a FUSE mount whose connection is closed; else leaves it.
///
/// # Errors
///
/// If it is dead and cannot be unmounted.
fn detach_dead(mountpoint: &Path) -> Result<(), MountError> {
    let looked = rustix::fs::stat(mountpoint);
    if !looked.is_err_and(|error| matches!(error, Errno::NOTCONN | Errno::CONNABORTED)) {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return unmount_through_helper(mountpoint, Unmount::Lazily);
    }
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    rustix::mount::unmount(mountpoint, flags).map_err(|errno| MountError::Stuck {
        mountpoint: mountpoint.to_owned(),
        source: errno.into(),
    })
}

fn unmount_through_helper(mountpoint: &Path, how: Unmount) -> Result<(), MountError> {
    let output = Command::new("fusermount3")
        .arg(match how {
            Unmount::WhenIdle => "-u",
            Unmount::Lazily | Unmount::Abandoned => "-uz",
        })
        .arg("--")
        .arg(mountpoint)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(MountError::NoHelper)?;
    if output.status.success() {
        return Ok(());
    }
    let said = helper_message(&output.stderr);
    if said.contains("busy") {
        return Err(MountError::Busy(mountpoint.to_owned()));
    }
    Err(MountError::Helper(said))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flavor() -> MountFlavor {
        MountFlavor {
            source: OsString::from("photos"),
            allow_other: false,
            read_only: false,
            suid: false,
            dev: false,
            exec: true,
            sync: false,
            dirsync: false,
            no_atime: false,
        }
    }

    #[test]
    fn helper_options_escape_commas_and_backslashes_of_the_source() {
        let mut flavor = flavor();
        flavor.source = OsString::from("a,b\\c");
        assert_eq!(
            flavor.helper_options(),
            OsString::from("subtype=cauchyfs,default_permissions,fsname=a\\,b\\\\c")
        );
    }

    #[test]
    fn every_denied_right_becomes_a_flag_of_its_own() {
        assert_eq!(flavor().flags(), MountFlags::NOSUID | MountFlags::NODEV);
        let open = MountFlavor {
            suid: true,
            dev: true,
            ..flavor()
        };
        assert_eq!(open.flags(), MountFlags::empty());
        let closed = MountFlavor {
            read_only: true,
            exec: false,
            ..open
        };
        assert_eq!(closed.flags(), MountFlags::RDONLY | MountFlags::NOEXEC);
    }

    #[test]
    fn a_silent_helper_is_reported_as_silent() {
        assert_eq!(
            helper_message(b" \n"),
            "fusermount3 failed without saying why"
        );
        assert_eq!(helper_message(b"a\nb\n"), "a; b");
    }
}
