//! The power is cut at every call that changes a disk, and disks are lost. The rest is one of the trees that
//! existed, not older than what was made durable.
//!
//! A volume of 1+1 is tried with every cut, every policy and every set of lost disks. For larger ones
//! policies and sets take turns; `CAUCHYFS_EVERY=1` tries them all.

use std::sync::atomic::{AtomicU64, Ordering};

use cauchyfs::store::{CutPolicy, FaultPlan, FaultStore, MemDisk};
use cauchyfs_testkit::{changing_calls, power_cut_at, subsets};

use crate::script::{Ran, fresh, open, recovered, run, trees};
use crate::volume::{self, TestClock};

/// Runs the script on disks that follow a plan, from the opening on.
fn run_under(plan: &FaultPlan, disks: &[MemDisk]) -> Ran {
    let stores = FaultStore::wrap_all(volume::stores(disks), plan);
    let clock = TestClock::default();
    let Ok(maintenance) = volume::try_open(stores, 0) else {
        return Ran::default();
    };
    match open(maintenance, &clock) {
        Ok(session) => run(&session, &clock, |_| {}),
        Err(_) => Ran::default(),
    }
}

/// Cuts the power at every `stride`-th call of a volume over many disks of all sizes. The first, the last or
/// scattered ones of them are lost.
fn cut_over_many(count: usize, data: usize, parity: usize, stride: usize) {
    let fresh = fresh(count, data, parity);
    for (index, disk) in (0..).zip(&fresh) {
        disk.set_capacity((300 + 37 * (index % 11)) << 20);
    }
    let forked = || fresh.iter().map(MemDisk::fork).collect::<Vec<_>>();
    let trees = trees(&forked());
    let plan = FaultPlan::new();
    plan.record();
    run_under(&plan, &forked());
    let calls = changing_calls(&plan);
    println!("{data}+{parity} of {count}: {calls} calls that change a disk");
    for (turn, call) in (1..=calls).step_by(stride).enumerate() {
        let disks = forked();
        let plan = FaultPlan::new();
        plan.add(power_cut_at(call));
        let ran = run_under(&plan, &disks);
        let policies = [CutPolicy::Reorder(call), CutPolicy::Drop, CutPolicy::Keep];
        let policy = policies[turn % 3];
        let first = turn * 7 % count;
        let step = [1, 3][turn / 3 % 2];
        let lost: Vec<usize> = (0..parity)
            .map(|nth| (first + nth * step) % count)
            .collect();
        let what =
            format!("{data}+{parity} of {count}, cut at call {call}, {policy:?}, lost {lost:?}");
        for disk in &disks {
            disk.cut(policy);
        }
        let left = disks
            .iter()
            .enumerate()
            .filter(|(index, _)| !lost.contains(index));
        let left: Vec<MemDisk> = left.map(|(_, disk)| disk.clone()).collect();
        recovered(&left, &trees, &ran, &what);
    }
}

/// Cuts the power at every call, and looks at what is left in every way, or in one of them in turn.
fn cut_everywhere(count: usize, data: usize, parity: usize, in_turn: bool) {
    let fresh = fresh(count, data, parity);
    let forked = || fresh.iter().map(MemDisk::fork).collect::<Vec<_>>();
    let trees = trees(&forked());
    let plan = FaultPlan::new();
    plan.record();
    run_under(&plan, &forked());
    let calls = changing_calls(&plan);
    println!("{data}+{parity}: {calls} calls that change a disk");
    assert!(calls > 100);
    let all = std::env::var_os("CAUCHYFS_EVERY").is_some();
    let cut_at = |call: u64| {
        let disks = forked();
        let plan = FaultPlan::new();
        plan.add(power_cut_at(call));
        let ran = run_under(&plan, &disks);
        let mut choices = Vec::new();
        for policy in [CutPolicy::Keep, CutPolicy::Drop, CutPolicy::Reorder(call)] {
            for lost in subsets(count, parity) {
                choices.push((policy, lost));
            }
        }
        if in_turn && !all {
            let turn = usize::try_from(call * 5).unwrap() % choices.len();
            choices = vec![choices.swap_remove(turn)];
        }
        for (policy, lost) in choices {
            let what = format!(
                "{data}+{parity}, cut at call {call}, {policy:?}, lost {lost:?}, after {}",
                ran.done
            );
            let mut left = Vec::new();
            for (index, disk) in disks.iter().enumerate() {
                let disk = disk.fork();
                disk.cut(policy);
                if !lost.contains(&index) {
                    left.push(disk);
                }
            }
            recovered(&left, &trees, &ran, &what);
        }
    };
    // The tests of all volumes share the processors. A run of every choice takes them all.
    let threads = match std::thread::available_parallelism() {
        Ok(threads) if all => threads.get(),
        _ => 1,
    };
    let next = AtomicU64::new(1);
    let cut_the_rest = || {
        loop {
            let call = next.fetch_add(1, Ordering::Relaxed);
            if call > calls {
                return;
            }
            cut_at(call);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(cut_the_rest);
        }
    });
}

// After a cut at any call the tree is one that existed and not older than the last sync.

#[test]
fn a_cut_at_any_call_leaves_a_tree_that_existed_1_plus_1() {
    cut_everywhere(2, 1, 1, false);
}

#[test]
fn a_cut_at_any_call_leaves_a_tree_that_existed_2_plus_1() {
    cut_everywhere(3, 2, 1, true);
}

#[test]
fn a_cut_at_any_call_leaves_a_tree_that_existed_2_plus_2_over_5() {
    cut_everywhere(5, 2, 2, true);
}

#[test]
fn a_cut_at_any_call_leaves_a_tree_that_existed_4_plus_2() {
    cut_everywhere(6, 4, 2, true);
}

#[test]
fn a_cut_leaves_a_tree_that_existed_6_plus_3_over_20_of_all_sizes() {
    cut_over_many(20, 6, 3, 29);
}

#[test]
fn a_cut_leaves_a_tree_that_existed_64_plus_16_over_80_of_all_sizes() {
    cut_over_many(80, 64, 16, 397);
}
