//! How much a volume can hold, and how much of that is taken.

use std::collections::HashMap;

use super::Core;
use super::placement::slot_capacity;
use super::segments::kept_back;
use crate::format::MemberIndex;

/// Room for data, parity already taken off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes of data that the members at hand can hold in all.
    pub usable_total: u64,
    /// Bytes of that which segments take.
    pub usable_used: u64,
    /// Bytes of data that can still be written.
    pub usable_free: u64,
}

impl Core {
    /// Measures the members at hand.
    ///
    /// Every segment takes as many *different* members as it has slots, so that what one member has
    /// beyond the others may be of no use; members on one filesystem share its room.
    pub(super) fn space(&self) -> Space {
        let used = self.used_by_member();
        let spaces = self.members.spaces();
        let mut free = Vec::with_capacity(spaces.len());
        let mut total = Vec::with_capacity(spaces.len());
        for &(member, space) in &spaces {
            let sharing = spaces
                .iter()
                .filter(|(_, other)| other.filesystem == space.filesystem);
            let room =
                space
                    .free_bytes
                    .saturating_sub(kept_back(space, self.segments.step(), false));
            let room = room / sharing.count() as u64;
            free.push(room);
            total.push(room + used.get(&member).copied().unwrap_or(0));
        }
        let geometry = self.codec.geometry();
        // With members missing, stripes are written with what is left.
        let slots = geometry.total_shards().min(spaces.len());
        if slots < geometry.data_shards() {
            return Space::default();
        }
        let data_shards = geometry.data_shards() as u64;
        let usable_free = slot_capacity(&free, slots) * data_shards;
        let usable_total = (slot_capacity(&total, slots) * data_shards).max(usable_free);
        Space {
            usable_total,
            usable_used: usable_total - usable_free,
            usable_free,
        }
    }

    /// Returns what the segments take on each member, by the lengths of their files.
    fn used_by_member(&self) -> HashMap<MemberIndex, u64> {
        let mut used = HashMap::new();
        for segment in self.segments.all() {
            for &member in segment.record.slots.iter().flatten() {
                *used.entry(member).or_default() += segment.record.len;
            }
        }
        used
    }
}
