//! The overlay and its lock.
//!
//! The lock is held for a few instructions, and never across I/O: every change waits for it. What takes longer goes in
//! chunks, between which others have their turn.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};

use super::batch::{Batch, Value};
use super::fresh_cache::FreshCache;
use super::index::Position;
use super::key::Key;
use super::overlay::{Frozen, Layer, NumberedChange, Origin, Overlay, Pending};

/// Changes that go from one layer to another under one hold of the lock.
const CHUNK: usize = 1024;

/// A cache of newest values, also of keys that have none.
pub(super) type Records = FreshCache<Key, Option<Value>>;

/// An [`Overlay`] that threads share.
#[derive(Debug, Default)]
pub(super) struct SharedOverlay {
    layers: RwLock<Overlay>,
    /// Memory that all layers take, in bytes. Reading it needs no lock.
    bytes: AtomicUsize,
    /// Memory that pending changes take, in bytes.
    pending_bytes: AtomicUsize,
}

impl SharedOverlay {
    pub(super) fn new(overlay: Overlay) -> Self {
        let shared = Self::default();
        shared.change(|layers| *layers = overlay);
        shared
    }

    /// Returns the layers, which do not change while the guard lives.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Overlay> {
        self.layers.read()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Overlay) -> T) -> T {
        let mut layers = self.layers.write();
        let done = change(&mut layers);
        self.bytes.store(layers.bytes(), Ordering::Relaxed);
        self.pending_bytes
            .store(layers.pending_bytes(), Ordering::Relaxed);
        done
    }

    /// Returns whether no thread has the lock.
    #[cfg(test)]
    pub(super) fn is_free(&self) -> bool {
        self.layers.try_write().is_some()
    }

    /// Adds a batch to one of the two open sets.
    #[cfg(test)]
    pub(super) fn apply(&self, batch: Batch, origin: Origin) {
        self.change(|layers| layers.apply(batch, origin));
    }

    /// Adds a batch to one of the two open sets. The cache forgets its keys before a reader can see the change. So a
    /// reader that finds one of the new values finds all of them.
    pub(super) fn apply_to(&self, batch: Batch, origin: Origin, records: &Records) {
        self.change(|layers| {
            batch.iter().for_each(|(key, _)| records.forget(&**key));
            layers.apply(batch, origin);
        });
    }

    /// Takes all of one open set.
    pub(super) fn take(&self, origin: Origin) -> Pending {
        self.change(|layers| layers.take(origin))
    }

    /// Merges units into one, without what the journal has newer already.
    pub(super) fn newest(&self, parts: &[Pending]) -> Vec<(Key, NumberedChange)> {
        let mut merged: BTreeMap<&Key, &NumberedChange> = BTreeMap::new();
        for (key, change) in parts.iter().flat_map(|part| part.layer.iter()) {
            let newest = merged.entry(key).or_insert(change);
            if change.number > newest.number {
                *newest = change;
            }
        }
        let all: Vec<_> = merged.into_iter().collect();
        let mut newest = Vec::with_capacity(all.len());
        for chunk in all.chunks(CHUNK) {
            let overlay = self.layers.read();
            let current = chunk
                .iter()
                .filter(|(key, change)| !overlay.is_outdated(key, change.number));
            newest.extend(current.map(|(key, change)| ((*key).clone(), (*change).clone())));
        }
        newest
    }

    /// Notes changes that the journal now holds.
    pub(super) fn log(&self, changes: &[(Key, NumberedChange)]) {
        for chunk in changes.chunks(CHUNK) {
            self.change(|layers| layers.log(chunk));
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
                self.change(|layers| layers.restore(part.origin, chunk));
            }
        }
    }

    /// Forgets units that were taken; their changes are in other layers by now.
    pub(super) fn forget(&self, parts: Vec<Pending>) {
        self.change(|layers| parts.iter().for_each(|part| layers.forget(&part.layer)));
        // Their memory is freed after the lock.
        drop(parts);
    }

    /// Sets everything in the journal aside for the index. Only while nothing is frozen.
    pub(super) fn freeze(&self, position: Position) -> Frozen {
        self.change(|layers| layers.freeze(position))
    }

    /// Returns the frozen changes, if there are any.
    pub(super) fn frozen(&self) -> Option<Frozen> {
        self.layers.read().frozen()
    }

    /// Forgets the frozen changes: the index has them.
    pub(super) fn thaw(&self) {
        // Bound first: its memory is freed after the lock.
        let thawed = self.change(Overlay::thaw);
        drop(thawed);
    }

    /// Returns everything that is in the journal and not in the index.
    pub(super) fn in_journal(&self) -> Layer {
        self.layers.read().in_journal()
    }

    /// Forgets everything that is in the journal: the index has it.
    pub(super) fn forget_journal(&self) {
        let forgotten = self.change(Overlay::forget_journal);
        drop(forgotten);
    }

    /// Returns about how much memory all layers take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
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
                let layers = overlay.read();
                Ok::<_, Infallible>(layers.get(key).and_then(|change| change.value.clone()))
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

    #[test]
    fn the_bytes_are_known_without_the_lock() {
        let overlay = SharedOverlay::default();
        overlay.apply(put("value"), Origin::Applied);
        let layers = overlay.read();
        assert!(layers.bytes() > 0);
        assert_eq!(overlay.bytes(), layers.bytes());
        assert_eq!(overlay.pending_bytes(), layers.pending_bytes());
        drop(layers);
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
