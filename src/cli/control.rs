//! The control socket: how commands talk to the daemon behind a mountpoint.
//!
//! Each mount has one Unix socket in a directory of the user who mounted it. Its name begins with a hash of the
//! mountpoint and ends at random. So commands find it by listing that directory, and no other user can name it.
//!
//! A command trusts a socket only if the mount's user alone can have put it there, and if that user's process listens
//! (`places`). A daemon answers only its own user and the superuser. On a connection, the command first asks which mount
//! this is, and compares device and mountpoint with the kernel's table. Then it sends one request that repeats the
//! answer, and the daemon refuses it if it names another mount (`protocol`).
//!
//! Every message is a line of JSON. Empty lines before an answer say that it takes its time, and lines of progress how
//! far it is; all of that has limits (`exchange`). The daemon's process ends soon after it has answered that the volume
//! is unmounted, and a command waits for that too (`departure`). If another mount namespace keeps the mount, the daemon
//! does not end. Commands that work on directories find such a daemon by its socket (`unlisted`).

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

mod client;
mod departure;
mod exchange;
mod failure;
mod places;
mod protocol;
mod server;
#[cfg(test)]
mod tests;
mod unlisted;

pub(super) use client::{
    Connection, LiveMount, Peer, ask, beside_the_point, find_peer, live_report, other_version,
};
pub(super) use departure::Departure;
pub(super) use exchange::{ANSWER_TIMEOUT, BRIEF_TIMEOUT};
pub(super) use failure::{DaemonFailure, NotDurable};
pub(super) use places::RuntimeDirectory;
pub(super) use protocol::{Absentee, Answer, Membership, Request};
pub(super) use server::{
    Announced, ControlSocket, SocketFile, answer, clear, give_sign, open, own_directory, prepare,
    receive, tell,
};
pub(super) use unlisted::{Unlisted, unlisted};

/// Returns what the names of files about `mountpoint` begin with in a runtime directory.
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
