//! One pass of compaction: the live bytes on their way into new stripes, and what became of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::format::record::{Extent, ShardSet};
use crate::format::{BLOCK_SIZE, Ino, StripeClass, StripeId};
use crate::maintenance::candidates::Waits;
use crate::stripes::{ClassCode, Hold};

/// A run of live bytes in a stripe.
#[derive(Clone, Copy, Debug)]
pub(super) struct LiveRun {
    pub(super) ino: Ino,
    /// The end of the extent in the file.
    pub(super) end: u64,
    pub(super) extent: Extent,
}

/// Returns the alignment of a run that starts at an offset in its stripe.
pub(super) fn alignment(stripe_offset: u32) -> usize {
    if (stripe_offset as usize).is_multiple_of(BLOCK_SIZE) {
        BLOCK_SIZE
    } else {
        64
    }
}

impl LiveRun {
    /// Returns where the run starts in a new stripe filled up to `filled`: as aligned as it was.
    pub(super) fn start_after(self, filled: usize) -> usize {
        filled.next_multiple_of(alignment(self.extent.stripe_offset))
    }

    pub(super) fn len(self) -> usize {
        // No run is longer than a stripe.
        usize::try_from(self.extent.len).unwrap_or(usize::MAX)
    }
}

/// The losses that bytes survive at least after they moved, unless their own code survives fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::maintenance) enum Floor {
    /// As many as with all shards that were written, also those of absent members that no rebuild gave up.
    Written,
    /// As many as with the shards on members that are online.
    Online,
    /// As many as with those of [`Floor::Written`] that can be trusted: all but these. They do not fit the others.
    Trusted(ShardSet),
}

/// The class of a new stripe, and the losses that it has to survive. Bytes that need different ones share no stripe.
pub(super) type PackKey = (StripeClass, i16);

/// The kinds of new stripes for which no place was found.
#[derive(Debug, Default)]
pub(in crate::maintenance) struct Blocked(BTreeSet<PackKey>);

impl Blocked {
    fn add(&mut self, key: PackKey) {
        self.0.insert(key);
    }

    /// Returns whether there is no place for stripes of this kind. A place in which they survive more losses is no easier
    /// to find.
    fn has(&self, (class, least): PackKey) -> bool {
        self.0
            .range((class, i16::MIN)..=(class, least))
            .next()
            .is_some()
    }
}

/// The outcome of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::maintenance) enum Compacted {
    /// Bytes were moved.
    Moved,
    /// No bytes can be moved.
    Nothing,
    /// None of the stripes that were tried can be moved, and others are left.
    Unfinished,
    /// The index has no room for the changes.
    NoRoomInIndex,
}

/// The outcome of rewriting a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::maintenance) enum Rewritten {
    /// Nothing refers to it any more.
    Whole,
    /// Some bytes stay in it until members came or got room: elsewhere, they would survive fewer losses.
    Waits {
        /// Set if the volume has no space for them, or the index none for the changes.
        lacks_space: bool,
    },
    /// Some bytes stay in it because they cannot be read, or have changed meanwhile.
    No,
}

/// The outcome of moving stripes.
#[derive(Debug, Default)]
pub(in crate::maintenance) struct Moves {
    /// Set if any bytes were moved.
    pub(in crate::maintenance) any: bool,
    /// The stripes with bytes that would be less protected in a new one, as members are now.
    pub(in crate::maintenance) waiting: BTreeMap<StripeId, Waits>,
}

impl Floor {
    /// Returns whether shards on absent members count.
    pub(super) fn counts_absent(self) -> bool {
        match self {
            Self::Written | Self::Trusted(_) => true,
            Self::Online => false,
        }
    }
}

impl Moves {
    /// Returns whether bytes wait for room.
    pub(in crate::maintenance) fn lack_room(&self) -> bool {
        self.waiting.values().any(|waits| waits.lacks_room)
    }
}

/// Live bytes on their way into a new stripe.
#[derive(Default)]
pub(super) struct Packed {
    pub(super) payload: Vec<u8>,
    pub(super) runs: Vec<(LiveRun, usize)>,
    /// The runs already copied, for extents that share them.
    pub(super) copied: HashMap<(StripeId, u32, u64), usize>,
}

/// A new stripe to which no extent points yet.
pub(super) struct NewStripe {
    pub(super) stripe: StripeId,
    pub(super) hold: Hold,
    pub(super) code: Arc<ClassCode>,
    pub(super) runs: Vec<(LiveRun, usize)>,
}

/// The state of one pass.
#[derive(Default)]
pub(super) struct Pass {
    pub(super) packs: BTreeMap<PackKey, Packed>,
    pub(super) written: Vec<NewStripe>,
    pub(super) blocked: Blocked,
    /// Set if shards on absent members count.
    pub(super) counts_absent: bool,
    /// The losses that new stripes survive with the members that take shards.
    pub(super) attainable: BTreeMap<StripeClass, i16>,
    /// The stripes that were candidates, or waited, before they were tried.
    pub(super) known: BTreeSet<StripeId>,
    /// The stripe that is being tried.
    pub(super) trying: Option<StripeId>,
    /// Those that were not tried in full.
    pub(super) untried: BTreeSet<StripeId>,
    /// Those with bytes that the caller leaves where they are.
    pub(super) refused: BTreeSet<StripeId>,
    /// Those that cannot be moved because of what they hold, or what refers to them.
    pub(super) failed: BTreeSet<StripeId>,
    pub(super) moves: Moves,
}

impl Pass {
    /// Begins to try a stripe.
    pub(super) fn try_stripe(&mut self, stripe: StripeId, is_known: bool) {
        self.trying = Some(stripe);
        if is_known {
            self.known.insert(stripe);
        }
    }

    /// Returns how many new stripes were written, or are being filled.
    pub(super) fn begun(&self) -> usize {
        let filled = self.packs.values().filter(|packed| !packed.runs.is_empty());
        self.written.len() + filled.count()
    }

    /// Returns whether bytes of this kind would be the first of a new stripe.
    pub(super) fn would_begin(&self, key: PackKey) -> bool {
        self.packs
            .get(&key)
            .is_none_or(|packed| packed.runs.is_empty())
    }

    /// Returns whether a stripe of this kind found no place.
    pub(super) fn is_blocked(&self, key: PackKey) -> bool {
        self.blocked.has(key)
    }

    /// Notes that bytes stay in a stripe.
    pub(super) fn wait(&mut self, stripe: StripeId, (class, least): PackKey, lacks_room: bool) {
        let waits = Waits {
            class,
            least,
            lacks_room,
            counts_absent: self.counts_absent,
        };
        self.moves.waiting.entry(stripe).or_insert(waits);
    }

    /// Notes that the caller leaves bytes of a stripe where they are.
    pub(super) fn refuse(&mut self, stripe: StripeId, key: PackKey) {
        self.refused.insert(stripe);
        self.wait(stripe, key, false);
    }

    /// Notes that a new stripe of this kind would survive too few losses, so bytes stay in their stripe.
    pub(super) fn lack(&mut self, stripe: StripeId, key: PackKey) {
        self.blocked.add(key);
        self.wait(stripe, key, true);
    }

    /// Notes that there is no place for these runs, nor for others of their kind.
    pub(super) fn block(&mut self, key: PackKey, runs: &[(LiveRun, usize)], lacks_room: bool) {
        self.blocked.add(key);
        for (run, _) in runs {
            self.wait(run.extent.stripe, key, lacks_room);
        }
    }
}

/// Returns how many losses bytes have to survive after they moved, if they survive so many now. Their own code may survive
/// fewer.
pub(super) fn least(survived: i16, code: &ClassCode) -> i16 {
    let guaranteed = i16::try_from(code.survival().guaranteed()).unwrap_or(i16::MAX);
    survived.min(guaranteed).max(0)
}
