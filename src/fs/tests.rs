//! Tests of the whole room, and the volumes in memory on which its tests run.

mod cached_extents;
mod damaged;
mod hanging;
mod parts;
mod room;
mod served;
mod unwritten;

use std::sync::Arc;
use std::time::Duration;

use cauchyfs_testkit::{disks, executor, stores};

use crate::codec::Geometry;
use crate::maintenance::Maintenance;
use crate::store::MemDisk;
use crate::transaction::{CreateOptions, OpenOptions, Transactions};

use super::{Caller, Fs, FsOptions};

/// The superuser, who makes all calls of these tests.
pub(super) const ROOT: &Caller = &Caller::ROOT;

/// The time after which an operation counts as hung.
const HANG: Duration = Duration::from_secs(30);

/// Creates a volume of 1+1 members of `member_bytes` each.
pub(super) fn create(member_bytes: u64, segment_bytes: Option<u64>) -> Vec<MemDisk> {
    let disks = disks(2, member_bytes);
    let mut options = CreateOptions::new(Geometry::new(1, 1).unwrap());
    if let Some(segment_bytes) = segment_bytes {
        options.segment_bytes = segment_bytes;
    }
    Transactions::create(&stores(&disks), &options, executor(HANG)).unwrap();
    disks.iter().map(MemDisk::fork).collect()
}

/// Opens the volume on these disks, without threads.
pub(super) fn open_volume(disks: &[MemDisk]) -> Arc<Maintenance> {
    let options = OpenOptions {
        threads: 0,
        ..OpenOptions::default()
    };
    Maintenance::open(stores(disks), &options, executor(HANG)).unwrap()
}

/// Opens the filesystem on these disks.
pub(super) fn open(disks: &[MemDisk]) -> Arc<Fs> {
    Fs::open(open_volume(disks), FsOptions::default()).unwrap()
}
