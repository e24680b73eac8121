//! Times of last access.

use std::sync::Arc;

use crate::format::Ino;
use crate::format::record::Inode;
use crate::transaction::Transactions;

use super::edit::Edit;
use super::error::FsError;
use super::inodes::Inodes;
use super::types::AtimePolicy;

/// The age, in seconds, at which a time of last access is renewed although nothing has changed since.
const RELATIME_SECONDS: i64 = 24 * 60 * 60;

/// Records when inodes are read, as often as the policy demands.
pub(super) struct AccessTimes {
    inodes: Arc<Inodes>,
    transactions: Arc<Transactions>,
    policy: AtimePolicy,
}

impl AccessTimes {
    /// Returns a recorder that follows `policy`.
    pub(super) fn new(
        inodes: &Arc<Inodes>,
        transactions: &Arc<Transactions>,
        policy: AtimePolicy,
    ) -> Self {
        Self {
            inodes: Arc::clone(inodes),
            transactions: Arc::clone(transactions),
            policy,
        }
    }

    /// Records that an inode, whose record was `inode` just now, was read. A failure is logged and nothing else,
    /// because a volume that takes no more changes stays readable.
    pub(super) fn note(&self, ino: Ino, inode: &Inode) {
        if self.is_due(inode)
            && let Err(error) = self.renew(ino)
        {
            tracing::debug!("the time of access of inode {} stays: {error}", ino.0);
        }
    }

    fn renew(&self, ino: Ino) -> Result<(), FsError> {
        // Every record is rewritten as a whole: a full volume has no room for that.
        self.transactions.growth().check_growth()?;
        let _lock = self.inodes.locks().exclusive(&[ino]);
        let mut inode = match self.inodes.get(ino) {
            // It was read while it was being removed.
            Err(FsError::NotFound) => return Ok(()),
            other => other?,
        };
        if self.is_due(&inode) {
            inode.atime = self.inodes.now();
            let mut edit = Edit::default();
            edit.put_inode(ino, &inode);
            self.inodes.apply(edit)?;
        }
        Ok(())
    }

    fn is_due(&self, inode: &Inode) -> bool {
        if self.inodes.is_read_only() {
            return false;
        }
        match self.policy {
            AtimePolicy::NoAtime => false,
            AtimePolicy::Strict => true,
            AtimePolicy::Relatime => {
                let age = self
                    .inodes
                    .now()
                    .seconds
                    .saturating_sub(inode.atime.seconds);
                inode.atime <= inode.mtime || inode.atime <= inode.ctime || age >= RELATIME_SECONDS
            }
        }
    }
}
