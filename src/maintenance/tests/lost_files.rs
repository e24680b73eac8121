//! Segment files that another program deleted, or cut short: erasures of the shards they held, and no more.

use super::*;
use crate::format::{MemberIndex, SegmentId};
use crate::store::{Call, CallKind};

/// The harm to a segment file behind the volume's back.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Delete,
    Cut(u64),
}

impl Harm {
    fn befall(self, disk: &MemDisk, name: &str) {
        let store = disk.open();
        match self {
            Self::Delete => store.remove(name).unwrap(),
            Self::Cut(len) => {
                store.truncate(name, len).unwrap();
                store.sync(name).unwrap();
            }
        }
    }
}

fn segment_files(disk: &MemDisk) -> Vec<(String, u64)> {
    disk.open().list(files::SEGMENTS).unwrap()
}

fn assert_all_online(fs: &TestFs, count: usize, context: &str) {
    assert_eq!(
        fs.transactions.members().membership().live().len(),
        count,
        "{context}"
    );
}

#[test]
fn a_segment_file_that_is_gone_or_too_short_costs_its_shards_and_not_its_member() {
    let base = Rig::new(2, 1, 4);
    let fs = base.open(&[]);
    let mut model = Model::new();
    for (file, len) in [(1, 200_000), (2, 5_000), (3, 70_000)] {
        let bytes = pattern(file, len);
        fs.write(file, &bytes).unwrap();
        model.insert(file, bytes);
    }
    fs.transactions.checkpoint().unwrap();
    fs.close();
    let mut harmed = 0;
    for (disk, files) in base.disks.iter().enumerate() {
        for (name, len) in segment_files(files) {
            let cuts = [0, 1, BLOCK_SIZE as u64, len / 2, len - 1];
            for harm in [Harm::Delete].into_iter().chain(cuts.map(Harm::Cut)) {
                let context = format!("disk {disk}, {name}: {harm:?} of {len}");
                let rig = base.fork();
                harm.befall(&rig.disks[disk], &name);
                let fs = rig.open(&[]);
                let left = |shard: &WrittenShard| match harm {
                    Harm::Delete => false,
                    Harm::Cut(len) => shard.offset + shard.height as u64 <= len,
                };
                let shards = fs.written_shards();
                let lost = shards
                    .iter()
                    .filter(|shard| shard.disk == disk && shard.name == name && !left(shard));
                let worst = match lost.count() as u64 {
                    0 => (1, fs.stripes().len() as u64),
                    lost => (0, lost),
                };
                assert_eq!(fs.redundancy()[0], worst, "{context}");
                harmed += worst.1 * u64::from(worst.0 == 0);
                assert_holds(&fs, &model, &context);
                assert_all_online(&fs, 4, &context);
                fs.write(9, &pattern(9, 50_000)).unwrap();
                fs.sync().unwrap();
                fs.close();
                let fs = rig.open(&[]);
                assert_holds(&fs, &model, &format!("{context}, reopened"));
                assert_eq!(fs.read(9).unwrap(), pattern(9, 50_000), "{context}");
                assert_all_online(&fs, 4, &context);
            }
        }
    }
    assert!(harmed > 100, "only {harmed} shards were harmed");
}

/// Also where the file is one that stripes are being written to: they go elsewhere.
#[test]
fn a_segment_file_that_is_deleted_or_cut_while_it_is_written_costs_its_shards_and_not_its_member() {
    for disk in 0..4 {
        for harm in [Harm::Delete, Harm::Cut(0), Harm::Cut(BLOCK_SIZE as u64)] {
            let context = format!("disk {disk}, {harm:?}");
            let rig = Rig::new(2, 1, 4);
            let plan = FaultPlan::new();
            let fs = rig.open_with_faults(&plan).unwrap();
            let mut model = Model::new();
            let mut write = |fs: &TestFs, file, len| {
                let bytes = pattern(file, len);
                fs.write(file, &bytes).unwrap();
                model.insert(file, bytes);
                if file % 2 == 0 {
                    fs.sync().unwrap();
                }
            };
            for file in 0..3 {
                write(&fs, file, 20_000);
            }
            let harmed = segment_files(&rig.disks[disk]);
            for (name, _) in &harmed {
                harm.befall(&rig.disks[disk], name);
            }
            plan.record();
            for file in 3..12 {
                write(&fs, file, 20_000);
            }
            fs.sync().unwrap();
            assert_holds(&fs, &model, &context);
            assert_all_online(&fs, 4, &context);
            let is_vain = |call: &Call| {
                let is_write = call.kind == CallKind::Write && call.member == disk;
                is_write && harmed.iter().any(|(name, _)| *name == call.name)
            };
            let vain = plan.take_log().iter().filter(|call| is_vain(call)).count();
            if matches!(harm, Harm::Delete) {
                assert!(vain <= 1, "{context}: {vain} writes to a file that is gone");
            }
            // The stripes written after the harm are whole.
            let newest = *fs.stripes().last().unwrap();
            let record = fs.transactions.stripe(newest).unwrap().unwrap();
            assert_eq!(record.written.len(), 3, "{context}");
            rig.cut(CutPolicy::Drop);
            assert_holds(&rig.open(&[]), &model, &format!("{context}, reopened"));
        }
    }
}

#[test]
fn missing_shards_are_listed_by_the_file_that_should_hold_them() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    fs.write(1, &pattern(1, 100_000)).unwrap();
    fs.transactions.checkpoint().unwrap();
    assert_eq!(fs.maintenance.redundancy.missing_shards().unwrap(), []);
    let shards = fs.written_shards();
    fs.close();
    let name = files::segment(SegmentId(1));
    let first = |disk| {
        let of_disk = shards.iter().filter(|s| s.disk == disk && s.name == name);
        of_disk.map(|s| s.height as u64).next().unwrap()
    };
    let count = |disk| {
        let of_disk = shards.iter().filter(|s| s.disk == disk && s.name == name);
        of_disk.count() as u64
    };
    Harm::Delete.befall(&rig.disks[0], &name);
    Harm::Cut(first(2)).befall(&rig.disks[2], &name);
    let fs = rig.open(&[1]);
    let expected = |member, found, shards| MissingShards {
        member: MemberIndex(member),
        segment: SegmentId(1),
        found,
        shards,
    };
    assert_eq!(
        fs.maintenance.redundancy.missing_shards().unwrap(),
        [
            expected(0, None, count(0)),
            expected(2, Some(first(2)), count(2) - 1)
        ]
    );
}

#[test]
fn unreadable_shards_wait_no_more_once_the_files_that_held_them_are_removed() {
    let rig = Rig::new(2, 1, 3);
    let fs = rig.open(&[]);
    for file in 0..4 {
        fs.write(file, &pattern(file, 60_000)).unwrap();
    }
    fs.sync().unwrap();
    fs.close();
    let fs = rig.open(&[]);
    let shards = fs.written_shards();
    let lost = &shards[0].name;
    for disk in 0..2 {
        rig.disks[disk].open().remove(lost).unwrap();
    }
    fs.rebuild().unwrap();
    let waits = || {
        let rows = fs.redundancy();
        (
            rows.len(),
            fs.maintenance
                .rebuild()
                .status()
                .progress()
                .bytes_unreadable,
        )
    };
    let (_, unreadable) = waits();
    assert!(unreadable > 0);
    for file in 0..4 {
        fs.remove(file).unwrap();
    }
    fs.sync().unwrap();
    assert_eq!(waits(), (0, 0));
}
