//! The room that a change of the code takes.

use std::collections::BTreeMap;

use super::Rebuild;
use super::widening;
use crate::codec::Geometry;
use crate::format::StripeClass;
use crate::membership::StripeCode;
use crate::stripes::slot_capacity;

impl Rebuild {
    /// Returns how many bytes of shards would find no room if all stripes got another code.
    ///
    /// Shards that are added to segments lie on members that have no other shard of these. Rewritten stripes
    /// need what they take more than before, because the old ones are freed one after another.
    #[must_use]
    pub fn lacking_room_for(&self, wanted: StripeCode) -> u64 {
        let segments = self.stripes.segments();
        let mut loads = self.stripes.space().loads();
        let draining = self.members.membership().draining();
        loads.retain(|member, _| !draining.contains(member));
        let (mut lacking, mut more, mut fewer) = (0, 0, 0);
        for (_, record) in segments.records() {
            if widening::is_to_be_rewritten(&record, wanted) {
                let data = u64::from(record.data_shards) * record.len;
                let shard = data.div_ceil(wanted.geometry.data_shards() as u64);
                more += shard * wanted.geometry.total_shards() as u64;
                fewer += record.len * record.total_shards() as u64;
                continue;
            }
            let wide = widening::widened(&record, wanted);
            let mut slots = record.slots.clone();
            for _ in record.slots.len()..wide.slots.len() {
                let others = loads.iter_mut();
                let others = others.filter(|(member, _)| !slots.contains(&Some(**member)));
                let roomiest = others.max_by_key(|(_, load)| load.available);
                match roomiest {
                    Some((member, load)) if load.available >= record.len => {
                        load.available -= record.len;
                        slots.push(Some(*member));
                    }
                    _ => lacking += record.len,
                }
            }
            // Shards that were dropped before lie among all others.
            let added = wide.total_shards() - record.total_shards();
            let within = added.saturating_sub(wide.slots.len() - record.slots.len()) as u64;
            let share = (record.len * within).div_ceil(record.slots.len().max(1) as u64);
            for member in record.slots.iter().flatten() {
                if let Some(load) = loads.get_mut(member) {
                    lacking += share.saturating_sub(load.available);
                    load.available = load.available.saturating_sub(share);
                }
            }
        }
        let left: Vec<u64> = loads.values().map(|load| load.available).collect();
        let left = room_for_shards(&left, wanted.geometry);
        lacking + u64::saturating_sub(more, fewer).saturating_sub(left)
    }

    /// Returns how many bytes of shards would find no room if files got another code. `bytes` are those of the files, by the
    /// class that they have.
    ///
    /// Their stripes are freed one after another. So they need what they take more than before, and a stripe at least. Only
    /// members count that would take them.
    #[must_use]
    pub fn lacking_room_to_rewrite(
        &self,
        bytes: &BTreeMap<StripeClass, u64>,
        wanted: Geometry,
    ) -> u64 {
        let classes = self.stripes.classes();
        let (mut more, mut fewer) = (0_u64, 0_u64);
        for (class, bytes) in bytes {
            more = more.saturating_add(shard_bytes(*bytes, wanted));
            let before = classes.get(*class);
            let before = before.map_or(0, |code| shard_bytes(*bytes, code.geometry()));
            fewer = fewer.saturating_add(before);
        }
        let draining = self.members.membership().draining();
        let mut loads = self.stripes.space().loads();
        loads.retain(|member, _| !draining.contains(member));
        let left: Vec<u64> = loads.values().map(|load| load.available).collect();
        let stripe = classes.volume().step() * wanted.total_shards() as u64;
        let needed = more.saturating_sub(fewer).max(stripe.min(more));
        needed.saturating_sub(room_for_shards(&left, wanted))
    }
}

/// Returns the bytes of all shards of stripes that have so many bytes of files.
fn shard_bytes(bytes: u64, geometry: Geometry) -> u64 {
    let shard = bytes.div_ceil(geometry.data_shards() as u64);
    shard.saturating_mul(geometry.total_shards() as u64)
}

/// Returns the bytes of shards that members with so much room each can take, in stripes with this many shards.
fn room_for_shards(rooms: &[u64], geometry: Geometry) -> u64 {
    let slots = geometry.total_shards();
    slot_capacity(rooms, slots).saturating_mul(slots as u64)
}
