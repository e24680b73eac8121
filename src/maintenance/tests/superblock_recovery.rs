//! Members that have lost their superblocks, and recover them.

use super::*;
use crate::format::MemberIndex;
use crate::format::superblock::{SLOT_BYTES, SLOTS, Superblock};
use crate::membership::{Members, MembersError, RecoveredMembers, Unusable};

mod doubts;
mod evidence;

/// Makes a volume with files of every kind of length, written in two mounts; the second ends with a crash if
/// `crashes`.
fn written(data: usize, parity: usize, count: usize, crashes: bool) -> (Rig, Model) {
    let rig = Rig::new(data, parity, count);
    let mut model = Model::new();
    for mount in 0..2 {
        let fs = rig.open(&[]);
        for (file, len) in (10 * mount..).zip([50_000, 63, 5_000, 70_000]) {
            let bytes = pattern(file, len);
            fs.write(file, &bytes).unwrap();
            model.insert(file, bytes);
            fs.sync().unwrap();
        }
        if crashes && mount == 1 {
            let left = rig.fork();
            left.cut(CutPolicy::Drop);
            return (left, model);
        }
        fs.close();
    }
    (rig, model)
}

fn options(access: Access) -> OpenOptions {
    OpenOptions {
        access,
        threads: 0,
        ..OpenOptions::default()
    }
}

fn lose_superblocks(rig: &Rig, lost: &[usize]) {
    for &disk in lost {
        let store = rig.disks[disk].open();
        store.remove(files::SUPERBLOCK).unwrap();
    }
}

fn identify(rig: &Rig) -> Result<(RecoveredMembers, Vec<Unusable>), CommitError> {
    crate::maintenance::identify_members(&rig.stores(&[]), &options(Access::ReadOnly), &executor())
}

fn open_recovering(rig: &Rig, claims: &RecoveredMembers) -> Result<TestFs, CommitError> {
    let options = options(Access::ReadWrite);
    Maintenance::open_recovering(rig.stores(&[]), claims, &options, executor()).map(TestFs::over)
}

fn claim_of(disks: &[usize]) -> RecoveredMembers {
    let claim = |&disk: &usize| (format!("disk{disk}"), MemberIndex(disk as u16));
    disks.iter().map(claim).collect()
}

fn stale_copies(fs: &TestFs) -> Vec<usize> {
    let members = fs.transactions.members().stale_copies().unverified();
    members.into_keys().map(|index| index.0.into()).collect()
}

/// Changes the superblock of a disk.
fn edit(rig: &Rig, disk: usize, change: impl Fn(&mut Superblock)) {
    let store = rig.disks[disk].open();
    for slot in 0..SLOTS {
        let offset = (slot * SLOT_BYTES) as u64;
        let mut bytes = vec![0; SLOT_BYTES];
        store
            .read_at(files::SUPERBLOCK, offset, &mut bytes)
            .unwrap();
        let mut block = Superblock::decode(&bytes).unwrap();
        change(&mut block);
        let bytes = block.encode();
        store.write_at(files::SUPERBLOCK, offset, &bytes).unwrap();
    }
}

/// Moves the paths in the superblock of a disk: each member gets the path of one so many places later.
fn move_paths(rig: &Rig, disk: usize, by: usize) {
    edit(rig, disk, |block| {
        let paths: Vec<_> = block.members.iter().map(|m| m.path.clone()).collect();
        for (index, member) in block.members.iter_mut().enumerate() {
            member.path = paths[(index + by) % paths.len()].clone();
        }
    });
}

/// As long as one is left, all others can be made from it, and no member has to be verified.
#[test]
fn superblocks_of_all_members_but_one_are_recovered_wherever_the_directories_were() {
    for (data, parity, count, crashes) in [
        (4, 2, 6, false),
        (4, 2, 6, true),
        (2, 1, 4, false),
        (1, 2, 3, true),
    ] {
        let (base, model) = written(data, parity, count, crashes);
        let full = base.fork().open(&[]).redundancy();
        for lost in subsets(count, count - 1) {
            // The last places lead astray, but mirrors are identical.
            for elsewhere in 0..=usize::from(data > 1) {
                let context = format!("{data}+{parity}, {lost:?} lost, {elsewhere}");
                let rig = base.fork();
                lose_superblocks(&rig, &lost);
                let left: Vec<_> = (0..count).filter(|disk| !lost.contains(disk)).collect();
                for disk in left {
                    move_paths(&rig, disk, elsewhere);
                }
                let (found, others) = identify(&rig).unwrap();
                assert_eq!(
                    (found.clone(), others),
                    (claim_of(&lost), vec![]),
                    "{context}"
                );
                let fs = open_recovering(&rig, &found).unwrap();
                assert_holds(&fs, &model, &context);
                assert_eq!(stale_copies(&fs), [0; 0], "{context}");
                fs.close();
                let fs = rig.open_in(&[], &context);
                assert_holds(&fs, &model, &context);
                assert_eq!(fs.redundancy(), full, "{context}");
                fs.close();
            }
        }
    }
}

/// Returns a volume of which one member is from an earlier time and has no superblock.
fn with_a_stale_copy(back: usize) -> (Rig, Model) {
    let rig = Rig::new(4, 2, 6);
    let mut model = Model::new();
    let fs = rig.open(&[]);
    let bytes = pattern(1, 100_000);
    fs.write(0, &bytes).unwrap();
    model.insert(0, bytes);
    fs.sync().unwrap();
    let backup = rig.fork();
    for file in 1..9 {
        let bytes = pattern(10 + file, 60_000);
        fs.write(file, &bytes).unwrap();
        model.insert(file, bytes);
        fs.sync().unwrap();
    }
    fs.close();
    let mut rig = rig.fork();
    rig.disks[back] = backup.disks[back].fork();
    lose_superblocks(&rig, &[back]);
    (rig, model)
}

#[test]
fn a_stale_copy_without_a_superblock_counts_for_nothing_until_it_is_verified() {
    for (back, has_journals) in (0..6).flat_map(|back| [(back, true), (back, false)]) {
        let (rig, model) = with_a_stale_copy(back);
        if !has_journals {
            let store = rig.disks[back].open();
            for name in files::JOURNALS {
                store.remove(name).unwrap();
            }
        }
        let (found, others) = identify(&rig).unwrap();
        assert_eq!((found.clone(), others), (claim_of(&[back]), vec![]));
        let fs = open_recovering(&rig, &found).unwrap();
        assert_eq!(stale_copies(&fs), [back]);
        assert_holds(&fs, &model, "with the old copy");
        let without = fs.redundancy();
        assert!(without.iter().any(|row| row.0 < 2), "{without:?}");
        fs.close();
        let fs = rig.open(&[]);
        assert_eq!(stale_copies(&fs), [back], "mounted again");
        let go_on = |_: &crate::maintenance::ScrubStatus| std::ops::ControlFlow::Continue(());
        fs.maintenance
            .scrubber
            .scrub(&NoLocks, None, go_on)
            .unwrap();
        assert_eq!(stale_copies(&fs), [0; 0], "scrubbed");
        assert_holds(&fs, &model, "scrubbed");
        assert_eq!(fs.redundancy(), [(2, fs.stripes().len() as u64)]);
        fs.close();
    }
}

#[test]
fn a_stale_copy_is_recognised_wherever_its_superblock_recovery_is_interrupted() {
    let (base, model) = with_a_stale_copy(4);
    let found = claim_of(&[4]);
    let mut call = 1;
    loop {
        let mut is_over = true;
        for policy in ways_to_cut(call) {
            let rig = base.fork();
            let plan = FaultPlan::new();
            plan.add(power_cut_at(call));
            let stores = FaultStore::wrap_all(rig.stores(&[]), &plan);
            let options = options(Access::ReadWrite);
            let opened = Maintenance::open_recovering(stores, &found, &options, executor());
            is_over &= plan.triggered() == 0;
            drop(opened);
            let rig = rig.fork();
            rig.cut(policy);
            let context = format!("call {call}, {policy:?}");
            let (again, others) = identify(&rig).unwrap_or_else(|e| panic!("{context}: {e}"));
            assert_eq!(others, [], "{context}");
            let fs = open_recovering(&rig, &again).unwrap_or_else(|e| panic!("{context}: {e}"));
            assert_eq!(stale_copies(&fs), [4], "{context}");
            assert_holds(&fs, &model, &context);
            fs.close();
        }
        if is_over {
            break;
        }
        call += 1;
    }
    assert!(call > 10, "{call} calls");
}

/// The only superblocks left are those of a stale copy, which know no later epoch of the others.
#[test]
fn no_superblock_is_recovered_from_superblocks_older_than_the_directory_that_lost_its_own() {
    let (base, model) = written(4, 2, 6, false);
    let backup = base.fork();
    let mut model_since = model.clone();
    for away in [vec![], vec![2]] {
        let mut rig = base.fork();
        let fs = rig.open(&away);
        for file in 50..60 {
            let bytes = pattern(file, 9_000);
            fs.write(file, &bytes).unwrap();
            fs.sync().unwrap();
            model_since.insert(file, bytes);
        }
        fs.close();
        let kept = rig.fork();
        rig.disks[2] = backup.disks[2].fork();
        let lost = [0, 1, 3, 4, 5];
        lose_superblocks(&rig, &lost);
        let error = identify(&rig).unwrap_err();
        let is_old = |error: &CommitError| matches!(error, CommitError::Members(error) if matches!(**error, MembersError::OldSuperblocks { .. }));
        assert!(is_old(&error), "{away:?}: {error}");
        // With one more that is newer it can be done.
        rig.disks[5] = kept.disks[5].fork();
        let (found, others) = identify(&rig).unwrap();
        assert_eq!((found.clone(), others), (claim_of(&lost[..4]), vec![]));
        let fs = open_recovering(&rig, &found).unwrap();
        assert_holds(&fs, &model_since, "with a newer superblock");
        fs.close();
    }
}

#[test]
fn copies_of_online_members_and_foreign_directories_get_no_superblock() {
    let (rig, model) = written(2, 1, 3, false);
    let (other, _) = written(2, 1, 3, false);
    lose_superblocks(&rig, &[1]);
    lose_superblocks(&other, &[0, 1, 2]);
    let twin = rig.fork();
    lose_superblocks(&twin, &[0]);
    let relabelled = |disk: &MemDisk, label: &str| disk.clone().labelled(label);
    let stores: Vec<StoreRef> = vec![
        Arc::new(rig.disks[0].open()),
        Arc::new(rig.disks[2].open()),
        Arc::new(relabelled(&twin.disks[0], "twin of 0").open()),
        Arc::new(relabelled(&other.disks[1], "of another").open()),
        Arc::new(relabelled(&rig.disks[1], "moved").open()),
    ];
    let ask = |stores: &[StoreRef]| {
        crate::maintenance::identify_members(stores, &options(Access::ReadOnly), &executor())
            .unwrap()
    };
    let (found, others) = ask(&stores);
    assert_eq!(found, [("moved".to_owned(), MemberIndex(1))].into());
    let reasons: BTreeMap<_, _> = others
        .iter()
        .map(|o| (&*o.path, o.reason.to_string()))
        .collect();
    assert!(
        reasons["twin of 0"].contains("member 0 does, which is there"),
        "{reasons:?}"
    );
    assert!(
        reasons["of another"].contains("of another volume"),
        "{reasons:?}"
    );
    // Both directories hold the data of one member, and neither is known to be newer.
    let twin = relabelled(&rig.disks[1], "twin of 1");
    let stores = [
        &stores[..2],
        &stores[4..],
        &[Arc::new(twin.open()) as StoreRef],
    ]
    .concat();
    let (found, others) = ask(&stores);
    assert_eq!((found.len(), others.len()), (0, 2), "{others:?}");
    let fs = rig.open(&[1]);
    assert_holds(&fs, &model, "without it");
}

/// Two of seven have it, and a search by the paths finds neither.
#[test]
fn superblocks_are_recovered_if_few_members_have_the_index_and_all_directories_were_moved() {
    let (base, model) = written(2, 1, 7, false);
    let holders = base.holders();
    assert_eq!(holders.len(), 2);
    for (left, by) in (0..7).flat_map(|left| (1..7).map(move |by| (left, by))) {
        let context = format!("{left} has its superblock, moved by {by}");
        let rig = base.fork();
        let lost: Vec<_> = (0..7).filter(|disk| *disk != left).collect();
        lose_superblocks(&rig, &lost);
        move_paths(&rig, left, by);
        let (found, others) = identify(&rig).unwrap_or_else(|e| panic!("{context}: {e}"));
        assert_eq!((found.len(), others), (6, vec![]), "{context}");
        for holder in holders.iter().filter(|holder| **holder != left) {
            let claimed = usize::from(found[&format!("disk{holder}")].0);
            assert!(holders.contains(&claimed), "{context}: {found:?}");
        }
        let fs = open_recovering(&rig, &found).unwrap_or_else(|e| panic!("{context}: {e}"));
        assert_holds(&fs, &model, &context);
        assert_eq!(stale_copies(&fs), [0; 0], "{context}");
        fs.close();
    }
}

/// For example a copy that was mounted alone. The others neither need it nor wait for it.
#[test]
fn a_stray_directory_that_is_ahead_does_not_stop_recovery_if_the_others_suffice() {
    let (mut rig, model) = written(4, 2, 6, false);
    let apart = rig.fork();
    let fs = apart.open(&[]);
    for file in 50..59 {
        fs.write(file, &pattern(file, 9_000)).unwrap();
        fs.sync().unwrap();
    }
    fs.close();
    rig.disks[0] = apart.disks[0].fork();
    for (lost, suffice) in [(vec![0, 1], true), (vec![0, 1, 2], false)] {
        let rig = rig.fork();
        lose_superblocks(&rig, &lost);
        let asked = identify(&rig);
        if !suffice {
            let error = asked.unwrap_err().to_string();
            assert!(
                error.contains("disk0 has lost its superblock, and went on"),
                "{error}"
            );
            continue;
        }
        let (found, others) = asked.unwrap();
        assert_eq!(found, claim_of(&[1]));
        let [stray] = &others[..] else {
            panic!("{others:?}");
        };
        assert_eq!(stray.path, "disk0");
        assert!(
            stray.to_string().contains("went on without those"),
            "{stray}"
        );
        let before = rig.disks[0].open().list("").unwrap();
        let fs = open_recovering(&rig, &found).unwrap();
        assert_holds(&fs, &model, "without the stray");
        assert_eq!(stale_copies(&fs), [0; 0]);
        fs.close();
        assert_eq!(
            rig.disks[0].open().list("").unwrap(),
            before,
            "it is left as it is"
        );
    }
}

#[test]
fn a_damaged_record_in_the_only_journal_beside_a_superblock_makes_no_directory_seem_ahead() {
    for crashes in [false, true] {
        let (base, model) = written(4, 2, 6, crashes);
        for (name, block) in files::JOURNALS
            .into_iter()
            .flat_map(|name| [(name, 0), (name, 1)])
        {
            let rig = base.fork();
            let lost = [0, 1, 3, 4, 5];
            lose_superblocks(&rig, &lost);
            let offset = 4096 * block + 60;
            assert!(rig.disks[2].corrupt(name, offset, |bytes| bytes[0] ^= 1, 1));
            let context = format!("crashed: {crashes}, block {block} of {name}");
            let (found, others) = identify(&rig).unwrap_or_else(|e| panic!("{context}: {e}"));
            assert_eq!(
                (found.clone(), others),
                (claim_of(&lost), vec![]),
                "{context}"
            );
            let fs = open_recovering(&rig, &found).unwrap();
            assert_holds(&fs, &model, &context);
            fs.close();
        }
    }
}

/// Returns a volume with members 1 and above out of the epoch, the data written since, and the directories that are
/// ahead.
fn with_members_marked_missing(data: usize, parity: usize) -> (Rig, Model, Vec<usize>) {
    let (rig, mut model) = written(data, parity, data + parity, false);
    let ahead: Vec<usize> = (0..data).collect();
    let behind: Vec<usize> = (data..data + parity).collect();
    let fs = rig.open(&behind);
    for file in 50..59 {
        let bytes = pattern(file, 9_000);
        fs.write(file, &bytes).unwrap();
        fs.sync().unwrap();
        model.insert(file, bytes);
    }
    fs.close();
    (rig.fork(), model, ahead)
}

/// As long as all members are there, the remaining superblocks say that they were not mounted without the others.
#[test]
fn the_only_current_directories_recover_their_superblocks_from_members_they_marked_missing() {
    for (data, parity) in [(1, 1), (1, 2), (2, 2), (2, 3)] {
        let (base, model, ahead) = with_members_marked_missing(data, parity);
        let context = format!("{data}+{parity}");
        let rig = base.fork();
        lose_superblocks(&rig, &ahead);
        let error = TestFs::open(rig.stores(&[]), Access::ReadWrite).err();
        let error = error.expect("they would part the volume").to_string();
        assert!(error.contains("went on without"), "{context}: {error}");
        let (found, others) = identify(&rig).unwrap();
        assert_eq!(
            (found.clone(), others),
            (claim_of(&ahead), vec![]),
            "{context}"
        );
        let fs = open_recovering(&rig, &found).unwrap();
        assert_holds(&fs, &model, &context);
        assert_eq!(stale_copies(&fs), [0; 0], "{context}");
        fs.close();
        let fs = rig.open_in(&[], &context);
        assert_holds(&fs, &model, &context);
        fs.close();
        // Each has its own superblock, and they all are of one history.
        for disk in 0..data + parity {
            let others: Vec<_> = (0..data + parity).filter(|other| *other != disk).collect();
            let members = Members::survey(rig.stores(&others), executor()).unwrap();
            assert_eq!(
                members.membership().live(),
                [MemberIndex(disk as u16)],
                "{context}"
            );
        }

        // With one of the others missing it is not known with which members they went on.
        let rig = base.fork();
        lose_superblocks(&rig, &ahead);
        let last = data + parity - 1;
        if parity > 1 {
            let stores = rig.stores(&[last]);
            let asked = crate::maintenance::identify_members(
                &stores,
                &options(Access::ReadOnly),
                &executor(),
            );
            let (found, others) = asked.unwrap();
            assert_eq!(
                (found.len(), others.len()),
                (0, data),
                "{context}: {others:?}"
            );
        }
    }
}

/// An interruption at any point of the recovery does not change the outcome of the next attempt.
#[test]
fn directories_that_are_ahead_recover_their_superblocks_wherever_that_is_interrupted() {
    let (base, model, ahead) = with_members_marked_missing(2, 2);
    lose_superblocks(&base, &ahead);
    base.cut(CutPolicy::Keep);
    let found = claim_of(&ahead);
    let mut call = 1;
    loop {
        let mut is_over = true;
        for policy in ways_to_cut(call) {
            let rig = base.fork();
            let plan = FaultPlan::new();
            plan.add(power_cut_at(call));
            let stores = FaultStore::wrap_all(rig.stores(&[]), &plan);
            let options = options(Access::ReadWrite);
            let opened = Maintenance::open_recovering(stores, &found, &options, executor());
            is_over &= plan.triggered() == 0;
            drop(opened);
            let rig = rig.fork();
            rig.cut(policy);
            let context = format!("call {call}, {policy:?}");
            let (again, others) = identify(&rig).unwrap_or_else(|e| panic!("{context}: {e}"));
            assert_eq!(others, [], "{context}");
            let fs = open_recovering(&rig, &again).unwrap_or_else(|e| panic!("{context}: {e}"));
            assert_holds(&fs, &model, &context);
            fs.close();
        }
        if is_over {
            break;
        }
        call += 1;
    }
    assert!(call > 10, "{call} calls");
}

/// Where a volume can go on as two branches, only its owner gives up the one that has lost its superblock.
#[test]
fn a_branch_that_lost_its_superblock_neither_becomes_a_member_nor_is_left_out() {
    for (data, parity, branches) in [
        (1, 1, [[0], [1]].map(Vec::from)),
        (2, 2, [vec![0, 1], vec![2, 3]]),
    ] {
        for (here, there) in [(0, 9), (9, 1), (4, 4)] {
            let context = format!("{data}+{parity}, {here} records here, {there} there");
            let (base, _) = written(data, parity, data + parity, false);
            let mut mixed = base.fork();
            for (branch, others, count) in [(0, 1, here), (1, 0, there)] {
                let apart = base.fork();
                if count > 0 {
                    let fs = apart.open(&branches[others]);
                    for file in 50..50 + count {
                        fs.write(file, &pattern(file, 9_000)).unwrap();
                        fs.sync().unwrap();
                    }
                    fs.close();
                }
                for &disk in &branches[branch] {
                    mixed.disks[disk] = apart.disks[disk].fork();
                }
            }
            lose_superblocks(&mixed, &branches[1]);
            let segments = |rig: &Rig| {
                let list = |&disk: &usize| rig.disks[disk].open().list(files::SEGMENTS).unwrap();
                branches[1].iter().map(list).collect::<Vec<_>>()
            };
            let before = segments(&mixed);
            let (found, others) = identify(&mixed).unwrap();
            if here == 0 {
                // No other members went on.
                assert_eq!(
                    (found, others),
                    (claim_of(&branches[1]), vec![]),
                    "{context}"
                );
                continue;
            }
            assert_eq!(
                (found, others.len()),
                (RecoveredMembers::new(), branches[1].len()),
                "{context}"
            );
            let is_told = |other: &Unusable| {
                other
                    .to_string()
                    .contains("whether the volume went on there")
            };
            assert!(others.iter().all(is_told), "{context}: {others:?}");
            let opened = TestFs::open(mixed.stores(&[]), Access::ReadWrite);
            if there > here {
                let error = opened.err().unwrap_or_else(|| panic!("{context}"));
                assert!(
                    error.to_string().contains("went on without"),
                    "{context}: {error}"
                );
            } else if let Ok(fs) = opened {
                fs.write(90, b"works").unwrap();
                fs.close();
            }
            TestFs::open(mixed.stores(&branches[1]), Access::ReadOnly)
                .unwrap()
                .close();
            assert_eq!(segments(&mixed), before, "{context}");
        }
    }
}

/// A member that hangs, or fails, may be the branch that is ahead, or all that is known of the others.
#[test]
fn a_branch_is_not_left_out_while_it_may_be_ahead() {
    let (rig, _) = written(1, 1, 2, false);
    lose_superblocks(&rig, &[1]);
    let open = |member: usize, nth: u64, access: Access| {
        let mixed = rig.fork();
        let plan = FaultPlan::new();
        let fault = Fault::at(nth, Effect::Eio).of(Scope::MemberKind(member, CallKind::Read));
        plan.add(fault.lasting());
        let stores = FaultStore::wrap_all(mixed.stores(&[]), &plan);
        let opened = TestFs::open(stores, access);
        let epochs = mixed.disks.iter().map(|disk| {
            let names = disk.open().list("").unwrap();
            names.iter().any(|(name, _)| name == files::SUPERBLOCK)
        });
        assert!(epochs.eq([true, false]), "nothing is recreated");
        opened
    };
    let cannot_be_told = |opened: &Result<TestFs, CommitError>| {
        let error = opened.as_ref().err().map(ToString::to_string);
        error.is_some_and(|error| error.contains("it is unknown whether it went on"))
    };
    // The reads of superblocks come first.
    for member in [0, 1] {
        let opened: Vec<_> = (1..12)
            .map(|nth| open(member, nth, Access::ReadWrite))
            .collect();
        let refused = opened.iter().filter(|opened| cannot_be_told(opened));
        assert!(refused.count() > 0, "member {member}");
    }
    open(1, 2, Access::ReadOnly).unwrap().close();
}
