//! Reading with members missing.

use super::*;
use crate::maintenance::compaction::Compacted;
use crate::store::{Effect, Fault, Scope};

/// Files of every kind of length, in an order that leaves short stripes between full ones.
fn fill(fs: &TestFs) -> Model {
    let mut model = Model::new();
    for (file, len) in [1, 63, 4_096, 5_000, 100, 70_000, 3, 16_384, 120_001]
        .into_iter()
        .enumerate()
    {
        let data = pattern(file as u64, len);
        fs.write(file as u64, &data).unwrap();
        model.insert(file as u64, data);
        if file % 3 == 2 {
            fs.sync().unwrap();
        }
    }
    model
}

fn every_loss_reads_back(data: usize, parity: usize, count: usize) {
    let rig = Rig::new(data, parity, count);
    every_loss_of(&rig, parity, &format!("{data}+{parity} of {count}"));
}

/// Reads everything with every set of so many members lost, and writes on.
fn every_loss_of(rig: &Rig, losses: usize, named: &str) {
    let fs = rig.open(&[]);
    let model = fill(&fs);
    assert_holds(&fs, &model, "before closing");
    fs.close();
    for lost in subsets(rig.disks.len(), losses) {
        let fs = rig.fork().open(&lost);
        assert_holds(&fs, &model, &format!("{named}, lost {lost:?}"));
        let worst = fs.redundancy()[0].0;
        assert!(
            worst >= (losses - lost.len()) as i16,
            "lost {lost:?}: {worst}"
        );
        // And it still takes new files.
        fs.write(100, &pattern(100, 50_000)).unwrap();
        fs.sync().unwrap();
        assert_eq!(fs.read(100).unwrap(), pattern(100, 50_000), "lost {lost:?}");
    }
}

#[test]
fn any_parity_count_of_members_may_be_missing_1_plus_1() {
    every_loss_reads_back(1, 1, 2);
}

#[test]
fn any_parity_count_of_members_may_be_missing_4_plus_2() {
    every_loss_reads_back(4, 2, 6);
}

#[test]
fn any_parity_count_of_members_may_be_missing_2_plus_3() {
    every_loss_reads_back(2, 3, 5);
}

#[test]
fn any_three_members_may_be_missing_of_a_random_code_4_plus_4() {
    every_loss_of(&Rig::random(8), 3, "random 4+4 of 8");
}

#[test]
fn any_parity_count_of_members_may_be_missing_where_there_are_more_than_a_stripe_needs() {
    every_loss_reads_back(3, 1, 6);
    every_loss_reads_back(2, 2, 7);
}

#[test]
fn a_healthy_volume_counts_full_redundancy_only() {
    for (data, parity, count) in [(1, 1, 2), (4, 2, 6), (2, 3, 5), (3, 2, 9)] {
        let fs = Rig::new(data, parity, count).open(&[]);
        fill(&fs);
        fs.transactions.checkpoint().unwrap();
        let counted = fs.maintenance.redundancy.redundancy().unwrap();
        let rows = &counted.rows;
        assert_eq!(rows.len(), 1, "{rows:?}");
        assert_eq!(rows[0].losses_tolerated, parity as i16);
        assert_eq!(rows[0].stripes, fs.stripes().len() as u64);
    }
}

#[test]
fn one_loss_too_many_is_an_error_and_never_wrong_bytes() {
    let rig = Rig::new(2, 1, 5);
    let fs = rig.open(&[]);
    let model = fill(&fs);
    fs.close();
    let fs = rig.open(&[]);
    // The first two also hold the index, and so get segments last.
    rig.disks[3].delete();
    rig.disks[4].delete();
    let mut lost = std::collections::BTreeSet::new();
    for (&file, expected) in &model {
        match fs.read(file) {
            Ok(bytes) => assert!(bytes == *expected, "file {file}"),
            Err(_) => {
                lost.insert(Ino(file));
            }
        }
    }
    assert!(
        !lost.is_empty(),
        "two of five members held no two shards of any stripe"
    );
    let counted = fs.maintenance.redundancy.redundancy().unwrap();
    assert_eq!(counted.rows[0].losses_tolerated, -1);
    assert_eq!(counted.rows[0].stripes, counted.unrecoverable.len() as u64);
    assert!(counted.lists_all_lost());
    let listed = fs
        .maintenance
        .redundancy
        .inodes_in(&counted.unrecoverable, 1000)
        .unwrap();
    assert_eq!(
        listed, lost,
        "those that cannot be read in full, and no others"
    );
}

#[test]
fn it_is_known_if_more_is_lost_than_is_listed() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    for file in 0..300 {
        fs.write(file, &pattern(file, UNIT)).unwrap();
    }
    fs.transactions.checkpoint().unwrap();
    fs.lose(&rig, 1);
    fs.lose(&rig, 2);
    let counted = fs.maintenance.redundancy.redundancy().unwrap();
    let listed = counted.unrecoverable.len();
    assert!(counted.rows[0].stripes > listed as u64, "{listed}");
    assert!(!counted.lists_all_lost());
    let inodes = fs
        .maintenance
        .redundancy
        .inodes_in(&counted.unrecoverable, 30)
        .unwrap();
    assert_eq!(inodes.len(), 30);
}

#[test]
fn a_stripe_that_could_not_be_read_counts_as_lost() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    let whole = pattern(1, UNIT);
    fs.write(1, &whole).unwrap();
    fs.sync().unwrap();
    fs.write(2, &pattern(2, 2 * UNIT)).unwrap();
    fs.transactions.checkpoint().unwrap();
    let stripe = fs.extents(2).unwrap().last().unwrap().1.stripe;
    // Wrong in the same block of two shards, and as long as they should be.
    let shards = fs.written_shards();
    for shard in shards.iter().filter(|s| s.stripe == stripe).take(2) {
        assert!(rig.disks[shard.disk].corrupt(&shard.name, shard.offset, |b| b.fill(0xee), 64));
    }
    let before = fs.maintenance.redundancy.redundancy().unwrap();
    assert_eq!(before.rows.len(), 1, "no reader met it yet: {before:?}");
    assert_eq!(before.rows[0].losses_tolerated, 1);
    assert!(fs.read(2).is_err());
    assert!(fs.read(1).unwrap() == whole);
    let after = fs.maintenance.redundancy.redundancy().unwrap();
    assert_eq!(after.rows[0].losses_tolerated, -1);
    let lost: Vec<StripeId> = after.unrecoverable.iter().map(|lost| lost.stripe).collect();
    assert_eq!(lost, [stripe]);
    assert_eq!(after.rows[1].losses_tolerated, 1);
}

#[test]
fn a_member_that_goes_when_too_few_are_left_is_counted_as_gone() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    fs.write(1, &pattern(1, 4 * UNIT)).unwrap();
    fs.transactions.checkpoint().unwrap();
    for (gone, tolerated) in [(0, 0), (1, -1)] {
        fs.redundancy();
        rig.disks[gone].delete();
        // The epoch cannot rise any more with the second.
        fs.transactions.members().probe();
        let counted = fs.maintenance.redundancy.redundancy().unwrap();
        assert_eq!(counted.rows[0].losses_tolerated, tolerated);
    }
}

#[test]
fn members_deleted_during_a_write_are_marked_missing_without_an_error() {
    for (data, parity, count) in [(4, 2, 6), (4, 2, 9), (1, 1, 2)] {
        let rig = Rig::new(data, parity, count);
        let fs = rig.open(&[]);
        let mut model = fill(&fs);
        for lost in 0..parity {
            rig.disks[lost].delete();
            for file in 0..4 {
                let file = 1000 + 10 * lost as u64 + file;
                let bytes = pattern(file, 30_000);
                fs.write(file, &bytes).unwrap();
                model.insert(file, bytes);
            }
            fs.sync().unwrap();
            assert_holds(
                &fs,
                &model,
                &format!("{data}+{parity} of {count}, {lost} lost"),
            );
        }
        fs.transactions.checkpoint().unwrap();
        // New stripes are at full redundancy where there are members enough.
        let newest = *fs.stripes().last().unwrap();
        let record = fs.transactions.stripe(newest).unwrap().unwrap();
        let full = Some(record.written.len()).filter(|_| count - parity >= data + parity);
        assert!(
            full.is_none_or(|written| written + data > data + parity),
            "{record:?}"
        );
        fs.close();
        let lost: Vec<usize> = (0..parity).collect();
        assert_holds(&rig.open(&lost), &model, "reopened without the lost");
    }
}

#[test]
fn a_member_that_was_away_comes_back_and_no_stale_byte_is_read() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    let mut model = fill(&fs);
    fs.close();
    let fs = rig.open(&[1]);
    for file in 0..5 {
        let bytes = pattern(500 + file, 20_000);
        fs.write(file, &bytes).unwrap();
        model.insert(file, bytes);
    }
    fs.remove(7).unwrap();
    model.insert(7, Vec::new());
    for _ in 0..4 {
        fs.sync().unwrap();
        fs.maintenance.reaper.reap().unwrap();
    }
    fs.close();
    let fs = rig.open(&[]);
    assert_holds(&fs, &model, "all members back");
    fs.close();
    // Stripes written meanwhile lack a shard until they are rebuilt, and are counted so.
    let fs = rig.open(&[]);
    assert_eq!(fs.redundancy()[0].0, 0);
    let (from, end) = key::repairs();
    let noted = fs.transactions.scan(&from, &end, usize::MAX).unwrap().len() as u64;
    assert_eq!(noted, fs.redundancy()[0].1);
}

#[test]
fn a_read_only_volume_reads_everything_and_changes_no_disk() {
    let rig = Rig::new(2, 1, 4);
    let fs = rig.open(&[]);
    let model = fill(&fs);
    fs.sync().unwrap();
    // No close: the last bytes are in the journal only.
    rig.cut(CutPolicy::Drop);
    for lost in subsets(4, 1) {
        let rig = rig.fork();
        let plan = FaultPlan::new();
        plan.record();
        let stores = FaultStore::wrap_all(rig.stores(&lost), &plan);
        let fs = TestFs::open(stores, Access::ReadOnly).unwrap();
        assert_holds(&fs, &model, &format!("lost {lost:?}"));
        assert!(matches!(fs.write(1, b"x"), Err(CommitError::ReadOnly)));
        fs.sync().unwrap();
        fs.close();
        let changing = plan.take_log().into_iter().find(|call| call.kind.changes());
        assert_eq!(changing, None, "lost {lost:?}");
    }
}

/// A member comes back to a volume that was killed before it had replaced the copy of the index that it lost with this
/// member.
#[test]
fn a_member_that_is_back_can_stand_in_for_any_other_at_once() {
    for away in 0..3 {
        let rig = Rig::new(2, 1, 3);
        let plan = FaultPlan::new();
        let fs = rig.open_with_faults(&plan).unwrap();
        let mut model = fill(&fs);
        fs.transactions.checkpoint().unwrap();
        let failing = Fault::at(1, Effect::Eio).of(Scope::Member(away));
        plan.add(failing.lasting());
        let bytes = pattern(50, 40_000);
        fs.write(50, &bytes).unwrap();
        model.insert(50, bytes);
        fs.transactions.checkpoint().unwrap();
        drop(fs);
        rig.cut(CutPolicy::Drop);
        let fs = rig.open(&[]);
        assert_eq!(fs.transactions.members().epochs().stale(), []);
        drop(fs);
        rig.cut(CutPolicy::Drop);
        for lost in 0..3 {
            let stores = rig.fork().stores(&[lost]);
            let fs = TestFs::open(stores, Access::ReadWrite)
                .unwrap_or_else(|error| panic!("{away} was away, {lost} is lost: {error}"));
            for (&file, expected) in &model {
                // Data written without the member has no redundancy.
                let lacks = file == 50 && lost != away;
                let read = fs.read(file);
                assert!(
                    read.as_ref().is_ok_and(|read| read == expected) || lacks && read.is_err(),
                    "{away} was away, {lost} is lost, file {file}: {read:?}"
                );
            }
        }
    }
}

/// Nothing answers in the name of the member before everything was read.
#[test]
fn a_read_does_not_wait_for_a_hanging_member_if_others_have_its_bytes() {
    let rig = Rig::new(4, 2, 6);
    let fs = rig.open(&[]);
    let model = fill(&fs);
    fs.close();
    for member in 0..6 {
        let plan = FaultPlan::new();
        let stores = FaultStore::wrap_all(rig.fork().stores(&[]), &plan);
        let executor = Executor::new(ExecutorKind::Threads, Duration::from_secs(600));
        let fs = TestFs::open_on(stores, Access::ReadOnly, Arc::new(executor)).unwrap();
        let space = fs.transactions.space();
        plan.add(
            Fault::at(1, Effect::Hang)
                .of(Scope::Member(member))
                .lasting(),
        );
        assert_holds(&fs, &model, &format!("member {member} hangs"));
        assert_eq!(fs.transactions.space().usable_total, space.usable_total);
        assert_eq!(
            fs.transactions.members().membership().live().len(),
            6,
            "it is not given up"
        );
        assert!(
            plan.triggered() <= 2,
            "it was asked {} times",
            plan.triggered()
        );
        plan.clear();
        plan.release();
    }
}

/// With a member to spare, what is moved out of the way of others is at full redundancy again.
#[test]
fn compaction_moves_stripes_that_lack_shards_before_deader_ones() {
    let rig = Rig::new(2, 1, 4);
    let fs = rig.open(&[]);
    for file in 0..40 {
        fs.write(file, &pattern(file, UNIT)).unwrap();
    }
    fs.transactions.checkpoint().unwrap();
    let shards = fs.written_shards();
    let on = |disk: usize| {
        let of_disk = shards.iter().filter(|shard| shard.disk == disk);
        of_disk.map(|shard| shard.stripe).collect::<Vec<_>>()
    };
    // The first stripes, which are moved first where all else is the same, keep their shards.
    let first = shards[0].stripe;
    let lost = (0..4).find(|disk| !on(*disk).is_empty() && !on(*disk).contains(&first));
    let lost = lost.expect("segments lie on different disks");
    let lacking = on(lost);
    // Half of each stripe dies.
    for file in (0..40).step_by(2) {
        fs.remove(file).unwrap();
    }
    fs.sync().unwrap();
    rig.disks[lost].delete();
    fs.transactions.members().probe();
    fs.maintenance.reaper.reap_now().unwrap();
    let before: Vec<StripeId> = fs.stripes();
    let lacking: Vec<StripeId> = lacking.into_iter().filter(|s| before.contains(s)).collect();
    assert!(!lacking.is_empty() && lacking.len() < before.len());
    let effort = crate::maintenance::compaction::Effort {
        max_live: 900,
        counts: usize::MAX,
        turns: 1,
        floor: crate::maintenance::compaction::Floor::Written,
    };
    let compaction = &fs.maintenance.room.compaction;
    let compacted = compaction.compact(&NoLocks, effort).unwrap();
    assert_eq!(compacted, Compacted::Moved);
    fs.maintenance.reaper.reap_now().unwrap();
    let moved: Vec<StripeId> = before
        .iter()
        .copied()
        .filter(|s| !fs.stripes().contains(s))
        .collect();
    let first = moved
        .iter()
        .filter(|stripe| lacking.contains(stripe))
        .count();
    assert_eq!(
        first,
        lacking.len().min(moved.len()),
        "{moved:?} of {lacking:?}"
    );
    for file in (1..40).step_by(2) {
        assert!(fs.read(file).unwrap() == pattern(file, UNIT), "file {file}");
    }
}
