//! The filesystem behind a mount, while it is away.

use std::sync::Arc;

use super::{create, open};
use crate::fs::{ServedFs, SpaceReport};

#[test]
fn a_filesystem_that_is_away_keeps_its_size_and_has_nothing_free() {
    let disks = create(256 << 20, None);
    let fs = open(&disks);
    let served = ServedFs::new(Arc::clone(&fs));
    let before = served.statfs();
    assert!(before.blocks_free > 0 && before.blocks >= before.blocks_free);
    let full = SpaceReport {
        blocks_free: 0,
        blocks_available: 0,
        ..before
    };
    served.take();
    assert_eq!(served.statfs(), full);
    served.put(Arc::clone(&fs));
    assert_eq!(served.statfs(), before);
    // It is served, and goes on no more.
    for disk in &disks {
        disk.set_capacity(0);
    }
    assert_eq!(served.statfs().blocks_free, 0);
    assert!(served.statfs().blocks > 0);
}
