//! Mounts whose daemons are gone, and which the kernel keeps until they are taken away.

use std::path::Path;
use std::slice;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::in_time::ask_each;
use crate::fuse::mount::{Mount, MountError, Unmount};
use crate::fuse::mountinfo::{self, MountEntry};

/// The time that a mount may take to say that it is not served any more, which it does at once.
const STATFS: Duration = Duration::from_secs(3);

/// Mounts at one mountpoint that were taken away because their daemons were gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClearedMounts {
    /// The number of them, one above the other.
    pub(crate) count: usize,
    /// True if a volume is mounted below them, and in use.
    pub(crate) hid_another: bool,
}

/// Says whether a mount is no longer in the table.
pub(crate) fn is_gone(mountpoint: &Path, entry: Option<&MountEntry>) -> bool {
    mountinfo::mount_at(mountpoint).is_ok_and(|now| now.as_ref() != entry || now.is_none())
}

/// Says whether the mount is not served any more.
pub(crate) fn is_dead(entry: &MountEntry) -> bool {
    let mount = Mount::of(entry);
    let refuses = move |_: &Path| mount.is_dead();
    // A daemon that has the connection, and answers nothing, lets this one come to no end.
    ask_each(slice::from_ref(&entry.mountpoint), STATFS, refuses) == [Some(true)]
}

/// Takes away the mount `entry`, so that its place is free again, unless another process has done so.
///
/// # Errors
///
/// If it cannot be taken away.
pub(crate) fn clear_abandoned(
    mountpoint: &Path,
    entry: &MountEntry,
) -> Result<Option<ClearedMounts>, MountError> {
    // The next mount may have got the same number.
    if is_gone(mountpoint, Some(entry)) || !is_dead(entry) {
        return Ok(None);
    }
    clear_dead(entry).map(Some)
}

/// Takes away a mount of which the daemon is gone, and all such that it hid.
///
/// # Errors
///
/// If one cannot be taken away.
pub(crate) fn clear_dead(entry: &MountEntry) -> Result<ClearedMounts, MountError> {
    let mountpoint = &entry.mountpoint;
    let mut count = 0;
    let mut dead = entry.clone();
    let below = loop {
        Mount::of(&dead).unmount(Unmount::Abandoned)?;
        count += 1;
        let below = mountinfo::mount_at(mountpoint).ok().flatten();
        match below.filter(MountEntry::is_ours) {
            // Another user's is left to that user.
            Some(below) if below.user() == entry.user() && is_dead(&below) => dead = below,
            below => break below,
        }
    };
    Ok(ClearedMounts {
        count,
        hid_another: below.is_some(),
    })
}
