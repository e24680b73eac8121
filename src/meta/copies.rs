//! The copies of the index: where they are, what is kept back for them, and seeing that there are enough, while
//! work goes on.

use std::sync::atomic::Ordering;

use super::{Meta, MetaError};
use crate::format::MemberIndex;

/// An index longer than this is not compacted, because it cannot be read meanwhile.
const MAX_COMPACTED_BYTES: u64 = 1 << 30;

/// An index is compacted if what was changed in it is worth this part of its length.
const WORTH_COMPACTING_PART: u64 = 8;

/// A copy is moved only to where so many times what is kept back beside it is left afterwards.
const RESERVES: u64 = 3;

impl Meta {
    /// Keeps space back for the day when there is none; says whether all of it is kept back.
    pub fn keep_reserve(&self) -> bool {
        self.journal.is_none() || self.index.keep_reserve()
    }

    /// Moves what the index holds together, so that its free space is of use to others. Does so only if enough was
    /// changed since the last time. Says whether space came free.
    ///
    /// # Errors
    ///
    /// [`MetaError::Poisoned`] if the index is in doubt.
    pub fn compact_index(&self) -> Result<bool, MetaError> {
        let bytes = self.index.bytes();
        let worth = self.worth_compacting.load(Ordering::Relaxed);
        if bytes > MAX_COMPACTED_BYTES || worth < bytes / WORTH_COMPACTING_PART {
            return Ok(false);
        }
        self.index.give_reserve();
        match self.index.compact() {
            Ok(shorter) => {
                self.worth_compacting.store(0, Ordering::Relaxed);
                Ok(shorter)
            }
            Err(MetaError::NoSpace) => Ok(false),
            Err(error) => Err(self.poisoned_by(error)),
        }
    }

    /// Returns how many bytes are kept back on each member that has a copy of the index.
    #[must_use]
    pub fn reserve_bytes(&self) -> u64 {
        self.index.reserve_bytes()
    }

    /// Returns whether the members had no space for what was last brought into the journal: unlike the index,
    /// nothing makes up for that.
    #[must_use]
    pub fn is_journal_full(&self) -> bool {
        self.journal_full.load(Ordering::Acquire)
    }

    /// Returns how many bytes of changes are meant to wait in memory at most.
    #[must_use]
    pub fn most_waiting(&self) -> u64 {
        self.overlay_bytes as u64
    }

    /// Returns the members that have a copy of the index.
    #[must_use]
    pub fn index_holders(&self) -> Vec<MemberIndex> {
        self.index.holders()
    }

    /// Does a bounded piece of work, some megabytes, if a member failed that held a copy of the
    /// index: another member gets one. Says whether there may be more to do.
    ///
    /// # Errors
    ///
    /// [`MetaError::Poisoned`] if no copy is left.
    pub fn mend_index(&self) -> Result<bool, MetaError> {
        self.journal()?;
        self.index.refill().map_err(|error| self.poisoned_by(error))
    }

    /// Looks for the copies of the index, and returns the members on which they are, in order. There
    /// are to be as many as parity shards and one more.
    #[must_use]
    pub fn index_copies(&self) -> Vec<MemberIndex> {
        self.index.copies()
    }

    /// Does a bounded piece, a megabyte, of comparing the copies of the index with one another, once a
    /// mount: what one of them lost is written again. Says whether there is more to do.
    ///
    /// # Errors
    ///
    /// [`MetaError::Poisoned`] if no copy is left.
    pub fn compare_index(&self) -> Result<bool, MetaError> {
        self.journal()?;
        self.index
            .compare()
            .map_err(|error| self.poisoned_by(error))
    }

    /// Returns how much room a member has to have for a copy of the index to be moved to it.
    #[must_use]
    pub fn room_for_a_copy(&self) -> u64 {
        let bytes = self.index.bytes();
        // With the checksums that lie between the pages.
        bytes + bytes / 128 + RESERVES * self.index.reserve_bytes()
    }

    /// Has [`Meta::mend_index`] move the copies of the index that these members have, and no others, to
    /// members that have enough room, if there are any.
    pub fn move_copies_off(&self, members: &[MemberIndex]) {
        self.index.leave(members);
    }

    /// Processes at most `pieces` pieces that copies of the index lack, or that are to move, and waits for commits in
    /// the way. Says whether there may be more to do.
    ///
    /// # Errors
    ///
    /// As for [`Meta::mend_index`].
    pub fn mend_copies(&self, pieces: usize) -> Result<bool, MetaError> {
        for _ in 0..pieces {
            self.index.settle();
            if !self.mend_index()? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
