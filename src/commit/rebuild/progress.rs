//! The progress of a rebuild, and the orders that it serves.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;

use super::super::Pipeline;
use super::plan::Need;
use super::{Obstacle, Round};
use crate::format::MemberIndex;

/// The progress of a rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildProgress {
    /// The state of the work.
    pub state: RebuildState,
    /// Bytes of shards written so far.
    pub bytes_done: u64,
    /// Bytes of shards that are still to be written, as far as there are members for them.
    pub bytes_left: u64,
    /// Bytes of shards for which there is no member with room that has no shard of the same stripes.
    pub bytes_waiting: u64,
    /// The least of these that one member has to have room for at once; 0 if nothing waits.
    pub least_waiting: u64,
    /// Bytes of shards that keep their place because stripes in the same segments cannot be read. They need what absent
    /// members have, or are unreadable altogether.
    pub bytes_unreadable: u64,
    /// Bytes of shards rebuilt right before, if shards are being moved now that nothing is missing.
    pub bytes_before: u64,
    /// The duration of the work, with that of the rebuild right before.
    pub elapsed: Duration,
}

/// The state of a rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RebuildState {
    /// No rebuild was asked for since the volume was opened.
    #[default]
    Idle,
    /// It is at work.
    Running,
    /// It did all that could be done.
    Finished,
    /// It was stopped, or could not go on; it can be started again.
    Stopped,
}

/// The rebuild that runs, and its progress.
#[derive(Debug, Default)]
pub(in crate::commit) struct Rebuilding {
    /// Held while rebuilding.
    pub(super) baton: Mutex<()>,
    pub(super) progress: Mutex<RebuildProgress>,
    /// The members that get missing shards.
    pub(super) members: Mutex<BTreeSet<MemberIndex>>,
}

impl Rebuilding {
    /// Returns the progress of the running rebuild, or of the last one.
    pub(in crate::commit) fn progress(&self) -> RebuildProgress {
        *self.progress.lock()
    }

    /// Forgets what could not be rebuilt, after a count found that nothing lacks anything. The counter must have `seen`
    /// this progress before it counted.
    pub(in crate::commit) fn forget_stuck(&self, seen: &RebuildProgress) {
        let mut progress = self.progress.lock();
        if *progress == *seen && seen.state != RebuildState::Running {
            progress.set_stuck(&RebuildProgress::default());
        }
    }
}

impl Pipeline {
    /// Returns the progress of the running rebuild, or of the last one.
    #[must_use]
    pub fn rebuild_progress(&self) -> RebuildProgress {
        self.rebuilding.progress()
    }

    /// Returns the members that are getting missing shards.
    #[must_use]
    pub fn rebuilding_members(&self) -> BTreeSet<MemberIndex> {
        self.rebuilding.members.lock().clone()
    }

    /// Notes which members get missing shards.
    pub(super) fn note_members(&self, needs: &[Need]) {
        let live = self.members.live();
        let mut members = BTreeSet::new();
        for need in needs {
            let Some(record) = self.volume.segment(need.segment) else {
                continue;
            };
            let lacking = need.slots.keys().filter(|slot| !need.moves.contains(slot));
            let holders = lacking.filter_map(|&slot| record.slots[slot]);
            members.extend(holders.filter(|member| live.contains(member)));
        }
        *self.rebuilding.members.lock() = members;
    }

    pub(super) fn note_round(&self, round: &Round<'_>, left: u64) {
        let mut progress = self.rebuilding.progress.lock();
        progress.begin_round(left);
        progress.elapsed = round.elapsed();
    }

    pub(super) fn note_written(&self, round: &Round<'_>, bytes: u64) {
        let mut progress = self.rebuilding.progress.lock();
        progress.add_written(bytes);
        progress.elapsed = round.elapsed();
    }

    pub(super) fn note_needless(&self, bytes: u64) {
        self.rebuilding.progress.lock().settle(bytes);
    }

    /// Notes that nothing could be done for a segment.
    pub(super) fn note_obstacle(&self, need: &Need, obstacle: Obstacle) {
        let mut progress = self.rebuilding.progress.lock();
        let bytes = need.bytes();
        match obstacle {
            Obstacle::NoRoom => progress.add_waiting(need.slots.values().copied()),
            Obstacle::Unreadable => progress.bytes_unreadable += bytes,
            Obstacle::Passing => {}
        }
        progress.settle(bytes);
    }
}

impl RebuildProgress {
    /// Begins a round, with so many bytes to write: the failures of the one before are tried again.
    fn begin_round(&mut self, left: u64) {
        self.bytes_left = left;
        self.set_stuck(&Self::default());
    }

    /// Says whether there was nothing to do.
    pub(super) fn met_nothing(&self) -> bool {
        self.bytes_done == 0 && self.bytes_waiting == 0 && self.bytes_unreadable == 0
    }

    /// Says whether something is left to rebuild that could not be rebuilt.
    #[must_use]
    pub fn leaves_something(&self) -> bool {
        self.bytes_left > 0 || self.bytes_waiting > 0 || self.bytes_unreadable > 0
    }

    /// Takes over from another round what could not be done.
    pub(super) fn set_stuck(&mut self, other: &Self) {
        self.bytes_waiting = other.bytes_waiting;
        self.least_waiting = other.least_waiting;
        self.bytes_unreadable = other.bytes_unreadable;
    }

    /// Adds slots of one segment, of so many bytes each, for which no member has room.
    fn add_waiting(&mut self, slots: impl Iterator<Item = u64>) {
        for bytes in slots.filter(|bytes| *bytes > 0) {
            let is_first = self.bytes_waiting == 0;
            self.least_waiting = if is_first {
                bytes
            } else {
                self.least_waiting.min(bytes)
            };
            self.bytes_waiting += bytes;
        }
    }

    fn add_written(&mut self, bytes: u64) {
        self.bytes_done += bytes;
        self.settle(bytes);
    }

    /// So many bytes are not to be written any more in this round.
    fn settle(&mut self, bytes: u64) {
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As of a batch of which no stripe can be read.
    #[test]
    fn what_waits_or_cannot_be_read_is_known_until_the_next_round_also_where_nothing_is_written() {
        let mut progress = RebuildProgress::default();
        progress.begin_round(100);
        progress.add_waiting([20, 0].into_iter());
        progress.add_waiting([10].into_iter());
        assert_eq!(progress.least_waiting, 10);
        progress.bytes_unreadable = 20;
        progress.settle(50);
        progress.add_written(0);
        progress.add_written(40);
        let seen = |progress: &RebuildProgress| {
            let RebuildProgress {
                bytes_done,
                bytes_left,
                bytes_waiting,
                bytes_unreadable,
                ..
            } = *progress;
            (bytes_done, bytes_left, bytes_waiting, bytes_unreadable)
        };
        assert_eq!(seen(&progress), (40, 10, 30, 20));
        progress.begin_round(60);
        assert_eq!(seen(&progress), (40, 60, 0, 0));
    }
}
