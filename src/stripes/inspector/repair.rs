//! Writing restored shards where they lie.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::Inspector;
use super::findings::ShardRepair;
use crate::format::{MemberIndex, ShardIndex};
use crate::store::Op;
use crate::stripes::locator::{Located, Rows, mismatches};
use crate::stripes::segment_handle::SegmentHandle;

impl Inspector {
    /// Writes shards of stripes of one segment, each with its place among the stripes; syncs them and
    /// reads them back. Returns those that are right now.
    pub(super) fn repair_all(
        &self,
        stripes: &[Located],
        repairs: &[(usize, ShardRepair)],
    ) -> Vec<(usize, ShardIndex)> {
        let Some(first) = stripes.first().filter(|_| !repairs.is_empty()) else {
            return Vec::new();
        };
        let segment = &first.segment;
        let mut failed = self.write_repairs(stripes, repairs);
        let files: BTreeSet<MemberIndex> =
            repairs.iter().map(|(_, repair)| repair.member).collect();
        let unsynced = self.sync_files(segment, &files);
        for (at, (_, repair)) in repairs.iter().enumerate() {
            if unsynced.contains(&repair.member) {
                failed.insert(at);
            }
        }
        failed.extend(self.misread(stripes, repairs, &failed));
        let mut repaired = Vec::new();
        for (at, (stripe, repair)) in repairs.iter().enumerate() {
            let is_done = !failed.contains(&at);
            let id = (stripes[*stripe].id, repair.shard);
            let ranges = if is_done { repair.ranges.len() } else { 0 };
            self.damage.note_repaired(id, ranges, || {
                let outcome = if is_done {
                    "repaired"
                } else {
                    "cannot be repaired"
                };
                let place = self.place_of(&stripes[*stripe], repair);
                format!("{outcome} on {place}")
            });
            if is_done && repair.is_whole {
                repaired.push((*stripe, repair.shard));
            }
        }
        repaired
    }

    /// Names what a repair writes: the member, its file, and where in it.
    fn place_of(&self, located: &Located, repair: &ShardRepair) -> String {
        let (member, ranges) = (repair.member, &repair.ranges);
        let path = self.members.membership().path(member);
        let file = &located.segment.name;
        let bytes: usize = ranges.iter().map(Range::len).sum();
        let start = ranges.first().map_or(0, |range| range.start as u64);
        let offset = located.record.offset + start;
        let count = ranges.len();
        format!(
            "member {member}: {bytes} bytes of {path}/{file} from offset {offset}, in {count} ranges"
        )
    }

    /// Writes; returns the places of those that failed.
    fn write_repairs(
        &self,
        stripes: &[Located],
        repairs: &[(usize, ShardRepair)],
    ) -> BTreeSet<usize> {
        let mut ops = Vec::new();
        let mut owners = Vec::new();
        for (at, (stripe, repair)) in repairs.iter().enumerate() {
            let located = &stripes[*stripe];
            for range in &repair.ranges {
                owners.push(at);
                let op = Op::Write {
                    name: Arc::clone(&located.segment.name),
                    offset: located.record.offset + range.start as u64,
                    data: self.pool.copy_of(&repair.bytes[range.clone()]).freeze(),
                };
                ops.push((repair.member, op));
            }
        }
        let outcomes = self.members.io().run(ops);
        let failed = owners.into_iter().zip(outcomes);
        failed
            .filter(|(_, outcome)| outcome.is_err())
            .map(|(at, _)| at)
            .collect()
    }

    /// Makes the file of a segment durable on some members; returns those on which that failed.
    fn sync_files(
        &self,
        segment: &Arc<SegmentHandle>,
        members: &BTreeSet<MemberIndex>,
    ) -> BTreeSet<MemberIndex> {
        let sync = |member: &MemberIndex| {
            let name = Arc::clone(&segment.name);
            (*member, Op::Sync { name })
        };
        let outcomes = self.members.io().run(members.iter().map(sync).collect());
        let failed = members.iter().zip(outcomes);
        failed
            .filter(|(_, outcome)| outcome.is_err())
            .map(|(member, _)| *member)
            .collect()
    }

    /// Reads back what was written; returns the places of those that are not what they should be.
    fn misread(
        &self,
        stripes: &[Located],
        repairs: &[(usize, ShardRepair)],
        failed: &BTreeSet<usize>,
    ) -> BTreeSet<usize> {
        let mut reads: BTreeMap<(usize, usize), Range<usize>> = BTreeMap::new();
        let mut ops = Vec::new();
        for (at, (stripe, repair)) in repairs.iter().enumerate() {
            let located = &stripes[*stripe];
            for (number, range) in repair.ranges.iter().enumerate() {
                if failed.contains(&at) {
                    continue;
                }
                reads.insert((at, number), range.clone());
                let op = Op::Read {
                    name: Arc::clone(&located.segment.name),
                    offset: located.record.offset + range.start as u64,
                    buf: self.pool.buffer(range.len()),
                };
                ops.push((repair.member, op));
            }
        }
        let outcomes = self.members.io().run(ops);
        let mut wrong = BTreeSet::new();
        for (((at, _), range), outcome) in reads.into_iter().zip(outcomes) {
            let (stripe, repair) = &repairs[at];
            let rows = Rows {
                shard: repair.shard,
                range,
            };
            let is_right = match (outcome, self.locator.sums_of(&stripes[*stripe], &rows)) {
                (Ok(Some(buffer)), Ok(Some(sums))) => mismatches(&rows, &buffer, &sums).is_empty(),
                _ => false,
            };
            if !is_right {
                wrong.insert(at);
            }
        }
        wrong
    }
}
