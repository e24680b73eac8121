//! A pack of stripes that is moved. Asserted on the bytes on the disks.

use super::*;
use crate::maintenance::rebuild::RebuildScope;
use crate::maintenance::tests::{
    NoLocks, Rig, TestFs, WrittenShard, assert_holds, at_once, packed,
};

/// Returns the bytes of a stripe that lie on the disks, without parity.
fn data_of(fs: &TestFs, rig: &Rig, stripe: StripeId) -> Vec<u8> {
    let shards = fs.written_shards().into_iter();
    let mut data: Vec<WrittenShard> = shards
        .filter(|it| it.stripe == stripe && it.shard.0 < 2)
        .collect();
    data.sort_by_key(|it| it.shard);
    data.iter().flat_map(|it| rig.bytes_of(it)).collect()
}

#[test]
fn a_pack_becomes_one_stripe_and_the_space_of_its_old_ones_is_free_after_a_commit() {
    let (rig, model, segment) = packed();
    let fs = rig.open(&[]);
    let copy_out = &fs.maintenance.rebuild().copy_out;
    let all = copy_out.all_in(segment).unwrap();
    let packs = packs(&all, copy_out.stripes.writer().stripe_capacity());
    let lens: Vec<usize> = packs.iter().map(|pack| pack.len()).collect();
    assert_eq!(lens, [2, 2, 2, 1]);
    let pack = packs[1];
    let is_in_pack = |stripe| pack.iter().any(|found| found.stripe == stripe);
    let stripe_of = |file| fs.extents(file).unwrap()[0].1.stripe;
    let files: Vec<u64> = model.keys().copied().collect();
    let (moved, kept): (Vec<u64>, Vec<u64>) = files
        .into_iter()
        .partition(|file| is_in_pack(stripe_of(*file)));
    let places_of_kept: Vec<StripeId> = kept.iter().map(|file| stripe_of(*file)).collect();
    let shards = fs.written_shards().into_iter();
    let (old, others): (Vec<_>, Vec<_>) = shards
        .map(|shard| (rig.bytes_of(&shard), shard))
        .partition(|(_, shard)| is_in_pack(shard.stripe));
    assert_eq!((moved.len(), old.len()), (4, 6));

    let no_rest = at_once();
    let round = Round::new(RebuildScope::Everything, &no_rest, None);
    let how: (&dyn InodeLocks, Floor) = (&NoLocks, Floor::Written);
    let mut blocked = Blocked::default();
    let outcome = copy_out.move_pack(pack, how, &|_| true, &mut blocked, &round);
    let counted: u64 = pack.iter().map(|found| found.counted_bytes).sum();
    assert!(matches!(outcome, Ok(PackOutcome::Moved(bytes)) if bytes == counted));
    let new = stripe_of(moved[0]);
    assert!(!is_in_pack(new));
    let on_disks = data_of(&fs, &rig, new);
    for file in &moved {
        let extents = fs.extents(*file).unwrap();
        let [(_, extent)] = extents[..] else {
            panic!("file {file} is in parts: {extents:?}");
        };
        assert_eq!(extent.stripe, new, "file {file}");
        let start = extent.stripe_offset as usize;
        let found = &on_disks[start..][..model[file].len()];
        assert!(found == model[file], "file {file} has other bytes there");
    }
    // A power cut would bring the old stripes back.
    for (bytes, shard) in &old {
        assert!(rig.bytes_of(shard) == *bytes, "{} was changed", shard.name);
    }

    fs.sync().unwrap();
    copy_out.reaper.free_dead().unwrap();
    for (_, shard) in &old {
        assert!(rig.is_freed(shard), "{} stays", shard.name);
        assert_eq!(fs.transactions.stripe(shard.stripe).unwrap(), None);
    }
    for (bytes, shard) in &others {
        assert!(rig.bytes_of(shard) == *bytes, "{} was changed", shard.name);
    }
    let now: Vec<StripeId> = kept.iter().map(|file| stripe_of(*file)).collect();
    assert_eq!(now, places_of_kept);
    fs.assert_shards_lie_on(&rig, &[], "moved");
    fs.close();
    for lost in 0..rig.disks.len() {
        let fs = rig.fork().open(&[lost]);
        assert_holds(&fs, &model, &format!("without {lost}"));
    }
}
