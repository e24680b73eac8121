//! Changes of many keys, of each the newest.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;

use super::batch::Value;
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
#[derive(Clone, Debug)]
pub(super) struct Layer {
    entries: BTreeMap<Key, NumberedChange>,
    bytes: usize,
    /// No change in it has a lower number.
    lowest_number: u64,
    /// No change in it has a higher number.
    highest_number: u64,
}

impl Default for Layer {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            bytes: 0,
            lowest_number: u64::MAX,
            highest_number: 0,
        }
    }
}

fn cost(key: &Key, entry: &NumberedChange) -> usize {
    key.len() + entry.value.as_ref().map_or(0, Value::len) + ENTRY_OVERHEAD_BYTES
}

impl Layer {
    /// Adds a change unless the layer holds a newer one of its key.
    pub(super) fn insert(&mut self, key: Key, entry: NumberedChange) {
        self.lowest_number = self.lowest_number.min(entry.number);
        self.highest_number = self.highest_number.max(entry.number);
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
    pub(super) fn remove_older(&mut self, key: &Key, number: u64) {
        if self.has_older(number)
            && self.entries.get(key).is_some_and(|old| old.number < number)
            && let Some(old) = self.entries.remove(key)
        {
            self.bytes -= cost(key, &old);
        }
    }

    /// Returns whether it may hold a change older than `number`. Looks at no key.
    pub(super) fn has_older(&self, number: u64) -> bool {
        self.lowest_number < number
    }

    /// Returns whether it holds a newer change of a key than `number`.
    pub(super) fn has_newer(&self, key: &Key, number: u64) -> bool {
        self.highest_number > number && self.get(key).is_some_and(|entry| entry.number > number)
    }

    /// Returns the change of a key, if it holds one.
    pub(super) fn get(&self, key: &Key) -> Option<&NumberedChange> {
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

/// Changes in order of key, of each key one.
pub(super) type InOrder<'a> = Vec<(&'a Key, &'a NumberedChange)>;

/// Returns the changes of layers that share no key, in order.
pub(super) fn in_order<'a>(layers: impl IntoIterator<Item = &'a Layer>) -> InOrder<'a> {
    let mut all: InOrder<'_> = layers.into_iter().flat_map(Layer::iter).collect();
    // Each layer is in order: sorting merges them.
    all.sort_by_key(|(key, _)| *key);
    all
}

/// The changes of a range of keys, and the last key up to which they are complete: `None` for the whole range.
pub(super) type Window = (BTreeMap<Key, NumberedChange>, Option<Key>);

/// Collects the newest changes of keys from `from` to before `end`, as far as at most so many of each layer reach as
/// stand beside it. Neither the range nor one of these limits is empty.
pub(super) fn window<'a>(
    layers: impl Iterator<Item = (&'a Layer, usize)> + Clone,
    from: Bound<&[u8]>,
    end: &[u8],
) -> Window {
    let range = || (from, Bound::Excluded(end));
    let upto = layers
        .clone()
        .filter_map(|(layer, limit)| layer.entries.range::<[u8], _>(range()).nth(limit - 1))
        .map(|(key, _)| key.clone())
        .min();
    let mut window = Layer::default();
    for (layer, _) in layers {
        let within = |key: &Key| upto.as_ref().is_none_or(|upto| key <= upto);
        let entries = layer.entries.range::<[u8], _>(range());
        for (key, entry) in entries.take_while(|(key, _)| within(key)) {
            window.insert(key.clone(), entry.clone());
        }
    }
    (window.entries, upto)
}
