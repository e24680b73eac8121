//! The account of all quotas: what each counts, which lies in which, and what they refuse.
//!
//! An inode names one quota. That quota counts it, and so does the quota around that one, up to the outermost. A quota
//! around another one is never lifted: what lies in a lifted quota is handed on to the quota around it.

use std::collections::BTreeMap;

use crate::format::record::{Quota, QuotaState, QuotaUsage};
use crate::format::{Ino, QuotaId};
use crate::fs::error::FsError;

use super::charge::{Change, Charge, Recharge};

/// The limits of a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::fs) struct Limits {
    pub(in crate::fs) max_bytes: Option<u64>,
    pub(in crate::fs) max_files: Option<u64>,
}

/// A limit, and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fs) struct QuotaRoom {
    pub(in crate::fs) limit: u64,
    pub(in crate::fs) left: u64,
}

impl QuotaRoom {
    /// Returns the one of two that has less left; an inner one if both are equal.
    fn tighter(inner: Option<Self>, outer: Option<Self>) -> Option<Self> {
        match (inner, outer) {
            (Some(inner), Some(outer)) if outer.left < inner.left => Some(outer),
            (inner, outer) => inner.or(outer),
        }
    }

    fn of(limit: Option<u64>, used: u64) -> Option<Self> {
        limit.map(|limit| Self {
            limit,
            left: limit.saturating_sub(used),
        })
    }
}

/// All quotas of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::fs) struct Book {
    quotas: BTreeMap<QuotaId, Quota>,
}

impl Book {
    /// Returns a book of recorded quotas.
    pub(in crate::fs) fn of(quotas: BTreeMap<QuotaId, Quota>) -> Self {
        Self { quotas }
    }

    /// Returns all quotas, in the order of their numbers.
    pub(in crate::fs) fn iter(&self) -> impl Iterator<Item = (QuotaId, &Quota)> {
        self.quotas.iter().map(|(id, quota)| (*id, quota))
    }

    pub(in crate::fs) fn len(&self) -> usize {
        self.quotas.len()
    }

    pub(in crate::fs) fn get(&self, id: QuotaId) -> Option<&Quota> {
        self.quotas.get(&id)
    }

    pub(in crate::fs) fn get_mut(&mut self, id: QuotaId) -> Option<&mut Quota> {
        self.quotas.get_mut(&id)
    }

    /// Returns the quota of a directory that has limits.
    pub(in crate::fs) fn rooted_at(&self, root: Ino) -> Option<QuotaId> {
        let mut quotas = self.iter();
        let found = quotas.find(|(_, it)| it.root == root && it.state != QuotaState::Lifted);
        found.map(|(id, _)| id)
    }

    /// Returns the quotas that count what names `id`, from the inside out. Ends also where records form a loop.
    pub(in crate::fs) fn chain(&self, id: QuotaId) -> impl Iterator<Item = (QuotaId, &Quota)> {
        let first = self.quotas.get_key_value(&id);
        let next = move |(_, quota): &(&QuotaId, &Quota)| self.quotas.get_key_value(&quota.outer);
        let chain = std::iter::successors(first, next).take(self.quotas.len());
        chain.map(|(id, quota)| (*id, quota))
    }

    /// Returns the innermost quota with limits that counts what names `id`; [`QuotaId::NONE`] if there is none.
    pub(in crate::fs) fn resolve(&self, id: QuotaId) -> QuotaId {
        let mut chain = self.chain(id);
        let found = chain.find(|(_, quota)| quota.state != QuotaState::Lifted);
        found.map_or(QuotaId::NONE, |(id, _)| id)
    }

    /// Returns the changes that follow from inodes that are charged otherwise than before.
    pub(in crate::fs) fn changes(&self, inodes: &[Recharge]) -> BTreeMap<QuotaId, Change> {
        let mut changes: BTreeMap<QuotaId, Change> = BTreeMap::new();
        for Recharge { before, after } in inodes {
            if let Some(Charge { quota, usage }) = before {
                for (id, _) in self.chain(*quota) {
                    changes.entry(id).or_default().subtract(*usage);
                }
            }
            if let Some(Charge { quota, usage }) = after {
                for (id, _) in self.chain(*quota) {
                    changes.entry(id).or_default().add(*usage);
                }
            }
        }
        changes.retain(|_, change| *change != Change::default());
        changes
    }

    /// Checks that no quota counts more than its limit because of these changes. What counts more already may become less.
    ///
    /// # Errors
    ///
    /// [`FsError::QuotaExceeded`].
    pub(in crate::fs) fn check(&self, changes: &BTreeMap<QuotaId, Change>) -> Result<(), FsError> {
        for (id, change) in changes {
            let Some(quota) = self.get(*id) else { continue };
            let usage = change.applied_to(quota.usage);
            let exceeds = |grows: bool, used: u64, limit: Option<u64>| {
                grows && limit.is_some_and(|limit| used > limit)
            };
            if exceeds(change.bytes > 0, usage.bytes, quota.max_bytes)
                || exceeds(change.files > 0, usage.files, quota.max_files)
            {
                return Err(FsError::QuotaExceeded);
            }
        }
        Ok(())
    }

    /// Returns the quotas that change, as they are then; `None` for one of which nothing is left, not even its directory.
    pub(in crate::fs) fn replacements(
        &self,
        changes: &BTreeMap<QuotaId, Change>,
    ) -> Vec<(QuotaId, Option<Quota>)> {
        let quotas = changes.iter().filter_map(|(id, change)| {
            let quota = *self.get(*id)?;
            let usage = change.applied_to(quota.usage);
            let quota = Quota { usage, ..quota };
            Some((*id, (usage.files > 0).then_some(quota)))
        });
        quotas.collect()
    }

    /// Replaces quotas, and removes those that are `None`.
    pub(in crate::fs) fn put(&mut self, replacements: Vec<(QuotaId, Option<Quota>)>) {
        for (id, quota) in replacements {
            match quota {
                Some(quota) => self.quotas.insert(id, quota),
                None => self.quotas.remove(&id),
            };
        }
    }

    /// Returns the least room for what names `id`: that for bytes and that for inodes.
    pub(in crate::fs) fn room(&self, id: QuotaId) -> (Option<QuotaRoom>, Option<QuotaRoom>) {
        self.chain(id)
            .fold((None, None), |(bytes, files), (_, quota)| {
                let of_bytes = QuotaRoom::of(quota.max_bytes, quota.usage.bytes);
                let of_files = QuotaRoom::of(quota.max_files, quota.usage.files);
                (
                    QuotaRoom::tighter(bytes, of_bytes),
                    QuotaRoom::tighter(files, of_files),
                )
            })
    }

    /// Adds a quota of `root` that counts nothing yet but what the quotas in `inner` count, which lie in it.
    pub(in crate::fs) fn add(
        &mut self,
        id: QuotaId,
        (root, outer): (Ino, QuotaId),
        limits: Limits,
        inner: &[QuotaId],
    ) {
        let quota = Quota {
            root,
            outer,
            state: QuotaState::Counting,
            usage: QuotaUsage::default(),
            max_bytes: limits.max_bytes,
            max_files: limits.max_files,
        };
        self.quotas.insert(id, quota);
        for inner in inner {
            self.move_into(*inner, id);
        }
    }

    /// Lifts the limits of a quota. What lies in it belongs to the quota around it, if there is one, and else to none.
    pub(in crate::fs) fn lift(&mut self, id: QuotaId) {
        let Some(quota) = self.quotas.get_mut(&id) else {
            return;
        };
        quota.state = QuotaState::Lifted;
        (quota.max_bytes, quota.max_files) = (None, None);
        let outer = quota.outer;
        let inner: Vec<QuotaId> = self
            .iter()
            .filter(|(_, quota)| quota.outer == id)
            .map(|(inner, _)| inner)
            .collect();
        for inner in inner {
            self.move_into(inner, outer);
        }
        // Without a quota around it nothing is counted on.
        self.quotas.retain(|_, quota| {
            let is_bereft = quota.outer == QuotaId::NONE || quota.usage.files == 0;
            quota.state != QuotaState::Lifted || !is_bereft
        });
    }

    /// Moves a quota with all that it counts into another one.
    fn move_into(&mut self, id: QuotaId, outer: QuotaId) {
        let Some(quota) = self.quotas.get_mut(&id) else {
            return;
        };
        let (usage, old) = (quota.usage, quota.outer);
        quota.outer = outer;
        let mut changes: BTreeMap<QuotaId, Change> = BTreeMap::new();
        for (around, _) in self.chain(old) {
            changes.entry(around).or_default().subtract(usage);
        }
        for (around, _) in self.chain(outer) {
            changes.entry(around).or_default().add(usage);
        }
        for (around, change) in changes {
            if let Some(quota) = self.quotas.get_mut(&around) {
                quota.usage = change.applied_to(quota.usage);
            }
        }
    }

    /// Returns what differs from an earlier book.
    pub(in crate::fs) fn since(&self, earlier: &Self) -> Vec<(QuotaId, Option<Quota>)> {
        let gone = earlier
            .quotas
            .keys()
            .filter(|id| !self.quotas.contains_key(id));
        let gone = gone.map(|id| (*id, None));
        let changed = self
            .quotas
            .iter()
            .filter(|(id, quota)| earlier.quotas.get(id) != Some(quota));
        gone.chain(changed.map(|(id, quota)| (*id, Some(*quota))))
            .collect()
    }
}

#[cfg(test)]
mod tests;
