//! Directories that join a volume, or return to it, while it is open.

use std::cell::Cell;
use std::ops::ControlFlow;

use super::*;
use crate::format::MemberIndex;
use crate::maintenance::ScrubStatus;
use crate::membership::{Belongings, MembersError};

mod balance;

fn fill(fs: &TestFs, first: u64, model: &mut Model) {
    for round in 0..4 {
        for (file, len) in (first + 100 * round..).zip([50_000, 63, 5_000, 70_000, 120_001]) {
            let bytes = pattern(file, len);
            fs.write(file, &bytes).unwrap();
            model.insert(file, bytes);
        }
        fs.sync().unwrap();
    }
}

fn join(fs: &TestFs, seat: JoinAs, disk: &MemDisk) -> Result<MemberIndex, CommitError> {
    let store: StoreRef = Arc::new(disk.open());
    fs.maintenance.joining().join(seat, &store)
}

fn new_disk() -> MemDisk {
    MemDisk::new("new", DISK)
}

/// Asserts that all data bears any `parity` losses, by losing them.
fn assert_bears(rig: &Rig, parity: usize, model: &Model, context: &str) {
    for lost in subsets(rig.disks.len(), parity) {
        let context = format!("{context}, then lost {lost:?}");
        let fs = TestFs::open(rig.fork().stores(&lost), Access::ReadWrite)
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_holds(&fs, model, &context);
    }
}

#[test]
fn a_new_directory_replaces_a_lost_member_and_gets_its_exact_bytes() {
    for lost in 0..6 {
        let mut rig = Rig::new(4, 2, 6);
        let fs = rig.open(&[]);
        let mut model = Model::new();
        fill(&fs, 0, &mut model);
        fs.close();
        let fs = rig.open(&[]);
        let shards: Vec<WrittenShard> = fs.written_shards();
        let of_lost = || shards.iter().filter(|shard| shard.disk == lost);
        let before: Vec<Vec<u8>> = of_lost().map(|shard| rig.bytes_of(shard)).collect();
        assert!(before.len() > 3);
        fs.close();
        let old = rig.disks[lost].clone();
        let fs = rig.open(&[lost]);
        fill(&fs, 1000, &mut model);
        rig.disks[lost] = new_disk();
        let index = MemberIndex(lost as u16);
        assert_eq!(
            join(&fs, JoinAs::InPlaceOf(index), &rig.disks[lost]).unwrap(),
            index
        );
        assert!(
            fs.transactions.members().epochs().stale().is_empty(),
            "it is admitted"
        );
        // The count reports nothing that is not there.
        assert!(fs.redundancy()[0].0 <= 1, "{:?}", fs.redundancy());
        fill(&fs, 2000, &mut model);
        fs.rebuild().unwrap();
        for (shard, before) in of_lost().zip(before) {
            assert!(rig.bytes_of(shard) == before, "{} of {lost}", shard.name);
        }
        assert_eq!(fs.redundancy()[0].0, 2);
        fs.assert_shards_lie_on(&rig, &[], "replaced");
        fs.close();
        assert_bears(&rig, 2, &model, &format!("{lost} was replaced"));
        // The old one is refused from now on.
        let mut stores = rig.fork().stores(&[]);
        stores.push(Arc::new(old.fork().open()));
        let fs = TestFs::open(stores, Access::ReadWrite).unwrap();
        assert_eq!(fs.transactions.members().unusable().len(), 1);
        assert_eq!(fs.redundancy()[0].0, 2);
    }
}

#[test]
fn an_added_directory_takes_new_data_at_once_and_lost_shards() {
    let mut rig = Rig::new(2, 2, 4);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    fill(&fs, 0, &mut model);
    fs.close();
    let fs = rig.open(&[1]);
    rig.disks.push(new_disk());
    assert_eq!(
        join(&fs, JoinAs::New, &rig.disks[4]).unwrap(),
        MemberIndex(4)
    );
    fill(&fs, 1000, &mut model);
    let newest = *fs.stripes().last().unwrap();
    let record = fs.transactions.stripe(newest).unwrap().unwrap();
    let segment = fs
        .transactions
        .stripes
        .segments()
        .record(record.segment)
        .unwrap();
    assert!(segment.slots.contains(&Some(MemberIndex(4))), "{segment:?}");
    let progress = fs.rebuild().unwrap();
    assert_eq!(progress.bytes_waiting, 0);
    assert_eq!(fs.redundancy()[0].0, 2, "{:?}", fs.redundancy());
    fs.assert_shards_lie_on(&rig, &[1], "added");
    fs.close();
    for lost in [2, 3] {
        let fs = TestFs::open(rig.fork().stores(&[1, lost]), Access::ReadWrite).unwrap();
        assert_holds(&fs, &model, &format!("1 and {lost} are away"));
    }
    // The one that was away comes back as any other does.
    let fs = rig.open(&[]);
    assert_eq!(fs.transactions.members().membership().count(), 5);
    assert_holds(&fs, &model, "all are there");
}

#[test]
fn changes_before_a_checkpoint_are_durable_on_a_directory_that_just_joined() {
    for (data, parity) in [(1, 2), (2, 1)] {
        let mut rig = Rig::new(data, parity, data + parity);
        let fs = rig.open(&[0]);
        let bytes = pattern(7, 300);
        fs.write(1, &bytes).unwrap();
        fs.sync().unwrap();
        rig.disks[0] = new_disk();
        join(&fs, JoinAs::InPlaceOf(MemberIndex(0)), &rig.disks[0]).unwrap();
        fs.rebuild().unwrap();
        drop(fs);
        rig.cut(CutPolicy::Drop);
        let model = Model::from([(1, bytes)]);
        assert_bears(&rig, parity, &model, &format!("{data}+{parity}"));
    }
}

#[test]
fn a_power_cut_at_any_call_of_joining_loses_nothing() {
    for seat in [JoinAs::InPlaceOf(MemberIndex(2)), JoinAs::New] {
        let base = Rig::new(2, 1, 3);
        let fs = base.open(&[]);
        let mut model = Model::new();
        fill(&fs, 0, &mut model);
        fs.close();
        base.open(&[2]).close();
        for call in 1.. {
            let mut rig = base.fork();
            let new = new_disk();
            let mut stores = rig.stores(&[2]);
            stores.push(Arc::new(new.open()));
            let plan = FaultPlan::new();
            let mut stores = FaultStore::wrap_all(stores, &plan);
            let joining = stores.pop().unwrap();
            let fs = TestFs::open(stores, Access::ReadWrite).unwrap();
            plan.add(power_cut_at(call));
            let joined = fs.maintenance.joining().join(seat, &joining);
            let struck = plan.triggered() > 0;
            drop(fs);
            match seat {
                JoinAs::New => rig.disks.push(new),
                _ => rig.disks[2] = new,
            }
            let away: Vec<usize> = (seat == JoinAs::New).then_some(2).into_iter().collect();
            for policy in ways_to_cut(call) {
                let rig = rig.fork();
                rig.cut(policy);
                let context = format!("{seat:?}, cut {call}, {policy:?}");
                let fs = rig.open_in(&away, &context);
                assert_holds(&fs, &model, &context);
                fs.write(9, &pattern(9, 20_000)).unwrap();
                fs.sync().unwrap();
                fs.rebuild().unwrap();
                assert_holds(&fs, &model, &context);
                let live = fs.transactions.members().membership().live();
                let is_gone = |disk: &usize| !live.contains(&MemberIndex(*disk as u16));
                let gone: Vec<usize> = (0..rig.disks.len()).filter(is_gone).collect();
                fs.assert_shards_lie_on(&rig, &gone, &context);
                fs.close();
            }
            if !struck {
                joined.unwrap();
                assert!(call > 20, "only {call} calls");
                break;
            }
        }
    }
}

/// The index has no space for the waiting changes, but the directory has joined.
#[test]
fn a_directory_that_joins_a_full_volume_takes_part_and_is_admitted_once_there_is_space() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    fill(&fs, 0, &mut model);
    let capacity = |bytes| rig.disks.iter().for_each(|disk| disk.set_capacity(bytes));
    capacity(0);
    let mut number = 0;
    while fs.transactions.meta.journal_fill() < 0.8 {
        let mut batch = Batch::default();
        batch.put(
            key::xattr(Ino(number), b"user.waits"),
            pattern(number, 3000),
        );
        fs.transactions.apply(batch).unwrap();
        number += 1;
        if number.is_multiple_of(50) {
            fs.sync().unwrap();
        }
    }
    let full = fs.transactions.checkpoint();
    assert!(matches!(full, Err(CommitError::NoSpace)), "{full:?}");
    let index = join(&fs, JoinAs::New, &new_disk()).unwrap();
    assert_eq!(fs.transactions.members().epochs().stale(), [index]);
    capacity(DISK);
    fs.transactions.checkpoint().unwrap();
    while fs.transactions.commits.refill_index(1).unwrap() {}
    assert_eq!(fs.transactions.members().epochs().stale(), []);
    assert_holds(&fs, &model, "admitted");
}

/// Data written to a directory counts as soon as it takes part, and the directory is taken into the epoch later.
#[test]
fn writes_to_a_stale_member_count_after_a_power_cut() {
    for seat in [JoinAs::InPlaceOf(MemberIndex(3)), JoinAs::New] {
        let mut rig = Rig::new(2, 1, 4);
        let mut model = Model::new();
        let fs = rig.open(&[]);
        fill(&fs, 0, &mut model);
        fs.close();
        let away: &[usize] = if seat == JoinAs::New { &[] } else { &[3] };
        let fs = rig.open(away);
        let new = new_disk();
        let belongings = Belongings {
            journal_bytes: fs.transactions.meta.journal_file_bytes().unwrap(),
            ..Belongings::default()
        };
        let store: StoreRef = Arc::new(new.open());
        let members = fs.transactions.members();
        let index = members
            .changes()
            .join(seat, &store, &belongings, |_, _| Ok::<_, MembersError>(()))
            .unwrap();
        assert_eq!(members.epochs().stale(), [index]);
        fill(&fs, 1000, &mut model);
        fill(&fs, 2000, &mut model);
        let disk = usize::from(index.0);
        let on_it = fs
            .written_shards()
            .iter()
            .filter(|s| s.disk == disk)
            .count();
        assert!(on_it > 10, "{on_it} shards on the new directory");
        assert_eq!(members.epochs().stale(), [index], "there was no checkpoint");
        drop(fs);
        match seat {
            JoinAs::New => rig.disks.push(new),
            _ => rig.disks[3] = new,
        }
        for policy in [CutPolicy::Drop, CutPolicy::Keep] {
            let rig = rig.fork();
            rig.cut(policy);
            for lost in subsets(rig.disks.len(), 1) {
                let context = format!("{seat:?}, {policy:?}, lost {lost:?}");
                let rig = rig.fork();
                let fs = rig.open_in(&lost, &context);
                let of_old = |file: &u64| seat != JoinAs::New && !lost.is_empty() && *file < 1000;
                let mut model = model.clone();
                // No shard of the old directory was rebuilt.
                model.retain(|file, _| !of_old(file));
                assert_holds(&fs, &model, &context);
                assert_eq!(fs.transactions.members().unusable(), [], "{context}");
                if lost.is_empty() {
                    fs.rebuild().unwrap();
                    fs.assert_shards_lie_on(&rig, &[], &context);
                    assert_eq!(fs.redundancy()[0].0, 1, "{context}");
                }
            }
        }
    }
}

#[test]
fn a_returned_directory_gets_the_shards_it_missed() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    fill(&fs, 0, &mut model);
    fs.lose(&rig, 1);
    assert_eq!(fs.transactions.members().membership().live().len(), 2);
    fill(&fs, 1000, &mut model);
    fs.remove(0).unwrap();
    model.insert(0, Vec::new());
    for _ in 0..4 {
        fs.sync().unwrap();
        fs.maintenance.reaper.reap().unwrap();
    }
    rig.disks[1].fail(None);
    let back = join(&fs, JoinAs::Returning, &rig.disks[1]).unwrap();
    assert_eq!(back, MemberIndex(1));
    assert!(matches!(
        join(&fs, JoinAs::Returning, &rig.disks[1]),
        Err(CommitError::Members(error)) if matches!(*error, MembersError::OwnMember { .. })
    ));
    // A request for a rebuild that has happened by itself meanwhile is fulfilled.
    assert_eq!(
        join(&fs, JoinAs::InPlaceOf(back), &rig.disks[1]).unwrap(),
        back
    );
    let before = fs.written_shards().len();
    let progress = fs.rebuild().unwrap();
    assert!(progress.bytes_done > 0);
    assert!(before > 0 && fs.written_shards().len() > before);
    assert_eq!(fs.redundancy()[0].0, 1);
    fs.assert_shards_lie_on(&rig, &[], "back");
    assert_holds(&fs, &model, "back");
    fs.close();
    assert_bears(&rig, 1, &model, "back");
}

#[test]
fn a_stale_copy_of_a_vanished_directory_gets_all_that_it_lacks() {
    let mut rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    fill(&fs, 0, &mut model);
    let copy = rig.disks[1].fork();
    fill(&fs, 500, &mut model);
    // Another comes and goes, so that an epoch passes that the copy knows nothing of.
    fs.lose(&rig, 2);
    rig.disks[2].fail(None);
    join(&fs, JoinAs::Returning, &rig.disks[2]).unwrap();
    fs.rebuild().unwrap();
    fill(&fs, 1000, &mut model);
    assert!(
        fs.transactions
            .members()
            .stale_copies()
            .unverified()
            .is_empty()
    );
    fs.lose(&rig, 1);
    fill(&fs, 1500, &mut model);
    rig.disks[1] = copy;
    join(&fs, JoinAs::Returning, &rig.disks[1]).unwrap();
    assert!(
        !fs.transactions
            .members()
            .stale_copies()
            .unverified()
            .is_empty()
    );
    let go_on = |_: &ScrubStatus| ControlFlow::Continue(());
    fs.maintenance
        .scrubber
        .scrub(&NoLocks, None, go_on)
        .unwrap();
    fs.rebuild().unwrap();
    assert_eq!(fs.redundancy()[0].0, 1);
    fs.assert_shards_lie_on(&rig, &[], "put back");
    assert_holds(&fs, &model, "put back");
    fs.close();
    assert_bears(&rig, 1, &model, "put back");
}

#[test]
fn an_unsuitable_directory_is_refused_and_stays_as_it_was() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[2]);
    let refused = |seat, disk: &MemDisk| match join(&fs, seat, disk) {
        Err(CommitError::Members(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let full = new_disk();
    full.open().create("note", 10).unwrap();
    assert!(refused(JoinAs::New, &full).contains("not empty"));
    assert_eq!(full.open().list("").unwrap(), [("note".to_owned(), 10)]);
    let seat = JoinAs::InPlaceOf(MemberIndex(0));
    assert!(refused(seat, &new_disk()).contains("is still there"));
    assert!(refused(JoinAs::New, &rig.disks[0]).contains("member 0 of this very volume"));
    let seat = JoinAs::InPlaceOf(MemberIndex(9));
    assert!(refused(seat, &new_disk()).contains("no member 9"));
    assert!(refused(JoinAs::Returning, &new_disk()).contains("not a member"));
    // A refused directory causes no checkpoint.
    assert_eq!(fs.transactions.commits.arrivals.so_far(), 0);
    let other = Rig::new(2, 1, 3);
    assert!(refused(JoinAs::New, &other.disks[0]).contains("a member of a volume already"));
    let length = other.disks[1].open().open_len("superblock").unwrap();
    let zeros = vec![0; usize::try_from(length).unwrap()];
    other.disks[1]
        .open()
        .write_at("superblock", 0, &zeros)
        .unwrap();
    let said = refused(JoinAs::New, &other.disks[1]);
    assert!(
        said.contains("cannot be told: its superblock is damaged"),
        "{said}"
    );
    assert_eq!(fs.transactions.members().membership().count(), 3);
    assert_eq!(fs.transactions.members().membership().live().len(), 2);
}

#[test]
fn a_removed_member_is_drained_and_the_redundancy_stays_full_without_it() {
    for away in [false, true] {
        let mut rig = Rig::new(2, 1, 5);
        let fs = rig.open(&[]);
        let mut model = Model::new();
        fill(&fs, 0, &mut model);
        fs.close();
        let absent: &[usize] = if away { &[4] } else { &[] };
        let fs = rig.open(absent);
        fill(&fs, 1000, &mut model);
        fs.maintenance.draining().drain(MemberIndex(4)).unwrap();
        fill(&fs, 2000, &mut model);
        let promised = fs.transactions.space();
        fs.rebuild().unwrap();
        let found = fs.transactions.space();
        let about = |a: u64, b: u64| a.abs_diff(b) * 50 <= found.usable_total;
        assert!(
            about(promised.usable_total, found.usable_total)
                && about(promised.usable_free, found.usable_free),
            "{promised:?} and then {found:?}"
        );
        assert_eq!(fs.transactions.members().membership().count(), 4);
        assert_eq!(fs.redundancy(), [(1, fs.stripes().len() as u64)]);
        fs.assert_shards_lie_on(&rig, absent, "removed");
        if !away {
            assert_eq!(rig.disks[4].open().list("").unwrap(), []);
            assert_eq!(rig.disks[4].open().list(files::SEGMENTS).unwrap(), []);
        }
        // Its place is taken by the next that comes.
        let gone = rig.disks.pop().unwrap();
        fs.close();
        assert_bears(&rig, 1, &model, "removed");
        let mut stores = rig.stores(&[]);
        stores.push(Arc::new(gone.open()));
        let fs = TestFs::open(stores, Access::ReadWrite).unwrap();
        assert_eq!(fs.transactions.members().membership().live().len(), 4);
        rig.disks.push(new_disk());
        assert_eq!(
            join(&fs, JoinAs::New, &rig.disks[4]).unwrap(),
            MemberIndex(4)
        );
        fill(&fs, 3000, &mut model);
        fs.rebuild().unwrap();
        fs.close();
        assert_bears(&rig, 1, &model, "another came");
    }
}

/// Dead stripes still take space, and more than the other members have.
#[test]
fn dead_stripes_do_not_stop_the_removal_of_a_member() {
    let rig = Rig::new(1, 1, 3);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    for file in 0..70 {
        let bytes = pattern(file, 500_000);
        fs.write(file, &bytes).unwrap();
        model.insert(file, bytes);
    }
    fs.sync().unwrap();
    for file in (0..70).filter(|file| file % 7 != 0) {
        fs.remove(file).unwrap();
        model.insert(file, Vec::new());
    }
    fs.maintenance.draining().drain(MemberIndex(2)).unwrap();
    let progress = fs.rebuild().unwrap();
    assert_eq!(progress.bytes_waiting, 0, "{progress:?}");
    assert_eq!(fs.transactions.members().membership().count(), 2);
    assert_eq!(fs.redundancy(), [(1, fs.stripes().len() as u64)]);
    fs.close();
    assert_bears(&rig, 1, &model, "removed");
}

#[test]
fn a_member_that_the_others_cannot_replace_is_not_removed() {
    let rig = Rig::new(2, 1, 4);
    let fs = rig.open(&[3]);
    let refused = fs.maintenance.draining().drain(MemberIndex(0));
    let too_few = |error: &CommitError| matches!(error, CommitError::Members(error) if matches!(**error, MembersError::TooFewLeft { .. }));
    assert!(refused.as_ref().is_err_and(too_few), "{refused:?}");
    assert_eq!(fs.transactions.members().membership().draining(), []);
}

#[test]
fn a_power_cut_at_any_call_of_a_removal_loses_nothing_and_the_removal_goes_on() {
    let base = Rig::new(2, 1, 4);
    let fs = base.open(&[]);
    let mut model = Model::new();
    fill(&fs, 0, &mut model);
    fs.close();
    for call in (1..).step_by(3) {
        let rig = base.fork();
        let plan = FaultPlan::new();
        let fs = rig.open_with_faults(&plan).unwrap();
        plan.add(power_cut_at(call));
        let removed = fs.maintenance.draining().drain(MemberIndex(3));
        let removed = removed.and_then(|()| fs.rebuild());
        let struck = plan.triggered() > 0;
        drop(fs);
        for policy in ways_to_cut(call) {
            let rig = rig.fork();
            rig.cut(policy);
            let context = format!("cut {call}, {policy:?}");
            let fs = rig.open_in(&[], &context);
            assert_holds(&fs, &model, &context);
            let was_draining = !fs.transactions.members().membership().draining().is_empty();
            let was_there = fs.transactions.members().membership().count();
            fs.rebuild().unwrap();
            assert_eq!(
                fs.transactions.members().membership().draining(),
                [],
                "{context}"
            );
            // One that was on its way goes; one without a known wish to remove it stays.
            let left = fs.transactions.members().membership().count();
            let expected = if was_draining { 3 } else { was_there };
            assert_eq!(left, expected, "{context}");
            assert!(struck || left == 3, "{context}");
            fs.assert_shards_lie_on(&rig, &[], &context);
            assert_eq!(fs.redundancy()[0].0, 1, "{context}");
            assert_holds(&fs, &model, &context);
        }
        if !struck {
            removed.unwrap();
            assert!(call > 30, "only {call} calls");
            break;
        }
    }
}

/// There are two copies of the index, and one loss has to be tolerated at any time.
#[test]
fn the_index_keeps_its_redundancy_at_any_call_of_the_removal_of_a_member_with_a_copy() {
    let base = Rig::new(2, 1, 4);
    let fs = base.open(&[]);
    let mut model = Model::new();
    fill(&fs, 0, &mut model);
    fs.close();
    let [removed, other] = base.holders()[..] else {
        panic!("parity shards + 1 copies");
    };
    for call in (1..).step_by(2) {
        let rig = base.fork();
        let plan = FaultPlan::new();
        let fs = rig.open_with_faults(&plan).unwrap();
        plan.add(power_cut_at(call));
        let done = fs.maintenance.draining().drain(MemberIndex(removed as u16));
        let done = done.and_then(|()| fs.rebuild());
        let struck = plan.triggered() > 0;
        drop(fs);
        let policy = ways_to_cut(call)[call as usize / 2 % 3];
        rig.cut(policy);
        let context = format!("cut {call}, {policy:?}");
        let fs = rig.open_in(&[other], &context);
        assert_holds(&fs, &model, &context);
        if !struck {
            done.unwrap();
            assert!(call > 30, "only {call} calls");
            assert_eq!(fs.transactions.members().membership().count(), 3);
            break;
        }
    }
}

#[test]
fn a_member_is_removed_only_once_others_have_the_copies_of_the_index() {
    let rig = Rig::new(2, 1, 6);
    let fs = rig.open(&[]);
    let before = rig.holders();
    let others: Vec<usize> = (0..6).filter(|disk| !before.contains(disk)).collect();
    let index = |disk: usize| MemberIndex(disk as u16);
    // It has more room than any other, and must get no new shards.
    rig.disks[others[0]].set_capacity(2 * DISK);
    let capacity = |bytes| {
        let others = others[1..].iter();
        others.for_each(|disk| rig.disks[*disk].set_capacity(bytes));
    };
    fs.maintenance.draining().drain(index(others[0])).unwrap();
    fs.maintenance.draining().drain(index(before[0])).unwrap();
    capacity(0);
    fs.rebuild().unwrap();
    assert_eq!(rig.holders(), before);
    assert_eq!(
        fs.transactions.members().membership().draining(),
        [index(before[0])]
    );
    capacity(DISK);
    // A member that had no room is asked again after a while.
    for _ in 0..40 {
        fs.transactions.commits.refill_index(1).unwrap();
    }
    fs.rebuild().unwrap();
    assert_eq!(fs.transactions.members().membership().draining(), []);
    assert_eq!(fs.transactions.members().membership().count(), 4);
    assert_eq!(
        fs.transactions.members().membership().away(),
        [],
        "they are not expected back"
    );
    let after = rig.holders();
    assert!(after.len() == 2 && after.contains(&before[1]), "{after:?}");
    assert!(others[1..].iter().any(|disk| after.contains(disk)));
}

#[test]
fn unrecoverable_ranges_count_again_once_their_member_returns() {
    let rig = Rig::new(2, 1, 5);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    fill(&fs, 0, &mut model);
    fs.close();
    let fs = rig.open(&[]);
    // The index is to survive.
    let holders = fs.transactions.replicas.holders();
    let others = (0..5).filter(|&disk| !holders.contains(&MemberIndex(disk)));
    let lost: Vec<&MemDisk> = others
        .take(2)
        .map(|disk| &rig.disks[usize::from(disk)])
        .collect();
    for disk in &lost {
        disk.fail(Some(StoreErrorKind::Gone));
    }
    fs.transactions.members().probe();
    assert!(model.keys().filter(|&&file| fs.read(file).is_err()).count() > 1);
    assert!(fs.redundancy()[0].0 < 0);
    lost[1].fail(None);
    join(&fs, JoinAs::Returning, lost[1]).unwrap();
    // A joining member does not wait until all of it is read; and a search that has to stop looks at nothing.
    let all = fs.transactions.stripes.damage().unrecoverable().all().len();
    assert!(all > 1);
    let look = |stripes: usize| {
        let left = Cell::new(stripes);
        let goes_on = || left.replace(left.get().saturating_sub(1)) > 0;
        fs.maintenance.recheck().run(&goes_on).unwrap();
        fs.transactions.stripes.damage().unrecoverable().all().len()
    };
    assert_eq!(look(0), all);
    assert_eq!(look(1), all - 1);
    assert_eq!(look(all), 0);
    assert_eq!(fs.redundancy()[0].0, 0, "{:?}", fs.redundancy());
    assert_holds(&fs, &model, "one is back");
}
