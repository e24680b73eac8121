//! Single failing calls: work goes on without the member, and nothing is lost.

use std::sync::Arc;
use std::time::Duration;

use super::rig::{Rig, Script, content, inline, play, verify};
use crate::membership::Access;
use crate::store::{Effect, Executor, ExecutorKind, Fault, FaultPlan, Scope};

const SEED: u64 = 23;

#[test]
fn the_nth_call_failing_costs_at_most_a_member_whatever_n_is() {
    let origin = Rig::new(1, 1, 3);
    let script = Script::new(SEED, 8);
    for effect in [Effect::Eio, Effect::ShortWrite, Effect::NoSpace] {
        for nth in 1.. {
            let rig = origin.fork();
            let plan = FaultPlan::new();
            plan.add(Fault::at(nth, effect).of(Scope::Changing));
            let (progress, outcome) = play(&rig, Some(&plan), &script, 3, &inline());
            let case = format!("{effect:?} at call {nth}");
            if let Err(error) = outcome {
                panic!("{case}: {progress:?}: {error}");
            }
            verify(&rig, &[], &script, progress, &case);
            if plan.triggered() == 0 {
                break;
            }
        }
    }
}

#[test]
fn a_member_that_fails_every_call_from_the_nth_on_is_marked_faulted() {
    let origin = Rig::new(1, 1, 3);
    let script = Script::new(SEED, 8);
    for member in 0..3 {
        for nth in (1..).step_by(3) {
            let rig = origin.fork();
            let plan = FaultPlan::new();
            plan.add(
                Fault::at(nth, Effect::Eio)
                    .of(Scope::Member(member))
                    .lasting(),
            );
            let (progress, outcome) = play(&rig, Some(&plan), &script, 3, &inline());
            let case = format!("member {member} from call {nth}");
            // A member that fails while the volume is opened is left out by the layer below.
            if let Err(error) = outcome {
                panic!("{case}: {progress:?}: {error}");
            }
            verify(&rig, &[member], &script, progress, &case);
            if plan.triggered() == 0 {
                break;
            }
        }
    }
}

#[test]
fn a_member_that_hangs_is_marked_faulted_after_the_timeout() {
    let origin = Rig::new(1, 1, 3);
    let script = Script::new(SEED, 4);
    for nth in [1, 2, 5, 20] {
        let rig = origin.fork();
        let plan = FaultPlan::new();
        plan.add(
            Fault::at(nth, Effect::Hang).of(Scope::MemberKind(1, crate::store::CallKind::Write)),
        );
        let executor = Arc::new(Executor::new(ExecutorKind::Threads, Duration::from_secs(1)));
        let (progress, outcome) = play(&rig, Some(&plan), &script, 2, &executor);
        plan.release();
        outcome.unwrap_or_else(|error| panic!("write {nth} hangs: {error}"));
        verify(&rig, &[1], &script, progress, &format!("write {nth} hangs"));
    }
}

#[test]
fn a_full_volume_refuses_without_losing_anything_and_works_again_once_there_is_space() {
    let rig = Rig::new(1, 1, 2);
    let script = Script::new(SEED + 1, 40);
    let plan = FaultPlan::new();
    let (meta, _, members) = rig.open(&[], Some(&plan), Access::ReadWrite).expect("open");
    for (number, unit) in script.units.iter().enumerate() {
        let full = number % 4 == 1;
        if full {
            plan.add(Fault::at(1, Effect::NoSpace).of(Scope::Changing).lasting());
        }
        meta.apply(unit.applied.clone()).expect("apply");
        meta.apply_stripes(unit.stripes.clone()).expect("apply");
        let appended = meta.append(vec![meta.rotate(), meta.take_stripes()], &[]);
        assert_eq!(appended.is_err(), full, "unit {number}: {appended:?}");
        let checkpointed = meta.checkpoint();
        assert_eq!(
            content(&meta).expect("content"),
            script.states[number + 1],
            "unit {number}"
        );
        plan.clear();
        if full {
            meta.append(vec![meta.rotate(), meta.take_stripes()], &[])
                .expect("append");
            plan.add(Fault::at(1, Effect::NoSpace).of(Scope::Changing).lasting());
            let refused = meta.checkpoint();
            assert!(
                matches!(refused, Err(crate::metadata::MetaError::NoSpace)),
                "unit {number}: {refused:?}"
            );
            assert_eq!(
                content(&meta).expect("content"),
                script.states[number + 1],
                "unit {number}"
            );
            plan.clear();
        } else {
            checkpointed.expect("checkpoint");
        }
    }
    meta.close().expect("close");
    drop((meta, members));
    let (meta, _, _members) = rig.open(&[], None, Access::ReadOnly).expect("open again");
    assert_eq!(content(&meta).expect("content"), script.states[40]);
}

#[test]
fn a_reader_opened_for_reading_only_changes_nothing_on_any_member() {
    let rig = Rig::new(1, 1, 3);
    let script = Script::new(SEED + 2, 7);
    let (_, outcome) = play(&rig, None, &script, 3, &inline());
    outcome.expect("nothing fails");
    let plan = FaultPlan::new();
    plan.record();
    let (meta, _, _members) = rig.open(&[], Some(&plan), Access::ReadOnly).expect("open");
    assert_eq!(content(&meta).expect("content"), script.states[7]);
    assert!(meta.apply(crate::metadata::Batch::default()).is_err());
    meta.close().expect("close");
    drop(meta);
    let changing: Vec<_> = plan
        .take_log()
        .into_iter()
        .filter(|call| call.kind.changes())
        .collect();
    assert_eq!(changing, []);
}
