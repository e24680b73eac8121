//! Looking at the copies of the index: damage is counted, and what a commit that was cut off left is none.

use std::collections::BTreeMap;

use super::rig::{Rig, Script, inline, newest_head, play};
use crate::format::MemberIndex;
use crate::format::frame::{self, FRAME_BYTES, Frame, FramePlace, HEAD_BYTES, Head};
use crate::membership::Access;
use crate::store::{CutPolicy, Effect, Fault, FaultPlan, MemDisk, Scope, Store};

const SEED: u64 = 41;

/// Returns what looking at a volume finds wrong of which copy.
fn survey(rig: &Rig) -> BTreeMap<MemberIndex, u64> {
    let mounted = rig.mounted(None, Access::ReadOnly);
    mounted
        .replicas
        .survey()
        .expect("every page is on some copy")
}

/// Returns a volume that was written to, and an older state of the same.
fn grown(seed: u64) -> (Rig, Rig) {
    let rig = Rig::new(1, 1, 2);
    let first = Script::new(seed, 6);
    play(&rig, None, &first, 1, &inline()).1.expect("it goes");
    let older = rig.fork();
    let more = Script::new(seed + 1, 6);
    play(&rig, None, &more, 1, &inline()).1.expect("it goes");
    assert_eq!(survey(&rig), BTreeMap::new());
    (rig, older)
}

fn read(disk: &MemDisk, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let read = disk.open().read_at("index", offset, &mut bytes);
    read.map(|()| bytes).expect("the copy is that long")
}

fn overwrite(disk: &MemDisk, offset: u64, with: &[u8]) {
    assert!(disk.corrupt(
        "index",
        offset,
        |bytes| bytes.copy_from_slice(with),
        with.len()
    ));
}

/// Returns all pages that have an intact frame on the disk, and the sequence of each.
fn pages(rig: &Rig, disk: &MemDisk) -> BTreeMap<u64, u64> {
    let (meta, _, members) = rig.open(&[], None, Access::ReadOnly).expect("open");
    let tag = frame::volume_tag(members.shape().volume_id());
    drop((meta, members));
    let len = disk.open().open_len("index").expect("it has a copy");
    let pages = (1..).take_while(|page| frame::frame_offset(page + 1) <= len);
    let sequence = |page| {
        let bytes = read(disk, frame::frame_offset(page), FRAME_BYTES);
        let bytes = bytes.first_chunk().expect("a frame was read");
        let opened = Frame::open(FramePlace { tag, page }, bytes);
        opened.ok().map(|frame| (page, frame.sequence))
    };
    pages.filter_map(sequence).collect()
}

#[test]
fn a_page_that_one_copy_lacks_or_has_of_an_earlier_time_is_counted_if_the_index_is_made_of_it() {
    let (rig, older) = grown(SEED);
    let (now, then) = (pages(&rig, &rig.disks[1]), pages(&older, &older.disks[1]));
    let (mut zeroed, mut stale) = (0, 0);
    for (page, sequence) in now {
        let offset = frame::frame_offset(page);
        let spoiled = |with: &[u8]| {
            let rig = rig.fork();
            overwrite(&rig.disks[1], offset, with);
            let found = survey(&rig);
            let counted: Vec<_> = found
                .iter()
                .map(|(member, pages)| (member.0, *pages))
                .collect();
            assert!(
                counted.is_empty() || counted == [(1, 1)],
                "page {page}: {found:?}"
            );
            // To repair it is to have nothing wrong afterwards.
            let mounted = rig.mounted(None, Access::ReadWrite);
            let mut next = 0;
            while let Some(piece) = mounted.replicas.verify(next).expect("verify") {
                next = piece.next;
            }
            drop(mounted);
            assert_eq!(survey(&rig), BTreeMap::new(), "page {page}");
            found.len()
        };
        zeroed += spoiled(&[0; FRAME_BYTES]);
        if then.get(&page).is_some_and(|old| *old < sequence) {
            stale += spoiled(&read(&older.disks[1], offset, FRAME_BYTES));
        }
    }
    assert!(zeroed > 3 && stale > 1, "{zeroed} zeroed, {stale} stale");
}

#[test]
fn heads_that_no_write_leaves_are_counted() {
    let (rig, older) = grown(SEED + 2);
    let wrong = |spoil: &dyn Fn(&MemDisk)| {
        let rig = rig.fork();
        spoil(&rig.disks[1]);
        survey(&rig)
    };
    let old = |slot| read(&older.disks[1], frame::head_offset(slot), HEAD_BYTES);
    let one = BTreeMap::from([(MemberIndex(1), 1)]);
    for slot in [0, 1] {
        let at = frame::head_offset(slot);
        let head = Head::decode(old(slot)[..].first_chunk().expect("a head")).expect("intact");
        let case = format!("slot {slot}, old head {}", head.sequence);
        let now = read(&rig.disks[1], at, HEAD_BYTES);
        let now = Head::decode(now[..].first_chunk().expect("a head")).expect("intact");
        if newest_head(&rig.disks[1]) != Some(now) {
            // Without its newest head, a copy looks as if it had just been made when a commit was cut off.
            assert_eq!(
                wrong(&|disk| overwrite(disk, at, &[0; HEAD_BYTES])),
                one,
                "{case}"
            );
        }
        assert_eq!(
            wrong(&|disk| overwrite(disk, at, &[0xa5; HEAD_BYTES])),
            one,
            "{case}"
        );
        assert_eq!(
            wrong(&|disk| overwrite(disk, at, &old(slot))),
            one,
            "{case}"
        );
    }
}

/// Plays a script with one fault, and returns whether there was one.
fn interrupted(rig: &Rig, nth: u64, effect: Effect) -> bool {
    let plan = FaultPlan::new();
    plan.add(Fault::at(nth, effect).of(Scope::Changing));
    // Its result is the business of other tests.
    drop(play(
        rig,
        Some(&plan),
        &Script::new(SEED + 4, 8),
        2,
        &inline(),
    ));
    plan.triggered() > 0
}

#[test]
fn pages_left_by_a_cut_after_any_write_are_no_damage_at_once_or_later() {
    let origin = Rig::new(1, 1, 3);
    for nth in 1.. {
        let rig = origin.fork();
        if !interrupted(&rig, nth, Effect::PowerCut) {
            assert!(nth > 50, "the script has only {nth} calls");
            break;
        }
        for policy in [CutPolicy::Keep, CutPolicy::Drop, CutPolicy::Reorder(nth)] {
            let rig = rig.fork();
            rig.disks.iter().for_each(|disk| disk.cut(policy));
            let case = format!("call {nth}, {policy:?}");
            assert_eq!(survey(&rig), BTreeMap::new(), "{case}");
            // A daemon that is killed soon after.
            drop(rig.open(&[], None, Access::ReadWrite).expect(&case));
            assert_eq!(survey(&rig), BTreeMap::new(), "{case}, after a mount");
        }
    }
}

#[test]
fn pages_left_by_a_write_without_space_are_no_damage() {
    let origin = Rig::new(1, 1, 2);
    for nth in 1.. {
        let rig = origin.fork();
        if !interrupted(&rig, nth, Effect::NoSpace) {
            break;
        }
        assert_eq!(survey(&rig), BTreeMap::new(), "call {nth}");
    }
}
