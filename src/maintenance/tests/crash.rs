//! Power cuts after every store call, with members lost at the cut.

use super::*;
use crate::store::{CallKind, Effect, Fault, Scope};

/// The promises of a workload by the time the power went.
#[derive(Clone, Default)]
struct Promises {
    /// The contents of each file, oldest first, since the last acknowledged sync: the first one was acknowledged, any
    /// later one may have become durable as well.
    allowed: BTreeMap<u64, Vec<Vec<u8>>>,
}

impl Promises {
    fn wrote(&mut self, file: u64, bytes: Vec<u8>) {
        self.allowed
            .entry(file)
            .or_insert_with(|| vec![Vec::new()])
            .push(bytes);
    }

    fn synced(&mut self) {
        for states in self.allowed.values_mut() {
            states.drain(..states.len() - 1);
        }
    }

    fn check(&self, fs: &TestFs, context: &str) {
        for (&file, allowed) in &self.allowed {
            let read = fs.read(file);
            let read = read.unwrap_or_else(|error| panic!("{context}: file {file}: {error}"));
            let which = allowed.iter().position(|state| *state == read);
            assert!(
                which.is_some(),
                "{context}: file {file} holds {} other bytes",
                read.len()
            );
        }
    }
}

/// Writes, syncs, overwrites, removes, reaps, checkpoints; stops at the first error.
fn work(fs: &TestFs, promises: &mut Promises) -> Result<(), CommitError> {
    for round in 0..3_u64 {
        for (file, len) in [(1, 700), (2, 40_000), (3, 5_000), (4, 90)] {
            let bytes = pattern(10 * round + file, len + 13 * round as usize);
            // Noted first: a failing call may have had its effect.
            promises.wrote(file, bytes.clone());
            fs.write(file, &bytes)?;
            if file != 2 {
                fs.sync()?;
                promises.synced();
            }
        }
        promises.wrote(3, Vec::new());
        fs.remove(3)?;
        fs.maintenance.reaper.reap()?;
        fs.sync()?;
        promises.synced();
        fs.maintenance.reaper.reap()?;
        if round == 1 {
            fs.transactions.checkpoint()?;
        }
        fs.sync()?;
        fs.maintenance.reaper.reap()?;
    }
    fs.maintenance.close()
}

fn set_up(rig: Rig) -> (Rig, Promises) {
    let fs = rig.open(&[]);
    let mut promises = Promises::default();
    for file in 1..4 {
        let bytes = pattern(100 + file, 9_000);
        fs.write(file, &bytes).unwrap();
        promises.wrote(file, bytes);
    }
    fs.close();
    promises.synced();
    (rig, promises)
}

/// Cuts the power at every `stride`-th call of the work, and checks what is left in every way.
fn every_cut_keeps_the_promises(data: usize, parity: usize, count: usize, stride: usize) {
    let named = format!("{data}+{parity} of {count}");
    every_cut_with_losses(Rig::new(data, parity, count), parity, stride, &named);
}

fn every_cut_with_losses(rig: Rig, lost: usize, stride: usize, named: &str) {
    let losses = subsets(rig.disks.len(), lost);
    let (base, kept_before) = set_up(rig);
    let mut cuts = 0;
    for call in (1..).step_by(stride) {
        let rig = base.fork();
        let plan = FaultPlan::new();
        plan.add(power_cut_at(call));
        let mut promises = kept_before.clone();
        let outcome = rig
            .open_with_faults(&plan)
            .and_then(|fs| work(&fs, &mut promises));
        if plan.triggered() == 0 {
            outcome.unwrap();
            break;
        }
        cuts += 1;
        let seed = call * 1_000;
        for (turn, policy) in ways_to_cut(seed).into_iter().enumerate() {
            let left = rig.fork();
            left.cut(policy);
            // Every set of lost members comes up, in turn.
            let lost = &losses[(call as usize + 7 * turn) % losses.len()];
            let context = format!("{named}, cut {call}, {policy:?}, lost {lost:?}");
            check_after_cut(&left, lost, &promises, &context);
        }
    }
    assert!(cuts > 20, "only {cuts} cuts were tried");
}

fn check_after_cut(rig: &Rig, lost: &[usize], promises: &Promises, context: &str) {
    let fs = rig.open_in(lost, context);
    promises.check(&fs, context);
    fs.assert_shards_lie_on(rig, lost, context);
    assert!(
        fs.redundancy().first().is_none_or(|row| row.0 >= 0),
        "{context}: {:?}",
        fs.redundancy()
    );
    // It goes on working, and what it does now survives the next, clean, open.
    fs.write(9, &pattern(9, 20_000))
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    fs.sync()
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    rig.cut(CutPolicy::Drop);
    let fs = TestFs::open(rig.stores(lost), Access::ReadWrite)
        .unwrap_or_else(|error| panic!("{context}, second open: {error}"));
    promises.check(&fs, context);
    assert_eq!(fs.read(9).unwrap(), pattern(9, 20_000), "{context}");
}

#[test]
fn a_power_cut_after_any_call_keeps_the_synced_files_2_plus_1() {
    every_cut_keeps_the_promises(2, 1, 3, 1);
}

#[test]
fn a_power_cut_after_any_call_keeps_the_synced_files_2_plus_2_of_5() {
    every_cut_keeps_the_promises(2, 2, 5, 3);
}

#[test]
fn a_power_cut_after_any_call_keeps_the_synced_files_of_a_random_code() {
    every_cut_with_losses(Rig::random(8), 3, 11, "random 4+4 of 8");
}

#[test]
fn a_power_cut_in_the_middle_of_recovery_loses_nothing_either() {
    let (base, kept_before) = set_up(Rig::new(2, 1, 3));
    // A crash with bytes in the journal only.
    let mut promises = kept_before;
    let fs = base.open(&[]);
    for file in 1..6 {
        let bytes = pattern(200 + file, 300);
        fs.write(file, &bytes).unwrap();
        promises.wrote(file, bytes);
        fs.sync().unwrap();
        promises.synced();
    }
    base.cut(CutPolicy::Drop);
    for call in 1.. {
        let rig = base.fork();
        let plan = FaultPlan::new();
        plan.add(power_cut_at(call));
        let opened = rig.open_with_faults(&plan);
        if plan.triggered() == 0 {
            opened.map(drop).unwrap();
            assert!(call > 10, "recovery made only {call} calls");
            break;
        }
        drop(opened);
        for policy in [CutPolicy::Drop, CutPolicy::Reorder(call)] {
            let left = rig.fork();
            left.cut(policy);
            let lost = [call as usize % 3];
            check_after_cut(
                &left,
                &lost,
                &promises,
                &format!("recovery cut {call}, {policy:?}"),
            );
        }
    }
}

#[test]
fn shards_that_a_failing_sync_dropped_are_not_recorded_as_written() {
    let base = Rig::new(2, 2, 4);
    for call in 1.. {
        let rig = base.fork();
        let plan = FaultPlan::new();
        let fs = rig.open_with_faults(&plan).unwrap();
        let fails = Fault::at(call, Effect::Eio).of(Scope::Kind(CallKind::Sync));
        plan.clear();
        plan.add(fails);
        let bytes = pattern(call, 100_000);
        fs.write(1, &bytes).unwrap();
        fs.sync().unwrap();
        if plan.triggered() == 0 {
            assert!(call > 8, "only {call} syncs");
            break;
        }
        let context = format!("sync {call} failed");
        assert!(fs.redundancy()[0].0 >= 1, "{context}");
        rig.cut(CutPolicy::Drop);
        for lost in subsets(4, 1) {
            let rig = rig.fork();
            let fs = TestFs::open(rig.stores(&lost), Access::ReadWrite).unwrap();
            fs.assert_shards_lie_on(&rig, &lost, &context);
            assert!(fs.read(1).unwrap() == bytes, "{context}, lost {lost:?}");
        }
    }
}
