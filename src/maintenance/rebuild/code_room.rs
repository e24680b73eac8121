//! The room that a change of the code takes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Rebuild;
use super::widening;
use crate::codec::Geometry;
use crate::format::{Ino, StripeClass};
use crate::membership::StripeCode;
use crate::stripes::slot_capacity;
use crate::transaction::CommitError;

/// Bytes of one copy of the index for each stripe: its records, and those of extents that are cut where it ends.
const INDEX_BYTES_PER_STRIPE: u64 = 600;

/// Returns how many stripes of so many data shards hold bytes of data, if all are full.
fn stripes_of(data: u64, data_shards: usize, unit_bytes: u32) -> u64 {
    data.div_ceil((data_shards as u64 * u64::from(unit_bytes)).max(1))
}

impl Rebuild {
    /// Returns how many bytes of shards would find no room if all stripes got another code or stripe unit.
    ///
    /// Shards that are added to segments lie on members that have no other shard of these. Rewritten stripes
    /// need what they take more than before, because the old ones are freed one after another. If a
    /// shorter stripe unit makes them more, all copies of the index grow.
    #[must_use]
    pub fn lacking_room_for(&self, wanted: StripeCode) -> u64 {
        let segments = self.stripes.segments();
        let mut loads = self.stripes.space().loads();
        let draining = self.members.membership().draining();
        loads.retain(|member, _| !draining.contains(member));
        let (mut lacking, mut more, mut fewer) = (0, 0, 0);
        for (id, record) in segments.records() {
            if widening::is_to_be_rewritten(&record, self.unit_of(id), wanted) {
                let data = u64::from(record.data_shards) * record.len;
                let geometry = self.geometry_of_directories(record.class);
                let geometry = geometry.unwrap_or(wanted.geometry);
                more += shard_bytes(data, geometry);
                let unit_bytes = self.unit_of(id);
                if wanted.unit_bytes < unit_bytes {
                    let before = stripes_of(data, record.data_shards.into(), unit_bytes);
                    let after = stripes_of(data, geometry.data_shards(), wanted.unit_bytes);
                    let copies = wanted.geometry.parity_shards() as u64 + 1;
                    more += after.saturating_sub(before) * INDEX_BYTES_PER_STRIPE * copies;
                }
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

    /// Returns the geometry of a class that has a code of directories; none for that of the volume.
    fn geometry_of_directories(&self, class: StripeClass) -> Option<Geometry> {
        let code = self.stripes.classes().get(class);
        let code = code.filter(|code| code.class() != StripeClass::VOLUME);
        code.map(|code| code.geometry())
    }

    /// Returns how many bytes of shards would find no room if files got another code. `class` is that of the code, if there is
    /// one yet. Returns 0 if no more would lack room than without this. Reads the records of all stripes.
    ///
    /// All stripes count that hold bytes of files of other classes, also those of orders that are not carried out. They are
    /// freed one after another. So they need what they take more than before, and a stripe at least. Bytes that files share
    /// count for each of them. Only members count that would take them. Classes for which these are too few count for
    /// nothing, because their bytes stay where they are.
    ///
    /// # Errors
    ///
    /// As for [`crate::transaction::Transactions::sync`].
    pub fn lacking_room_to_rewrite(
        &self,
        files: &BTreeSet<Ino>,
        class: Option<StripeClass>,
        wanted: Geometry,
    ) -> Result<u64, CommitError> {
        // Stripes that are in memory alone would not be found.
        self.stripes.writer().retire_segments()?;
        self.commits.sync()?;
        let homes = self.members.membership().staying().len();
        let has_homes = |class: StripeClass| {
            let code = self.stripes.classes().get(class);
            code.is_some_and(|code| code.geometry().total_shards() <= homes)
        };
        let (mut before, mut after) = (Moves::default(), Moves::default());
        for (segment, record) in self.segments_in_order() {
            let mut known = self.known_classes();
            for (stripe, found) in self.catalog.listed_in(segment)?.stripes {
                let mut runs = Vec::new();
                for (ino, len) in self.runs_in(stripe)? {
                    let class = known.of(ino)?;
                    let moves_to = if has_homes(class) {
                        class
                    } else {
                        record.class
                    };
                    runs.push((ino, moves_to, len));
                }
                let shards = u64::from(found.height) * record.total_shards() as u64;
                let present = runs.iter().map(|(_, present, len)| (Some(*present), *len));
                before.add(record.class, shards, present);
                let then = runs.iter().map(|(ino, present, len)| {
                    let is_given = files.contains(ino);
                    (if is_given { class } else { Some(*present) }, *len)
                });
                after.add(record.class, shards, then);
            }
        }
        let lacking = self.lacking_room_for_moves(&after, wanted);
        let is_worse = lacking > self.lacking_room_for_moves(&before, wanted);
        Ok(if is_worse { lacking } else { 0 })
    }

    /// Returns how many bytes of shards find no room if stripes are rewritten. `wanted` is the code of the class that is yet
    /// to be made.
    fn lacking_room_for_moves(&self, moves: &Moves, wanted: Geometry) -> u64 {
        let classes = self.stripes.classes();
        let (mut more, mut least, mut room) = (0_u64, 0, u64::MAX);
        for (class, bytes) in &moves.written {
            let known = class.and_then(|class| classes.get(class));
            let geometry = known.map_or(wanted, |code| code.geometry());
            more = more.saturating_add(shard_bytes(*bytes, geometry));
            let stripe = classes.volume().step() * geometry.total_shards() as u64;
            least = stripe.max(least);
            room = room_for_shards(&self.rooms(), geometry).min(room);
        }
        let needed = more.saturating_sub(moves.freed).max(least.min(more));
        needed.saturating_sub(room)
    }

    /// Returns the room for shards of new stripes of a class, and what one of these takes.
    pub(super) fn room_for_class(&self, class: StripeClass) -> (u64, u64) {
        let classes = self.stripes.classes();
        let code = classes.get(class);
        let code = code.unwrap_or_else(|| Arc::clone(classes.volume()));
        let stripe = code.step() * code.geometry().total_shards() as u64;
        (room_for_shards(&self.rooms(), code.geometry()), stripe)
    }

    /// Returns the room on each member that takes new shards.
    fn rooms(&self) -> Vec<u64> {
        let draining = self.members.membership().draining();
        let mut loads = self.stripes.space().loads();
        loads.retain(|member, _| !draining.contains(member));
        loads.values().map(|load| load.available).collect()
    }
}

/// Stripes that are rewritten because they hold bytes of files of other classes.
#[derive(Debug, Default)]
struct Moves {
    /// Their bytes that files have, by the class that these are written with. None is the one that is yet to be made.
    written: BTreeMap<Option<StripeClass>, u64>,
    /// Their bytes of shards.
    freed: u64,
}

impl Moves {
    /// Adds a stripe of a class, if it is to be rewritten: with so many bytes of shards, and with runs of files.
    fn add(
        &mut self,
        class: StripeClass,
        shards: u64,
        runs: impl Iterator<Item = (Option<StripeClass>, u64)> + Clone,
    ) {
        if runs.clone().all(|(named, _)| named == Some(class)) {
            return;
        }
        for (named, len) in runs {
            let written = self.written.entry(named).or_default();
            *written = written.saturating_add(len);
        }
        self.freed = self.freed.saturating_add(shards);
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
