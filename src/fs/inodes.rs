//! The records of inodes: reading them, and changing them in atomic batches.

use std::sync::Arc;

use crate::format::record::{FileKind, Inode, Timestamp};
use crate::format::{BLOCK_SIZE, Ino};
use crate::maintenance::Room;
use crate::transaction::Transactions;

use super::edit::Edit;
use super::error::FsError;
use super::interlock::{Admission, Interlock};
use super::list_lens::ListLens;
use super::locks::Locks;
use super::quotas::{Book, Quotas};
use super::types::Clock;

pub(super) use super::stored_inode::read_inode;

/// Times that making room is tried for one call before it fails for lack of space.
const ROOM_ATTEMPTS: usize = 2;

/// The table of inodes, and the locks that order changes of them.
pub(super) struct Inodes {
    transactions: Arc<Transactions>,
    room: Arc<Room>,
    locks: Arc<Locks>,
    clock: Clock,
    list_lens: ListLens,
    quotas: Quotas,
    interlock: Option<Arc<Interlock>>,
    read_only: bool,
}

impl Inodes {
    /// Returns the table of a volume. With `read_only`, nothing may change.
    pub(super) fn new(
        transactions: &Arc<Transactions>,
        room: &Arc<Room>,
        clock: Clock,
        interlock: Option<Arc<Interlock>>,
        read_only: bool,
    ) -> Self {
        if let Some(interlock) = &interlock {
            interlock.begin(clock());
        }
        Self {
            transactions: Arc::clone(transactions),
            room: Arc::clone(room),
            locks: Arc::new(Locks::new()),
            clock,
            list_lens: ListLens::default(),
            quotas: Quotas::new(transactions),
            interlock,
            read_only,
        }
    }

    /// Returns the limit on removals, if there is one.
    pub(super) fn interlock(&self) -> Option<&Arc<Interlock>> {
        self.interlock.as_ref()
    }

    /// Admits the removal of a file that is about to lose its last name. It takes a leaf lock, and waits for nothing else. The
    /// caller says when it is done.
    ///
    /// # Errors
    ///
    /// [`FsError::Interlocked`] if too many files were removed within an hour. It goes through [`Self::recorded`] once the
    /// locks of the inodes are free.
    pub(super) fn admit_removal(
        &self,
        inode: &Inode,
        now: Timestamp,
    ) -> Result<Admission<'_>, FsError> {
        let interlock = self.interlock.as_ref();
        interlock.map_or_else(|| Ok(Admission::default()), |it| it.admit(inode, now))
    }

    /// Admits that a rename replaces a file by another one.
    ///
    /// # Errors
    ///
    /// As for [`Self::admit_removal`].
    pub(super) fn admit_replacement(
        &self,
        by: &Inode,
        replaced: &Inode,
        now: Timestamp,
    ) -> Result<Admission<'_>, FsError> {
        let Some(interlock) = &self.interlock else {
            return Ok(Admission::default());
        };
        interlock.admit_replacement(by, replaced, now)
    }

    /// Returns the outcome of a removal. Waits before until the log of events has the refusal, if it is one, for as long as
    /// that may take. The caller holds no locks of inodes.
    pub(super) fn recorded(&self, outcome: Result<(), FsError>) -> Result<(), FsError> {
        if let (Err(FsError::Interlocked), Some(interlock)) = (&outcome, &self.interlock) {
            interlock.wait_until_recorded();
        }
        outcome
    }

    /// Returns the locks of inodes.
    pub(super) fn locks(&self) -> &Arc<Locks> {
        &self.locks
    }

    /// Returns the known lengths of lists of attributes.
    pub(super) fn list_lens(&self) -> &ListLens {
        &self.list_lens
    }

    /// Returns the quotas of directories.
    pub(super) fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Returns the time for a change that happens now.
    pub(super) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Returns whether every change is refused.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Fails with [`FsError::ReadOnly`] if every change is refused.
    pub(super) fn check_writable(&self) -> Result<(), FsError> {
        if self.read_only {
            return Err(FsError::ReadOnly);
        }
        Ok(())
    }

    /// Reads an inode.
    pub(super) fn get(&self, ino: Ino) -> Result<Inode, FsError> {
        read_inode(&self.transactions, ino)?.ok_or(FsError::NotFound)
    }

    /// Reads the inode of a directory.
    pub(super) fn directory(&self, ino: Ino) -> Result<Inode, FsError> {
        let inode = self.get(ino)?;
        if inode.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        Ok(inode)
    }

    /// Applies an edit. The caller holds the locks of the inodes that it changes.
    pub(super) fn apply(&self, edit: Edit) -> Result<(), FsError> {
        self.quotas.apply(edit, &self.list_lens)
    }

    /// Applies an edit that no quota may refuse. The caller holds the locks of the inodes that it changes.
    pub(super) fn apply_in_any_case(&self, edit: Edit) -> Result<(), FsError> {
        self.quotas.apply_in_any_case(edit, &self.list_lens)
    }

    /// Applies an edit together with a change of the quotas. The caller holds the lock of renames, and the locks of the
    /// inodes that it changes.
    pub(super) fn change_quotas(
        &self,
        edit: Edit,
        change: impl FnOnce(&mut Book),
    ) -> Result<(), FsError> {
        self.quotas.change(edit, &self.list_lens, change)
    }

    /// Applies an edit that adds to the volume. Fails while there is no space for earlier edits.
    pub(super) fn apply_growth(&self, edit: Edit) -> Result<(), FsError> {
        self.transactions.growth().check_growth()?;
        self.apply(edit)
    }

    /// Opens a stripe for little data of a file, and makes room for it if there is none. The caller holds no lock.
    pub(super) fn open_stripe_for(&self, ino: Ino) -> Result<(), FsError> {
        self.with_room(BLOCK_SIZE as u64, || {
            let class = self.transactions.class_of(ino)?;
            Ok(self.transactions.open_stripe(class, None)?)
        })
    }

    /// Runs `attempt`, which holds no lock when it returns. If it finds no space, makes room for `needed`
    /// bytes and tries again.
    pub(super) fn with_room<T>(
        &self,
        needed: u64,
        mut attempt: impl FnMut() -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        for _ in 0..ROOM_ATTEMPTS {
            let made = self.room.times_made();
            match attempt() {
                Err(FsError::NoSpace) if self.room.make_room(needed, &*self.locks)? => {}
                // Another caller may have made room since the attempt began; then none is left to make.
                Err(FsError::NoSpace) if self.room.times_made() > made => {}
                done => return done,
            }
        }
        attempt()
    }
}
