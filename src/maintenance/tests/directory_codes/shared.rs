//! Stripes that files of several codes share: all their bytes move at once, and none may tolerate fewer losses than before.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Gives some files a class, and orders their rewriting.
fn give(fs: &TestFs, files: &mut Classed, given: &[u64], class: StripeClass) {
    let ordered = fs
        .transactions
        .ordering_rewrite(|| given.iter().try_for_each(|file| fs.set_class(*file, class)));
    ordered.unwrap();
    let given = given.iter().map(|file| (*file, class));
    files.classes.extend(given);
}

/// Writes two files of a class into one stripe.
fn in_one_stripe(fs: &TestFs, class: StripeClass) -> Classed {
    let mut files = Classed::default();
    files.write(fs, 1, class, 5_000).unwrap();
    files.write(fs, 2, class, 5_000).unwrap();
    fs.flush();
    assert_eq!(stripe_of(fs, 1), stripe_of(fs, 2));
    files
}

fn stripe_of(fs: &TestFs, file: u64) -> StripeId {
    fs.extents(file).unwrap()[0].1.stripe
}

/// Asserts that the order waits for members, and that no file has moved.
fn assert_waits(fs: &TestFs, awaited: &[u16], stripe: StripeId, context: &str) {
    fs.rebuild().unwrap();
    let found: Vec<_> = (1..=2).map(|file| stripe_of(fs, file)).collect();
    assert_eq!(found, [stripe; 2], "{context}");
    let rebuild = fs.maintenance.rebuild();
    let status = rebuild.rewrite_status().unwrap();
    let awaited: Vec<_> = awaited.iter().copied().map(MemberIndex).collect();
    assert_eq!((status.is_ordered, status.awaited), (true, awaited));
    assert!(!rebuild.has_rewriting_to_do().unwrap(), "{context}");
}

/// Takes members 0 and 1 back. Asserts that all files get their codes, the volume's and 2+1 or 1+1, and survive as much.
fn assert_in_place_after_return(fs: TestFs, rig: &Rig, files: &Classed, thin: StripeClass) {
    fs.take_back(rig, 0);
    fs.take_back(rig, 1);
    fs.rebuild().unwrap();
    files.assert_in_place(&fs, "all are back");
    fs.close();
    files.assert_survives(rig, volume(), 2, "all are back");
    files.assert_survives(rig, thin, 1, "all are back");
}

/// The members that are left suffice for the code of one file, and not for that of the volume, which the other keeps.
#[test]
fn a_file_that_shares_a_stripe_with_one_of_a_narrower_code_loses_no_shards_that_are_away() {
    let rig = Rig::with_unit(4, 2, &[DISK; 6], 4 * UNIT);
    let fs = rig.open(&[]);
    let thin = fs.class_for(2, 1);
    let mut files = in_one_stripe(&fs, volume());
    let stripe = stripe_of(&fs, 1);
    fs.lose(&rig, 0);
    fs.lose(&rig, 1);
    give(&fs, &mut files, &[2], thin);
    assert_waits(&fs, &[0, 1], stripe, "two are away");
    assert_in_place_after_return(fs, &rig, &files, thin);
}

/// One file of a directory gets the code of the volume, for which members are too few, and the other one that they suffice for.
#[test]
fn no_file_gets_a_stripe_of_the_volume_that_lacks_shards_because_another_can_be_rewritten() {
    let rig = Rig::with_unit(4, 2, &[DISK; 6], 4 * UNIT);
    let fs = rig.open(&[]);
    let (shared, thin) = (fs.class_for(2, 1), fs.class_for(1, 1));
    let mut files = in_one_stripe(&fs, shared);
    let stripe = stripe_of(&fs, 1);
    fs.lose(&rig, 0);
    fs.lose(&rig, 1);
    // Their shards are on others then.
    fs.rebuild().unwrap();
    give(&fs, &mut files, &[1], volume());
    give(&fs, &mut files, &[2], thin);
    assert_waits(&fs, &[0, 1], stripe, "two are away");
    assert_in_place_after_return(fs, &rig, &files, thin);
}

/// Members suffice for the code that files are rewritten with, and not for the one that they get meanwhile.
#[test]
fn files_whose_code_changes_while_they_are_rewritten_lose_no_shards_that_are_away() {
    let rig = Rig::with_unit(4, 2, &[DISK; 6], 4 * UNIT);
    let fs = rig.open(&[]);
    let thin = fs.class_for(2, 1);
    let mut files = Classed::default();
    let all = [1, 2, 3, 4];
    for file in all {
        files.write(&fs, file, volume(), 5_000).unwrap();
        fs.flush();
        fs.transactions.stripes.writer().retire_segments().unwrap();
    }
    let places = || all.map(|file| stripe_of(&fs, file));
    let before = places();
    fs.lose(&rig, 0);
    fs.lose(&rig, 1);
    give(&fs, &mut files, &all, thin);
    let files = RefCell::new(files);
    let changed_at = Cell::new(None);
    let wait = |_| {
        if changed_at.get().is_none() && places() != before {
            changed_at.set(Some(places()));
            give(&fs, &mut files.borrow_mut(), &all, volume());
        }
        true
    };
    fs.rebuild_while(&wait).unwrap();
    let kept = changed_at.get().expect("some bytes moved");
    assert!(
        kept.iter()
            .zip(&before)
            .any(|(kept, before)| kept == before)
    );
    assert_eq!(places(), kept, "no others moved");
    fs.take_back(&rig, 0);
    fs.take_back(&rig, 1);
    fs.rebuild().unwrap();
    let files = files.into_inner();
    files.assert_in_place(&fs, "all are back");
    fs.close();
    files.assert_survives(&rig, volume(), 2, "all are back");
}

/// Gives a file the code of the volume before its extents first change.
struct Giving<'a> {
    fs: &'a TestFs,
    is_given: AtomicBool,
}

impl InodeLocks for Giving<'_> {
    fn with_locked(&self, ino: Ino, work: &mut dyn FnMut()) {
        if !self.is_given.swap(true, Ordering::SeqCst) {
            let given = self
                .fs
                .transactions
                .ordering_rewrite(|| self.fs.set_class(ino.0, volume()));
            given.unwrap();
        }
        work();
    }
}

/// The code changes between the look into the segment and the move. The bytes can be read, and wait for members.
#[test]
fn bytes_that_may_not_move_wait_and_are_not_unreadable() {
    let rig = Rig::with_unit(4, 2, &[DISK; 6], 4 * UNIT);
    let fs = rig.open(&[]);
    let thin = fs.class_for(2, 1);
    let mut files = Classed::default();
    // It is too long for a stripe of 2+1, and split for that.
    files.write(&fs, 1, volume(), 100_000).unwrap();
    fs.flush();
    fs.lose(&rig, 0);
    fs.lose(&rig, 1);
    let stripe = stripe_of(&fs, 1);
    give(&fs, &mut files, &[1], thin);
    let locks = Giving {
        fs: &fs,
        is_given: AtomicBool::new(false),
    };
    let rebuild = fs.maintenance.rebuild();
    let done = rebuild.run(RebuildScope::Everything, &locks, &at_once());
    let done = done.unwrap();
    assert!(locks.is_given.load(Ordering::SeqCst));
    assert_eq!(stripe_of(&fs, 1), stripe);
    assert_eq!(done.bytes_unreadable, 0, "{done:?}");
    let status = rebuild.rewrite_status().unwrap();
    assert_eq!(status.stripes_left, 0);
    files.classes.insert(1, volume());
    fs.take_back(&rig, 0);
    fs.take_back(&rig, 1);
    fs.rebuild().unwrap();
    files.assert_in_place(&fs, "all are back");
    assert!(!rebuild.awaits_rewrite().unwrap());
    fs.close();
    files.assert_survives(&rig, volume(), 2, "all are back");
}
