//! Looks for stripes of other classes than their files: members that come and go meanwhile, and interruptions.

use std::cell::Cell;

use super::*;
use crate::maintenance::{RebuildState, RewriteStatus};

/// Writes files of the volume's class, each into segments of its own, and has all but the first get another class.
fn in_segments_of_their_own(fs: &TestFs, class: StripeClass) -> Classed {
    let mut files = Classed::default();
    for file in 1..=4 {
        files.write(fs, file, volume(), 50_000).unwrap();
        fs.flush();
    }
    let given = fs
        .transactions
        .ordering_rewrite(|| (2..=4).try_for_each(|file| fs.set_class(file, class)));
    given.unwrap();
    files.classes.extend((2..=4).map(|file| (file, class)));
    files
}

fn segments(fs: &TestFs) -> usize {
    fs.transactions.stripes.segments().records().len()
}

fn locked<'a>(locks: &'a dyn InodeLocks, fs: &TestFs) {
    let run = |locks: &'a dyn InodeLocks| {
        let rebuild = fs.maintenance.rebuild();
        rebuild.run(RebuildScope::Everything, locks, &unlimited(&|_| true))
    };
    run(locks).unwrap();
}

/// A member that is too slow for a moment. The look with the others says nothing about it.
#[test]
fn an_order_does_not_wait_for_a_member_that_was_away_during_a_part_of_a_look_alone() {
    for back_at in [1, 3, 99] {
        let rig = rig(2, 7);
        let fs = rig.open(&[]);
        let wide = fs.class_for(6, 1);
        let files = in_segments_of_their_own(&fs, wide);
        assert_eq!(segments(&fs), 4);
        let (steps, is_back) = (Cell::new(0), Cell::new(false));
        let take_back = || {
            fs.take_back(&rig, 0);
            is_back.set(true);
        };
        fs.rebuild_while(&|_| {
            steps.set(steps.get() + 1);
            if steps.get() == 1 {
                fs.lose(&rig, 0);
            }
            if steps.get() == back_at {
                take_back();
            }
            true
        })
        .unwrap();
        assert!(steps.get() > 0, "there was no look");
        let rebuild = fs.maintenance.rebuild();
        if !is_back.get() {
            assert!(rebuild.awaits_rewrite().unwrap(), "{back_at}");
            take_back();
            assert!(rebuild.has_rewriting_to_do().unwrap(), "{back_at}");
        }
        fs.rebuild().unwrap();
        assert!(!rebuild.awaits_rewrite().unwrap(), "{back_at}");
        files.assert_in_place(&fs, "rewritten");
        assert_holds(&fs, &files.model, "rewritten");
    }
}

/// Only one of the stripes that wait is remembered.
#[test]
fn an_order_that_waits_for_members_ends_once_its_files_are_gone() {
    let rig = rig(2, 7);
    let fs = rig.open(&[]);
    let wide = fs.class_for(6, 1);
    in_segments_of_their_own(&fs, wide);
    fs.lose(&rig, 0);
    fs.rebuild().unwrap();
    let rebuild = fs.maintenance.rebuild();
    let waits = |context: &str| {
        let status = rebuild.rewrite_status().unwrap();
        let expected = (true, vec![MemberIndex(0)]);
        assert_eq!((status.is_ordered, status.awaited), expected, "{context}");
        !rebuild.has_rewriting_to_do().unwrap()
    };
    assert!(waits("all files are there"));
    let remove = |file| {
        fs.remove(file).unwrap();
        fs.sync().unwrap();
    };
    remove(4);
    assert!(waits("another waits"), "a look follows that finds the same");
    remove(2);
    assert!(!waits("the one that was remembered is gone"));
    fs.rebuild().unwrap();
    assert!(waits("one is left"));
    remove(3);
    assert!(!waits("none is left"));
    fs.rebuild().unwrap();
    assert_eq!(rebuild.rewrite_status().unwrap(), RewriteStatus::default());
    assert!(fs.read(1).is_ok());
}

/// The others have no room for what lies on the member, so that it cannot leave.
#[test]
fn an_order_waits_for_a_member_that_is_drained_and_goes_on_if_that_is_kept() {
    for is_kept in [true, false] {
        let rig = rig(2, 7);
        let fs = rig.open(&[]);
        let wide = fs.class_for(6, 1);
        let files = in_segments_of_their_own(&fs, wide);
        let drained = MemberIndex(6);
        fs.maintenance.draining().drain(drained).unwrap();
        for disk in &rig.disks[..6] {
            let space = disk.open().space().unwrap();
            disk.set_capacity(space.total_bytes - space.free_bytes);
        }
        let stuck = fs.rebuild().unwrap();
        assert!(stuck.bytes_waiting > 0, "{stuck:?}");
        let rebuild = fs.maintenance.rebuild();
        let status = rebuild.rewrite_status().unwrap();
        assert_eq!((status.is_ordered, status.awaited), (true, vec![drained]));
        assert!(!rebuild.has_rewriting_to_do().unwrap());
        rig.disks.iter().for_each(|disk| disk.set_capacity(DISK));
        if is_kept {
            fs.maintenance.draining().keep(drained).unwrap();
            assert!(rebuild.has_rewriting_to_do().unwrap());
        }
        fs.rebuild().unwrap();
        let count = fs.transactions.members().membership().count();
        assert_eq!(count, if is_kept { 7 } else { 6 });
        fs.rebuild().unwrap();
        assert_eq!(rebuild.rewrite_status().unwrap(), RewriteStatus::default());
        if is_kept {
            files.assert_in_place(&fs, "kept");
        }
        assert_holds(&fs, &files.model, "the room is back");
    }
}

#[test]
fn a_look_rests_after_each_segment_and_stops_there() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    let thin = fs.class_for(5, 1);
    in_segments_of_their_own(&fs, thin);
    let rebuild = fs.maintenance.rebuild();
    for most in 1..=4 {
        let steps = Cell::new(0);
        let stopped = fs.rebuild_while(&|_| {
            steps.set(steps.get() + 1);
            steps.get() < most
        });
        let stopped = stopped.unwrap();
        assert_eq!(stopped.state, RebuildState::Stopped, "{most}");
        assert_eq!((steps.get(), stopped.bytes_done), (most, 0));
        assert!(rebuild.awaits_rewrite().unwrap(), "{most}");
    }
    fs.rebuild().unwrap();
    assert!(!rebuild.awaits_rewrite().unwrap());
}

/// Locks that others hold all the time, for the files from one on.
pub(super) struct HeldFrom(pub(super) u64);

impl InodeLocks for HeldFrom {
    fn with_locked(&self, Ino(ino): Ino, work: &mut dyn FnMut()) {
        if ino < self.0 {
            work();
        }
    }
}

/// Looks that move nothing count in turn only.
#[test]
fn an_order_does_not_end_with_readable_stripes_while_something_moves_between() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    let thin = fs.class_for(5, 1);
    let files = in_segments_of_their_own(&fs, thin);
    let rebuild = fs.maintenance.rebuild();
    for held_from in [2, 2, 3, 3, 4] {
        locked(&HeldFrom(held_from), &fs);
        let status = rebuild.rewrite_status().unwrap();
        assert_eq!((status.is_ordered, status.stripes_left), (true, 0));
    }
    fs.rebuild().unwrap();
    assert!(!rebuild.awaits_rewrite().unwrap());
    files.assert_in_place(&fs, "rewritten");
}

/// The counter of orders is one record among many.
#[test]
fn a_damaged_counter_of_orders_fails_no_write_and_counts_as_an_order() {
    for damaged in [vec![], vec![1, 2, 3], vec![0xff; 8]] {
        let rig = rig(2, 7);
        let fs = rig.open(&[]);
        let wide = fs.class_for(6, 1);
        let mut files = in_segments_of_their_own(&fs, wide);
        let mut batch = Batch::default();
        batch.put(key::counter(key::REWRITES), damaged.clone());
        fs.transactions.apply(batch).unwrap();
        let rebuild = fs.maintenance.rebuild();
        assert!(rebuild.awaits_rewrite().unwrap(), "{damaged:?}");
        fs.lose(&rig, 0);
        files.write(&fs, 10, wide, 50_000).unwrap();
        fs.flush();
        assert_ne!(fs.segments_of(10)[0].class, wide);
        assert!(rebuild.awaits_rewrite().unwrap(), "{damaged:?}");
        fs.take_back(&rig, 0);
        fs.rebuild().unwrap();
        assert!(!rebuild.awaits_rewrite().unwrap(), "{damaged:?}");
        files.assert_in_place(&fs, "rewritten");
    }
}

/// One stripe waits for a member. Another one can move as soon as its file is free.
#[test]
fn stripes_that_others_keep_busy_do_not_wait_for_the_members_that_another_one_waits_for() {
    let rig = rig(2, 7);
    let fs = rig.open(&[]);
    let (wide, thin) = (fs.class_for(6, 1), fs.class_for(5, 1));
    let mut files = in_segments_of_their_own(&fs, wide);
    for file in [3, 4] {
        fs.set_class(file, thin).unwrap();
        files.classes.insert(file, thin);
    }
    fs.lose(&rig, 0);
    let rebuild = fs.maintenance.rebuild();
    for _ in 0..5 {
        locked(&HeldFrom(0), &fs);
        assert!(rebuild.has_rewriting_to_do().unwrap());
    }
    fs.rebuild().unwrap();
    for file in [3, 4] {
        assert_eq!(fs.segments_of(file)[0].class, thin);
    }
    let status = rebuild.rewrite_status().unwrap();
    assert_eq!(
        (status.awaited, status.lacks_members),
        (vec![MemberIndex(0)], true)
    );
    fs.take_back(&rig, 0);
    fs.rebuild().unwrap();
    files.assert_in_place(&fs, "it is back");
}
