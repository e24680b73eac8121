//! Changes of the stripe unit of volumes with codes of directories.

use super::*;

/// Their greatest height follows from the unit of the volume.
#[test]
fn a_change_of_the_stripe_unit_rewrites_the_stripes_of_directories_with_their_codes() {
    let (rig, fs, classes, mut files) = filled(7, [(5, 1), (5, 2)]);
    fs.flush();
    let old = segments_of_directories(&fs);
    assert!(!old.is_empty());
    let code = fs.transactions.members().shape().stripe_code();
    let to = StripeCode {
        unit_bytes: 4096,
        ..code
    };
    fs.transactions.change_code(to).unwrap();
    fs.close();
    let fs = rig.open(&[]);
    // New stripes would lack a shard for each class of seven.
    fs.lose(&rig, 6);
    fs.rebuild().unwrap();
    assert_eq!(segments_of_directories(&fs), old);
    fs.take_back(&rig, 6);
    let done = fs.rebuild().unwrap();
    assert!(!done.leaves_something(), "{done:?}");
    assert!(!fs.maintenance.rebuild().has_other_codes());
    let now = segments_of_directories(&fs);
    assert!(now.is_disjoint(&old), "{now:?} and {old:?}");
    for stripe in fs.stripes() {
        let record = fs.transactions.stripe(stripe).unwrap().unwrap();
        assert_eq!(record.height, 4096, "{stripe}");
    }
    assert_eq!(fs.rebuild().unwrap().bytes_done, 0);
    files.fill(&fs, 100, &classes);
    fs.flush();
    files.assert_in_place(&fs, "another unit");
    fs.close();
    for (class, losses) in [(classes[0], 2), (classes[1], 1), (classes[2], 2)] {
        files.assert_survives(&rig, class, losses, "another unit");
    }
}
