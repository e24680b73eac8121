//! Disks that others fill, and that have copies of the index.

use super::full::{add, assert_records};
use super::*;
use crate::format::MemberIndex;
use crate::store::{Effect, Fault, Scope};
use crate::transaction::FullMembers;

/// Lets another program take all free space.
pub(super) fn fill_disk(disk: &MemDisk) {
    fill_disk_but(disk, 0);
}

/// Lets another program take all free space except so many bytes.
fn fill_disk_but(disk: &MemDisk, left: u64) {
    let space = disk.open().space().unwrap();
    disk.set_capacity(space.total_bytes - space.free_bytes + left);
}

/// Others fill disks that have copies of the index, one after the other, and those that are left have room.
#[test]
fn as_long_as_some_have_room_for_the_index_full_members_cost_nothing() {
    let rig = Rig::new(2, 1, 6);
    let fs = rig.open(&[]);
    let mut model = Model::new();
    for file in 0..3 {
        let before = rig.holders();
        assert_eq!(before.len(), 2, "after {file} disks were filled");
        fill_disk(&rig.disks[before[0]]);
        fs.transactions.growth.measure_growth();
        assert!(matches!(add(&fs, file), Err(CommitError::NoSpace)));
        assert!(fs.maintenance.room.make_room(0, &NoLocks).unwrap());
        add(&fs, file).unwrap();
        let after = rig.holders();
        assert!(!after.contains(&before[0]) && after.contains(&before[1]));
        let bytes = pattern(file, 60_000);
        fs.write(file, &bytes).unwrap();
        model.insert(file, bytes);
        fs.sync().unwrap();
    }
    assert_eq!(fs.transactions.members().membership().live().len(), 6);
    fs.close();
    for lost in subsets(6, 1) {
        let fs = rig.fork().open(&lost);
        assert_holds(&fs, &model, &format!("lost {lost:?}"));
        assert_records(&fs, 0..3);
    }
}

/// Exactly as many members as a stripe has shards, of which some are full.
#[test]
fn full_members_cost_redundancy_alone_where_they_may_and_get_their_shards_once_they_have_room() {
    for (data, parity, full) in [(4, 2, &[1][..]), (4, 2, &[0, 5]), (2, 1, &[2])] {
        let rig = Rig::new(data, parity, data + parity);
        let context = format!("{data}+{parity}, full {full:?}");
        let options = OpenOptions {
            cache_bytes: 1 << 20,
            index_cache_bytes: 1 << 20,
            threads: 0,
            count_limits: LIMITS,
            full_members: FullMembers::Degrade,
            ..OpenOptions::default()
        };
        let fs = Maintenance::open(rig.stores(&[]), &options, executor());
        let fs = TestFs::over(fs.unwrap());
        let mut model = Model::new();
        super::rebuild::fill(&fs, 0, &mut model);
        for disk in full {
            fill_disk(&rig.disks[*disk]);
        }
        fs.transactions.stripes.segments().retire_all().unwrap();
        for round in 1..4 {
            super::rebuild::fill(&fs, 100 * round, &mut model);
        }
        let members: Vec<usize> = fs
            .transactions
            .full_members()
            .iter()
            .map(|it| usize::from(it.0))
            .collect();
        assert_eq!(members, full, "{context}");
        let free = fs.transactions.space().usable_free;
        assert!(free > 0, "{context}");
        let rows = fs.redundancy();
        let left = (parity - full.len()) as i16;
        assert_eq!(
            rows.first().map(|row| row.0),
            Some(left),
            "{context}: {rows:?}"
        );
        assert_holds(&fs, &model, &context);
        // There is still no room.
        fs.transactions.stripes.segments().retire_all().unwrap();
        let done = fs.rebuild().unwrap();
        assert!(done.bytes_waiting > 0, "{context}: {done:?}");
        assert_eq!(
            fs.redundancy().first().map(|row| row.0),
            Some(left),
            "{context}"
        );
        for disk in full {
            rig.disks[*disk].set_capacity(DISK);
        }
        let done = fs.rebuild().unwrap();
        assert_eq!(done.bytes_waiting, 0, "{context}: {done:?}");
        super::rebuild::assert_whole(fs, &rig, &[], parity, &model, &context);
    }
}

#[test]
fn a_full_member_stops_writing_unless_it_may_cost_redundancy() {
    let rig = Rig::new(4, 2, 6);
    let fs = rig.open(&[]);
    fill_disk(&rig.disks[1]);
    let refused = (0..100).find_map(|file| fs.write(file, &pattern(file, 100_000)).err());
    assert!(matches!(refused, Some(CommitError::NoSpace)), "{refused:?}");
    let full = fs.transactions.full_members();
    assert_eq!(full.into_iter().collect::<Vec<_>>(), [MemberIndex(1)]);
}

/// Copying a large index takes long; here it takes until the test lets it end.
#[test]
fn additions_do_not_wait_while_the_index_moves_off_a_full_member() {
    let rig = Rig::new(2, 1, 5);
    let plan = FaultPlan::new();
    let fs = rig.open_with_faults(&plan).unwrap();
    let full = rig.holders()[0];
    fill_disk(&rig.disks[full]);
    fs.transactions.growth.measure_growth();
    assert!(matches!(add(&fs, 0), Err(CommitError::NoSpace)));
    plan.add(Fault::at(1, Effect::Hang).of(Scope::Kind(CallKind::Create)));
    let added = std::thread::scope(|scope| {
        let moving = scope.spawn(|| fs.maintenance.room.make_room(0, &NoLocks));
        while plan.triggered() == 0 && !moving.is_finished() {
            std::thread::yield_now();
        }
        let add_durably = |number| add(&fs, number).and_then(|()| fs.sync());
        let adding = scope.spawn(move || (0..5).try_for_each(add_durably));
        // Only if it waits for what waits for this test is the patience needed.
        let mut patience = 0..10_000;
        while !adding.is_finished() && patience.next().is_some() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let added = adding.is_finished().then_some(());
        assert!(!moving.is_finished(), "the index moved at once");
        plan.release();
        adding.join().unwrap().unwrap();
        assert!(moving.join().unwrap().unwrap());
        added
    });
    assert!(added.is_some(), "it waited until the index had moved");
    assert!(!rig.holders().contains(&full));
    fs.sync().unwrap();
    fs.transactions.checkpoint().unwrap();
    fs.close();
    for lost in subsets(5, 1) {
        assert_records(&rig.fork().open(&lost), 0..5);
    }
}

#[test]
fn the_index_leaves_full_members_before_anybody_asks_for_room() {
    let rig = Rig::new(2, 2, 6);
    let fs = rig.open(&[]);
    let before = rig.holders();
    assert_eq!(before.len(), 3);
    fill_disk(&rig.disks[before[0]]);
    // A filesystem may say so and yet be full.
    fill_disk_but(&rig.disks[before[1]], 200 << 10);
    fs.transactions.growth.measure_growth();
    for _ in 0..100 {
        fs.transactions.clock.look_after_index();
        fs.transactions.clock().tick().unwrap();
    }
    let after = rig.holders();
    assert_eq!(after.len(), 3);
    assert!(before[..2].iter().all(|full| !after.contains(full)));
    add(&fs, 1).unwrap();
}

#[test]
fn the_index_stays_where_all_are_full_and_where_there_is_room_again() {
    let rig = Rig::new(2, 1, 4);
    let fs = rig.open(&[]);
    let before = rig.holders();
    rig.disks.iter().for_each(fill_disk);
    fs.transactions.growth.measure_growth();
    assert!(matches!(add(&fs, 1), Err(CommitError::NoSpace)));
    fs.maintenance.room.make_room(0, &NoLocks).unwrap();
    assert_eq!(rig.holders(), before);
    for full in &before {
        rig.disks[*full].set_capacity(DISK);
    }
    add(&fs, 1).unwrap();
    fs.sync().unwrap();
    fs.transactions.commits.refill_index(100).unwrap();
    assert_eq!(rig.holders(), before);
    assert_records(&fs, 1..2);
}

#[test]
fn a_power_cut_at_any_call_of_moving_the_index_loses_nothing() {
    let base = Rig::new(2, 1, 5);
    let fs = base.open(&[]);
    let mut model = Model::new();
    for file in 0..4 {
        let bytes = pattern(file, 40_000);
        fs.write(file, &bytes).unwrap();
        model.insert(file, bytes);
    }
    for number in 0..3 {
        add(&fs, number).unwrap();
    }
    fs.close();
    for call in 1.. {
        let rig = base.fork();
        let plan = FaultPlan::new();
        let fs = rig.open_with_faults(&plan).unwrap();
        let full = rig.holders()[0];
        fill_disk(&rig.disks[full]);
        fs.transactions.growth.measure_growth();
        plan.add(power_cut_at(call));
        let moved = fs.maintenance.room.make_room(0, &NoLocks);
        let moved = moved.and_then(|_| add(&fs, 3)).and_then(|()| fs.sync());
        let struck = plan.triggered() > 0;
        drop(fs);
        for policy in ways_to_cut(call) {
            for lost in [vec![], vec![call as usize % 5]] {
                let rig = rig.fork();
                rig.cut(policy);
                let context = format!("cut {call}, {policy:?}, lost {lost:?}");
                let fs = rig.open_in(&lost, &context);
                assert_holds(&fs, &model, &context);
                assert_records(&fs, 0..3 + u64::from(moved.is_ok()));
            }
        }
        if !struck {
            moved.unwrap();
            assert!(call > 20, "only {call} calls");
            assert!(!rig.holders().contains(&full));
            break;
        }
    }
}
