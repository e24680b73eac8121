//! Bytes that are lost and that no file holds any more.

use super::*;
use crate::format::record::LostBytes;

/// A stripe that two files fill, of which the second begins after so many bytes and is removed.
fn half_dead(rig: &Rig, live: usize) -> (StripeId, Vec<u8>) {
    let fs = rig.open(&[]);
    let held = pattern(1, live);
    fs.write(1, &held).unwrap();
    fs.write(2, &pattern(2, 4 * UNIT - live)).unwrap();
    fs.transactions.checkpoint().unwrap();
    let stripe = fs.extents(1).unwrap()[0].1.stripe;
    assert_eq!(fs.extents(2).unwrap()[0].1.stripe, stripe, "one stripe");
    fs.remove(2).unwrap();
    fs.close();
    (stripe, held)
}

/// Does something to the files of three shards of a stripe, the last two of its data among them.
fn befall(rig: &Rig, stripe: StripeId, harm: Harm) {
    let shards = rig.open(&[]).written_shards().into_iter();
    for shard in shards.filter(|s| s.stripe == stripe && (2..5).contains(&s.shard.0)) {
        let disk = &rig.disks[shard.disk];
        match harm {
            Harm::Delete => disk.open().remove(&shard.name).unwrap(),
            _ => assert!(disk.corrupt(&shard.name, shard.offset, |b| b[0] ^= 4, 1)),
        }
    }
}

#[test]
fn nothing_is_lost_if_no_file_holds_the_bytes_and_a_scrub_rewrites_the_rest() {
    for harm in [Harm::FlipBits, Harm::Delete] {
        let rig = Rig::new(4, 2, 6);
        let (stripe, held) = half_dead(&rig, 2 * UNIT);
        befall(&rig, stripe, harm);
        let fs = TestFs::open(rig.stores(&[]), Access::ReadOnly).unwrap();
        let read = fs.maintenance.scrubber.read_all_shards(|_, _| ()).unwrap();
        let counted = fs.maintenance.redundancy.redundancy().unwrap();
        for rows in [&read.rows, &counted.rows] {
            assert_eq!(rows.len(), 1, "{harm:?}");
            let RedundancyRow {
                losses_tolerated,
                stripes,
                bytes,
                dead,
                ..
            } = rows[0];
            let row = (losses_tolerated, stripes, bytes, dead);
            let half = 2 * UNIT as u64;
            assert_eq!(row, (0, 1, half, half), "{harm:?}");
        }
        assert_eq!(counted.unrecoverable, [], "{harm:?}");
        drop(fs);

        let fs = rig.open(&[]);
        let done = scrub(&fs);
        assert!(done.is_clean(), "{harm:?}: {done:?}");
        assert!(done.record.repaired > 0, "{harm:?}: {done:?}");
        assert!(
            !fs.transactions.catalog.has_backref(stripe).unwrap(),
            "{harm:?}"
        );
        assert_eq!(fs.redundancy(), [(2, 1)], "{harm:?}");
        let model = Model::from([(1, held)]);
        assert_holds(&fs, &model, "scrubbed");
        fs.maintenance.reaper.reap_now().unwrap();
        assert!(!fs.stripes().contains(&stripe), "{harm:?}");
        fs.assert_shards_lie_on(&rig, &[], "written restarted");
        fs.close();
        let fs = rig.open(&[]);
        assert!(
            !fs.maintenance.redundancy.may_have_lost_data().unwrap(),
            "{harm:?}"
        );
        assert_holds(&fs, &model, "opened again");
    }
}

/// Bytes that no file held when they were found, and that were not moved, are no reason to count at each mount.
#[test]
fn a_mount_does_not_count_bytes_that_no_file_holds_as_lost() {
    let rig = Rig::new(4, 2, 6);
    let (stripe, held) = half_dead(&rig, 2 * UNIT);
    befall(&rig, stripe, Harm::FlipBits);
    let fs = rig.open(&[]);
    let mut batch = Batch::default();
    let dead = 2 * UNIT as u32..3 * UNIT as u32;
    batch.put(key::lost(stripe), LostBytes(vec![dead]).encode());
    fs.transactions.apply(batch).unwrap();
    fs.close();
    let fs = rig.open(&[]);
    assert!(
        !fs.transactions
            .stripes
            .damage()
            .unrecoverable()
            .all()
            .is_empty()
    );
    assert!(!fs.maintenance.redundancy.may_have_lost_data().unwrap());
    assert_eq!(fs.redundancy(), [(0, 1)]);
    assert_holds(&fs, &Model::from([(1, held)]), "opened again");
}

#[test]
fn only_unrecoverable_bytes_that_files_hold_count_as_lost() {
    let rig = Rig::new(4, 2, 6);
    let (stripe, held) = half_dead(&rig, 2 * UNIT + BLOCK_SIZE);
    befall(&rig, stripe, Harm::FlipBits);
    let fs = rig.open(&[]);
    let done = scrub(&fs).record;
    let block = BLOCK_SIZE as u64;
    assert_eq!((done.lost, done.wrong, done.missing), (block, 3, 0));
    let counted = fs.maintenance.redundancy.redundancy().unwrap();
    assert_eq!(fs.redundancy(), [(-1, 1)]);
    assert_eq!(
        fs.maintenance.redundancy.lost_bytes_in(&counted).unwrap(),
        block
    );
    let inodes = fs
        .maintenance
        .redundancy
        .inodes_in(&counted.unrecoverable, 9)
        .unwrap();
    assert_eq!(inodes, BTreeSet::from([Ino(1)]));
    assert!(fs.maintenance.redundancy.may_have_lost_data().unwrap());
    let mut read = vec![0; 2 * UNIT];
    fs.transactions.read(stripe, 0, &mut read).unwrap();
    assert!(read == held[..2 * UNIT], "all else can be had");
}
