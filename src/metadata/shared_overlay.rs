//! The overlay and its lock.
//!
//! The lock is held for a few instructions, and never across I/O: every change waits for it. What takes longer goes in
//! chunks, between which others have their turn.

use std::collections::BTreeMap;

use parking_lot::RwLock;

use super::batch::{Batch, Key};
use super::index::Position;
use super::overlay::{Frozen, Layer, NumberedChange, Origin, Overlay, Pending};

/// Changes that go from one layer to another under one hold of the lock.
const CHUNK: usize = 1024;

/// An [`Overlay`] that threads share.
#[derive(Debug, Default)]
pub(super) struct SharedOverlay {
    pub(super) layers: RwLock<Overlay>,
}

impl SharedOverlay {
    pub(super) fn new(overlay: Overlay) -> Self {
        Self {
            layers: RwLock::new(overlay),
        }
    }

    /// Adds a batch to one of the two open sets.
    #[cfg(test)]
    pub(super) fn apply(&self, batch: Batch, origin: Origin) {
        self.apply_and(batch, origin, |_| {});
    }

    /// Adds a batch to one of the two open sets. Calls `note_changed` with each key before a reader can see the change.
    pub(super) fn apply_and(
        &self,
        batch: Batch,
        origin: Origin,
        mut note_changed: impl FnMut(&Key),
    ) {
        let mut layers = self.layers.write();
        batch.iter().for_each(|(key, _)| note_changed(key));
        layers.apply(batch, origin);
    }

    /// Takes all of one open set.
    pub(super) fn take(&self, origin: Origin) -> Pending {
        self.layers.write().take(origin)
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
            self.layers.write().log(chunk);
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
                self.layers.write().restore(part.origin, chunk);
            }
        }
    }

    /// Forgets units that were taken; their changes are in other layers by now.
    pub(super) fn forget(&self, parts: Vec<Pending>) {
        let mut overlay = self.layers.write();
        for part in parts {
            overlay.forget(&part.layer);
        }
    }

    /// Sets everything in the journal aside for the index. Only while nothing is frozen.
    pub(super) fn freeze(&self, position: Position) -> Frozen {
        self.layers.write().freeze(position)
    }

    /// Returns the frozen changes, if there are any.
    pub(super) fn frozen(&self) -> Option<Frozen> {
        self.layers.read().frozen()
    }

    /// Forgets the frozen changes: the index has them.
    pub(super) fn thaw(&self) {
        // Bound first: its memory is freed after the lock.
        let thawed = self.layers.write().thaw();
        drop(thawed);
    }

    /// Returns everything that is in the journal and not in the index.
    pub(super) fn in_journal(&self) -> Layer {
        self.layers.read().in_journal()
    }

    /// Forgets everything that is in the journal: the index has it.
    pub(super) fn forget_journal(&self) {
        let forgotten = self.layers.write().forget_journal();
        drop(forgotten);
    }

    /// Returns about how much memory all layers take.
    pub(super) fn bytes(&self) -> usize {
        self.layers.read().bytes()
    }

    /// Returns about how much memory the changes take that are still pending.
    pub(super) fn pending_bytes(&self) -> usize {
        self.layers.read().pending_bytes()
    }
}

#[cfg(test)]
mod tests {
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
