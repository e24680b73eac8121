//! Changes that are not in the index yet, in the layers that they pass through.
//!
//! ```text
//!                  OpenSets                        Journaled
//! apply ──────────► pending ─ rotate ──────► taken ─┐
//! apply_stripes ──► stripes ─ take_stripes ► taken ─┴ append ► logged ─ checkpoint ► frozen ► index
//! ```
//!
//! Every change has a number. The newest change of a key is the one that readers see, in whatever layer it is, and the
//! one that reaches the index last.

use std::sync::Arc;

use super::index::Position;
use super::layer::{InOrder, Layer, NumberedChange, in_order};
use crate::format::key::Key;

/// The set, one of two, from which a [`Pending`] was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Applied,
    Stripes,
}

/// Changes taken for one journal record by [`Meta::rotate`](super::Meta::rotate) or
/// [`Meta::take_stripes`](super::Meta::take_stripes). Readers see them all the while. One that is
/// dropped instead of appended stays visible, but is durable only once its keys change again.
#[must_use = "changes that are not appended never become durable"]
#[derive(Debug)]
pub struct Pending {
    /// The changes of each partition that had some, with its number.
    pub(super) layers: Vec<(usize, Arc<Layer>)>,
    pub(super) origin: Origin,
}

impl Pending {
    /// Returns whether there are no changes in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Counts the keys that it changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layers.iter().map(|(_, layer)| layer.len()).sum()
    }

    /// Returns its changes, those of each partition in order of key.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &NumberedChange)> {
        self.layers.iter().flat_map(|(_, layer)| layer.iter())
    }
}

/// Changes on their way into the index.
#[derive(Clone, Debug)]
pub(super) struct Frozen {
    /// The changes of each partition that has some.
    pub(super) layers: Vec<Arc<Layer>>,
    /// The position of the index after them.
    pub(super) position: Position,
}

impl Frozen {
    /// Returns its changes in order of key.
    pub(super) fn in_order(&self) -> InOrder<'_> {
        in_order(self.layers.iter().map(|layer| &**layer))
    }
}

/// The layers of changes that are not in the journal yet, of the keys of one partition.
#[derive(Debug, Default)]
pub(super) struct OpenSets {
    pending: Layer,
    stripes: Layer,
    taken: Vec<Arc<Layer>>,
}

impl OpenSets {
    /// Adds a change to one of the two open sets, unless that holds a newer one of its key.
    pub(super) fn apply(&mut self, key: Key, change: NumberedChange, origin: Origin) {
        self.open_set(origin).insert(key, change);
    }

    fn open_set(&mut self, origin: Origin) -> &mut Layer {
        match origin {
            Origin::Applied => &mut self.pending,
            Origin::Stripes => &mut self.stripes,
        }
    }

    /// Takes all of one open set, if there is something in it.
    pub(super) fn take(&mut self, origin: Origin) -> Option<Arc<Layer>> {
        let open = self.open_set(origin);
        if open.is_empty() {
            return None;
        }
        let layer = Arc::new(std::mem::take(open));
        self.taken.push(Arc::clone(&layer));
        Some(layer)
    }

    /// Forgets a set that was taken; its changes are in another layer by now.
    pub(super) fn forget(&mut self, taken: &Arc<Layer>) {
        self.taken.retain(|layer| !Arc::ptr_eq(layer, taken));
    }

    /// Returns whether an open set may hold a change older than `number`.
    pub(super) fn has_older(&self, number: u64) -> bool {
        self.pending.has_older(number) || self.stripes.has_older(number)
    }

    /// Drops what is older than a change that the journal holds: written later, it would undo that.
    pub(super) fn drop_older(&mut self, key: &Key, number: u64) {
        self.pending.remove_older(key, number);
        self.stripes.remove_older(key, number);
    }

    /// Returns the layers, of which any may hold the newest change of a key.
    pub(super) fn layers(&self) -> impl Iterator<Item = &Layer> + Clone {
        let open = [&self.pending, &self.stripes];
        let taken = self.taken.iter().map(|layer| &**layer);
        open.into_iter().chain(taken)
    }

    /// Returns about how much memory all layers take.
    pub(super) fn bytes(&self) -> usize {
        self.layers().map(Layer::bytes).sum()
    }

    /// Returns about how much memory the changes take that are still pending.
    pub(super) fn pending_bytes(&self) -> usize {
        self.pending.bytes() + self.stripes.bytes()
    }
}

/// The layers of changes that the journal holds, and the index lacks, of the keys of one partition.
#[derive(Debug, Default)]
pub(super) struct Journaled {
    logged: Layer,
    frozen: Option<Arc<Layer>>,
}

impl Journaled {
    /// Returns whether it holds a newer change of a key than `number`.
    pub(super) fn has_newer(&self, key: &Key, number: u64) -> bool {
        self.layers().any(|layer| layer.has_newer(key, number))
    }

    /// Notes a change that the journal now holds.
    pub(super) fn log(&mut self, key: Key, change: NumberedChange) {
        self.logged.insert(key, change);
    }

    /// Sets everything in the journal aside for the index, if there is something. Only while nothing is frozen.
    pub(super) fn freeze(&mut self) -> Option<Arc<Layer>> {
        debug_assert!(
            self.frozen.is_none(),
            "frozen changes must reach the index first"
        );
        if !self.logged.is_empty() {
            self.frozen = Some(Arc::new(std::mem::take(&mut self.logged)));
        }
        self.frozen.clone()
    }

    /// Forgets the frozen changes: the index has them. Returns them to be dropped without a lock.
    pub(super) fn thaw(&mut self) -> Option<Arc<Layer>> {
        self.frozen.take()
    }

    /// Returns the layers, of which any may hold the newest change of a key.
    pub(super) fn layers(&self) -> impl Iterator<Item = &Layer> + Clone {
        let frozen = self.frozen.iter().map(|frozen| &**frozen);
        std::iter::once(&self.logged).chain(frozen)
    }

    /// Returns about how much memory all layers take.
    pub(super) fn bytes(&self) -> usize {
        self.layers().map(Layer::bytes).sum()
    }
}

/// Returns a key's newest change, if any of the layers holds one.
pub(super) fn newest<'a>(
    layers: impl Iterator<Item = &'a Layer>,
    key: &Key,
) -> Option<&'a NumberedChange> {
    layers
        .filter_map(|layer| layer.get(key))
        .max_by_key(|entry| entry.number)
}
