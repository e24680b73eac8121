//! Results that devices were seen to compute rightly, and the tests of devices.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};

use lru::LruCache;
use parking_lot::Mutex;

use crate::codec::{BLOCK_BYTES, Item, Matrix, Targets};
use crate::coding::choice::Class;
use crate::coding::pipeline::{Done, Pipeline};

/// Ways of computing passes that are remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(8192).expect("not zero");

/// The power of two up to which the roundness of a length matters: the threads of a kernel that work together go over
/// less.
const ROUNDEST: u32 = 16;

/// A way of computing passes: what is right for one pass of these is taken to be right for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Way {
    done: Done,
    class: Class,
    /// The greatest power of two that divides the length: how kernels meet the end of a shard.
    roundness: u32,
}

impl Way {
    /// Returns the way in which an item was done.
    pub(super) fn of(item: &Item<'_>, done: Done) -> Self {
        Self {
            done,
            class: Class::of(item),
            roundness: item.shard_bytes().trailing_zeros().min(ROUNDEST),
        }
    }
}

/// The ways that were seen to be right.
#[derive(Debug)]
pub(super) struct Trust {
    right: Mutex<LruCache<Way, ()>>,
    is_lost: AtomicBool,
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            right: Mutex::new(LruCache::new(REMEMBERED)),
            is_lost: AtomicBool::new(false),
        }
    }
}

impl Trust {
    /// Returns whether passes were computed rightly this way.
    pub(super) fn covers(&self, way: &Way) -> bool {
        self.right.lock().get(way).is_some()
    }

    /// A pass was computed rightly this way.
    pub(super) fn earn(&self, way: Way) {
        self.right.lock().put(way, ());
    }

    /// A pass was computed wrongly: no device is trusted any more.
    pub(super) fn lose(&self) {
        if !self.is_lost.swap(true, Ordering::Relaxed) {
            tracing::error!("GPUs compute wrong results on this machine; coding on the CPU only");
        }
    }

    /// Returns whether devices were seen to be wrong.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }
}

/// All that comes of a pass.
#[derive(PartialEq)]
pub(super) struct Outcome {
    written: Vec<Vec<u8>>,
    wrong: Vec<bool>,
    sums: Vec<Vec<u32>>,
}

impl Outcome {
    /// Returns what came of an item.
    pub(super) fn of(item: &Item<'_>) -> Self {
        let (written, wrong) = match &item.targets {
            Targets::Written(shards) => {
                let copies = shards.iter().map(|shard| shard.to_vec());
                (copies.collect(), Vec::new())
            }
            Targets::Compared { wrong, .. } => (Vec::new(), wrong.clone()),
        };
        Self {
            written,
            wrong,
            sums: item.sums.iter().map(|list| list.to_vec()).collect(),
        }
    }
}

/// Has a device compare an item once more, with a byte of each target changed; returns whether it finds
/// just these blocks wrong beside those that were, or nothing if it failed. Most stripes are sound, so that a
/// device that never finds anything would pass for right. It is not asked about an item that is written.
pub(super) fn sees_damage(pipeline: &Pipeline, matrix: &Matrix, item: &Item<'_>) -> Option<bool> {
    let Targets::Compared { shards, wrong } = &item.targets else {
        return Some(true);
    };
    let blocks = item.blocks();
    let mut expected = wrong.clone();
    let damage = |(row, shard): (usize, &&[u8])| {
        let mut copy = shard.to_vec();
        // Not at the same place in each.
        let at = (row * 257 + copy.len() / 2) % copy.len();
        let is_wrong = &mut expected[row * blocks + at / BLOCK_BYTES];
        // One that is wrong as it is might become right.
        if !*is_wrong {
            copy[at] ^= 1 << (row % 8);
            *is_wrong = true;
        }
        copy
    };
    let damaged: Vec<Vec<u8>> = shards.iter().enumerate().map(damage).collect();
    let mut sums: Vec<Vec<u32>> = item.sums.iter().map(|list| list.to_vec()).collect();
    let mut item = Item {
        sources: item.sources.clone(),
        targets: Targets::Compared {
            shards: damaged.iter().map(Vec::as_slice).collect(),
            wrong: vec![false; expected.len()],
        },
        sums: sums.iter_mut().map(Vec::as_mut_slice).collect(),
    };
    pipeline.run(matrix, &mut item).ok()?;
    Some(matches!(item.targets, Targets::Compared { wrong, .. } if wrong == expected))
}
