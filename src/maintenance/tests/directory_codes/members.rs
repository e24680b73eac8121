//! Members that the codes of directories need: none of them leaves.

use super::*;
use crate::membership::VolumeStep;

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
    fs.lose(&rig, 5);
    refused_for_five_one(draining.drain(MemberIndex(2)), 4);
    let refused = draining.drain(MemberIndex(2)).unwrap_err();
    let CommitError::Members(refused) = &refused else {
        panic!("{refused:?}");
    };
    let step = VolumeStep::ReplaceOrNarrowDirectories { away: 5 };
    assert_eq!(refused.remedy(), Some(step.into()), "it helps as well");
    draining.check_replaceable(MemberIndex(2)).unwrap();
    set_directory(&fs, 7, volume());
    draining.drain(MemberIndex(2)).unwrap();
}

#[test]
fn a_member_is_not_replaced_while_members_are_too_few_for_the_volume() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    for disk in [5, 4] {
        fs.lose(&rig, disk);
        let draining = fs.maintenance.draining();
        draining.check_replaceable(MemberIndex(2)).unwrap();
    }
    let refused = fs.maintenance.draining().drain(MemberIndex(2));
    let is_told = matches!(&refused, Err(CommitError::Members(error))
        if matches!(**error, MembersError::TooFewLeft { staying: 3, needed: 4, .. }));
    assert!(is_told, "{refused:?}");
}

/// So no text offers its removal while files wait for it.
#[test]
fn an_absent_member_that_an_order_waits_for_cannot_be_removed_while_a_directory_has_the_code() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    let wide = fs.class_for(5, 1);
    set_directory(&fs, 7, wide);
    let mut files = Classed::default();
    fs.lose(&rig, 0);
    files.fill(&fs, 100, &[wide]);
    fs.flush();
    let rebuild = fs.maintenance.rebuild();
    let state = || {
        let status = rebuild.rewrite_status().unwrap();
        (status.awaited, status.lacks_members)
    };
    let absent = MemberIndex(0);
    assert_eq!(state(), (vec![absent], false), "it is not given up");
    fs.rebuild().unwrap();
    assert_eq!(state(), (vec![absent], true));
    refused_for_five_one(fs.maintenance.draining().drain(absent), 5);
    fs.take_back(&rig, 0);
    fs.rebuild().unwrap();
    files.assert_in_place(&fs, "it is back");
}

/// Returns the classes of the segments that have a slot on a member.
fn classes_on(fs: &TestFs, member: MemberIndex) -> BTreeSet<StripeClass> {
    let segments = fs.transactions.stripes.segments().records().into_iter();
    let on_it = segments.filter(|(_, record)| record.slots.contains(&Some(member)));
    on_it.map(|(_, record)| record.class).collect()
}

fn has_member(fs: &TestFs, index: MemberIndex) -> bool {
    let membership = fs.transactions.members().membership();
    membership.live().contains(&index) || membership.draining().contains(&index)
}

/// A member fails while another is drained, and the others are too few for a directory. Stripes that keep the member
/// get the code of the volume, as new data does. That survives more than the directory's own would without the member.
#[test]
fn a_drain_that_meets_a_loss_ends_although_members_are_too_few_for_a_directory() {
    let rig = rig(2, 7);
    let fs = rig.open(&[]);
    let wide = fs.class_for(4, 2);
    let leaving = MemberIndex(6);
    let mut files = Classed::default();
    // Each part in segments of its own, some of which leave another member out.
    for part in 0..4 {
        files.fill(&fs, 20 * part, &[wide, volume()]);
        fs.flush();
    }
    fs.maintenance.draining().drain(leaving).unwrap();
    files.fill(&fs, 100, &[wide, volume()]);
    fs.flush();
    files.assert_in_place(&fs, "six stay");
    assert_eq!(classes_on(&fs, leaving), BTreeSet::from([volume(), wide]));
    fs.lose(&rig, 0);
    files.fill(&fs, 200, &[wide, volume()]);
    fs.flush();
    for file in files.model.keys().filter(|file| **file >= 200) {
        for segment in fs.segments_of(*file) {
            let found = (segment.class, segment.slots.contains(&Some(leaving)));
            assert_eq!(found, (volume(), false), "file {file}");
            let vacant = segment.slots.iter().filter(|slot| slot.is_none()).count();
            assert_eq!(vacant, 0, "file {file}");
        }
    }
    fs.rebuild().unwrap();
    assert!(!has_member(&fs, leaving), "the drain goes on");
    assert_holds(&fs, &files.model, "the member is gone");
    fs.close();
    for also in 1..6 {
        let lost = [0, also, 6];
        let fs = TestFs::open(rig.fork().stores(&lost), Access::ReadOnly).unwrap();
        assert_holds(&fs, &files.model, &format!("without {lost:?}"));
    }
}

/// One comes for one: that is no worse for a directory whose code has too few members already.
#[test]
fn a_failing_member_is_replaced_although_members_are_too_few_for_a_directory() {
    let mut rig = rig(2, 6);
    let fs = rig.open(&[]);
    let wide = fs.class_for(5, 1);
    set_directory(&fs, 7, wide);
    let mut files = Classed::default();
    files.fill(&fs, 100, &[wide, volume()]);
    fs.flush();
    fs.lose(&rig, 5);
    let failing = MemberIndex(2);
    let draining = fs.maintenance.draining();
    draining.check_replaceable(failing).unwrap();
    let new = join_for(&fs, &mut rig, failing);
    draining.drain_to(failing, new).unwrap();
    assert!(classes_on(&fs, failing).contains(&wide));
    fs.rebuild().unwrap();
    assert!(!has_member(&fs, failing), "the replacement goes on");
    assert_holds(&fs, &files.model, "replaced");
}

/// Nothing can be made in a directory, or added to a file, whose record is damaged.
#[test]
fn a_damaged_inode_keeps_no_member_and_no_code() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    let (wide, strong) = (fs.class_for(5, 1), fs.class_for(4, 2));
    let mut batch = Batch::default();
    batch.put(key::inode(Ino(5)), Marker.encode());
    fs.transactions.apply(batch).unwrap();
    let less = StripeCode {
        geometry: Geometry::new(2, 1).unwrap(),
        ..fs.transactions.members().shape().stripe_code()
    };
    fs.transactions.check_beside_directories(less).unwrap();
    set_directory(&fs, 7, strong);
    let kept = fs.transactions.check_beside_directories(less);
    assert!(
        matches!(kept, Err(DirectoryCodeError::DirectoryHasMore { .. })),
        "those behind it count: {kept:?}"
    );
    let drain = || fs.maintenance.draining().drain(MemberIndex(2));
    set_directory(&fs, 7, wide);
    refused_for_five_one(drain(), 5);
    set_directory(&fs, 7, volume());
    drain().unwrap();
}

/// Whichever comes first, the other is told.
#[test]
fn no_drain_begins_while_a_directory_is_given_a_code() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    let wide = fs.class_for(5, 1);
    let held = fs.maintenance.draining().hold();
    std::thread::scope(|scope| {
        let drained = scope.spawn(|| fs.maintenance.draining().drain(MemberIndex(2)));
        // Time for a drain that does not wait.
        std::thread::sleep(Duration::from_millis(200));
        set_directory(&fs, 7, wide);
        drop(held);
        refused_for_five_one(drained.join().unwrap(), 5);
    });
    assert_eq!(fs.transactions.members().membership().draining(), []);
}

/// Has a new disk join in order to replace a member.
fn join_for(fs: &TestFs, rig: &mut Rig, old: MemberIndex) -> MemberIndex {
    rig.disks.push(MemDisk::new("new", DISK));
    let store: StoreRef = Arc::new(rig.disks.last().unwrap().open());
    let joined = fs.maintenance.joining().join(JoinAs::HeirOf(old), &store);
    joined.unwrap()
}

/// The replacement was interrupted before the failing member was to be drained. It comes to its end whatever is ordered
/// in between, and leaves as many members as the directory needs.
#[test]
fn a_member_that_came_to_replace_another_makes_no_third_one_dispensable() {
    let mut rig = rig(2, 7);
    let fs = rig.open(&[]);
    let wide = fs.class_for(6, 1);
    set_directory(&fs, 7, wide);
    let mut files = Classed::default();
    files.fill(&fs, 100, &[wide, volume()]);
    fs.flush();
    let (failing, third) = (MemberIndex(2), MemberIndex(3));
    let new = join_for(&fs, &mut rig, failing);
    let draining = fs.maintenance.draining();
    let refused = draining.drain(third).unwrap_err();
    let said = "without member 3, and member 2 that another has come to replace, 6 members are left, and a stripe of \
                6+1 rs-cauchy, a code of directories, needs 7";
    assert_eq!(refused.to_string(), said);
    let wider = Geometry::new(7, 1).unwrap();
    let refused = fs.transactions.class_for(wider, CodeId::RS_CAUCHY);
    assert!(refused.is_err(), "{refused:?}");
    // Each of the two can go alone.
    for member in [new, failing] {
        draining.drain(member).unwrap();
        draining.keep(member).unwrap();
    }
    assert_eq!(
        fs.transactions.members().membership().heir_of(failing),
        None
    );
    draining.drain(third).unwrap();
    draining.keep(third).unwrap();
    // As if it came again.
    draining.drain_to(failing, new).unwrap();
    fs.rebuild().unwrap();
    assert!(!has_member(&fs, failing) && has_member(&fs, third));
    files.assert_in_place(&fs, "replaced");
    assert_holds(&fs, &files.model, "replaced");
    assert!(classes_on(&fs, new).contains(&wide));
}

/// The draining never began, for lack of room: keeping the old one ends the pair, as the code of the volume counts members.
#[test]
fn a_member_that_was_never_drained_for_the_one_that_came_to_replace_it_can_be_kept() {
    let mut rig = Rig::new(4, 2, 6);
    let fs = rig.open(&[]);
    let (old, third) = (MemberIndex(2), MemberIndex(3));
    let new = join_for(&fs, &mut rig, old);
    let shape = fs.transactions.members().shape();
    let wider = StripeCode {
        geometry: Geometry::new(5, 2).unwrap(),
        ..shape.stripe_code()
    };
    let epochs = fs.transactions.members().epochs();
    let refused = epochs.check_code(wider).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "5+2 needs 7 directories, and 6 are there to stay without member 2, which another has come to replace"
    );
    let draining = fs.maintenance.draining();
    assert!(draining.can_be_kept(old, true) && !draining.can_be_kept(old, false));
    assert!(!draining.can_be_kept(new, true) && !draining.can_be_kept(third, true));
    draining.keep(old).unwrap();
    assert!(!draining.can_be_kept(old, true));
    epochs.check_code(wider).unwrap();
    draining.drain(third).unwrap();
    assert!(draining.can_be_kept(third, true) && draining.can_be_kept(third, false));
}

#[test]
fn a_member_that_came_to_replace_another_is_none_that_the_volume_can_do_without() {
    let mut rig = Rig::new(4, 2, 6);
    let fs = rig.open(&[]);
    let new = join_for(&fs, &mut rig, MemberIndex(2));
    let draining = fs.maintenance.draining();
    let refused = draining.drain(MemberIndex(3)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "without member 3, and member 2 that another has come to replace, 5 members are left, and a stripe needs 6"
    );
    draining.drain_to(MemberIndex(2), new).unwrap();
    fs.rebuild().unwrap();
    assert!(!has_member(&fs, MemberIndex(2)));
}

/// Stripes of the new code have all their shards on the members that are there.
#[test]
fn directories_are_given_codes_for_which_the_members_suffice_that_are_there() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    let known = fs.class_for(3, 1);
    fs.lose(&rig, 0);
    let class_for = |data, parity| {
        let geometry = Geometry::new(data, parity).unwrap();
        fs.transactions.class_for(geometry, CodeId::RS_CAUCHY)
    };
    assert_eq!(class_for(3, 1).unwrap(), known);
    let thin = class_for(4, 1).unwrap();
    let refused = class_for(5, 1).unwrap_err();
    let said = "5+1 needs 6 directories, and 5 are there to stay; away: member 0 ";
    assert!(refused.to_string().starts_with(said), "{refused}");
    let remedy = match &refused {
        DirectoryCodeError::Commit(CommitError::Members(error)) => error.remedy(),
        other => panic!("{other:?}"),
    };
    assert_eq!(remedy, Some(VolumeStep::BringBackForCode.into()));
    let mut files = Classed::default();
    files.fill(&fs, 100, &[thin, volume()]);
    fs.flush();
    files.assert_in_place(&fs, "a member is away");
    fs.sync().unwrap();
    drop(fs);
    rig.cut(CutPolicy::Drop);
    rig.disks[0].fail(None);
    for lost in [0, 1] {
        let fs = TestFs::open(rig.fork().stores(&[lost]), Access::ReadOnly).unwrap();
        let code = fs.transactions.code_of_class(thin);
        assert_eq!(
            code,
            Some((Geometry::new(4, 1).unwrap(), CodeId::RS_CAUCHY))
        );
        assert_holds(&fs, &files.model, &format!("without {lost}"));
    }
    let fs = rig.open(&[]);
    assert_eq!(fs.class_for(4, 1), thin, "all are back");
    fs.rebuild().unwrap();
    fs.close();
    files.assert_survives(&rig, thin, 1, "all are back");
}
