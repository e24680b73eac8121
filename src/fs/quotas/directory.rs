//! Setting, showing and clearing the quotas of directories.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::format::record::{Counter, Quota, QuotaState, QuotaUsage};
use crate::format::superblock::QUOTAS;
use crate::format::{Ino, QuotaId, Record, key};
use crate::fs::edit::Edit;
use crate::fs::error::FsError;
use crate::fs::inodes::{Inodes, read_inode};
use crate::fs::paths;
use crate::transaction::{CommitError, Transactions};

use super::counting::Counting;
use super::{Book, Limits};

/// The number of the first quota; 0 stands for none.
const FIRST_QUOTA: u64 = 1;

/// The bytes that a quota has left when pages that the kernel has accepted could exceed it. The kernel writes the pages
/// of a FUSE mount back before they are more than about a five-hundredth of the memory.
const TIGHT_BYTES: u64 = 64 << 20;

/// A change of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitChange {
    /// It stays as it is; a new quota has none.
    #[default]
    Keep,
    /// There is none any more.
    Remove,
    /// It is this.
    Set(u64),
}

impl LimitChange {
    fn applied_to(self, limit: Option<u64>) -> Option<u64> {
        match self {
            Self::Keep => limit,
            Self::Remove => None,
            Self::Set(limit) => Some(limit),
        }
    }
}

/// The changes of the limits of one quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaLimits {
    /// The most bytes of files.
    pub bytes: LimitChange,
    /// The most inodes, with the directory itself.
    pub files: LimitChange,
}

/// A quota as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaReport {
    /// Its directory.
    pub root: Ino,
    /// The path of that from the root on, without a leading slash, if it is known.
    pub path: Option<Vec<u8>>,
    /// The most bytes, if limited.
    pub max_bytes: Option<u64>,
    /// The most inodes, if limited.
    pub max_files: Option<u64>,
    /// The bytes and inodes that it counts.
    pub usage: QuotaUsage,
    /// True if not everything below the directory is counted yet.
    pub is_counting: bool,
    /// True if that is under way.
    pub is_at_work: bool,
}

/// The quotas of directories.
pub struct DirectoryQuotas {
    inodes: Arc<Inodes>,
    transactions: Arc<Transactions>,
    pub(super) counting: Counting,
}

impl DirectoryQuotas {
    pub(in crate::fs) fn new(inodes: &Arc<Inodes>, transactions: &Arc<Transactions>) -> Self {
        Self {
            inodes: Arc::clone(inodes),
            transactions: Arc::clone(transactions),
            counting: Counting::new(inodes, transactions),
        }
    }

    /// Goes on with counts that a crash or an unmount cut off.
    pub(in crate::fs) fn resume(&self) {
        if !self.inodes.is_read_only() {
            self.counting.start();
        }
    }

    /// Ends counts that are under way. The next mount begins them again.
    pub(in crate::fs) fn stop(&self) {
        self.counting.stop();
    }

    /// Waits until everything is counted, or cannot be for now.
    pub fn wait(&self) {
        self.counting.wait();
    }

    /// Gives a directory limits, or other ones; durable on return. What the directory holds is counted in the background.
    /// Until then the limits hold for what is counted. A quota that counts more than its limit lets nothing grow.
    ///
    /// A quota may lie in another one: what it counts, the outer one counts too.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], [`FsError::NotDirectory`], [`FsError::ReadOnly`], [`FsError::NoSpace`];
    /// [`FsError::StillCounting`] for a new quota while another one counts; [`FsError::Storage`] from below.
    pub fn set(&self, directory: Ino, limits: QuotaLimits) -> Result<(), FsError> {
        self.inodes.check_writable()?;
        self.inodes
            .with_room(0, || Ok(self.transactions.growth().check_growth()?))?;
        // Before the first record that other builds would misread.
        let epochs = self.transactions.members().epochs();
        epochs.use_features(QUOTAS).map_err(CommitError::from)?;
        self.set_once(directory, limits)?;
        self.counting.start();
        Ok(self.transactions.sync()?)
    }

    pub(super) fn set_once(&self, directory: Ino, limits: QuotaLimits) -> Result<(), FsError> {
        let _rename = self.inodes.locks().rename();
        let _lock = self.inodes.locks().exclusive(&[directory]);
        let mut inode = self.inodes.directory(directory)?;
        if inode.links == 0 {
            return Err(FsError::NotFound);
        }
        let quotas = self.inodes.quotas();
        let book = quotas.book();
        let mut edit = Edit::default();
        if let Some(id) = book.rooted_at(directory) {
            return self.inodes.change_quotas(edit, |book| {
                if let Some(quota) = book.get_mut(id) {
                    quota.max_bytes = limits.bytes.applied_to(quota.max_bytes);
                    quota.max_files = limits.files.applied_to(quota.max_files);
                }
            });
        }
        // Two counts at once could each leave to the other what lies in both.
        if quotas.is_counting() {
            return Err(FsError::StillCounting);
        }
        let outer = if directory == Ino::ROOT {
            QuotaId::NONE
        } else {
            quotas.below(inode.parent)?
        };
        let inner = self.lying_in(directory, &book)?;
        let number = match self.transactions.get(&key::counter(key::NEXT_QUOTA))? {
            Some(value) => Counter::decode(&value)?.0,
            None => FIRST_QUOTA,
        };
        let id = QuotaId(number);
        edit.put_next_quota(number + 1);
        inode.quota = id;
        edit.put_recharged(directory, &inode);
        let limits = Limits {
            max_bytes: limits.bytes.applied_to(None),
            max_files: limits.files.applied_to(None),
        };
        self.inodes.change_quotas(edit, |book| {
            book.add(id, (directory, outer), limits, &inner);
        })
    }

    /// Returns the outermost quotas that lie in a directory.
    fn lying_in(&self, directory: Ino, book: &Book) -> Result<Vec<QuotaId>, FsError> {
        let mut inner = Vec::new();
        let in_force = |quota: &Quota| quota.state != QuotaState::Lifted;
        for (id, quota) in book.iter().filter(|(_, quota)| in_force(quota)) {
            let (mut is_inner, mut is_outermost) = (false, true);
            let visited = self.inodes.quotas().visit_upward(quota.root, |ino| {
                if ino == directory {
                    is_inner = true;
                    return ControlFlow::Break(());
                }
                is_outermost &= ino == quota.root || book.rooted_at(ino).is_none();
                ControlFlow::Continue(())
            });
            match visited {
                // The directory of the quota was removed.
                Err(FsError::NotFound) => {}
                visited => visited?,
            }
            if is_inner && is_outermost {
                inner.push(id);
            }
        }
        Ok(inner)
    }

    /// Returns whether any directory has a quota.
    #[must_use]
    pub fn any(&self) -> bool {
        !self.inodes.quotas().is_empty()
    }

    /// Returns whether a quota has little left for an inode, so that it matters when writes are charged.
    #[must_use]
    pub fn is_tight(&self, ino: Ino) -> bool {
        let quotas = self.inodes.quotas();
        if quotas.is_empty() {
            return false;
        }
        // One that cannot be read now fails where it is used.
        let inode = read_inode(&self.transactions, ino).ok().flatten();
        let left = inode.and_then(|inode| quotas.bytes_left(&inode));
        left.is_some_and(|left| left < TIGHT_BYTES)
    }

    /// Takes the quota of a directory away; durable on return. A quota around it goes on to count what it counted.
    ///
    /// # Errors
    ///
    /// [`FsError::NoQuota`] if the directory has none; [`FsError::ReadOnly`]; [`FsError::Storage`] from below.
    pub fn clear(&self, directory: Ino) -> Result<(), FsError> {
        self.inodes.check_writable()?;
        {
            let _rename = self.inodes.locks().rename();
            let book = self.inodes.quotas().book();
            let id = book.rooted_at(directory).ok_or(FsError::NoQuota)?;
            self.inodes
                .change_quotas(Edit::default(), |book| book.lift(id))?;
        }
        Ok(self.transactions.sync()?)
    }

    /// Returns all quotas, or with a directory those that count it, from the inside out.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], [`FsError::NotDirectory`]; [`FsError::Storage`] if the index cannot be read.
    pub fn list(&self, directory: Option<Ino>) -> Result<Vec<QuotaReport>, FsError> {
        let quotas = self.inodes.quotas();
        let below = match directory {
            Some(directory) => {
                let _rename = self.inodes.locks().rename();
                self.inodes.directory(directory)?;
                Some(quotas.below(directory)?)
            }
            None => None,
        };
        // Asked before the book is read: a count that ends in between is complete there.
        let is_at_work = self.counting.is_running();
        let book = quotas.book();
        let found: Vec<Quota> = match below {
            Some(id) => book.chain(id).map(|(_, quota)| *quota).collect(),
            None => book.iter().map(|(_, quota)| *quota).collect(),
        };
        let mut shown = Vec::new();
        for quota in found {
            let root = read_inode(&self.transactions, quota.root)?;
            // The quota of a removed directory goes with the last file that is open in it.
            if quota.state != QuotaState::Lifted && root.is_some_and(|root| root.links > 0) {
                shown.push(quota);
            }
        }
        let roots: BTreeSet<Ino> = shown.iter().map(|quota| quota.root).collect();
        let paths = paths::of_directories(&self.transactions, &roots)?;
        let reports = shown.iter().map(|quota| QuotaReport {
            root: quota.root,
            path: paths.get(&quota.root).cloned(),
            max_bytes: quota.max_bytes,
            max_files: quota.max_files,
            usage: quota.usage,
            is_counting: quota.state == QuotaState::Counting,
            is_at_work: is_at_work && quota.state == QuotaState::Counting,
        });
        Ok(reports.collect())
    }
}

#[cfg(test)]
mod tests;
