//! Shards that were written and are not durable yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::records::LostShard;
use super::segment_handle::SegmentHandle;
use crate::format::{MemberIndex, SegmentId};
use crate::membership::Members;
use crate::store::Op;

#[derive(Debug)]
struct DirtyFile {
    name: Arc<str>,
    shards: Vec<LostShard>,
}

type DirtyFiles = BTreeMap<(MemberIndex, SegmentId), DirtyFile>;

/// The segment files with bytes that are not durable.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    files: Mutex<DirtyFiles>,
    /// Shards that are lost, but are to be reported by a later sync.
    lost: Mutex<Vec<LostShard>>,
    /// Held through a sync: a second one must not return while files that it would have found are
    /// still being synced by the first. No other operation ever waits for it.
    syncing: Mutex<()>,
}

impl Dirty {
    /// Notes shards that were written to a segment: each with its member.
    pub(crate) fn add(
        &self,
        segment: &SegmentHandle,
        written: impl Iterator<Item = (MemberIndex, LostShard)>,
    ) {
        let mut files = self.files.lock();
        for (member, shard) in written {
            files.touch(member, segment).push(shard);
        }
    }

    /// Notes that a block was repaired, which must become durable but whose loss loses nothing.
    pub(crate) fn touch(&self, segment: &SegmentHandle, member: MemberIndex) {
        self.files.lock().touch(member, segment);
    }

    /// Keeps lost shards for the next sync to report.
    pub(crate) fn keep_lost(&self, lost: Vec<LostShard>) {
        self.lost.lock().extend(lost);
    }

    /// Makes everything durable that was noted before the call, on all members at once.
    ///
    /// Returns the shards that did not become so: those on members that failed, now or since they
    /// were written, and those that were returned to the list.
    pub(crate) fn sync(&self, members: &Members) -> Vec<LostShard> {
        let _syncing = self.syncing.lock();
        let files = std::mem::take(&mut *self.files.lock());
        let live = members.membership().live();
        let (reachable, gone): (Vec<_>, Vec<_>) = files
            .into_iter()
            .partition(|((member, _), _)| live.contains(member));
        let sync = |((member, _), file): &((MemberIndex, SegmentId), DirtyFile)| {
            (
                *member,
                Op::Sync {
                    name: Arc::clone(&file.name),
                },
            )
        };
        let outcomes = members.io().run(reachable.iter().map(sync).collect());
        let failed = reachable
            .into_iter()
            .zip(outcomes)
            .filter(|(_, outcome)| outcome.is_err());
        let unsynced = failed.map(|(file, _)| file);
        let mut lost = std::mem::take(&mut *self.lost.lock());
        let files = gone.into_iter().chain(unsynced);
        lost.extend(files.flat_map(|(_, file)| file.shards));
        lost
    }
}

trait Touch {
    fn touch(&mut self, member: MemberIndex, segment: &SegmentHandle) -> &mut Vec<LostShard>;
}

impl Touch for DirtyFiles {
    fn touch(&mut self, member: MemberIndex, segment: &SegmentHandle) -> &mut Vec<LostShard> {
        let fresh = || DirtyFile {
            name: Arc::clone(&segment.name),
            shards: Vec::new(),
        };
        &mut self
            .entry((member, segment.id))
            .or_insert_with(fresh)
            .shards
    }
}
