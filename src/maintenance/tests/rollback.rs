//! A member that is a stale copy from an earlier time of the same epoch, its segment files as well.

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;

use super::*;
use crate::format::MemberIndex;
use crate::maintenance::{ScrubState, ScrubStatus};
use crate::membership::MemberState;

const ROUNDS: u64 = 7;

/// Writes, replaces and removes files, with a new mount after every third round. Returns the files in the end, and the
/// disks as they were before each round.
fn live(rig: &Rig) -> (Model, Vec<Rig>) {
    let mut model = Model::new();
    let mut backups = Vec::new();
    let mut fs = rig.open(&[]);
    for round in 0..ROUNDS {
        backups.push(rig.fork());
        for (file, len) in [(round % 3, 40_000), (10 + round, 9_000), (20, 300)] {
            let bytes = pattern(100 * round + file, len);
            fs.write(file, &bytes).unwrap();
            model.insert(file, bytes);
        }
        if round % 2 == 1 {
            fs.remove(10 + round - 1).unwrap();
            model.remove(&(10 + round - 1));
        }
        fs.sync().unwrap();
        if round % 3 == 2 {
            fs.close();
            fs = rig.open(&[]);
        }
    }
    fs.close();
    (model, backups)
}

/// Its copy of the index is not believed, its segment files fail the checksums, and until they are verified nothing of
/// it counts.
#[test]
fn a_stale_copy_of_any_earlier_state_costs_no_more_than_its_shards() {
    for (data, parity, count) in [(2, 1, 3), (2, 2, 4), (4, 2, 6)] {
        let base = Rig::new(data, parity, count);
        let (model, backups) = live(&base);
        for (age, backup) in backups.iter().rev().enumerate() {
            for back in 0..count {
                let context = format!("{data}+{parity}: {back} put back by {age}");
                let mut rig = base.fork();
                rig.disks[back] = backup.disks[back].fork();
                let fs = rig.open(&[]);
                assert_holds(&fs, &model, &context);
                let stripes = fs.stripes().len() as u64;
                let rows = fs.redundancy();
                assert_eq!(
                    rows.iter().map(|row| row.1).sum::<u64>(),
                    stripes,
                    "{context}"
                );
                let is_back = |shard: &&WrittenShard| shard.disk == back;
                let written = fs.written_shards();
                let unsure: std::collections::BTreeSet<_> = written
                    .iter()
                    .filter(is_back)
                    .map(|shard| shard.stripe)
                    .collect();
                let counted: u64 = rows
                    .iter()
                    .filter(|row| row.0 < parity as i16)
                    .map(|row| row.1)
                    .sum();
                assert_eq!(counted, unsure.len() as u64, "{context}: {rows:?}");
                let bytes = pattern(7, 20_000);
                fs.write(7, &bytes).unwrap();
                fs.close();
                // A further one may be lost if there is parity for both.
                let lost: Vec<_> = [(back + 1) % count].into_iter().take(parity - 1).collect();
                let fs = rig.open(&lost);
                assert_holds(&fs, &model, &format!("{context}, then {lost:?} lost"));
                assert!(
                    fs.read(7).unwrap() == bytes,
                    "{context}, then {lost:?} lost"
                );
            }
        }
    }
}

/// It is noticed, and everything is verified then: what the records say of it is not believed.
#[test]
fn everything_that_a_stale_copy_lacks_is_found_and_repaired() {
    for (data, parity, count) in [(2, 1, 3), (4, 2, 6)] {
        let base = Rig::new(data, parity, count);
        let (model, backups) = live(&base);
        assert!(
            base.fork()
                .open(&[])
                .transactions
                .members()
                .stale_copies()
                .unverified()
                .is_empty()
        );
        for (age, backup) in backups.iter().rev().enumerate() {
            for back in 0..count {
                let context = format!("{data}+{parity}: {back} put back by {age}");
                let mut rig = base.fork();
                rig.disks[back] = backup.disks[back].fork();
                let fs = rig.open(&[]);
                assert!(
                    !fs.transactions
                        .members()
                        .stale_copies()
                        .unverified()
                        .is_empty(),
                    "{context}"
                );
                let go_on = |_: &ScrubStatus| ControlFlow::Continue(());
                fs.maintenance
                    .scrubber
                    .scrub(&NoLocks, None, go_on)
                    .unwrap();
                assert!(
                    fs.transactions
                        .members()
                        .stale_copies()
                        .unverified()
                        .is_empty(),
                    "{context}"
                );
                fs.rebuild().unwrap();
                fs.assert_shards_lie_on(&rig, &[], &context);
                assert_holds(&fs, &model, &context);
                fs.close();
                let fs = rig.open(&[]);
                assert!(
                    fs.transactions
                        .members()
                        .stale_copies()
                        .unverified()
                        .is_empty(),
                    "{context}"
                );
            }
        }
    }
}

#[test]
fn a_stopped_scrub_leaves_a_stale_copy_to_the_next_scrub_which_begins_again() {
    let base = Rig::new(2, 1, 3);
    let (_, backups) = live(&base);
    let mut rig = base.fork();
    rig.disks[1] = backups[0].disks[1].fork();
    let fs = rig.open(&[]);
    let tolerated = || fs.maintenance.redundancy.redundancy().unwrap().rows[0].losses_tolerated;
    assert_eq!(tolerated(), 0, "what it holds counts for nothing yet");
    let stop = |_: &ScrubStatus| ControlFlow::Break(());
    fs.maintenance.scrubber.scrub(&NoLocks, None, stop).unwrap();
    assert_eq!(tolerated(), 0);
    fs.close();
    // Only its record tells now that it is a stale copy.
    let fs = rig.open(&[]);
    let known: Vec<_> = fs
        .transactions
        .members()
        .stale_copies()
        .unverified()
        .into_keys()
        .collect();
    assert_eq!(known, [MemberIndex(1)]);
    let go_on = |_: &ScrubStatus| ControlFlow::Continue(());
    fs.maintenance
        .scrubber
        .scrub(&NoLocks, None, go_on)
        .unwrap();
    assert!(
        fs.transactions
            .members()
            .stale_copies()
            .unverified()
            .is_empty()
    );
    fs.close();
    let fs = rig.open(&[]);
    assert!(
        fs.transactions
            .members()
            .stale_copies()
            .unverified()
            .is_empty()
    );
}

/// Returns a volume of which disk 1 is from an earlier time, what it is to hold, and the first state of all.
fn one_stale_copy() -> (Rig, Model, Rig) {
    let base = Rig::new(2, 1, 3);
    let (model, mut backups) = live(&base);
    let mut rig = base.fork();
    let first = backups.swap_remove(0);
    rig.disks[1] = first.disks[1].fork();
    (rig, model, first)
}

fn unverified(fs: &TestFs) -> Vec<MemberIndex> {
    fs.transactions
        .members()
        .stale_copies()
        .unverified()
        .into_keys()
        .collect()
}

fn scrub(fs: &TestFs) {
    let go_on = |_: &ScrubStatus| ControlFlow::Continue(());
    fs.maintenance
        .scrubber
        .scrub(&NoLocks, None, go_on)
        .unwrap();
}

/// Scrubs so many steps, then does something, and goes on if that says so.
fn scrub_with(fs: &TestFs, steps: usize, then: impl Fn() -> ControlFlow<()>) -> ScrubStatus {
    let done = Cell::new(0);
    let report = |_: &ScrubStatus| {
        done.set(done.get() + 1);
        if done.get() == steps {
            then()
        } else {
            ControlFlow::Continue(())
        }
    };
    let status = fs
        .maintenance
        .scrubber
        .scrub(&NoLocks, None, report)
        .unwrap()
        .unwrap();
    assert!(done.get() >= steps, "only {} steps", done.get());
    status
}

/// Verifies all and makes up for what that found to be missing: everything is there then.
fn assert_mends(fs: &TestFs, rig: &Rig, model: &Model, context: &str) {
    scrub(fs);
    assert_eq!(unverified(fs), [], "{context}");
    fs.rebuild().unwrap();
    fs.assert_shards_lie_on(rig, &[], context);
    assert_eq!(fs.redundancy()[0].0, 1, "{context}: {:?}", fs.redundancy());
    assert_holds(fs, model, context);
}

const BACK: MemberIndex = MemberIndex(1);

/// It was away while stripes were verified that it should have shards of.
#[test]
fn a_stale_copy_that_goes_while_a_scrub_runs_is_not_verified_by_it() {
    const STEPS: usize = 4;
    for (returns_meanwhile, crashes) in [(false, false), (false, true), (true, false), (true, true)]
    {
        let context = format!("returns meanwhile: {returns_meanwhile}, then a crash: {crashes}");
        let (rig, model, _) = one_stale_copy();
        let fs = rig.open(&[]);
        let status = scrub_with(&fs, STEPS, || {
            fs.lose(&rig, 1);
            if returns_meanwhile {
                fs.take_back(&rig, 1);
            }
            ControlFlow::Continue(())
        });
        assert_eq!(status.state, ScrubState::Finished, "{context}");
        assert_eq!(unverified(&fs), [BACK], "{context}");
        let fs = if crashes {
            drop(fs);
            rig.disks[1].fail(None);
            rig.cut(CutPolicy::Drop);
            rig.open(&[])
        } else {
            if !returns_meanwhile {
                fs.take_back(&rig, 1);
            }
            fs
        };
        assert_eq!(unverified(&fs), [BACK], "{context}");
        assert_eq!(fs.redundancy()[0].0, 0, "{context}: {:?}", fs.redundancy());
        assert_mends(&fs, &rig, &model, &context);
        fs.close();
        assert_eq!(unverified(&rig.open(&[])), [], "{context}");
    }
}

/// A scrub without it verifies nothing of it, and what was verified without it is verified again.
#[test]
fn a_stale_copy_is_verified_by_no_scrub_of_a_mount_without_it() {
    for (before, without) in [(0, None), (4, Some(3)), (4, None)] {
        let context = format!("{before} steps with it, {without:?} without it");
        let (rig, model, _) = one_stale_copy();
        let fs = rig.open(&[]);
        if before > 0 {
            scrub_with(&fs, before, || ControlFlow::Break(()));
        }
        fs.close();
        let fs = rig.open(&[1]);
        assert_eq!(unverified(&fs), [BACK], "{context}");
        match without {
            Some(steps) => drop(scrub_with(&fs, steps, || ControlFlow::Break(()))),
            None => scrub(&fs),
        }
        assert_eq!(unverified(&fs), [BACK], "{context}");
        fs.close();
        let fs = rig.open(&[]);
        assert_eq!(unverified(&fs), [BACK], "{context}");
        let restarted = scrub_with(&fs, 1, || ControlFlow::Break(()));
        assert_eq!(restarted.bytes_passed, 0, "{context}");
        assert_mends(&fs, &rig, &model, &context);
        fs.close();
        assert_eq!(unverified(&rig.open(&[])), [], "{context}");
    }
}

/// With no such member online, a scrub that stopped goes on where it was.
#[test]
fn an_absent_stale_copy_does_not_make_scrubs_begin_again() {
    let (rig, _, _) = one_stale_copy();
    rig.open(&[]).close();
    let fs = rig.open(&[1]);
    let stopped = scrub_with(&fs, 4, || ControlFlow::Break(()));
    assert!(stopped.bytes_passed > 0);
    fs.close();
    let fs = rig.open(&[1]);
    let went_on = scrub_with(&fs, 1, || ControlFlow::Break(()));
    assert_eq!(went_on.bytes_passed, stopped.bytes_passed);
    assert_eq!(unverified(&fs), [BACK]);
}

/// Begins two epochs, so that a copy from before is known to be one.
fn pass_epochs(fs: &TestFs, rig: &Rig, disk: usize) {
    fs.lose(rig, disk);
    fs.take_back(rig, disk);
}

/// The running scrub does not cover it, and the choice of the next one after a crash respects that.
#[test]
fn a_stale_copy_that_comes_while_a_scrub_runs_is_known_after_a_crash() {
    let rig = Rig::new(2, 1, 3);
    let (model, backups) = live(&rig);
    let old = backups[1].disks[1].fork();
    let fs = rig.open(&[]);
    let stopped = scrub_with(&fs, 4, || ControlFlow::Break(()));
    assert!(stopped.bytes_passed > 0);
    let cut = || {
        let mut cut = rig.fork();
        cut.disks[1] = old.fork();
        cut.cut(CutPolicy::Drop);
        cut
    };
    let mut crashes = RefCell::new(Vec::new());
    scrub_with(&fs, 2, || {
        pass_epochs(&fs, &rig, 2);
        fs.lose(&rig, 1);
        let store: StoreRef = Arc::new(old.open());
        fs.maintenance
            .joining()
            .join(JoinAs::Returning, &store)
            .unwrap();
        assert!(fs.transactions.members().epochs().stale().is_empty());
        crashes.borrow_mut().push(cut());
        ControlFlow::Continue(())
    });
    assert_eq!(unverified(&fs), [BACK]);
    crashes.get_mut().push(cut());
    for (number, rig) in crashes.into_inner().into_iter().enumerate() {
        let context = format!("crash {number}");
        let fs = rig.open(&[]);
        assert_eq!(unverified(&fs), [BACK], "{context}");
        let restarted = scrub_with(&fs, 1, || ControlFlow::Break(()));
        assert_eq!(restarted.bytes_passed, 0, "{context}");
        assert_mends(&fs, &rig, &model, &context);
    }
}

/// It is known to be old by a superblock that was rewritten since, which is not known after a crash.
#[test]
fn before_an_old_copy_takes_part_it_is_durable_that_it_is_one() {
    let base = Rig::new(2, 1, 3);
    live(&base);
    for call in 1.. {
        let mut rig = base.fork();
        let old = rig.disks[1].fork();
        let plan = FaultPlan::new();
        let mut stores = rig.stores(&[]);
        stores.push(Arc::new(old.open()));
        let mut stores = FaultStore::wrap_all(stores, &plan);
        let joining = stores.pop().unwrap();
        let fs = TestFs::open(stores, Access::ReadWrite).unwrap();
        assert!(rig.disks[1].corrupt(files::SUPERBLOCK, 0, |slot| slot.fill(0xee), 64));
        scrub(&fs);
        fs.lose(&rig, 1);
        plan.add(power_cut_at(call));
        let joined = fs.maintenance.joining().join(JoinAs::Returning, &joining);
        // It is missing until then, and fails with all others.
        let takes_part = fs.transactions.members().status()[1].state != MemberState::Missing;
        let struck = plan.triggered() > 0;
        drop(fs);
        rig.disks[1] = old;
        rig.cut(CutPolicy::Drop);
        let is_known = unverified(&rig.open(&[])) == [BACK];
        assert!(is_known || !takes_part, "cut {call}");
        if !struck {
            joined.unwrap();
            assert!(is_known && call > 10, "only {call} calls");
            break;
        }
    }
}

/// Opening replaces the journal that tells it is old.
#[test]
fn a_power_cut_while_a_volume_with_an_old_copy_is_opened_leaves_it_known() {
    let (base, model, _) = one_stale_copy();
    for policy in [CutPolicy::Drop, CutPolicy::Keep] {
        for call in 1.. {
            let rig = base.fork();
            let plan = FaultPlan::new();
            let cut = cauchyfs_testkit::power_cut_at(call);
            plan.add(cut.lasting());
            let opened = rig.open_with_faults(&plan);
            let struck = plan.triggered() > 0;
            drop(opened);
            rig.cut(policy);
            let fs = rig.open(&[]);
            assert_eq!(unverified(&fs), [BACK], "cut {call}, {policy:?}");
            assert_holds(&fs, &model, &format!("cut {call}, {policy:?}"));
            if !struck {
                assert!(call > 10, "only {call} calls");
                break;
            }
        }
    }
}

/// It died, and no member came or went since the copy was made.
#[test]
fn a_copy_from_before_superblocks_were_renewed_is_recognised() {
    let base = Rig::new(2, 1, 3);
    let (mut model, _) = live(&base);
    let tick = |fs: &TestFs| {
        fs.transactions.clock.make_checkpoint_due();
        fs.transactions.clock().tick().unwrap();
    };
    let superblock = |rig: &Rig| {
        let disk = rig.disks[1].open();
        let mut bytes = vec![0; disk.open_len(files::SUPERBLOCK).unwrap() as usize];
        disk.read_at(files::SUPERBLOCK, 0, &mut bytes).unwrap();
        bytes
    };
    let write = |fs: &TestFs, model: &mut Model, file: u64| {
        let bytes = pattern(file, 60_000);
        fs.write(file, &bytes).unwrap();
        model.insert(file, bytes);
        fs.sync().unwrap();
    };
    let mut rig = base;
    let fs = rig.open(&[]);
    let old = rig.disks[1].fork();
    let before = superblock(&rig);
    tick(&fs);
    assert!(superblock(&rig) == before, "nothing was written");
    write(&fs, &mut model, 500);
    tick(&fs);
    let renewed = superblock(&rig);
    assert!(renewed != before);
    write(&fs, &mut model, 501);
    tick(&fs);
    assert!(superblock(&rig) == renewed, "that was not long ago");
    fs.lose(&rig, 1);
    drop(fs);
    rig.disks[1].fail(None);
    rig.cut(CutPolicy::Drop);
    assert_eq!(
        unverified(&rig.fork().open(&[])),
        [],
        "it is as it was left"
    );
    rig.disks[1] = old;
    let fs = rig.open(&[]);
    assert_eq!(unverified(&fs), [BACK]);
    assert_mends(&fs, &rig, &model, "put back");
}

/// A member that comes in its place has nothing from an earlier time.
#[test]
fn a_stale_copy_is_forgotten_with_its_place() {
    let (mut rig, model, _) = one_stale_copy();
    let fs = rig.open(&[]);
    fs.lose(&rig, 1);
    rig.disks[1] = MemDisk::new("new", DISK);
    let store: StoreRef = Arc::new(rig.disks[1].open());
    fs.maintenance
        .joining()
        .join(JoinAs::InPlaceOf(BACK), &store)
        .unwrap();
    assert_eq!(unverified(&fs), []);
    fs.rebuild().unwrap();
    assert_eq!(fs.redundancy()[0].0, 1);
    drop(fs);
    rig.cut(CutPolicy::Drop);
    let fs = rig.open(&[]);
    assert_eq!(unverified(&fs), []);
    fs.assert_shards_lie_on(&rig, &[], "replaced");
    assert_holds(&fs, &model, "replaced");
}

/// A read-only open counts like a mount.
#[test]
fn an_old_copy_counts_for_nothing_on_a_read_only_mount_either() {
    let base = Rig::new(4, 2, 6);
    let (_, backups) = live(&base);
    for backup in &backups[4..] {
        for back in 0..6 {
            let mut rig = base.fork();
            rig.disks[back] = backup.disks[back].fork();
            let look = TestFs::open(rig.fork().stores(&[]), Access::ReadOnly).unwrap();
            let fs = rig.open(&[]);
            let unverified = |fs: &TestFs| -> Vec<_> {
                let members = fs.transactions.members().stale_copies().unverified();
                members.into_keys().collect()
            };
            assert_eq!(unverified(&look), unverified(&fs), "{back}");
            assert_eq!(look.redundancy(), fs.redundancy(), "{back}");
        }
    }
}
