//! An index in memory: a second implementation of the trait, for tests of what lies above.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::metadata::index::{Commit, Index, KeyRange, Position, Snapshot, Visit};
use crate::metadata::{Key, MetaError, StripeData, Value};

/// An ordered map, shared with the snapshots of it until the next commit.
#[derive(Debug, Default)]
pub(super) struct MemIndex {
    state: Mutex<MemRecords>,
}

#[derive(Clone, Debug, Default)]
struct MemRecords {
    records: Arc<BTreeMap<Key, Value>>,
    position: Position,
    unflushed: Vec<StripeData>,
}

impl Index for MemIndex {
    fn snapshot(&self) -> Option<Arc<dyn Snapshot>> {
        Some(Arc::new(Arc::clone(&self.state.lock().records)))
    }

    fn take_snapshot(&self) -> Result<(), MetaError> {
        Ok(())
    }

    fn begin(&self) -> Result<(), MetaError> {
        Ok(())
    }

    fn commit(&self, commit: &mut Commit<'_>) -> Result<(), MetaError> {
        let mut state = self.state.lock();
        let records = Arc::make_mut(&mut state.records);
        for (key, value) in commit.changes.by_ref() {
            match value {
                Some(value) => records.insert(key.clone(), value.clone()),
                None => records.remove(key),
            };
        }
        state.position = commit.position;
        if let Some(unflushed) = commit.unflushed {
            state.unflushed = unflushed.to_vec();
        }
        Ok(())
    }

    fn position(&self) -> Position {
        self.state.lock().position
    }

    fn unflushed(&self, _stripe_bytes: u32) -> Result<Vec<StripeData>, MetaError> {
        Ok(self.state.lock().unflushed.clone())
    }

    fn close(&self) -> Result<(), MetaError> {
        Ok(())
    }
}

impl Snapshot for Arc<BTreeMap<Key, Value>> {
    fn get(&self, key: &[u8]) -> Result<Option<Value>, MetaError> {
        Ok(BTreeMap::get(self, key).cloned())
    }

    fn visit(&self, range: KeyRange<'_>, visit: &mut Visit<'_>) -> Result<(), MetaError> {
        if range.is_empty() {
            return Ok(());
        }
        for (key, value) in BTreeMap::range::<[u8], _>(self, (range.from, range.end)) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
}
