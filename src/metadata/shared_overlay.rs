//! The overlay and its locks.
//!
//! Changes move in one direction: from the open sets to the journaled layers, and from there to the index. They reach
//! the next place before they leave the last one. So a reader that looks in this order misses none.
//!
//! # Invariants
//!
//! - No lock is held across I/O. Changes and look-ups wait for the partitions of their keys. The holder of a partition
//!   may wait for a higher one, which one batch, one unit or one listing holds.
//! - A change holds a partition for a few instructions. Many changes hold it in chunks, between which others have their
//!   turn. A wake takes longer than such a hold, so a thread tries again for a while before it sleeps. Listings and
//!   windows hold partitions longer.
//! - Partitions of the journaled layers are taken before those of the open sets, and each kind in ascending order. The
//!   heads of [`super::journaled_partitions`] and [`super::open_partitions`] say what is atomic over several
//!   partitions.

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use super::batch::{Batch, Value};
use super::fresh_cache::FreshCache;
use super::index::Position;
use super::journaled_partitions::JournaledPartitions;
use super::layer::{self, InOrder, Layer, NumberedChange, Window};
use super::open_partitions::{OpenPartitions, UNCOUNTED_BYTES};
use super::overlay::{Frozen, Journaled, OpenSets, Origin, Pending, newest};
use super::partitions::{HeldPartitions, by_partition};
use crate::format::key::Key;

/// A cache of newest values, also of keys that have none.
pub(super) type Records = FreshCache<Key, Option<Value>>;

/// The layers of changes that the index lacks, which threads share.
#[derive(Debug, Default)]
pub(super) struct SharedOverlay {
    open: OpenPartitions,
    journaled: JournaledPartitions,
    /// No change in the journaled layers has a higher number.
    highest_journaled: AtomicU64,
}

/// The layers that may hold changes of a range of keys. They do not change while this lives.
pub(super) struct Layers<'a> {
    from: Bound<&'a [u8]>,
    end: &'a [u8],
    open: HeldPartitions<'a, OpenSets>,
    journaled: HeldPartitions<'a, Journaled>,
}

impl Layers<'_> {
    /// As [`layer::window`], of the range.
    pub(super) fn window(&self, limit: usize) -> Window {
        layer::window(self.iter(), self.from, self.end, limit)
    }

    /// As [`layer::has_value`], of the range.
    pub(super) fn has_value(&self) -> bool {
        layer::has_value(&self.iter(), self.from, self.end)
    }

    fn iter(&self) -> impl Iterator<Item = &Layer> + Clone {
        let open = self.open.iter().flat_map(OpenSets::layers);
        open.chain(self.journaled.iter().flat_map(Journaled::layers))
    }
}

impl SharedOverlay {
    /// Starts with changes that are in the journal already. The next one has a higher number than `last_number`.
    pub(super) fn with_logged(logged: Layer, last_number: u64) -> Self {
        Self {
            open: OpenPartitions::after(last_number),
            journaled: JournaledPartitions::with_logged(logged),
            highest_journaled: AtomicU64::new(last_number),
        }
    }

    /// Returns all layers that may hold keys from `from` to before `end`. They do not change while the guards live.
    pub(super) fn read<'a>(&'a self, from: Bound<&'a [u8]>, end: &'a [u8]) -> Layers<'a> {
        // In this order: no change waits for this thread while it waits for a commit.
        let journaled = self.journaled.read(from, end);
        Layers {
            from,
            end,
            open: self.open.read(from, end),
            journaled,
        }
    }

    /// Returns the newest change of a key. If there is none, returns what `otherwise` returns, which is called while no
    /// change can go from here into the index.
    pub(super) fn get_or<T>(
        &self,
        key: &Key,
        otherwise: impl FnOnce() -> T,
    ) -> Result<NumberedChange, T> {
        let open = match self.open.get(key) {
            Some(change) if change.number > self.highest_journaled.load(Ordering::Acquire) => {
                return Ok(change);
            }
            open => open,
        };
        let journaled = self.journaled.of_key(key);
        let logged = newest(journaled.layers(), key);
        match (open, logged) {
            (Some(open), Some(logged)) if logged.number > open.number => Ok(logged.clone()),
            (Some(open), _) => Ok(open),
            (None, Some(logged)) => Ok(logged.clone()),
            (None, None) => Err(otherwise()),
        }
    }

    /// Returns the keys of the open sets, in no order. Some may be there twice. Keys that change meanwhile may be
    /// missing.
    pub(super) fn unsynced_keys(&self) -> Vec<Key> {
        self.open.keys()
    }

    /// Returns whether no thread has one of the locks.
    #[cfg(test)]
    pub(super) fn is_free(&self) -> bool {
        self.open.is_free() && self.journaled.is_free()
    }

    /// Adds a batch to one of the two open sets.
    #[cfg(test)]
    pub(super) fn apply(&self, batch: Batch, origin: Origin) {
        self.open.apply(batch, origin, |_| {});
    }

    /// Adds a batch to one of the two open sets. The cache forgets its keys before a reader can see the change. So a
    /// reader that finds one of the new values finds all of them.
    pub(super) fn apply_to(&self, batch: Batch, origin: Origin, records: &Records) {
        self.open.apply(batch, origin, |key| records.forget(key));
    }

    /// Takes all of one open set: every batch wholly or not at all.
    pub(super) fn take(&self, origin: Origin) -> Pending {
        self.open.take(origin)
    }

    /// Merges units into one, without what the journal has newer already.
    pub(super) fn newest<'p>(&self, parts: &'p [Pending]) -> InOrder<'p> {
        let mut all: InOrder<'p> = parts.iter().flat_map(Pending::iter).collect();
        // Each partition of a part is in order: sorting merges them. The newest change of a key comes first.
        all.sort_by(|(a, old), (b, new)| a.cmp(b).then(new.number.cmp(&old.number)));
        all.dedup_by(|(later, _), (first, _)| later == first);
        self.journaled.newest_of(&all)
    }

    /// Notes changes that the journal now holds.
    pub(super) fn log(&self, changes: &InOrder<'_>) {
        let numbers = changes.iter().map(|(_, change)| change.number);
        let highest = numbers.max().unwrap_or(0);
        // Before a change leaves the open sets, where readers would find it otherwise.
        self.highest_journaled.fetch_max(highest, Ordering::AcqRel);
        let changes = by_partition(changes);
        self.journaled.log(&changes);
        self.open.drop_older(&changes, highest);
    }

    /// Returns the changes of units to the open sets, below what came since.
    pub(super) fn restore(&self, parts: &[Pending]) {
        for part in parts {
            self.open.restore(part);
        }
    }

    /// Forgets units that were taken; their changes are in other layers by now.
    pub(super) fn forget(&self, parts: Vec<Pending>) {
        for part in &parts {
            self.open.forget(part);
        }
        // Their memory is freed after the locks.
        drop(parts);
    }

    /// Sets everything in the journal aside for the index. Only while nothing is frozen.
    pub(super) fn freeze(&self, position: Position) -> Frozen {
        self.journaled.freeze(position)
    }

    /// Returns the frozen changes, if there are any.
    pub(super) fn frozen(&self) -> Option<Frozen> {
        self.journaled.frozen()
    }

    /// Forgets the frozen changes: the index has them.
    pub(super) fn thaw(&self) {
        self.journaled.thaw();
    }

    /// Returns everything that is in the journal and not in the index.
    pub(super) fn in_journal(&self) -> Layer {
        self.journaled.all()
    }

    /// Forgets everything that is in the journal: the index has it.
    pub(super) fn forget_journal(&self) {
        self.journaled.clear();
    }

    /// Returns about how much memory all layers take. Looks at every partition of the open sets.
    pub(super) fn bytes(&self) -> usize {
        self.open.bytes() + self.journaled.bytes()
    }

    /// Returns whether [`Self::bytes`] are less than `limit`. Looks at the partitions only if less than
    /// [`UNCOUNTED_BYTES`] decide that.
    pub(super) fn is_below(&self, limit: usize) -> bool {
        let least = self.least_bytes();
        least < limit && (least + UNCOUNTED_BYTES <= limit || self.bytes() < limit)
    }

    /// Returns a lower bound of [`Self::bytes`], which is less than [`UNCOUNTED_BYTES`] above it. Looks at no partition.
    fn least_bytes(&self) -> usize {
        self.open.least_bytes() + self.journaled.bytes()
    }

    /// Returns about how much memory the changes take that are still pending. Looks at every partition.
    pub(super) fn pending_bytes(&self) -> usize {
        self.open.pending_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use cauchyfs_testkit::seed;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::metadata::partitions::CHUNK;

    /// Returns the key of an object; all objects together are in all partitions.
    fn object_key(number: u64) -> Key {
        crate::format::key::inode(crate::format::Ino(number))
    }

    fn put(value: &'static str) -> Batch {
        let mut batch = Batch::default();
        batch.put("key", value);
        batch
    }

    #[test]
    fn a_unit_that_is_restored_stays_below_what_came_since() {
        let overlay = SharedOverlay::default();
        overlay.apply(put("old"), Origin::Applied);
        let taken = overlay.take(Origin::Applied);
        overlay.apply(put("new"), Origin::Applied);
        let parts = vec![taken];
        overlay.restore(&parts);
        overlay.forget(parts);
        let both = [overlay.take(Origin::Applied)];
        let newest = overlay.newest(&both);
        let values = newest.iter().map(|(_, change)| change.value.as_deref());
        assert!(values.eq([Some(&b"new"[..])]));
    }

    /// Readers that find one half of a batch in the cache find its other half there or in the layers. The halves are in
    /// different partitions.
    #[test]
    fn a_reader_through_the_cache_sees_a_batch_as_a_whole() {
        const LAST: u64 = 20_000;
        let overlay = SharedOverlay::default();
        let records = Records::new(1 << 20, 64, |_, _| 16);
        let keys = ["first", "second"].map(Key::from);
        let read = |key: &Key| {
            let newest = || {
                let found = overlay.get_or(key, || ());
                Ok::<_, Infallible>(found.ok().and_then(|change| change.value))
            };
            let found = records.get_or_read(key, newest).expect("it cannot fail");
            found.map_or(0, |value| {
                u64::from_be_bytes((*value).try_into().expect("8 bytes"))
            })
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=LAST {
                    let mut batch = Batch::default();
                    for key in &keys {
                        batch.put(key.clone(), number.to_be_bytes().to_vec());
                    }
                    overlay.apply_to(batch, Origin::Applied, &records);
                }
            });
            for order in [[0, 1], [1, 0]] {
                let (read, keys) = (&read, &keys);
                scope.spawn(move || {
                    loop {
                        let [earlier, later] = order.map(|place: usize| read(&keys[place]));
                        assert!(earlier <= later, "{order:?}: {earlier}, then {later}");
                        if later == LAST {
                            return;
                        }
                    }
                });
            }
        });
        for key in &keys {
            assert_eq!(read(key), LAST);
        }
    }

    /// A change moves from place to place all the while, and never is in none of them.
    #[test]
    fn a_reader_finds_each_change_wherever_it_is_on_its_way_to_the_index() {
        const LAST: u64 = 20_000;
        let (overlay, key) = (SharedOverlay::default(), Key::from("key"));
        let (indexed, applied) = (AtomicU64::new(0), AtomicU64::new(0));
        let number_in = |change: &NumberedChange| {
            let value = change.value.as_deref().expect("it is not deleted");
            u64::from_be_bytes(value.try_into().expect("8 bytes"))
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=LAST {
                    let mut batch = Batch::default();
                    batch.put(key.clone(), number.to_be_bytes().to_vec());
                    overlay.apply(batch, Origin::Applied);
                    applied.store(number, Ordering::Release);
                    if number % 2 == 0 {
                        let parts = vec![overlay.take(Origin::Applied)];
                        overlay.log(&overlay.newest(&parts));
                        overlay.forget(parts);
                    }
                    if number % 3 == 0 {
                        let frozen = overlay.freeze(Position::default());
                        let mut layers = frozen.layers.iter();
                        if let Some(change) = layers.find_map(|layer| layer.get(&key)) {
                            indexed.store(number_in(change), Ordering::Release);
                        }
                        overlay.thaw();
                    }
                }
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    while applied.load(Ordering::Acquire) < LAST {
                        let least = applied.load(Ordering::Acquire);
                        let found = overlay.get_or(&key, || indexed.load(Ordering::Acquire));
                        let found =
                            found.map_or_else(|indexed| indexed, |change| number_in(&change));
                        assert!(
                            found >= least,
                            "{found} was found after {least} was applied"
                        );
                    }
                });
            }
        });
    }

    #[test]
    fn a_window_has_as_many_keys_as_it_may_wherever_they_lie() {
        let overlay = SharedOverlay::default();
        let in_one_partition =
            |number: u64| [&b"i\0\0\0\0\0\0\0\x01"[..], &number.to_be_bytes()].concat();
        let in_all_partitions = |number: u64| [&b"s"[..], &number.to_be_bytes()].concat();
        for number in 0..1000 {
            for (key, origin) in [
                (in_one_partition(number), Origin::Applied),
                (in_all_partitions(number), Origin::Stripes),
            ] {
                let mut batch = Batch::default();
                batch.put(key, "value");
                overlay.apply(batch, origin);
            }
        }
        // Some keys have an older change in another layer.
        let parts = vec![overlay.take(Origin::Applied)];
        overlay.log(&overlay.newest(&parts));
        overlay.forget(parts);
        let mut again = Batch::default();
        (0..10).for_each(|number| again.put(in_one_partition(number), "newer"));
        overlay.apply(again, Origin::Applied);
        let layers = overlay.read(Bound::Unbounded, b"z");
        for limit in [1, 7, 100, 1000, 1500, 1999] {
            let (window, upto) = layers.window(limit);
            assert_eq!(window.len(), limit);
            assert_eq!(upto.as_ref(), window.keys().next_back());
        }
        let (window, upto) = layers.window(2000);
        assert_eq!((window.len(), upto), (2000, None));
        let newer = window
            .values()
            .filter(|it| it.value.as_deref() == Some(b"newer"));
        assert_eq!(newer.count(), 10);
    }

    /// Both halves of a batch move from partition to partition and from place to place, each at its own time.
    #[test]
    fn a_reader_of_all_partitions_sees_whole_batches_wherever_they_are() {
        const LAST: u64 = 5_000;
        let overlay = SharedOverlay::default();
        let keys = [1, 2].map(object_key);
        let (indexed, applied) = (AtomicU64::new(0), AtomicU64::new(0));
        let number_in = |change: &NumberedChange| {
            let value = change.value.as_deref().expect("it is not deleted");
            u64::from_be_bytes(value.try_into().expect("8 bytes"))
        };
        let read = || {
            let layers = overlay.read(Bound::Unbounded, b"z");
            let indexed = indexed.load(Ordering::Acquire);
            let (window, upto) = layers.window(usize::MAX);
            assert_eq!(upto, None);
            keys.each_ref()
                .map(|key| window.get(key).map_or(indexed, number_in))
        };
        let write = |number: u64| {
            let mut batch = Batch::default();
            for key in &keys {
                batch.put(key.clone(), number.to_be_bytes().to_vec());
            }
            overlay.apply(batch, Origin::Applied);
            applied.store(number, Ordering::Release);
            if number.is_multiple_of(2) {
                let parts = vec![overlay.take(Origin::Applied)];
                overlay.log(&overlay.newest(&parts));
                overlay.forget(parts);
            }
            if number.is_multiple_of(3) {
                let frozen = overlay.freeze(Position::default());
                let newest = frozen.in_order().into_iter().map(|(_, it)| number_in(it));
                if let Some(newest) = newest.max() {
                    indexed.store(newest, Ordering::Release);
                }
                overlay.thaw();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| (1..=LAST).for_each(write));
            for _ in 0..2 {
                scope.spawn(|| {
                    while applied.load(Ordering::Acquire) < LAST {
                        let least = applied.load(Ordering::Acquire);
                        let [one, other] = read();
                        assert_eq!(one, other, "halves of a batch");
                        assert!(one >= least, "{one} was found after {least} was applied");
                    }
                });
            }
        });
        assert_eq!(read(), [LAST; 2]);
    }

    #[test]
    fn the_bytes_are_known_without_the_lock() {
        let overlay = SharedOverlay::default();
        overlay.apply(put("value"), Origin::Applied);
        let held = overlay.read(Bound::Unbounded, b"z");
        let mut layers = Layer::default();
        let open = held
            .open
            .iter()
            .flat_map(OpenSets::layers)
            .flat_map(Layer::iter);
        open.for_each(|(key, change)| layers.insert(key.clone(), change.clone()));
        assert!(layers.bytes() > 0);
        assert_eq!(overlay.bytes(), layers.bytes());
        assert_eq!(overlay.pending_bytes(), layers.bytes());
        drop(held);
        let parts = vec![overlay.take(Origin::Applied)];
        assert_eq!(overlay.pending_bytes(), 0);
        assert_eq!(overlay.bytes(), layers.bytes());
        overlay.forget(parts);
        assert_eq!(overlay.bytes(), 0);
    }

    /// The sum that costs little decides as the exact one does, however the changes lie in the partitions.
    #[test]
    fn a_limit_is_compared_with_all_bytes_although_few_partitions_are_looked_at() {
        let seed = seed();
        let mut random = StdRng::seed_from_u64(seed);
        let (overlay, mut units) = (SharedOverlay::default(), Vec::new());
        let (mut counted, mut uncounted) = (false, false);
        for round in 0..400 {
            let mut batch = Batch::default();
            for _ in 0..random.random_range(0..200) {
                let len = random.random_range(0..600);
                batch.put(object_key(random.random_range(0..500)), vec![0; len]);
            }
            overlay.apply(batch, Origin::Applied);
            if random.random_bool(0.3) {
                units.push(overlay.take(Origin::Applied));
            }
            if random.random_bool(0.2) {
                let parts = std::mem::take(&mut units);
                match random.random_range(0..3) {
                    0 => overlay.restore(&parts),
                    1 => overlay.log(&overlay.newest(&parts)),
                    _ => overlay.forget_journal(),
                }
                overlay.forget(parts);
            }
            let (bytes, least) = (overlay.bytes(), overlay.least_bytes());
            assert!(
                least <= bytes && bytes < least + UNCOUNTED_BYTES,
                "seed {seed}, round {round}: {bytes} bytes, of which {least} are counted"
            );
            counted |= least > 0;
            uncounted |= bytes > least;
            for limit in [0, least, bytes, bytes + 1, least + UNCOUNTED_BYTES] {
                let is_below = overlay.is_below(limit);
                assert_eq!(is_below, bytes < limit, "seed {seed}, {bytes} of {limit}");
            }
        }
        assert!(counted && uncounted, "seed {seed}");
    }

    #[test]
    fn what_is_older_than_the_journal_is_dropped_from_every_partition() {
        let (overlay, count) = (SharedOverlay::default(), 20 * CHUNK as u64);
        let batch = |value: &'static str| {
            let mut batch = Batch::default();
            (0..count).for_each(|object| batch.put(object_key(object), value));
            batch
        };
        overlay.apply(batch("old"), Origin::Stripes);
        overlay.apply(batch("new"), Origin::Applied);
        let parts = vec![overlay.take(Origin::Applied)];
        let changes = overlay.newest(&parts);
        assert_eq!(changes.len() as u64, count);
        assert!(changes.is_sorted_by(|(one, _), (next, _)| one < next));
        assert!(overlay.pending_bytes() > 0);
        overlay.log(&changes);
        assert_eq!(overlay.pending_bytes(), 0);
        overlay.forget(parts);
        assert!(overlay.take(Origin::Stripes).is_empty());
    }

    #[test]
    fn more_changes_than_a_chunk_reach_the_journal_and_the_index() {
        let (overlay, count) = (SharedOverlay::default(), 2 * CHUNK + 1);
        let mut batch = Batch::default();
        for number in 0..count {
            batch.put(number.to_be_bytes().to_vec(), "value");
        }
        overlay.apply(batch, Origin::Stripes);
        let parts = vec![overlay.take(Origin::Stripes)];
        overlay.log(&overlay.newest(&parts));
        overlay.forget(parts);
        assert_eq!(overlay.in_journal().len(), count);
        assert_eq!(overlay.freeze(Position::default()).in_order().len(), count);
        overlay.thaw();
        assert_eq!((overlay.bytes(), overlay.in_journal().len()), (0, 0));
    }
}
