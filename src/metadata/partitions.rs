//! The partitions of the keys.
//!
//! The partition of a key follows from the object that the key belongs to: a directory, a file, a stripe or a segment.
//! So a change that concerns two objects takes two locks, and a listing of one directory takes one. Changes of other
//! objects seldom wait for either. The numbers of counters and of notes for repairs are no objects, yet spread in the
//! same way: some hundred stripes that follow each other have notes in one partition.

use std::ops::Bound;

use parking_lot::RwLockReadGuard;
use smallvec::SmallVec;

use super::layer::NumberedChange;
use crate::format::key::Key;

/// Changes that go from one layer to another under one hold of a lock.
pub(super) const CHUNK: usize = 256;

/// The number of partitions; a power of two, and at most the bits of a [`PartitionSet`].
pub(super) const PARTITIONS: usize = 64;
const _: () = assert!(PARTITIONS.is_power_of_two() && PARTITIONS <= u64::BITS as usize);

/// The bytes that a key begins with if it belongs to an object: a tag, and the number of the object.
const OBJECT_BYTES: usize = 9;

/// Returns the partition of a key.
///
/// The tag does not count, so all keys of an object share a partition. A key that is too short for a number has one all
/// the same.
pub(super) fn partition_of(key: &[u8]) -> usize {
    let rest = key.get(1..).unwrap_or_default();
    let number = if let Some(number) = rest.first_chunk() {
        *number
    } else {
        let mut number = [0; 8];
        number[..rest.len()].copy_from_slice(rest);
        number
    };
    // Objects made together are used together. The high bits of the product differ for them.
    let mixed = u64::from_be_bytes(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let partition = mixed >> (u64::BITS - PARTITIONS.trailing_zeros());
    usize::try_from(partition).expect("less than the count of partitions")
}

/// A change, with the partition of its key.
pub(super) type PartitionedChange<'c> = (usize, (&'c Key, &'c NumberedChange));

/// Returns changes by partition, those of a partition in the order that they have.
pub(super) fn by_partition<'c>(
    changes: &[(&'c Key, &'c NumberedChange)],
) -> Vec<PartitionedChange<'c>> {
    let mut by_partition: Vec<_> = changes
        .iter()
        .map(|change| (partition_of(change.0), *change))
        .collect();
    by_partition.sort_by_key(|(partition, _)| *partition);
    by_partition
}

/// A set of partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PartitionSet(u64);

impl PartitionSet {
    pub(super) const ALL: Self = Self(u64::MAX >> (u64::BITS as usize - PARTITIONS));

    pub(super) fn with(self, partition: usize) -> Self {
        Self(self.0 | 1 << partition)
    }

    pub(super) fn of_keys<'k>(keys: impl Iterator<Item = &'k Key>) -> Self {
        keys.fold(Self::default(), |set, key| set.with(partition_of(key)))
    }

    /// Returns the partitions of the keys from `from` to before `end`: one if all belong to one object, otherwise all.
    pub(super) fn of_range(from: Bound<&[u8]>, end: &[u8]) -> Self {
        let (Bound::Included(first) | Bound::Excluded(first)) = from else {
            return Self::ALL;
        };
        match first.first_chunk() {
            Some(object) if is_within(object, end) => Self::default().with(partition_of(first)),
            _ => Self::ALL,
        }
    }

    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let partition = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (partition < u64::BITS).then_some(partition as usize)
        })
    }

    /// Returns the set of the partitions whose bits are set.
    pub(super) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns a bit for each partition, set if it is in the set.
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    /// Returns whether it has all partitions of another set.
    pub(super) fn contains(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// Returns the partitions of both sets.
    pub(super) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the place of one of its partitions among them.
    pub(super) fn place(self, partition: usize) -> usize {
        (self.0 & ((1 << partition) - 1)).count_ones() as usize
    }
}

/// Returns whether every key before `end` that is not below `object` begins with it.
fn is_within(object: &[u8; OBJECT_BYTES], end: &[u8]) -> bool {
    let mut next = *object;
    let Some(last) = next.iter().rposition(|byte| *byte != u8::MAX) else {
        return true;
    };
    next[last] += 1;
    end <= &next[..=last]
}

/// Some partitions of a table, none of which changes while this lives.
pub(super) struct HeldPartitions<'a, T>(SmallVec<[RwLockReadGuard<'a, T>; 1]>);

impl<T> HeldPartitions<'_, T> {
    /// Returns the partitions.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.0.iter().map(|partition| &**partition)
    }
}

impl<'a, T> FromIterator<RwLockReadGuard<'a, T>> for HeldPartitions<'a, T> {
    fn from_iter<I: IntoIterator<Item = RwLockReadGuard<'a, T>>>(partitions: I) -> Self {
        Self(partitions.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use cauchyfs_testkit::seed;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::format::key::{self, KeyRange};
    use crate::format::{Cookie, Ino, SegmentId, ShardIndex, StripeId};

    #[test]
    fn the_keys_of_an_object_and_its_ranges_meet_one_partition() {
        let seed = seed();
        let mut random = StdRng::seed_from_u64(seed);
        let edges = [0, 1, 254, 255, 256, u64::MAX - 256, u64::MAX - 1, u64::MAX];
        let drawn: Vec<u64> = (0..100).map(|_| random.random()).collect();
        for number in edges.into_iter().chain(drawn) {
            let (ino, stripe, segment) = (Ino(number), StripeId(number), SegmentId(number));
            let one = PartitionSet::default().with(partition_of(&key::inode(ino)));
            let ranges: [(KeyRange, Vec<Key>); 6] = [
                (key::dirents(ino), vec![key::dirent(ino, b"a")]),
                (
                    key::positions_after(ino, Cookie(7)),
                    vec![key::position(ino, Cookie(8))],
                ),
                (key::xattrs(ino), vec![key::xattr(ino, &[u8::MAX; 9])]),
                (
                    key::extents_from(ino, 0),
                    vec![key::extent(ino, 1), key::extent(ino, u64::MAX)],
                ),
                (
                    key::backrefs(stripe),
                    vec![key::backref(stripe, Ino(3), u64::MAX)],
                ),
                (
                    key::sums_of(stripe),
                    vec![key::sums(stripe, ShardIndex(u8::MAX))],
                ),
            ];
            for ((from, end), keys) in ranges {
                for bound in [Bound::Included(&*from), Bound::Excluded(&*from)] {
                    assert_eq!(
                        PartitionSet::of_range(bound, &end),
                        one,
                        "seed {seed}: {from:?}"
                    );
                }
                for key in keys {
                    assert!(key >= from && key < end, "seed {seed}: {key:?}");
                    let partitions = PartitionSet::default().with(partition_of(&key));
                    assert_eq!(partitions, one, "seed {seed}: {key:?}");
                }
            }
            let (from, _) = key::segment_stripes(segment);
            // The first key of the next tag is beyond the object, unless the object is the last one.
            let beyond = PartitionSet::of_range(Bound::Included(&from), b"h\0");
            assert_eq!(beyond, PartitionSet::ALL, "seed {seed}: {from:?}");
        }
        let (from, end) = key::inodes();
        let all = PartitionSet::of_range(Bound::Included(&from), &end);
        assert_eq!(all, PartitionSet::ALL);
        assert_eq!(
            PartitionSet::of_range(Bound::Unbounded, &end),
            PartitionSet::ALL
        );
        assert!(all.iter().eq(0..PARTITIONS));
    }

    #[test]
    fn objects_made_together_spread_over_all_partitions() {
        for first in [1, 1 << 20, u64::MAX / 2] {
            let mut objects = [0; PARTITIONS];
            let each = 16;
            for number in first..first + each * PARTITIONS as u64 {
                objects[partition_of(&key::inode(Ino(number)))] += 1;
            }
            let is_even = |count: &u64| (each / 2..each * 2).contains(count);
            assert!(objects.iter().all(is_even), "{first}: {objects:?}");
        }
    }
}
