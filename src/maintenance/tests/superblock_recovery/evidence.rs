//! Evidence by which a directory without a superblock is identified.

use std::collections::BTreeSet;

use crate::format::MemberIndex;
use crate::maintenance::tests::*;
use crate::membership::{RecoveredMembers, Unusable};

/// A closed volume with a file in many segments, of which some have shards that are nothing but zeros.
fn written() -> Rig {
    let rig = Rig::new(4, 2, 6);
    let fs = rig.open(&[]);
    for file in 0..8 {
        let mut bytes = pattern(file, 200_000);
        for shard in bytes.chunks_mut(UNIT).step_by(4) {
            shard.fill(0);
        }
        fs.write(file, &bytes).unwrap();
        fs.sync().unwrap();
    }
    fs.close();
    rig
}

fn identify_in(stores: &[StoreRef]) -> Result<(RecoveredMembers, Vec<Unusable>), CommitError> {
    let options = OpenOptions {
        access: Access::ReadOnly,
        threads: 0,
        ..OpenOptions::default()
    };
    crate::maintenance::identify_members(stores, &options, &executor())
}

/// Removes the superblock of a disk, and returns its segment files.
fn remove_superblock(rig: &Rig, disk: usize) -> Vec<(String, u64)> {
    let store = rig.disks[disk].open();
    store.remove(files::SUPERBLOCK).unwrap();
    store.list(files::SEGMENTS).unwrap()
}

fn claim_of(disk: usize) -> (String, MemberIndex) {
    (format!("disk{disk}"), MemberIndex(disk as u16))
}

/// An interrupted rebuild may have left any of the segments there.
#[test]
fn a_directory_with_shards_of_two_members_is_identified_as_neither() {
    let base = written();
    let (mixed, whole) = (1, 4);
    let shards = base.fork().open(&[]).written_shards();
    let tells = |shard: &&WrittenShard| {
        let first = &base.bytes_of(shard)[..BLOCK_SIZE];
        shard.disk == whole && first.iter().any(|byte| *byte != 0)
    };
    let strange: BTreeSet<&String> = shards.iter().filter(tells).map(|s| &s.name).collect();
    assert!(strange.len() > 2, "{strange:?}");
    for name in strange {
        let rig = base.fork();
        let mut segments = remove_superblock(&rig, mixed).into_iter();
        remove_superblock(&rig, whole);
        let (_, len) = segments.find(|(other, _)| other == name).unwrap();
        let mut bytes = vec![0; len as usize];
        let from = rig.disks[whole].open();
        from.read_at(name, 0, &mut bytes).unwrap();
        let put = |old: &mut [u8]| old.copy_from_slice(&bytes);
        assert!(rig.disks[mixed].corrupt(name, 0, put, bytes.len()));
        let (found, others) = identify_in(&rig.stores(&[])).unwrap();
        assert_eq!(found, [claim_of(whole)].into(), "{name}");
        let left: Vec<&str> = others.iter().map(|other| &*other.path).collect();
        assert_eq!(left, ["disk1"], "{name}: {others:?}");
    }
}

/// Space that was reserved for a shard and never written is zeros, and so are shards of other members.
#[test]
fn blocks_of_zeros_identify_no_member() {
    let rig = written();
    let fs = rig.open(&[]);
    let shards = fs.written_shards();
    let is_zeros = |shard: &WrittenShard| rig.bytes_of(shard).iter().all(|byte| *byte == 0);
    let zeros: Vec<&WrittenShard> = shards.iter().filter(|shard| is_zeros(shard)).collect();
    let bereft = 2;
    let mut spoilt = 0;
    for zeros in zeros.iter().filter(|zeros| zeros.disk != bereft) {
        let own = shards
            .iter()
            .find(|own| own.stripe == zeros.stripe && own.disk == bereft);
        // Enough is left by which it is known.
        if let Some(own) = own.filter(|own| own.stripe.0 % 2 == 0 && !is_zeros(own)) {
            let disk = &rig.disks[bereft];
            assert!(disk.corrupt(&own.name, own.offset, |bytes| bytes.fill(0), BLOCK_SIZE));
            spoilt += 1;
        }
    }
    assert!(spoilt > 0, "{} shards of zeros", zeros.len());
    fs.close();
    let rig = rig.fork();
    remove_superblock(&rig, bereft);
    let (found, others) = identify_in(&rig.stores(&[])).unwrap();
    assert_eq!((found, others), ([claim_of(bereft)].into(), vec![]));
}

/// Returns the number of the first read of a file on a disk during the identification.
fn read_of(rig: &Rig, disk: usize, name: &str) -> u64 {
    let plan = FaultPlan::new();
    plan.record();
    identify_in(&FaultStore::wrap_all(rig.stores(&[]), &plan)).unwrap();
    let calls = plan.take_log().into_iter();
    let mut reads = calls.filter(|call| call.member == disk && call.kind == CallKind::Read);
    reads
        .position(|read| read.name == name)
        .expect("it is read") as u64
        + 1
}

/// It may say that the volume went on there: so it is left as it is, and the problem is reported.
#[test]
fn a_directory_with_an_unreadable_journal_is_left_out_and_the_others_are_not() {
    for journal in files::JOURNALS {
        let rig = written();
        let (unreadable, other) = (3, 5);
        remove_superblock(&rig, unreadable);
        remove_superblock(&rig, other);
        let plan = FaultPlan::new();
        let nth = read_of(&rig, unreadable, journal);
        let read = Scope::MemberKind(unreadable, CallKind::Read);
        plan.add(Fault::at(nth, Effect::Eio).of(read));
        let stores = FaultStore::wrap_all(rig.stores(&[]), &plan);
        let (found, others) = identify_in(&stores).unwrap();
        assert_eq!(plan.triggered(), 1, "{journal}");
        assert_eq!(found, [claim_of(other)].into(), "{journal}");
        let reasons: Vec<_> = others
            .iter()
            .map(|o| (&*o.path, o.reason.to_string()))
            .collect();
        let [("disk3", reason)] = &reasons[..] else {
            panic!("{journal}: {others:?}");
        };
        assert!(reason.contains("its superblock is lost"), "{reason}");
        assert!(reason.contains(journal), "{reason}");
    }
}
