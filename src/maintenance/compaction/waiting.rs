//! Stripes that compaction leaves alone until members came or got room, because their bytes would be less protected elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::Compaction;
use super::moves::{Floor, Pass};
use crate::format::StripeId;
use crate::maintenance::candidates::{Conditions, Waits};

impl Compaction {
    /// Keeps the stripes that were tried and stay as candidates, or sets them aside. Others never were candidates.
    pub(super) fn keep_candidates(&self, pass: &Pass, has_failed: bool) {
        let Pass { known, moves, .. } = pass;
        let left = known.iter().filter(|stripe| {
            let is_left = has_failed && !pass.failed.contains(stripe);
            pass.untried.contains(stripe) || is_left
        });
        let mut again: BTreeSet<StripeId> = left.copied().collect();
        // While accepted bytes wait for room, no other bytes are tried.
        let is_stuck = self.stripes.writer().is_stuck();
        let mut aside = BTreeMap::new();
        for (&stripe, &waits) in &moves.waiting {
            if !known.contains(&stripe) {
                continue;
            }
            let may_move = pass.refused.contains(&stripe) || pass.untried.contains(&stripe);
            if is_stuck || may_move {
                again.insert(stripe);
            } else {
                again.remove(&stripe);
                aside.insert(stripe, waits);
            }
        }
        let mut candidates = self.candidates.lock();
        for stripe in again {
            candidates.add(stripe);
        }
        drop(candidates);
        self.set_aside(aside);
    }

    /// Sets stripes aside that would be less protected elsewhere.
    fn set_aside(&self, waiting: BTreeMap<StripeId, Waits>) {
        if waiting.is_empty() {
            return;
        }
        let for_members = waiting.values().filter(|waits| !waits.lacks_room).count();
        let kinds: BTreeSet<Waits> = waiting.values().copied().collect();
        let rooms = kinds.into_iter().map(|waits| (waits, self.room_for(waits)));
        let rooms: BTreeMap<Waits, Option<u64>> = rooms.collect();
        let mut candidates = self.candidates.lock();
        for (stripe, waits) in waiting {
            candidates.set_aside(stripe, waits, rooms.get(&waits).copied().flatten());
        }
        drop(candidates);
        let away = self.members.membership().away();
        let told = &self.waits_told;
        if for_members == 0 || told.admit(away.clone(), Instant::now()).is_none() {
            return;
        }
        let names = away
            .iter()
            .map(|(member, path)| format!("member {member} ({path})"));
        let mut names = names.collect::<Vec<_>>().join(", ");
        if names.is_empty() {
            names.push_str("no member");
        }
        tracing::warn!(
            "{for_members} stripes keep the space of their dead bytes: elsewhere, the live ones would survive fewer losses \
             while members are too few. Away: {names}"
        );
    }

    /// Makes candidates again of stripes that may find a place by now. Since they were set aside, members or codes have
    /// changed, or room has grown. Or shards on absent members counted then, and do not now. Returns whether there are any.
    pub(in crate::maintenance) fn take_back(&self, floor: Floor) -> bool {
        let conditions = self.conditions();
        let mut candidates = self.candidates.lock();
        if candidates.note_conditions(conditions, floor.counts_absent()) {
            return true;
        }
        let kinds = candidates.kinds_aside();
        drop(candidates);
        let mut any = false;
        for waits in kinds {
            let room = self.room_for(waits);
            any |= self.candidates.lock().note_room(waits, room);
        }
        any
    }

    fn conditions(&self) -> Conditions {
        let membership = self.members.membership();
        let awaited = membership.awaited();
        Conditions {
            live: membership.live(),
            draining: membership.draining(),
            awaited: awaited.into_iter().map(|(member, _)| member).collect(),
            codes: self.stripes.classes().of_directories().len(),
            orders: self.catalog.rewrites_given(),
        }
    }

    /// Returns the room for new stripes with bytes that wait; `None` if these find no place.
    fn room_for(&self, waits: Waits) -> Option<u64> {
        let code = self.stripes.classes().get(waits.class)?;
        self.stripes.writer().room_for(&code, waits.least)
    }
}
