//! The progress of a rebuild.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::format::MemberIndex;

/// The progress of a rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildProgress {
    /// The state of the work.
    pub state: RebuildState,
    /// The purpose of the work.
    pub kind: RebuildKind,
    /// Bytes of shards written so far.
    pub bytes_done: u64,
    /// The part of these that nothing lacked: they were moved from one online member to another.
    pub bytes_moved: u64,
    /// Bytes of shards that are still to be written, as far as there are members for them.
    pub bytes_left: u64,
    /// Bytes of shards for which there is no member with room that has no shard of the same stripes.
    pub bytes_waiting: u64,
    /// The part of these for which no member is left that has no shard of the same stripes, however much room there is.
    pub bytes_without_member: u64,
    /// The least of all that wait that one member has to have room for at once; 0 if nothing waits.
    pub least_waiting: u64,
    /// Bytes of shards that keep their place because stripes in the same segments cannot be read. They need what absent
    /// members have, or are unreadable altogether.
    pub bytes_unreadable: u64,
    /// Bytes of shards written right before, if shards are being moved now that nothing is missing.
    pub bytes_before: u64,
    /// The part of these that was moved.
    pub moved_before: u64,
    /// The duration of the work, with that of the rebuild right before.
    pub elapsed: Duration,
}

/// The purpose of writing shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RebuildKind {
    /// Missing shards are written, and those of draining members move.
    #[default]
    Rebuild,
    /// Shards move from the fullest members to the emptiest.
    Balance,
}

/// The state of a rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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

/// Obstacle to the rebuild of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// The members that are free for it lack room.
    NoRoom,
    /// No member is left that has no shard of the same stripes.
    TooFewMembers,
    /// Members are too few: bytes would survive fewer losses in a new stripe than in the one that they have.
    LessProtected,
    /// One of its stripes cannot be read, or their records disagree. The remaining shards have to be kept.
    Unreadable,
    /// The segment is being written, or is gone, or a member failed meanwhile.
    Passing,
}

/// Status of the running rebuild, or of the last one, for those who report it.
#[derive(Debug, Default)]
pub struct RebuildStatus {
    progress: Mutex<RebuildProgress>,
    /// The members that get missing shards.
    members: Mutex<BTreeSet<MemberIndex>>,
    /// The reason for which the last work failed that is tried again.
    failure: Mutex<Option<String>>,
}

impl RebuildStatus {
    /// Returns the progress of the running rebuild, or of the last one.
    #[must_use]
    pub fn progress(&self) -> RebuildProgress {
        *self.progress.lock()
    }

    /// Returns the members that are getting missing shards.
    #[must_use]
    pub fn members(&self) -> BTreeSet<MemberIndex> {
        self.members.lock().clone()
    }

    /// Returns the reason for which a rebuild or a move of shards failed that is tried again.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Sets the reason for which work failed that is tried again.
    pub(in crate::maintenance) fn set_failure(&self, failure: Option<String>) {
        *self.failure.lock() = failure;
    }

    /// Forgets the shards that could not be rebuilt, after a count found that nothing lacks anything. The counter must
    /// have `seen` this progress before it counted.
    pub(in crate::maintenance) fn forget_stuck(&self, seen: &RebuildProgress) {
        let mut progress = self.progress.lock();
        if *progress == *seen && seen.state != RebuildState::Running {
            progress.set_stuck(&RebuildProgress::default());
        }
    }

    /// Replaces the progress by `progress`, and returns the earlier one.
    pub(super) fn replace(&self, progress: RebuildProgress) -> RebuildProgress {
        std::mem::replace(&mut self.progress.lock(), progress)
    }

    /// Applies `change` to the progress.
    pub(super) fn update<R>(&self, change: impl FnOnce(&mut RebuildProgress) -> R) -> R {
        change(&mut self.progress.lock())
    }

    /// Notes which members get missing shards.
    pub(super) fn set_members(&self, members: BTreeSet<MemberIndex>) {
        *self.members.lock() = members;
    }

    /// Notes the begin of a plan, with so many bytes to write.
    pub(super) fn begin_plan(&self, left: u64, elapsed: Duration) {
        let mut progress = self.progress.lock();
        progress.begin_plan(left);
        progress.elapsed = elapsed;
    }

    /// Notes bytes that were written, of which so many moved.
    pub(super) fn add_written(&self, bytes: u64, moved: u64, elapsed: Duration) {
        let mut progress = self.progress.lock();
        progress.add_written(bytes, moved);
        progress.elapsed = elapsed;
    }

    /// Notes bytes that need not be written any more.
    pub(super) fn drop_left(&self, bytes: u64) {
        self.progress.lock().drop_left(bytes);
    }

    /// Notes that nothing could be done for a segment whose slots lack so many bytes each.
    pub(super) fn add_blocked(&self, slots: &[u64], obstacle: Obstacle) {
        let mut progress = self.progress.lock();
        let bytes: u64 = slots.iter().sum();
        match obstacle {
            Obstacle::NoRoom => progress.add_waiting(slots.iter().copied()),
            Obstacle::TooFewMembers | Obstacle::LessProtected => {
                progress.add_waiting(slots.iter().copied());
                progress.bytes_without_member += bytes;
            }
            Obstacle::Unreadable => progress.bytes_unreadable += bytes,
            Obstacle::Passing => {}
        }
        progress.drop_left(bytes);
    }
}

impl RebuildProgress {
    /// Begins a plan, with so many bytes to write. It tries again what the one before could not do.
    fn begin_plan(&mut self, left: u64) {
        self.bytes_left = left;
        self.set_stuck(&Self::default());
    }

    /// Returns whether there was nothing to do.
    pub(super) fn met_nothing(&self) -> bool {
        self.bytes_done == 0 && self.bytes_waiting == 0 && self.bytes_unreadable == 0
    }

    /// Returns whether shards are left that could not be rebuilt.
    #[must_use]
    pub fn leaves_something(&self) -> bool {
        self.bytes_left > 0 || self.bytes_waiting > 0 || self.bytes_unreadable > 0
    }

    /// Copies from another rebuild the shards that could not be rebuilt.
    pub(super) fn set_stuck(&mut self, other: &Self) {
        self.bytes_waiting = other.bytes_waiting;
        self.bytes_without_member = other.bytes_without_member;
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

    fn add_written(&mut self, bytes: u64, moved: u64) {
        self.bytes_done += bytes;
        self.bytes_moved += moved;
        self.drop_left(bytes);
    }

    /// Notes that so many bytes need not be written any more for this plan.
    fn drop_left(&mut self, bytes: u64) {
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As of a batch of which no stripe can be read.
    #[test]
    fn waiting_and_unreadable_shards_are_reported_until_the_next_plan_even_if_nothing_is_written() {
        let mut progress = RebuildProgress::default();
        progress.begin_plan(100);
        progress.add_waiting([20, 0].into_iter());
        progress.add_waiting([10].into_iter());
        assert_eq!(progress.least_waiting, 10);
        progress.bytes_unreadable = 20;
        progress.drop_left(50);
        progress.add_written(0, 0);
        progress.add_written(40, 25);
        assert_eq!(progress.bytes_moved, 25);
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
        progress.begin_plan(60);
        assert_eq!(seen(&progress), (40, 60, 0, 0));
    }

    #[test]
    fn a_count_forgets_stuck_shards_unless_the_progress_changed_since_it_began() {
        let status = RebuildStatus::default();
        status.add_blocked(&[20, 10], Obstacle::NoRoom);
        status.add_blocked(&[5], Obstacle::Unreadable);
        let seen = status.progress();
        assert!(seen.leaves_something());
        status.add_blocked(&[1], Obstacle::NoRoom);
        status.forget_stuck(&seen);
        assert_eq!(status.progress().bytes_waiting, 31, "it changed");
        let running = RebuildProgress {
            state: RebuildState::Running,
            ..status.progress()
        };
        status.replace(running);
        status.forget_stuck(&running);
        assert_eq!(status.progress(), running, "it runs");
        status.update(|progress| progress.state = RebuildState::Finished);
        status.forget_stuck(&status.progress());
        assert!(!status.progress().leaves_something());
    }
}
