//! Members that come back or go, while their shards are worked on or damaged.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

use super::*;
use crate::commit::Pace;
use crate::members::Seat;
use crate::store::StoreErrorKind;

static UNLIMITED: AtomicU64 = AtomicU64::new(0);

fn fill(fs: &TestFs, model: &mut Model) {
    for file in 0..30 {
        let bytes = pattern(file, [50_000, 63, 5_000, 70_000][file as usize % 4]);
        fs.write(file, &bytes).unwrap();
        model.insert(file, bytes);
        if file % 5 == 4 {
            fs.sync().unwrap();
        }
    }
}

fn lose(fs: &TestFs, rig: &Rig, disk: usize) {
    rig.disks[disk].fail(Some(StoreErrorKind::Gone));
    fs.pipeline.members().probe();
}

fn take_back(fs: &TestFs, rig: &Rig, disk: usize) {
    rig.disks[disk].fail(None);
    let store: StoreRef = Arc::new(rig.disks[disk].open());
    fs.pipeline.join(Seat::Own, &store).unwrap();
}

fn rebuild_while(fs: &TestFs, between: &dyn Fn()) {
    let wait = |_| {
        between();
        true
    };
    let pace = Pace {
        bytes_per_second: &UNLIMITED,
        wait: &wait,
    };
    fs.pipeline.rebuild(&pace).unwrap();
}

/// Returns the shards that are written, as the records say.
fn written(fs: &TestFs) -> BTreeSet<(StripeId, ShardIndex)> {
    let shards = fs.written_shards().into_iter();
    shards.map(|shard| (shard.stripe, shard.shard)).collect()
}

#[test]
fn what_a_member_has_that_returns_during_a_rebuild_still_counts() {
    for with_loss in [false, true] {
        for after in 1..4 {
            let context = format!("back after {after} steps, another lost: {with_loss}");
            let rig = Rig::new(2, 1, 4);
            let fs = rig.open(&[]);
            let mut model = Model::new();
            fill(&fs, &mut model);
            fs.pipeline.checkpoint().unwrap();
            lose(&fs, &rig, 3);
            let steps = Cell::new(0);
            let had = RefCell::new(BTreeSet::new());
            rebuild_while(&fs, &|| {
                steps.set(steps.get() + 1);
                let now = written(&fs);
                assert!(had.borrow().is_subset(&now), "{context}");
                if steps.get() == after {
                    if with_loss {
                        lose(&fs, &rig, 2);
                    }
                    take_back(&fs, &rig, 3);
                    assert_holds(&fs, &model, &context);
                }
                *had.borrow_mut() = written(&fs);
            });
            if with_loss {
                // What went with the other.
                rebuild_while(&fs, &|| ());
            } else {
                assert_eq!(steps.get(), after, "{context}: it lacks nothing");
            }
            let lost: &[usize] = if with_loss { &[2] } else { &[] };
            fs.assert_shards_lie_on(&rig, lost, &context);
            assert_eq!(fs.redundancy()[0].0, 1, "{context}");
            assert_holds(&fs, &model, &context);
        }
    }
}
