//! How far a rebuild is, and whom it is for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;

use super::super::Pipeline;
use super::plan::Need;
use super::{Obstacle, Round};
use crate::format::MemberIndex;

/// How far a rebuild is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildProgress {
    /// Whether it is being done.
    pub state: RebuildState,
    /// Bytes of shards written so far.
    pub bytes_done: u64,
    /// Bytes of shards that are still to be written, as far as there are members for them.
    pub bytes_left: u64,
    /// Bytes of shards for which there is no member with room that has no shard of the same stripes.
    pub bytes_waiting: u64,
    /// Bytes of shards that keep their place because stripes in the same segments cannot be read without
    /// what members have that are away, or at all.
    pub bytes_unreadable: u64,
    /// For how long it has been done, or was.
    pub elapsed: Duration,
}

/// What a rebuild is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RebuildState {
    /// Nobody asked for one since the volume was opened.
    #[default]
    Idle,
    /// It is at work.
    Running,
    /// It did all that could be done.
    Finished,
    /// It was stopped, or could not go on; it can be started again.
    Stopped,
}

/// Who rebuilds, and how far.
#[derive(Debug, Default)]
pub(in crate::commit) struct Rebuilding {
    /// Held while rebuilding.
    pub(super) baton: Mutex<()>,
    pub(super) progress: Mutex<RebuildProgress>,
    /// The members that get what they lack.
    pub(super) members: Mutex<BTreeSet<MemberIndex>>,
    /// For members that are being emptied, who is to get what they have. After a restart nobody knows, and what
    /// is left goes where there is most room.
    pub(super) heirs: Mutex<BTreeMap<MemberIndex, MemberIndex>>,
}

impl Pipeline {
    /// Returns how far the rebuild is that is being done, or was done last.
    #[must_use]
    pub fn rebuild_progress(&self) -> RebuildProgress {
        *self.rebuilding.progress.lock()
    }

    /// Returns the members that are getting what they lack.
    #[must_use]
    pub fn rebuilding_members(&self) -> BTreeSet<MemberIndex> {
        self.rebuilding.members.lock().clone()
    }

    /// Notes which members are to get what they lack.
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

    pub(super) fn note_progress(&self, round: &Round<'_>, bytes: u64, left: u64) {
        let mut progress = self.rebuilding.progress.lock();
        progress.bytes_done += bytes;
        if left > 0 || bytes == 0 {
            progress.bytes_left = left;
            (progress.bytes_waiting, progress.bytes_unreadable) = (0, 0);
        }
        progress.bytes_left = progress.bytes_left.saturating_sub(bytes);
        progress.elapsed = round.began.elapsed();
    }

    pub(super) fn note_needless(&self, bytes: u64) {
        let mut progress = self.rebuilding.progress.lock();
        progress.bytes_left = progress.bytes_left.saturating_sub(bytes);
    }

    /// Notes that nothing could be done for so many bytes.
    pub(super) fn note_obstacle(&self, bytes: u64, obstacle: Obstacle) {
        let mut progress = self.rebuilding.progress.lock();
        match obstacle {
            Obstacle::NoRoom => progress.bytes_waiting += bytes,
            Obstacle::Unreadable => progress.bytes_unreadable += bytes,
            Obstacle::Passing => {}
        }
        progress.bytes_left = progress.bytes_left.saturating_sub(bytes);
    }
}
