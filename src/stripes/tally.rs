//! The shards that a stripe has, and the losses that it survives with them.

use super::layout;
use crate::codec::Survival;
use crate::format::record::{Segment, ShardSet, Stripe};
use crate::format::{MemberIndex, ShardIndex};

/// Returns the losses that a segment's stripes survive.
#[must_use]
pub(crate) fn survival(segment: &Segment) -> Survival {
    Survival::of_record(segment.code, segment.data_shards, segment.parity_shards)
}

/// Returns whether full stripes of a segment can be rotated such that the slots of `usable` members suffice to read them.
#[must_use]
pub(crate) fn takes_stripes(segment: &Segment, usable: &dyn Fn(&MemberIndex) -> bool) -> bool {
    let is_usable: Vec<bool> = segment
        .slots
        .iter()
        .map(|slot| slot.as_ref().is_some_and(usable))
        .collect();
    let total = is_usable.len();
    (0..total).any(|turn| {
        survival(segment).is_decodable(|shard| is_usable.get((shard + turn) % total) == Some(&true))
    })
}

/// The number of a stripe's shards that exist, and of those that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Shards that exist: all but the implied ones.
    pub(crate) existing: usize,
    /// Shards that can be read.
    pub(crate) present: usize,
    /// Losses that the stripe still survives.
    tolerated: i16,
}

impl Tally {
    /// Counts the shards of a stripe, those being present that `is_present` says so of.
    pub(crate) fn of(
        segment: &Segment,
        stripe: &Stripe,
        mut is_present: impl FnMut(ShardIndex) -> bool,
    ) -> Self {
        let data_shards = usize::from(segment.data_shards);
        let mut tally = Self {
            existing: 0,
            present: 0,
            tolerated: 0,
        };
        let mut readable = ShardSet::default();
        for shard in layout::shards(segment) {
            let is_implied = stripe.is_implied(shard, data_shards);
            let is_present = is_implied || is_present(shard);
            if is_present {
                readable.insert(shard);
            }
            if !is_implied {
                tally.existing += 1;
                tally.present += usize::from(is_present);
            }
        }
        let is_readable = |index: usize| readable.contains(layout::shard(index));
        tally.tolerated = survival(segment).losses_tolerated(is_readable);
        tally
    }

    /// Returns whether no shard is missing.
    pub(crate) fn is_whole(self) -> bool {
        self.present == self.existing
    }

    /// Returns how many more shards can be lost, whichever they are; negative if data is lost. Of a stripe that lacks
    /// more shards than any stripe of its code survives, and can be decoded, this is 0.
    pub(crate) fn losses_tolerated(self) -> i16 {
        self.tolerated
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{CodeId, Geometry};
    use crate::format::SegmentId;
    use crate::format::StripeClass;

    #[test]
    fn implied_shards_are_neither_counted_nor_missed() {
        let segment = Segment {
            class: StripeClass::VOLUME,
            data_shards: 4,
            parity_shards: 2,
            code: 1,
            len: 1 << 20,
            slots: (0..6).map(|slot| Some(MemberIndex(slot))).collect(),
            rotating: 6,
        };
        let mut stripe = Stripe {
            segment: SegmentId(1),
            offset: 0,
            height: 4096,
            payload_len: 5000,
            rotation: 0,
            written: ShardSet::default(),
        };
        let tally = Tally::of(&segment, &stripe, |shard| shard != ShardIndex(0));
        assert_eq!(
            (tally.existing, tally.present, tally.losses_tolerated()),
            (4, 3, 1)
        );
        stripe.payload_len = 4 * 4096;
        let tally = Tally::of(&segment, &stripe, |shard| shard.0 > 2);
        assert_eq!(
            (tally.existing, tally.present, tally.losses_tolerated()),
            (6, 3, -1)
        );
    }

    #[test]
    fn a_segment_takes_stripes_if_some_rotation_leaves_enough_of_them_on_members() {
        let geometry = Geometry::new(4, 4).unwrap();
        let random = CodeId::RANDOM_GF2.for_geometry(geometry).unwrap();
        let segment = |code: u64| Segment {
            class: StripeClass::VOLUME,
            data_shards: 4,
            parity_shards: 4,
            code,
            len: 1 << 20,
            slots: (0..8).map(|slot| Some(MemberIndex(slot))).collect(),
            rotating: 8,
        };
        let takes =
            |code, lost: u32| takes_stripes(&segment(code), &|member| lost >> member.0 & 1 == 0);
        let survival = Survival::of(random, geometry);
        let mut refused = 0;
        for lost in 0..1_u32 << 8 {
            let count = lost.count_ones();
            assert_eq!(takes(1, lost), count <= 4, "{lost:b}");
            let turned = |turn: u32| (lost << turn | lost >> (8 - turn)) & 0xff;
            let is_readable = |lost: u32| survival.is_decodable(|shard| lost >> shard & 1 == 0);
            let expected = (0..8).any(|turn| is_readable(turned(turn)));
            assert_eq!(takes(random.0, lost), expected, "{lost:b}");
            refused += u32::from(count == 4 && !expected);
        }
        // Neighbouring slots are those of the parities, for some rotation.
        assert!(takes(random.0, 0b0111_1000));
        assert!(refused < 14, "{refused}");
    }
}
