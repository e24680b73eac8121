//! The overlay and its locks.
//!
//! Changes move in one direction: from the open sets to the journaled layers, and from there to the index. They reach the
//! next place before they leave the last one. So a reader that looks in this order misses none.
//!
//! # Invariants
//!
//! - No lock is held across I/O. A change waits for its shards of the open sets, and for nothing else: bringing changes
//!   into the journal delays none. Changes hold a shard for a few instructions, or in chunks, between which others have
//!   their turn. So a thread tries again for a while before it sleeps: a wake takes longer than such a hold. Those who list
//!   keys or look through a window hold it longer. Readers hold the lock of the journaled layers for as long as copying a
//!   layer takes; writers hold it briefly.
//! - The lock of the journaled layers is taken before shards of the open sets, and these in ascending order. The head of
//!   [`super::open_shards`] says what is atomic over several shards.

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::RwLockReadGuard;

use super::batch::{Batch, Value};
use super::brief_lock::BriefLock;
use super::fresh_cache::FreshCache;
use super::index::Position;
use super::key::Key;
use super::layer::{self, Layer, NumberedChange, Window};
use super::open_shards::{CHUNK, HeldShards, OpenShards, UNCOUNTED_BYTES};
use super::overlay::{Frozen, Journaled, Origin, Pending, newest};

/// Changes that reach the journaled layers under one hold of their lock: look-ups of keys that no change concerns wait
/// for it.
const LOGGED_AT_ONCE: usize = 32;

/// A cache of newest values, also of keys that have none.
pub(super) type Records = FreshCache<Key, Option<Value>>;

/// The layers of changes that the index lacks, which threads share.
#[derive(Debug, Default)]
pub(super) struct SharedOverlay {
    open: OpenShards,
    journaled: CachePadded<BriefLock<Journaled>>,
    /// No change in the journaled layers has a higher number.
    highest_journaled: AtomicU64,
    /// Memory that the journaled layers take, in bytes.
    journaled_bytes: AtomicUsize,
}

/// The layers that may hold changes of a range of keys. They do not change while this lives.
pub(super) struct Layers<'a> {
    from: Bound<&'a [u8]>,
    end: &'a [u8],
    open: HeldShards<'a>,
    journaled: RwLockReadGuard<'a, Journaled>,
}

impl Layers<'_> {
    /// As [`layer::window`], of the range. About `limit` changes are in it at most.
    pub(super) fn window(&self, limit: usize) -> Window {
        let share = self.open.share_of(limit);
        let open = self.open.layers().map(|layer| (layer, share));
        let journaled = self.journaled.layers().map(|layer| (layer, limit));
        layer::window(open.chain(journaled), self.from, self.end)
    }
}

impl SharedOverlay {
    /// Starts with changes that are in the journal already. The next one has a higher number than `last_number`.
    pub(super) fn with_logged(logged: Layer, last_number: u64) -> Self {
        let shared = Self {
            open: OpenShards::after(last_number),
            ..Self::default()
        };
        shared
            .highest_journaled
            .store(last_number, Ordering::Release);
        shared.change_journaled(|journaled| *journaled = Journaled::with_logged(logged));
        shared
    }

    /// Returns all layers that may hold keys from `from` to before `end`. They do not change while the guards live.
    pub(super) fn read<'a>(&'a self, from: Bound<&'a [u8]>, end: &'a [u8]) -> Layers<'a> {
        // In this order: no change waits for this thread while it waits for a commit.
        let journaled = self.journaled.read();
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
        let journaled = self.journaled.read();
        let logged = newest(journaled.layers(), key);
        match (open, logged) {
            (Some(open), Some(logged)) if logged.number > open.number => Ok(logged.clone()),
            (Some(open), _) => Ok(open),
            (None, Some(logged)) => Ok(logged.clone()),
            (None, None) => Err(otherwise()),
        }
    }

    /// Returns the keys of the open sets, in no order. Some may be there twice. Keys that change meanwhile may be missing.
    pub(super) fn unsynced_keys(&self) -> Vec<Key> {
        self.open.keys()
    }

    fn change_journaled<T>(&self, change: impl FnOnce(&mut Journaled) -> T) -> T {
        let mut journaled = self.journaled.write();
        let done = change(&mut journaled);
        self.journaled_bytes
            .store(journaled.bytes(), Ordering::Relaxed);
        done
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
    pub(super) fn newest(&self, parts: &[Pending]) -> Vec<(Key, NumberedChange)> {
        let mut all: Vec<_> = parts.iter().flat_map(Pending::iter).collect();
        // Each shard of a part is in order: sorting merges them. The newest change of a key comes first.
        all.sort_by(|(a, old), (b, new)| a.cmp(b).then(new.number.cmp(&old.number)));
        all.dedup_by(|(later, _), (first, _)| later == first);
        let mut newest = Vec::with_capacity(all.len());
        for chunk in all.chunks(CHUNK) {
            let journaled = self.journaled.read();
            let current = chunk
                .iter()
                .filter(|(key, change)| !journaled.has_newer(key, change.number));
            newest.extend(current.map(|(key, change)| ((*key).clone(), (*change).clone())));
        }
        newest
    }

    /// Notes changes that the journal now holds.
    pub(super) fn log(&self, changes: &[(Key, NumberedChange)]) {
        let numbers = changes.iter().map(|(_, change)| change.number);
        let highest = numbers.max().unwrap_or(0);
        // Before a change leaves the open sets, where readers would find it otherwise.
        self.highest_journaled.fetch_max(highest, Ordering::AcqRel);
        for chunk in changes.chunks(LOGGED_AT_ONCE) {
            self.change_journaled(|journaled| journaled.log(chunk));
        }
        self.open.drop_older(changes, highest);
    }

    /// Returns the changes of units to the open sets, below what came since.
    pub(super) fn restore(&self, parts: &[Pending]) {
        parts.iter().for_each(|part| self.open.restore(part));
    }

    /// Forgets units that were taken; their changes are in other layers by now.
    pub(super) fn forget(&self, parts: Vec<Pending>) {
        parts.iter().for_each(|part| self.open.forget(part));
        // Their memory is freed after the locks.
        drop(parts);
    }

    /// Sets everything in the journal aside for the index. Only while nothing is frozen.
    pub(super) fn freeze(&self, position: Position) -> Frozen {
        self.change_journaled(|journaled| journaled.freeze(position))
    }

    /// Returns the frozen changes, if there are any.
    pub(super) fn frozen(&self) -> Option<Frozen> {
        self.journaled.read().frozen()
    }

    /// Forgets the frozen changes: the index has them.
    pub(super) fn thaw(&self) {
        // Bound first: its memory is freed after the lock.
        let thawed = self.change_journaled(Journaled::thaw);
        drop(thawed);
    }

    /// Returns everything that is in the journal and not in the index.
    pub(super) fn in_journal(&self) -> Layer {
        self.journaled.read().in_journal()
    }

    /// Forgets everything that is in the journal: the index has it.
    pub(super) fn forget_journal(&self) {
        let forgotten = self.change_journaled(Journaled::forget_journal);
        drop(forgotten);
    }

    /// Returns about how much memory all layers take. Looks at every shard of the open sets.
    pub(super) fn bytes(&self) -> usize {
        self.open.bytes() + self.journaled_bytes.load(Ordering::Relaxed)
    }

    /// Returns whether [`Self::bytes`] are less than `limit`. Looks at the shards only if less than [`UNCOUNTED_BYTES`]
    /// decide that.
    pub(super) fn is_below(&self, limit: usize) -> bool {
        let least = self.least_bytes();
        least < limit && (least + UNCOUNTED_BYTES <= limit || self.bytes() < limit)
    }

    /// Returns a lower bound of [`Self::bytes`], which is less than [`UNCOUNTED_BYTES`] above it. Looks at no shard.
    fn least_bytes(&self) -> usize {
        self.open.least_bytes() + self.journaled_bytes.load(Ordering::Relaxed)
    }

    /// Returns about how much memory the changes take that are still pending. Looks at every shard.
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

    /// Returns the key of an object; all objects together are in all shards.
    fn object_key(number: u64) -> Key {
        crate::format::key::inode(crate::format::Ino(number)).into()
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
    /// different shards.
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
                        if let Some(change) = frozen.layer.get(&key) {
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
    fn the_bytes_are_known_without_the_lock() {
        let overlay = SharedOverlay::default();
        overlay.apply(put("value"), Origin::Applied);
        let held = overlay.read(Bound::Unbounded, b"z");
        let mut layers = Layer::default();
        let open = held.open.layers().flat_map(Layer::iter);
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

    /// The sum that costs little decides as the exact one does, however the changes lie in the shards.
    #[test]
    fn a_limit_is_compared_with_all_bytes_although_few_shards_are_looked_at() {
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
    fn what_is_older_than_the_journal_is_dropped_from_every_shard() {
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
        assert_eq!(overlay.freeze(Position::default()).layer.len(), count);
        overlay.thaw();
        assert_eq!((overlay.bytes(), overlay.in_journal().len()), (0, 0));
    }
}
