//! A member that lost writes of pages which it had called durable: its copy of the index has the newest
//! head, and intact frames of an earlier time.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::rig::{Mounted, Progress, Rig, Script, content, difference, verify};
use crate::format::frame::{self, FRAME_BYTES, FRAMES_START};
use crate::membership::Access;
use crate::store::{MemDisk, Store};

const SEED: u64 = 5;
const UNITS: usize = 16;

/// Plays a script with a checkpoint after every unit, and returns the disks as they were before each.
fn play_with_backups(rig: &Rig, script: &Script) -> (Progress, Vec<Rig>) {
    let (meta, _, _members) = rig.open(&[], None, Access::ReadWrite).expect("open");
    let mut backups = Vec::new();
    for unit in &script.units {
        backups.push(rig.fork());
        meta.apply(unit.applied.clone()).expect("apply");
        meta.apply_stripes(unit.stripes.clone()).expect("apply");
        meta.append(vec![meta.rotate(), meta.take_stripes()], &unit.data)
            .expect("append");
        meta.checkpoint().expect("checkpoint");
    }
    meta.close().expect("close");
    let progress = Progress {
        started: UNITS,
        acknowledged: UNITS,
        checkpointed: UNITS,
    };
    (progress, backups)
}

/// Puts frames of an earlier time back, each at random. Returns how many are different for that.
fn lose_writes(disk: &MemDisk, earlier: &MemDisk, random: &mut StdRng) -> usize {
    let (store, earlier) = (disk.open(), earlier.open());
    let len = earlier.open_len("index").expect("the disk had a copy");
    let frames = (len - FRAMES_START) / FRAME_BYTES as u64;
    let mut lost = 0;
    for page in 1..frames {
        let offset = frame::frame_offset(page);
        let (mut now, mut before) = ([0; FRAME_BYTES], [0; FRAME_BYTES]);
        store.read_at("index", offset, &mut now).expect("read");
        earlier.read_at("index", offset, &mut before).expect("read");
        if now != before && random.random_bool(0.5) {
            store.write_at("index", offset, &before).expect("write");
            lost += 1;
        }
    }
    lost
}

#[test]
fn pages_that_members_lost_are_read_from_another_and_written_again() {
    for (k, m, count) in [(1, 1, 2), (2, 2, 4)] {
        let origin = Rig::new(k, m, count);
        let script = Script::new(SEED, UNITS);
        let (progress, backups) = play_with_backups(&origin, &script);
        for seed in 0..40 {
            let mut random = StdRng::seed_from_u64(seed);
            let rig = origin.fork();
            let has_copy = |disk: &usize| rig.disks[*disk].open().open_len("index").is_ok();
            let mut holders: Vec<_> = (0..count).filter(has_copy).collect();
            let whole = holders.swap_remove(random.random_range(0..holders.len()));
            let mut lost = 0;
            for liar in &holders {
                let earlier = &backups[random.random_range(0..UNITS)].disks[*liar];
                lost += lose_writes(&rig.disks[*liar], earlier, &mut random);
            }
            assert!(lost > 0, "seed {seed}: nothing was lost");
            let case = format!("{k}+{m}: only copy {whole} is whole, seed {seed}");
            verify(&rig.fork(), &[], &script, progress, &case);
            let Mounted {
                meta,
                replicas,
                members,
                ..
            } = rig.mounted(None, Access::ReadWrite);
            while replicas.compare().expect("compare") {}
            meta.close().expect("close");
            drop((meta, replicas, members));
            let opened = rig.open(&[whole], None, Access::ReadOnly);
            let (meta, ..) = opened.unwrap_or_else(|error| panic!("{case}, lost: {error:?}"));
            let (found, expected) = (content(&meta).expect("content"), &script.states[UNITS]);
            assert!(
                found == *expected,
                "{case}, lost: {}",
                difference(expected, &found)
            );
        }
    }
}
