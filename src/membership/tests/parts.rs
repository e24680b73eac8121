//! The parts of the members, each constructed alone.

use uuid::Uuid;

use super::*;
use crate::codec::{CodeId, Survival};
use crate::format::MemberId;
use crate::membership::health::MemberState;
use crate::membership::member::Member;
use crate::membership::snapshot::Published;
use crate::membership::succession::Succession;

fn published(epoch: u64, draining: Vec<MemberIndex>) -> Published {
    Published {
        epoch: Epoch(epoch),
        draining,
        succession: Succession::default(),
    }
}

fn present(disks: &Disks, index: usize) -> Member {
    let store = disks.stores([index]).remove(0);
    Member::present(MemberId(Uuid::new_v4()), store)
}

/// The membership of a volume of 2+1 on these directories, in its first epoch.
fn membership(disks: &Disks) -> Membership {
    let members = (0..disks.directories.len()).map(|index| present(disks, index));
    let geometry = Geometry::new(2, 1).expect("a valid geometry");
    let survival = Survival::of(CodeId::RS_CAUCHY, geometry);
    Membership::new(
        (geometry, survival),
        members.collect(),
        published(1, Vec::new()),
    )
}

#[test]
fn the_answer_of_a_directory_does_not_fail_the_member_that_has_its_place_by_then() {
    let disks = Disks::blank(2, 1, 3);
    let membership = membership(&disks);
    let index = MemberIndex(1);
    let (asked, _store) = membership.asked(index).expect("it is online");
    membership.publish_member(index, present(&disks, 1), published(2, Vec::new()));
    membership.mark_asked_failed(index, &asked, &io_error());
    assert!(membership.is_online(index));
    membership.mark_failed(index, &io_error());
    assert!(!membership.is_online(index));
    assert_eq!(membership.away(), [(index, "/d1".to_owned())]);
}

#[test]
fn a_refusal_of_its_directory_is_noted_of_an_absent_member_only_and_is_new_once() {
    let membership = membership(&Disks::blank(2, 1, 3));
    let (index, state) = (MemberIndex(1), Some(MemberState::Missing));
    let refuse = || membership.refuse(index, state, &AbsenceReason::NoDirectory);
    assert!(!refuse(), "it is online");
    membership.mark_failed(index, &io_error());
    assert!(refuse());
    assert!(!refuse(), "it is known");
    let member = membership.member(index).expect("it is a member");
    assert_eq!(member.health().state, MemberState::Missing);
    assert!(member.health().reason.is_some(), "why it failed is kept");
}

#[test]
fn draining_members_get_new_segments_only_if_the_others_are_too_few_for_a_stripe() {
    let membership = membership(&Disks::blank(2, 1, 4));
    assert_eq!(membership.homes(3), indices(0..4));
    membership.publish(published(2, indices([3])));
    assert_eq!(membership.homes(3), indices(0..3));
    assert_eq!(membership.homes(4), indices(0..4), "of a wider code");
    assert_eq!(membership.staying(), indices(0..3));
    membership.publish(published(3, indices([2, 3])));
    assert_eq!(membership.homes(3), indices(0..4));
    assert_eq!(membership.homes(2), indices(0..2), "of a narrower code");
    assert_eq!(membership.staying(), indices(0..2));
}

#[test]
fn stale_copies_of_vacant_places_are_not_restored() {
    let disks = Disks::blank(2, 1, 4);
    let membership = Arc::new(membership(&disks));
    membership.publish_member(MemberIndex(3), Member::vacant(), published(2, Vec::new()));
    let stale_copies = StaleCopies::new(Access::ReadWrite, membership);
    stale_copies.restore(indices([1, 3, 9]));
    let unverified = stale_copies.unverified();
    assert_eq!(unverified.keys().copied().collect::<Vec<_>>(), indices([1]));
    stale_copies.note(MemberIndex(1));
    stale_copies.set_verified(&unverified);
    let left = stale_copies.unverified();
    assert_eq!(left.len(), 1, "it came once more since");
    stale_copies.set_verified(&left);
    assert!(stale_copies.unverified().is_empty());
}
