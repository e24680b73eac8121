//! Calls to disks fail in every way, at any time. As long as few enough members are concerned, callers see nothing of
//! it. Otherwise there are errors, never wrong bytes, and all acknowledged data is there once the disks are well again.
//!
//! Every so-many-th call is struck, from a random one on; `CAUCHYFS_SEED` chooses that one, and
//! `CAUCHYFS_EVERY=1` strikes them all.

use std::sync::Arc;
use std::time::Duration;

use cauchyfs::fs::Fs;
use cauchyfs::maintenance::Maintenance;
use cauchyfs::store::{
    Effect, Executor, ExecutorKind, Fault, FaultPlan, FaultStore, MemDisk, Scope,
};
use cauchyfs::transaction::OpenOptions;

use crate::script::{Ran, Session, Tree, fresh, open, peek, recovered, run, trees};
use crate::volume::{self, TestClock};

/// A volume as it is before the script, and the trees that the script makes of it.
struct Scene {
    what: String,
    fresh: Vec<MemDisk>,
    trees: Vec<Tree>,
    calls: u64,
}

impl Scene {
    fn new(count: usize, data: usize, parity: usize) -> Self {
        let fresh = fresh(count, data, parity);
        let mut scene = Self {
            what: format!("{data}+{parity} of {count}"),
            trees: trees(&fresh.iter().map(MemDisk::fork).collect::<Vec<_>>()),
            fresh,
            calls: 0,
        };
        let plan = FaultPlan::new();
        let (session, clock) = scene.open(&scene.forked(), &plan, None);
        let before = plan.calls();
        run(&session, &clock, |_| {});
        scene.calls = plan.calls() - before;
        assert!(scene.calls > 300, "{}: {} calls", scene.what, scene.calls);
        scene
    }

    fn forked(&self) -> Vec<MemDisk> {
        self.fresh.iter().map(MemDisk::fork).collect()
    }

    /// Opens the volume on stores that follow a plan. With a timeout, its threads give up on operations that hang for
    /// longer.
    fn open(
        &self,
        disks: &[MemDisk],
        plan: &FaultPlan,
        timeout: Option<Duration>,
    ) -> (Session, TestClock) {
        let stores = FaultStore::wrap_all(volume::stores(disks), plan);
        let maintenance = match timeout {
            None => volume::try_open(stores, 0),
            Some(timeout) => {
                let options = OpenOptions {
                    threads: 0,
                    ..OpenOptions::default()
                };
                let executor = Executor::new(ExecutorKind::Threads, timeout);
                Maintenance::open(stores, &options, Arc::new(executor))
            }
        };
        let clock = TestClock::default();
        let session = open(maintenance.unwrap(), &clock);
        (
            session.unwrap_or_else(|error| panic!("{}: {error}", self.what)),
            clock,
        )
    }

    /// Returns every `stride`-th call of the script, from a random one on.
    fn struck_calls(&self, stride: usize) -> impl Iterator<Item = u64> {
        let every = std::env::var_os("CAUCHYFS_EVERY").is_some();
        let stride = if every { 1 } else { stride };
        let seed = cauchyfs_testkit::seed();
        let first = 1 + seed % stride as u64;
        (first..=self.calls).step_by(stride)
    }

    /// Runs the script while something is wrong with some calls, and checks that callers do not notice.
    fn is_borne(&self, faults: &[Fault], timeout: Option<Duration>) {
        let what = format!("{}, {faults:?}", self.what);
        let disks = self.forked();
        let plan = FaultPlan::new();
        let (session, clock) = self.open(&disks, &plan, timeout);
        for fault in faults {
            plan.add(*fault);
        }
        let ran = run(&session, &clock, |_| {});
        assert!(ran.failed.is_none(), "{what}: {:?}", ran.failed);
        see(&session, &self.trees[ran.done..], &what, false);
        plan.release();
        // Completed steps are durable.
        let after = Ran {
            durable: ran.done,
            ..ran
        };
        drop(session);
        let well: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
        recovered(&well, &self.trees, &after, &what);
    }

    /// Runs the script while more fails than can be borne.
    fn is_survived(&self, faults: &[Fault]) {
        let what = format!("{}, {faults:?}", self.what);
        let disks = self.forked();
        let plan = FaultPlan::new();
        let (session, clock) = self.open(&disks, &plan, None);
        for fault in faults {
            plan.add(*fault);
        }
        let ran = run(&session, &clock, |_| {});
        let last = (ran.done + 2).min(self.trees.len());
        see(&session, &self.trees[ran.done..last], &what, true);
        drop(session);
        let well: Vec<MemDisk> = disks.iter().map(MemDisk::fork).collect();
        recovered(&well, &self.trees, &ran, &what);
    }
}

/// Looks at every path, and fails if it is as in none of some trees, or, unless that may be, an error.
fn see(fs: &Fs, trees: &[Tree], what: &str, may_fail: bool) {
    for path in trees[0].keys() {
        match peek(fs, path) {
            Ok(seen) => {
                let matches = |tree: &Tree| tree.get(path) == Some(&seen);
                let name = String::from_utf8_lossy(path);
                assert!(trees.iter().any(matches), "{what}: other bytes in /{name}");
            }
            Err(error) => assert!(may_fail, "{what}: {error}"),
        }
    }
}

/// Strikes single calls of all members.
fn every_single_failure_is_borne(scene: &Scene, effect: Effect, stride: usize) {
    for call in scene.struck_calls(stride) {
        scene.is_borne(&[Fault::at(call, effect)], None);
    }
}

#[test]
fn a_single_error_at_any_call_is_borne() {
    every_single_failure_is_borne(&Scene::new(3, 2, 1), Effect::Eio, 7);
}

#[test]
fn a_single_short_write_at_any_call_is_borne() {
    every_single_failure_is_borne(&Scene::new(3, 2, 1), Effect::ShortWrite, 9);
}

#[test]
fn wrong_bytes_at_any_call_are_borne() {
    every_single_failure_is_borne(&Scene::new(3, 2, 1), Effect::WrongBytes, 7);
}

#[test]
fn a_want_of_space_at_any_call_is_borne() {
    every_single_failure_is_borne(&Scene::new(4, 2, 1), Effect::NoSpace, 9);
}

#[test]
fn a_hang_at_any_call_is_borne() {
    // Two may fail: the machine may be so busy that another one seems to hang.
    let scene = Scene::new(4, 2, 2);
    for call in scene.struck_calls(97) {
        scene.is_borne(
            &[Fault::at(call, Effect::Hang)],
            Some(Duration::from_secs(1)),
        );
    }
}

#[test]
fn as_many_members_as_there_are_parities_may_fail_for_good_at_any_call() {
    let scene = Scene::new(5, 2, 2);
    for (turn, call) in scene.struck_calls(23).enumerate() {
        let effects = [Effect::Eio, Effect::WrongBytes, Effect::ShortWrite];
        let fail = |member, nth, effect| Fault {
            lasting: true,
            ..Fault::at(nth, effect).of(Scope::Member(member))
        };
        let (first, second) = (turn % 5, (turn + 1 + turn / 5 % 4) % 5);
        // Calls are counted for each member.
        let faults = [
            fail(first, 1 + call / 5, effects[turn % 3]),
            fail(second, 1 + call / 7, effects[turn / 3 % 3]),
        ];
        scene.is_borne(&faults, None);
    }
}

#[test]
fn more_failures_than_can_be_borne_give_errors_and_take_nothing_that_was_acknowledged() {
    let scene = Scene::new(3, 2, 1);
    let effects = [Effect::Eio, Effect::NoSpace, Effect::ShortWrite];
    for (turn, call) in scene.struck_calls(5).enumerate() {
        let effect = effects[turn % 3];
        let lasting = Fault {
            lasting: true,
            ..Fault::at(call, effect)
        };
        if turn % 4 == 0 {
            scene.is_survived(&[lasting]);
            continue;
        }
        // Two of three members, one after the other.
        let fail = |member, nth| Fault {
            nth,
            ..lasting.of(Scope::Member(member))
        };
        let (first, second) = (turn % 3, (turn + 1) % 3);
        scene.is_survived(&[fail(first, 1 + call / 3), fail(second, 1 + call / 4)]);
    }
}
