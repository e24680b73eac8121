//! The ordered store that the journal stands in front of.
//!
//! [`Index`] asks for no more than any ordered store with snapshots and atomic commits offers, so that a database
//! server could implement it. [`RedbIndex`](super::redb_index::RedbIndex) is the implementation on the members; what
//! only its copies need is in [`IndexReplicas`](super::replicas::IndexReplicas).

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use super::batch::Value;
use super::error::MetaError;
use crate::format::Lsn;
use crate::format::journal::{JournalGeneration, StripeData};
use crate::format::key::Key;

/// The position that an index has reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// The last journal record whose changes it holds.
    pub(super) lsn: Lsn,
    /// The journal generation that the records after that one belong to.
    pub(super) generation: JournalGeneration,
}

/// The changes that an index takes in at once.
pub(super) struct Commit<'a> {
    /// Changes in order of key; `None` is a deletion.
    pub(super) changes: Box<dyn Iterator<Item = (&'a Key, Option<&'a Value>)> + 'a>,
    /// The position of the index with them.
    pub(super) position: Position,
    /// Unflushed stripe data to keep until a commit brings others; `None` keeps the present ones.
    pub(super) unflushed: Option<&'a [StripeData]>,
}

/// An ordered key-value store that is changed by whole commits.
///
/// # Errors
///
/// Every method fails with [`MetaError::Poisoned`] if the store can no longer be trusted, and then
/// keeps failing.
pub(super) trait Index: Send + Sync {
    /// Returns a snapshot of the last commit, which later commits do not change, if one is in memory. Never waits
    /// for a member or a server.
    fn snapshot(&self) -> Option<Arc<dyn Snapshot>>;

    /// Takes the snapshot that [`Index::snapshot`] returns, if there is none. It lasts until the next commit, and
    /// longer if that can take another.
    fn take_snapshot(&self) -> Result<(), MetaError>;

    /// Takes the store for writing, after everything in it was found readable.
    fn begin(&self) -> Result<(), MetaError>;

    /// Makes a commit durable, all of it or nothing.
    ///
    /// # Errors
    ///
    /// [`MetaError::NoSpace`] if it does not fit. Nothing is lost then; another try may succeed.
    /// Snapshots taken before may fail to read.
    fn commit(&self, commit: &mut Commit<'_>) -> Result<(), MetaError>;

    /// Prepares the second try of a read that failed: waits for a commit that is being made. If a new snapshot
    /// taken after this fails as well, the failure is final.
    fn prepare_retry(&self) {}

    /// Returns a number that rises when the store goes on with other copies: what was read before may differ from
    /// what they hold.
    fn source(&self) -> u64 {
        0
    }

    /// Returns the position given with the last commit.
    fn position(&self) -> Position;

    /// Returns the unflushed stripe data given with the last commit, of stripes of at most `stripe_bytes`.
    fn unflushed(&self, stripe_bytes: u32) -> Result<Vec<StripeData>, MetaError>;

    /// Gives the space that is kept in reserve to the next commits. Returns how many bytes that is.
    fn release_reserve(&self) -> u64 {
        0
    }

    /// Frees what it holds open. Every later call fails.
    ///
    /// # Errors
    ///
    /// [`MetaError::Poisoned`] if its content keeps it from being closed in order. It is closed nevertheless.
    fn close(&self) -> Result<(), MetaError>;
}

/// A state of an [`Index`] that no later commit changes.
pub(super) trait Snapshot: Send + Sync {
    /// Returns a key's value.
    fn get(&self, key: &[u8]) -> Result<Option<Value>, MetaError>;

    /// Calls `visit` with every key within `range` and its value, in order of key, until it breaks.
    fn visit(&self, range: KeyRange<'_>, visit: &mut Visit<'_>) -> Result<(), MetaError>;

    /// Returns the first `limit` keys within `range` and their values, in order of key.
    fn range(&self, range: KeyRange<'_>, limit: usize) -> Result<Vec<(Key, Value)>, MetaError> {
        let mut found = Vec::new();
        if limit > 0 {
            self.visit(range, &mut |key, value| {
                found.push((Key::copy_from_slice(key), Value::copy_from_slice(value)));
                if found.len() < limit {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
        }
        Ok(found)
    }
}

/// The visitor of keys and their values, one after the other, until it breaks.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// A range of keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyRange<'a> {
    /// The bound at which it starts.
    pub(super) from: Bound<&'a [u8]>,
    /// The bound at which it ends.
    pub(super) end: Bound<&'a [u8]>,
}

impl KeyRange<'_> {
    /// Returns whether no key is in it; ordered maps panic on such a range.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        match (self.from, self.end) {
            (Bound::Included(from), Bound::Included(end)) => from > end,
            (
                Bound::Included(from) | Bound::Excluded(from),
                Bound::Included(end) | Bound::Excluded(end),
            ) => from >= end,
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        }
    }
}
