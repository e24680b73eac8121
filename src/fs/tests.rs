//! Tests of the whole room, and the volumes in memory on which its tests run.

mod damaged;
mod parts;

use std::sync::Arc;
use std::time::Duration;

use crate::codec::Geometry;
use crate::commit::{CreateOptions, Maintenance, OpenOptions, Pipeline};
use crate::store::{Executor, ExecutorKind, MemDisk, StoreRef};

use super::{Caller, Fs, FsOptions};

/// The superuser, who makes all calls of these tests.
pub(super) const ROOT: &Caller = &Caller::ROOT;

/// Creates a volume of 1+1 members of `member_bytes` each.
pub(super) fn create(member_bytes: u64, segment_bytes: Option<u64>) -> Vec<MemDisk> {
    let disk = |number: usize| MemDisk::new(&format!("disk{number}"), member_bytes);
    let disks: Vec<MemDisk> = (0..2).map(disk).collect();
    let mut options = CreateOptions::new(Geometry::new(1, 1).unwrap());
    if let Some(segment_bytes) = segment_bytes {
        options.segment_bytes = segment_bytes;
    }
    Pipeline::create(&stores(&disks), &options, executor()).unwrap();
    disks.iter().map(MemDisk::fork).collect()
}

/// Opens the volume on these disks, without threads.
pub(super) fn open_volume(disks: &[MemDisk]) -> Arc<Maintenance> {
    let options = OpenOptions {
        threads: 0,
        ..OpenOptions::default()
    };
    Maintenance::open(stores(disks), &options, executor()).unwrap()
}

/// Opens the filesystem on these disks.
pub(super) fn open(disks: &[MemDisk]) -> Arc<Fs> {
    Fs::open(open_volume(disks), FsOptions::default()).unwrap()
}

fn executor() -> Arc<Executor> {
    let patience = Duration::from_secs(30);
    Arc::new(Executor::new(ExecutorKind::Inline, patience))
}

fn stores(disks: &[MemDisk]) -> Vec<StoreRef> {
    let open = |disk: &MemDisk| Arc::new(disk.open()) as StoreRef;
    disks.iter().map(open).collect()
}
