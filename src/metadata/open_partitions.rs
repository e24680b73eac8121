//! The open sets in partitions, each with a lock of its own.
//!
//! [`super::partitions`] says which keys share one.
//!
//! # Invariants
//!
//! - A caller that holds the locks of several partitions took them in ascending order.
//! - A batch changes its partitions under the locks of all of them. So a reader that found one of its changes finds
//!   all: once it can lock the first partition, every partition has the batch.
//! - [`OpenPartitions::take`] holds the locks of all partitions with changes at once. So a batch lies wholly in one unit, or
//!   not at all.
//! - A change gets its number under the lock of its partition. So the changes of a key have ascending numbers. The
//!   numbers of different keys say nothing about their order.
//! - All other methods go through the partitions one by one, and state why that is enough.

mod filled;

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::RwLockWriteGuard;
use smallvec::SmallVec;

use self::filled::FilledPartitions;
use super::batch::Batch;
use super::brief_lock::BriefLock;
use super::layer::{Layer, NumberedChange};
use super::overlay::{OpenSets, Origin, Pending, newest};
use super::partitions::{
    CHUNK, HeldPartitions, PARTITIONS, PartitionSet, PartitionedChange, partition_of,
};
use crate::format::key::Key;

/// The steps in which a partition adds to the memory that all partitions take.
const STEP_BYTES: usize = 4 << 10;

/// The memory that all partitions take is less than this above [`OpenPartitions::least_bytes`].
pub(super) const UNCOUNTED_BYTES: usize = PARTITIONS * STEP_BYTES;

/// Partitions that most changes need at once: a directory, what is in it, and a stripe.
const USUAL: usize = 4;

/// The open sets of some objects.
#[derive(Debug, Default)]
struct OpenPartition {
    sets: BriefLock<OpenSets>,
    /// Memory that the sets take, in bytes. Written under the lock; reading it needs none.
    bytes: AtomicUsize,
    /// Memory that pending changes take, in bytes.
    pending_bytes: AtomicUsize,
}

/// The open sets of all objects, which threads share.
#[derive(Debug)]
pub(super) struct OpenPartitions {
    partitions: Box<[CachePadded<OpenPartition>]>,
    filled: FilledPartitions,
    /// The number of the last change.
    last_number: CachePadded<AtomicU64>,
    /// The full steps of memory that each partition takes, in sum.
    steps: CachePadded<AtomicUsize>,
}

impl Default for OpenPartitions {
    fn default() -> Self {
        Self::after(0)
    }
}

/// A partition that its holder changes. Its memory is counted before the lock is free.
struct ChangedPartition<'a> {
    partition: &'a OpenPartition,
    steps: &'a AtomicUsize,
    sets: RwLockWriteGuard<'a, OpenSets>,
}

impl Drop for ChangedPartition<'_> {
    fn drop(&mut self) {
        let bytes = self.sets.bytes();
        let before = self.partition.bytes.load(Ordering::Relaxed);
        self.partition.bytes.store(bytes, Ordering::Relaxed);
        let pending_bytes = self.sets.pending_bytes();
        self.partition
            .pending_bytes
            .store(pending_bytes, Ordering::Relaxed);
        let (steps, steps_before) = (bytes / STEP_BYTES, before / STEP_BYTES);
        // Every thread reads the sum, so it is written seldom. The difference may wrap; the sum does not.
        if steps != steps_before {
            let added = steps.wrapping_sub(steps_before);
            self.steps.fetch_add(added, Ordering::Relaxed);
        }
    }
}

impl OpenPartitions {
    /// Starts without changes. The next one has a higher number than `last_number`.
    pub(super) fn after(last_number: u64) -> Self {
        Self {
            partitions: (0..PARTITIONS).map(|_| CachePadded::default()).collect(),
            filled: FilledPartitions::default(),
            last_number: CachePadded::new(AtomicU64::new(last_number)),
            steps: CachePadded::default(),
        }
    }

    fn change(&self, partition: usize) -> ChangedPartition<'_> {
        let partition = &*self.partitions[partition];
        ChangedPartition {
            partition,
            steps: &self.steps,
            sets: partition.sets.write(),
        }
    }

    fn change_all_of(&self, partitions: PartitionSet) -> SmallVec<[ChangedPartition<'_>; USUAL]> {
        partitions
            .iter()
            .map(|partition| self.change(partition))
            .collect()
    }

    /// Returns the partitions of the keys from `from` to before `end`, which do not change while the guards live.
    pub(super) fn read(&self, from: Bound<&[u8]>, end: &[u8]) -> HeldPartitions<'_, OpenSets> {
        let partitions = PartitionSet::of_range(from, end).iter();
        partitions
            .map(|partition| self.partitions[partition].sets.read())
            .collect()
    }

    /// Returns the newest change of a key.
    pub(super) fn get(&self, key: &Key) -> Option<NumberedChange> {
        let sets = self.partitions[partition_of(key)].sets.read();
        newest(sets.layers(), key).cloned()
    }

    /// Adds a batch to one of the two open sets. Calls `forget` with each of its keys before a reader can see the change,
    /// and while none can read what was there before.
    pub(super) fn apply(&self, batch: Batch, origin: Origin, mut forget: impl FnMut(&Key)) {
        let touched = PartitionSet::of_keys(batch.iter().map(|(key, _)| key));
        let mut changed = self.change_all_of(touched);
        self.filled.note(touched, origin);
        batch.iter().for_each(|(key, _)| forget(key));
        let count = batch.len() as u64;
        // The locks order the numbers of each key.
        let before = self.last_number.fetch_add(count, Ordering::Relaxed);
        for (number, (key, value)) in (before + 1..).zip(batch) {
            let sets = &mut changed[touched.place(partition_of(&key))].sets;
            sets.apply(key, NumberedChange { number, value }, origin);
        }
    }

    /// Takes all of one open set: every batch wholly or not at all.
    pub(super) fn take(&self, origin: Origin) -> Pending {
        let (partitions, mut locked) = self.lock_filled(origin);
        let mut layers = Vec::new();
        for (number, sets) in partitions.iter().zip(&mut locked) {
            if let Some(layer) = sets.take(origin) {
                // The memory is the same, and pending no more.
                let pending_bytes = &self.partitions[number].pending_bytes;
                pending_bytes.store(sets.pending_bytes(), Ordering::Relaxed);
                layers.push((number, layer));
            }
        }
        self.filled.clear(partitions, origin);
        Pending { layers, origin }
    }

    /// Locks all partitions that have changes in an open set.
    ///
    /// Let a batch have changed one of them. It noted all its partitions before, so they are among these.
    fn lock_filled(
        &self,
        origin: Origin,
    ) -> (
        PartitionSet,
        SmallVec<[RwLockWriteGuard<'_, OpenSets>; USUAL]>,
    ) {
        let mut partitions = self.filled.get(origin);
        loop {
            let locks = partitions.iter();
            let locked = locks
                .map(|partition| self.partitions[partition].sets.write())
                .collect();
            let filled = self.filled.get(origin);
            if partitions.contains(filled) {
                return (partitions, locked);
            }
            // Once more with the others, from the lowest on. The set only grows, so this ends.
            drop(locked);
            partitions = partitions.union(filled);
        }
    }

    /// Returns the changes of a unit to the set they were taken from, below what came since. Readers find all of them
    /// meanwhile, because the unit is not forgotten yet.
    pub(super) fn restore(&self, part: &Pending) {
        for (partition, layer) in &part.layers {
            let changes: Vec<_> = layer.iter().collect();
            let filled = PartitionSet::default().with(*partition);
            for chunk in changes.chunks(CHUNK) {
                let sets = &mut self.change(*partition).sets;
                self.filled.note(filled, part.origin);
                for (key, change) in chunk {
                    sets.apply((*key).clone(), (*change).clone(), part.origin);
                }
            }
        }
    }

    /// Forgets a unit that was taken. Readers find its changes in other layers by now.
    pub(super) fn forget(&self, part: &Pending) {
        for (partition, layer) in &part.layers {
            self.change(*partition).sets.forget(layer);
        }
    }

    /// Drops what is older than these changes, which the journal holds; none of them has a higher number than `highest`.
    /// No reader misses it, because all look for newer changes in the journal.
    pub(super) fn drop_older(&self, changes: &[PartitionedChange<'_>], highest: u64) {
        for of_partition in changes.chunk_by(|(one, _), (next, _)| one == next) {
            let partition = of_partition[0].0;
            if !self.partitions[partition].sets.read().has_older(highest) {
                continue;
            }
            for chunk in of_partition.chunks(CHUNK) {
                let sets = &mut self.change(partition).sets;
                for (_, (key, change)) in chunk {
                    sets.drop_older(key, change.number);
                }
            }
        }
    }

    /// Returns the keys of the open sets, in no order. Some may be there twice. Keys that change meanwhile may be
    /// missing.
    pub(super) fn keys(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        for partition in &self.partitions {
            let sets = partition.sets.read();
            let changes = sets.layers().flat_map(Layer::iter);
            keys.extend(changes.map(|(key, _)| key.clone()));
        }
        keys
    }

    /// Returns about how much memory all changes take. Looks at every partition.
    pub(super) fn bytes(&self) -> usize {
        self.sum(|partition| &partition.bytes)
    }

    /// Returns about how much memory the changes take that are still pending. Looks at every partition.
    pub(super) fn pending_bytes(&self) -> usize {
        self.sum(|partition| &partition.pending_bytes)
    }

    fn sum(&self, bytes: impl Fn(&OpenPartition) -> &AtomicUsize) -> usize {
        let each = self
            .partitions
            .iter()
            .map(|partition| bytes(partition).load(Ordering::Relaxed));
        each.sum()
    }

    /// Returns a lower bound of [`Self::bytes`], which is less than [`UNCOUNTED_BYTES`] above it. Looks at no partition.
    pub(super) fn least_bytes(&self) -> usize {
        self.steps.load(Ordering::Relaxed) * STEP_BYTES
    }

    /// Returns whether no thread has one of the locks.
    #[cfg(test)]
    pub(super) fn is_free(&self) -> bool {
        self.partitions
            .iter()
            .all(|partition| partition.sets.is_free())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::format::{Ino, StripeId, key};
    use crate::metadata::fresh_cache::FreshCache;
    use crate::metadata::layer;

    /// Changes of a test in which threads meet.
    const LAST: u64 = 20_000;

    /// Returns keys in as many different partitions, in ascending order of these.
    fn keys_of_partitions(partitions: [usize; 2]) -> [Key; 2] {
        let key_of = |partition| {
            let mut keys = (0..).map(|number| key::inode(Ino(number)));
            keys.find(|key| partition_of(key) == partition)
        };
        partitions.map(|partition| key_of(partition).expect("each partition has keys"))
    }

    fn batch(keys: &[Key], number: u64) -> Batch {
        let mut batch = Batch::default();
        for key in keys {
            batch.put(key.clone(), number.to_be_bytes().to_vec());
        }
        batch
    }

    fn number_in(change: &NumberedChange) -> u64 {
        let value = change.value.as_deref().expect("it is not deleted");
        u64::from_be_bytes(value.try_into().expect("8 bytes"))
    }

    fn number_of(open: &OpenPartitions, key: &Key) -> u64 {
        open.get(key).as_ref().map_or(0, number_in)
    }

    /// Calls `write` with the numbers of all changes, and `read` until it has returned the last of them.
    fn write_and_read(write: impl Fn(u64) + Sync, read: &[&(dyn Fn() -> u64 + Sync)]) {
        let begun = Barrier::new(read.len() + 1);
        std::thread::scope(|scope| {
            for read in read {
                scope.spawn(|| {
                    begun.wait();
                    while read() < LAST {}
                });
            }
            begun.wait();
            (1..=LAST).for_each(write);
        });
    }

    #[test]
    fn a_reader_of_two_partitions_sees_a_batch_as_a_whole() {
        for partitions in [[3, 40], [40, 3]] {
            let (open, keys) = (OpenPartitions::default(), keys_of_partitions(partitions));
            let in_order = |order: [usize; 2]| {
                let [earlier, later] = order.map(|place| number_of(&open, &keys[place]));
                assert!(earlier <= later, "{order:?}: {earlier}, then {later}");
                later
            };
            let at_once = || {
                let held = open.read(Bound::Unbounded, b"z");
                let layers = held.iter().flat_map(OpenSets::layers);
                let (found, _) = layer::window(layers, Bound::Unbounded, b"z", usize::MAX);
                let numbers: Vec<u64> = found.values().map(number_in).collect();
                assert!(numbers.len() != 1, "one half of the first batch");
                assert!(
                    numbers.windows(2).all(|two| two[0] == two[1]),
                    "{numbers:?}"
                );
                numbers.last().copied().unwrap_or(0)
            };
            write_and_read(
                |number| open.apply(batch(&keys, number), Origin::Applied, |_| {}),
                &[&|| in_order([0, 1]), &|| in_order([1, 0]), &at_once],
            );
        }
    }

    /// A reader that could read in between would put what it found into the cache, for good.
    #[test]
    fn keys_are_forgotten_while_no_partition_of_their_batch_can_be_read() {
        let (open, keys) = (OpenPartitions::default(), keys_of_partitions([3, 40]));
        let mut forgotten = Vec::new();
        let forget = |key: &Key| {
            let is_free = |key: &Key| open.partitions[partition_of(key)].sets.is_free();
            assert!(!keys.iter().any(is_free), "while {key:?} is forgotten");
            forgotten.push(key.clone());
        };
        open.apply(batch(&keys, 1), Origin::Applied, forget);
        forgotten.sort_unstable();
        let mut keys = keys;
        keys.sort_unstable();
        assert_eq!(forgotten, keys);
        assert!(open.is_free());
    }

    /// A reader may put an old value into a cache while the change is on its way. It is gone before the change can be
    /// seen.
    #[test]
    fn a_reader_through_a_cache_sees_a_batch_of_two_partitions_as_a_whole() {
        for partitions in [[3, 40], [40, 3]] {
            let (open, keys) = (OpenPartitions::default(), keys_of_partitions(partitions));
            let cache = FreshCache::<Key, u64>::new(1 << 20, 64, |_, _| 16);
            let read = |key: &Key| {
                let newest = || Ok::<_, Infallible>(number_of(&open, key));
                cache.get_or_read(key, newest).expect("it cannot fail")
            };
            let in_order = |order: [usize; 2]| {
                let [earlier, later] = order.map(|place| read(&keys[place]));
                assert!(earlier <= later, "{order:?}: {earlier}, then {later}");
                later
            };
            let forget = |key: &Key| cache.forget(key);
            write_and_read(
                |number| open.apply(batch(&keys, number), Origin::Applied, forget),
                &[&|| in_order([0, 1]), &|| in_order([1, 0])],
            );
            assert_eq!(keys.each_ref().map(read), [LAST; 2]);
        }
    }

    #[test]
    fn a_unit_has_both_halves_of_a_batch_or_none() {
        const UNITS: usize = 200;
        let (open, is_done) = (OpenPartitions::default(), AtomicBool::new(false));
        let pairs = [[0, 63], [20, 21]].map(keys_of_partitions);
        // Two writers change the same two keys.
        let pairs = [&pairs[0], &pairs[0], &pairs[1]];
        let taken = std::thread::scope(|scope| {
            for pair in pairs {
                let (open, is_done) = (&open, &is_done);
                scope.spawn(move || {
                    let mut numbers = 1..;
                    while !is_done.load(Ordering::Relaxed) {
                        let number = numbers.next().expect("there is always a next one");
                        open.apply(batch(pair, number), Origin::Applied, |_| {});
                    }
                });
            }
            let done = scopeguard::guard((), |()| is_done.store(true, Ordering::Relaxed));
            let mut taken = 0;
            while taken < UNITS {
                let unit = open.take(Origin::Applied);
                let found: BTreeMap<_, _> =
                    unit.iter().map(|(key, it)| (key, number_in(it))).collect();
                for pair in pairs {
                    let [one, other] = pair.each_ref().map(|key| found.get(key));
                    assert_eq!(one, other, "halves of a batch");
                }
                taken += usize::from(!unit.is_empty());
                open.forget(&unit);
            }
            drop(done);
            taken
        });
        assert_eq!(taken, UNITS);
        open.forget(&open.take(Origin::Applied));
        assert_eq!((open.bytes(), open.least_bytes()), (0, 0));
    }

    /// The batch comes while the unit waits for one of its partitions, the only one with changes so far.
    #[test]
    fn a_unit_has_both_halves_of_a_batch_that_came_while_it_waited() {
        const ROUNDS: u64 = 2000;
        let open = OpenPartitions::default();
        let pair = keys_of_partitions([0, 63]);
        let mut alone = (0..).map(|number| key::stripe(StripeId(number)));
        let alone = alone.find(|key| partition_of(key) == 0);
        let alone = [alone.expect("each partition has keys")];
        let both_wait = Barrier::new(3);
        for round in 1..=ROUNDS {
            open.apply(batch(&alone, round), Origin::Applied, |_| {});
            let held = open.partitions[0].sets.write();
            let unit = std::thread::scope(|scope| {
                scope.spawn(|| {
                    both_wait.wait();
                    open.apply(batch(&pair, round), Origin::Applied, |_| {});
                });
                let unit = scope.spawn(|| {
                    both_wait.wait();
                    open.take(Origin::Applied)
                });
                both_wait.wait();
                (0..round % 100).for_each(|_| std::thread::yield_now());
                drop(held);
                unit.join().expect("the unit is taken")
            });
            let found: BTreeMap<_, _> = unit.iter().collect();
            let [one, other] = pair.each_ref().map(|key| found.contains_key(key));
            assert_eq!(one, other, "round {round}: halves of a batch");
            assert!(found.contains_key(&alone[0]), "round {round}");
            open.forget(&unit);
            open.forget(&open.take(Origin::Applied));
        }
        assert_eq!((open.bytes(), open.least_bytes()), (0, 0));
    }

    /// Many writers of other partitions take numbers at the same time.
    #[test]
    fn the_numbers_of_a_key_ascend_in_the_order_of_its_changes() {
        const WRITERS: u8 = 4;
        const CHANGES: u64 = 100_000;
        let open = OpenPartitions::after(7);
        let shared = keys_of_partitions([9, 10])[0].clone();
        let begun = Barrier::new(WRITERS.into());
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (open, shared, begun) = (&open, &shared, &begun);
                scope.spawn(move || {
                    let own = key::inode(Ino(writer.into()));
                    begun.wait();
                    let mut last = [(7, 0); 2];
                    for number in 1..=CHANGES {
                        // Each change of the shared key has a value of its own.
                        let value = number * u64::from(WRITERS) + u64::from(writer);
                        let keys = [own.clone(), shared.clone()];
                        let both = if number % 4 == 0 {
                            &keys[..]
                        } else {
                            &keys[..1]
                        };
                        open.apply(batch(both, value), Origin::Applied, |_| {});
                        let now = [&own, shared].map(|key| {
                            let change = open.get(key);
                            change.map_or((7, 0), |it| (it.number, number_in(&it)))
                        });
                        assert_eq!(now[0].1, value, "the change is the newest of its key");
                        assert!(now[0].0 > last[0].0, "{now:?} after {last:?}");
                        let is_same = now[1] == last[1];
                        assert!(is_same || now[1].0 > last[1].0, "{now:?} after {last:?}");
                        last = now;
                    }
                });
            }
        });
        let changes = u64::from(WRITERS) * (CHANGES + CHANGES / 4);
        assert_eq!(open.last_number.load(Ordering::Relaxed), 7 + changes);
    }
}
