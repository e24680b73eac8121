//! Draining of members: for an heir, or kept after all.

use std::cell::Cell;

use super::*;
use crate::format::MemberIndex;
use crate::membership::JoinAs;

const REMOVED: MemberIndex = MemberIndex(3);

/// Returns how many shards the records say are on the member.
fn shards_of(fs: &TestFs) -> usize {
    let shards = fs.written_shards().into_iter();
    shards.filter(|s| s.disk == usize::from(REMOVED.0)).count()
}

#[test]
fn a_member_kept_while_draining_has_its_remaining_shards_and_takes_new_data() {
    let rig = Rig::new(2, 1, 4);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    for file in 0..40 {
        model.insert(file, pattern(file, 20_000));
        fs.write(file, &model[&file]).unwrap();
    }
    fs.close();
    let fs = rig.open(&[]);
    let before = shards_of(&fs);
    fs.maintenance.draining().drain(REMOVED).unwrap();
    let left = Cell::new(None);
    let wait = |_| {
        let now = shards_of(&fs);
        if left.get().is_none() && now < before {
            fs.maintenance.draining().keep(REMOVED).unwrap();
            left.set(Some(now));
        }
        true
    };
    let progress = fs.rebuild_while(&wait).unwrap();
    assert_eq!((progress.bytes_left, progress.bytes_waiting), (0, 0));
    // No more than the segment that was being moved.
    let segments = fs.transactions.stripes.segments().records().into_iter();
    let held = segments.filter(|(_, segment)| segment.slots.contains(&Some(REMOVED)));
    assert!(held.count() > 0, "{before} shards before");
    assert!(left.get().is_some() && shards_of(&fs) > 0);
    fs.close();
    let fs = rig.open(&[]);
    assert_eq!(fs.transactions.members().membership().draining(), []);
    fs.assert_shards_lie_on(&rig, &[], "kept");
    let rows = fs.redundancy();
    assert_eq!((rows.len(), rows[0].0), (1, 1), "{rows:?}");
    let kept = shards_of(&fs);
    for file in 100..120 {
        model.insert(file, pattern(file, 50_000));
        fs.write(file, &model[&file]).unwrap();
    }
    fs.sync().unwrap();
    assert!(shards_of(&fs) > kept, "nothing new is on it");
    assert_holds(&fs, &model, "kept");
}

/// Fails where a segment moves to its end although its member is kept meanwhile.
#[test]
fn a_member_kept_during_the_move_of_its_first_segment_loses_nothing() {
    let rig = Rig::new(2, 1, 4);
    let fs = rig.open(&[]);
    let content = pattern(0, 20_000);
    fs.write(0, &content).unwrap();
    fs.close();
    let fs = rig.open(&[]);
    let before = shards_of(&fs);
    assert!(before > 0, "the member has nothing to lose");
    fs.maintenance.draining().drain(REMOVED).unwrap();
    let rests = Cell::new(0);
    let wait = |_| {
        if rests.replace(rests.get() + 1) == 0 {
            fs.maintenance.draining().keep(REMOVED).unwrap();
        }
        true
    };
    fs.rebuild_while(&wait).unwrap();
    assert!(rests.get() > 0, "nothing was written");
    assert_eq!(shards_of(&fs), before);
    fs.assert_shards_lie_on(&rig, &[], "kept");
    let rows = fs.redundancy();
    assert_eq!((rows.len(), rows[0].0), (1, 1), "{rows:?}");
    assert_eq!(fs.read(0).unwrap(), content);
}

#[test]
fn a_member_stays_if_its_removal_fails() {
    let origin = Rig::new(2, 1, 5);
    let mut failures = 0;
    for nth in (1..).step_by(3) {
        let rig = origin.fork();
        let plan = FaultPlan::new();
        let fs = rig.open_with_faults(&plan).unwrap();
        fs.write(0, &pattern(0, 20_000)).unwrap();
        // Enough of them for no other way to be tried.
        for call in nth..nth + 20 {
            plan.add(Fault::at(call, Effect::NoSpace).of(Scope::Changing));
        }
        let removed = fs.maintenance.draining().drain(REMOVED);
        let was_struck = plan.triggered() > 0;
        plan.clear();
        let is_leaving =
            |fs: &TestFs| fs.transactions.members().membership().draining() == [REMOVED];
        let goes_on = matches!(removed, Err(CommitError::NoSpace)) && fs.sync().is_ok();
        if goes_on {
            failures += 1;
            assert!(!is_leaving(&fs), "call {nth}");
            drop(fs);
            assert!(!is_leaving(&rig.open(&[])), "call {nth}, after a crash");
        } else if removed.is_ok() {
            assert!(is_leaving(&fs), "call {nth}");
        }
        if !was_struck {
            break;
        }
    }
    assert!(failures > 0);
}

#[test]
fn a_replacement_continues_after_another_member_failed_to_replace_it() {
    let rig = Rig::new(2, 1, 5);
    let fs = rig.open(&[]);
    let (old, new, late) = (MemberIndex(4), MemberIndex(3), MemberIndex(2));
    fs.maintenance.draining().drain_to(old, new).unwrap();
    fs.maintenance.draining().drain(MemberIndex(1)).unwrap();
    fs.lose(&rig, 0);
    // Two are left for three shards.
    fs.maintenance.draining().drain_to(old, late).unwrap_err();
    assert!(
        fs.maintenance.draining().is_replaced_by(old, new)
            && !fs.maintenance.draining().is_replaced_by(old, late)
    );
}

#[test]
fn shards_of_a_replaced_member_go_to_its_heir_and_not_to_the_emptiest_member() {
    let mut rig = Rig::new(2, 1, 5);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    for file in 0..40 {
        model.insert(file, pattern(file, 20_000));
        fs.write(file, &model[&file]).unwrap();
    }
    fs.sync().unwrap();
    rig.disks[0].set_capacity(2 * DISK);
    rig.disks.push(MemDisk::new("new", DISK));
    let store: StoreRef = Arc::new(rig.disks[5].open());
    let old = MemberIndex(4);
    let new = fs.maintenance.joining().join(JoinAs::New, &store).unwrap();
    let slots = |fs: &TestFs, member| {
        let segments = fs.transactions.stripes.segments().records().into_iter();
        let held = segments.filter(|(_, segment)| segment.slots.contains(&Some(member)));
        held.map(|(segment, _)| segment).collect::<Vec<_>>()
    };
    let held = slots(&fs, old);
    assert!(held.len() > 2, "{held:?}");
    let had = slots(&fs, new);
    fs.maintenance.draining().drain_to(old, new).unwrap();
    let pace = Pace {
        bytes_per_second: &AtomicU64::new(0),
        wait: &|_| true,
    };
    fs.maintenance
        .rebuild()
        .run(RebuildScope::Everything, &NoLocks, &pace)
        .unwrap();
    assert_eq!(fs.transactions.members().membership().count(), 5);
    let now = slots(&fs, new);
    assert!(
        held.iter().all(|segment| now.contains(segment)),
        "{held:?} went to {now:?}"
    );
    assert!(had.iter().all(|segment| now.contains(segment)));
    fs.assert_shards_lie_on(&rig, &[4], "replaced");
    assert_holds(&fs, &model, "replaced");
}
