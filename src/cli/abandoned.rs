//! Mounts of ours whose daemons are gone.

use std::path::Path;

use super::client::{self, Peer};
use crate::control::dead_mount::is_dead;
use crate::control::exchange::BRIEF_TIMEOUT;
use crate::fuse::mountinfo::{self, MountEntry};

/// Returns the process that is left of the daemon of a mount of ours, which has ended and keeps the mount.
pub(super) fn remains_of(mountpoint: &Path, entry: &MountEntry) -> Option<u32> {
    match client::find_peer(mountpoint, Some(entry), BRIEF_TIMEOUT) {
        Ok(Peer::Remains(pid)) => Some(pid.as_raw_nonzero().get().unsigned_abs()),
        _ => None,
    }
}

/// Says whether the daemon of a mount of ours is surely gone.
pub(super) fn is_abandoned(mountpoint: &Path, entry: &MountEntry) -> bool {
    // One that lives may hang, and must not be touched then.
    let found = client::find_peer(mountpoint, Some(entry), BRIEF_TIMEOUT);
    matches!(found, Ok(Peer::None)) && is_dead(entry)
}

/// Returns the mount of ours at `mountpoint` if its daemon is surely gone.
pub(super) fn abandoned_at(mountpoint: &Path) -> Option<MountEntry> {
    // The command that mounts there reports what is wrong with the place.
    let entry = mountinfo::mount_at(mountpoint).ok().flatten()?;
    (entry.is_ours() && is_abandoned(mountpoint, &entry)).then_some(entry)
}
