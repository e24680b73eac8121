//! A member that was put back from an earlier time of the same epoch, its segment files as well.

use std::ops::ControlFlow;
use std::sync::atomic::AtomicU64;

use super::*;
use crate::commit::{Pace, ScrubStatus};
use crate::format::MemberIndex;

const ROUNDS: u64 = 7;

/// Writes, replaces and removes files, with a mount anew after every third round. Returns what is there
/// in the end, and the disks as they were before each round.
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

/// What its index says is not believed, what its segment files hold fails its checksums, and until that is
/// verified nothing of it counts.
#[test]
fn a_member_put_back_to_any_earlier_state_costs_no_more_than_its_shards() {
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
fn all_that_a_member_lacks_which_was_put_back_is_found_and_made_up_for() {
    for (data, parity, count) in [(2, 1, 3), (4, 2, 6)] {
        let base = Rig::new(data, parity, count);
        let (model, backups) = live(&base);
        assert!(
            base.fork()
                .open(&[])
                .pipeline
                .members()
                .put_back()
                .is_empty()
        );
        for (age, backup) in backups.iter().rev().enumerate() {
            for back in 0..count {
                let context = format!("{data}+{parity}: {back} put back by {age}");
                let mut rig = base.fork();
                rig.disks[back] = backup.disks[back].fork();
                let fs = rig.open(&[]);
                assert!(!fs.pipeline.members().put_back().is_empty(), "{context}");
                let go_on = |_: &ScrubStatus| ControlFlow::Continue(());
                fs.pipeline.scrub(&NoLocks, None, go_on).unwrap();
                assert!(fs.pipeline.members().put_back().is_empty(), "{context}");
                let pace = Pace {
                    bytes_per_second: &AtomicU64::new(0),
                    wait: &|_| true,
                };
                fs.pipeline.rebuild(&NoLocks, &pace).unwrap();
                fs.assert_shards_lie_on(&rig, &[], &context);
                assert_holds(&fs, &model, &context);
                fs.close();
                let fs = rig.open(&[]);
                assert!(fs.pipeline.members().put_back().is_empty(), "{context}");
            }
        }
    }
}

#[test]
fn a_scrub_that_is_stopped_leaves_what_was_put_back_to_the_next_which_begins_anew() {
    let base = Rig::new(2, 1, 3);
    let (_, backups) = live(&base);
    let mut rig = base.fork();
    rig.disks[1] = backups[0].disks[1].fork();
    let fs = rig.open(&[]);
    let tolerated = || fs.pipeline.redundancy().unwrap().rows[0].losses_tolerated;
    assert_eq!(tolerated(), 0, "what it holds counts for nothing yet");
    let stop = |_: &ScrubStatus| ControlFlow::Break(());
    fs.pipeline.scrub(&NoLocks, None, stop).unwrap();
    assert_eq!(tolerated(), 0);
    fs.close();
    // Nothing but its record tells now that it was put back.
    let fs = rig.open(&[]);
    let known: Vec<_> = fs.pipeline.members().put_back().into_keys().collect();
    assert_eq!(known, [MemberIndex(1)]);
    let go_on = |_: &ScrubStatus| ControlFlow::Continue(());
    fs.pipeline.scrub(&NoLocks, None, go_on).unwrap();
    assert!(fs.pipeline.members().put_back().is_empty());
    fs.close();
    let fs = rig.open(&[]);
    assert!(fs.pipeline.members().put_back().is_empty());
}
