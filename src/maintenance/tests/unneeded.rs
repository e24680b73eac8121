//! Damage to bytes that no file has any more. Scrubbing does not look at them, so a rebuild is the first to meet it.

use super::*;
use crate::maintenance::RebuildState;

/// A volume of 2+1 with stripes that no file needs. Their shards are wrong on one disk, and another has lost all of its
/// shards. Returns the files that are left.
fn damaged(rig: &Rig, is_kept: impl Fn(u64) -> bool) -> (TestFs, Model) {
    let fs = rig.open(&[]);
    let mut model = Model::new();
    for file in 0..24 {
        let bytes = pattern(file, 30_000);
        fs.write(file, &bytes).unwrap();
        fs.sync().unwrap();
        model.insert(file, bytes);
    }
    fs.transactions.stripes.writer().retire_segments().unwrap();
    fs.transactions.checkpoint().unwrap();
    model.retain(|file, _| is_kept(*file));
    (fs, model)
}

/// Removes all files that `model` lacks, and damages their stripes.
fn remove_and_damage(rig: &Rig, fs: &TestFs, model: &Model) {
    for file in (0..24).filter(|file| !model.contains_key(file)) {
        fs.remove(file).unwrap();
    }
    fs.sync().unwrap();
    let is_dead = |stripe| !fs.transactions.catalog.has_backref(stripe).unwrap();
    let shards = fs.written_shards().into_iter();
    let spoilt: Vec<_> = shards
        .filter(|shard| shard.disk == 1 && is_dead(shard.stripe))
        .collect();
    assert!(spoilt.len() > 3, "{} shards", spoilt.len());
    for shard in &spoilt {
        let disk = &rig.disks[shard.disk];
        assert!(disk.corrupt(&shard.name, shard.offset, |b| b.fill(0xee), shard.height));
    }
    let disk = rig.disks[0].open();
    for (name, _) in disk.list(files::SEGMENTS).unwrap() {
        disk.remove(&name).unwrap();
    }
}

/// Files have bytes in some stripes of the same segments, or in none.
#[test]
fn damage_to_bytes_that_no_file_has_keeps_no_rebuild_from_being_complete() {
    for every in [2, 5, 100] {
        let rig = Rig::new(2, 1, 3);
        let (fs, model) = damaged(&rig, |file| file % every == 1);
        remove_and_damage(&rig, &fs, &model);
        let progress = fs.rebuild().unwrap();
        let context = format!("every {every}: {progress:?}");
        assert_eq!(progress.state, RebuildState::Finished, "{context}");
        assert_eq!(progress.bytes_unreadable, 0, "{context}");
        assert_eq!(
            (progress.bytes_waiting, progress.bytes_left),
            (0, 0),
            "{context}"
        );
        fs.assert_shards_lie_on(&rig, &[], &context);
        assert_holds(&fs, &model, &context);
        fs.close();
        for lost in 0..3 {
            let fs = rig.fork().open(&[lost]);
            assert_holds(&fs, &model, &format!("{context}, without {lost}"));
        }
    }
}

/// A reader may be about to use what it looked up: the stripe stays for now.
#[test]
fn a_stripe_that_only_a_reader_holds_is_freed_once_that_is_done() {
    let rig = Rig::new(2, 1, 3);
    let (fs, model) = damaged(&rig, |file| file % 5 == 1);
    let pin = fs.transactions.stripes.pins().pin();
    remove_and_damage(&rig, &fs, &model);
    let before = fs.stripes();
    let progress = fs.rebuild().unwrap();
    assert!(progress.bytes_unreadable > 0, "{progress:?}");
    let held = fs.stripes();
    assert!(before.iter().all(|stripe| held.contains(stripe)));
    drop(pin);
    let progress = fs.rebuild().unwrap();
    assert_eq!(progress.bytes_unreadable, 0, "{progress:?}");
    assert!(fs.stripes().len() < held.len(), "{progress:?}");
    fs.assert_shards_lie_on(&rig, &[], "freed");
    assert_holds(&fs, &model, "freed");
    fs.close();
}

/// The loss of bytes that a file has is told as before.
#[test]
fn damage_to_bytes_of_one_file_is_unreadable_beside_damage_that_counts_as_nothing() {
    let rig = Rig::new(2, 1, 3);
    let (fs, mut model) = damaged(&rig, |file| file % 5 == 1);
    let lost = fs.extents(1).unwrap()[0].1.stripe;
    remove_and_damage(&rig, &fs, &model);
    for shard in fs.written_shards() {
        if (shard.stripe, shard.disk) == (lost, 1) {
            let disk = &rig.disks[shard.disk];
            assert!(disk.corrupt(&shard.name, shard.offset, |b| b.fill(0xee), shard.height));
        }
    }
    let progress = fs.rebuild().unwrap();
    assert!(progress.bytes_unreadable > 0, "{progress:?}");
    assert!(fs.read(1).is_err());
    model.remove(&1);
    assert_holds(&fs, &model, "beside it");
    fs.close();
}
