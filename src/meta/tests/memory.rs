//! An index in memory, for tests of what lies above.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::MemberIndex;
use crate::meta::index::{Commit, Index, KeyRange, Position, Snapshot, Visit};
use crate::meta::{Key, MetaError, StripeData, Value, VerifiedIndex};

/// A map, shared with the views of it until the next commit.
#[derive(Debug, Default)]
pub(super) struct MemIndex {
    state: Mutex<MemState>,
}

#[derive(Clone, Debug, Default)]
struct MemState {
    records: Arc<BTreeMap<Key, Value>>,
    position: Position,
    carried: Vec<StripeData>,
}

impl Index for MemIndex {
    fn view(&self) -> Option<Arc<dyn Snapshot>> {
        Some(Arc::new(Arc::clone(&self.state.lock().records)))
    }

    fn make_view(&self) -> Result<(), MetaError> {
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
        if let Some(carried) = commit.carried {
            state.carried = carried.to_vec();
        }
        Ok(())
    }

    fn settle(&self) {}

    fn position(&self) -> Position {
        self.state.lock().position
    }

    fn carried(&self, _stripe_bytes: u32) -> Result<Vec<StripeData>, MetaError> {
        Ok(self.state.lock().carried.clone())
    }

    fn refill(&self) -> Result<bool, MetaError> {
        Ok(false)
    }

    fn compare(&self) -> Result<bool, MetaError> {
        Ok(false)
    }

    fn verify(&self, _first: u64) -> Result<Option<VerifiedIndex>, MetaError> {
        Ok(None)
    }

    fn survey(&self) -> Result<BTreeMap<MemberIndex, u64>, MetaError> {
        Ok(BTreeMap::new())
    }

    fn mended_pages(&self) -> u64 {
        0
    }

    fn copies(&self) -> Vec<MemberIndex> {
        Vec::new()
    }

    fn holders(&self) -> Vec<MemberIndex> {
        Vec::new()
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn reserve_bytes(&self) -> u64 {
        0
    }

    fn leave(&self, _: &[MemberIndex]) {}

    fn give_reserve(&self) {}

    fn keep_reserve(&self) -> bool {
        true
    }

    fn compact(&self) -> Result<bool, MetaError> {
        Ok(false)
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
