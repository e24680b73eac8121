//! The places of a user's control sockets, and the way to open one safely.
//!
//! A user's directories are the user's to fill, with symlinks to the sockets of others too. So no symlink is followed
//! on the way from a directory that only the administrator can change. The directory that is reached must be the user's
//! and writable by no other user, and a socket in it must be the user's. Only the user can have put such a socket
//! there, whatever the way to it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::iter;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{Uid, User};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use uuid::Uuid;

use super::in_time::ask_each;
use crate::fuse::walk;

/// The kinds of sockets of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketKind {
    /// For commands of the mount's user and of the superuser.
    Commands,
    /// For questions of a group about root's mounts.
    Questions,
}

impl SocketKind {
    /// Returns the kind by which this process reaches the daemons of a user.
    pub(crate) fn towards(user: u32) -> Self {
        let own = rustix::process::geteuid();
        if user == 0 && !own.is_root() {
            Self::Questions
        } else {
            Self::Commands
        }
    }

    /// Returns the end of a socket's name.
    pub(crate) fn end(self) -> &'static str {
        match self {
            Self::Commands => ".sock",
            Self::Questions => ".questions",
        }
    }
}

/// Directories of one user in the shared directory, and sockets of one mount in a directory, that are looked at.
const MOST_LISTED: usize = 64;

/// Filesystems over a network, or served by a process: the superuser cannot enter all of them, and some hang.
const REMOTE: [u32; 7] = [
    0x6969,      // NFS
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB2
    0x6573_5546, // FUSE
    0x0102_1997, // 9P
    0x5346_414f, // AFS
    0x00c3_6400, // Ceph
];

/// The directories in which the sockets of one user can be.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub(crate) user: u32,
    /// Directories with a fixed name on local filesystems, the best first.
    pub(crate) spots: Vec<Spot>,
    /// A lookup of the directory below the home of a user. Both the lookup and the home can hang.
    pub(crate) home: fn(u32) -> Option<Spot>,
    /// A directory in which all users can make directories, for a user who has no other.
    pub(crate) shared: Option<PathBuf>,
}

/// A directory below one that the administrator provides.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    pub(crate) base: PathBuf,
    pub(crate) below: &'static str,
}

impl Places {
    /// Returns those of a user. They do not depend on the environment, so that every session of the user finds what
    /// another one started, and so that the superuser does.
    pub(crate) fn of(user: u32) -> Self {
        let spot = |base: PathBuf, below| Spot { base, below };
        if user == 0 {
            return Self {
                user,
                spots: vec![spot("/run".into(), "cauchyfs")],
                home: |_| None,
                shared: None,
            };
        }
        Self {
            user,
            spots: vec![spot(format!("/run/user/{user}").into(), "cauchyfs")],
            home: spot_in_home,
            shared: Some("/tmp".into()),
        }
    }

    /// Opens, one after the other, those that exist and that only their user can write to. The home, which can hang, is
    /// the last.
    pub(crate) fn existing(&self) -> impl Iterator<Item = RuntimeDirectory> {
        let open = |spot: &Spot| {
            let opened = spot.open();
            opened
                .and_then(|directory| directory.checked(self.user))
                .ok()
        };
        let fixed = self.spots.iter().filter_map(open);
        let shared = iter::once_with(|| self.existing_shared()).flatten();
        let home = iter::once_with(|| (self.home)(self.user)).flatten();
        let home = home.filter_map(move |spot| open(&spot));
        fixed.chain(shared).chain(home)
    }

    fn existing_shared(&self) -> Vec<RuntimeDirectory> {
        let Some((shared, path)) = self.open_shared() else {
            return Vec::new();
        };
        let name = format!("cauchyfs-{}", self.user);
        let is_one = |candidate: &OsStr| {
            let rest = candidate.as_bytes().strip_prefix(name.as_bytes());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"-"))
        };
        let names = names_in(&shared).into_iter();
        let directories = names.filter(|name| is_one(name)).filter_map(|name| {
            let handle = walk::open_below(shared.try_clone().ok()?, Path::new(&name)).ok()?;
            let directory = RuntimeDirectory {
                path: path.join(&name),
                handle,
            };
            directory.checked(self.user).ok()
        });
        directories.take(MOST_LISTED).collect()
    }

    fn open_shared(&self) -> Option<(OwnedFd, PathBuf)> {
        let path = fs::canonicalize(self.shared.as_ref()?).ok()?;
        Some((walk::open_directory(&path).ok()?, path))
    }

    /// Opens our own directory, the best that can be had, and makes it if need be. The mount will hide directories
    /// below `mountpoint`. A home that does not answer within `patience` is left out.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub(crate) fn open_or_make(
        &self,
        mountpoint: &Path,
        patience: Duration,
    ) -> io::Result<RuntimeDirectory> {
        let mut failures = Vec::new();
        for spot in &self.spots {
            match spot.make(self.user, mountpoint) {
                Ok(directory) => return Ok(directory),
                Err(error) => {
                    failures.push(format!("{}/{}: {error}", spot.base.display(), spot.below));
                }
            }
        }
        match self.make_in_home(mountpoint, patience) {
            Some(Ok(directory)) => return Ok(directory),
            Some(Err(error)) => failures.push(format!("the home: {error}")),
            None => {}
        }
        if let Some(shared) = &self.shared {
            match self.make_shared(mountpoint) {
                Ok(directory) => return Ok(directory),
                Err(error) => failures.push(format!("{}: {error}", shared.display())),
            }
        }
        Err(io::Error::other(failures.join("; ")))
    }

    fn make_in_home(
        &self,
        mountpoint: &Path,
        patience: Duration,
    ) -> Option<io::Result<RuntimeDirectory>> {
        let (user, home) = (self.user, self.home);
        let make = move |mountpoint: &Path| Some(home(user)?.make(user, mountpoint));
        let mut answers = ask_each(&[mountpoint.to_owned()], patience, make);
        let silent = || Some(Err(io::ErrorKind::TimedOut.into()));
        answers.pop().flatten().unwrap_or_else(silent)
    }

    /// Opens our directory in the shared one, or makes one whose name another user cannot have taken before.
    fn make_shared(&self, mountpoint: &Path) -> io::Result<RuntimeDirectory> {
        let mut existing = self.existing_shared().into_iter();
        if let Some(own) = existing.find(|directory| !directory.path.starts_with(mountpoint)) {
            return Ok(own);
        }
        let (shared, path) = self.open_shared().ok_or(io::ErrorKind::NotFound)?;
        let name = format!("cauchyfs-{}-{}", self.user, Uuid::new_v4().simple());
        rustix::fs::mkdirat(&shared, name.as_str(), Mode::RWXU)?;
        let directory = RuntimeDirectory {
            path: path.join(&name),
            handle: walk::open_below(shared, Path::new(&name))?,
        };
        directory.checked(self.user)?.seen_from_outside(mountpoint)
    }
}

/// Returns the directory for sockets below the home of a user.
fn spot_in_home(user: u32) -> Option<Spot> {
    let user = User::from_uid(Uid::from_raw(user)).ok().flatten()?;
    Some(Spot {
        base: user.dir,
        below: ".local/state/cauchyfs",
    })
}

impl Spot {
    fn open_base(&self) -> io::Result<(OwnedFd, PathBuf)> {
        // A home may well be behind a symlink of the administrator's.
        let path = fs::canonicalize(&self.base)?;
        Ok((walk::open_directory(&path)?, path))
    }

    fn open(&self) -> io::Result<RuntimeDirectory> {
        let (base, path) = self.open_base()?;
        Ok(RuntimeDirectory {
            path: path.join(self.below),
            handle: walk::open_below(base, Path::new(self.below))?,
        })
    }

    fn make(&self, user: u32, mountpoint: &Path) -> io::Result<RuntimeDirectory> {
        let (mut handle, mut path) = self.open_base()?;
        if rustix::fs::fstat(&handle)?.st_uid != user {
            return Err(io::Error::other("it belongs to another user"));
        }
        for name in Path::new(self.below) {
            match rustix::fs::mkdirat(&handle, name, Mode::RWXU) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            handle = walk::open_below(handle, Path::new(name))?;
            path.push(name);
        }
        let kind = rustix::fs::fstatfs(&handle)?.f_type;
        // Only the low half of the word has the number, and its sign varies with the architecture.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the number has 32 bits"
        )]
        let is_remote = REMOTE.contains(&(kind as u32));
        if is_remote {
            return Err(io::Error::other("it is not on a local filesystem"));
        }
        let directory = RuntimeDirectory { path, handle };
        directory.checked(user)?.seen_from_outside(mountpoint)
    }
}

/// A directory that only its user can write to.
#[derive(Debug)]
pub(crate) struct RuntimeDirectory {
    path: PathBuf,
    handle: OwnedFd,
}

impl RuntimeDirectory {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses one that another user than `user` can have filled.
    fn checked(self, user: u32) -> io::Result<Self> {
        let found = rustix::fs::fstat(&self.handle)?;
        if found.st_uid == user && found.st_mode & 0o022 == 0 {
            return Ok(self);
        }
        let path = self.path.display();
        Err(io::Error::other(format!(
            "{path} is not a directory that user {user} alone can write to"
        )))
    }

    /// Refuses one that a mount at `mountpoint` hides.
    fn seen_from_outside(self, mountpoint: &Path) -> io::Result<Self> {
        if self.path.starts_with(mountpoint) {
            return Err(io::Error::other("the mount would hide it"));
        }
        Ok(self)
    }

    /// Returns the names of the sockets whose names begin with `stem`, not more than are looked at for one mount.
    pub(crate) fn sockets_of(&self, stem: &str, kind: SocketKind) -> Vec<OsString> {
        let mut names = self.sockets(kind);
        names.retain(|name| name.as_bytes().starts_with(stem.as_bytes()));
        names.truncate(MOST_LISTED);
        names
    }

    /// Returns the names of all sockets of a kind. Daemons that were killed have left theirs.
    pub(crate) fn sockets(&self, kind: SocketKind) -> Vec<OsString> {
        let mut names = names_in(&self.handle);
        names.retain(|name| name.as_bytes().ends_with(kind.end().as_bytes()));
        // So that what is tried does not depend on the filesystem.
        names.sort();
        names
    }

    /// Returns whether this process can list it, and reach its sockets as far as they allow that.
    pub(crate) fn is_reachable(&self) -> bool {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.handle, ".", flags, Mode::empty()).is_ok()
    }

    /// Lets a group list it and reach its sockets, each of which has an owner and a mode of its own.
    ///
    /// # Errors
    ///
    /// If it cannot be given to the group.
    pub(crate) fn open_to_group(&self, group: u32) -> io::Result<()> {
        std::os::unix::fs::chown(&self.path, None, Some(group))?;
        fs::set_permissions(&self.path, fs::Permissions::from_mode(0o750))
    }

    /// Returns another handle on it.
    ///
    /// # Errors
    ///
    /// If there are no descriptors left.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            path: self.path.clone(),
            handle: self.handle.try_clone()?,
        })
    }

    /// Opens a socket of `user`, so that no other can come in its place.
    ///
    /// # Errors
    ///
    /// If it is something else, or another user's.
    pub(crate) fn open_socket(&self, name: &OsStr, user: u32) -> io::Result<SocketHandle> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::openat(&self.handle, name, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&handle)?;
        let is_socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
        if is_socket && found.st_uid == user {
            return Ok(SocketHandle(handle));
        }
        Err(io::Error::other(format!(
            "{} is no socket of user {user}",
            self.path.join(name).display()
        )))
    }

    /// Removes a file of ours.
    ///
    /// # Errors
    ///
    /// If it cannot be removed.
    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.handle, name, AtFlags::empty())?)
    }

    /// Returns a path to a file here that is short enough for a socket.
    pub(crate) fn short_path(&self, name: &str) -> PathBuf {
        let path = self.path.join(name);
        if SocketAddr::from_pathname(&path).is_ok() {
            return path;
        }
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.handle.as_raw_fd()))
    }
}

/// A socket that was verified, not connected to yet.
#[derive(Debug)]
pub(crate) struct SocketHandle(OwnedFd);

impl SocketHandle {
    /// Connects; a process that takes no connections is waited for no longer than `patience`.
    ///
    /// # Errors
    ///
    /// If nothing listens, or does not answer in time.
    pub(crate) fn connect(&self, patience: Duration) -> io::Result<UnixStream> {
        let family = (AddressFamily::UNIX, SocketType::STREAM);
        let socket = rustix::net::socket_with(family.0, family.1, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
        // The link leads to the very socket that was opened.
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", self.0.as_raw_fd()))?;
        rustix::net::connect(&socket, &address)?;
        Ok(socket.into())
    }
}

/// Lists a directory as far as that can be done.
fn names_in(directory: &OwnedFd) -> Vec<OsString> {
    // A directory opened with `O_PATH` cannot be listed.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let readable = rustix::fs::openat(directory, ".", flags, Mode::empty());
    let Ok(entries) = readable.and_then(Dir::new) else {
        return Vec::new();
    };
    let names = entries.filter_map(Result::ok);
    names
        .map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned())
        .collect()
}

/// Returns what the names of files about `mountpoint` begin with in a runtime directory.
pub(crate) fn file_stem(mountpoint: &Path) -> String {
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
