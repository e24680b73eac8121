//! The part of the metadata that typed records need: reading and changing keys.

use std::sync::Arc;

use super::batch::{Batch, Value};
use super::error::MetaError;
use crate::format::FormatError;

/// Map of the newest values, without the journal and the checkpoints behind it.
///
/// [`Meta`](super::Meta) is the map of a volume. Records are tested over a map in memory.
pub trait RecordMap: Send + Sync {
    /// Returns a key's newest value.
    ///
    /// # Errors
    ///
    /// As [`Meta::get`](super::Meta::get).
    fn get(&self, key: &[u8]) -> Result<Option<Value>, MetaError>;

    /// Applies a batch of records of stripes and segments. Never waits.
    ///
    /// # Errors
    ///
    /// As [`Meta::apply_stripes`](super::Meta::apply_stripes).
    fn apply_stripes(&self, batch: Batch) -> Result<(), MetaError>;
}

/// The failure of an operation on a typed record. Cheap to clone.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A record of the index does not decode.
    #[error(transparent)]
    Format(#[from] FormatError),

    /// The map cannot be read, or takes no change.
    #[error(transparent)]
    Meta(Arc<MetaError>),
}

impl From<MetaError> for RecordError {
    fn from(error: MetaError) -> Self {
        Self::Meta(Arc::new(error))
    }
}

/// Map in memory, for tests of records.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct MemoryMap(parking_lot::Mutex<std::collections::BTreeMap<super::Key, Value>>);

#[cfg(test)]
impl MemoryMap {
    /// Returns the keys and values from `from` to before `end`, in order.
    pub(crate) fn range(&self, from: super::Key, end: super::Key) -> Vec<(super::Key, Value)> {
        let values = self.0.lock();
        let found = values.range(from..end);
        found
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }
}

#[cfg(test)]
impl RecordMap for MemoryMap {
    fn get(&self, key: &[u8]) -> Result<Option<Value>, MetaError> {
        Ok(self.0.lock().get(key).cloned())
    }

    fn apply_stripes(&self, batch: Batch) -> Result<(), MetaError> {
        let mut values = self.0.lock();
        for (key, value) in batch {
            match value {
                Some(value) => values.insert(key, value),
                None => values.remove(&key),
            };
        }
        Ok(())
    }
}
