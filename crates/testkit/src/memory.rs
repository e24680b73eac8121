//! Members in memory.

use std::sync::Arc;
use std::time::Duration;

use cauchyfs_store::{Executor, ExecutorKind, MemDisk, StoreRef};

/// Makes empty disks of the same capacity.
#[must_use]
pub fn disks(count: usize, capacity_bytes: u64) -> Vec<MemDisk> {
    let disk = |index: usize| MemDisk::new(&format!("disk{index}"), capacity_bytes);
    (0..count).map(disk).collect()
}

/// Opens a store on each disk.
pub fn stores<'a>(disks: impl IntoIterator<Item = &'a MemDisk>) -> Vec<StoreRef> {
    let open = |disk: &MemDisk| Arc::new(disk.open()) as StoreRef;
    disks.into_iter().map(open).collect()
}

/// Returns an executor that runs operations on the calling thread, and calls those longer than `timeout` hung.
#[must_use]
pub fn executor(timeout: Duration) -> Arc<Executor> {
    Arc::new(Executor::new(ExecutorKind::Inline, timeout))
}
