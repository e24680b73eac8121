//! Members without space, for all writes and for as long as it takes.

use super::rig::{Mounted, Rig, Script, Unit, content, difference, inline};
use crate::membership::{Access, Members};
use crate::metadata::{Batch, Meta, MetaError, MetaOptions};
use crate::store::{CallKind, CutPolicy, Effect, Fault, FaultPlan, Scope, Store};

const SEED: u64 = 47;

fn write(meta: &Meta, unit: &Unit) {
    meta.apply(unit.applied.clone()).expect("apply");
    meta.apply_stripes(unit.stripes.clone()).expect("apply");
    meta.append(vec![meta.rotate(), meta.take_stripes()], &[])
        .expect("append");
}

/// Opens a fork of a volume to which all units but the last two were written. One more was written without a
/// checkpoint. Returns also how the members were opened.
fn with_something_to_checkpoint(origin: &Rig, script: &Script, plan: &FaultPlan) -> (Rig, Mounted) {
    let rig = origin.fork();
    let mounted = rig.mounted(Some(plan), Access::ReadWrite);
    let meta = &mounted.meta;
    let (before, last) = script.units.split_at(script.units.len() - 2);
    for unit in before {
        write(meta, unit);
    }
    meta.checkpoint().expect("checkpoint");
    write(meta, &last[0]);
    (rig, mounted)
}

/// A checkpoint that says that it was made lets the journal be overwritten.
#[test]
fn no_checkpoint_succeeds_while_no_member_has_space_for_it() {
    let (origin, script) = (Rig::new(1, 1, 3), Script::new(SEED, 8));
    for nth in 1.. {
        let plan = FaultPlan::new();
        let (rig, mounted) = with_something_to_checkpoint(&origin, &script, &plan);
        let Mounted {
            meta,
            replicas,
            members,
            ..
        } = mounted;
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
        drop((meta, replicas, members));
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
        let (rig, mounted) = with_something_to_checkpoint(&origin, &script, &plan);
        let Mounted {
            meta,
            replicas,
            members,
            ..
        } = mounted;
        let calls = Scope::MemberKind(full, CallKind::Write);
        plan.add(Fault::at(nth, Effect::NoSpace).of(calls).lasting());
        let mut rounds = 0;
        while !checkpoint(&meta) {
            while replicas.refill().expect("refill") {}
            rounds += 1;
            assert!(rounds < 5, "write {nth}: still no space");
        }
        while replicas.refill().expect("refill") {}
        let struck = plan.triggered() > 0;
        assert!(
            !struck || !has_copy(&rig, full),
            "write {nth}: the full member keeps its copy"
        );
        assert_eq!(
            members.membership().live().len(),
            3,
            "write {nth}: a full member is not a failed one"
        );
        drop((meta, replicas, members));
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

/// The journal has no space for a unit, so that it goes to the index at once.
#[test]
fn a_unit_committed_straight_to_the_index_is_atomic_under_any_cut() {
    let (origin, script) = (Rig::new(1, 1, 3), Script::new(SEED + 2, 9));
    for effect in [Effect::PowerCut, Effect::NoSpace, Effect::Eio] {
        for nth in 1.. {
            let plan = FaultPlan::new();
            let (rig, mounted) = with_something_to_checkpoint(&origin, &script, &plan);
            let Mounted {
                meta,
                replicas,
                members,
                ..
            } = mounted;
            let fault = Fault::at(nth, effect).of(Scope::Changing);
            plan.add(if effect == Effect::NoSpace {
                fault.lasting()
            } else {
                fault
            });
            let unit = &script.units[8];
            meta.apply(unit.applied.clone()).expect("apply");
            meta.apply_stripes(unit.stripes.clone()).expect("apply");
            let done = meta.append_to_index(vec![meta.rotate(), meta.take_stripes()]);
            let case = format!("{effect:?} at call {nth}: {done:?}");
            let struck = plan.triggered() > 0;
            let mut acknowledged = 8;
            if effect != Effect::PowerCut {
                plan.clear();
                let found = content(&meta).expect("content");
                assert!(found == script.states[9], "{case}");
                if done.is_err() {
                    assert!(matches!(done, Err(MetaError::NoSpace)), "{case}");
                    meta.append(vec![meta.rotate(), meta.take_stripes()], &[])
                        .expect("append");
                }
                acknowledged = 9;
            } else if done.is_ok() {
                acknowledged = 9;
            }
            drop((meta, replicas, members));
            for policy in [CutPolicy::Keep, CutPolicy::Drop, CutPolicy::Reorder(nth)] {
                let rig = rig.fork();
                rig.disks.iter().for_each(|disk| disk.cut(policy));
                let (meta, _, _members) = rig
                    .open(&[], None, Access::ReadWrite)
                    .unwrap_or_else(|error| panic!("{case}: {error:?}"));
                let found = content(&meta).expect("content");
                assert!(
                    script.states[acknowledged..].contains(&found),
                    "{case}: {}",
                    difference(&script.states[acknowledged], &found)
                );
            }
            if !struck {
                assert!(nth > 5, "{case}");
                break;
            }
        }
    }
}

#[test]
fn changes_that_wait_for_space_take_a_bounded_amount_of_memory() {
    let rig = Rig::new(1, 1, 2);
    let plan = FaultPlan::new();
    let members =
        Members::open(rig.stores(&[], Some(&plan)), Access::ReadWrite, inline()).expect("members");
    let options = MetaOptions {
        cache_bytes: 1 << 20,
        overlay_bytes: 1 << 20,
    };
    let meta = Meta::open(members, &options).expect("open").meta;
    plan.add(Fault::at(1, Effect::NoSpace).of(Scope::Changing).lasting());
    let put = |number: u32| {
        let mut batch = Batch::default();
        batch.put(number.to_be_bytes().to_vec(), vec![7; 1000]);
        meta.apply(batch)
    };
    let mut count = 0;
    while put(count).is_ok() {
        count += 1;
        assert!(count < 3000, "{count} changes wait");
        if count.is_multiple_of(100) {
            let refused = meta.append(vec![meta.rotate()], &[]);
            // The record becomes longer than a file of the journal.
            let is_expected = matches!(refused, Err(MetaError::NoSpace | MetaError::JournalFull));
            assert!(is_expected, "{refused:?}");
        }
    }
    assert!(matches!(put(count), Err(MetaError::NoSpace)));
    plan.clear();
    meta.append_to_index(vec![meta.rotate()]).expect("commit");
    put(count).expect("there is space again");
}

/// One of its files had to grow while there was space. The other need not, now that there is none.
#[test]
fn a_journal_that_grew_is_opened_on_members_that_are_full_by_now() {
    let (rig, script) = (Rig::new(1, 1, 2), Script::new(SEED + 3, 2));
    for disk in &rig.disks {
        let store = disk.open();
        let len = store.open_len("journal.0").expect("a journal");
        store
            .reserve("journal.0", len, 1 << 20)
            .expect("there is space");
        store.sync("journal.0").expect("sync");
        disk.set_capacity(0);
    }
    let (meta, _, members) = rig.open(&[], None, Access::ReadWrite).expect("open");
    write(&meta, &script.units[0]);
    assert_eq!(members.membership().live().len(), 2);
    assert!(content(&meta).expect("content") == script.states[1]);
}

fn put(meta: &Meta, value: &'static str) {
    let mut batch = Batch::default();
    batch.put("key", value);
    meta.apply(batch).expect("apply");
}

/// Where journal files reserve nothing, most members may have no space for a record that one took.
#[test]
fn a_record_that_too_few_members_had_space_for_is_nowhere_and_fails_none_of_them() {
    for through_index in [false, true] {
        for full in [[0, 1], [1, 2], [0, 2]] {
            let context = format!("{full:?} full, through the index: {through_index}");
            let rig = Rig::new(2, 1, 3);
            let plan = FaultPlan::new();
            let (meta, _, members) = rig.open(&[], Some(&plan), Access::ReadWrite).expect("open");
            put(&meta, "old");
            for member in full {
                let writes = Scope::MemberKind(member, CallKind::Write);
                plan.add(Fault::at(1, Effect::NoSpace).of(writes));
            }
            let refused = meta.append(vec![meta.rotate()], &[]);
            assert!(matches!(refused, Err(MetaError::NoSpace)), "{refused:?}");
            assert_eq!(members.membership().live().len(), 3, "{context}");
            put(&meta, "new");
            if through_index {
                meta.append_to_index(vec![meta.rotate()]).expect("append");
            } else {
                meta.append(vec![meta.rotate()], &[]).expect("append");
            }
            drop((meta, members));
            for policy in [CutPolicy::Keep, CutPolicy::Drop] {
                for lost in 0..3 {
                    let rig = rig.fork();
                    rig.disks.iter().for_each(|disk| disk.cut(policy));
                    let (meta, _, _members) = rig
                        .open(&[lost], None, Access::ReadWrite)
                        .unwrap_or_else(|error| panic!("{context}: {error:?}"));
                    let found = meta.get(b"key").expect("get");
                    assert_eq!(found.as_deref(), Some(&b"new"[..]), "{context}");
                }
            }
        }
    }
}
