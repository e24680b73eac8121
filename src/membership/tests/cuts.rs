use super::*;
use crate::store::{Effect, Fault, Scope};

const POLICIES: [CutPolicy; 4] = [
    CutPolicy::Keep,
    CutPolicy::Drop,
    CutPolicy::Reorder(1),
    CutPolicy::Reorder(2),
];

/// Runs `scene` on copies of `start` with a power cut at every one of its store calls. Then hands the remains to
/// `check`, with a flag whether the scene reached its end.
pub(super) fn cut_everywhere(
    start: &Disks,
    which: &[usize],
    scene: impl Fn(&Members),
    check: impl Fn(&Disks, bool, &str),
) {
    for policy in POLICIES {
        for nth in 1.. {
            let disks = start.fork();
            let plan = FaultPlan::new();
            let stores = disks.faulty(which.iter().copied(), &plan);
            plan.add(Fault::at(nth, Effect::PowerCut));
            // If the cut came too early, the open has failed, and that is fine.
            if let Ok(members) = open(stores) {
                scene(&members);
            }
            let whole = plan.triggered() == 0;
            disks.cut(policy);
            check(&disks, whole, &format!("{policy:?}, call {nth}"));
            if whole {
                break;
            }
        }
    }
}

/// After a cut, any set that suffices opens, and afterwards still gets on with all others.
fn still_one_volume(disks: &Disks, at_least: usize, text: &str) {
    let members = disks
        .fork()
        .open(disks.all())
        .unwrap_or_else(|error| panic!("{text}: {error}"));
    assert!(
        members.stale_copies().unverified().is_empty(),
        "{text}: none is a copy"
    );
    for set in disks.subsets().filter(|set| set.len() >= at_least) {
        let disks = disks.fork();
        let members = match disks.open(set.clone()) {
            Ok(members) => members,
            // Members that are up to date by now may be too few among these.
            Err(MembersError::TooFew {
                kind: "up to date", ..
            }) => continue,
            Err(error) => panic!("{text}, {set:?}: {error}"),
        };
        members
            .epochs()
            .admit_stale()
            .unwrap_or_else(|error| panic!("{text}, {set:?}: {error}"));
        drop(members);
        let opened = disks.open(disks.all());
        let members = opened.unwrap_or_else(|error| panic!("{text}, {set:?}, then all: {error}"));
        assert!(
            members.stale_copies().unverified().is_empty(),
            "{text}, {set:?}: no copy"
        );
    }
}

#[test]
fn an_epoch_without_a_failed_member_is_durable_when_fail_returns() {
    for (data, parity, count) in [(1, 1, 2), (1, 2, 3), (2, 1, 3), (2, 1, 4), (2, 2, 4)] {
        let start = Disks::volume(data, parity, count);
        let all: Vec<_> = start.all().into_iter().collect();
        let failed = MemberIndex(0);
        cut_everywhere(
            &start,
            &all,
            |members| members.io().fail(failed, &io_error()),
            |disks, returned, text| {
                let members = disks.fork().open(disks.all()).expect(text);
                let current = members.current_at_open().contains(&failed);
                assert!(!(returned && current), "{text}: taken for up to date");
                drop(members);
                // Not even the least set of survivors may have forgotten it.
                for set in disks.subsets().filter(|set| returned && disks.suffice(set)) {
                    let opened = disks.fork().open(set.clone());
                    // On its own it cannot know.
                    if set.contains(&0)
                        && set.len() > 1
                        && let Ok(members) = opened
                    {
                        assert_eq!(members.epochs().stale(), [failed], "{text}, {set:?}");
                    }
                }
                // With one data shard, the failed member may go on alone, and splits the volume.
                let alone = usize::from(data == 1 && count == parity + 1);
                still_one_volume(disks, count - parity + alone, text);
            },
        );
    }
}

#[test]
fn a_cut_while_opening_with_fewer_members_splits_nothing() {
    let start = Disks::volume(2, 1, 4);
    cut_everywhere(
        &start,
        &[0, 2, 3],
        |_| (),
        |disks, _, text| {
            still_one_volume(disks, 3, text);
            disks.fork().open([0, 2, 3]).expect(text);
        },
    );
}

#[test]
fn a_cut_while_admitting_stale_members_splits_nothing() {
    let start = Disks::volume(2, 2, 4);
    drop(start.open([0, 1]).expect("enough members"));
    cut_everywhere(
        &start,
        &[0, 1, 2, 3],
        |members| {
            // Fails if the cut comes here; what is left is looked at below.
            let _ = members.epochs().admit_stale();
        },
        |disks, admitted, text| {
            let members = disks.fork().open(disks.all()).expect(text);
            let current = members.current_at_open();
            assert!(current.starts_with(&indices([0, 1])), "{text}: {current:?}");
            assert!(!admitted || current.len() == 4, "{text}: {current:?}");
            // Three, so that one of those that went on without the others is among them.
            still_one_volume(disks, 3, text);
        },
    );
}

#[test]
fn a_cut_while_creating_leaves_a_volume_or_none() {
    for policy in POLICIES {
        for nth in 1.. {
            let disks = Disks::blank(2, 1, 3);
            let plan = FaultPlan::new();
            plan.add(Fault::at(nth, Effect::PowerCut));
            let created = Members::create(&disks.faulty(0..3, &plan), &disks.options());
            disks.cut(policy);
            let opened = disks.open(0..3);
            let text = format!("{policy:?}, call {nth}: {created:?}, {opened:?}");
            match opened {
                Ok(members) => assert_eq!(
                    members.membership().epoch().0,
                    1 + u64::from(members.membership().live().len() < 3),
                    "{text}"
                ),
                Err(MembersError::NoMember { .. } | MembersError::TooFew { .. }) => {
                    assert!(created.is_err(), "{text}");
                }
                Err(error) => panic!("{text}: {error}"),
            }
            if plan.triggered() == 0 {
                break;
            }
        }
    }
}

/// If any single call fails, for good or once, the rest goes on, and all get on later.
#[test]
fn any_failing_call_costs_at_most_its_member() {
    for lasting in [false, true] {
        for nth in 1.. {
            let disks = Disks::volume(2, 2, 5);
            drop(disks.open(0..4).expect("enough members"));
            let mut struck = false;
            for member in 0..5 {
                let disks = disks.fork();
                let plan = FaultPlan::new();
                let mut fault = Fault::at(nth, Effect::Eio).of(Scope::Member(member));
                if lasting {
                    fault = fault.lasting();
                }
                plan.add(fault);
                let text = format!("lasting {lasting}, member {member}, call {nth}");
                let members = open(disks.faulty(0..5, &plan)).expect(&text);
                members.epochs().admit_stale().expect(&text);
                members.io().fail(MemberIndex(1), &io_error());
                assert!(!members.membership().is_failed(), "{text}");
                struck |= plan.triggered() > 0;
                let left = members.membership().live();
                drop(members);
                plan.clear();
                let members = disks.open(0..5).expect(&text);
                assert!(
                    members
                        .current_at_open()
                        .iter()
                        .all(|index| left.contains(index)),
                    "{text}: {left:?}, {:?}",
                    members.current_at_open()
                );
            }
            if !struck {
                break;
            }
        }
    }
}
