//! Telling a directory from a copy of it.

use std::collections::BTreeMap;

use super::own::Seen;

/// The identity of a directory and of the subdirectories that were in use. A copy of it has another one, also if all
/// bytes are the same. It stays the same if the directory is renamed or its filesystem mounted again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryIdentity {
    pub(super) top: Inode,
    pub(super) subdirs: BTreeMap<String, Inode>,
}

/// One directory as its filesystem knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inode {
    number: u64,
    /// Seconds and nanoseconds of its making, if the filesystem tells them. No copy has the same.
    born: Option<(i64, u32)>,
    /// The device, if the filesystem does not tell the time. The number of a device may change with each mount.
    device: Option<u64>,
}

impl Inode {
    /// Returns what tells this directory from all others.
    pub(super) fn of(seen: &Seen) -> Self {
        let (device, number) = seen.identity;
        Self {
            number,
            born: seen.born,
            device: seen.born.is_none().then_some(device),
        }
    }
}
