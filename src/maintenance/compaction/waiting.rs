//! Stripes that compaction leaves alone until members came or got room, because their bytes would be less protected elsewhere.

use std::collections::BTreeMap;
use std::time::Instant;

use super::Compaction;
use crate::format::StripeId;
use crate::maintenance::candidates::Waits;

impl Compaction {
    /// Sets stripes aside that would be less protected elsewhere.
    pub(super) fn set_aside(&self, waiting: BTreeMap<StripeId, Waits>) {
        if waiting.is_empty() {
            return;
        }
        let for_members = waiting.values().filter(|waits| !waits.lacks_room).count();
        let mut candidates = self.candidates.lock();
        for (stripe, waits) in waiting {
            candidates.set_aside(stripe, waits);
        }
        drop(candidates);
        let awaited = self.members.membership().awaited();
        let told = &self.waits_told;
        if for_members == 0 || told.admit(awaited.clone(), Instant::now()).is_none() {
            return;
        }
        let names = awaited
            .iter()
            .map(|(member, path)| format!("member {member} ({path})"));
        let names = names.collect::<Vec<_>>().join(", ");
        tracing::warn!(
            "{for_members} stripes keep their space although most of their bytes are dead: moved, the others would survive \
             fewer losses while members are too few. Away: {names}"
        );
    }

    /// Makes candidates again of stripes that wait no more for members, or for room. Returns whether there are any.
    pub(in crate::maintenance) fn take_back(&self) -> bool {
        let given_up = self.members.membership().given_up();
        let mut candidates = self.candidates.lock();
        // Shards on these members count no more, or count again.
        if candidates.note_given_up(given_up) {
            return true;
        }
        let waiting = candidates.aside();
        drop(candidates);
        let mut attainable = BTreeMap::new();
        let mut can_move = |waits: &Waits| {
            let Some(code) = self.stripes.classes().get(waits.class) else {
                return true;
            };
            let kind = (waits.class, waits.lacks_room);
            let found = attainable.entry(kind).or_insert_with(|| {
                let writer = self.stripes.writer();
                if waits.lacks_room {
                    writer.attainable_with_room(&code)
                } else {
                    writer.attainable(&code)
                }
            });
            *found >= waits.least
        };
        let back = waiting.into_iter().filter(|(_, waits)| can_move(waits));
        let back: Vec<_> = back.collect();
        let mut candidates = self.candidates.lock();
        candidates.take_back(&back)
    }
}
