use cauchyfs_testkit::{disks, executor, stores};

use super::*;
use crate::codec::Geometry;
use crate::control::report::VolumeState;
use crate::format::{StripeId, key};
use crate::fs::{Fs, FsOptions};
use crate::maintenance::Maintenance;
use crate::metadata::Batch;
use crate::store::{MemDisk, Store};
use crate::transaction::{CreateOptions, OpenOptions, Transactions};

/// The time after which an operation counts as hung.
const HANG: Duration = Duration::from_secs(30);

/// Opens a new volume of 1+1 members.
fn open() -> (OpenVolume, Vec<MemDisk>) {
    let disks = disks(2, 64 << 20);
    let options = CreateOptions::new(Geometry::new(1, 1).unwrap());
    Transactions::create(&stores(&disks), &options, executor(HANG)).unwrap();
    let disks: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
    let options = OpenOptions {
        threads: 0,
        ..OpenOptions::default()
    };
    let maintenance = Maintenance::open(stores(&disks), &options, executor(HANG)).unwrap();
    let volume = OpenVolume {
        fs: Fs::open(Arc::clone(&maintenance), FsOptions::default()).unwrap(),
        maintenance,
        notes: Vec::new(),
        orders: None,
        pause_switch: None,
        left_out: Vec::new(),
    };
    (volume, disks)
}

/// A damaged record of a stripe ends each count of the redundancy. All else is as it was.
#[test]
fn a_mount_that_serves_is_reported_on_without_the_redundancy_that_cannot_be_counted() {
    let (volume, disks) = open();
    let transactions = volume.fs.transactions();
    let survey: Survey = Box::new(|reason| panic!("surveyed: {reason}"));
    let sound = status_of(Some(&volume), &survey).unwrap();
    assert_eq!(sound.state, VolumeState::Healthy);
    let mut batch = Batch::default();
    batch.put(key::stripe(StripeId(7)), b"no stripe".to_vec());
    transactions.apply(batch).unwrap();
    // A count holds until the next commit.
    transactions.sync().unwrap();
    for disk in &disks {
        let space = disk.open().space().unwrap();
        disk.set_capacity(space.total_bytes - space.free_bytes);
    }
    let found = status_of(Some(&volume), &survey).unwrap();
    assert_eq!(found.redundancy, None);
    assert!(found.why_uncounted("redundancy").is_some());
    assert!(found.why_uncounted("scrub").is_none());
    assert_eq!(found.state, VolumeState::Degraded);
    assert!(found.mounted && !found.read_only, "{found:?}");
    assert!(found.members.iter().all(|member| member.full), "{found:?}");
    assert_eq!(found.index, sound.index);
}

#[test]
fn a_volume_that_is_closed_is_surveyed() {
    let survey: Survey = Box::new(|reason| {
        assert_eq!(reason, TOO_FEW);
        None
    });
    assert!(status_of(None, &survey).is_none());
}
