//! Copies of the index that are made again on other members.

use super::rig::{Mounted, Records, Rig, content};
use crate::membership::Access;
use crate::metadata::mirror::placement::VAIN_ROUNDS;
use crate::metadata::{Batch, Meta};
use crate::store::{CallKind, Effect, Fault, FaultPlan, Scope, Store};

const KEYS: u32 = 20_000;

fn has_copy(rig: &Rig, disk: usize) -> bool {
    rig.disks[disk].open().open_len("index").is_ok()
}

fn write(meta: &Meta, state: &mut Records, keys: impl Iterator<Item = u32>, fill: u8) {
    let mut batch = Batch::default();
    for key in keys {
        let (key, value) = (format!("key {key:06}"), vec![fill; 400]);
        state.insert(key.clone().into(), value.clone().into());
        batch.put(key, value);
    }
    meta.apply(batch).expect("apply");
    let unit = meta.rotate();
    // The index takes what is longer than the journal.
    meta.append_to_index(vec![unit]).expect("append");
    meta.checkpoint().expect("checkpoint");
}

/// The volume tolerates the loss of the last copy's member only if the new copy is whole, commits
/// made while it was copied included.
#[test]
fn a_lost_copy_is_replaced_piece_by_piece_while_commits_go_on() {
    let rig = Rig::new(1, 1, 4);
    let plan = FaultPlan::new();
    let Mounted {
        meta,
        replicas,
        members,
        ..
    } = rig.mounted(Some(&plan), Access::ReadWrite);
    let mut state = content(&meta).expect("content");
    write(&meta, &mut state, 0..KEYS, 1);
    let holders: Vec<_> = (0..4).filter(|disk| has_copy(&rig, *disk)).collect();
    assert_eq!(holders.len(), 2, "parity shards + 1 copies");
    plan.add(
        Fault::at(1, Effect::Eio)
            .of(Scope::Member(holders[0]))
            .lasting(),
    );
    write(&meta, &mut state, 0..10, 2);
    let mut pieces = 0;
    while replicas.refill().expect("refill") {
        write(
            &meta,
            &mut state,
            (pieces * 37 % KEYS..KEYS).step_by(501),
            3,
        );
        write(
            &meta,
            &mut state,
            KEYS + pieces * 100..KEYS + pieces * 100 + 100,
            4,
        );
        pieces += 1;
        assert!(pieces < 100, "it comes to an end");
    }
    assert!(pieces > 4, "{pieces} pieces");
    write(&meta, &mut state, 5..15, 5);
    drop((meta, replicas, members));
    let (meta, _, _members) = rig
        .open(&holders, None, Access::ReadWrite)
        .expect("the new copy opens");
    assert!(
        content(&meta).expect("content") == state,
        "the new copy differs"
    );
}

/// A member that is full gives its copy to one that is not.
#[test]
fn a_copy_without_space_moves_to_another_member() {
    let rig = Rig::new(1, 1, 3);
    let Mounted {
        meta,
        replicas,
        members,
        ..
    } = rig.mounted(None, Access::ReadWrite);
    let mut state = content(&meta).expect("content");
    write(&meta, &mut state, 0..1000, 1);
    let full = (0..3).find(|disk| has_copy(&rig, *disk)).expect("a holder");
    rig.disks[full].set_capacity(0);
    for key in 1000..6000 {
        let mut batch = Batch::default();
        let (key, value) = (format!("key {key:06}"), vec![7; 400]);
        state.insert(key.clone().into(), value.clone().into());
        batch.put(key, value);
        meta.apply(batch).expect("apply");
        if state.len().is_multiple_of(500) {
            match meta.append(vec![meta.rotate()], &[]) {
                Ok(_) | Err(crate::metadata::MetaError::NoSpace) => {}
                Err(error) => panic!("{error}"),
            }
            match meta.checkpoint() {
                Ok(()) | Err(crate::metadata::MetaError::NoSpace) => {}
                Err(error) => panic!("{error}"),
            }
            while replicas.refill().expect("refill") {}
        }
    }
    meta.append(vec![meta.rotate()], &[]).expect("append");
    meta.checkpoint().expect("there is space on the others");
    assert!(!has_copy(&rig, full), "the full member still has a copy");
    assert!(content(&meta).expect("content") == state);
    meta.close().expect("close");
    drop((meta, replicas, members));
    let (meta, _, _members) = rig
        .open(&[full], None, Access::ReadOnly)
        .expect("open again");
    assert!(content(&meta).expect("content") == state);
}

/// A member that has no space now may have some later, and what it has of a copy is in the way.
#[test]
fn a_member_that_could_not_take_a_copy_keeps_nothing_of_it_and_is_asked_again() {
    for nth in 1..=4 {
        let rig = Rig::new(1, 1, 3);
        let plan = FaultPlan::new();
        let Mounted {
            meta,
            replicas,
            members,
            ..
        } = rig.mounted(Some(&plan), Access::ReadWrite);
        let mut state = content(&meta).expect("content");
        write(&meta, &mut state, 0..KEYS, 1);
        let (mut with, mut without) = ((0..3).collect::<Vec<_>>(), (0..3).collect::<Vec<_>>());
        with.retain(|disk| has_copy(&rig, *disk));
        without.retain(|disk| !has_copy(&rig, *disk));
        plan.add(
            Fault::at(1, Effect::Eio)
                .of(Scope::Member(with[0]))
                .lasting(),
        );
        write(&meta, &mut state, 0..10, 2);
        assert_eq!(members.membership().live().len(), 2);
        let full =
            Fault::at(nth, Effect::NoSpace).of(Scope::MemberKind(without[0], CallKind::Write));
        plan.add(full.lasting());
        while replicas.refill().expect("refill") {}
        assert!(!has_copy(&rig, without[0]), "write {nth}");
        plan.clear();
        assert!(!replicas.refill().expect("refill"), "asked again at once");
        if nth % 2 == 0 {
            write(&meta, &mut state, 10..20, 3);
        } else {
            let vain = (0..VAIN_ROUNDS).take_while(|_| !replicas.refill().expect("refill"));
            assert!(vain.count() < 32, "never asked again without a commit");
        }
        while replicas.refill().expect("refill") {}
        drop((meta, replicas, members));
        let (meta, _, _members) = rig
            .open(&with, None, Access::ReadOnly)
            .unwrap_or_else(|error| panic!("write {nth}: {error:?}"));
        assert!(content(&meta).expect("content") == state, "write {nth}");
    }
}

/// Commits are made while the copies move, and whether they are to move may change before they have.
#[test]
fn copies_move_off_members_while_commits_go_on_and_there_are_as_many_as_before() {
    for changes_its_mind in [false, true] {
        let rig = Rig::new(1, 1, 4);
        let Mounted {
            meta,
            replicas,
            members,
            ..
        } = rig.mounted(None, Access::ReadWrite);
        let mut state = content(&meta).expect("content");
        write(&meta, &mut state, 0..KEYS, 1);
        let before = replicas.holders();
        assert_eq!(before.len(), 2);
        replicas.move_off(&before);
        let mut pieces = 0;
        while replicas.refill_pieces(1).expect("refill") {
            write(&meta, &mut state, (pieces..KEYS).step_by(501), 3);
            pieces += 1;
            assert!(pieces < 100, "it comes to an end");
            if changes_its_mind {
                replicas.move_off(&[]);
            }
        }
        let after = replicas.holders();
        let stay = after
            .iter()
            .filter(|member| before.contains(member))
            .count();
        assert_eq!((after.len(), stay), (2, usize::from(changes_its_mind)));
        for disk in 0..4 {
            let holds = after.iter().any(|member| usize::from(member.0) == disk);
            assert_eq!(has_copy(&rig, disk), holds, "disk {disk}");
        }
        drop((meta, replicas, members));
        for lost in 0..4 {
            let (meta, _, _members) = rig
                .fork()
                .open(&[lost], None, Access::ReadWrite)
                .unwrap_or_else(|error| panic!("lost {lost}: {error:?}"));
            assert!(content(&meta).expect("content") == state, "lost {lost}");
        }
    }
}
