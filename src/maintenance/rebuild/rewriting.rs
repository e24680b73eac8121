//! The state of the rewriting of files whose bytes have another code than theirs.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::{Epoch, MemberIndex, StripeClass, StripeId};

/// The members that counted for a look. The epoch tells of one that went and came back meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MembersThen {
    pub(super) epoch: Epoch,
    /// Those online.
    pub(super) live: Vec<MemberIndex>,
    /// Those that take shards of new stripes.
    pub(super) homes: Vec<MemberIndex>,
    /// The number that the volume has. One that is drained leaves.
    pub(super) count: usize,
}

/// A look that found nothing to move, because members are too few. The same look finds nothing again. Orders that stripes gave
/// meanwhile make no difference: members were too few for these as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vain {
    /// The number of orders of commands until then.
    pub(super) given: u64,
    pub(super) members: MembersThen,
    /// One of the stripes that wait. Others may be gone as well once no file has bytes in it.
    pub(super) waiting: StripeId,
}

/// The bytes that found no room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NoRoom {
    /// The bytes of shards that could not be written.
    pub(super) bytes: u64,
    /// Set if the volume had no room for another stripe of its own code.
    pub(super) was_full: bool,
    /// The room that there was for each class that lacked some.
    pub(super) rooms: BTreeMap<StripeClass, u64>,
    /// The members that took shards of new stripes then, and the number that the volume had.
    pub(super) homes: (Vec<MemberIndex>, usize),
}

impl NoRoom {
    /// Adds bytes of stripes of these classes, whose room is yet to be measured.
    pub(super) fn add(&mut self, classes: &BTreeSet<StripeClass>, bytes: u64) {
        self.bytes += bytes;
        self.rooms.extend(classes.iter().map(|class| (*class, 0)));
    }
}

/// The state of an order to rewrite files, as far as memory keeps it.
#[derive(Debug, Default)]
pub(super) struct Rewriting {
    /// The order that `no_room` and `futile` are about. None since one ended: numbers begin at 1 then.
    order: Option<u64>,
    pub(super) vain: Option<Vain>,
    pub(super) no_room: Option<NoRoom>,
    /// The number of looks in turn that moved nothing although some of what is left could be read.
    futile: u32,
    /// The members with which stripes could not be read that the last order left. None once others were online, and until
    /// an order ended since the volume was opened.
    pub(super) left_with: Option<Vec<MemberIndex>>,
}

impl Rewriting {
    /// Begins a look for an order. What is known of another one does not count for it.
    pub(super) fn begin(&mut self, order: u64) {
        if self.order != Some(order) {
            let vain = self.vain.take();
            self.forget();
            (self.order, self.vain) = (Some(order), vain);
        }
    }

    /// Notes that the order ended, and with which members it left stripes, if it left any.
    pub(super) fn end(&mut self, left_with: Option<Vec<MemberIndex>>) {
        self.forget();
        self.left_with = left_with;
    }

    fn forget(&mut self) {
        *self = Self {
            left_with: self.left_with.take(),
            ..Self::default()
        };
    }

    /// Notes that a look moved something.
    pub(super) fn note_improved(&mut self) {
        (self.vain, self.no_room, self.futile) = (None, None, 0);
    }

    /// Notes a look that moved nothing although some could be read. Returns how many in turn did.
    pub(super) fn note_futile(&mut self) -> u32 {
        self.futile = self.futile.saturating_add(1);
        self.futile
    }

    /// Returns a stripe that waited in a vain look after so many orders of commands, with these members, if there was such a
    /// look.
    pub(super) fn vain_with(&self, given: u64, members: &MembersThen) -> Option<StripeId> {
        let vain = self.vain.as_ref();
        let vain = vain.filter(|vain| vain.given == given && vain.members == *members);
        vain.map(|vain| vain.waiting)
    }

    /// Returns what found no room for this order.
    pub(super) fn no_room_of(&self, order: u64) -> Option<NoRoom> {
        let no_room = self.no_room.as_ref();
        no_room.filter(|_| self.order == Some(order)).cloned()
    }
}

/// The rewriting of files whose bytes have another code than theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RewriteStatus {
    /// Set if it is ordered, and not done as far as it can be.
    pub is_ordered: bool,
    /// The members that it waits for. They are drained, or away.
    pub awaited: Vec<MemberIndex>,
    /// Set if the other members are too few for a code. Otherwise it goes on once those that are away are given up.
    pub lacks_members: bool,
    /// Set if it waits for room on them.
    pub waits_for_room: bool,
    /// The stripes that the last order left, because they cannot be read. They are tried again when members come back, and
    /// with the next order.
    pub stripes_left: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers begin at 1 again after each order.
    #[test]
    fn nothing_that_is_known_of_an_order_counts_for_the_next_of_its_number() {
        let homes = vec![MemberIndex(0), MemberIndex(1)];
        let members = MembersThen {
            epoch: Epoch(1),
            live: homes.clone(),
            homes: homes.clone(),
            count: 4,
        };
        let vain = Vain {
            given: 7,
            members: members.clone(),
            waiting: StripeId(5),
        };
        let others = [
            MembersThen {
                homes: homes[1..].to_vec(),
                ..members.clone()
            },
            MembersThen {
                count: 3,
                ..members.clone()
            },
            MembersThen {
                epoch: Epoch(3),
                ..members.clone()
            },
        ];
        let filled = || {
            let mut rewriting = Rewriting::default();
            rewriting.begin(1);
            rewriting.vain = Some(vain.clone());
            rewriting.no_room = Some(NoRoom::default());
            rewriting.note_futile();
            assert_eq!(rewriting.vain_with(7, &members), Some(StripeId(5)));
            rewriting
        };
        let assert_empty = |mut rewriting: Rewriting, order| {
            assert_eq!(rewriting.no_room_of(order), None);
            assert_eq!(rewriting.note_futile(), 1);
        };
        let mut same = filled();
        same.begin(1);
        assert_eq!(same.note_futile(), 2);
        for others in &others {
            assert_eq!(same.vain_with(7, others), None, "{others:?}");
        }
        assert_eq!(same.vain_with(8, &members), None, "a command gave another");
        let mut ended = filled();
        ended.end(Some(homes.clone()));
        assert_eq!(ended.left_with, Some(homes.clone()));
        assert_eq!(ended.vain_with(7, &members), None, "it ended");
        ended.begin(1);
        assert_eq!(ended.left_with, Some(homes.clone()));
        assert_empty(ended, 1);
        let mut later = filled();
        later.begin(2);
        let waits = later.vain_with(7, &members);
        assert_eq!(waits, Some(StripeId(5)), "a stripe gave the second");
        assert_empty(later, 2);
        let mut improved = filled();
        improved.note_improved();
        assert_eq!(improved.vain_with(7, &members), None, "something moved");
        assert_empty(improved, 1);
    }
}
