//! Daemons whose mounts were taken away, and that go on: they end, or another mount namespace keeps the mount.

use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

use super::{Connection, Peer, SoughtMount, other_version, question, search_in_time};
use crate::cli::failure::Failure;
use crate::control::exchange::Limits;
use crate::control::in_time::ask_each;
use crate::control::places::{Places, SocketKind, file_stem};
use crate::control::protocol::Identity;
use crate::fuse::mountinfo::{self, MountEntry};

/// Most processes that are asked which mount they serve. The time for all of them is bounded as well.
const MOST_ASKED: usize = 64;

/// A daemon of our own user that serves no mountpoint of our mount table.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Unlisted(Identity);

impl Unlisted {
    /// Returns where the daemon says that it mounted the volume.
    pub(in crate::cli) fn mountpoint(&self) -> &Path {
        Path::new(&self.0.mountpoint)
    }

    /// Connects to it.
    ///
    /// # Errors
    ///
    /// If it is gone, or does not answer within `patience`.
    pub(in crate::cli) fn connect(&self, patience: Duration) -> Result<Connection, Failure> {
        let target = SoughtMount {
            mountpoint: self.mountpoint().to_owned(),
            device: Some(self.0.device.clone()),
            user: own_user(),
        };
        match search_in_time(target, patience)? {
            Peer::Daemon(connection) => Ok(connection),
            Peer::OtherVersion(spoken) => Err(other_version(spoken, self.mountpoint())),
            Peer::Remains(_) | Peer::None => Err(Failure::environment(format!(
                "the daemon that served {} is gone",
                self.mountpoint().display()
            ))),
        }
    }
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the daemons of our own user that serve no mountpoint of our mount table, and say so within `patience`.
pub(in crate::cli) fn unlisted(patience: Duration) -> Vec<Unlisted> {
    let mounts = mountinfo::mounts().unwrap_or_default();
    let ours = mounts.into_iter().filter(MountEntry::is_ours);
    let listed: Vec<PathBuf> = ours.map(|entry| entry.mountpoint).collect();
    let places = Places::of(own_user());
    let limits = Limits::of_identity(patience);
    let search = move |_: &Path| unlisted_in(&places, &listed, &limits, patience);
    // The directories of a user may lie on anything.
    let mut found = ask_each(slice::from_ref(&PathBuf::new()), 2 * patience, search);
    found.pop().flatten().unwrap_or_default()
}

/// The same in given places; `listed` are the mountpoints in the mount table.
pub(super) fn unlisted_in(
    places: &Places,
    listed: &[PathBuf],
    limits: &Limits,
    patience: Duration,
) -> Vec<Unlisted> {
    let stems: Vec<String> = listed.iter().map(|path| file_stem(path)).collect();
    let mut found = Vec::new();
    let mut asked = 0;
    for directory in places.existing() {
        for name in directory.sockets(SocketKind::Commands) {
            let is_listed = |stem: &String| name.to_string_lossy().starts_with(stem.as_str());
            if stems.iter().any(is_listed) {
                continue;
            }
            // A socket to which nothing listens, or that is no socket of the user, is none.
            let connected = directory.open_socket(&name, places.user);
            let Ok(stream) = connected.and_then(|socket| socket.connect(patience)) else {
                continue;
            };
            if asked == MOST_ASKED {
                return found;
            }
            asked += 1;
            if let Ok(Peer::Daemon(daemon)) = question(stream, places.user, |_| true, limits) {
                found.push(Unlisted(daemon.identity().clone()));
            }
        }
    }
    found
}
