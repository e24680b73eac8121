//! Space that no record names, after crashes and absences.

use std::cell::Cell;

use super::rebuild::assert_whole;
use super::*;
use crate::membership::StripeCode;
use crate::store::{Effect, Fault, Scope};

/// Bytes free on all disks together.
fn free_on(rig: &Rig) -> u64 {
    let free = |disk: &MemDisk| disk.open().space().unwrap().free_bytes;
    rig.disks.iter().map(free).sum()
}

/// Writes, overwrites and removes, so that segments get holes.
fn make_holes(fs: &TestFs) -> Result<Model, CommitError> {
    let mut model = Model::new();
    for round in 0..3 {
        for file in 0..12 {
            let bytes = pattern(100 * round + file, 30_000);
            fs.write(file, &bytes)?;
            model.insert(file, bytes);
        }
        fs.sync()?;
        fs.maintenance.reaper.reap()?;
    }
    for file in [1, 2, 5, 6, 7, 10] {
        fs.remove(file)?;
        model.insert(file, Vec::new());
    }
    fs.sync()?;
    for _ in 0..4 {
        fs.maintenance.reaper.reap()?;
        fs.sync()?;
    }
    Ok(model)
}

fn settle(fs: &TestFs) {
    for _ in 0..6 {
        fs.maintenance.reaper.reap().unwrap();
        fs.sync().unwrap();
    }
}

#[test]
fn a_clean_close_leaves_no_space_that_nothing_names() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    let before = free_on(&rig);
    fs.write(1, &pattern(1, 300_000)).unwrap();
    fs.sync().unwrap();
    fs.remove(1).unwrap();
    fs.close();
    assert!(free_on(&rig) >= before, "{} of {before}", free_on(&rig));
}

/// Bytes that segment files take on each disk.
fn taken_by_segments(rig: &Rig) -> Vec<u64> {
    let without = rig.fork();
    for disk in &without.disks {
        let store = disk.open();
        for (name, _) in store.list(files::SEGMENTS).unwrap() {
            store.remove(&name).unwrap();
        }
    }
    let free = |disk: &MemDisk| disk.open().space().unwrap().free_bytes;
    let disks = rig.disks.iter().zip(&without.disks);
    disks
        .map(|(with, without)| free(without) - free(with))
        .collect()
}

/// Bytes on each disk that records name, those of stripes not written there included.
fn named_by_records(fs: &TestFs, count: usize) -> Vec<u64> {
    let mut named = vec![0; count];
    for stripe in fs.stripes() {
        let record = fs.transactions.stripe(stripe).unwrap().unwrap();
        let segment = fs
            .transactions
            .stripes
            .segments()
            .record(record.segment)
            .unwrap();
        for (slot, member) in segment.slots.iter().enumerate() {
            if let Some(member) = member
                && segment.shard_in(slot, record.rotation).is_some()
            {
                named[usize::from(member.0)] += u64::from(record.height);
            }
        }
    }
    named
}

/// The space that records do not name is given back after a mount, no matter where the power went. This holds also on a
/// member that was away for a while.
#[test]
fn no_crash_and_no_absence_leaks_space() {
    let base = Rig::new(2, 1, 4);
    let mut cuts = 0;
    for call in (1..).step_by(3) {
        let rig = base.fork();
        let plan = FaultPlan::new();
        let fault = power_cut_at(call);
        plan.add(fault);
        let run = rig.open_with_faults(&plan).and_then(|fs| make_holes(&fs));
        if plan.triggered() == 0 {
            run.map(drop).unwrap();
            break;
        }
        cuts += 1;
        rig.cut(if call % 2 == 0 {
            CutPolicy::Keep
        } else {
            CutPolicy::Drop
        });
        // A member is away at the next mount, and back at the one after that.
        let away = call as usize % 4;
        let fs = rig.open(&[away]);
        settle(&fs);
        fs.remove(1).unwrap();
        fs.close();
        let fs = rig.open(&[]);
        settle(&fs);
        let named = named_by_records(&fs, 4);
        fs.close();
        let taken = taken_by_segments(&rig);
        assert!(
            taken
                .iter()
                .zip(&named)
                .all(|(taken, named)| taken <= named),
            "cut at {call}, {away} away: {taken:?} bytes taken, {named:?} named"
        );
    }
    assert!(cuts > 20, "only {cuts} cuts");
}

/// Parity that is dropped takes no space after a mount, no matter where the power went meanwhile.
#[test]
fn no_crash_leaks_space_of_parity_that_is_dropped() {
    let base = Rig::new(2, 2, 4);
    let fs = base.open(&[]);
    make_holes(&fs).unwrap();
    fs.close();
    let fs = base.open(&[]);
    settle(&fs);
    fs.transactions
        .change_code(StripeCode {
            geometry: Geometry::new(2, 1).unwrap(),
            ..fs.transactions.members().shape().stripe_code()
        })
        .unwrap();
    fs.close();
    let mut found_leaks = 0;
    for call in 1.. {
        let rig = base.fork();
        let plan = FaultPlan::new();
        let fs = rig.open_with_faults(&plan).unwrap();
        plan.add(power_cut_at(call));
        let outcome = fs.rebuild();
        if plan.triggered() == 0 {
            outcome.unwrap();
            break;
        }
        drop(fs);
        rig.cut(ways_to_cut(call)[call as usize % 3]);
        let fs = rig.open(&[]);
        let takes_too_much = |named: Vec<u64>| {
            let taken = taken_by_segments(&rig);
            let more = |(taken, named): (u64, u64)| taken > named;
            taken.into_iter().zip(named).any(more)
        };
        // The audit comes later, and must find something to free after some of the cuts.
        found_leaks += usize::from(takes_too_much(named_by_records(&fs, 4)));
        fs.rebuild().unwrap();
        settle(&fs);
        assert!(!fs.maintenance.rebuild().has_other_codes(), "cut {call}");
        let named = named_by_records(&fs, 4);
        fs.close();
        assert!(
            !takes_too_much(named.clone()),
            "cut {call}: {:?} bytes taken, {named:?} named",
            taken_by_segments(&rig)
        );
    }
    assert!(
        found_leaks > 0,
        "no cut was between the records and the space"
    );
}

/// New parity lies where no record names anything, until all of a segment has it.
#[test]
fn parity_that_is_being_added_is_not_taken_for_space_that_nothing_names() {
    let rig = Rig::new(2, 2, 4);
    let fs = rig.open(&[]);
    let model = make_holes(&fs).unwrap();
    let code = fs.transactions.members().shape().stripe_code();
    let with_parity = |parity| StripeCode {
        geometry: Geometry::new(2, parity).unwrap(),
        ..code
    };
    fs.transactions.change_code(with_parity(1)).unwrap();
    fs.close();
    let fs = rig.open(&[]);
    fs.rebuild().unwrap();
    fs.transactions.change_code(with_parity(2)).unwrap();
    fs.close();
    let fs = rig.open(&[]);
    let rests = Cell::new(0);
    let audit = |_| {
        rests.set(rests.get() + 1);
        fs.maintenance.reaper.lock().audit_again();
        fs.maintenance.reaper.reap().unwrap();
        true
    };
    fs.rebuild_while(&audit).unwrap();
    assert!(rests.get() > 2, "only {} rests", rests.get());
    assert!(!fs.maintenance.rebuild().has_other_codes());
    assert_whole(fs, &rig, &[], 2, &model, "2+1 to 2+2");
}

/// Stripes that die while their shards are rebuilt take no space afterwards. This holds for a member that had lost them
/// and for one that had nothing of them.
#[test]
fn stripes_that_die_while_they_are_rebuilt_take_no_space() {
    for (is_moved, dies_whole) in [(false, false), (true, false), (true, true)] {
        let context = format!("moved: {is_moved}, all dies: {dies_whole}");
        let rig = Rig::new(2, 1, if is_moved { 4 } else { 3 });
        let plan = FaultPlan::new();
        let threads = Executor::new(ExecutorKind::Threads, Duration::from_secs(600));
        let stores = FaultStore::wrap_all(rig.stores(&[]), &plan);
        let fs = TestFs::open_on(stores, Access::ReadWrite, Arc::new(threads)).unwrap();
        for file in 0..12 {
            fs.write(file, &pattern(file, 30_000)).unwrap();
        }
        fs.transactions.checkpoint().unwrap();
        fs.transactions.stripes.writer().retire_segments().unwrap();
        fs.sync().unwrap();
        if is_moved {
            fs.lose(&rig, 0);
        } else {
            let disk = rig.disks[0].open();
            for (name, _) in disk.list(files::SEGMENTS).unwrap() {
                disk.remove(&name).unwrap();
            }
        }
        // The first file that the rebuild makes.
        plan.add(Fault::at(1, Effect::Hang).of(Scope::Kind(CallKind::Create)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                fs.rebuild().unwrap();
            });
            while plan.triggered() == 0 {
                std::thread::yield_now();
            }
            for file in (0..12).filter(|file| dies_whole || file % 6 > 0) {
                fs.remove(file).unwrap();
            }
            settle(&fs);
            plan.release();
        });
        settle(&fs);
        let named = named_by_records(&fs, rig.disks.len());
        rig.disks[0].fail(None);
        let taken = taken_by_segments(&rig);
        let mut disks = taken.iter().zip(&named).skip(usize::from(is_moved));
        assert!(
            disks.all(|(taken, named)| taken <= named),
            "{context}: {taken:?} bytes taken, {named:?} named"
        );
    }
}
