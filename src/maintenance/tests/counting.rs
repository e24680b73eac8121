//! The counts of `status`.

use std::time::Instant;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::store::{Effect, Fault, Scope};

/// The bytes of all rows, and their stripes.
fn totals(fs: &TestFs) -> (u64, u64) {
    let counted = fs.maintenance.redundancy.redundancy().unwrap();
    let rows = counted.rows.iter();
    rows.fold((0, 0), |(bytes, stripes), row| {
        (bytes + row.bytes, stripes + row.stripes)
    })
}

#[test]
fn bytes_that_no_file_holds_any_more_are_not_counted() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    let sizes: Vec<usize> = (0..40).map(|file| 3000 + 700 * file).collect();
    for (file, size) in (0..).zip(&sizes) {
        fs.write(file, &pattern(file, *size)).unwrap();
    }
    fs.transactions.checkpoint().unwrap();
    let live = |kept: fn(usize) -> bool| {
        let sizes = sizes.iter().enumerate();
        let kept = sizes.filter(|(file, _)| kept(*file));
        kept.map(|(_, size)| *size as u64).sum::<u64>()
    };
    assert_eq!(totals(&fs).0, live(|_| true));
    for file in (0..40).filter(|file| file % 4 != 0) {
        fs.remove(file).unwrap();
    }
    fs.sync().unwrap();
    assert_eq!(totals(&fs).0, live(|file| file % 4 == 0));
    // Stripes that are dead and not yet freed hold nothing that could be lost.
    for file in (0..40).filter(|file| file % 4 == 0) {
        fs.remove(file).unwrap();
    }
    fs.sync().unwrap();
    assert!(!fs.stripes().is_empty());
    assert_eq!(totals(&fs), (0, 0));
}

#[test]
fn bytes_that_files_share_count_once() {
    let rig = Rig::new(1, 1, 2);
    let fs = rig.open(&[]);
    fs.write(1, &pattern(1, UNIT)).unwrap();
    let (end, extent) = fs.extents(1).unwrap()[0];
    // The same bytes, and a part of them, in two more files.
    for (file, len) in [(2, extent.len), (3, extent.len / 2)] {
        let shared = Extent { len, ..extent };
        let backref = Backref {
            len,
            stripe_offset: extent.stripe_offset,
        };
        let mut batch = Batch::default();
        batch.put(key::extent(Ino(file), len), shared.encode());
        batch.put(
            key::backref(extent.stripe, Ino(file), len),
            backref.encode(),
        );
        fs.transactions.apply(batch).unwrap();
    }
    fs.transactions.checkpoint().unwrap();
    assert_eq!(end, UNIT as u64);
    assert_eq!(totals(&fs), (UNIT as u64, 1));
}

/// Callers that wait during a count share the next one: each would otherwise wait for all others.
#[test]
fn a_count_begun_after_the_request_answers_it() {
    let rig = Rig::new(1, 1, 2);
    let plan = FaultPlan::new();
    let fs = rig.open_with_faults(&plan).unwrap();
    plan.record();
    let counts = |count: &dyn Fn()| {
        let _before = plan.take_log();
        count();
        let calls = plan.take_log();
        calls.iter().any(|call| call.kind == CallKind::List)
    };
    let asked = Instant::now();
    assert!(
        counts(&|| drop(fs.maintenance.redundancy.redundancy())),
        "the first"
    );
    assert!(
        !counts(&|| drop(fs.maintenance.redundancy.redundancy())),
        "nothing changed"
    );
    fs.write(1, &pattern(1, 10 * UNIT)).unwrap();
    fs.sync().unwrap();
    let wait = || drop(fs.maintenance.redundancy.redundancy_since(asked));
    assert!(!counts(&wait), "for one who waited for the first");
    assert!(
        counts(&|| drop(fs.maintenance.redundancy.redundancy())),
        "something changed"
    );
}

#[test]
fn stripes_written_during_a_count_are_not_counted_as_lost() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    fs.write(0, &pattern(0, 100_000)).unwrap();
    fs.sync().unwrap();
    let before = fs.transactions.stripes.segments().records().len();
    let counted = fs.maintenance.redundancy.redundancy_with(|| {
        for file in 1..200 {
            fs.write(file, &pattern(file, 50_000)).unwrap();
        }
        fs.sync().unwrap();
    });
    assert!(fs.transactions.stripes.segments().records().len() > before);
    let counted = counted.unwrap();
    assert_eq!(counted.rows.len(), 1, "{:?}", counted.rows);
    assert_eq!(counted.rows[0].losses_tolerated, 1);
}

/// Opens a volume in which a hanging member is never marked faulted.
fn open_patiently(rig: &Rig, plan: &FaultPlan) -> TestFs {
    let stores = FaultStore::wrap_all(rig.stores(&[]), plan);
    let never = Duration::from_secs(3600);
    let executor = Arc::new(Executor::new(ExecutorKind::Threads, never));
    TestFs::open_on(stores, Access::ReadWrite, executor).unwrap()
}

#[test]
fn counting_does_not_wait_for_a_member_that_hangs() {
    let rig = Rig::new(2, 1, 3);
    let plan = FaultPlan::new();
    let fs = open_patiently(&rig, &plan);
    fs.write(1, &pattern(1, 50_000)).unwrap();
    fs.sync().unwrap();
    let before = totals(&fs);
    assert!(before.0 > 0);
    fs.write(2, &pattern(2, 300)).unwrap();
    fs.sync().unwrap();
    let hanging = Fault::at(1, Effect::Hang).of(Scope::MemberKind(1, CallKind::List));
    plan.add(hanging.lasting());
    let counted = fs.redundancy();
    assert_eq!(plan.triggered(), 1, "it was asked");
    assert!(counted.iter().all(|row| row.0 == 1), "{counted:?}");
    assert!(totals(&fs) >= before);
    plan.clear();
    plan.release();
}

/// A busy disk is slow to list its files, and still has all that it has acknowledged.
#[test]
fn stripes_written_while_a_member_is_slow_to_answer_count() {
    let rig = Rig::new(2, 1, 3);
    let plan = FaultPlan::new();
    let fs = open_patiently(&rig, &plan);
    fs.write(1, &pattern(1, 50_000)).unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.redundancy().len(), 1);
    let hanging = Fault::at(1, Effect::Hang).of(Scope::MemberKind(1, CallKind::List));
    plan.add(hanging.lasting());
    let known = fs.transactions.stripes.segments().records().len();
    for round in 0..2 {
        fs.write(2 + round, &pattern(round, 90_000)).unwrap();
        fs.transactions.checkpoint().unwrap();
        let counted = fs.redundancy();
        assert!(
            counted.iter().all(|row| row.0 == 1),
            "round {round}: {counted:?}"
        );
        assert!(
            !fs.maintenance.redundancy.may_lack_shards().unwrap(),
            "round {round}"
        );
    }
    assert!(fs.transactions.stripes.segments().records().len() > known);
    plan.clear();
    plan.release();
}

/// Takes away, gives back, damages and changes what is counted.
fn disturb(fs: &TestFs, rig: &Rig, random: &mut StdRng, lost: &mut Option<usize>) -> String {
    let disk = random.random_range(0..4);
    let file = random.random_range(0..12);
    match random.random_range(0..12) {
        0..5 => {
            let len = random.random_range(1..60_000);
            fs.write(file, &pattern(random.random(), len)).unwrap();
            format!("write {file}: {len}")
        }
        5..7 => {
            fs.remove(file).unwrap();
            fs.sync().unwrap();
            fs.maintenance.reaper.reap().unwrap();
            format!("remove {file}")
        }
        7 => {
            fs.transactions.checkpoint().unwrap();
            "checkpoint".to_owned()
        }
        8 => {
            if let Some(disk) = lost.take() {
                fs.take_back(rig, disk);
                format!("{disk} is back")
            } else {
                fs.lose(rig, disk);
                *lost = Some(disk);
                format!("{disk} is lost")
            }
        }
        9 => {
            let store = rig.disks[disk].open();
            if *lost != Some(disk)
                && let Some((name, _)) = store.list(files::SEGMENTS).unwrap().pop()
            {
                store.remove(&name).unwrap();
            }
            format!("{disk} lacks a file")
        }
        10 => {
            let progress = fs.rebuild().unwrap();
            format!("rebuild: {progress:?}")
        }
        _ => {
            let stripe = fs.stripes().first().copied().unwrap_or(StripeId(1));
            let bytes = 0..7;
            fs.transactions
                .stripes
                .damage()
                .unrecoverable()
                .add(stripe, std::slice::from_ref(&bytes));
            format!("{stripe} cannot be decoded")
        }
    }
}

#[test]
fn an_incremental_count_equals_a_complete_one() {
    for seed in 0..12 {
        let mut random = StdRng::seed_from_u64(seed);
        let rig = Rig::new(2, 1, 4);
        let fs = rig.open(&[]);
        let mut lost = None;
        for step in 0..60 {
            let what = disturb(&fs, &rig, &mut random, &mut lost);
            if random.random() {
                fs.sync().unwrap();
            }
            let now = fs.maintenance.redundancy.redundancy_now().unwrap();
            let restarted = fs.maintenance.redundancy.redundancy_with(|| ()).unwrap();
            assert_eq!(now, restarted, "seed {seed}, step {step}: {what}");
        }
    }
}

#[test]
fn only_changed_stretches_are_counted_again() {
    let rig = Rig::new(2, 1, 4);
    let fs = rig.open(&[]);
    for file in 0..40 {
        fs.write(file, &pattern(file, 50_000)).unwrap();
    }
    fs.transactions.checkpoint().unwrap();
    assert_eq!(
        fs.maintenance.redundancy.outdated_stretches(),
        None,
        "nothing is counted"
    );
    fs.maintenance.redundancy.redundancy_now().unwrap();
    let all = fs.stripes().len();
    assert!(all > 40);
    assert_eq!(fs.maintenance.redundancy.outdated_stretches(), Some(0));
    fs.write(1, b"another").unwrap();
    fs.sync().unwrap();
    let few = fs.maintenance.redundancy.outdated_stretches().unwrap();
    assert!((1..10).contains(&few), "{few}");
    let unknown = fs.maintenance.redundancy.stripes_of_unknown_life();
    assert!((1..20).contains(&unknown), "{unknown}");
    fs.maintenance.redundancy.redundancy_now().unwrap();
    // Each segment has shards on three of the four.
    fs.lose(&rig, 3);
    let many = fs.maintenance.redundancy.outdated_stretches().unwrap();
    assert!(many > all / 8, "{many} of {all}");
}

#[test]
fn live_bytes_are_not_looked_up_again_when_files_come_and_go_on_members() {
    let rig = Rig::new(2, 1, 4);
    let fs = rig.open(&[]);
    for file in 0..40 {
        fs.write(file, &pattern(file, 50_000)).unwrap();
    }
    fs.transactions.checkpoint().unwrap();
    let whole = fs.maintenance.redundancy.redundancy_now().unwrap();
    let all = fs.stripes().len();
    fs.lose(&rig, 3);
    let lost = fs.maintenance.redundancy.outdated_stretches().unwrap();
    assert!(lost > all / 8, "{lost} of {all}");
    assert_eq!(fs.maintenance.redundancy.stripes_of_unknown_life(), 0);
    fs.rebuild().unwrap();
    let moved = fs.maintenance.redundancy.outdated_stretches().unwrap();
    assert!(moved > all / 8, "{moved} of {all}");
    assert_eq!(fs.maintenance.redundancy.stripes_of_unknown_life(), 0);
    let rebuilt = fs.maintenance.redundancy.redundancy_with(|| ()).unwrap();
    assert_eq!(rebuilt, whole);
}

/// Each stripe dies before it goes, and may be counted between the two.
#[test]
fn the_live_bytes_of_removed_stripes_are_forgotten() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    for round in 0..5 {
        for file in 0..20 {
            fs.write(file, &pattern(file + round, 50_000)).unwrap();
        }
        fs.transactions.checkpoint().unwrap();
        fs.maintenance.redundancy.redundancy_now().unwrap();
        let of_all = fs.maintenance.redundancy.stretches_of_known_life();
        assert!(of_all > 20, "round {round}: {of_all}");
        for file in 0..20 {
            fs.remove(file).unwrap();
        }
        fs.sync().unwrap();
        fs.maintenance.redundancy.redundancy_now().unwrap();
        assert!(!fs.stripes().is_empty(), "they are dead, and there");
        while !fs.stripes().is_empty() {
            fs.maintenance.reaper.reap().unwrap();
            fs.sync().unwrap();
        }
        fs.maintenance.redundancy.redundancy_now().unwrap();
        assert_eq!(
            fs.maintenance.redundancy.stretches_of_known_life(),
            0,
            "round {round}"
        );
    }
}
