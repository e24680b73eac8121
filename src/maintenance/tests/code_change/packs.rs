//! Changes of the code between two packs: stripes of one segment of which each pack becomes one new stripe. With the codes
//! here, a new stripe holds the bytes of three or four old ones.

use super::super::rebuild::assert_whole;
use super::*;

/// Counts the stripes of a segment that hold bytes of files.
fn live_in(fs: &TestFs, segment: SegmentId) -> usize {
    let catalog = &fs.transactions.catalog;
    let listed = catalog.listed_in(segment).unwrap().stripes.into_iter();
    let live = listed.filter(|(stripe, _)| catalog.has_backref(*stripe).unwrap());
    live.count()
}

#[test]
fn a_code_that_changes_between_two_packs_of_a_segment_counts_for_the_rest_and_for_what_moved() {
    let cauchy = CodeId::RS_CAUCHY;
    let (base, model, segment) = packed();
    for (first, second) in [
        (wanted(3, 2, cauchy), wanted(1, 1, cauchy)),
        (wanted(4, 2, cauchy), wanted(2, 1, cauchy)),
        (wanted(3, 1, cauchy), wanted(2, 2, cauchy)),
        (wanted(3, 1, cauchy), wanted(3, 3, cauchy)),
    ] {
        for (turn, policy) in ways_to_cut(7).into_iter().enumerate() {
            let context = format!("{first:?}, then {second:?}, {policy:?}");
            let (rig, mut model) = (base.fork(), model.clone());
            let fs = changed(&rig, first, &mut model);
            let stopped = fs.rebuild_while(&|_| live_in(&fs, segment) == PACKED);
            let stopped = stopped.unwrap();
            assert_eq!(stopped.state, RebuildState::Stopped, "{context}");
            let left = live_in(&fs, segment);
            assert!((1..PACKED).contains(&left), "{context}: {left} are left");
            drop(fs);
            rig.cut(policy);
            // The loss of one member is borne by both codes, and by the first one.
            let lost = rig.fork().open_in(&[turn], &context);
            assert_holds(&lost, &model, &context);
            drop(lost);
            let fs = changed(&rig, second, &mut model);
            let done = fs.rebuild().unwrap();
            assert!(!done.leaves_something(), "{context}: {done:?}");
            assert!(!fs.maintenance.rebuild().has_other_codes(), "{context}");
            let parity = second.geometry.parity_shards();
            assert_whole(fs, &rig, &[], parity, &model, &context);
        }
    }
}
