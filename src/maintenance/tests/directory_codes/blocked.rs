//! Segments of a wide code that keep a drained member, and cannot be rewritten for now.

use super::looking::HeldFrom;
use super::*;
use crate::maintenance::RebuildState;

/// The member that is drained.
const LEAVING: MemberIndex = MemberIndex(6);

/// A volume of 2+2 on seven members, of which one is drained and another one lost. Its files have 4+2, for which the others
/// are too few.
fn draining_with_a_loss(rig: &Rig) -> (TestFs, Classed) {
    let fs = rig.open(&[]);
    let wide = fs.class_for(4, 2);
    let mut files = Classed::default();
    for part in 0..4 {
        files.fill(&fs, 20 * part, &[wide]);
        fs.flush();
    }
    fs.maintenance.draining().drain(LEAVING).unwrap();
    fs.lose(rig, 0);
    (fs, files)
}

fn is_there(fs: &TestFs) -> bool {
    let membership = fs.transactions.members().membership();
    membership.live().contains(&LEAVING)
}

/// Asserts that bytes wait, and that none counts as unreadable.
fn assert_waits(fs: &TestFs, done: &RebuildProgress) {
    assert!(is_there(fs), "the member has left");
    assert_eq!(done.state, RebuildState::Finished);
    let (waiting, unreadable) = (done.bytes_waiting, done.bytes_unreadable);
    assert!(waiting > 0 && unreadable == 0, "{done:?}");
}

fn run(fs: &TestFs, scope: RebuildScope, locks: &dyn InodeLocks) -> RebuildProgress {
    let rebuild = fs.maintenance.rebuild();
    rebuild.run(scope, locks, &at_once()).unwrap()
}

#[test]
fn files_that_others_change_wait_and_are_not_unreadable() {
    let rig = rig(2, 7);
    let (fs, files) = draining_with_a_loss(&rig);
    let done = run(&fs, RebuildScope::Everything, &HeldFrom(0));
    assert_waits(&fs, &done);
    fs.rebuild().unwrap();
    assert!(!is_there(&fs));
    assert_holds(&fs, &files.model, "the member is gone");
}

/// The stripes are dead. The member has left once they can be freed.
#[test]
fn a_drain_does_not_end_with_stripes_that_a_reader_keeps() {
    let rig = rig(2, 7);
    let (fs, files) = draining_with_a_loss(&rig);
    // Segments that have lost a shard wait as well, with the place of that.
    let keeps_it = |file: u64| {
        let segments = fs.segments_of(file);
        let has = |member| segments.iter().any(|it| it.slots.contains(&Some(member)));
        has(LEAVING) && !has(MemberIndex(0))
    };
    let all = files.model.keys().copied();
    let (keeping, others): (Vec<u64>, Vec<u64>) = all.partition(|file| keeps_it(*file));
    let remove = |files: &[u64]| {
        for file in files {
            fs.remove(*file).unwrap();
        }
        fs.sync().unwrap();
    };
    assert!(!keeping.is_empty() && !others.is_empty());
    remove(&others);
    for _ in 0..2 {
        fs.maintenance.reaper.free_dead().unwrap();
        fs.sync().unwrap();
    }
    let pin = fs.transactions.pin();
    remove(&keeping);
    let done = run(&fs, RebuildScope::Everything, &NoLocks);
    assert_waits(&fs, &done);
    drop(pin);
    fs.rebuild().unwrap();
    assert!(!is_there(&fs));
}

/// Only shards are written that an online member lacks. That has no room for them.
#[test]
fn shards_that_an_online_member_has_no_room_for_are_not_unreadable() {
    let rig = rig(2, 7);
    let (fs, files) = draining_with_a_loss(&rig);
    let mut lost = fs.written_shards();
    lost.retain(|shard| shard.disk == 1);
    let names: BTreeSet<_> = lost.iter().map(|shard| shard.name.clone()).collect();
    for name in &names {
        rig.disks[1].open().remove(name).unwrap();
    }
    let space = rig.disks[1].open().space().unwrap();
    rig.disks[1].set_capacity(space.total_bytes - space.free_bytes);
    let done = run(&fs, RebuildScope::Online, &NoLocks);
    assert_waits(&fs, &done);
    rig.disks[1].set_capacity(DISK);
    fs.rebuild().unwrap();
    assert!(!is_there(&fs));
    assert_holds(&fs, &files.model, "the member is gone");
}
