//! The room that a change of the code takes.

use super::Rebuild;
use super::widening;
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
        let slots = wanted.geometry.total_shards();
        let left = slot_capacity(&left, slots).saturating_mul(slots as u64);
        lacking + u64::saturating_sub(more, fewer).saturating_sub(left)
    }
}
