//! Files of one segment whose stripes are packed into new ones of another code.

use super::*;
use crate::maintenance::RebuildState;

/// The small files of each volume.
const FILES: u64 = 12;

/// Writes small files of the volume's class, two to a stripe, all in one segment. A new stripe holds half of them.
fn in_one_segment(fs: &TestFs) -> Classed {
    let mut files = Classed::default();
    for file in 0..FILES {
        files.write(fs, file, volume(), 10_000).unwrap();
        if file % 2 == 1 {
            fs.transactions.stripes.writer().seal();
            fs.sync().unwrap();
        }
    }
    assert_eq!(fs.transactions.stripes.segments().records().len(), 1);
    fs.flush();
    files
}

/// Gives some files a class, and orders that their bytes get it.
fn give(fs: &TestFs, files: &mut Classed, chosen: &[u64], class: StripeClass) {
    let given = fs.transactions.ordering_rewrite(|| {
        let mut chosen = chosen.iter();
        chosen.try_for_each(|file| fs.set_class(*file, class))
    });
    given.unwrap();
    files
        .classes
        .extend(chosen.iter().map(|file| (*file, class)));
}

/// Returns the files that have all their bytes in stripes of a class.
fn lying_in(fs: &TestFs, files: &Classed, class: StripeClass) -> Vec<u64> {
    let all = files.classes.keys().copied();
    all.filter(|file| fs.segments_of(*file).iter().all(|it| it.class == class))
        .collect()
}

fn assert_rewritten(fs: TestFs, rig: &Rig, files: &Classed, context: &str) {
    let rebuild = fs.maintenance.rebuild();
    assert!(!rebuild.awaits_rewrite().unwrap(), "{context}");
    files.assert_in_place(&fs, context);
    fs.assert_shards_lie_on(rig, &[], context);
    assert_holds(&fs, &files.model, context);
    fs.close();
    let classes: BTreeSet<StripeClass> = files.classes.values().copied().collect();
    for class in classes {
        files.assert_survives(rig, class, 1, context);
    }
}

/// The bytes that moved count, and the rest goes on where it stopped.
#[test]
fn a_stop_within_a_segment_keeps_the_packs_that_moved() {
    let rig = rig(2, 6);
    let fs = rig.open(&[]);
    let thin = fs.class_for(5, 1);
    let mut files = in_one_segment(&fs);
    let all: Vec<u64> = (0..FILES).collect();
    give(&fs, &mut files, &all, thin);
    let stopped = fs.rebuild_while(&|_| lying_in(&fs, &files, thin).is_empty());
    assert_eq!(stopped.unwrap().state, RebuildState::Stopped);
    let moved = lying_in(&fs, &files, thin);
    let left = lying_in(&fs, &files, volume());
    assert!(!moved.is_empty() && !left.is_empty(), "{moved:?}, {left:?}");
    assert_eq!(moved.len() + left.len(), all.len());
    let extents = |fs: &TestFs| -> Vec<_> {
        let of = |file: &u64| fs.extents(*file).unwrap();
        moved.iter().map(of).collect()
    };
    let before = extents(&fs);
    assert_holds(&fs, &files.model, "stopped");
    fs.rebuild().unwrap();
    assert_eq!(extents(&fs), before, "what had moved stays");
    assert_rewritten(fs, &rig, &files, "went on");
}
