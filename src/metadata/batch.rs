//! A set of changes that become visible, and durable, together.

use std::collections::BTreeMap;

use crate::format::key::Key;
pub use crate::format::record::Value;

/// Changes that take effect all at once. A later change of a key replaces an earlier one.
///
/// # Examples
///
/// ```
/// # use cauchyfs::metadata::Batch;
/// let mut batch = Batch::default();
/// batch.put("a", "1");
/// batch.delete("a");
/// assert_eq!(batch.iter().collect::<Vec<_>>(), [(&"a".into(), None)]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    changes: BTreeMap<Key, Option<Value>>,
}

impl Batch {
    /// Gives a key a value.
    pub fn put(&mut self, key: impl Into<Key>, value: impl Into<Value>) {
        self.changes.insert(key.into(), Some(value.into()));
    }

    /// Deletes a key; one that does not exist is fine.
    pub fn delete(&mut self, key: impl Into<Key>) {
        self.changes.insert(key.into(), None);
    }

    /// Adds the changes of `later`, which win over those already there.
    pub fn merge(&mut self, later: Self) {
        self.changes.extend(later.changes);
    }

    /// Returns whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Counts the keys that it changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Returns the bytes of its keys and values.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        let size = |(key, value): (&Key, &Option<Value>)| {
            key.len() + value.as_deref().map_or(0, <[u8]>::len)
        };
        self.changes.iter().map(size).sum()
    }

    /// Returns its changes in order of key; `None` is a deletion.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, Option<&Value>)> {
        self.changes
            .iter()
            .map(|(key, value)| (key, value.as_ref()))
    }
}

impl IntoIterator for Batch {
    type Item = (Key, Option<Value>);
    type IntoIter = std::collections::btree_map::IntoIter<Key, Option<Value>>;

    fn into_iter(self) -> Self::IntoIter {
        self.changes.into_iter()
    }
}
