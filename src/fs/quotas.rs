//! Quotas of directories: limits for the bytes and inodes below them.
//!
//! Every inode below a directory with a quota names that quota, and inherits it from the directory in which it is made.
//! So no call looks at the directories above an inode. Names do not cross the border of a quota: renames and links that
//! would fail with [`FsError::CrossesQuota`], as on XFS, and `mv` copies then.
//!
//! # Invariants
//!
//! - A quota counts all inodes that name it, or a quota in it. Its record changes in the same batch as these inodes:
//!   [`Quotas::apply`] sees every change of an inode. So the account is right after any crash.
//! - No change that makes a quota count more takes it beyond its limit, except for those that
//!   [`Quotas::apply_in_any_case`] makes: they put on record what has happened already.
//! - The number of a quota is never used again. Inodes that still name a quota which is gone are charged to none.
//!
//! A volume without quotas pays for one comparison in each change of an inode.

mod book;
mod charge;
mod counting;
mod directory;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::format::record::{Inode, Quota, QuotaState};
use crate::format::{Ino, QuotaId, Record, key};
use crate::transaction::{CommitError, Transactions};

use super::edit::Edit;
use super::error::{FsError, corrupt};
use super::limits::DEPTH_MAX;
use super::list_lens::ListLens;
use super::stored_inode::read_inode;
use super::types::SpaceReport;

pub(super) use book::{Book, Limits};
use charge::Recharge;
pub(super) use charge::{Change, Charge};
pub use directory::{DirectoryQuotas, LimitChange, QuotaLimits, QuotaReport};

/// The place of an inode as a quota sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// It names the quota.
    Counted,
    /// It names what inodes in the quota name before they are counted.
    Uncounted,
    /// It names another quota.
    Elsewhere,
}

/// The quotas of an open volume.
pub(super) struct Quotas {
    transactions: Arc<Transactions>,
    /// Held while a change that it counts is applied, so that records follow one another as the changes do.
    book: Mutex<Book>,
    /// The number of quotas, readable without a lock.
    count: AtomicUsize,
    /// Set while any quota counts what its directory held before.
    is_counting: AtomicBool,
    /// The inodes that were renamed or linked during a count; none while no thread counts.
    moved: Mutex<Option<Moved>>,
}

/// Inodes that got names in the directories of a quota while these were counted, and may have escaped the count.
struct Moved {
    quota: QuotaId,
    inos: BTreeSet<Ino>,
}

/// Has renames and links into a quota noted until it is dropped.
struct MovedNotes<'a>(&'a Mutex<Option<Moved>>);

impl MovedNotes<'_> {
    /// Returns the inodes that were noted, and forgets them.
    fn take(&self) -> BTreeSet<Ino> {
        let mut moved = self.0.lock();
        let inos = moved.as_mut().map(|moved| std::mem::take(&mut moved.inos));
        inos.unwrap_or_default()
    }
}

impl Drop for MovedNotes<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

impl Quotas {
    /// Returns no quotas. [`Quotas::load`] reads those of the volume.
    pub(super) fn new(transactions: &Arc<Transactions>) -> Self {
        Self {
            transactions: Arc::clone(transactions),
            book: Mutex::default(),
            count: AtomicUsize::new(0),
            is_counting: AtomicBool::new(false),
            moved: Mutex::default(),
        }
    }

    /// Reads the quotas of the volume. Call it before anything is changed.
    pub(super) fn load(&self) -> Result<(), FsError> {
        self.publish(self.book.lock(), Book::of(read_all(&self.transactions)?));
        Ok(())
    }

    fn publish(&self, mut book: MutexGuard<'_, Book>, new: Book) {
        *book = new;
        self.note(&book);
    }

    /// Notes what can be read without a lock.
    fn note(&self, book: &Book) {
        let is_counting = |(_, quota): (_, &Quota)| quota.state == QuotaState::Counting;
        self.count.store(book.len(), Ordering::Release);
        self.is_counting
            .store(book.iter().any(is_counting), Ordering::Release);
    }

    /// Returns whether there are none, so that nothing is to be counted.
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Returns whether any quota counts what its directory held before. Directories may then name another quota than the
    /// one they lie in, and callers that move names hold the lock of renames.
    pub(super) fn is_counting(&self) -> bool {
        self.is_counting.load(Ordering::Acquire)
    }

    /// Applies an edit, and charges the quotas for it. The caller holds the locks of the inodes that it changes.
    ///
    /// # Errors
    ///
    /// [`FsError::QuotaExceeded`] if a quota would count more than its limit.
    pub(super) fn apply(&self, edit: Edit, list_lens: &ListLens) -> Result<(), FsError> {
        self.apply_checked(edit, list_lens, Book::check)
    }

    /// Applies an edit that no quota may refuse.
    pub(super) fn apply_in_any_case(
        &self,
        edit: Edit,
        list_lens: &ListLens,
    ) -> Result<(), FsError> {
        self.apply_checked(edit, list_lens, |_, _| Ok(()))
    }

    fn apply_checked(
        &self,
        mut edit: Edit,
        list_lens: &ListLens,
        check: impl Fn(&Book, &BTreeMap<QuotaId, Change>) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        // Inodes may go on naming quotas that are gone. A new quota has a new number, and counts an inode under its lock.
        if edit.charges().is_empty() || self.is_empty() {
            return Ok(edit.apply(&self.transactions, list_lens)?);
        }
        let mut book = self.book.lock();
        let changes = book.changes(&self.charges(&edit)?);
        check(&book, &changes)?;
        let replacements = book.replacements(&changes);
        edit.put_quotas(&replacements);
        edit.apply(&self.transactions, list_lens)?;
        let is_fewer = replacements.iter().any(|(_, quota)| quota.is_none());
        book.put(replacements);
        if is_fewer {
            self.note(&book);
        }
        Ok(())
    }

    /// Returns how the inodes of an edit are charged before it and after it.
    fn charges(&self, edit: &Edit) -> Result<Vec<Recharge>, FsError> {
        let charges = edit.charges().iter().map(|(ino, after)| {
            let before = read_inode(&self.transactions, *ino)?;
            let before = before.as_ref().map(Charge::of);
            let after = *after;
            Ok(Recharge { before, after })
        });
        charges.collect()
    }

    /// Applies an edit together with a change of the quotas themselves.
    pub(super) fn change(
        &self,
        mut edit: Edit,
        list_lens: &ListLens,
        change: impl FnOnce(&mut Book),
    ) -> Result<(), FsError> {
        let book = self.book.lock();
        let mut new = book.clone();
        change(&mut new);
        let changes = new.changes(&self.charges(&edit)?);
        new.put(new.replacements(&changes));
        edit.put_quotas(&new.since(&book));
        edit.apply(&self.transactions, list_lens)?;
        self.publish(book, new);
        Ok(())
    }

    /// Returns all quotas as they are now.
    fn book(&self) -> Book {
        self.book.lock().clone()
    }

    /// Returns the quota in force for an inode, by what it names. An inode that is made in a directory inherits that of
    /// the directory.
    pub(super) fn resolve(&self, inode: &Inode) -> QuotaId {
        if inode.quota == QuotaId::NONE || self.is_empty() {
            return QuotaId::NONE;
        }
        self.book.lock().resolve(inode.quota)
    }

    /// Returns the quota in force below a directory. While quotas are counting, the caller holds the lock of renames.
    pub(super) fn below(&self, ino: Ino) -> Result<QuotaId, FsError> {
        if self.is_empty() {
            return Ok(QuotaId::NONE);
        }
        let Some(inode) = read_inode(&self.transactions, ino)? else {
            return Err(FsError::NotFound);
        };
        if !self.is_counting() {
            return Ok(self.resolve(&inode));
        }
        let book = self.book();
        let mut found = QuotaId::NONE;
        self.visit_upward(ino, |ino| match book.rooted_at(ino) {
            Some(id) => {
                found = id;
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        })?;
        Ok(found)
    }

    /// Calls `visit` with a directory and those around it, from the inside out.
    fn visit_upward(
        &self,
        mut ino: Ino,
        mut visit: impl FnMut(Ino) -> ControlFlow<()>,
    ) -> Result<(), FsError> {
        for _ in 0..DEPTH_MAX {
            if visit(ino).is_break() || ino == Ino::ROOT {
                return Ok(());
            }
            let Some(inode) = read_inode(&self.transactions, ino)? else {
                return Err(FsError::NotFound);
            };
            ino = inode.parent;
        }
        Err(corrupt(ino, "it lies too deep"))
    }

    /// Checks that names may move from one directory to another.
    ///
    /// # Errors
    ///
    /// [`FsError::CrossesQuota`] if not both lie in the same quota.
    pub(super) fn check_same(&self, from: Ino, to: Ino) -> Result<(), FsError> {
        if from == to || self.is_empty() || self.below(from)? == self.below(to)? {
            return Ok(());
        }
        Err(FsError::CrossesQuota)
    }

    /// Checks that an inode may get a name in a directory, and returns the quota that it is to name.
    ///
    /// An inode without a name lies in no directory, so it moves to the quota of its first one.
    ///
    /// # Errors
    ///
    /// [`FsError::CrossesQuota`] if it has a name, and lies in another quota.
    pub(super) fn check_link(&self, inode: &Inode, parent: Ino) -> Result<QuotaId, FsError> {
        if self.is_empty() {
            return Ok(inode.quota);
        }
        let (named, below) = (self.resolve(inode), self.below(parent)?);
        if named == below {
            return Ok(inode.quota);
        }
        if inode.links == 0 {
            return Ok(below);
        }
        // It may lie in the quota, and not be counted yet.
        if self.counts(below) && self.position(inode, below) == Position::Uncounted {
            return Ok(inode.quota);
        }
        Err(FsError::CrossesQuota)
    }

    /// Returns whether a quota counts what its directory held before.
    fn counts(&self, id: QuotaId) -> bool {
        let book = self.book.lock();
        let quota = book.get(id);
        quota.is_some_and(|quota| quota.state == QuotaState::Counting)
    }

    /// Returns where an inode is for a quota in which it lies, or may lie.
    fn position(&self, inode: &Inode, id: QuotaId) -> Position {
        let book = self.book.lock();
        let named = book.resolve(inode.quota);
        match book.get(id) {
            Some(_) if named == id => Position::Counted,
            Some(quota) if named == quota.outer => Position::Uncounted,
            _ => Position::Elsewhere,
        }
    }

    /// Returns the quota in which a directory lies if it counts what that held before, for [`Self::note_moved`]. The caller
    /// holds the lock of renames while quotas are counting.
    pub(super) fn counting_around(&self, parent: Ino) -> Result<Option<QuotaId>, FsError> {
        if !self.is_counting() {
            return Ok(None);
        }
        let below = self.below(parent)?;
        Ok(Some(below).filter(|below| self.counts(*below)))
    }

    /// Notes that inodes got names in a directory in which `quota` counts. The caller holds the lock of renames since it
    /// asked for that quota.
    // After the change: a note for a name that never came would charge an inode that lies elsewhere. A count that began
    // before the change misses no note, because it ends under the lock of renames. One that begins between change and
    // note finds the names, because it lists afterwards.
    pub(super) fn note_moved(&self, quota: Option<QuotaId>, inos: impl IntoIterator<Item = Ino>) {
        let Some(quota) = quota else { return };
        if let Some(moved) = &mut *self.moved.lock()
            && moved.quota == quota
        {
            moved.inos.extend(inos);
        }
    }

    /// Begins to note the inodes that get names where a quota counts. One count runs at a time.
    fn note_moves(&self, quota: QuotaId) -> MovedNotes<'_> {
        let inos = BTreeSet::new();
        *self.moved.lock() = Some(Moved { quota, inos });
        MovedNotes(&self.moved)
    }

    /// Returns the bytes that an inode may still grow by, if a quota limits that.
    pub(super) fn bytes_left(&self, inode: &Inode) -> Option<u64> {
        if inode.quota == QuotaId::NONE || self.is_empty() {
            return None;
        }
        let (bytes, _) = self.book.lock().room(inode.quota);
        bytes.map(|room| room.left)
    }

    /// Narrows a report on the space of the volume to what the quotas of an inode leave.
    pub(super) fn narrow(&self, report: &mut SpaceReport, ino: Ino) -> Result<(), FsError> {
        if self.is_empty() {
            return Ok(());
        }
        let Some(inode) = read_inode(&self.transactions, ino)? else {
            return Ok(());
        };
        let (bytes, files) = self.book.lock().room(inode.quota);
        if let Some(room) = bytes {
            let block = u64::from(report.block_size);
            let (limit, left) = (room.limit / block, room.left / block);
            let used = limit - left;
            report.blocks_available = report.blocks_available.min(left);
            report.blocks_free = report.blocks_free.min(left);
            report.blocks = limit.min(used.saturating_add(report.blocks_free));
        }
        if let Some(room) = files {
            report.files = room.limit;
            report.files_free = room.left;
        }
        Ok(())
    }
}

/// Reads all quotas of a volume. A record that cannot be decoded limits nothing: `check` reports it.
pub(super) fn read_all(transactions: &Transactions) -> Result<BTreeMap<QuotaId, Quota>, FsError> {
    let (from, end) = key::quotas();
    let mut quotas = BTreeMap::new();
    transactions.visit(&from, &end, |key, value| {
        match (key::parse_quota(key), Quota::decode(value)) {
            (Ok(id), Ok(quota)) if id != QuotaId::NONE => {
                quotas.insert(id, quota);
            }
            _ => tracing::warn!(
                "a quota is damaged, and limits nothing: `cauchyfs check` reports it"
            ),
        }
        Ok::<_, CommitError>(ControlFlow::Continue(()))
    })?;
    Ok(quotas)
}
