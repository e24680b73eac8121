//! Copies of a member's directory that take its place while the volume is open.
//!
//! All superblocks are of one epoch and one generation, so that only the journals tell a copy from its original.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use super::*;
use crate::format::MemberIndex;
use crate::maintenance::ScrubStatus;
use crate::membership::AbsenceReason;

const ROUNDS: u64 = 9;

fn member(disk: usize) -> MemberIndex {
    MemberIndex(u16::try_from(disk).unwrap())
}

fn unverified(fs: &TestFs) -> Vec<MemberIndex> {
    fs.transactions
        .members()
        .stale_copies()
        .unverified()
        .into_keys()
        .collect()
}

/// Writes a large and a small file durably, under numbers of the round.
fn write_round(fs: &TestFs, model: &mut Model, round: u64) {
    for (file, len) in [(2 * round, 120_000), (2 * round + 1, 300)] {
        let bytes = pattern(file + 1, len);
        fs.write(file, &bytes).unwrap();
        model.insert(file, bytes);
    }
    fs.sync().unwrap();
}

/// Puts a copy in the place of a member's directory, as far as the volume can tell, and has it noticed.
fn replace_by(fs: &TestFs, rig: &mut Rig, disk: usize, copy: MemDisk) {
    fs.lose(rig, disk);
    rig.disks[disk] = copy;
    fs.take_back(rig, disk);
}

/// Verifies and rebuilds everything: the shards of the copy are right then, and two further losses cost nothing.
fn assert_recovers(fs: &TestFs, rig: &Rig, model: &Model, disk: usize, context: &str) {
    let go_on = |_: &ScrubStatus| ControlFlow::Continue(());
    fs.maintenance
        .scrubber
        .scrub(&NoLocks, None, go_on)
        .unwrap();
    assert_eq!(unverified(fs), [], "{context}");
    fs.rebuild().unwrap();
    fs.assert_shards_lie_on(rig, &[], context);
    assert_eq!(fs.redundancy()[0].0, 2, "{context}: {:?}", fs.redundancy());
    let others = (1..=2).map(|step| (disk + step) % rig.disks.len());
    for other in others {
        fs.lose(rig, other);
    }
    assert_holds(fs, model, context);
}

/// Some copies are one round old, some are older than the journal file that was used again since.
#[test]
fn a_copy_from_before_the_last_record_counts_for_nothing_until_it_is_verified() {
    for age in 0..ROUNDS {
        for disk in 0..6 {
            let context = format!("a copy of disk {disk}, {age} rounds old");
            let mut rig = Rig::new(4, 2, 6);
            let fs = rig.open(&[]);
            let mut model = Model::new();
            let mut copies = Vec::new();
            for round in 0..ROUNDS {
                write_round(&fs, &mut model, round);
                copies.push(rig.disks[disk].fork());
                if round % 2 == 1 {
                    fs.transactions.checkpoint().unwrap();
                }
            }
            let copy = copies.swap_remove((ROUNDS - 1 - age) as usize);
            replace_by(&fs, &mut rig, disk, copy);
            if age == 0 {
                assert_eq!(unverified(&fs), [], "{context}: it lacks nothing");
                fs.assert_shards_lie_on(&rig, &[], &context);
                continue;
            }
            assert_eq!(unverified(&fs), [member(disk)], "{context}");
            let reason = fs.transactions.members().status().swap_remove(disk).reason;
            assert_eq!(reason, Some(AbsenceReason::Unverified), "{context}");
            let rows = fs.redundancy();
            let counted: u64 = rows.iter().filter(|row| row.0 < 2).map(|row| row.1).sum();
            let written = fs.written_shards().into_iter();
            let on_it = written.filter(|shard| shard.disk == disk);
            let doubted: BTreeSet<_> = on_it.map(|shard| shard.stripe).collect();
            assert_eq!(counted, doubted.len() as u64, "{context}: {rows:?}");
            assert_recovers(&fs, &rig, &model, disk, &context);
        }
    }
}

/// The volume was opened after the copy was made, and nothing was written since.
#[test]
fn a_copy_from_before_the_volume_was_opened_is_known_for_one() {
    for (makes_record, disk) in [(false, 1), (true, 1), (false, 4)] {
        let context = format!("disk {disk}, a record since it was opened: {makes_record}");
        let mut rig = Rig::new(4, 2, 6);
        let mut model = Model::new();
        let fs = rig.open(&[]);
        write_round(&fs, &mut model, 0);
        let copy = rig.disks[disk].fork();
        write_round(&fs, &mut model, 1);
        fs.close();
        let fs = rig.open(&[]);
        if makes_record {
            write_round(&fs, &mut model, 2);
        }
        replace_by(&fs, &mut rig, disk, copy);
        assert_eq!(unverified(&fs), [member(disk)], "{context}");
        assert_recovers(&fs, &rig, &model, disk, &context);
    }
}

/// The way in which a member leaves the newest epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// While the volume was open.
    Open,
    /// The same, and a crash follows.
    Crash,
    /// The volume was opened without it.
    Closed,
}

/// Loses disk 3 after a copy of it was made and more was written. Opens the volume again without it, `times` times.
fn open_without(rig: &Rig, loss: Loss, times: u64) -> (TestFs, Model, MemDisk) {
    let mut model = Model::new();
    let fs = rig.open(&[]);
    write_round(&fs, &mut model, 0);
    let copy = rig.disks[3].fork();
    write_round(&fs, &mut model, 1);
    if loss != Loss::Closed {
        fs.lose(rig, 3);
        write_round(&fs, &mut model, 2);
    }
    if loss == Loss::Crash {
        drop(fs);
        rig.cut(CutPolicy::Drop);
    } else {
        fs.close();
    }
    for round in 0..times {
        let fs = rig.open(&[3]);
        write_round(&fs, &mut model, 3 + round);
        fs.close();
    }
    (rig.open(&[3]), model, copy)
}

/// All superblocks that name the member are of its last epoch, and so is that of the copy.
#[test]
fn a_copy_of_a_member_that_the_volume_was_opened_without_is_known_for_one() {
    for loss in [Loss::Open, Loss::Crash, Loss::Closed] {
        for times in 0..3 {
            let context = format!("{loss:?}, opened {times} times before");
            let mut rig = Rig::new(4, 2, 6);
            let (fs, model, copy) = open_without(&rig, loss, times);
            rig.disks[3] = copy;
            fs.take_back(&rig, 3);
            assert_eq!(unverified(&fs), [member(3)], "{context}");
            assert_recovers(&fs, &rig, &model, 3, &context);
        }
    }
}

#[test]
fn a_copy_of_an_absent_member_that_is_there_when_the_volume_is_opened_is_known_for_one() {
    for loss in [Loss::Open, Loss::Crash, Loss::Closed] {
        let context = format!("{loss:?}");
        let mut rig = Rig::new(4, 2, 6);
        let (fs, model, copy) = open_without(&rig, loss, 1);
        fs.close();
        rig.disks[3] = copy;
        let fs = rig.open(&[]);
        assert_eq!(unverified(&fs), [member(3)], "{context}");
        assert_recovers(&fs, &rig, &model, 3, &context);
    }
}

#[test]
fn a_member_that_the_volume_was_opened_without_and_returns_as_it_was_needs_no_verification() {
    for loss in [Loss::Open, Loss::Closed] {
        for is_there_at_open in [false, true] {
            let context = format!("{loss:?}, there at the open: {is_there_at_open}");
            let rig = Rig::new(4, 2, 6);
            let (mut fs, model, _) = open_without(&rig, loss, 1);
            rig.disks[3].fail(None);
            if is_there_at_open {
                fs.close();
                fs = rig.open(&[]);
            } else {
                fs.take_back(&rig, 3);
            }
            assert_eq!(unverified(&fs), [], "{context}");
            fs.rebuild().unwrap();
            fs.assert_shards_lie_on(&rig, &[], &context);
            assert_holds(&fs, &model, &context);
        }
    }
}

/// Its journal has no record, because it joined after the newest one.
#[test]
fn a_new_member_that_the_volume_was_opened_without_and_returns_needs_no_verification() {
    let mut rig = Rig::new(4, 2, 6);
    let mut model = Model::new();
    let fs = rig.open(&[]);
    write_round(&fs, &mut model, 0);
    let disk = MemDisk::new("disk6", DISK);
    let store: StoreRef = Arc::new(disk.open());
    fs.maintenance.joining().join(JoinAs::New, &store).unwrap();
    fs.close();
    rig.disks.push(disk.fork());
    drop(store);
    let fs = rig.open(&[6]);
    write_round(&fs, &mut model, 1);
    fs.take_back(&rig, 6);
    assert_eq!(unverified(&fs), []);
    assert_holds(&fs, &model, "a new member");
}

#[test]
fn a_directory_that_was_away_and_returns_as_it_was_needs_no_verification() {
    let rig = Rig::new(4, 2, 6);
    let mut model = Model::new();
    let fs = rig.open(&[]);
    write_round(&fs, &mut model, 0);
    fs.close();
    let fs = rig.open(&[]);
    for round in 1..8 {
        // Before the first record, between two, after a checkpoint, and twice without a record between.
        fs.lose(&rig, 3);
        if round % 2 == 1 {
            write_round(&fs, &mut model, round);
        }
        fs.take_back(&rig, 3);
        assert_eq!(unverified(&fs), [], "round {round}");
        if round % 3 == 0 {
            write_round(&fs, &mut model, round);
            fs.transactions.checkpoint().unwrap();
        }
        fs.rebuild().unwrap();
    }
    fs.assert_shards_lie_on(&rig, &[], "returned");
    assert_holds(&fs, &model, "returned");
}

/// A commit to the index alone leaves no trace in the journal.
#[test]
fn a_copy_from_before_a_commit_to_the_index_alone_is_known_for_one() {
    let mut rig = Rig::new(4, 2, 6);
    let mut model = Model::new();
    let fs = rig.open(&[]);
    write_round(&fs, &mut model, 0);
    let copy = rig.disks[2].fork();
    let bytes = pattern(77, 150_000);
    fs.write(50, &bytes).unwrap();
    model.insert(50, bytes);
    fs.transactions.stripes.writer().seal();
    fs.transactions.stripes.writer().wait_flushed().unwrap();
    assert!(fs.transactions.stripes.writer().sync().unwrap().is_empty());
    let meta = &fs.transactions.meta;
    meta.append_to_index(vec![meta.rotate(), meta.take_stripes()])
        .unwrap();
    replace_by(&fs, &mut rig, 2, copy);
    assert_eq!(unverified(&fs), [member(2)]);
    assert_recovers(&fs, &rig, &model, 2, "to the index alone");
}

/// The directory lacks nothing. Once its journals were created again, nothing in it shows that.
#[test]
fn a_current_directory_is_verified_if_its_first_return_failed_after_its_journals_were_created_again()
 {
    let mut journals_were_new = BTreeSet::new();
    for call in 1.. {
        let context = format!("call {call}");
        let rig = Rig::new(4, 2, 6);
        let mut model = Model::new();
        let fs = rig.open(&[]);
        write_round(&fs, &mut model, 0);
        fs.lose(&rig, 5);
        rig.disks[5].fail(None);
        let plan = FaultPlan::new();
        let store: StoreRef = Arc::new(rig.disks[5].open());
        let failing: StoreRef = Arc::new(FaultStore::new(store, 5, &plan));
        plan.add(Fault::at(call, Effect::NoSpace).of(Scope::Changing));
        let first = fs.maintenance.joining().join(JoinAs::Returning, &failing);
        drop(failing);
        if first.is_ok() {
            assert_eq!(unverified(&fs), [], "{context}");
            break;
        }
        let are_new = !files::JOURNALS.iter().any(|name| {
            let mut front = [0; 16];
            let disk = rig.disks[5].open();
            disk.read_at(name, 0, &mut front).is_ok() && front != [0; 16]
        });
        journals_were_new.insert(are_new);
        fs.take_back(&rig, 5);
        let expected = if are_new { vec![member(5)] } else { Vec::new() };
        assert_eq!(unverified(&fs), expected, "{context}: {first:?}");
        assert_recovers(&fs, &rig, &model, 5, &context);
    }
    assert_eq!(journals_were_new, BTreeSet::from([false, true]));
}

/// A crash forgets what members acknowledged. The statements of the scrub's record stay.
#[test]
fn a_copy_is_still_known_for_one_after_a_crash() {
    let mut rig = Rig::new(4, 2, 6);
    let mut model = Model::new();
    let fs = rig.open(&[]);
    write_round(&fs, &mut model, 0);
    let copy = rig.disks[0].fork();
    write_round(&fs, &mut model, 1);
    replace_by(&fs, &mut rig, 0, copy);
    drop(fs);
    rig.cut(CutPolicy::Drop);
    let fs = rig.open(&[]);
    assert_eq!(unverified(&fs), [member(0)]);
    assert_recovers(&fs, &rig, &model, 0, "crashed");
}

/// Copies the files of another directory over those of a disk, without its knowing.
fn overwrite(disk: &MemDisk, copy: &MemDisk) {
    let copy = copy.open();
    let names = ["", files::SEGMENTS].map(|dir| copy.list(dir).unwrap());
    for (name, len) in names.into_iter().flatten() {
        let mut bytes = vec![0; len as usize];
        copy.read_at(&name, 0, &mut bytes).unwrap();
        disk.corrupt(&name, 0, |place| place.copy_from_slice(&bytes), bytes.len());
    }
}

#[test]
fn files_that_were_overwritten_by_those_of_a_copy_are_noticed_with_the_next_record() {
    for checkpoints in [false, true] {
        let context = format!("with a checkpoint: {checkpoints}");
        let rig = Rig::new(4, 2, 6);
        let mut model = Model::new();
        let fs = rig.open(&[]);
        write_round(&fs, &mut model, 0);
        let copy = rig.disks[3].fork();
        write_round(&fs, &mut model, 1);
        fs.maintenance.stale_copies.probe().unwrap();
        write_round(&fs, &mut model, 2);
        fs.maintenance.stale_copies.probe().unwrap();
        assert_eq!(unverified(&fs), [], "{context}: nothing is wrong yet");
        overwrite(&rig.disks[3], &copy);
        if checkpoints {
            fs.transactions.checkpoint().unwrap();
        }
        write_round(&fs, &mut model, 3);
        fs.maintenance.stale_copies.probe().unwrap();
        assert_eq!(unverified(&fs), [member(3)], "{context}");
        assert!(
            !fs.transactions
                .members()
                .membership()
                .live()
                .contains(&member(3))
        );
        fs.take_back(&rig, 3);
        assert_eq!(unverified(&fs), [member(3)], "{context}");
        assert_recovers(&fs, &rig, &model, 3, &context);
    }
}

/// A power cut may come at any point while the doubt is noted. Without the note, an epoch without the member would make
/// its shards count at the next start.
#[test]
fn no_epoch_without_a_doubtful_member_is_durable_before_the_doubt() {
    let mut was_current = BTreeSet::new();
    for call in 1.. {
        let context = format!("call {call}");
        let rig = Rig::new(4, 2, 6);
        let plan = FaultPlan::new();
        let fs = rig.open_with_faults(&plan).unwrap();
        let mut model = Model::new();
        write_round(&fs, &mut model, 0);
        let copy = rig.disks[3].fork();
        write_round(&fs, &mut model, 1);
        fs.maintenance.stale_copies.probe().unwrap();
        overwrite(&rig.disks[3], &copy);
        write_round(&fs, &mut model, 2);
        plan.add(cauchyfs_testkit::power_cut_at(call));
        let probed = fs.maintenance.stale_copies.probe();
        drop(fs);
        rig.cut(CutPolicy::Drop);
        let fs = rig.open(&[]);
        let is_current = fs
            .transactions
            .members()
            .current_at_open()
            .contains(&member(3));
        was_current.insert(is_current);
        let is_noted = unverified(&fs) == [member(3)];
        assert!(is_noted || is_current, "{context}: {probed:?}");
        if plan.triggered() == 0 {
            assert!(is_noted, "{context}: {probed:?}");
            assert_recovers(&fs, &rig, &model, 3, &context);
            break;
        }
    }
    assert_eq!(was_current, BTreeSet::from([false, true]));
}

/// Reads back until a member is doubted. One answer more may be late on a busy machine.
fn probe_until_doubted(fs: &TestFs, context: &str) {
    for _ in 0..1000 {
        fs.maintenance.stale_copies.probe().unwrap();
        if !unverified(fs).is_empty() {
            return;
        }
    }
    panic!("{context}: no member is doubted");
}

#[test]
fn a_member_that_did_not_answer_is_asked_for_the_same_record_again() {
    for (effect, kind) in [
        (Effect::NoDescriptors, ExecutorKind::Inline),
        (Effect::Hang, ExecutorKind::Threads),
    ] {
        let context = format!("{effect:?}");
        let rig = Rig::new(4, 2, 6);
        let plan = FaultPlan::new();
        let stores = FaultStore::wrap_all(rig.stores(&[]), &plan);
        let executor = Arc::new(Executor::new(kind, Duration::from_secs(600)));
        let fs = TestFs::open_on(stores, Access::ReadWrite, executor).unwrap();
        let mut model = Model::new();
        write_round(&fs, &mut model, 0);
        let copy = rig.disks[3].fork();
        write_round(&fs, &mut model, 1);
        fs.maintenance.stale_copies.probe().unwrap();
        overwrite(&rig.disks[3], &copy);
        write_round(&fs, &mut model, 2);
        plan.add(Fault::at(1, effect).of(Scope::MemberKind(3, CallKind::Read)));
        fs.maintenance.stale_copies.probe().unwrap();
        assert_eq!(plan.triggered(), 1, "{context}");
        assert_eq!(unverified(&fs), [], "{context}: it has not answered");
        plan.clear();
        plan.release();
        while fs.transactions.members().io().is_avoided(member(3)) {
            std::thread::yield_now();
        }
        probe_until_doubted(&fs, &context);
        assert_eq!(unverified(&fs), [member(3)], "{context}");
        assert!(
            !fs.transactions
                .members()
                .membership()
                .live()
                .contains(&member(3))
        );
    }
}

/// The record that it was asked for is gone by the time that it answers.
#[test]
fn a_member_that_answers_once_its_journal_was_used_again_is_not_doubted() {
    let rig = Rig::new(4, 2, 6);
    let plan = FaultPlan::new();
    let fs = rig.open_with_faults(&plan).unwrap();
    let mut model = Model::new();
    let mute = Fault::at(1, Effect::NoDescriptors).of(Scope::MemberKind(3, CallKind::Read));
    for round in 0..12 {
        if round % 4 == 1 {
            plan.add(mute.lasting());
        }
        write_round(&fs, &mut model, round);
        fs.maintenance.stale_copies.probe().unwrap();
        if round % 4 == 3 {
            plan.clear();
        } else {
            fs.transactions.checkpoint().unwrap();
        }
        fs.maintenance.stale_copies.probe().unwrap();
        assert_eq!(unverified(&fs), [], "round {round}");
        assert_eq!(
            fs.transactions.members().membership().live().len(),
            6,
            "round {round}"
        );
    }
    assert!(plan.triggered() > 0);
}

/// Journal files are used again, and a member leaves and returns. Idle disks are not read.
#[test]
fn records_that_are_read_back_are_found_wherever_members_hold_them() {
    let rig = Rig::new(4, 2, 6);
    let plan = FaultPlan::new();
    let fs = rig.open_with_faults(&plan).unwrap();
    let mut model = Model::new();
    for round in 0..12 {
        write_round(&fs, &mut model, round);
        match round % 4 {
            1 => fs.transactions.checkpoint().unwrap(),
            2 => {
                fs.lose(&rig, 1);
                write_round(&fs, &mut model, round);
                fs.take_back(&rig, 1);
            }
            _ => {}
        }
        fs.maintenance.stale_copies.probe().unwrap();
        assert_eq!(unverified(&fs), [], "round {round}");
        assert_eq!(
            fs.transactions.members().membership().live().len(),
            6,
            "round {round}"
        );
    }
    plan.record();
    for _ in 0..5 {
        fs.maintenance.stale_copies.probe().unwrap();
    }
    let calls = plan.take_log();
    let mut kinds = calls.iter().map(|call| call.kind);
    assert!(kinds.all(|kind| kind != CallKind::Read), "{calls:?}");
}
