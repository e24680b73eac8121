//! Operations on the files of one segment: removed, punched and cut on many members at once.
//!
//! All of them only give space back. A member that fails one is out of the volume by then, and the space that it keeps is
//! found again when it returns.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::segment_handle::SegmentHandle;
use crate::format::{MemberIndex, SegmentId, files};
use crate::membership::Members;
use crate::store::{Op, Store};

/// Ranges that are punched in one batch.
const PUNCHED_AT_ONCE: usize = 256;

/// Gives back the space of segment files.
pub(super) struct SegmentIo {
    members: Arc<Members>,
}

impl SegmentIo {
    /// Creates the part; it works on the files of all members.
    pub(super) fn new(members: Arc<Members>) -> Self {
        Self { members }
    }

    /// Removes the files of a segment from some members.
    pub(super) fn remove(
        &self,
        handle: &SegmentHandle,
        members: impl Iterator<Item = MemberIndex>,
    ) {
        let op = || Op::Remove {
            name: Arc::clone(&handle.name),
        };
        self.run_all(members.map(|member| (member, op())).collect());
    }

    /// Removes the file of a segment, which may be gone, from a member.
    pub(super) fn remove_file(&self, segment: SegmentId, member: MemberIndex) {
        let name = files::segment(segment).into();
        let outcomes = self.members.io().run(vec![(member, Op::Remove { name })]);
        for error in outcomes.into_iter().filter_map(Result::err) {
            tracing::debug!("{error}: it goes with the next mount");
        }
    }

    /// Gives back the space of a range of a segment's files on some members.
    pub(super) fn punch(
        &self,
        handle: &SegmentHandle,
        members: impl Iterator<Item = MemberIndex>,
        range: &Range<u64>,
    ) {
        let op = || Op::Punch {
            name: Arc::clone(&handle.name),
            offset: range.start,
            len: range.end - range.start,
        };
        self.run_all(members.map(|member| (member, op())).collect());
    }

    /// Gives back the space of ranges of a segment's files, each on one member.
    pub(super) fn punch_each(&self, handle: &SegmentHandle, places: &[(MemberIndex, Range<u64>)]) {
        let op = |range: &Range<u64>| Op::Punch {
            name: Arc::clone(&handle.name),
            offset: range.start,
            len: range.end - range.start,
        };
        for some in places.chunks(PUNCHED_AT_ONCE) {
            let ops = some.iter().map(|(member, range)| (*member, op(range)));
            self.run_all(ops.collect());
        }
    }

    /// Cuts the file of a segment on a member.
    pub(super) fn truncate(&self, handle: &SegmentHandle, member: MemberIndex, len: u64) {
        let name = Arc::clone(&handle.name);
        let cut = move |store: &dyn Store| store.truncate(&name, len);
        if let Err(error) = self.members.io().call(member, "truncate", cut) {
            tracing::debug!("{error}: the unused end of the file stays");
        }
    }

    /// Runs operations on the members that are online.
    fn run_all(&self, ops: Vec<(MemberIndex, Op)>) {
        let live = self.members.membership().live();
        let ops = ops
            .into_iter()
            .filter(|(member, _)| live.contains(member))
            .collect();
        for error in self
            .members
            .io()
            .run(ops)
            .into_iter()
            .filter_map(Result::err)
        {
            tracing::debug!("{error}: its space comes back with the rest of the segment");
        }
    }
}

/// Joins neighbouring places in the files of a segment, each on one member. They are in disk order.
pub(super) fn joined_by_member(
    places: impl Iterator<Item = (MemberIndex, Range<u64>)>,
) -> Vec<(MemberIndex, Range<u64>)> {
    let mut by_member: BTreeMap<MemberIndex, Vec<Range<u64>>> = BTreeMap::new();
    for (member, place) in places {
        let ranges = by_member.entry(member).or_default();
        match ranges.last_mut() {
            Some(last) if last.end == place.start => last.end = place.end,
            _ => ranges.push(place),
        }
    }
    let ranges = by_member.into_iter().flat_map(|(member, ranges)| {
        let ranges = ranges.into_iter();
        ranges.map(move |range| (member, range))
    });
    ranges.collect()
}
