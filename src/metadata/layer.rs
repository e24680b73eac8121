//! Changes of many keys, of each the newest.

use std::cmp::Reverse;
use std::collections::btree_map::{self, Entry};
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Bound;

use super::batch::Value;
use crate::format::key::Key;

/// The memory that a change costs besides its key and value: a node of the map, and reference counts of long ones.
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
    key.len() + entry.value.as_deref().map_or(0, <[u8]>::len) + ENTRY_OVERHEAD_BYTES
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

impl IntoIterator for Layer {
    type Item = (Key, NumberedChange);
    type IntoIter = btree_map::IntoIter<Key, NumberedChange>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
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

/// Returns whether the newest change of any key from `from` to before `end` is a value. The range is not empty.
pub(super) fn has_value<'a>(
    layers: &(impl Iterator<Item = &'a Layer> + Clone),
    from: Bound<&[u8]>,
    end: &[u8],
) -> bool {
    let range = (from, Bound::Excluded(end));
    layers.clone().any(|layer| {
        let mut changes = layer.entries.range::<[u8], _>(range);
        changes.any(|(key, change)| {
            let is_newer = |other: &Layer| other.has_newer(key, change.number);
            change.value.is_some() && !layers.clone().any(is_newer)
        })
    })
}

/// The changes of a range of keys, and the last key up to which they are complete: `None` for the whole range.
pub(super) type Window = (BTreeMap<Key, NumberedChange>, Option<Key>);

/// Collects the newest changes of the first `limit` keys from `from` to before `end`. Neither the range nor `limit` is empty.
pub(super) fn window<'a>(
    layers: impl Iterator<Item = &'a Layer>,
    from: Bound<&[u8]>,
    end: &[u8],
    limit: usize,
) -> Window {
    let range = (from, Bound::Excluded(end));
    let ranges = layers.map(|layer| layer.entries.range::<[u8], _>(range));
    let mut ranges: Vec<_> = ranges.map(Iterator::peekable).collect();
    let firsts = ranges.iter_mut().enumerate();
    let firsts = firsts.filter_map(|(index, range)| Some(Reverse((range.peek()?.0, index))));
    // Of each layer the next key.
    let mut heads: BinaryHeap<_> = firsts.collect();
    let mut window = Layer::default();
    while let Some(Reverse((key, index))) = heads.pop() {
        if window.len() >= limit
            && let Some((last, _)) = window.entries.last_key_value()
            && last != key
        {
            let upto = last.clone();
            return (window.entries, Some(upto));
        }
        let range = &mut ranges[index];
        if let Some((key, change)) = range.next() {
            window.insert(key.clone(), change.clone());
        }
        heads.extend(range.peek().map(|(key, _)| Reverse((*key, index))));
    }
    (window.entries, None)
}
