//! The knowledge that there is no room, which keeps writers from asking for it in vain.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::format::key;
use crate::metadata::Batch;

/// A vain attempt to make room.
#[derive(Clone, Copy, Debug)]
struct Exhausted {
    deaths: u64,
    usable_free: u64,
    needed: u64,
}

/// The last vain attempt to make room, and the changes since that may make the next one succeed.
#[derive(Debug, Default)]
pub(crate) struct Exhaustion {
    /// Counts changes after which bytes of stripes may be dead.
    deaths: AtomicU64,
    last: Mutex<Option<Exhausted>>,
}

impl Exhaustion {
    /// Notes changes that were just applied.
    pub(crate) fn note_applied(&self, kills: bool) {
        if kills {
            self.deaths.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns the number of changes so far after which bytes of stripes may be dead.
    pub(crate) fn deaths(&self) -> u64 {
        self.deaths.load(Ordering::SeqCst)
    }

    /// Returns whether there was no room for so many bytes, nor any to be made, and nothing died since.
    pub(crate) fn is_exhausted(&self, needed: u64) -> bool {
        let exhausted = *self.last.lock();
        exhausted.is_some_and(|then| then.deaths == self.deaths() && then.needed <= needed)
    }

    /// Notes that no room could be made for `needed` bytes, since before these deaths.
    pub(crate) fn note_exhausted(&self, deaths: u64, usable_free: u64, needed: u64) {
        *self.last.lock() = Some(Exhausted {
            deaths,
            usable_free,
            needed,
        });
    }

    /// Returns whether a stripe more is free than when none could be made, and forgets that then.
    pub(crate) fn has_ended(&self, usable_free: u64, capacity: u64) -> bool {
        let mut last = self.last.lock();
        let has_ended = last.is_none_or(|then| usable_free >= then.usable_free + capacity);
        if has_ended {
            *last = None;
        }
        has_ended
    }
}

/// Returns whether bytes of stripes may be dead after these changes.
pub(crate) fn kills(batch: &Batch) -> bool {
    batch
        .iter()
        .any(|(key, value)| value.is_some() && key::is_perhaps_dead(key))
}
