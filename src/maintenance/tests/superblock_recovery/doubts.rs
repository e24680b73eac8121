//! Directories whose journals end close to one another: some are up to date, and some only look so.

use super::*;

fn is_refused(error: &CommitError) -> bool {
    let CommitError::Members(error) = error else {
        return false;
    };
    matches!(**error, MembersError::OldSuperblocks { .. })
}

/// One record is enough to be ahead by, where it is from an epoch that those do not know that have their superblocks.
#[test]
fn one_record_of_a_later_epoch_is_not_lost_with_the_superblocks_of_its_holders() {
    for (data, parity, behind) in [(1, 1, 0), (1, 1, 1), (2, 1, 2)] {
        for crashes in [false, true] {
            let context = format!("{data}+{parity}, {behind} left behind, crash: {crashes}");
            let rig = Rig::new(data, parity, data + parity);
            let fs = rig.open(&[]);
            let mut model = Model::from([(1, pattern(1, 50_000))]);
            fs.write(1, &model[&1]).unwrap();
            fs.sync().unwrap();
            fs.lose(&rig, behind);
            model.insert(2, pattern(2, 9_000));
            fs.write(2, &model[&2]).unwrap();
            fs.sync().unwrap();
            let left = if crashes {
                let left = rig.fork();
                left.cut(CutPolicy::Drop);
                left
            } else {
                fs.close();
                rig.fork()
            };
            left.disks[behind].fail(None);
            let ahead: Vec<_> = (0..data + parity).filter(|disk| *disk != behind).collect();
            lose_superblocks(&left, &ahead);
            let opened = TestFs::open(left.fork().stores(&[]), Access::ReadWrite);
            let error = opened.err().unwrap_or_else(|| panic!("{context}"));
            if data > parity {
                // Too few are left, and the others cannot be made from these.
                let error = identify(&left).unwrap_err();
                assert!(is_refused(&error), "{context}: {error}");
                let error = open_recovering(&left, &claim_of(&ahead)).err().unwrap();
                assert!(is_refused(&error), "{context}: {error}");
                continue;
            }
            assert!(is_refused(&error), "{context}: {error}");
            let (found, others) = identify(&left).unwrap();
            assert_eq!((&found, others), (&claim_of(&ahead), vec![]), "{context}");
            let fs = open_recovering(&left, &found).unwrap();
            assert_holds(&fs, &model, &context);
            fs.close();
            let fs = left.open_in(&[], &context);
            assert_holds(&fs, &model, &context);
            fs.assert_shards_lie_on(&left, &[], &context);
            fs.close();
        }
    }
}

/// A member that fails while a record is appended is marked faulted, although that record names the epoch before.
#[test]
fn the_volume_does_not_open_without_the_directory_that_has_the_last_record() {
    let base = Rig::new(1, 1, 2);
    let fs = base.open(&[]);
    fs.write(1, &pattern(1, 50_000)).unwrap();
    fs.close();
    let base = base.fork();
    let change = key::xattr(Ino(7), b"changed");
    for is_first in [true, false] {
        let context = format!("first record of its generation: {is_first}");
        let rig = base.fork();
        let plan = FaultPlan::new();
        let fs = rig.open_with_faults(&plan).unwrap();
        if !is_first {
            fs.write(2, &pattern(2, 9_000)).unwrap();
            fs.sync().unwrap();
        }
        let failing = Scope::MemberKind(0, CallKind::Write);
        plan.add(Fault::at(1, Effect::Eio).of(failing).lasting());
        let mut batch = Batch::default();
        batch.put(change.clone(), Marker.encode());
        fs.transactions.apply(batch).unwrap();
        fs.sync().unwrap();
        assert_eq!(plan.triggered(), 1, "{context}: more than the append");
        let left = rig.fork();
        left.cut(CutPolicy::Drop);
        lose_superblocks(&left, &[1]);
        let opened = TestFs::open(left.fork().stores(&[]), Access::ReadWrite);
        let error = opened.err().unwrap_or_else(|| panic!("{context}"));
        assert!(is_refused(&error), "{context}: {error}");
        let (found, others) = identify(&left).unwrap();
        assert_eq!((&found, others), (&claim_of(&[1]), vec![]), "{context}");
        let fs = open_recovering(&left, &found).unwrap();
        assert!(
            fs.transactions.get(&change).unwrap().is_some(),
            "{context}: lost"
        );
        fs.close();
    }
}

/// Records of an epoch that is over are no reason to refuse members that have seen its end.
#[test]
fn a_member_absent_during_writes_is_mounted_once_it_returns() {
    let rig = Rig::new(1, 1, 2);
    let fs = rig.open(&[]);
    let model = Model::from([(1, pattern(1, 50_000))]);
    fs.write(1, &model[&1]).unwrap();
    fs.close();
    let fs = rig.open(&[1]);
    let change = |number: u8| key::xattr(Ino(7), &[number]);
    for number in 0..10 {
        let mut batch = Batch::default();
        batch.put(change(number), Marker.encode());
        fs.transactions.apply(batch).unwrap();
        fs.sync().unwrap();
    }
    fs.close();
    rig.open(&[]).close();
    let rig = rig.fork();
    lose_superblocks(&rig, &[0]);
    let fs = rig.open_in(&[], "beside the other");
    assert_holds(&fs, &model, "beside the other");
    assert!(fs.transactions.get(&change(9)).unwrap().is_some());
    fs.close();
}

/// Wherever the power goes while records are written, half of the members are enough to make the superblocks of the
/// others.
#[test]
fn superblocks_are_recovered_after_a_power_cut_at_any_write_of_records() {
    for (data, parity) in [(4, 2), (1, 1)] {
        let base = Rig::new(data, parity, data + parity);
        let fs = base.open(&[]);
        let first = pattern(1, 50_000);
        fs.write(1, &first).unwrap();
        fs.close();
        let base = base.fork();
        let count = data + parity;
        let halves = [
            (0..count / 2).collect::<Vec<_>>(),
            (count / 2..count).collect(),
        ];
        let mut short = 0;
        for write in 1.. {
            let rig = base.fork();
            let plan = FaultPlan::new();
            let fs = rig.open_with_faults(&plan).unwrap();
            let scope = Scope::Kind(CallKind::Write);
            plan.add(Fault::at(write, Effect::PowerCut).of(scope).lasting());
            let mut model = Model::from([(1, first.clone())]);
            for file in 2..5 {
                let bytes = pattern(file, 3_000);
                if fs.write(file, &bytes).and_then(|()| fs.sync()).is_ok() {
                    model.insert(file, bytes);
                }
            }
            if plan.triggered() == 0 {
                break;
            }
            drop(fs);
            let left = rig.fork();
            left.cut(CutPolicy::Keep);
            for lost in &halves {
                let context = format!("{data}+{parity}, write {write}, {lost:?} lost");
                let left = left.fork();
                lose_superblocks(&left, lost);
                let (found, others) = identify(&left).unwrap_or_else(|e| panic!("{context}: {e}"));
                assert_eq!((&found, others), (&claim_of(lost), vec![]), "{context}");
                let fs =
                    open_recovering(&left, &found).unwrap_or_else(|e| panic!("{context}: {e}"));
                assert_holds(&fs, &model, &context);
                let doubted = stale_copies(&fs);
                assert!(doubted.iter().all(|disk| lost.contains(disk)), "{context}");
                short += doubted.len();
                fs.close();
                let fs = left.open_in(&[], &context);
                assert_holds(&fs, &model, &context);
                assert_eq!(stale_copies(&fs), doubted, "{context}");
                let go_on =
                    |_: &crate::maintenance::ScrubStatus| std::ops::ControlFlow::Continue(());
                fs.maintenance
                    .scrubber
                    .scrub(&NoLocks, None, go_on)
                    .unwrap();
                assert_eq!(stale_copies(&fs), [0; 0], "{context}");
                fs.assert_shards_lie_on(&left, &[], &context);
                fs.close();
            }
        }
        assert!(short > 0, "{data}+{parity}: nobody lacked a record");
    }
}

/// A newly created superblock is newer than all copies of the one that it replaces.
#[test]
fn a_stale_copy_is_recognised_after_a_superblock_was_recovered() {
    let base = Rig::new(2, 1, 3);
    for round in 0..3 {
        for (file, away) in [(1, vec![0]), (2, vec![])] {
            let fs = base.open(&away);
            fs.write(file, &pattern(10 * file + round, 9_000)).unwrap();
            fs.close();
        }
    }
    let backup = base.fork();
    for is_made in [false, true] {
        let context = format!("made restarted: {is_made}");
        let rig = backup.fork();
        if is_made {
            lose_superblocks(&rig, &[0]);
            let (found, _) = identify(&rig).unwrap();
            open_recovering(&rig, &found).unwrap().close();
        }
        let fs = rig.open(&[]);
        let mut model = Model::new();
        for file in 10..24 {
            model.insert(file, pattern(file, 20_000));
            fs.write(file, &model[&file]).unwrap();
            fs.sync().unwrap();
        }
        fs.transactions.members().epochs().renew_superblocks();
        fs.lose(&rig, 0);
        fs.write(40, &pattern(40, 20_000)).unwrap();
        fs.close();
        let mut mixed = rig.fork();
        mixed.disks[0] = backup.disks[0].fork();
        let fs = mixed.open_in(&[], &context);
        assert_eq!(stale_copies(&fs), [0], "{context}");
        assert_holds(&fs, &model, &context);
        assert!(fs.redundancy().iter().any(|row| row.0 < 1), "{context}");
        fs.close();
    }
}

/// Bytes that nothing names may be of the branch that went on, as may those that are named.
#[test]
fn a_directory_of_a_half_stays_as_it_is_if_nothing_in_it_names_the_volume() {
    let (base, _) = written(2, 2, 4, false);
    let apart = base.fork();
    let fs = apart.open(&[0, 1]);
    for file in 50..59 {
        fs.write(file, &pattern(file, 30_000)).unwrap();
        fs.sync().unwrap();
    }
    fs.close();
    let mut mixed = base.fork();
    for disk in [2, 3] {
        mixed.disks[disk] = apart.disks[disk].fork();
    }
    lose_superblocks(&mixed, &[2, 3]);
    let store = mixed.disks[3].open();
    let [one, other] = files::JOURNALS;
    for name in [
        one,
        other,
        files::INDEX,
        files::BALLAST,
        files::DATA_BALLAST,
    ] {
        store.remove(name).unwrap();
    }
    let before = store.list(files::SEGMENTS).unwrap();
    assert!(!before.is_empty());
    drop(store);
    let stores = mixed.stores(&[2]);
    let asked =
        crate::maintenance::identify_members(&stores, &options(Access::ReadOnly), &executor());
    let (found, others) = asked.unwrap();
    assert_eq!(
        (found, others.len()),
        (RecoveredMembers::new(), 1),
        "{others:?}"
    );
    let reason = others[0].reason.to_string();
    assert!(
        reason.contains("whether the volume went on there"),
        "{reason}"
    );
    let options = options(Access::ReadWrite);
    let opened = Maintenance::open_recovering(stores, &claim_of(&[3]), &options, executor());
    let error = opened.err().unwrap();
    assert!(is_refused(&error), "{error}");
    let after = mixed.disks[3].open().list(files::SEGMENTS).unwrap();
    assert_eq!(after, before);
}

/// An unreadable directory is left out, and no other one because of it.
#[test]
fn a_failing_directory_does_not_stop_the_superblock_recovery_of_others() {
    let (rig, model) = written(4, 2, 6, false);
    lose_superblocks(&rig, &[0, 1, 2]);
    let ask = |plan: &FaultPlan| {
        let stores = FaultStore::wrap_all(rig.stores(&[]), plan);
        crate::maintenance::identify_members(&stores, &options(Access::ReadOnly), &executor())
    };
    let plan = FaultPlan::new();
    plan.record();
    assert_eq!(ask(&plan).unwrap().0, claim_of(&[0, 1, 2]));
    let log = plan.take_log();
    let of_first = |kind| {
        let calls = log
            .iter()
            .filter(|call| (call.member, call.kind) == (0, kind));
        calls.map(|call| call.name.clone()).collect::<Vec<_>>()
    };
    // The last listing is that of its segments, and what is read of one comes after the journal and the index.
    let lists = of_first(CallKind::List).len() as u64;
    let reads = of_first(CallKind::Read);
    let first = reads
        .iter()
        .position(|name| files::parse_segment(name).is_some());
    let first = first.expect("shards are read") as u64 + 1;
    for (kind, call) in [(CallKind::List, lists), (CallKind::Read, first)] {
        let context = format!("{kind:?} {call} fails");
        let plan = FaultPlan::new();
        let scope = Scope::MemberKind(0, kind);
        plan.add(Fault::at(call, Effect::Eio).of(scope).lasting());
        let (found, others) = ask(&plan).unwrap_or_else(|e| panic!("{context}: {e}"));
        assert!(plan.triggered() > 0, "{context}");
        assert_eq!(found, claim_of(&[1, 2]), "{context}");
        let [other] = &others[..] else {
            panic!("{context}: {others:?}");
        };
        assert_eq!(other.path, "disk0", "{context}");
        assert!(
            other.to_string().contains("nput/output"),
            "{context}: {other:?}"
        );
        let fs = open_recovering(&rig.fork(), &found).unwrap();
        assert_holds(&fs, &model, &context);
        fs.close();
    }
}
