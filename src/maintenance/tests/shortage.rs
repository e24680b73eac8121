//! Tests that missing shards are known without a count of all.

use super::rebuild::{assert_whole, fill};
use super::*;

#[test]
fn files_that_readers_or_counting_find_gone_or_cut_short_are_called_for() {
    for (is_read, is_cut) in [(true, true), (true, false), (false, true), (false, false)] {
        let context = format!("read {is_read}, cut {is_cut}");
        let rig = Rig::new(2, 1, 3);
        let fs = rig.open(&[]);
        let mut model = Model::new();
        fill(&fs, 0, &mut model);
        fs.close();
        let fs = rig.open(&[]);
        let disk = rig.disks[1].open();
        for (name, _) in disk.list(files::SEGMENTS).unwrap() {
            if is_cut {
                disk.truncate(&name, 0).unwrap();
            } else {
                disk.remove(&name).unwrap();
            }
        }
        assert!(
            !fs.maintenance.redundancy.may_lack_shards().unwrap(),
            "{context}"
        );
        if is_read {
            assert_holds(&fs, &model, &context);
        } else {
            assert_eq!(fs.redundancy()[0].0, 0, "{context}");
        }
        assert!(
            fs.maintenance.redundancy.may_lack_shards().unwrap(),
            "{context}"
        );
        fs.rebuild().unwrap();
        assert_whole(fs, &rig, &[], 1, &model, &context);
    }
}

/// A stripe that is not full has no shards in some slots of its segment, but files are there for all.
#[test]
fn files_that_hold_no_shard_are_created_again_as_well() {
    for disk in 0..3 {
        let rig = Rig::new(2, 1, 3);
        let fs = rig.open(&[]);
        fs.write(1, &pattern(1, 3000)).unwrap();
        fs.transactions.checkpoint().unwrap();
        let holds_shard = fs.written_shards().iter().any(|shard| shard.disk == disk);
        fs.close();
        let store = rig.disks[disk].open();
        for (name, _) in store.list(files::SEGMENTS).unwrap() {
            store.remove(&name).unwrap();
        }
        let fs = rig.open(&[]);
        assert!(
            fs.maintenance.redundancy.may_lack_shards().unwrap(),
            "disk {disk}"
        );
        assert_eq!(
            fs.maintenance.redundancy.lacks_shards().unwrap(),
            holds_shard,
            "disk {disk}"
        );
        fs.rebuild().unwrap();
        assert!(
            !fs.maintenance.redundancy.may_lack_shards().unwrap(),
            "disk {disk}"
        );
        fs.close();
        let fs = rig.open(&[]);
        assert!(
            !fs.maintenance.redundancy.may_lack_shards().unwrap(),
            "disk {disk}, again"
        );
        assert_eq!(fs.redundancy(), [(1, 1)], "disk {disk}");
    }
}

/// Dead stripes are given back in a moment; until then they lack what they lacked, which does no harm.
#[test]
fn a_volume_whose_dead_stripes_alone_lack_shards_lacks_none() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[1]);
    fs.write(1, &pattern(1, 70_000)).unwrap();
    fs.close();
    let fs = rig.open(&[]);
    assert!(fs.maintenance.redundancy.lacks_shards().unwrap());
    fs.remove(1).unwrap();
    fs.sync().unwrap();
    assert!(fs.maintenance.redundancy.may_lack_shards().unwrap());
    assert!(!fs.maintenance.redundancy.lacks_shards().unwrap());
    assert_eq!(fs.redundancy(), []);
}

/// Neither is lost by itself what was never written to one member, nor what another has that is away.
#[test]
fn data_lost_to_unwritten_shards_and_absent_members_together_is_worth_a_count() {
    let rig = Rig::new(2, 1, 3);
    let plan = FaultPlan::new();
    let fs = rig.open_with_faults(&plan).unwrap();
    fs.write(1, &pattern(1, 100)).unwrap();
    fs.sync().unwrap();
    plan.add(
        Fault::at(1, Effect::Eio)
            .of(Scope::MemberKind(0, CallKind::Write))
            .lasting(),
    );
    fs.write(2, &pattern(2, 2 * UNIT)).unwrap();
    fs.sync().unwrap();
    fs.transactions.checkpoint().unwrap();
    assert!(!fs.maintenance.redundancy.has_lost_segments());
    assert!(!fs.maintenance.redundancy.may_have_lost_data().unwrap());
    assert_eq!(fs.redundancy()[0].0, 0);
    fs.close();
    let rig = rig.fork();
    for (away, is_lost) in [(1, true), (0, false)] {
        let fs = TestFs::open(rig.stores(&[away]), Access::ReadOnly).unwrap();
        assert!(
            !fs.maintenance.redundancy.has_lost_segments(),
            "without {away}"
        );
        assert_eq!(
            fs.maintenance.redundancy.may_have_lost_data().unwrap(),
            is_lost
        );
        assert_eq!(fs.redundancy()[0].0 < 0, is_lost, "without {away}");
    }
}

/// Data written while a member was away is whole without it, even if it is much: no mount waits for a count of
/// everything.
#[test]
fn a_mount_without_a_member_that_missed_many_writes_counts_nothing() {
    let rig = Rig::with_unit(2, 2, &[DISK; 4], BLOCK_SIZE);
    let fs = rig.open(&[]);
    fs.lose(&rig, 3);
    for file in 0..20 {
        fs.write(file, &pattern(file, 20 * BLOCK_SIZE)).unwrap();
    }
    fs.sync().unwrap();
    fs.close();
    rig.disks[3].fail(None);
    let fs = rig.open(&[3]);
    let (from, end) = key::repairs();
    let notes = fs.transactions.scan(&from, &end, usize::MAX).unwrap().len();
    assert!(notes > 16 * 8, "more than are looked at: {notes}");
    assert!(!fs.maintenance.redundancy.may_have_lost_data().unwrap());
    fs.close();
    // Of stripes that may not bear it, each is looked at, as long as there are not too many.
    let fs = rig.open(&[2, 3]);
    assert!(fs.maintenance.redundancy.may_have_lost_data().unwrap());
    assert!(fs.redundancy().iter().all(|row| row.0 >= 0));
}
