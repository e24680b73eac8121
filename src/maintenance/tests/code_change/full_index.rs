//! Stripes that get another code while the index is full.

use super::super::full::{assert_records, drop_records, fill_index};
use super::*;

#[test]
fn a_move_that_finds_the_index_full_loses_nothing_and_is_done_once_records_are_deleted() {
    let rig = Rig::with_disks(2, 1, &[16 << 20; 4]);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    for round in 0..3 {
        fill(&fs, 100 * round, &mut model);
    }
    fs.close();
    let fs = changed(&rig, wanted(3, 1, CodeId::RS_CAUCHY), &mut model);
    let first = 1 << 30;
    let end = fill_index(&fs, first);
    match fs.rebuild() {
        Ok(done) => assert!(done.bytes_waiting > 0, "{done:?}"),
        Err(error) => assert!(matches!(error, CommitError::NoSpace), "{error}"),
    }
    assert!(fs.maintenance.rebuild().has_other_codes());
    drop(fs);
    rig.cut(CutPolicy::Drop);
    for lost in 0..4 {
        let fs = TestFs::open(rig.fork().stores(&[lost]), Access::ReadOnly).unwrap();
        assert_holds(&fs, &model, &format!("full, without {lost}"));
    }
    let fs = rig.open(&[]);
    assert_records(&fs, first..end);
    drop_records(&fs, first..end);
    // The index gives its space back first.
    fs.maintenance.room.make_room(6 << 20, &NoLocks).unwrap();
    let done = fs.rebuild().unwrap();
    assert_eq!(done.state, RebuildState::Finished);
    assert!(!fs.maintenance.rebuild().has_other_codes(), "{done:?}");
    assert_whole(fs, &rig, &[], 1, &model, "with room in the index");
}
