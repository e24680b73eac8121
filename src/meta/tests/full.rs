//! Members without space, for all writes and for as long as it takes.

use std::sync::Arc;

use super::rig::{Rig, Script, Unit, content, difference};
use crate::members::{Access, Members};
use crate::meta::{Meta, MetaError};
use crate::store::{CallKind, Effect, Fault, FaultPlan, Scope, Store};

const SEED: u64 = 47;

fn write(meta: &Meta, unit: &Unit) {
    meta.apply(unit.applied.clone()).expect("apply");
    meta.apply_stripes(unit.stripes.clone()).expect("apply");
    meta.append(vec![meta.rotate(), meta.take_stripes()], &[])
        .expect("append");
}

/// Opens a fork of a volume that had all units but the last two written to it, one more without a
/// checkpoint, and says how the members were opened.
fn with_something_to_checkpoint(
    origin: &Rig,
    script: &Script,
    plan: &FaultPlan,
) -> (Rig, Meta, Arc<Members>) {
    let rig = origin.fork();
    let (meta, _, members) = rig.open(&[], Some(plan), Access::ReadWrite).expect("open");
    let (before, last) = script.units.split_at(script.units.len() - 2);
    for unit in before {
        write(&meta, unit);
    }
    meta.checkpoint().expect("checkpoint");
    write(&meta, &last[0]);
    (rig, meta, members)
}

/// A checkpoint that says that it was made lets the journal be overwritten.
#[test]
fn no_checkpoint_succeeds_while_no_member_has_space_for_it() {
    let (origin, script) = (Rig::new(1, 1, 3), Script::new(SEED, 8));
    for nth in 1.. {
        let plan = FaultPlan::new();
        let (rig, meta, members) = with_something_to_checkpoint(&origin, &script, &plan);
        plan.add(
            Fault::at(nth, Effect::NoSpace)
                .of(Scope::Changing)
                .lasting(),
        );
        let made: Vec<bool> = (0..3).map(|_| checkpoint(&meta)).collect();
        let first = made[0];
        assert!(
            made.iter().all(|made| *made == first),
            "call {nth}: {made:?}"
        );
        let struck = plan.triggered() > 0;
        plan.clear();
        write(&meta, &script.units[7]);
        drop((meta, members));
        let (meta, _, _members) = rig
            .open(&[], None, Access::ReadWrite)
            .unwrap_or_else(|error| panic!("call {nth}: {error:?}"));
        let found = content(&meta).expect("content");
        assert!(
            found == script.states[8],
            "call {nth}: {}",
            difference(&script.states[8], &found)
        );
        if !struck {
            assert!(nth > 5, "a checkpoint of {nth} calls");
            break;
        }
    }
}

fn checkpoint(meta: &Meta) -> bool {
    match meta.checkpoint() {
        Ok(()) => true,
        Err(MetaError::NoSpace) => false,
        Err(error) => panic!("{error}"),
    }
}

/// The other copy has space, and a third member can take the place of the full one.
#[test]
fn one_full_member_does_not_keep_the_others_from_a_checkpoint() {
    let (origin, script) = (Rig::new(1, 1, 3), Script::new(SEED + 1, 8));
    let has_copy = |rig: &Rig, disk: usize| {
        rig.disks[disk]
            .open()
            .open_len("index")
            .is_ok_and(|len| len > 0)
    };
    let full = (0..3)
        .find(|disk| has_copy(&origin, *disk))
        .expect("a holder");
    for nth in 1.. {
        let plan = FaultPlan::new();
        let (rig, meta, members) = with_something_to_checkpoint(&origin, &script, &plan);
        let calls = Scope::MemberKind(full, CallKind::Write);
        plan.add(Fault::at(nth, Effect::NoSpace).of(calls).lasting());
        let mut rounds = 0;
        while !checkpoint(&meta) {
            while meta.mend_index().expect("mend") {}
            rounds += 1;
            assert!(rounds < 5, "write {nth}: still no space");
        }
        while meta.mend_index().expect("mend") {}
        let struck = plan.triggered() > 0;
        assert!(
            !struck || !has_copy(&rig, full),
            "write {nth}: the full member keeps its copy"
        );
        assert_eq!(
            members.live().len(),
            3,
            "write {nth}: a full member is not a failed one"
        );
        drop((meta, members));
        for lost in 0..3 {
            let (meta, _, _members) = rig
                .fork()
                .open(&[lost], None, Access::ReadWrite)
                .unwrap_or_else(|error| panic!("write {nth}, lost {lost}: {error:?}"));
            let found = content(&meta).expect("content");
            assert!(
                found == script.states[7],
                "write {nth}, lost {lost}: {}",
                difference(&script.states[7], &found)
            );
        }
        if !struck {
            assert!(nth > 3, "a checkpoint of {nth} writes");
            break;
        }
    }
}
