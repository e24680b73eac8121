//! The members that took another's place, and those given up: the next open of the volume knows both.

use super::super::succession::Succession;
use super::*;
use crate::format::superblock::Replaced;
use crate::membership::{Belongings, JoinAs};
use crate::store::{CallKind, Effect, Fault, Scope};

const NEW: usize = 4;

/// A volume of four members, with one more disk that is empty.
fn volume() -> Disks {
    let mut disks = Disks::volume(2, 1, 4);
    disks.directories.push(MemDisk::new("/d4", 1 << 30));
    disks
}

fn join(members: &Members, disks: &Disks, seat: JoinAs, disk: usize) -> MemberIndex {
    let store = disks.stores([disk]).remove(0);
    let belongings = Belongings::default();
    let joined =
        members
            .changes()
            .join(seat, &store, &belongings, |_, _| Ok::<_, MembersError>(()));
    joined.expect("it does")
}

fn at(path: &str) -> [String; 1] {
    [path.to_owned()]
}

#[test]
fn an_heir_is_known_until_another_member_has_its_place() {
    let disks = volume();
    let old = MemberIndex(3);
    let members = disks.open(0..4).expect("all members are there");
    let new = join(&members, &disks, JoinAs::HeirOf(old), NEW);
    // The daemon may die before it tells the old one to leave.
    drop(members);
    let members = disks.open(0..5).expect("all members are there");
    assert_eq!(members.membership().heir_of(old), Some(new));
    assert_eq!(
        members.membership().successor_at(&at("/d3")),
        None,
        "it is there still"
    );
    members.epochs().admit_stale().expect("nothing fails");
    members
        .changes()
        .set_draining_to(old, new)
        .expect("four suffice");
    assert!(members.changes().remove_drained(old).expect("it may go"));
    drop(members);
    let members = disks.open([0, 1, 2, NEW]).expect("all members are there");
    assert_eq!(members.membership().successor_of(old), Some(new));
    assert_eq!(members.membership().successor_at(&at("/d3")), Some(new));
    for other in [0, 1, 2, 4, 9].map(MemberIndex) {
        assert_eq!(members.membership().successor_of(other), None, "{other}");
    }
    members.changes().clear(&disks.stores([3]).remove(0));
    assert_eq!(join(&members, &disks, JoinAs::New, 3), old);
    assert_eq!(members.membership().heir_of(old), None, "it is another");
}

#[test]
fn a_successor_in_the_same_place_is_found_by_the_path_of_its_predecessor() {
    let disks = volume();
    let gone = MemberIndex(1);
    let members = disks.open(0..4).expect("all members are there");
    members.io().fail(gone, &io_error());
    assert_eq!(join(&members, &disks, JoinAs::InPlaceOf(gone), NEW), gone);
    drop(members);
    let members = disks.open([0, 2, 3, NEW]).expect("all members are there");
    assert_eq!(members.membership().successor_at(&at("/d1")), Some(gone));
    assert_eq!(members.membership().successor_at(&at("/d2")), None);
    assert_eq!(
        members.membership().heir_of(gone),
        None,
        "nothing is to move"
    );
}

#[test]
fn a_member_that_is_kept_after_all_has_no_heir() {
    let disks = volume();
    let old = MemberIndex(3);
    let members = disks.open(0..4).expect("all members are there");
    let new = join(&members, &disks, JoinAs::HeirOf(old), NEW);
    members
        .changes()
        .set_draining_to(old, new)
        .expect("four suffice");
    members
        .changes()
        .set_draining(old, false)
        .expect("it is there");
    assert_eq!(members.membership().heir_of(old), None);
}

#[test]
fn only_the_newest_replacements_are_remembered() {
    let most = crate::format::superblock::MAX_REPLACED;
    let disks = Disks::volume(1, 1, most + 3);
    let members = disks.open(disks.all()).expect("all members are there");
    let heir = MemberIndex(0);
    let replaced = 1..u16::try_from(most + 2).expect("a small number");
    for old in replaced.clone().map(MemberIndex) {
        members
            .changes()
            .set_draining_to(old, heir)
            .expect("two suffice");
    }
    drop(members);
    let members = disks.open(disks.all()).expect("all members are there");
    for old in replaced {
        let remembered = (old > 1).then_some(heir);
        assert_eq!(
            members.membership().heir_of(MemberIndex(old)),
            remembered,
            "{old}"
        );
    }
}

#[test]
fn a_given_up_member_stays_given_up_after_a_crash_until_it_returns() {
    let disks = Disks::volume(2, 2, 5);
    let away = MemberIndex(1);
    let members = disks.open(0..5).expect("all members are there");
    members.io().fail(away, &io_error());
    let epoch = members.membership().epoch();
    members.epochs().give_up_absentees();
    assert_eq!(
        members.membership().epoch(),
        epoch,
        "no member has come or gone"
    );
    // The power goes without any of them being closed.
    let after = disks.fork();
    after.cut(CutPolicy::Drop);
    for without in [0, 2, 3, 4] {
        let left = [0, 2, 3, 4].into_iter().filter(|disk| *disk != without);
        let members = after.fork().open(left).expect("enough are there");
        assert_eq!(
            members.membership().given_up(),
            [away].into(),
            "without {without}"
        );
    }
    assert_eq!(join(&members, &disks, JoinAs::Returning, 1), away);
    assert_eq!(
        members.membership().given_up(),
        [away].into(),
        "it has not what it missed"
    );
    members.epochs().admit_stale().expect("nothing fails");
    assert!(members.membership().given_up().is_empty());
    drop(members);
    let members = disks.open([0, 2, 3, 4]).expect("enough are there");
    assert!(
        members.membership().given_up().is_empty(),
        "it may come back once more"
    );
}

/// As where a build that knows nothing of it had the volume open meanwhile.
#[test]
fn notes_of_members_whose_places_others_have_do_not_count() {
    let disks = Disks::volume(2, 2, 5);
    let members = disks.open(0..5).expect("all members are there");
    members
        .changes()
        .set_draining(MemberIndex(4), true)
        .expect("four suffice");
    assert!(
        members
            .changes()
            .remove_drained(MemberIndex(4))
            .expect("it may go")
    );
    members.io().fail(MemberIndex(1), &io_error());
    let mut block = disks.block(0);
    let replaced = |heir: u16| Replaced {
        index: MemberIndex(9),
        heir: MemberIndex(heir),
        path: Vec::new(),
    };
    block.set_given_up(&[0, 1, 4, 9].map(MemberIndex).into());
    block.set_replaced(&[replaced(4), replaced(2), replaced(9)]);
    let succession = Succession::of(&block);
    succession.write_to(&mut block);
    assert_eq!(
        block.given_up(),
        [MemberIndex(1)].into(),
        "it alone is away"
    );
    assert_eq!(block.replaced(), [replaced(2)]);
}

#[test]
fn a_member_that_fails_while_given_up_members_are_noted_is_faulted() {
    let disks = Disks::volume(2, 2, 5);
    let plan = FaultPlan::new();
    let members = open(disks.faulty(0..5, &plan)).expect("all members are there");
    members.io().fail(MemberIndex(1), &io_error());
    let write = Scope::MemberKind(2, CallKind::Write);
    plan.add(Fault::at(1, Effect::Eio).of(write));
    members.epochs().give_up_absentees();
    assert_eq!(plan.triggered(), 1);
    assert_eq!(members.membership().live(), indices([0, 3, 4]));
    assert_eq!(
        members.membership().given_up(),
        indices([1]).into_iter().collect()
    );
}
