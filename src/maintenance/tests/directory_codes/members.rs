//! Members that the codes of directories need: none of them leaves.

use super::*;

/// Gives a directory a class.
fn set_directory(fs: &TestFs, directory: u64, class: StripeClass) {
    let inode = Inode {
        kind: FileKind::Directory,
        parent: Ino::ROOT,
        ..inode_of(class)
    };
    let mut batch = Batch::default();
    batch.put(key::inode(Ino(directory)), inode.encode());
    fs.transactions.apply(batch).unwrap();
}

/// Asserts that a change is refused for lack of members for stripes of 5+1, and returns the message.
fn refused_for_five_one(outcome: Result<(), CommitError>, left: usize) -> String {
    let error = outcome.unwrap_err();
    let CommitError::Members(members) = &error else {
        panic!("{error:?}");
    };
    match &**members {
        MembersError::TooFewLeftForDirectories {
            staying, geometry, ..
        } => assert_eq!((*staying, geometry.total_shards()), (left, 6)),
        other => panic!("{other:?}"),
    }
    assert!(members.remedy().is_some());
    error.to_string()
}

#[test]
fn a_member_stays_that_the_code_of_an_empty_directory_needs() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    let wide = fs.class_for(5, 1);
    let draining = fs.maintenance.draining();
    draining.check_replaceable(MemberIndex(2)).unwrap();
    set_directory(&fs, 7, wide);
    draining.check_replaceable(MemberIndex(2)).unwrap();
    let said = refused_for_five_one(draining.drain(MemberIndex(2)), 5);
    assert_eq!(
        said,
        "without member 2, 5 members are left, and a stripe of 5+1 rs-cauchy, a code of directories, needs 6"
    );
    assert_eq!(fs.transactions.members().membership().draining(), []);
    // Nothing was lost with a member that nothing was written to, and no code of directories has a shard for it.
    fs.lose(&rig, 5);
    refused_for_five_one(draining.check_replaceable(MemberIndex(2)), 5);
    set_directory(&fs, 7, volume());
    draining.check_replaceable(MemberIndex(2)).unwrap();
    draining.drain(MemberIndex(2)).unwrap();
}

#[test]
fn a_member_is_not_replaced_if_the_stripes_of_a_directory_find_too_few_others() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    let wide = fs.class_for(5, 1);
    let mut files = Classed::default();
    files.fill(&fs, 0, &[wide, volume()]);
    fs.flush();
    let draining = fs.maintenance.draining();
    draining.check_replaceable(MemberIndex(2)).unwrap();
    fs.lose(&rig, 5);
    refused_for_five_one(draining.check_replaceable(MemberIndex(2)), 5);
    for file in files.model.keys() {
        if files.classes[file] == wide {
            fs.remove(*file).unwrap();
        }
    }
    draining.check_replaceable(MemberIndex(2)).unwrap();
    let too_few_for_the_volume = || draining.drain(MemberIndex(2));
    fs.lose(&rig, 4);
    let refused = too_few_for_the_volume();
    let is_told = matches!(&refused, Err(CommitError::Members(error))
        if matches!(**error, MembersError::TooFewLeft { staying: 3, needed: 4, .. }));
    assert!(is_told, "{refused:?}");
}

/// A member fails while another is drained. The volume's stripes leave the latter out, and those of a wider code take it.
#[test]
fn stripes_of_a_wider_code_take_a_draining_member_while_the_others_are_too_few() {
    let rig = rig(2, 7);
    let fs = rig.open(&[]);
    let wide = fs.class_for(4, 2);
    let leaving = MemberIndex(6);
    fs.maintenance.draining().drain(leaving).unwrap();
    let mut files = Classed::default();
    files.fill(&fs, 0, &[wide, volume()]);
    fs.flush();
    let takes = |file: &u64| {
        let segments = fs.segments_of(*file).into_iter();
        let mut slots = segments.flat_map(|segment| segment.slots);
        slots.any(|slot| slot == Some(leaving))
    };
    assert!(!files.model.keys().any(takes), "six stay");
    fs.lose(&rig, 0);
    files.fill(&fs, 100, &[wide, volume()]);
    fs.flush();
    files.assert_in_place(&fs, "one of seven is lost");
    for file in files.model.keys().filter(|file| **file >= 100) {
        assert_eq!(takes(file), files.classes[file] == wide, "file {file}");
        for segment in fs.segments_of(*file) {
            let vacant = segment.slots.iter().filter(|slot| slot.is_none()).count();
            assert_eq!(vacant, 0, "file {file}");
        }
    }
    assert_holds(&fs, &files.model, "one of seven is lost");
}
