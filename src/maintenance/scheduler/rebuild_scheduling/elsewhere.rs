//! Absent members whose shards an order has rebuilt on others. The index remembers them until that is complete, so that the
//! next open of the volume goes on with it. They are not given up.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::MemberIndex;
use crate::transaction::catalog::Catalog;
use crate::transaction::{CommitError, Commits};

/// Absent members whose shards orders have rebuilt on others.
pub(super) struct Elsewhere {
    catalog: Arc<Catalog>,
    commits: Arc<Commits>,
    /// Those that the index remembers; `None` until it was read.
    noted: Mutex<Option<BTreeSet<MemberIndex>>>,
}

impl Elsewhere {
    pub(super) fn new(catalog: Arc<Catalog>, commits: Arc<Commits>) -> Self {
        Self {
            catalog,
            commits,
            noted: Mutex::default(),
        }
    }

    /// Forgets the members that are not `absent` any more: they keep their shards the next time. Returns the others at the
    /// first call, because the work for them was interrupted.
    pub(super) fn look(
        &self,
        absent: &[MemberIndex],
    ) -> Result<BTreeSet<MemberIndex>, CommitError> {
        // One that cannot be read or changed is an error once.
        let known = self.noted.lock().replace(BTreeSet::new());
        let is_first = known.is_none();
        let known = known.map_or_else(|| self.catalog.rebuilt_elsewhere(), Ok)?;
        let is_absent = |member: &MemberIndex| absent.contains(member);
        let (noted, returned): (BTreeSet<_>, BTreeSet<_>) = known.into_iter().partition(is_absent);
        *self.noted.lock() = Some(noted.clone());
        self.catalog.forget_rebuilt_elsewhere(&returned)?;
        Ok(if is_first { noted } else { BTreeSet::new() })
    }

    /// Notes members whose shards are rebuilt on others from now on.
    pub(super) fn begin(&self, members: BTreeSet<MemberIndex>) -> Result<(), CommitError> {
        let noted = self.noted.lock().clone().unwrap_or_default();
        if members.is_subset(&noted) {
            return Ok(());
        }
        self.catalog.note_rebuilt_elsewhere(&members)?;
        self.commits.sync_if_there_is_space()?;
        self.noted.lock().get_or_insert_default().extend(members);
        Ok(())
    }

    /// Forgets all of them, because that is complete.
    pub(super) fn end(&self) -> Result<(), CommitError> {
        let noted = self.noted.lock().clone().unwrap_or_default();
        self.catalog.forget_rebuilt_elsewhere(&noted)?;
        *self.noted.lock() = Some(BTreeSet::new());
        Ok(())
    }
}
