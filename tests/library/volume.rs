//! Volumes in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use cauchyfs::codec::Geometry;
use cauchyfs::format::record::Timestamp;
use cauchyfs::fs::{Clock, Fs, FsOptions};
use cauchyfs::maintenance::Maintenance;
use cauchyfs::store::{MemDisk, StoreRef};
use cauchyfs::transaction::{CommitError, CreateOptions, OpenOptions, Transactions};
use cauchyfs_testkit::executor;
pub(crate) use cauchyfs_testkit::stores;

/// The time after which an operation counts as hung.
const HANG: Duration = Duration::from_secs(30);

/// A clock that stands still until it is set.
#[derive(Clone, Default)]
pub(crate) struct TestClock(Arc<AtomicI64>);

impl TestClock {
    pub(crate) fn set(&self, seconds: i64) {
        self.0.store(seconds, Ordering::SeqCst);
    }

    pub(crate) fn clock(&self) -> Clock {
        let now = Arc::clone(&self.0);
        Arc::new(move || at(now.load(Ordering::SeqCst)))
    }
}

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 7 }
}

/// Makes an empty 2+1 volume over three disks in memory and opens it.
pub(crate) fn maintenance() -> Arc<Maintenance> {
    let disks = disks(3, 2, 1);
    open(&disks, 2)
}

/// Makes an empty volume over `count` disks in memory.
pub(crate) fn disks(count: usize, data_shards: usize, parity_shards: usize) -> Vec<MemDisk> {
    disks_of(1 << 30, count, data_shards, parity_shards)
}

/// Makes an empty volume over `count` disks of `capacity_bytes` in memory.
pub(crate) fn disks_of(
    capacity_bytes: u64,
    count: usize,
    data_shards: usize,
    parity_shards: usize,
) -> Vec<MemDisk> {
    let disks = cauchyfs_testkit::disks(count, capacity_bytes);
    let geometry = Geometry::new(data_shards, parity_shards).unwrap();
    let options = CreateOptions {
        unit_bytes: 64 << 10,
        segment_bytes: 2 << 20,
        ..CreateOptions::new(geometry)
    };
    Transactions::create(&stores(&disks), &options, executor(HANG)).unwrap();
    let maintenance = open(&disks, 0);
    let options = FsOptions {
        root_owner: (0, 0),
        clock: TestClock::default().clock(),
        ..FsOptions::default()
    };
    Fs::open(Arc::clone(&maintenance), options).unwrap();
    maintenance.close().unwrap();
    disks
}

/// Opens a volume.
pub(crate) fn open(disks: &[MemDisk], threads: usize) -> Arc<Maintenance> {
    try_open(stores(disks), threads).unwrap()
}

pub(crate) fn try_open(
    stores: Vec<StoreRef>,
    threads: usize,
) -> Result<Arc<Maintenance>, CommitError> {
    let options = OpenOptions {
        threads,
        cache_bytes: 4 << 20,
        index_cache_bytes: 4 << 20,
        ..OpenOptions::default()
    };
    Maintenance::open(stores, &options, executor(HANG))
}
