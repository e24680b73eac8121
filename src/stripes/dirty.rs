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

/// The number of replaced files that were found so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Replacements(u64);

/// The files to sync, and those that cannot be synced any more.
#[derive(Debug, Default)]
struct Files {
    dirty: DirtyFiles,
    /// The files that another program replaced, each with the count when that was found last.
    replaced: BTreeMap<(MemberIndex, SegmentId), Replacements>,
    replacements: Replacements,
}

/// The segment files with bytes that are not durable.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    files: Mutex<Files>,
    /// Shards that are lost, but are to be reported by a later sync.
    lost: Mutex<Vec<LostShard>>,
    /// Held through a sync: a second one must not return while files that it would have found are
    /// still being synced by the first. Held also while replaced files are closed: a sync in between would reach the
    /// wrong file. No other operation ever waits for it.
    syncing: Mutex<()>,
}

impl Dirty {
    /// Returns the count to be handed to [`Dirty::add`]; taken before the shards are written.
    pub(crate) fn replacements(&self) -> Replacements {
        self.files.lock().replacements
    }

    /// Notes shards that were written to a segment: each with its member. Those whose file was replaced since the
    /// count was `before` are lost, because they may be in the other file.
    pub(crate) fn add(
        &self,
        segment: &SegmentHandle,
        written: impl Iterator<Item = (MemberIndex, LostShard)>,
        before: Replacements,
    ) {
        let mut lost = Vec::new();
        let mut files = self.files.lock();
        for (member, shard) in written {
            let replaced = files.replaced.get(&(member, segment.id));
            if replaced.is_some_and(|replaced| *replaced > before) {
                lost.push(shard);
            } else {
                files.dirty.touch(member, segment).push(shard);
            }
        }
        drop(files);
        self.keep_lost(lost);
    }

    /// Notes that a block was repaired, which must become durable but whose loss loses nothing.
    pub(crate) fn touch(&self, segment: &SegmentHandle, member: MemberIndex) {
        self.files.lock().dirty.touch(member, segment);
    }

    /// Closes the files of a segment that are open under a name that leads elsewhere by now. Their shards that are not
    /// durable are lost. Returns the members of these files.
    pub(crate) fn close_replaced(
        &self,
        members: &Members,
        segment: &SegmentHandle,
    ) -> Vec<MemberIndex> {
        let _syncing = self.syncing.lock();
        let live = members.membership().live();
        let is_replaced = |member: &MemberIndex| {
            let name = Arc::clone(&segment.name);
            let refreshed = members
                .io()
                .call(*member, "find", move |store| store.refresh(&name));
            refreshed.unwrap_or_else(|error| {
                tracing::debug!("{error}: a read of the file tells more");
                false
            })
        };
        let replaced: Vec<MemberIndex> = segment
            .members()
            .filter(|member| live.contains(member) && is_replaced(member))
            .collect();
        for member in &replaced {
            self.note_replaced(*member, segment.id);
        }
        replaced
    }

    fn note_replaced(&self, member: MemberIndex, segment: SegmentId) {
        let mut files = self.files.lock();
        files.replacements.0 += 1;
        let now = files.replacements;
        files.replaced.insert((member, segment), now);
        let dirty = files.dirty.remove(&(member, segment));
        drop(files);
        self.keep_lost(dirty.map_or_else(Vec::new, |file| file.shards));
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
        let files = std::mem::take(&mut self.files.lock().dirty);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::StripeClass;
    use crate::format::record::Segment;
    use crate::format::{ShardIndex, StripeId};

    /// A flush writes through a descriptor of the old file, and notes the shard only after the replacement was found.
    #[test]
    fn shards_written_before_their_file_was_found_replaced_are_lost_also_if_noted_after() {
        let record = Segment {
            class: StripeClass::VOLUME,
            data_shards: 2,
            parity_shards: 1,
            code: 1,
            len: 1 << 20,
            slots: (0..3).map(|slot| Some(MemberIndex(slot))).collect(),
            rotating: 3,
        };
        let segment = SegmentHandle::new(SegmentId(7), record);
        let shard = |stripe: u64, member: u16| {
            let shard = ShardIndex(u8::try_from(member).expect("small"));
            let stripe = StripeId(stripe);
            (MemberIndex(member), LostShard { stripe, shard })
        };
        let dirty = Dirty::default();
        let early = dirty.replacements();
        dirty.add(&segment, [shard(1, 0), shard(1, 1)].into_iter(), early);
        dirty.note_replaced(MemberIndex(1), segment.id);
        let late = dirty.replacements();
        dirty.add(&segment, [shard(2, 0), shard(2, 1)].into_iter(), early);
        dirty.add(&segment, [shard(3, 0), shard(3, 1)].into_iter(), late);
        assert_eq!(*dirty.lost.lock(), [shard(1, 1).1, shard(2, 1).1]);
        let left: Vec<LostShard> = dirty.files.lock().dirty[&(MemberIndex(1), segment.id)]
            .shards
            .clone();
        assert_eq!(left, [shard(3, 1).1]);
    }
}
