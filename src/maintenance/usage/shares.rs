//! The use of the blocks of segment files, as the records of stripes tell it.

use std::collections::HashMap;

use crate::format::record::{Segment, Stripe};
use crate::format::{BLOCK_SIZE, MemberIndex, SegmentId, ShardIndex};
use crate::stripes::member_of;

/// The uses of one segment file on one member, in bytes, as far as records tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileShare {
    /// Data shards, without the part that no file holds.
    pub(super) data: u64,
    /// Parity shards, without the part that belongs to bytes which no file holds.
    pub(super) parity: u64,
    /// The rest of these shards.
    pub(super) dead: u64,
    /// Places of shards that were never written there, and what lies behind the last stripe.
    pub(super) preallocated: u64,
}

impl FileShare {
    /// Returns the uses of a file of so many bytes without any shard.
    pub(super) fn unfilled(bytes: u64) -> Self {
        Self {
            preallocated: bytes,
            ..Self::default()
        }
    }

    fn total(&self) -> u64 {
        self.data + self.parity + self.dead
    }

    /// Returns how a file of so many bytes on the filesystem is used. The parts sum to `taken`. Where the filesystem keeps
    /// fewer bytes than shards have, as one that compresses, each use has its part of them. Bytes beyond all that records
    /// tell are dead: their records are gone.
    pub(super) fn of_blocks(&self, taken: u64) -> Self {
        let known = self.total();
        if known > taken {
            let part = |bytes: u64| {
                let part = u128::from(bytes) * u128::from(taken) / u128::from(known);
                u64::try_from(part).unwrap_or(taken)
            };
            let (data, parity) = (part(self.data), part(self.parity));
            return Self {
                data,
                parity,
                dead: taken - data - parity,
                preallocated: 0,
            };
        }
        let rest = taken - known;
        let preallocated = rest.min(self.preallocated);
        Self {
            dead: self.dead + rest - preallocated,
            preallocated,
            ..*self
        }
    }
}

/// The stripes of one segment file.
#[derive(Debug, Default)]
struct Filled {
    share: FileShare,
    /// The end of the last stripe.
    end: u64,
}

/// The uses of all segment files.
#[derive(Debug, Default)]
pub(super) struct Shares {
    files: HashMap<(MemberIndex, SegmentId), Filled>,
    held_bytes: u64,
}

impl Shares {
    /// Adds a stripe of which files hold the bytes of these runs, which are in order and apart.
    pub(super) fn add(&mut self, segment: &Segment, stripe: &Stripe, live: &[(u64, u64)]) {
        self.held_bytes += live.iter().map(|(start, end)| end - start).sum::<u64>();
        let live = without_padding(live);
        let (height, data_shards) = (u64::from(stripe.height), segment.data_shards);
        let payload = u64::from(stripe.payload_len).max(1);
        let dead_payload = payload.saturating_sub(overlap(&live, 0, payload));
        for shard in (0..data_shards.saturating_add(segment.parity_shards)).map(ShardIndex) {
            let Some(member) = member_of(segment, stripe, shard) else {
                continue;
            };
            let filled = self.files.entry((member, stripe.segment)).or_default();
            filled.end = filled.end.max(stripe.offset.saturating_add(height));
            let share = &mut filled.share;
            if !stripe.written.contains(shard) {
                share.preallocated += height;
            } else if live.is_empty() {
                share.dead += height;
            } else if shard.0 < data_shards {
                let start = u64::from(shard.0) * height;
                let end = payload.min(start + height);
                let dead = end.saturating_sub(start) - overlap(&live, start, end);
                share.dead += dead;
                share.data += height - dead;
            } else {
                let dead = height * dead_payload / payload;
                share.dead += dead;
                share.parity += height - dead;
            }
        }
    }

    /// Returns the uses of a segment's file on a member; none if the member has no slot of the segment.
    pub(super) fn of_file(
        &self,
        id: SegmentId,
        segment: &Segment,
        member: MemberIndex,
    ) -> Option<FileShare> {
        if !segment.slots.contains(&Some(member)) {
            return None;
        }
        let filled = self.files.get(&(member, id));
        let mut share = filled.map(|filled| filled.share).unwrap_or_default();
        let end = filled.map_or(0, |filled| filled.end);
        share.preallocated += segment.len.saturating_sub(end);
        Some(share)
    }

    /// Returns how many bytes of stripes files hold.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }
}

/// Joins runs with less than a block between them: writes are aligned, and what lies between them was never written.
fn without_padding(live: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut joined: Vec<(u64, u64)> = Vec::with_capacity(live.len());
    for &(start, end) in live {
        match joined.last_mut() {
            Some(last) if start.saturating_sub(last.1) < BLOCK_SIZE as u64 => last.1 = end,
            _ => joined.push((start, end)),
        }
    }
    joined
}

/// Returns how many bytes of some runs lie between `start` and `end`.
fn overlap(runs: &[(u64, u64)], start: u64, end: u64) -> u64 {
    let within = |run: &(u64, u64)| run.1.min(end).saturating_sub(run.0.max(start));
    runs.iter().map(within).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::StripeClass;
    use crate::format::record::ShardSet;

    const HEIGHT: u64 = 4096;

    fn segment() -> Segment {
        Segment {
            class: StripeClass::VOLUME,
            data_shards: 2,
            parity_shards: 1,
            code: 1,
            len: 4 * HEIGHT,
            slots: (0..3).map(|slot| Some(MemberIndex(slot))).collect(),
            rotating: 3,
        }
    }

    fn stripe(written: impl IntoIterator<Item = u8>) -> Stripe {
        Stripe {
            segment: SegmentId(7),
            offset: HEIGHT,
            height: 4096,
            payload_len: 8192,
            rotation: 0,
            written: written.into_iter().map(ShardIndex).collect::<ShardSet>(),
        }
    }

    fn shares_with(stripe: &Stripe, live: &[(u64, u64)]) -> [FileShare; 3] {
        let mut shares = Shares::default();
        shares.add(&segment(), stripe, live);
        [0, 1, 2].map(|member| {
            let member = MemberIndex(member);
            shares.of_file(SegmentId(7), &segment(), member).unwrap()
        })
    }

    fn share(data: u64, parity: u64, dead: u64, preallocated: u64) -> FileShare {
        FileShare {
            data,
            parity,
            dead,
            preallocated,
        }
    }

    /// The segment is longer than its stripe by two heights, and the stripe lies behind one.
    #[test]
    fn shards_count_by_what_files_hold_of_them() {
        let behind = 2 * HEIGHT;
        let all = shares_with(&stripe([0, 1, 2]), &[(0, 8192)]);
        let data = share(HEIGHT, 0, 0, behind);
        assert_eq!(all, [data, data, share(0, HEIGHT, 0, behind)]);
        let none = shares_with(&stripe([0, 1, 2]), &[]);
        assert_eq!(none, [share(0, 0, HEIGHT, behind); 3]);
        let half = shares_with(&stripe([0, 1, 2]), &[(0, 4096)]);
        let parity = share(0, HEIGHT / 2, HEIGHT / 2, behind);
        assert_eq!(half, [data, share(0, 0, HEIGHT, behind), parity]);
        // The second was never written.
        let lacking = shares_with(&stripe([0, 2]), &[(0, 8192)]);
        assert_eq!(lacking[1], share(0, 0, 0, HEIGHT + behind));
    }

    #[test]
    fn bytes_between_aligned_writes_are_not_dead() {
        let padded = shares_with(&stripe([0, 1, 2]), &[(0, 100), (128, 4000), (4096, 8192)]);
        assert_eq!(padded[0].dead + padded[1].dead + padded[2].dead, 0);
    }

    #[test]
    fn the_uses_of_a_file_sum_to_its_blocks_whatever_records_tell() {
        let share = share(1000, 300, 200, 500);
        for taken in [0, 1, 7, 1499, 1500, 1501, 2000, 5000] {
            let parts = share.of_blocks(taken);
            let sum = parts.data + parts.parity + parts.dead + parts.preallocated;
            assert_eq!(sum, taken, "{parts:?}");
        }
        let parts = share.of_blocks(2100);
        assert_eq!((parts.preallocated, parts.dead), (500, 300));
        let parts = share.of_blocks(750);
        assert_eq!((parts.data, parts.parity, parts.dead), (500, 150, 100));
    }

    #[test]
    fn a_file_of_a_member_without_a_slot_has_no_share() {
        let shares = Shares::default();
        let share = |member| shares.of_file(SegmentId(7), &segment(), MemberIndex(member));
        assert_eq!(share(3), None);
        assert_eq!(share(0).unwrap().preallocated, 4 * HEIGHT);
    }
}
