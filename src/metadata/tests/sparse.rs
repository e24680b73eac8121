//! An index of which most is free space.

use super::rig::{Mounted, Rig, content};
use crate::format::files;
use crate::membership::Access;
use crate::metadata::Batch;
use crate::store::{MemDisk, Store};

/// Records that make the index longer than any that is left as it is.
const RECORDS: u64 = 24_000;
const RECORD_BYTES: usize = 1000;

fn key(number: u64) -> Vec<u8> {
    [b"x", &number.to_be_bytes()[..]].concat()
}

/// Changes records in many checkpoints, as a workload does over time.
fn change(mounted: &Mounted, numbers: impl Iterator<Item = u64>, value: Option<usize>) {
    let numbers: Vec<u64> = numbers.collect();
    for piece in numbers.chunks(500) {
        let mut batch = Batch::default();
        for number in piece {
            match value {
                Some(bytes) => batch.put(key(*number), vec![7; bytes]),
                None => batch.delete(key(*number)),
            }
        }
        let meta = &mounted.meta;
        meta.apply(batch).expect("apply");
        meta.append(vec![meta.rotate(), meta.take_stripes()], &[])
            .expect("append");
        meta.checkpoint().expect("checkpoint");
    }
}

fn index_bytes(disks: &[MemDisk]) -> Vec<u64> {
    let stores = disks.iter().map(MemDisk::open);
    let lens = stores.filter_map(|store| store.open_len(files::INDEX).ok());
    lens.collect()
}

/// Its files shrink on all members, with the records that are left, and nothing is moved again without need.
#[test]
fn an_index_that_is_mostly_free_space_is_compacted_and_others_are_left_as_they_are() {
    let rig = Rig::new(1, 1, 3);
    let mounted = rig.mounted(None, Access::ReadWrite);
    change(&mounted, 0..RECORDS, Some(RECORD_BYTES));
    let full = index_bytes(&rig.disks);
    assert!(full.iter().all(|bytes| *bytes > 16 << 20), "{full:?}");
    let compacted = || mounted.replicas.compact_if_sparse().expect("it is sound");
    assert!(!compacted(), "it has no free space");
    assert_eq!(index_bytes(&rig.disks), full);
    // The pages of the last records lie at the end, so that the database does not shrink by itself.
    change(&mounted, 0..RECORDS - 400, None);
    let before = index_bytes(&rig.disks);
    assert!(before.iter().all(|bytes| *bytes > 16 << 20), "{before:?}");
    assert!(!compacted(), "too few were deleted since the look");
    assert_eq!(index_bytes(&rig.disks), before);
    let left = content(&mounted.meta).expect("it is sound");
    drop(mounted);
    // After a mount nothing is known of it.
    let mounted = rig.mounted(None, Access::ReadWrite);
    let compacted = || mounted.replicas.compact_if_sparse().expect("it is sound");
    assert!(compacted(), "{:?} before", index_bytes(&rig.disks));
    let after = index_bytes(&rig.disks);
    assert_eq!(after.len(), before.len());
    assert!(after.iter().all(|bytes| *bytes < 8 << 20), "{after:?}");
    assert!(content(&mounted.meta).expect("it is sound") == left);
    assert!(!compacted());
    drop(mounted);
    let mounted = rig.mounted(None, Access::ReadWrite);
    assert!(content(&mounted.meta).expect("it is sound") == left);
}
