//! Which members data goes to.

use std::fs::create_dir;

use super::*;
use crate::store::DirStore;

/// They all have the same room, which each segment takes from all of them.
#[test]
fn members_on_one_filesystem_all_get_data() {
    let top = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..7).map(|i| top.path().join(format!("d{i}"))).collect();
    for path in &paths {
        create_dir(path).unwrap();
    }
    let stores = || -> Vec<StoreRef> {
        let open = |path| Arc::new(DirStore::open(path).unwrap()) as StoreRef;
        paths.iter().map(open).collect()
    };
    let mut options = CreateOptions::new(Geometry::new(2, 1).unwrap());
    options.unit_bytes = UNIT as u32;
    options.segment_bytes = 8 * UNIT as u64;
    Pipeline::create(&stores(), &options, executor()).unwrap();
    let fs = TestFs::open(stores(), Access::ReadWrite).unwrap();
    for file in 0..50 {
        fs.write(file, &pattern(file, 60_000)).unwrap();
    }
    fs.sync().unwrap();
    fs.close();
    let of_member = |store: &StoreRef| {
        let listed = store.list(files::SEGMENTS).unwrap();
        listed.iter().map(|(_, len)| len).sum::<u64>()
    };
    let taken: Vec<u64> = stores().iter().map(of_member).collect();
    let (least, most) = (taken.iter().min(), taken.iter().max());
    assert!(
        most.unwrap() - least.unwrap() <= 2 * options.segment_bytes,
        "bytes on each member: {taken:?}"
    );
}
