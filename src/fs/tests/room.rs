//! Callers that find no space while others make room.

use super::*;
use crate::format::files;
use crate::store::Store;

/// Two callers find no room for the index. The first moves the index while the second is about to ask for room.
#[test]
fn a_caller_tries_again_if_another_one_made_room_for_the_index_meanwhile() {
    let disks = disks(4, 64 << 20);
    let options = CreateOptions::new(Geometry::new(1, 1).unwrap());
    Transactions::create(&stores(&disks), &options, executor(HANG)).unwrap();
    let disks: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
    let maintenance = open_volume(&disks);
    let fs = Fs::open(Arc::clone(&maintenance), FsOptions::default()).unwrap();
    let growth = maintenance.transactions().growth();
    let is_full = |disk: &MemDisk| disk.open().open_len(files::INDEX).is_ok();
    let full = disks
        .iter()
        .find(|disk| is_full(disk))
        .expect("one has the index");
    let space = full.open().space().unwrap();
    full.set_capacity(space.total_bytes - space.free_bytes);
    growth.measure_growth();
    let mut attempts = 0;
    let outcome = fs.inodes.with_room(0, || {
        attempts += 1;
        let refused = growth.check_growth();
        if attempts == 1 {
            assert!(refused.is_err());
            assert!(maintenance.room().make_room(0, &**fs.inodes.locks())?);
        }
        Ok(refused?)
    });
    assert!(outcome.is_ok(), "{outcome:?}");
    assert_eq!(attempts, 2);
}
