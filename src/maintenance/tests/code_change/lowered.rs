//! Volumes whose parity was lowered: members can be drained and rebuilt, although each has a slot of every old segment. The index
//! loses the copy that is too many.

use std::collections::BTreeMap;

use super::super::rebuild::{assert_whole, fill};
use super::super::*;
use super::{changed, cut_at_each_call, filled, filled_with, rebuild_until, wanted};
use crate::codec::CodeId;
use crate::format::MemberIndex;
use crate::maintenance::RebuildState;

/// Returns a volume that was written with 4+3 over seven members and has 4+2 now.
fn lowered() -> (Rig, Model, TestFs) {
    let (rig, mut model) = filled(4, 3, 7);
    let fs = changed(&rig, wanted(4, 2, CodeId::RS_CAUCHY), &mut model);
    let done = fs.rebuild().unwrap();
    assert_eq!(done.state, RebuildState::Finished);
    assert!(!fs.maintenance.rebuild().has_other_codes());
    (rig, model, fs)
}

/// Asserts that the shards of each stripe lie on different members, and none on the disks that are `gone`.
fn assert_apart(fs: &TestFs, gone: &[usize], context: &str) {
    let mut disks: BTreeMap<StripeId, Vec<usize>> = BTreeMap::new();
    for written in fs.written_shards() {
        assert!(!gone.contains(&written.disk), "{context}: a shard is lost");
        let of_stripe = disks.entry(written.stripe).or_default();
        let (disk, stripe) = (written.disk, written.stripe);
        assert!(!of_stripe.contains(&disk), "{context}: {stripe}, {disk}");
        of_stripe.push(disk);
    }
    assert!(!disks.is_empty(), "{context}");
}

/// Asserts that a disk has neither a segment nor a copy of the index.
fn assert_empty(rig: &Rig, disk: usize, context: &str) {
    let store = rig.disks[disk].open();
    assert!(
        store.open_len(files::INDEX).is_err(),
        "{context}: its copy is left"
    );
    let left = store.list(files::SEGMENTS).unwrap_or_default();
    assert!(left.is_empty(), "{context}: {left:?} are left");
}

fn drain(fs: &TestFs, disk: usize) {
    let member = MemberIndex(disk as u16);
    fs.maintenance.draining().drain(member).unwrap();
}

fn count(fs: &TestFs) -> usize {
    fs.transactions.members().membership().count()
}

#[test]
fn any_member_of_a_volume_with_lowered_parity_can_be_drained() {
    let (rig, model, fs) = lowered();
    fs.close();
    for disk in 0..7 {
        let context = format!("member {disk}");
        let rig = rig.fork();
        let fs = rig.open(&[]);
        drain(&fs, disk);
        let done = fs.rebuild().unwrap();
        assert!(!done.leaves_something(), "{context}: {done:?}");
        assert_eq!(count(&fs), 6, "{context}");
        assert_apart(&fs, &[disk], &context);
        assert_empty(&rig, disk, &context);
        assert_eq!(rig.holders().len(), 3, "{context}");
        assert_whole(fs, &rig, &[disk], 2, &model, &context);
    }
}

#[test]
fn stripes_of_a_volume_with_lowered_parity_are_whole_again_after_a_member_died() {
    let (rig, model, fs) = lowered();
    fs.lose(&rig, 4);
    let done = fs.rebuild().unwrap();
    assert!(!done.leaves_something(), "{done:?}");
    assert_apart(&fs, &[4], "dead");
    assert_eq!(fs.rebuild().unwrap().bytes_done, 0);
    drain(&fs, 4);
    fs.rebuild().unwrap();
    assert_eq!(count(&fs), 6);
    assert_whole(fs, &rig, &[4], 2, &model, "dead");
}

/// The code changes while all members are there, and one dies before any parity is dropped.
#[test]
fn a_member_that_dies_before_its_parity_is_dropped_leaves_nothing_waiting() {
    let (rig, mut model) = filled(4, 3, 7);
    let fs = changed(&rig, wanted(4, 2, CodeId::RS_CAUCHY), &mut model);
    fs.lose(&rig, 1);
    let done = fs.rebuild().unwrap();
    assert!(!done.leaves_something(), "{done:?}");
    assert!(!fs.maintenance.rebuild().has_other_codes());
    assert_apart(&fs, &[1], "dead");
    assert_whole(fs, &rig, &[1], 2, &model, "dead");
}

/// Five members are too few for a shard of 4+2 each. Stripes then survive as many losses as new ones would, once the others
/// are given up.
#[test]
fn stripes_survive_what_new_ones_would_after_two_members_were_given_up() {
    let (rig, model, fs) = lowered();
    fs.lose(&rig, 1);
    fs.lose(&rig, 4);
    fs.transactions.members().epochs().give_up_absentees();
    fs.rebuild().unwrap();
    let rows = fs.redundancy();
    let worst = rows.iter().map(|row| row.0).min();
    assert_eq!(worst, Some(1), "{rows:?}");
    assert_holds(&fs, &model, "two are dead");
}

/// New stripes on the five others would survive one loss more for now, and one less once the two are back.
#[test]
fn stripes_survive_no_less_than_before_once_two_absent_members_are_back() {
    let (rig, model, fs) = lowered();
    fs.lose(&rig, 1);
    fs.lose(&rig, 4);
    fs.rebuild().unwrap();
    assert_holds(&fs, &model, "two are away");
    fs.take_back(&rig, 1);
    fs.take_back(&rig, 4);
    assert_whole(fs, &rig, &[], 2, &model, "they are back");
}

#[test]
fn parity_that_is_raised_again_after_a_drain_lies_on_seven_members() {
    let (mut rig, mut model, fs) = lowered();
    drain(&fs, 2);
    fs.rebuild().unwrap();
    fill(&fs, 5000, &mut model);
    rig.disks.push(MemDisk::new("new", DISK));
    let store: StoreRef = Arc::new(rig.disks[7].open());
    fs.maintenance.joining().join(JoinAs::New, &store).unwrap();
    fs.rebuild().unwrap();
    fs.close();
    rig.disks.remove(2);
    let fs = changed(&rig, wanted(4, 3, CodeId::RS_CAUCHY), &mut model);
    let done = fs.rebuild().unwrap();
    assert!(!done.leaves_something(), "{done:?}");
    assert!(!fs.maintenance.rebuild().has_other_codes());
    assert_eq!(rig.holders().len(), 4);
    let rows = fs.redundancy();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0].0, 3, "{rows:?}");
    assert_holds(&fs, &model, "raised");
}

#[test]
fn a_power_cut_at_any_call_of_a_drain_costs_no_redundancy_and_the_drain_goes_on() {
    let (base, mut model) = filled_with(2, 2, 4, 1);
    let fs = changed(&base, wanted(2, 1, CodeId::RS_CAUCHY), &mut model);
    fs.rebuild().unwrap();
    drain(&fs, 3);
    fs.close();
    let after = |rig: &Rig, fs: TestFs, context: &str| {
        assert!(fs.redundancy().iter().all(|row| row.0 >= 1), "{context}");
        fs.rebuild().unwrap();
        assert_eq!(count(&fs), 3, "{context}");
        assert_apart(&fs, &[3], context);
        assert_holds(&fs, &model, context);
        assert_eq!(rig.holders().len(), 2, "{context}");
    };
    let (_, fs, calls) = cut_at_each_call(&base, &model, "a drain", &rebuild_until, &after);
    assert_eq!(count(&fs), 3);
    assert!(calls > 20, "only {calls} calls");
}

#[test]
fn the_index_loses_the_copy_that_is_too_many_at_the_end_of_the_change() {
    let (rig, mut model) = filled(4, 2, 7);
    for (parity, copies) in [(3, 4), (2, 3), (1, 2)] {
        let fs = changed(&rig, wanted(4, parity, CodeId::RS_CAUCHY), &mut model);
        fs.rebuild().unwrap();
        let holders = rig.holders();
        assert_eq!(holders.len(), copies, "{holders:?}");
        let counted = fs.transactions.index_copies();
        let counted: Vec<usize> = counted.members.iter().map(|it| usize::from(it.0)).collect();
        assert_eq!(counted, holders);
        assert_whole(fs, &rig, &[], parity, &model, "changed");
    }
}

/// A copy that is too many goes from the draining member, and no other gets one.
#[test]
fn a_drain_drops_the_copy_of_the_index_that_is_too_many() {
    let (base, mut model) = filled(4, 2, 8);
    let fs = changed(&base, wanted(4, 3, CodeId::RS_CAUCHY), &mut model);
    fs.rebuild().unwrap();
    fs.close();
    let before = base.holders();
    assert_eq!(before.len(), 4, "{before:?}");
    for &leaving in &before {
        let context = format!("member {leaving}");
        let rig = base.fork();
        let fs = rig.open(&[]);
        drain(&fs, leaving);
        fs.change_code(wanted(4, 2, CodeId::RS_CAUCHY)).unwrap();
        drop(fs);
        rig.cut(CutPolicy::Drop);
        let fs = rig.open(&[]);
        let done = fs.rebuild().unwrap();
        assert!(!done.leaves_something(), "{context}: {done:?}");
        assert_eq!(count(&fs), 7, "{context}");
        assert_empty(&rig, leaving, &context);
        let mut stay = before.clone();
        stay.retain(|disk| *disk != leaving);
        assert_eq!(rig.holders(), stay, "{context}");
        assert_whole(fs, &rig, &[leaving], 2, &model, &context);
    }
}

#[test]
fn a_power_cut_at_any_call_leaves_as_many_copies_of_the_index_as_are_wanted() {
    let (base, model) = filled_with(2, 2, 4, 1);
    let fs = base.open(&[]);
    fs.change_code(wanted(2, 1, CodeId::RS_CAUCHY)).unwrap();
    fs.close();
    assert_eq!(base.holders().len(), 3);
    let complete = |fs: &TestFs| fs.transactions.commits().complete_index();
    let work = |rig: &Rig, plan: &FaultPlan, cut: Fault| {
        plan.add(cut);
        let fs = rig.open_with_faults(plan)?;
        complete(&fs)?;
        Ok(fs)
    };
    let after = |rig: &Rig, fs: TestFs, context: &str| {
        complete(&fs).unwrap();
        assert_eq!(rig.holders().len(), 2, "{context}");
        assert_holds(&fs, &model, context);
    };
    let (rig, _, calls) = cut_at_each_call(&base, &model, "a copy", &work, &after);
    assert_eq!(rig.holders().len(), 2);
    assert!(calls > 5, "only {calls} calls");
}
