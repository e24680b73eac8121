//! The overlay and its locks.
//!
//! Changes move in one direction: from the open sets to the journaled layers, and from there to the index. They reach the
//! next place before they leave the last one. So a reader that looks in this order misses none.
//!
//! # Invariants
//!
//! - No lock is held across I/O. Every change waits for that of the open sets, and for no other: bringing changes into the
//!   journal delays none. Changes hold it for a few instructions, or in chunks, between which others have their turn. So a
//!   thread tries again for a while before it sleeps: a wake takes longer than such a hold. Those who list keys or look
//!   through a window hold it longer. That of the journaled layers is held for as long as copying a layer takes.
//! - The lock of the journaled layers is taken before that of the open sets, where both are held.

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};

use super::batch::{Batch, Value};
use super::brief_lock::BriefLock;
use super::fresh_cache::FreshCache;
use super::index::Position;
use super::key::Key;
use super::layer::{self, Layer, NumberedChange, Window};
use super::overlay::{Frozen, Journaled, OpenSets, Origin, Pending, newest};

/// Changes that go from one layer to another under one hold of a lock.
const CHUNK: usize = 256;

/// A cache of newest values, also of keys that have none.
pub(super) type Records = FreshCache<Key, Option<Value>>;

/// The layers of changes that the index lacks, which threads share.
#[derive(Debug, Default)]
pub(super) struct SharedOverlay {
    open: BriefLock<OpenSets>,
    journaled: RwLock<Journaled>,
    /// No change in the journaled layers has a higher number.
    highest_journaled: AtomicU64,
    /// Memory that the open sets take, in bytes. Reading it needs no lock.
    open_bytes: AtomicUsize,
    /// Memory that pending changes take, in bytes.
    pending_bytes: AtomicUsize,
    /// Memory that the journaled layers take, in bytes.
    journaled_bytes: AtomicUsize,
}

/// All layers, which do not change while this lives.
pub(super) struct Layers<'a> {
    open: RwLockReadGuard<'a, OpenSets>,
    journaled: RwLockReadGuard<'a, Journaled>,
}

impl Layers<'_> {
    /// As [`layer::window`], of all layers.
    pub(super) fn window(&self, from: Bound<&[u8]>, end: &[u8], limit: usize) -> Window {
        let layers = self.open.layers().chain(self.journaled.layers());
        layer::window(layers, from, end, limit)
    }
}

impl SharedOverlay {
    /// Starts with changes that are in the journal already. The next one has a higher number than `last_number`.
    pub(super) fn with_logged(logged: Layer, last_number: u64) -> Self {
        let shared = Self::default();
        shared.change_open(|open| *open = OpenSets::after(last_number));
        shared
            .highest_journaled
            .store(last_number, Ordering::Release);
        shared.change_journaled(|journaled| *journaled = Journaled::with_logged(logged));
        shared
    }

    /// Returns all layers, which do not change while the guards live.
    pub(super) fn read(&self) -> Layers<'_> {
        // In this order: no change waits for this thread while it waits for a commit.
        let journaled = self.journaled.read();
        Layers {
            open: self.open.read(),
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
        let open = newest(self.open.read().layers(), key).cloned();
        if let Some(change) = &open
            && change.number > self.highest_journaled.load(Ordering::Acquire)
        {
            return Ok(change.clone());
        }
        let journaled = self.journaled.read();
        let logged = newest(journaled.layers(), key);
        let newest = open.as_ref().into_iter().chain(logged);
        match newest.max_by_key(|change| change.number) {
            Some(change) => Ok(change.clone()),
            None => Err(otherwise()),
        }
    }

    /// Returns the keys of the open sets, in no order. Some may be there twice.
    pub(super) fn unsynced_keys(&self) -> Vec<Key> {
        let open = self.open.read();
        let keys = open.layers().flat_map(Layer::iter);
        keys.map(|(key, _)| key.clone()).collect()
    }

    fn change_open<T>(&self, change: impl FnOnce(&mut OpenSets) -> T) -> T {
        let mut open = self.open.write();
        let done = change(&mut open);
        self.open_bytes.store(open.bytes(), Ordering::Relaxed);
        self.pending_bytes
            .store(open.pending_bytes(), Ordering::Relaxed);
        done
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
        self.open.is_free() && self.journaled.try_write().is_some()
    }

    /// Adds a batch to one of the two open sets.
    #[cfg(test)]
    pub(super) fn apply(&self, batch: Batch, origin: Origin) {
        self.change_open(|open| open.apply(batch, origin));
    }

    /// Adds a batch to one of the two open sets. The cache forgets its keys before a reader can see the change. So a
    /// reader that finds one of the new values finds all of them.
    pub(super) fn apply_to(&self, batch: Batch, origin: Origin, records: &Records) {
        self.change_open(|open| {
            batch.iter().for_each(|(key, _)| records.forget(key));
            open.apply(batch, origin);
        });
    }

    /// Takes all of one open set.
    pub(super) fn take(&self, origin: Origin) -> Pending {
        self.change_open(|open| open.take(origin))
    }

    /// Merges units into one, without what the journal has newer already.
    pub(super) fn newest(&self, parts: &[Pending]) -> Vec<(Key, NumberedChange)> {
        let mut all: Vec<_> = parts.iter().flat_map(|part| part.layer.iter()).collect();
        // Each part is in order: sorting merges them. The newest change of a key comes first.
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
        let highest = changes.iter().map(|(_, change)| change.number).max();
        // Before a change leaves the open sets, where readers would find it otherwise.
        self.highest_journaled
            .fetch_max(highest.unwrap_or(0), Ordering::AcqRel);
        for chunk in changes.chunks(CHUNK) {
            self.change_journaled(|journaled| journaled.log(chunk));
            let is_older_open = {
                let open = self.open.read();
                chunk
                    .iter()
                    .any(|(_, change)| open.has_older(change.number))
            };
            if is_older_open {
                self.change_open(|open| open.drop_older(chunk));
            }
        }
    }

    /// Returns the changes of units to the open sets, below what came since.
    pub(super) fn restore(&self, parts: &[Pending]) {
        for part in parts {
            let changes: Vec<_> = part
                .layer
                .iter()
                .map(|(key, change)| (key.clone(), change.clone()))
                .collect();
            for chunk in changes.chunks(CHUNK) {
                self.change_open(|open| open.restore(part.origin, chunk));
            }
        }
    }

    /// Forgets units that were taken; their changes are in other layers by now.
    pub(super) fn forget(&self, parts: Vec<Pending>) {
        self.change_open(|open| parts.iter().for_each(|part| open.forget(&part.layer)));
        // Their memory is freed after the lock.
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

    /// Returns about how much memory all layers take.
    pub(super) fn bytes(&self) -> usize {
        self.open_bytes.load(Ordering::Relaxed) + self.journaled_bytes.load(Ordering::Relaxed)
    }

    /// Returns about how much memory the changes take that are still pending.
    pub(super) fn pending_bytes(&self) -> usize {
        self.pending_bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

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

    /// Readers that find one half of a batch in the cache find its other half there or in the layers.
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
        let open = overlay.open.read();
        assert!(open.bytes() > 0);
        assert_eq!(overlay.bytes(), open.bytes());
        assert_eq!(overlay.pending_bytes(), open.pending_bytes());
        drop(open);
        let parts = vec![overlay.take(Origin::Applied)];
        assert_eq!(overlay.pending_bytes(), 0);
        overlay.forget(parts);
        assert_eq!(overlay.bytes(), 0);
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
