//! Power cuts after every single store call, with members lost at the same time.

use cauchyfs_testkit::subsets;

use super::rig::{Progress, Rig, Script, inline, play, verify};
use crate::membership::Access;
use crate::store::{CutPolicy, FaultPlan};

const SEED: u64 = 11;

fn policies(seed: u64) -> [CutPolicy; 3] {
    [CutPolicy::Keep, CutPolicy::Drop, CutPolicy::Reorder(seed)]
}

/// Plays the script on a fork with the power cut at changing call `nth`; `None` once the script has
/// fewer calls.
fn cut_at(rig: &Rig, script: &Script, nth: u64) -> Option<(Rig, Progress)> {
    let rig = rig.fork();
    let plan = FaultPlan::new();
    plan.add(cauchyfs_testkit::power_cut_at(nth));
    let (progress, outcome) = play(&rig, Some(&plan), script, 3, &inline());
    if plan.triggered() == 0 {
        outcome.expect("without a fault the script goes through");
        return None;
    }
    Some((rig, progress))
}

fn after_cut(rig: &Rig, policy: CutPolicy) -> Rig {
    let rig = rig.fork();
    rig.disks.iter().for_each(|disk| disk.cut(policy));
    rig
}

#[test]
fn acknowledged_units_survive_a_cut_after_any_call_and_the_loss_of_any_m_members() {
    let (k, m, members) = (1, 1, 3);
    let rig = Rig::new(k, m, members);
    let script = Script::new(SEED, 8);
    for nth in 1.. {
        let Some((rig, progress)) = cut_at(&rig, &script, nth) else {
            assert!(
                nth > 50,
                "the script is too short to show anything: {nth} calls"
            );
            break;
        };
        for policy in policies(nth) {
            for lost in subsets(members, m) {
                let rig = after_cut(&rig, policy);
                verify(
                    &rig,
                    &lost,
                    &script,
                    progress,
                    &format!("call {nth}, {policy:?}, lost {lost:?}"),
                );
            }
        }
    }
}

#[test]
fn any_two_lost_members_of_a_2_plus_2_volume_take_nothing_with_them() {
    let rig = Rig::new(2, 2, 5);
    let script = Script::new(SEED + 1, 6);
    for nth in (1..).step_by(7) {
        let Some((rig, progress)) = cut_at(&rig, &script, nth) else {
            break;
        };
        for lost in subsets(5, 2) {
            let rig = after_cut(&rig, CutPolicy::Reorder(nth));
            verify(
                &rig,
                &lost,
                &script,
                progress,
                &format!("call {nth}, lost {lost:?}"),
            );
        }
    }
}

#[test]
fn a_second_cut_inside_recovery_changes_nothing() {
    let rig = Rig::new(1, 1, 3);
    let script = Script::new(SEED + 2, 6);
    for nth in (1..).step_by(5) {
        let Some((rig, progress)) = cut_at(&rig, &script, nth) else {
            break;
        };
        for lost in subsets(3, 1) {
            let first = after_cut(&rig, CutPolicy::Reorder(nth));
            for second in (1 + nth % 3..).step_by(3) {
                let rig = first.fork();
                let plan = FaultPlan::new();
                plan.add(cauchyfs_testkit::power_cut_at(second));
                let opened = rig.open(&lost, Some(&plan), Access::ReadWrite);
                let finished = plan.triggered() == 0;
                assert_eq!(
                    opened.is_ok(),
                    finished,
                    "calls {nth}, {second}, lost {lost:?}"
                );
                drop(opened);
                for policy in policies(second) {
                    let rig = after_cut(&rig, policy);
                    let case = format!("calls {nth}, {second}, {policy:?}, lost {lost:?}");
                    verify(&rig, &lost, &script, progress, &case);
                }
                if finished {
                    break;
                }
            }
        }
    }
}

/// A member that was away while others went on comes back as stale, and its journal and index,
/// however valid they look, are not believed.
#[test]
fn a_member_that_comes_back_is_no_source_for_recovery() {
    for lost in 0..3 {
        let rig = Rig::new(1, 1, 3);
        let script = Script::new(SEED + 3, 4);
        let (progress, outcome) = play(&rig, None, &script, 100, &inline());
        outcome.expect("nothing fails");
        let case = format!("without {lost}");
        let reached = verify(&rig, &[lost], &script, progress, &case);
        let (meta, _, _members) = rig
            .open(&[], None, Access::ReadWrite)
            .expect("with all members");
        let mut expected = script.states[reached].clone();
        expected.insert("afterwards".into(), case.into());
        assert_eq!(
            super::rig::content(&meta).expect("content"),
            expected,
            "member {lost} came back"
        );
    }
}

/// Compaction moves pages to the front, and is to leave none behind that are not there yet.
#[test]
fn a_cut_while_the_index_is_compacted_leaves_one_that_can_be_read() {
    let base = Rig::new(1, 1, 3);
    let script = Script::new(SEED + 4, 40);
    let (progress, outcome) = play(&base, None, &script, 5, &inline());
    outcome.expect("nothing fails");
    let mut cuts = 0;
    for nth in 1.. {
        let rig = base.fork();
        let plan = FaultPlan::new();
        let mounted = rig.mounted(Some(&plan), Access::ReadWrite);
        plan.add(cauchyfs_testkit::power_cut_at(nth));
        let compacted = mounted.replicas.compact();
        drop(mounted);
        if plan.triggered() == 0 {
            compacted.expect("without a fault it is compacted");
            break;
        }
        cuts += 1;
        for policy in policies(nth) {
            for lost in subsets(3, 1) {
                let rig = after_cut(&rig, policy);
                let case = format!("call {nth}, {policy:?}, lost {lost:?}");
                verify(&rig, &lost, &script, progress, &case);
            }
        }
    }
    assert!(cuts > 10, "only {cuts} cuts were tried");
}
