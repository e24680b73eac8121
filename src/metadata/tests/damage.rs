//! Damaged bytes in journals and copies of the index.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::rig::{Mounted, Rig, Script, content, inline, newest_head, play, verify};
use crate::format::frame::{self, FRAME_BYTES, Frame, FramePlace};
use crate::format::{VolumeId, key};
use crate::membership::Access;
use crate::store::{MemDisk, Store};

const SEED: u64 = 31;
const FILES: [&str; 3] = ["journal.0", "journal.1", "index"];

/// Damages a file at a few random places near its used part; says whether the disk has it.
fn damage(disk: &MemDisk, name: &str, random: &mut StdRng) -> bool {
    let Ok(len) = disk.open().open_len(name) else {
        return false;
    };
    for _ in 0..random.random_range(1..30) {
        let upto = if random.random_bool(0.7) {
            len.min(200_000)
        } else {
            len
        };
        let offset = random.random_range(0..upto);
        let bit = 1 << random.random_range(0..8);
        disk.corrupt(
            name,
            offset,
            |bytes| bytes.iter_mut().for_each(|byte| *byte ^= bit),
            1,
        );
    }
    true
}

#[test]
fn damage_on_one_member_costs_nothing_wherever_it_is() {
    let origin = Rig::new(1, 1, 3);
    let script = Script::new(SEED, 10);
    let (progress, outcome) = play(&origin, None, &script, 4, &inline());
    outcome.expect("nothing fails");
    for seed in 0..150 {
        let mut random = StdRng::seed_from_u64(seed);
        let rig = origin.fork();
        let member = random.random_range(0..3);
        for name in FILES {
            damage(&rig.disks[member], name, &mut random);
        }
        verify(
            &rig,
            &[],
            &script,
            progress,
            &format!("seed {seed}, member {member}"),
        );
    }
}

#[test]
fn damage_on_all_members_never_panics_and_never_shows_a_state_that_did_not_exist() {
    let origin = Rig::new(1, 1, 3);
    let script = Script::new(SEED + 1, 10);
    play(&origin, None, &script, 4, &inline())
        .1
        .expect("nothing fails");
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let rig = origin.fork();
        for disk in &rig.disks {
            for name in FILES {
                if random.random_bool(0.7) {
                    damage(disk, name, &mut random);
                }
            }
        }
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let Ok((meta, _, _members)) = rig.open(&[], None, access) else {
                continue;
            };
            let Ok(mut found) = content(&meta) else {
                continue;
            };
            // A damaged journal is not told from one of an earlier time.
            found.remove(&*key::scrub());
            assert!(script.states.contains(&found), "seed {seed}: {found:?}");
        }
    }
}

#[test]
fn a_damaged_page_is_served_by_another_copy_and_repaired() {
    let rig = Rig::new(1, 1, 2);
    let script = Script::new(SEED + 2, 10);
    let (progress, outcome) = play(&rig, None, &script, 1, &inline());
    outcome.expect("nothing fails");
    let len = rig.disks[0]
        .open()
        .open_len("index")
        .expect("member 0 has a copy");
    let whole = |disk: &MemDisk| {
        let mut bytes = vec![0; usize::try_from(len).expect("small")];
        disk.open()
            .read_at("index", 0, &mut bytes)
            .map(|()| bytes)
            .expect("the copy is read")
    };
    // Every frame of one copy, except for the heads.
    let size = usize::try_from(len).expect("small") - 8192;
    rig.disks[0].corrupt("index", 8192, |bytes| bytes.fill(0xa5), size);
    let reached = verify(&rig, &[], &script, progress, "copy 0 is garbage");
    assert_eq!(reached, 10);
    let (repaired, intact) = (whole(&rig.disks[0]), whole(&rig.disks[1]));
    let frames = repaired[8192..]
        .chunks_exact(FRAME_BYTES)
        .zip(intact[8192..].chunks_exact(FRAME_BYTES));
    let good = frames.filter(|(frame, _)| frame.iter().any(|byte| *byte != 0xa5));
    let good =
        good.inspect(|(frame, intact)| assert_eq!(frame, intact, "repaired with something else"));
    assert!(good.count() > 1, "what was met has been repaired");
}

/// Returns the index file of a disk, with every intact frame's page and sequence changed, and the frame
/// intact again.
fn rewrite_frames(disk: &MemDisk, volume: VolumeId, change: impl Fn(&mut [u8], &mut u64)) -> usize {
    let store = disk.open();
    let len = store.open_len("index").expect("the disk has a copy");
    let tag = frame::volume_tag(volume);
    let mut rewritten = 0;
    for page in (1..).take_while(|page| frame::frame_offset(page + 1) <= len) {
        let offset = frame::frame_offset(page);
        let mut found = [0; FRAME_BYTES];
        store.read_at("index", offset, &mut found).expect("read");
        let place = FramePlace { tag, page };
        let Ok(Frame {
            mut sequence,
            bytes,
        }) = Frame::open(place, &found)
        else {
            continue;
        };
        let mut bytes = *bytes;
        change(&mut bytes, &mut sequence);
        let mut out = Vec::new();
        Frame {
            sequence,
            bytes: &bytes,
        }
        .put(place, &mut out);
        store.write_at("index", offset, &out).expect("write");
        rewritten += 1;
    }
    rewritten
}

/// A copy whose last heads were lost, but not the pages written after them.
#[test]
fn a_page_newer_than_every_head_is_not_taken_for_the_one_that_was_committed() {
    let rig = Rig::new(1, 1, 2);
    let script = Script::new(SEED + 3, 10);
    let (progress, outcome) = play(&rig, None, &script, 1, &inline());
    outcome.expect("nothing fails");
    let (meta, _, members) = rig.open(&[], None, Access::ReadWrite).expect("open");
    meta.close().expect("close");
    let volume = members.shape().volume_id();
    drop((meta, members));
    let head = newest_head(&rig.disks[0]).expect("a head").sequence;
    let reused = |bytes: &mut [u8], sequence: &mut u64| {
        bytes.fill(0xa5);
        *sequence = head + 5;
    };
    let rewritten = rewrite_frames(&rig.disks[0], volume, reused);
    assert!(rewritten > 1);
    let expected = &script.states[progress.acknowledged];
    let Mounted {
        meta,
        replicas,
        members,
        ..
    } = rig.mounted(None, Access::ReadWrite);
    assert!(content(&meta).expect("copy 1 has all") == *expected);
    while replicas.compare().expect("compare") {}
    let repaired = replicas.repaired_pages();
    assert!(
        (1..=rewritten as u64).contains(&repaired),
        "{repaired} of {rewritten}"
    );
    meta.close().expect("close");
    drop((meta, replicas, members));
    let (meta, ..) = rig.open(&[1], None, Access::ReadOnly).expect("copy 0");
    assert!(content(&meta).expect("copy 0 was repaired") == *expected);
    drop(meta);
    let head = newest_head(&rig.disks[0]).expect("a head").sequence;
    let reused = |bytes: &mut [u8], sequence: &mut u64| {
        bytes.fill(0xa5);
        *sequence = head + 5;
    };
    for disk in &rig.disks {
        assert!(rewrite_frames(disk, volume, reused) > 1);
    }
    let opened = rig.open(&[], None, Access::ReadWrite);
    assert!(opened.is_err(), "no copy has the pages");
}
