//! The capacity of a volume, and how much of it is taken.
//!
//! In bytes of data, parity taken off, on the online members:
//!
//! ```text
//! room  = (free on the filesystem - what is kept back) / members that share it, in whole steps;
//!         less what segments being written have left, where that could not be reserved
//! index = 1 + 5 x shards of a stripe / 4096: what the index grows by for each byte of a segment file
//! free  = data shards x (slots(room / index) + what segments being written have left)
//! total = data shards x  slots(room / index + left + taken by stripes)
//! used  = total - free
//! ```
//!
//! From what is free, the room for unwritten extents is taken off, and counts as used: see `SpaceMeter::kept_for_unwritten`.
//!
//! A member that is being emptied has no room, and what it holds is taken off what is free on the others.
//!
//! `slots(...)` is [`slot_capacity`]: a segment takes different members, so that what one member has
//! beyond the others may be of no use. Space that is reserved for a segment and not written is free, and
//! so is that of dead stripes once it was given back; what others keep on the same filesystems is
//! neither free nor used.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::options::FullMembers;
use super::placement::{Candidate, slot_capacity};
use super::segments::{Need, Segments, Taken, kept_back, kept_from_index, promised};
use crate::codec::Geometry;
use crate::format::{BLOCK_SIZE, MemberIndex};
use crate::membership::Members;
use crate::store;

/// Room for data, parity already taken off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes of data that the online members can hold in all.
    pub usable_total: u64,
    /// Bytes of that which stripes take.
    pub usable_used: u64,
    /// Bytes of data that can still be written.
    pub usable_free: u64,
}

/// Bytes that the index grows by for each checksum of a block: the checksum, and a part of its page
/// that is not filled.
const INDEX_BYTES_PER_SUM: u64 = 5;

/// Bytes that a copy of the index grows by for each extent of a block, its backref included.
const INDEX_BYTES_PER_EXTENT: u64 = 160;

/// Stripes that may end before they are full, or have no place because of the sizes of members.
const UNFILLED_STRIPES: u64 = 4;

/// The bytes of segments on a member, and its room for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Bytes that segments take there.
    pub taken: u64,
    /// Bytes that more of them could. Members that share a filesystem have an equal part of its room each.
    pub available: u64,
    /// Bytes that segments take there when the member is full. Members that share a filesystem each have an equal part
    /// of what segments take there and could take. Equally full ones so take the same.
    pub whole: u64,
    /// The same number for members that share one filesystem, and so its room.
    pub filesystem: u64,
}

/// Returns the loads of members that could take segments.
fn loads_of(candidates: &[Candidate]) -> BTreeMap<MemberIndex, Load> {
    let load = |candidate: &Candidate| {
        let sharing = || {
            let others = candidates.iter();
            others.filter(|other| other.filesystem == candidate.filesystem)
        };
        let all: u64 = sharing().map(|other| other.taken + other.available).sum();
        Load {
            taken: candidate.taken,
            available: candidate.available,
            whole: match candidate.available {
                0 => candidate.taken,
                _ => all / sharing().count() as u64,
            },
            filesystem: candidate.filesystem,
        }
    };
    let loads = candidates.iter();
    loads
        .map(|candidate| (candidate.member, load(candidate)))
        .collect()
}

/// Measures the space on the members, and what segments take of it.
pub(crate) struct SpaceMeter {
    members: Arc<Members>,
    segments: Arc<Segments>,
    geometry: Geometry,
    /// Bytes of files in unwritten extents.
    unwritten: AtomicU64,
}

impl SpaceMeter {
    /// Creates the part; it measures nothing yet.
    pub(super) fn new(members: Arc<Members>, segments: Arc<Segments>) -> Self {
        Self {
            geometry: members.shape().geometry(),
            members,
            segments,
            unwritten: AtomicU64::new(0),
        }
    }

    /// Returns what each member that takes new segments of the volume's code has of segments, and room for.
    pub(crate) fn loads(&self) -> BTreeMap<MemberIndex, Load> {
        let shards = self.geometry.total_shards();
        loads_of(&self.segments.candidates(Need::New, shards))
    }

    /// Returns the members that take new segments in general, and have no room for another.
    pub(crate) fn full(&self) -> BTreeSet<MemberIndex> {
        let step = self.segments.step();
        let full = self.loads().into_iter();
        let full = full.filter(|(_, load)| load.available < step);
        full.map(|(member, _)| member).collect()
    }

    /// Returns how much of a filesystem the index may not take, on which so many of the online members are.
    pub(crate) fn kept_from_index(
        &self,
        space: store::Space,
        (sharing, online): (usize, usize),
    ) -> u64 {
        let step = self.segments.step();
        if self.unwritten() == 0 {
            return kept_from_index(space, step);
        }
        let shards = self.geometry.total_shards().min(online) as u64;
        let files = self.kept().div_ceil(self.geometry.data_shards() as u64);
        let files = files.saturating_mul(shards) / online.max(1) as u64;
        // Beyond what is kept back from segments: only that is free for the stripes to come.
        kept_back(space, step, Need::New).saturating_add(files.saturating_mul(sharing as u64))
    }

    /// Returns the bytes of files in unwritten extents.
    pub(crate) fn unwritten(&self) -> u64 {
        self.unwritten.load(Ordering::SeqCst)
    }

    /// Sets the bytes of files in unwritten extents.
    pub(crate) fn set_unwritten(&self, bytes: u64) {
        self.unwritten.store(bytes, Ordering::SeqCst);
    }

    /// Notes by how much the bytes in unwritten extents have grown, or shrunk.
    pub(crate) fn grow_unwritten(&self, growth: i64) {
        let (set, get) = (Ordering::SeqCst, Ordering::SeqCst);
        let grown = |bytes: u64| Some(bytes.saturating_add_signed(growth));
        // It always has a next value.
        let _before = self.unwritten.fetch_update(set, get, grown);
    }

    /// Returns the bytes of data that must stay free so that so many bytes can be written in any order, a block at a
    /// time: these bytes, the extents and backrefs of as many blocks in the index, and some stripes that end early.
    pub(crate) fn kept_for_unwritten(&self, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let data_shards = self.geometry.data_shards() as u64;
        let stripes = UNFILLED_STRIPES * self.segments.step() * data_shards;
        // Every member may have to take a copy of the index.
        let index = (bytes / BLOCK_SIZE as u64 + 1).saturating_mul(INDEX_BYTES_PER_EXTENT);
        let index = index.saturating_mul(data_shards);
        bytes.saturating_add(index).saturating_add(stripes)
    }

    fn kept(&self) -> u64 {
        self.kept_for_unwritten(self.unwritten())
    }

    /// Measures the online members; asks each of them.
    pub(crate) fn measure(&self) -> Space {
        let geometry = self.geometry;
        let draining = self.members.membership().draining();
        let mut spaces = self.members.io().spaces();
        spaces.retain(|(member, _)| !draining.contains(member));
        // With members missing, stripes are written with what is left.
        let slots = geometry.total_shards().min(spaces.len());
        if slots < geometry.data_shards() {
            return Space::default();
        }
        let Usage {
            by_member,
            stripes,
            left,
        } = self.usage();
        let unwritten = self.segments.unwritten();
        let mut free = Vec::with_capacity(spaces.len());
        let mut total = Vec::with_capacity(spaces.len());
        let mut most = Vec::with_capacity(spaces.len());
        for &(member, space) in &spaces {
            let sharing = spaces
                .iter()
                .filter(|(_, other)| other.filesystem == space.filesystem);
            let sharing = sharing.count() as u64;
            let kept = kept_back(space, self.segments.step(), Need::New)
                .saturating_add(promised(space, &spaces, &unwritten));
            let room = space.free_bytes.saturating_sub(kept) / sharing;
            let usage = by_member.get(&member).copied().unwrap_or_default();
            let to_be_cut = if space.reserves { usage.to_be_cut } else { 0 };
            let room = self.without_index(room.saturating_add(to_be_cut));
            free.push(room);
            // Until all segments are audited, some seem to take more than they do.
            most.push(space.total_bytes / sharing);
            total.push((space.total_bytes / sharing).min(room.saturating_add(usage.taken)));
        }
        let data_shards = geometry.data_shards() as u64;
        let to_be_moved = draining.iter().filter_map(|member| by_member.get(member));
        let to_be_moved = to_be_moved.map(|usage| usage.taken).sum::<u64>() / slots as u64;
        let free_slots = slot_capacity(&free, self.slots_with_room(&free, slots));
        let free_slots = (free_slots + left).saturating_sub(to_be_moved);
        let usable_free = free_slots * data_shards;
        let usable_total = slot_capacity(&total, slots) * data_shards;
        // Where members share a disk, one with little of the old stripes has room for few of the others.
        let most = (slot_capacity(&most, slots) * data_shards).saturating_sub(usable_free);
        let stripes = (stripes * data_shards).min(most);
        let usable_free = usable_free.saturating_sub(self.kept());
        let usable_used = usable_total.saturating_sub(usable_free).max(stripes);
        Space {
            usable_total: usable_free + usable_used,
            usable_used,
            usable_free,
        }
    }

    /// Returns how many of so many slots a new segment has, if members have `free` bytes.
    fn slots_with_room(&self, free: &[u64], slots: usize) -> usize {
        let step = self.segments.step();
        let with_room = free.iter().filter(|free| **free >= step).count();
        match self.segments.on_full_members() {
            FullMembers::Degrade if with_room >= self.geometry.data_shards() => {
                slots.min(with_room)
            }
            _ => slots,
        }
    }

    /// Returns what segment files can take of some room, when the index grows with them: whole steps.
    fn without_index(&self, room: u64) -> u64 {
        let shards = self.geometry.total_shards() as u64;
        let block = BLOCK_SIZE as u64;
        let growth = block + INDEX_BYTES_PER_SUM * shards;
        let files = u128::from(room) * u128::from(block) / u128::from(growth);
        let files = u64::try_from(files).unwrap_or(u64::MAX);
        files - files % self.segments.step()
    }

    fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for (
            segment,
            Taken {
                stripes,
                left,
                open,
            },
        ) in self.segments.taken()
        {
            let left = left - left % self.segments.step();
            usage.stripes = usage.stripes.saturating_add(stripes);
            usage.left += if open { left } else { 0 };
            for &member in segment.record.slots.iter().flatten() {
                let of_member = usage.by_member.entry(member).or_default();
                of_member.taken = of_member.taken.saturating_add(stripes);
                of_member.taken += if open { left } else { 0 };
                of_member.to_be_cut += if open { 0 } else { left };
            }
        }
        usage
    }
}

/// The bytes that segments take.
#[derive(Default)]
struct Usage {
    by_member: HashMap<MemberIndex, MemberUsage>,
    /// The bytes that stripes take of one slot of each segment.
    stripes: u64,
    /// The bytes left in each slot of the segments being written.
    left: u64,
}

/// The bytes that segments take of one member.
#[derive(Clone, Copy, Default)]
struct MemberUsage {
    /// Bytes that stripes take, and those left where more may come.
    taken: u64,
    /// Bytes that come free when segments are cut.
    to_be_cut: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_one_filesystem_are_full_with_equal_parts_of_all_that_it_holds() {
        let candidate = |(index, taken, available, filesystem)| Candidate {
            member: MemberIndex(index),
            available,
            taken,
            filesystem,
        };
        let shared = (0..6).map(|index| (index, 6, 10, 1));
        let candidates: Vec<Candidate> = shared
            .chain([(6, 0, 10, 1), (7, 5, 20, 2), (8, 7, 0, 3)])
            .map(candidate)
            .collect();
        let loads = loads_of(&candidates);
        let whole = |index| loads[&MemberIndex(index)].whole;
        for index in 0..7 {
            assert_eq!(whole(index), (36 + 70) / 7, "{index}");
        }
        assert_eq!((whole(7), whole(8)), (25, 7));
    }
}
