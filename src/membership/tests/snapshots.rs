//! Consistency of the membership for readers while members fail and return.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// An epoch, and the members that were live in it.
type Pair = (Epoch, Vec<MemberIndex>);

fn pair(membership: &Membership) -> Pair {
    let snapshot = membership.snapshot();
    (snapshot.epoch(), snapshot.live().to_vec())
}

fn take_back(members: &Members, disks: &Disks, index: usize) {
    let store = disks.stores([index]).remove(0);
    let joined =
        members
            .changes()
            .join(JoinAs::Returning, &store, &Belongings::default(), |_, _| {
                Ok::<_, MembersError>(())
            });
    assert_eq!(joined.expect("it was a member"), indices([index])[0]);
}

#[test]
fn a_reader_sees_only_pairs_of_epoch_and_live_members_that_were_published_together() {
    const ROUNDS: usize = 50;
    let disks = Disks::volume(2, 2, 4);
    let members = disks.open(0..4).expect("all members are there");
    let membership = members.membership();
    let is_over = AtomicBool::new(false);
    let mut published = BTreeSet::from([pair(membership)]);
    let seen: Vec<BTreeSet<Pair>> = std::thread::scope(|scope| {
        let read = || {
            let (mut seen, mut last) = (BTreeSet::new(), Epoch(0));
            while !is_over.load(Ordering::Relaxed) {
                let (epoch, live) = pair(membership);
                assert!(epoch >= last, "{epoch} after {last}");
                last = epoch;
                seen.insert((epoch, live));
            }
            seen
        };
        let readers: Vec<_> = (0..2).map(|_| scope.spawn(read)).collect();
        for round in 0..ROUNDS {
            let index = round % 4;
            members.io().fail(indices([index])[0], &io_error());
            published.insert(pair(membership));
            members.probe();
            take_back(&members, &disks, index);
            published.insert(pair(membership));
            members.epochs().admit_stale().expect("enough are left");
            published.insert(pair(membership));
        }
        is_over.store(true, Ordering::Relaxed);
        let readers = readers.into_iter().map(std::thread::ScopedJoinHandle::join);
        readers.map(|seen| seen.expect("it ends")).collect()
    });
    assert_eq!(published.len(), 1 + 3 * ROUNDS);
    for seen in seen {
        let torn: Vec<_> = seen.difference(&published).collect();
        assert!(torn.is_empty(), "{torn:?}");
    }
}

#[test]
fn a_failed_member_is_without_its_directory_before_an_epoch_without_it_is_published() {
    let disks = Disks::volume(2, 1, 3);
    let members = disks.open(0..3).expect("all members are there");
    let (membership, failed) = (members.membership(), MemberIndex(1));
    let before = membership.snapshot();
    membership.mark_failed(failed, &io_error());
    assert!(membership.store(failed).is_none());
    assert_eq!(pair(membership), (Epoch(1), indices(0..3)));
    members.epochs().publish_failures();
    assert_eq!(pair(membership), (Epoch(2), indices([0, 2])));
    assert_eq!(before.live(), indices(0..3), "a snapshot never changes");
}
