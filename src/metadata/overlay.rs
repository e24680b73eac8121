//! Changes that are not in the index yet, in the layers that they pass through.
//!
//! ```text
//! apply ──────────► pending ─ rotate ──────► taken ─┐
//! apply_stripes ──► stripes ─ take_stripes ► taken ─┴ append ► logged ─ checkpoint ► frozen ► index
//! ```
//!
//! Every change has a number. The newest change of a key is the one that readers see, in whatever
//! layer it is, and the one that reaches the index last.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::sync::Arc;

use super::batch::{Batch, Value};
use super::index::Position;
use super::key::Key;

/// The memory that a change costs besides its key and value: a node of the map, two reference counts.
const ENTRY_OVERHEAD_BYTES: usize = 128;

/// A change of one key.
#[derive(Clone, Debug)]
pub(super) struct NumberedChange {
    /// Numbers changes; the newest of a key counts.
    pub(super) number: u64,
    /// The value, or `None` if the key is deleted.
    pub(super) value: Option<Value>,
}

/// Changes of many keys, one of each.
#[derive(Clone, Debug, Default)]
pub(super) struct Layer {
    entries: BTreeMap<Key, NumberedChange>,
    bytes: usize,
}

fn cost(key: &Key, entry: &NumberedChange) -> usize {
    key.len() + entry.value.as_ref().map_or(0, Value::len) + ENTRY_OVERHEAD_BYTES
}

impl Layer {
    /// Adds a change unless the layer holds a newer one of its key.
    pub(super) fn insert(&mut self, key: Key, entry: NumberedChange) {
        match self.entries.entry(key) {
            Entry::Vacant(vacant) => {
                self.bytes += cost(vacant.key(), &entry);
                vacant.insert(entry);
            }
            Entry::Occupied(occupied) if occupied.get().number > entry.number => {}
            Entry::Occupied(mut occupied) => {
                self.bytes += cost(occupied.key(), &entry);
                self.bytes -= cost(occupied.key(), occupied.get());
                occupied.insert(entry);
            }
        }
    }

    /// Takes a key's change out if it is older than `number`.
    fn remove_older(&mut self, key: &Key, number: u64) {
        if self.entries.get(key).is_some_and(|old| old.number < number)
            && let Some(old) = self.entries.remove(key)
        {
            self.bytes -= cost(key, &old);
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&NumberedChange> {
        self.entries.get(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &NumberedChange)> {
        self.entries.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns about how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

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
    pub(super) layer: Arc<Layer>,
    pub(super) origin: Origin,
}

impl Pending {
    /// Returns whether there are no changes in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layer.is_empty()
    }

    /// Counts the keys that it changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layer.len()
    }
}

/// Changes on their way into the index.
#[derive(Clone, Debug)]
pub(super) struct Frozen {
    pub(super) layer: Arc<Layer>,
    /// The position of the index after them.
    pub(super) position: Position,
}

/// All layers.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    last_number: u64,
    pending: Layer,
    stripes: Layer,
    taken: Vec<Arc<Layer>>,
    logged: Layer,
    frozen: Option<Frozen>,
}

impl Overlay {
    /// Starts with changes that are in the journal already.
    pub(super) fn with_logged(logged: Layer, last_number: u64) -> Self {
        Self {
            last_number,
            logged,
            ..Self::default()
        }
    }

    /// Adds a batch to one of the two open sets.
    pub(super) fn apply(&mut self, batch: Batch, origin: Origin) {
        for (key, value) in batch {
            self.last_number += 1;
            let entry = NumberedChange {
                number: self.last_number,
                value,
            };
            self.open_set(origin).insert(key, entry);
        }
    }

    fn open_set(&mut self, origin: Origin) -> &mut Layer {
        match origin {
            Origin::Applied => &mut self.pending,
            Origin::Stripes => &mut self.stripes,
        }
    }

    /// Takes all of one open set.
    pub(super) fn take(&mut self, origin: Origin) -> Pending {
        let layer = Arc::new(std::mem::take(self.open_set(origin)));
        if !layer.is_empty() {
            self.taken.push(Arc::clone(&layer));
        }
        Pending { layer, origin }
    }

    /// Returns changes to the set they were taken from, below what came since.
    pub(super) fn restore(&mut self, origin: Origin, changes: &[(Key, NumberedChange)]) {
        for (key, entry) in changes {
            self.open_set(origin).insert(key.clone(), entry.clone());
        }
    }

    /// Returns whether a change newer than `number` of this key is in the journal already.
    pub(super) fn is_outdated(&self, key: &[u8], number: u64) -> bool {
        let newer = |layer: &Layer| layer.get(key).is_some_and(|entry| entry.number > number);
        newer(&self.logged)
            || self
                .frozen
                .as_ref()
                .is_some_and(|frozen| newer(&frozen.layer))
    }

    /// Notes changes that the journal now holds. Older ones that still wait are dropped: written
    /// later, they would undo these.
    pub(super) fn log(&mut self, changes: &[(Key, NumberedChange)]) {
        for (key, entry) in changes {
            self.pending.remove_older(key, entry.number);
            self.stripes.remove_older(key, entry.number);
            self.logged.insert(key.clone(), entry.clone());
        }
    }

    /// Forgets a set that was taken; its changes are in another layer by now.
    pub(super) fn forget(&mut self, taken: &Arc<Layer>) {
        self.taken.retain(|layer| !Arc::ptr_eq(layer, taken));
    }

    /// Sets everything in the journal aside for the index. Only while nothing is frozen.
    pub(super) fn freeze(&mut self, position: Position) -> Frozen {
        debug_assert!(
            self.frozen.is_none(),
            "frozen changes must reach the index first"
        );
        let frozen = Frozen {
            layer: Arc::new(std::mem::take(&mut self.logged)),
            position,
        };
        self.frozen = Some(frozen.clone());
        frozen
    }

    pub(super) fn frozen(&self) -> Option<Frozen> {
        self.frozen.clone()
    }

    /// Forgets the frozen changes: the index has them. Returns them to be dropped without a lock.
    pub(super) fn thaw(&mut self) -> Option<Frozen> {
        self.frozen.take()
    }

    /// Returns everything that is in the journal and not in the index.
    pub(super) fn in_journal(&self) -> Layer {
        let mut all = self
            .frozen
            .as_ref()
            .map_or_else(Layer::default, |frozen| (*frozen.layer).clone());
        for (key, entry) in self.logged.iter() {
            all.insert(key.clone(), entry.clone());
        }
        all
    }

    /// Forgets everything that is in the journal: the index has it. Returns it to be dropped without
    /// a lock.
    pub(super) fn forget_journal(&mut self) -> (Layer, Option<Frozen>) {
        (std::mem::take(&mut self.logged), self.frozen.take())
    }

    fn layers(&self) -> impl Iterator<Item = &Layer> {
        let open = [&self.pending, &self.stripes];
        let taken = self.taken.iter().map(|layer| &**layer);
        let frozen = self.frozen.iter().map(|frozen| &*frozen.layer);
        open.into_iter()
            .chain(taken)
            .chain([&self.logged])
            .chain(frozen)
    }

    /// Returns a key's newest change, if it has any here.
    pub(super) fn get(&self, key: &[u8]) -> Option<&NumberedChange> {
        self.layers()
            .filter_map(|layer| layer.get(key))
            .max_by_key(|entry| entry.number)
    }

    /// Collects the newest changes of keys from `from` to before `end`, as far as at most `limit`
    /// of each layer reach. Returns them and the last key up to which they are complete, or `None`
    /// if that is all of the range. Neither the range nor `limit` is empty.
    pub(super) fn window(
        &self,
        from: Bound<&[u8]>,
        end: &[u8],
        limit: usize,
    ) -> (BTreeMap<Key, NumberedChange>, Option<Key>) {
        let range = || (from, Bound::Excluded(end));
        let upto = self
            .layers()
            .filter_map(|layer| layer.entries.range::<[u8], _>(range()).nth(limit - 1))
            .map(|(key, _)| key.clone())
            .min();
        let mut window = Layer::default();
        for layer in self.layers() {
            let within = |key: &Key| upto.as_ref().is_none_or(|upto| key <= upto);
            let entries = layer.entries.range::<[u8], _>(range());
            for (key, entry) in entries.take_while(|(key, _)| within(key)) {
                window.insert(key.clone(), entry.clone());
            }
        }
        (window.entries, upto)
    }

    /// Returns about how much memory all layers take.
    pub(super) fn bytes(&self) -> usize {
        self.layers().map(Layer::bytes).sum()
    }

    /// Returns about how much memory the changes take that are still pending.
    pub(super) fn pending_bytes(&self) -> usize {
        self.pending.bytes + self.stripes.bytes
    }
}
