//! Snapshots of the records, and the newest of them.

use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::RwLock;

use super::contained::DatabaseFailure;
use super::suspicion::Suspicion;
use super::tables::RecordsTable;
use crate::metadata::batch::Value;
use crate::metadata::error::MetaError;
use crate::metadata::index::{KeyRange, Snapshot, Visit};

/// The snapshot of the last commit, if one was taken.
#[derive(Default)]
pub(super) struct LatestSnapshot {
    /// Held for a few instructions.
    state: RwLock<Latest>,
}

#[derive(Default)]
struct Latest {
    taken: Option<Arc<dyn Snapshot>>,
    /// Counts commits: what was begun before one of them ended may be older.
    commits: u64,
}

impl LatestSnapshot {
    /// Returns the snapshot.
    pub(super) fn get(&self) -> Option<Arc<dyn Snapshot>> {
        self.state.read().taken.clone()
    }

    /// Returns the number of commits so far.
    pub(super) fn commits(&self) -> u64 {
        self.state.read().commits
    }

    /// Replaces the snapshot of the commit before with another, or none.
    pub(super) fn replace(&self, taken: Option<Arc<dyn Snapshot>>) {
        let mut latest = self.state.write();
        latest.commits += 1;
        let old = std::mem::replace(&mut latest.taken, taken);
        drop(latest);
        // With the last reader of the old one, a transaction ends.
        drop(old);
    }

    /// Keeps a snapshot that was begun after `commits` commits, if it is the newest still and there is no other.
    pub(super) fn offer(&self, commits: u64, taken: Arc<dyn Snapshot>) {
        let mut latest = self.state.write();
        if latest.commits == commits && latest.taken.is_none() {
            latest.taken = Some(taken);
        }
    }
}

/// The records of one commit.
pub(super) struct RecordsSnapshot {
    table: RecordsTable,
    suspicion: Arc<Suspicion>,
}

impl RecordsSnapshot {
    pub(super) fn new(table: RecordsTable, suspicion: &Arc<Suspicion>) -> Self {
        Self {
            table,
            suspicion: Arc::clone(suspicion),
        }
    }

    fn failed(&self, failure: DatabaseFailure) -> MetaError {
        if failure.is_content() {
            self.suspicion.raise();
        }
        MetaError::poisoned(failure)
    }
}

impl Snapshot for RecordsSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Value>, MetaError> {
        let Some(table) = &self.table else {
            return Ok(None);
        };
        let value = table.get(key, Value::copy_from_slice);
        value.map_err(|failure| self.failed(failure))
    }

    fn visit(&self, range: KeyRange<'_>, visit: &mut Visit<'_>) -> Result<(), MetaError> {
        let Some(table) = &self.table else {
            return Ok(());
        };
        if range.is_empty() {
            return Ok(());
        }
        let mut last: Option<Vec<u8>> = None;
        let mut is_disordered = false;
        let visited = table.visit((range.from, range.end), |key, value| {
            // Keys that rise come to an end, whatever tree they are in.
            is_disordered = last.as_deref().is_some_and(|last| key <= last);
            if is_disordered {
                return ControlFlow::Break(());
            }
            let last = last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key);
            visit(key, value)
        });
        visited.map_err(|failure| self.failed(failure))?;
        if is_disordered {
            self.suspicion.raise();
            return Err(MetaError::poisoned("keys of the index are out of order"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Arc<dyn Snapshot> {
        Arc::new(RecordsSnapshot::new(None, &Arc::default()))
    }

    #[test]
    fn a_snapshot_that_was_begun_before_a_commit_ended_is_not_kept() {
        let latest = LatestSnapshot::default();
        let before = latest.commits();
        latest.replace(None);
        latest.offer(before, empty());
        assert!(latest.get().is_none());
        latest.offer(latest.commits(), empty());
        assert!(latest.get().is_some());
    }
}
