//! One atomic change of the index, in the terms of a filesystem.

use std::collections::BTreeMap;

use crate::format::record::{
    Backref, Counter, Dirent, Extent, Inode, Marker, Position, Quota, Xattr,
};
use crate::format::{Cookie, Ino, QuotaId, Record, StripeId, key};
use crate::metadata::Batch;
use crate::transaction::extent_cache::RunChanges;
use crate::transaction::{CommitError, Transactions};

use super::list_lens::ListLens;
use super::quotas::Charge;
use super::run::Run;

/// Changes that become visible, and durable, all at once or not at all.
#[derive(Default)]
pub(super) struct Edit {
    batch: Batch,
    /// The changes of extents among them.
    runs: RunChanges,
    /// The change of the bytes in unwritten extents, of each inode that has one.
    unwritten: BTreeMap<Ino, i64>,
    /// The inodes whose attributes change, some perhaps more than once.
    xattr_inodes: Vec<Ino>,
    /// The inodes among them that name a quota, or did, and how they are charged then; `None` for one that is gone.
    charges: BTreeMap<Ino, Option<Charge>>,
}

impl Edit {
    /// Applies all changes at once, and forgets the lengths of lists that they change. The caller holds the locks of the
    /// inodes that they concern.
    pub(super) fn apply(
        self,
        transactions: &Transactions,
        list_lens: &ListLens,
    ) -> Result<(), CommitError> {
        for ino in self.xattr_inodes {
            list_lens.forget(ino);
        }
        transactions.apply_with_extents(self.batch, &self.runs)?;
        let growth = self.unwritten.values().sum();
        transactions.unwritten_room().note_growth(growth);
        Ok(())
    }

    /// Returns the changes as the layer below takes them.
    #[cfg(test)]
    pub(super) fn into_batch(self) -> Batch {
        self.batch
    }

    /// Puts the record of an inode that names the same quota as before, or is new. Call it after the changes of its
    /// extents.
    pub(super) fn put_inode(&mut self, ino: Ino, inode: &Inode) {
        if self.unwritten.contains_key(&ino) {
            self.mark_unwritten(ino, inode.unwritten_bytes > 0);
        }
        if inode.quota == QuotaId::NONE && !self.charges.contains_key(&ino) {
            self.batch.put(key::inode(ino), inode.encode());
        } else {
            self.put_recharged(ino, inode);
        }
    }

    /// Puts the record of an inode that may name another quota than before.
    pub(super) fn put_recharged(&mut self, ino: Ino, inode: &Inode) {
        self.charges.insert(ino, Some(Charge::of(inode)));
        self.batch.put(key::inode(ino), inode.encode());
    }

    /// Deletes an inode, whose record was `inode`.
    pub(super) fn delete_inode(&mut self, ino: Ino, inode: &Inode) {
        if inode.quota != QuotaId::NONE {
            self.charges.insert(ino, None);
        }
        self.batch.delete(key::inode(ino));
    }

    /// Returns how inodes that concern quotas are charged after the changes.
    pub(super) fn charges(&self) -> &BTreeMap<Ino, Option<Charge>> {
        &self.charges
    }

    /// Puts quotas, and deletes those that are `None`.
    pub(super) fn put_quotas(&mut self, quotas: &[(QuotaId, Option<Quota>)]) {
        for (id, quota) in quotas {
            match quota {
                Some(quota) => self.batch.put(key::quota(*id), quota.encode()),
                None => self.batch.delete(key::quota(*id)),
            }
        }
    }

    /// Notes that all numbers of quotas below `next` may have been used.
    pub(super) fn put_next_quota(&mut self, next: u64) {
        let key = key::counter(key::NEXT_QUOTA);
        self.batch.put(key, Counter(next).encode());
    }

    /// Puts both records of a directory entry.
    pub(super) fn put_entry(&mut self, parent: Ino, name: &[u8], entry: &Dirent) {
        let position = Position {
            ino: entry.ino,
            kind: entry.kind,
            name: name.to_vec(),
        };
        self.batch.put(key::dirent(parent, name), entry.encode());
        self.batch
            .put(key::position(parent, entry.cookie), position.encode());
    }

    /// Deletes both records of a directory entry.
    pub(super) fn delete_entry(&mut self, parent: Ino, name: &[u8], cookie: Cookie) {
        self.batch.delete(key::dirent(parent, name));
        self.batch.delete(key::position(parent, cookie));
    }

    /// Deletes an entry by name alone. Its position may stand for another name.
    pub(super) fn delete_name(&mut self, parent: Ino, name: &[u8]) {
        self.batch.delete(key::dirent(parent, name));
    }

    /// Deletes a place in a listing that stands for no name.
    pub(super) fn delete_position(&mut self, parent: Ino, cookie: Cookie) {
        self.batch.delete(key::position(parent, cookie));
    }

    pub(super) fn put_xattr(&mut self, ino: Ino, name: &[u8], value: Vec<u8>) {
        self.xattr_inodes.push(ino);
        self.batch.put(key::xattr(ino, name), Xattr(value).encode());
    }

    pub(super) fn delete_xattr(&mut self, ino: Ino, name: &[u8]) {
        self.xattr_inodes.push(ino);
        self.batch.delete(key::xattr(ino, name));
    }

    /// Marks an inode whose removal is due, or the removal of its extents behind its end. The next mount does it at the
    /// latest.
    pub(super) fn put_orphan(&mut self, ino: Ino) {
        self.batch.put(key::orphan(ino), Marker.encode());
    }

    pub(super) fn delete_orphan(&mut self, ino: Ino) {
        self.batch.delete(key::orphan(ino));
    }

    /// Marks an inode as one with unwritten extents, or takes the mark away.
    pub(super) fn mark_unwritten(&mut self, ino: Ino, has_some: bool) {
        if has_some {
            self.batch.put(key::unwritten(ino), Marker.encode());
        } else {
            self.batch.delete(key::unwritten(ino));
        }
    }

    fn note_unwritten(&mut self, ino: Ino, run: &Run, sign: i64) {
        if run.is_unwritten() {
            // Lengths of runs are below 2³².
            let len = i64::try_from(run.len).unwrap_or(i64::MAX);
            *self.unwritten.entry(ino).or_default() += sign * len;
        }
    }

    /// Puts an extent and the way back to it, if it names a stripe.
    pub(super) fn put_run(&mut self, ino: Ino, run: &Run) {
        let extent = Extent {
            len: run.len,
            stripe: run.stripe,
            stripe_offset: run.stripe_offset,
        };
        let backref = Backref {
            len: run.len,
            stripe_offset: run.stripe_offset,
        };
        self.runs.add(ino, *run);
        self.batch.put(key::extent(ino, run.end()), extent.encode());
        self.note_unwritten(ino, run, 1);
        if run.is_in_stripe() {
            self.batch
                .put(key::backref(run.stripe, ino, run.end()), backref.encode());
        }
    }

    /// Deletes an extent and the way back to it.
    pub(super) fn delete_run(&mut self, ino: Ino, run: &Run) {
        self.runs.remove(ino, *run);
        self.batch.delete(key::extent(ino, run.end()));
        self.note_unwritten(ino, run, -1);
        if run.is_in_stripe() {
            self.batch.delete(key::backref(run.stripe, ino, run.end()));
        }
    }

    /// Deletes a way back that leads to no extent.
    pub(super) fn delete_backref(&mut self, stripe: StripeId, ino: Ino, end: u64) {
        self.batch.delete(key::backref(stripe, ino, end));
    }

    /// Notes that bytes of a stripe are no longer needed.
    pub(super) fn put_perhaps_dead(&mut self, stripe: StripeId) {
        if Extent::is_stripe(stripe) {
            self.batch.put(key::perhaps_dead(stripe), Marker.encode());
        }
    }
}
